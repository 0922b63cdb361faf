"""Page of `trinat report`: a group of segmented scans without manual labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from natsort import natsorted

from trinat.pipelines.common.text import count
from trinat.pipelines.report.cohort import (
    ADJUSTED,
    HARMONISED,
    OUTLIER_Z,
    VOLUMES,
    Cohort,
    Section,
    differing_participants,
)
from trinat.pipelines.report.drawing import Drawing
from trinat.pipelines.report.figures import Z_SCORES, z_score_plot
from trinat.pipelines.report.group_page import (
    FOREST,
    RESIDUALS,
    change_methods_text,
    change_table,
    effect_tables,
    forest_plots,
    methods_text,
    residual_plot,
    slope_table,
)
from trinat.pipelines.report.harmonised import FEWEST_AT_SITE
from trinat.pipelines.report.page import (
    Cell,
    Column,
    Columns,
    NamedColumns,
    Table,
    number,
    record_table,
    render,
    short_name,
    table,
)
from trinat.pipelines.report.participants import (
    DIGITS,
    SITES,
    adjustment_table,
    participants_plot,
    site_plot,
    site_tables,
)
from trinat.segmentation.errors import some
from trinat.segmentation.metrics.definitions import METRICS

_GROUPS = {"sex": "sex", "group": "group", "age_band": "age (years)", "site": "site"}
_MOST_SCANS = 500
# Name of the figures of longitudinal changes.
CHANGES = "changes"


def cohort_drawings(sections: Sequence[Section]) -> list[Drawing]:
    """Return the figures of the page: effects of groups, participants, residuals, z-scores, sites.

    Figures without data are left out. `sections` begin with that of volumes; the names of the
    figures of the others start with the name of the section.
    """
    drawings = []
    for section in sections:
        drawings += [
            replace(drawing, name=f"{section.prefix}{drawing.name}")
            for drawing in _section_drawings(section)
        ]
    return drawings


def _section_drawings(section: Section) -> list[Drawing]:
    """Return the figures of a section; only volumes have all kinds of figures."""
    cohort = section.cohort
    drawings: list[Drawing | None] = []
    if section.model is not None:
        drawings += forest_plots(section.model)
    if section.name == VOLUMES:
        drawings.append(participants_plot(cohort))
        if section.model is not None:
            drawings.append(residual_plot(section.model))
        if cohort.harmonisation is not None:
            drawings.append(site_plot(cohort.harmonisation))
    if section.changes is not None and section.changes.model is not None:
        drawings += forest_plots(section.changes.model, CHANGES)
    if cohort.is_tested:
        drawings.append(z_score_plot(cohort.frame, cohort.structures))
    return [drawing for drawing in drawings if drawing is not None]


def cohort_page(
    sections: Sequence[Section],
    drawings: Sequence[Drawing],
    pictures: Sequence[tuple[str, str, bytes]],
    provenance: Mapping[str, str],
    *,
    failures: Sequence[tuple[str, str]] = (),
    remarks: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the page of `trinat report` as HTML, one file with figures and pictures inside.

    - `sections` begin with that of volumes, followed by those of parcels, thickness, callosum and
      lesions of the same scans.
    - `drawings` are the figures, from `cohort_drawings`.
    - `pictures` has a title, a text and a PNG file for each of the most unusual scans.
    - `provenance` is shown at the end: texts such as program version, date and command, by title.
    - `failures` has a name and a reason for each scan without volumes.
    - `remarks` has the name of the participants table and a remark on how it was read, in each
      item.
    """
    volumes, *further = sections
    cohort = volumes.cohort
    methods = ""
    if volumes.model is not None:
        response = "The volumes"
        if cohort.unit == "%":
            response = "The volumes, in percent of the intracranial volume,"
        structures = sum(len(scan.structures_left_out) for scan in cohort.scans)
        methods = methods_text(
            volumes.model, response, len(cohort.left_out), structures
        )
    participants = len({scan.subject for scan in cohort.scans})
    lead = (
        f"{count(len(cohort.scans), 'scan')} of {count(participants, 'participant')}, "
        f"{len(cohort.structures)} structures, without a reference to compare with."
    )
    by_facts = [_group_table(cohort, key) for key in _GROUPS]
    return render(
        "cohort.html",
        title="Segmented scans",
        lead=lead,
        notices=_notices(cohort, failures),
        cards=_cards(cohort, failures),
        volumes=_section_variables(volumes, drawings),
        methods=methods,
        sections=[_section_variables(section, drawings) for section in further],
        participant_plots=_plots(drawings, "participants"),
        residual_plots=_plots(drawings, RESIDUALS),
        site_plots=_plots(drawings, SITES),
        limit=OUTLIER_Z,
        has_norms="percentile" in cohort.frame,
        groups=[found for found in by_facts if found is not None],
        adjustment=cohort.adjustment,
        adjusted=_describe_metric(cohort, ADJUSTED) if cohort.adjustment else None,
        coefficients=adjustment_table(cohort.adjustment),
        harmonisation=cohort.harmonisation,
        harmonised=_describe_metric(cohort, HARMONISED)
        if cohort.harmonisation
        else None,
        sites=site_tables(cohort.harmonisation) if cohort.harmonisation else [],
        uncertainty=_uncertainty_table(cohort),
        pictures=pictures,
        scans=_scan_table(cohort),
        left_out=_left_out_table(cohort),
        failures=table(
            "failure-table", "Scans without a result", ["Scan", "Reason"], failures
        ),
        remarks=table(
            "remark-table",
            "How participants tables were read",
            ["Table", "Remark"],
            remarks,
        ),
        volume_definition=METRICS["volume"].definition,
        provenance=provenance,
    )


