"""Longitudinal changes of volumes, compared with scan-rescan noise, and their page.

Changes are in per cent of the participant's mean volume, so that neither scan is the reference:
from 100 to 90 is -10.53 %, and back is +10.53 % (symmetrised per cent change). Times are in years.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from natsort import natsorted
from numpy.typing import NDArray
from scipy import special

from trinat.pipelines.common.text import count
from trinat.pipelines.report.drawing import (
    INK,
    Drawing,
    add_legend,
    model_color,
    panels,
)
from trinat.pipelines.report.page import (
    Cell,
    Column,
    Columns,
    NamedColumns,
    Table,
    interval,
    number,
    record_table,
    render,
    short_name,
    shown_unit,
    table,
)
from trinat.pipelines.study.record import FURTHER, unit_of
from trinat.segmentation.errors import some

if TYPE_CHECKING:
    from trinat.pipelines.report.group_model import GroupModel

Values = NDArray[np.float64]

# A table shows at most this number of changes: the largest ones, relative to noise.
_MOST_ROWS = 1000
# In years; a little less than a day, so that rounding does not split a day.
_ONE_DAY = 1 / 366


@dataclass(frozen=True)
class Change:
    """Change of the volume of one structure of one participant over time.

    - `scans` is the number of scans, `years` the time from the first to the last; None if times are
      not known, or all scans are of one day.
    - `percent` is the change from the first to the last scan, in per cent of the mean of both.
    - `percent_per_year` is the slope of a line through all scans; None without `years`.
    - `low` and `high` are the 95 % interval of the slope, with three or more scans, else None.
    - `noise` is the limit that `percent_per_year` (without times: `percent`) stays within in 95 of
      100 unchanged participants; None if it was not measured.
    """

    scans: int
    years: float | None
    percent: float
    percent_per_year: float | None
    low: float | None
    high: float | None
    noise: float | None

    @property
    def is_beyond_noise(self) -> bool | None:
        """True if the change is larger than `noise`, the limit for participants without any change.

        None if the noise is not known.
        """
        return None if self.noise is None else abs(self.value) > self.noise

    @property
    def value(self) -> float:
        """The change per year in per cent; without times, that from the first to the last scan."""
        return self.percent if self.percent_per_year is None else self.percent_per_year

    @property
    def relative_to_noise(self) -> float:
        """The absolute change divided by the noise; without known noise, the absolute change."""
        return abs(self.value) / (self.noise or 1)


def change_of(
    volumes: Sequence[float],
    years: Sequence[float | None],
    retest_percent: float | None = None,
) -> Change | None:
    """Return the change over two or more volumes in chronological order; None if all are 0.

    `years` are the times of the volumes, None if unknown. Scans of one day have no change per year:
    their noise would be thousands of per cent. `retest_percent` is the limit within which the
    difference between two scans of an unchanged participant lies in 95 of 100 cases; None if
    unknown.
    """
    values = np.asarray(volumes, float)
    mean = values.mean()
    if mean <= 0:
        return None
    percents = 100 * (values / mean - 1)
    # By convention, relative to the mean of these two volumes, not of all.
    both = (values[0] + values[-1]) / 2
    percent = 0.0
    if both > 0:
        percent = float(100 * (values[-1] - values[0]) / both)
    times = None
    if all(year is not None for year in years):
        times = np.asarray(years, float)
    if times is None or np.ptp(times) < _ONE_DAY:
        return Change(len(values), None, percent, None, None, None, retest_percent)
    from_mean = times - times.mean()
    spread = float(np.sqrt((from_mean**2).sum()))
    slope, half = _slope(percents, from_mean)
    low = None
    high = None
    if half is not None:
        low = slope - half
        high = slope + half
    noise = None
    if retest_percent is not None:
        # The difference of two scans has sqrt(2) times the noise of one scan.
        of_one_scan = retest_percent / np.sqrt(2)
        noise = float(of_one_scan / spread)
    return Change(
        scans=len(values),
        years=float(np.ptp(times)),
        percent=percent,
        percent_per_year=slope,
        low=low,
        high=high,
        noise=noise,
    )


def _slope(percents: Values, from_mean: Values) -> tuple[float, float | None]:
    """Return the slope of a line through values over time, and half the width of its 95 % interval.

    The line is fitted by least squares. `percents` are the values; `from_mean` are their times in
    years, counted from the mean time. The second result is None for two scans.
    """
    squares = (from_mean**2).sum()
    slope = float((from_mean * percents).sum() / squares)
    freedom = len(percents) - 2
    if not freedom:
        return slope, None
    off = percents - percents.mean() - slope * from_mean
    error = np.sqrt((off**2).sum() / freedom / squares)
    # The quantile of Student's t; `scipy.stats` takes half a second to import.
    return slope, float(special.stdtrit(freedom, 0.975) * error)


@cache
def retest_of(model: str) -> dict[str, float]:
    """Return how far two scans of an unchanged participant differ in the volume of each structure.

    The result maps the name of a structure to a limit in per cent: in 95 of 100 cases the
    difference of two scans is smaller. It holds for scans that were segmented together by `model`;
    {} for a model for which it was not measured. docs/reliability.md describes the measurement.
    With few measurements (`freedom` in the table) the standard deviation is uncertain: Student's t
    accounts for that.
    """
    table = files("trinat.configs") / "retest" / f"{model}.tsv"
    if not table.is_file():
        return {}
    with table.open(encoding="utf-8") as file:
        frame = pd.read_csv(file, sep="\t", comment="#")
    within = frame["sd_percent"] * special.stdtrit(frame["freedom"], 0.975)
    return dict(zip(frame["structure"], within.astype(float), strict=True))


@dataclass(frozen=True)
class Course:
    """Volumes of one structure of one participant over time, from the first scan to the last.

    Instead of a volume, it may be another measure, such as a thickness. `cases`, `years` and
    `values` have an item for each scan, in chronological order: the scan's name, the time of the
    scan in years (None if not known) and the value. `structure` is the name of the structure or
    measure, `group` the group of the participant, and `change` the change that was computed from
    the values. `retest_percent` is the limit within which the difference between two scans of an
    unchanged participant lies in 95 of 100 cases; None if it is not known.
    """

    participant: str
    group: str
    structure: str
    cases: Sequence[str]
    years: Sequence[float | None]
    values: Sequence[float]
    change: Change
    retest_percent: float | None

    @property
    def times(self) -> list[float]:
        """Years since the first scan, or without times the numbers of the scans from 0."""
        if not self.has_times:
            return [float(number) for number in range(len(self.years))]
        known = [year for year in self.years if year is not None]
        return [year - known[0] for year in known]

    @property
    def has_times(self) -> bool:
        """True if the times between the scans are known."""
        return self.change.years is not None

    @property
    def percents(self) -> list[float]:
        """Difference of each value from the mean of all values, in per cent of this mean."""
        mean = float(np.mean(self.values))
        return [100 * (volume / mean - 1) for volume in self.values]


@dataclass(frozen=True)
class Changes:
    """Comparison of the yearly changes of volumes between groups of participants.

    `model` has the linear model of each structure; None if no participant has a change per year, or
    if all have the same group, site, sex and age. `notices` are sentences for the reader of the
    page.
    """

    model: GroupModel | None
    notices: tuple[str, ...]


def compare_changes(
    courses: Sequence[Course],
    facts: pd.DataFrame,
    covariates: Collection[str] | None = None,
    of_several_sites: Collection[str] = (),
) -> Changes:
    """Compare the yearly changes of volumes between groups, by the linear model of `fit_groups`.

    Each `Course` gives one value of the model: the change per year of one structure of one
    participant. Its weight grows with the number of sessions and the time between them, because
    changes per year over a few weeks are mostly noise. Robust standard errors hold whatever the
    weights.

    `facts` is the table of `cohort.facts_of`. It has all participants, even those with one scan.
    `covariates` are the terms to include besides group and site: age, sex or icv (the intracranial
    volume). If None, each covariate is included that is known for most participants.
    Participants in `of_several_sites` are left out: another scanner changes volumes, too.
    """
    # Imports scipy.stats, which takes half a second.
    from trinat.pipelines.report.group_model import fit_groups

    slopes = pd.DataFrame(
        {
            "subject": [course.participant for course in courses],
            "structure": [course.structure for course in courses],
            "value": [course.change.percent_per_year for course in courses],
            "spread": [
                float(np.var(course.times)) * len(course.times) for course in courses
            ],
        }
    ).astype({"value": float})
    # A participant may have been segmented longitudinally in several folders.
    of_one = ["subject", "structure"]
    several = sorted(set(slopes.loc[slopes.duplicated(of_one), "subject"]))
    slopes = slopes.sort_values("spread", kind="stable")
    slopes = slopes.drop_duplicates(of_one, keep="last").sort_index()
    left_out = sorted(set(slopes["subject"]) & set(of_several_sites))
    slopes = slopes[~slopes["subject"].isin(left_out)]
    # This assumes that true slopes differ between participants by as much as a slope over the usual
    # sessions is uncertain. Scans without dates have no slope, and their numbers are no years.
    usual = slopes.loc[slopes["value"].notna(), "spread"].median()
    slopes["weight"] = slopes["spread"] / (slopes["spread"] + usual)
    with_slope = set(slopes.dropna(subset="value")["subject"])
    notices = []
    if several:
        notices.append(
            f"{count(len(several), 'participant')} segmented longitudinally in several folders: "
            f"the scans over the longest time count: {some(several)}."
        )
    if left_out:
        notices.append(
            f"{count(len(left_out), 'participant')} excluded, because their scans have more than "
            f"one site, and a change of scanner looks like a change of volume: {some(left_out)}."
        )
    single = [
        participant
        for participant in facts.index
        if participant not in with_slope and participant not in left_out
    ]
    if single:
        notices.append(
            f"{count(len(single), 'participant')} without a change per year, which needs two "
            f"usable scans with dates, and a value above 0: {some(single)}."
        )
    model = None
    if with_slope:
        table = slopes.merge(facts, on="subject", how="inner")
        model = fit_groups(table, "change", covariates)
    if model is not None:
        notices += model.notices
    return Changes(model, tuple(notices))


def changes_page(
    by_output: Mapping[str, Sequence[Course]],
    left_out: Sequence[tuple[str, str, str]] = (),
    lesions: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the HTML page of longitudinal changes: warnings, a plot, and tables of all changes.

    `by_output` maps "" to the volumes of one structure of one participant over time, a `Course` for
    each, and the name of another output (thickness, callosum or lesions) to the courses of its
    measures; each output has a section of its own. `left_out` has a tuple for each scan or
    structure that is excluded from changes: the scan, the structure ("" for the whole scan), and
    the reason. `lesions` are the rows of the table of single lesions; the page shows those that
    have changed.
    """
    courses = by_output[""]
    participants = {course.participant for course in courses}
    every = list(chain.from_iterable(by_output.values()))
    tested = [course for course in every if course.change.noise is not None]
    beyond = [course for course in tested if course.change.is_beyond_noise]
    structures = _structures_of(courses)
    cards = [
        ("Participants", f"{len(participants):,}", "with two or more usable scans"),
        ("Beyond noise", f"{len(beyond):,}", f"of {count(len(tested), 'change')}"),
    ]
    rows_left_out = []
    for scan, structure, why in left_out:
        what = short_name(structure) if structure else "all of it"
        rows_left_out.append([scan, what, why])
    sections = []
    for name, of_output in by_output.items():
        if name:
            variables = _section_variables(of_output, name)
            if name == "lesions":
                # Participants without lesions have no change in percent, and are in no mean.
                variables["groups"] = None
                variables["changes"] = [*variables["changes"], _lesion_table(lesions)]
            title = FURTHER[name].title
            sections.append({"name": name, "title": title, **variables})
    return render(
        "changes.html",
        title="Changes between scans",
        lead=f"{count(len(participants), 'participant')}, {len(structures)} structures.",
        notices=_notices(courses, left_out),
        cards=cards,
        **_section_variables(courses),
        sections=sections,
        looked_at=len(tested),
        left_out=table(
            "left-out-table",
            "Excluded from all changes",
            ["Scan", "What", "Why"],
            rows_left_out,
        ),
    )


def _section_variables(courses: Sequence[Course], output: str = "") -> dict[str, Any]:
    """Return the variables for the template changes.html: `plot`, `groups` and `changes`.

    `plot` is the figure of volumes over time (None without courses), `groups` the table of means by
    group of participants (None for a single participant), and `changes` a list of up to two tables
    of single changes: with dates, and without. `output` is the name of a further output, such as
    thickness; it is put in front of names and ids, which are unique on the page. "" stands for
    volumes.
    """
    # Changes per year and changes over any time are not drawn together and have no common mean.
    timed = [course for course in courses if course.has_times]
    untimed = [course for course in courses if not course.has_times]
    comparable = timed or courses
    prefix = f"{output}-" if output else ""
    plot = courses_plot(comparable, f"{prefix}courses") if comparable else None
    changes = [_change_table(group, output) for group in (timed, untimed) if group]
    groups = _group_table(comparable, f"{prefix}group-table")
    return {"plot": plot, "groups": groups, "changes": changes}


def _notices(
    courses: Sequence[Course], left_out: Sequence[tuple[str, str, str]]
) -> list[str]:
    """Return the warnings that the page shows above the numbers, one sentence or paragraph each.

    `courses` hold the volumes of one structure of one participant over time, a `Course` for each.
    `left_out` has a tuple for each exclusion from the changes: the scan, the structure ("" for the
    whole scan) and the reason.
    """
    notices = []
    scans = [scan for scan, structure, _ in left_out if not structure]
    if scans:
        notices.append(
            f"{count(len(scans), 'scan')} excluded from all changes: {some(scans)}. "
            "The table at the end has the reasons."
        )
    if not courses:
        notices.append("No changes: no participant has two usable scans.")
        return notices
    undated = {course.participant for course in courses if not course.has_times}
    dated = {course.participant for course in courses if course.has_times}
    if undated:
        notice = (
            f"{count(len(undated), 'participant')} without dates, or with all scans on one day: "
            "changes are in per cent, not per year. Without dates, scans are in the order of "
            "their names."
        )
        if dated:
            notice += " They are in a separate table, and not in the plots."
        notices.append(notice)
    if all(course.retest_percent is None for course in courses):
        notices.append(
            "The measurement noise of this model is unknown, so the page cannot tell which changes "
            "are larger than noise."
        )
    return notices