def _plots(drawings: Sequence[Drawing], name: str) -> list[Drawing]:
    """Return the figures whose names begin with `name`."""
    return [drawing for drawing in drawings if drawing.name.startswith(name)]


def _section_variables(
    section: Section, drawings: Sequence[Drawing]
) -> dict[str, object]:
    """Return the variables that the template cohort.html needs for one section, by name.

    They are the fields of the section, and its tables and figures; `drawings` are all figures of
    the page.
    """
    cohort = section.cohort
    prefix = section.prefix
    effects: list[Table] = []
    slopes = None
    if section.model is not None:
        digits = DIGITS[cohort.unit]
        effects = effect_tables(section.model, cohort.unit, digits)
        slopes = slope_table(section.model, cohort.unit, digits + 1)
    return {
        **vars(section),
        "effects": _with_prefix(prefix, effects),
        "slopes": _with_prefix(prefix, [slopes]),
        "outliers": _outlier_table(cohort, prefix),
        "measured": _describe_metric(cohort, cohort.metric, prefix),
        "asymmetry": _describe_metric(cohort, "asymmetry_index", prefix),
        "changes": _change_variables(section, drawings),
        "forest": _plots(drawings, prefix + FOREST),
        "z_scores": _plots(drawings, prefix + Z_SCORES),
    }


def _with_prefix(prefix: str, tables: Iterable[Table | None]) -> list[Table]:
    """Return the tables that exist, each with a prefix to its id, which is unique on the page."""
    return [
        replace(each, id=f"{prefix}{each.id}") for each in tables if each is not None
    ]


def _change_variables(
    section: Section, drawings: Sequence[Drawing]
) -> dict[str, object] | None:
    """Return the variables that the template cohort.html needs for longitudinal changes.

    They are the fields of `section.changes`, with plots, tables and a text on methods; None without
    changes. `drawings` are all figures of the page.
    """
    if section.changes is None:
        return None
    model = section.changes.model
    tables: list[Table] = []
    methods = ""
    if model is not None:
        prefix = section.prefix
        tables += _with_prefix(prefix, [change_table(model)])
        effects = effect_tables(model, "% a year", 2)
        tables += _with_prefix(f"{prefix}change-", effects)
        methods = change_methods_text(model)
    return {
        **vars(section.changes),
        "plots": _plots(drawings, section.prefix + CHANGES),
        "tables": tables,
        "methods": methods,
    }