def courses_plot(courses: Sequence[Course], name: str = "courses") -> Drawing:
    """Plot volumes over time: a panel for each structure, a line for each participant.

    Each `Course` is one line: the values of one structure, or of another measure, in the scans of
    one participant, in per cent of their mean. Lines are coloured by the participants' group.
    Either all courses have times, or none has.

    The grey band of a panel shows the noise of the measurement: in a participant without any real
    change, 95 of 100 scans lie inside. It is drawn for the smallest number of scans that a
    participant of the panel has.
    """
    groups = natsorted({course.group for course in courses})
    structures = _structures_of(courses)
    marks: dict[str, list[str]] = {}
    with panels(structures, 1.9, 0.4) as (figure, axes):
        for number, structure in enumerate(structures):
            of_structure = [one for one in courses if one.structure == structure]
            gid = f"scans-{number}"
            marks[gid] = _draw_panel(axes[number], of_structure, groups, gid)
        has_times = any(course.has_times for course in courses)
        along = "years since the first scan" if has_times else "scan"
        figure.supxlabel(along)
        figure.supylabel("% from the mean")
        if len(groups) > 1:
            add_legend(figure, [group or "no group" for group in groups])
    label = (
        f"{len(structures)} structures or measures over time, one line per participant"
    )
    caption = ""
    if any(course.retest_percent is not None for course in courses):
        caption = (
            "Band: 95 of 100 scans are inside if nothing changes, for participants with "
            f"{_fewest_scans(courses)} scans."
        )
    return Drawing(name, figure, label, marks, caption=caption)


def _fewest_scans(courses: Sequence[Course]) -> int:
    """Return the number of scans of the participant who has the fewest scans."""
    return min(len(course.cases) for course in courses)


def _structures_of(courses: Sequence[Course]) -> list[str]:
    """Return the names of all structures in `courses`, each once, in order of appearance."""
    return list(dict.fromkeys(course.structure for course in courses))


def _draw_panel(
    axis: Any,
    courses: Sequence[Course],
    groups: Sequence[str],
    gid: str,
) -> list[str]:
    """Draw the volumes of one structure over time into `axis`, a line for each participant.

    Returns a label for each dot (a scan), such as "sub-01_ses-2: 3,912 mm³", in the order of
    drawing. `gid` is the id of the dots in the SVG. `groups` are all groups of participants in the
    figure: the index of a group in them decides the colour of its lines. `axis` is a matplotlib
    Axes.
    """
    retest = courses[0].retest_percent
    half = 0.0
    if retest is not None:
        # The noise of one scan is that of a difference of two, divided by sqrt(2). The band is
        # around the mean of the scans, which varies with each of them: hence the second factor.
        scans = _fewest_scans(courses)
        half = float(retest / np.sqrt(2) * np.sqrt((scans - 1) / scans))
        axis.axhspan(-half, half, color=INK, alpha=0.12, lw=0)
    x: list[float] = []
    y: list[float] = []
    colors: list[str] = []
    names: list[str] = []
    for course in courses:
        color = model_color(groups.index(course.group))
        axis.plot(course.times, course.percents, color=color, lw=1.0, alpha=0.7)
        x += course.times
        y += course.percents
        colors += [color] * len(course.cases)
        unit = unit_of(course.structure) or "mm3"
        # Volumes and areas have no decimals, and lengths two.
        digits = 2 if unit == "mm" else 0
        for case, value in zip(course.cases, course.values, strict=True):
            names.append(f"{case}: {value:,.{digits}f} {shown_unit(unit)}")
    axis.scatter(x, y, s=10, c=colors, gid=gid)
    largest_change = max(abs(value) for value in y)
    farthest = max(half, largest_change, 0.1)
    axis.set_ylim(-1.2 * farthest, 1.2 * farthest)
    axis.axhline(0, color=INK, lw=0.5)
    if not courses[0].has_times:
        longest = max(len(course.cases) for course in courses)
        numbers = [str(place + 1) for place in range(longest)]
        axis.set_xticks(range(longest), numbers)
    return names