def _notices(cohort: Cohort, failures: Sequence[tuple[str, str]]) -> list[str]:
    """Return the warnings that the page shows above the numbers, one sentence or paragraph each.

    `cohort` has the scans and the tables of their volumes. `failures` has a name and a reason for
    each scan without volumes.
    """
    notices = []
    if failures:
        tried = len(cohort.scans) + len(cohort.left_out) + len(failures)
        notices.append(f"{len(failures)} of {tried} scans failed.")
    if cohort.left_out:
        names = [scan.name for scan in cohort.left_out]
        notices.append(
            f"{count(len(names), 'scan')} excluded from all numbers: {some(names)}. "
            "The table at the end has the reasons."
        )
    if not cohort.is_tested:
        notices.append(f"Outliers were not looked for: {cohort.why_not_tested}.")
    for fact in ("group", "site"):
        differing = differing_participants(cohort.frame, fact)
        if differing:
            notices.append(
                f"{count(len(differing), 'participant')} excluded from every comparison in which "
                f"{fact} is a term, because their scans have more than one {fact}: "
                f"{some(differing)}."
            )
    if cohort.adjustment is not None and cohort.adjustment.without:
        lacking = count(cohort.adjustment.without, "scan")
        notices.append(
            f"{lacking} without adjusted volumes, because the intracranial volume is unknown."
        )
    if cohort.harmonisation is not None and cohort.harmonisation.without:
        lacking = count(cohort.harmonisation.without, "scan")
        facts = ", ".join(("site", *cohort.harmonisation.kept))
        notices.append(
            f"{lacking} without harmonised volumes, because one of these is unknown: {facts}."
        )
    if cohort.harmonisation is not None and cohort.harmonisation.not_harmonised:
        names = [short_name(name) for name in cohort.harmonisation.not_harmonised]
        notices.append(
            f"{count(len(names), 'structure')} without harmonised volumes, and so without z-scores "
            f"and means by group: {some(names)} (fewer than {FEWEST_AT_SITE} volumes at a site, or "
            "all equal)."
        )
    if "percentile" in cohort.frame:
        of_scans = cohort.frame.groupby("scan")["percentile"].count()
        lacking_norms = int((of_scans == 0).sum())
        if lacking_norms:
            scans = count(lacking_norms, "scan")
            notices.append(
                f"{scans} without percentiles, because age, sex or intracranial volume is unknown "
                "or outside the range of the norms."
            )
    if cohort.model is not None:
        notices += cohort.model.notices
    grades = [scan.grade for scan in cohort.scans]
    texts = {
        "reject": "rejected by quality control, but included in the numbers",
        "look": "should be looked at by a person",
    }
    for grade, text in texts.items():
        if grade in grades:
            notices.append(f"{count(grades.count(grade), 'scan')} {text}.")
    return notices


def _cards(
    cohort: Cohort, failures: Sequence[tuple[str, str]]
) -> list[tuple[str, str, str]]:
    """Return the boxes at the top of the page, each with a title, a value and a detail.

    They show the number of scans in `cohort`, how many of them stand out, and how many pass quality
    control. `failures` has a name and a reason for each scan without volumes.
    """
    far = cohort.outliers()
    others = [f"{len(failures)} failed"]
    if cohort.left_out:
        others.append(f"{len(cohort.left_out)} left out")
    stand_out = ("Stand out", "–", "not tested: too few scans")
    if cohort.is_tested or len(far):
        found = f"in {len(far):,} volumes or asymmetries"
        stand_out = ("Stand out", f"{far['scan'].nunique():,}", found)
    cards = [
        ("Scans", f"{len(cohort.scans):,}", ", ".join(others)),
        stand_out,
    ]
    graded = (*cohort.scans, *cohort.left_out)
    grades = [scan.grade for scan in graded if scan.grade]
    if grades:
        share = f"{grades.count('pass') / len(grades):.0%}"
        cards.append(("Pass quality control", share, f"of {len(grades):,} graded"))
    return cards


def _outlier_table(cohort: Cohort, prefix: str) -> Table:
    """Return the table of unusual volumes and asymmetries, the largest robust z-score first.

    These are the rows that `cohort.outliers` returns: outliers in the group, and volumes outside
    the normative values. `prefix` is the prefix of its id.
    """
    columns: NamedColumns = {
        "scan": "Scan",
        "structure": "Structure",
        "what": "What",
        "value": Column("Value", 0),
        "z": Column(
            "Robust z", 1, "Distance from the group's median in robust SDs", sign=True
        ),
    }
    if "percentile" in cohort.frame:
        columns["note"] = "Percentile"
    rows = []
    outliers = cohort.outliers()
    farthest_first = outliers.sort_values("z", key=lambda z: -z.abs())
    for row in farthest_first.to_dict("records"):
        unit = row["unit"].replace("mm3", "mm³")
        digits = 2
        what = row["metric"]
        if what == "volume":
            digits = 0
        elif what in (ADJUSTED, HARMONISED):
            digits = DIGITS[unit]
            what = what.replace("_", " ")
        elif what == "asymmetry_index":
            digits = 1
            what = "asymmetry"
        cells = {
            "scan": cohort.scans[row["scan"]].name,
            "what": what,
            "value": number(row["value"], digits, unit=f" {unit}"),
        }
        rows.append(row | cells)
    caption = "Far from the group, or out of range"
    return record_table(f"{prefix}outlier-table", caption, columns, rows)


def _describe_metric(cohort: Cohort, metric: str, prefix: str = "") -> Table:
    """Return the table of mean, median, SD and range of a metric over scans.

    It has a row for each structure. For the asymmetry index there is a row for each pair of left
    and right. `metric` is one of the metrics in `cohort.frame`, such as volume. `prefix` is the
    prefix of the id of the table.
    """
    title = "Structure"
    digits = DIGITS[cohort.unit]
    is_signed = metric == "asymmetry_index"
    if metric == "volume":
        caption = "Volumes (mm³)"
        digits = 0
    elif metric in (ADJUSTED, HARMONISED):
        kind = "Adjusted" if metric == ADJUSTED else "Harmonised"
        caption = f"{kind} volumes ({cohort.unit})"
    elif metric == "asymmetry_index":
        caption = "Asymmetry index (%): positive where left is larger"
        title = "Pair"
        digits = 2
    else:
        caption = (
            f"Measured values ({cohort.unit})" if cohort.unit else "Measured values"
        )
        title = "Measure"
    columns: NamedColumns = {
        "structure": title,
        "count": Column("Scans", 0),
        "mean": Column("Mean", digits, sign=is_signed),
        "median": Column("Median", digits, sign=is_signed),
        "std": Column("SD", digits),
        "min": Column("Smallest", digits, sign=is_signed),
        "max": Column("Largest", digits, sign=is_signed),
    }
    of_metric = cohort.frame[cohort.frame["metric"] == metric]
    known = of_metric.groupby("structure", sort=False)["value"]
    described = known.agg(["count", "mean", "median", "std", "min", "max"])
    rows = described.reset_index().to_dict("records")
    if metric == "asymmetry_index":
        for place, row in enumerate(rows):
            # A pair has the name of its left structure.
            name = short_name(row["structure"]).removeprefix("L ")
            row["structure"] = Cell(name, place)
    identity = f"{prefix}{metric}-table"
    return record_table(identity, caption, columns, rows, in_order=True)