def _group_table(courses: Sequence[Course], identity: str) -> Table | None:
    """Return the table of the mean and SD of changes, a row for each structure.

    It has a column for each group of participants. Returns None if there is a single participant.
    Either all courses have times, or none has. `identity` is the id of the table in the page.
    """
    if len({course.participant for course in courses}) < 2:
        return None
    groups = natsorted({course.group for course in courses})
    unit = _unit(courses)
    columns: Columns = ["Structure"]
    for group in groups:
        title = group or ("No group" if len(groups) > 1 else "All")
        columns.append(Column(f"{title}: mean ± SD ({unit})", 2, sign=True))
    hint = "Median over participants of the noise: without a real change, 95 of 100 are within this"
    columns.append(Column(f"Noise of a participant ({unit})", 2, hint))
    rows: list[list[Any]] = []
    for place, structure in enumerate(_structures_of(courses)):
        of_structure = [one for one in courses if one.structure == structure]
        cells: list[Any] = [Cell(short_name(structure), place)]
        for group in groups:
            values = [one.change.value for one in of_structure if one.group == group]
            if not values:
                cells.append(None)
                continue
            mean = float(np.mean(values))
            text = number(mean, 2, sign=True).text
            if len(values) > 1:
                text += f" ± {np.std(values, ddof=1):.2f}"
            else:
                text += " (1 participant)"
            cells.append(Cell(text, mean, hint=count(len(values), "participant")))
        noises = [one.change.noise for one in of_structure if one.change.noise]
        cells.append(float(np.median(noises)) if noises else None)
        rows.append(cells)
    caption = "By group: change from the first to the last scan"
    if courses[0].has_times:
        caption = "By group: change a year"
    return table(identity, caption, columns, rows)