def _group_table(cohort: Cohort, key: str) -> Table | None:
    """Return the table of mean and SD of each structure, with a column for each group.

    `key` is the column of the frame that forms the groups: sex, group, age_band or site. The values
    are the measured, adjusted or harmonised volumes, whichever were computed last. A participant
    counts once in a group, with the mean over their scans in it. Returns None if there are fewer
    than two groups.
    """
    is_volume = cohort.frame["metric"] == cohort.compared
    digits = DIGITS[cohort.unit]
    is_known = cohort.frame[key] != ""
    volumes = cohort.frame[is_volume & is_known]
    groups = natsorted(volumes[key].unique())
    if len(groups) < 2:
        return None
    of_participants = volumes.groupby(["structure", key, "subject"])["value"].mean()
    by_group = of_participants.groupby(["structure", key])
    found = by_group.agg(["count", "mean", "std"])
    # Number of participants in each group that have a value of any structure.
    measured = volumes.dropna(subset="value")
    participants_of = measured.groupby(key)["subject"].nunique()
    rows = []
    for place, structure in enumerate(cohort.structures):
        cells = []
        for group in groups:
            participants, mean, sd = found.loc[(structure, group)]
            shown = number(mean, digits)
            text = shown.text
            if not np.isnan(sd):
                text += f" ± {sd:,.{digits}f}"
            elif participants == 1:
                text += " (1 participant)"
            hint = count(int(participants), "participant")
            cells.append(Cell(text, shown.order, hint=hint))
        rows.append([Cell(short_name(structure), place), *cells])
    columns: Columns = ["Structure"]
    counts = []
    for group in groups:
        columns.append(Column(f"{group} ({cohort.unit})", digits, "Mean ± SD"))
        counts.append(f"{group}: {participants_of.get(group, 0)}")
    return table(
        f"{key}-table",
        f"By {_GROUPS[key]}: mean ± SD",
        columns,
        rows,
        note=f"Participants: {', '.join(counts)}.",
    )


def _uncertainty_table(cohort: Cohort) -> Table | None:
    """Return the table of the uncertainty of volumes, by structure; None if no scan has any.

    The uncertainty is the coefficient of variation of a volume over samples with dropout, from the
    scans in `cohort`.
    """
    columns: Columns = [
        "Structure",
        Column("Scans", 0),
        Column("Median CV of the volume", 3, "Over samples with dropout"),
        Column("Largest", 3),
        "Scan with the largest",
    ]
    doubts = pd.DataFrame(
        [scan.uncertainty or {} for scan in cohort.scans], dtype=float
    )
    rows = []
    for place, structure in enumerate(cohort.structures):
        if structure not in doubts:
            continue
        known = doubts[structure].dropna()
        worst = cohort.scans[int(doubts[structure].argmax())]
        name = Cell(short_name(structure), place)
        rows.append([name, len(known), known.median(), known.max(), worst.name])
    if not rows:
        return None
    return table("doubt-table", "Uncertainty of volumes", columns, rows)


def _scan_table(cohort: Cohort) -> Table:
    """Return the table of the scans in `cohort`: grade, sex, age, site, largest z-score and notes.

    The most unusual scan comes first; scans without z-scores come last.
    """
    columns: NamedColumns = {
        "name": "Scan",
        "grade": "Grade",
        "sex": "Sex",
        "age": Column("Age", 0),
        "site": "Site",
        "largest": Column("Largest |z|", 1),
        "notes": "Notes",
    }
    largest = cohort.largest_z()
    order = np.argsort(-np.nan_to_num(largest), kind="stable")
    rows = [
        {"name": cohort.scans[place].name, "largest": largest[place]}
        | vars(cohort.scans[place])
        for place in order[:_MOST_SCANS]
    ]
    note = ""
    if len(order) > _MOST_SCANS:
        note = f"The {_MOST_SCANS} farthest from the group; volumes.csv has all."
    caption = "All scans, the most unusual first"
    return record_table("scan-table", caption, columns, rows, note=note)


def _left_out_table(cohort: Cohort) -> Table:
    """Return the table of scans and structures that are left out of all statistics, and why.

    They are those in `cohort.left_out`, and structures left out of the other scans.
    """
    rows = [[scan.name, "all of it", scan.left_out] for scan in cohort.left_out]
    for scan in cohort.scans:
        rows += [
            [scan.name, short_name(structure), why]
            for structure, why in scan.structures_left_out.items()
        ]
    columns: Columns = ["Scan", "What", "Why"]
    return table("left-out-table", "Excluded from all numbers", columns, rows)