def _change_table(courses: Sequence[Course], output: str) -> Table:
    """Return the table of changes, a row for each structure of each participant.

    The largest changes relative to the noise come first. Either all courses have times, or none
    has; without times there is no column of changes per year. `output` is the name of a further
    output, such as thickness; "" for volumes.
    """
    ranked = sorted(
        courses, key=lambda course: course.change.relative_to_noise, reverse=True
    )
    has_times = courses[0].has_times
    columns: NamedColumns = {
        "participant": "Participant",
        "structure": "Structure",
        "scans": Column("Scans", 0),
        "percent": Column(
            "Change (%)", 2, "From the first to the last scan", sign=True
        ),
    }
    if has_times:
        columns["years"] = Column("Years", 1)
        columns["percent_per_year"] = Column("Change a year (% a year)", 2, sign=True)
        columns["interval"] = "95 % interval (% a year)"
    hint = "Without a real change, 95 of 100 participants are within this"
    columns["noise"] = Column(f"Noise ({_unit(courses)})", 2, hint)
    columns["beyond"] = "Beyond noise"
    rows = []
    for course in ranked[:_MOST_ROWS]:
        change = course.change
        of_slope = Cell("")
        if change.low is not None and change.high is not None:
            of_slope = interval(change.low, change.high, 2)
        rows.append(
            {
                **vars(course),
                **vars(change),
                "interval": of_slope,
                "beyond": {None: "", True: "yes", False: "no"}[change.is_beyond_noise],
            }
        )
    note = ""
    if len(ranked) > _MOST_ROWS:
        file = f"{output}_changes.tsv" if output else "changes.tsv"
        note = f"The first {_MOST_ROWS}; {file} has all."
    prefix = f"{output}-" if output else ""
    identity = f"{prefix}change-table"
    caption = "Participants with dates, sorted by change per year relative to noise"
    if not has_times:
        identity = f"{prefix}undated-table"
        caption = "Participants without dates, sorted by change relative to noise"
    return record_table(identity, caption, columns, rows, note=note)


def _lesion_table(lesions: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of lesions that are new, grown, shrunken or gone; the largest changes first.

    `lesions` are rows of the table of single lesions.
    """
    changed = [
        {**lesion, "difference_mm3": lesion["mm3"] - lesion["previous_mm3"]}
        for lesion in lesions
        if lesion["change"] != "unchanged"
    ]
    changed.sort(key=lambda lesion: -abs(lesion["difference_mm3"]))
    hint = "Change of volume if the surface moves by half a voxel"
    columns: NamedColumns = {
        "participant": "Participant",
        "scan": "Scan",
        "previous_scan": "Compared with",
        "lesion": Column("Lesion", 0),
        "change": Column("Change", pick=True),
        "region": "Region",
        "previous_mm3": Column("Before (mm³)", 0),
        "mm3": Column("After (mm³)", 0),
        "difference_mm3": Column("Difference (mm³)", 0, sign=True),
        "noise_mm3": Column("Noise (mm³)", 0, hint),
        "beyond_noise": "Beyond noise",
    }
    note = f"{count(len(lesions) - len(changed), 'lesion')} unchanged."
    if len(changed) > _MOST_ROWS:
        note += f" The first {_MOST_ROWS}; lesions_over_time.tsv has all."
    return record_table(
        "lesion-table",
        "Lesions that changed from one scan to the next",
        columns,
        changed[:_MOST_ROWS],
        note=note,
    )


def _unit(courses: Sequence[Course]) -> str:
    """Return the unit of changes and their noise: "% a year", or "%" if times are not known.

    Either all courses have times, or none has.
    """
    if courses[0].has_times:
        return "% a year"
    return "%"
