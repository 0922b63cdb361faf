"""Statistics of a group of segmentations: volumes, asymmetry, outliers, effects and trends.

Volumes may be adjusted for the size of the head, by the intracranial volume:

- `residual`: for each structure a line of volume over intracranial volume is fitted to the scans of
  the group by least squares. The adjusted volume is the volume minus slope times (intracranial
  volume minus mean intracranial volume): the volume expected in a head of mean size, in mm³.
- `proportion`: the volume in percent of the intracranial volume.

Effects of sites may be removed by ComBat, from the adjusted volumes if there are any.

Participants are compared by a linear model (`group_model`). A participant's value is the mean over
their scans: intervals count participants, not scans.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from trinat.pipelines.report.changes import Changes
from trinat.pipelines.report.group_model import FACTORS, GroupModel, fit_groups
from trinat.pipelines.report.harmonised import Harmonisation, harmonise, values_by_scan
from trinat.segmentation.errors import EvaluationError
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.norms import Heads, NormError, Norms
from trinat.segmentation.metrics.statistics import robust_z

Method = Literal["residual", "proportion"]
_Values = NDArray[np.float64]

# Metric of volumes that were adjusted for the intracranial volume.
ADJUSTED = "adjusted_volume"
# Metric of volumes, adjusted or not, without the effects of sites.
HARMONISED = "harmonised_volume"
# Name of the main section of a report.
VOLUMES = "volumes"
# Iglewicz and Hoaglin's limit for robust z-scores.
OUTLIER_Z = 3.5
# A robust spread of fewer values than this is not meaningful.
FEWEST_FOR_Z = 8

_AGE_BANDS = 10  # years
# A line through fewer scans is not meaningful.
_FEWEST_SCANS = 4
_REMEDY = (
    "use a model that finds all fluid inside the skull on whole heads, or give a table of "
    "participants with a column eTIV"
)
# Volumes outside these percentiles of the norms stand out: two in a hundred of healthy
# participants.
_USUAL_PERCENTILES = (1, 99)


@dataclass(frozen=True)
class Scan:
    """A scan in the report: its participant, the volumes from its label map, and metadata.

    - `volumes_mm3` maps each structure to its volume in mm³. In the sections on thickness, callosum
      and lesions it holds their measures instead.
    - `uncertainty` maps each structure to the coefficient of variation of its volume over samples
      with dropout; None if it was not computed.
    - `group` is the study's name for the participant's group, and `family` a name that relatives
      share; "" if unknown.
    - `grade` is the quality grade of the whole scan, and `structure_grades` has those of single
      structures.
    - `intracranial_mm3` is None if it is unknown. `heads_mm3` has the intracranial volumes by
      source; norms use the volume from their own source.
    - `left_out` is the reason to leave the scan out of all statistics, "" if it is included.
    - `structures_left_out` maps structures that are left out of an included scan to the reasons;
      `volumes_mm3` does not contain these structures.
    """

    subject: str
    session: str
    volumes_mm3: Mapping[str, float]
    sex: str = ""
    age: float | None = None
    site: str = ""
    grade: str = ""
    notes: str = ""
    uncertainty: Mapping[str, float] | None = None
    group: str = ""
    family: str = ""
    intracranial_mm3: float | None = None
    heads_mm3: Heads = field(default_factory=dict)
    left_out: str = ""
    structures_left_out: Mapping[str, str] = field(default_factory=dict)
    structure_grades: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Subject and session, as shown on the page."""
        return f"{self.subject} {self.session}".strip()


@dataclass(frozen=True)
class Adjustment:
    """Description of how volumes were adjusted for the size of the head.

    `method` is "residual" or "proportion". `mean_mm3` is the mean intracranial volume, and `scans`
    the number of scans that have one; `without` is the number of other scans, which have no
    adjusted volume. `coefficients` is indexed by structure and has the columns `slope`,
    `intercept`, `r2` and `scans` of the fitted lines; it is empty for proportions.
    """

    method: Method
    mean_mm3: float
    scans: int
    without: int
    coefficients: pd.DataFrame

    @property
    def unit(self) -> str:
        """The unit of adjusted volumes."""
        return "mm3" if self.method == "residual" else "%"


@dataclass(frozen=True)
class Cohort:
    """Tables of the report, all computed from the scans' volumes.

    - `scans` are the scans in these tables, `left_out` all others.
    - `frame` has a row for each scan, structure and metric, with these columns: scan (the index in
      `scans`), subject, session, sex, age, age_band, group, family, site, intracranial_mm3,
      structure, fs_id, metric, value, unit, z (robust z over the group) and note. With norms it
      also has norm_z, percentile and norm_participants.
    - `structures` are in the order of the label scheme.
    - `adjustment` describes how volumes were adjusted, `harmonisation` how effects of sites were
      removed; None if they were not.
    - `covariates` are the terms that the user named for the linear model; None leaves the choice to
      the model.
    - `metric` is what was measured: the volume, or the name of a further output (thickness,
      callosum or lesions).
    """

    scans: tuple[Scan, ...]
    frame: pd.DataFrame
    structures: tuple[str, ...]
    adjustment: Adjustment | None = None
    left_out: tuple[Scan, ...] = ()
    harmonisation: Harmonisation | None = None
    covariates: Collection[str] | None = None
    metric: str = "volume"

    @property
    def is_tested(self) -> bool:
        """True if there are enough scans for z-scores of any volume."""
        return bool(self.frame["z"].notna().any())

    @property
    def why_not_tested(self) -> str:
        """The reason why there are no z-scores."""
        if len(self.scans) < FEWEST_FOR_Z:
            return f"robust z-scores need {FEWEST_FOR_Z} scans, and there are too few"
        return "robust z-scores are undefined where most values are equal"

    @property
    def compared(self) -> str:
        """The metric that z-scores and means by group are computed from.

        It is the harmonised volume, or else the adjusted volume, or else the measured volume.
        """
        if self.harmonisation is not None:
            return HARMONISED
        return self.metric if self.adjustment is None else ADJUSTED

    @property
    def unit(self) -> str:
        """The unit of the metric in `compared`, for display; "" if units of structures differ."""
        if self.adjustment is not None:
            unit = self.adjustment.unit
        else:
            units = self.frame.loc[self.frame["metric"] == self.metric, "unit"].unique()
            unit = units[0] if len(units) == 1 else ""
        return unit.replace("mm3", "mm³")

    @cached_property
    def participants(self) -> pd.DataFrame:
        """Table with a row for each participant and structure: means over the participant's scans.

        Columns: subject, structure, `value` (the mean of the metric in `compared`), age, `icv` (the
        intracranial volume), group, site, sex and family.
        """
        return participants_of(self.frame, self.compared)

    @cached_property
    def model(self) -> GroupModel | None:
        """The comparison of groups by a linear model of the measured values of each structure.

        None if all participants have the same group, site, sex and age. Volumes that were
        harmonised, or adjusted by a regression, have lost degrees of freedom that a test would not
        account for. Therefore site and head size are terms of the model instead.
        """
        needed = []
        if self.harmonisation is not None:
            needed.append("site")
        if self.adjustment is not None and self.adjustment.method == "proportion":
            shares = participants_of(self.frame, ADJUSTED).assign(icv=np.nan)
            return fit_groups(shares, "share", self.covariates, needed)
        if self.adjustment is not None:
            needed.append("icv")
        measured = participants_of(self.frame, self.metric)
        return fit_groups(measured, self.metric, self.covariates, needed)

    def outliers(self) -> pd.DataFrame:
        """Return the rows of `frame` with unusual values: outliers in the group or in the norms.

        These are values whose robust z-score is beyond `OUTLIER_Z`, and measured volumes with an
        extreme percentile in the normative values. The z-scores are those of adjusted or harmonised
        volumes, if there are any.
        """
        far = self.frame["z"].abs() > OUTLIER_Z
        return self.frame[far | (self.frame["note"] != "")].copy()

    def largest_z(self) -> list[float]:
        """Return for each scan the largest absolute z-score of its volumes and asymmetries.

        NaN if a scan has no z-score.
        """
        distances = self.frame["z"].abs()
        sizes = distances.groupby(self.frame["scan"]).max()
        return [float(sizes[number]) for number in range(len(self.scans))]


@dataclass(frozen=True)
class Section:
    """Section of the report for volumes, parcels, thickness, callosum or lesions.

    `name` is the stem of its table files, such as thickness for thickness.csv. `cohort` has the
    tables and `model` the comparison of groups; None if there is nothing to compare. `notices` are
    warnings to show above the numbers. `changes` is the comparison of longitudinal changes; None if
    no participant was segmented longitudinally.
    """

    name: str
    title: str
    cohort: Cohort
    model: GroupModel | None = None
    notices: tuple[str, ...] = ()
    changes: Changes | None = None

    @classmethod
    def of_volumes(cls, cohort: Cohort) -> Section:
        """Return the main section, which has no warnings of its own: the page begins with them.

        Raises EvaluationError if the model of the groups cannot be fitted.
        """
        return cls(VOLUMES, "Volumes", cohort, cohort.model)

    @property
    def prefix(self) -> str:
        """Prefix of ids and figures of this section on the page; "" for volumes."""
        return "" if self.name == VOLUMES else f"{self.name}-"

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables that are not empty, by the name of their file."""
        values, effects, trends, change_effects = section_files(self.name)
        frame = self.cohort.frame.drop(columns="scan")
        if self.cohort.metric != "volume":
            frame = frame.drop(columns="fs_id")
        tables = {values: frame}
        if self.model is not None:
            tables[effects] = self.model.effects
            tables[trends] = self.model.slopes
        if self.changes is not None and self.changes.model is not None:
            tables[change_effects] = self.changes.model.effects
        return {name: table for name, table in tables.items() if not table.empty}


def section_files(name: str) -> tuple[str, str, str, str]:
    """Return the names of the tables of a section: values, effects, trends and changes."""
    stem = "" if name == VOLUMES else f"{name}_"
    return (
        f"{name}.csv",
        f"{stem}effects.csv",
        f"{stem}trends.csv",
        f"{stem}change_effects.csv",
    )


def cohort_of(
    scans: Sequence[Scan],
    scheme: LabelScheme,
    adjusting: Method | None = None,
    *,
    harmonising: bool = False,
    norms: Norms | None = None,
    covariates: Collection[str] | None = None,
    metric: str = "volume",
    unit_of: Callable[[str], str] = lambda structure: "mm3",
) -> Cohort:
    """Compute the tables of the report from the volumes of all scans.

    Scans that have a reason in `left_out` are not in the tables. The frame has a row for each
    volume, and for the asymmetry of each pair of left and right, of all structures of `scheme` that
    any scan has.

    - With `adjusting`, each volume has another row, adjusted for the intracranial volume.
    - With `harmonising`, it has another row, without the effects of sites.
    - The column `z` is the robust z over the group: of asymmetries, and of the last of these
      volumes.
    - With `norms` (normative values by age and sex), measured volumes have a percentile and
      `norm_z`; an unusual percentile is in the column `note`.

    `covariates` are the terms that the user named for the linear model; None for an automatic
    choice. For another `metric` than the volume, such as "thickness", `unit_of` returns the unit of
    a structure's values.
    """
    left_out = tuple(scan for scan in scans if scan.left_out)
    scans = tuple(scan for scan in scans if not scan.left_out)
    measured: set[str] = set()
    for scan in scans:
        measured.update(scan.volumes_mm3)
    structures = tuple(name for name in scheme.names[1:] if name in measured)
    frame = _volume_frame(scans, scheme, structures, metric, unit_of)
    compared = metric
    adjustment = None
    if adjusting is not None:
        intracranial = np.array([_or_nan(scan.intracranial_mm3) for scan in scans])
        volumes = values_by_scan(frame, compared)
        adjusted, adjustment = adjust(volumes, intracranial, adjusting)
        frame = _insert_rows(frame, compared, adjusted, ADJUSTED, adjustment.unit)
        compared = ADJUSTED
    harmonisation = None
    if harmonising:
        unit = "mm3" if adjustment is None else adjustment.unit
        harmonised, harmonisation = harmonise(frame, compared)
        frame = _insert_rows(frame, compared, harmonised, HARMONISED, unit)
        compared = HARMONISED
    frame["z"] = frame.groupby(["structure", "metric"])["value"].transform(_z_scores)
    is_compared = frame["metric"].isin([compared, "asymmetry_index"])
    frame["z"] = frame["z"].where(is_compared)
    frame["note"] = ""
    if norms is not None:
        places = _norm_positions(frame, scans, norms, metric)
        frame = frame.join(places)
        is_far = ~frame["percentile"].between(*_USUAL_PERCENTILES)
        is_far &= frame["percentile"].notna()
        shown = frame.loc[is_far, "percentile"].map("percentile {:.1f}".format)
        frame.loc[is_far, "note"] = shown
    return Cohort(
        scans,
        frame,
        structures,
        adjustment,
        left_out,
        harmonisation,
        covariates,
        metric,
    )


def _insert_rows(
    frame: pd.DataFrame,
    metric: str,
    made: pd.DataFrame,
    made_metric: str,
    unit: str,
) -> pd.DataFrame:
    """Insert a row of another metric after each row of one metric; return the new frame.

    `metric` is the metric of the existing rows, and `made_metric` that of the new rows. `made` has
    the new values as a table of `values_by_scan`; `unit` is their unit.
    """
    rows = frame[frame["metric"] == metric]
    columns = rows["structure"].map(list(made.columns).index).to_numpy()
    values = made.to_numpy()[rows["scan"].to_numpy(), columns]
    added = rows.assign(metric=made_metric, value=values, unit=unit)
    # The new rows have the index of their originals, so a stable sort puts them right behind.
    joined = pd.concat([frame, added]).sort_index(kind="stable")
    return joined.reset_index(drop=True)


def _z_scores(values: pd.Series) -> NDArray[np.float64]:
    """Return the robust z-score of each value; NaN for all if fewer than eight values are known."""
    if values.notna().sum() < FEWEST_FOR_Z:
        return np.full(len(values), np.nan)
    return robust_z(values.to_numpy(float))


def _volume_frame(
    scans: Sequence[Scan],
    scheme: LabelScheme,
    structures: Sequence[str],
    metric: str,
    unit_of: Callable[[str], str],
) -> pd.DataFrame:
    """Return the frame of measured values: a row for each scan and each of `structures`.

    Each pair of left and right has a row for its asymmetry index in percent, too. Values that a
    scan does not have are NaN. `metric` is the name of what was measured, and `unit_of` returns its
    unit for a structure.

    Columns: scan (index in `scans`), subject, session, sex, age, age_band, group, family, site,
    intracranial_mm3, structure, fs_id, metric, value, unit.
    """
    rows = []
    for number_of_scan, scan in enumerate(scans):
        age_band = ""
        if scan.age is not None:
            low = int(scan.age // _AGE_BANDS) * _AGE_BANDS
            age_band = f"{low}-{low + _AGE_BANDS - 1}"
        facts = {
            "scan": number_of_scan,
            "subject": scan.subject,
            "session": scan.session,
            "sex": scan.sex,
            "age": _or_nan(scan.age),
            "age_band": age_band,
            "group": scan.group,
            "family": scan.family,
            "site": scan.site,
            "intracranial_mm3": _or_nan(scan.intracranial_mm3),
        }
        for name in structures:
            label = scheme.labels[scheme.names.index(name)]
            volume_mm3 = scan.volumes_mm3.get(name, np.nan)
            row = {**facts, "structure": name, "fs_id": label.fs_id}
            rows.append(
                {**row, "metric": metric, "value": volume_mm3, "unit": unit_of(name)}
            )
            if label.side != "left" or label.partner is None:
                continue
            right_mm3 = scan.volumes_mm3.get(scheme.names[label.partner], np.nan)
            # Positive if the left is larger; NaN if both are absent.
            index = float("nan")
            both_mm3 = volume_mm3 + right_mm3
            if both_mm3 > 0:
                index = 200 * (volume_mm3 - right_mm3) / both_mm3
            rows.append(
                {**row, "metric": "asymmetry_index", "value": index, "unit": "%"}
            )
    return pd.DataFrame(rows)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _norm_positions(
    frame: pd.DataFrame, scans: Sequence[Scan], norms: Norms, metric: str
) -> pd.DataFrame:
    """Return where each measured value lies in the normative values by age and sex.

    The result has the index of `frame` and the columns `norm_z`, `percentile` and
    `norm_participants` (the number of participants behind the norm). They are NaN in rows of other
    metrics, and for participants whom the norms do not cover. A value of 0 has the percentile 0 and
    no `norm_z`.
    """
    rows = []
    for row in frame.to_dict("records"):
        z = percentile = participants = float("nan")
        scan = scans[row["scan"]]
        value = row["value"]
        if row["metric"] == metric and np.isfinite(value):
            of_scan = (scan.sex, scan.age, scan.heads_mm3)
            with suppress(NormError):
                # Curves have no place for 0, which is below all percentiles.
                place = norms.place(row["structure"], value or 1.0, *of_scan)
                participants = place.participants
                percentile = place.percentile if value else 0.0
                z = place.z if value else np.nan
        rows.append((z, percentile, participants))
    columns = ["norm_z", "percentile", "norm_participants"]
    return pd.DataFrame(rows, frame.index, columns)


def adjust(
    volumes_mm3: pd.DataFrame, intracranial_mm3: _Values, method: Method
) -> tuple[pd.DataFrame, Adjustment]:
    """Adjust volumes for the intracranial volume; return them with a description of the adjustment.

    `volumes_mm3` has a row for each of N scans and a column for each structure; `intracranial_mm3`
    is (N,). The first result has the form of `volumes_mm3`. Unknown values are NaN, and so are the
    adjusted volumes that depend on them. EvaluationError is raised if fewer than four scans have an
    intracranial volume.
    """
    known = np.isfinite(intracranial_mm3)
    if known.sum() < _FEWEST_SCANS:
        raise EvaluationError(
            f"{known.sum()} of {len(known)} scans have an intracranial volume, and "
            f"{_FEWEST_SCANS} are needed to adjust for it",
            remedy=_REMEDY,
        )
    mean_mm3 = float(intracranial_mm3[known].mean())
    adjusted = {}
    rows = {}
    for structure, of_structure in volumes_mm3.items():
        volumes = of_structure.to_numpy(float)
        if method == "proportion":
            adjusted[structure] = 100 * volumes / intracranial_mm3
            continue
        line = _fit_line(intracranial_mm3, volumes)
        adjusted[structure] = volumes - line["slope"] * (intracranial_mm3 - mean_mm3)
        rows[structure] = line
    coefficients = pd.DataFrame.from_dict(rows, orient="index")
    without = len(known) - int(known.sum())
    done = Adjustment(method, mean_mm3, int(known.sum()), without, coefficients)
    return pd.DataFrame(adjusted), done


def _fit_line(x: _Values, y: _Values) -> dict[str, float]:
    """Fit a line of y over x by least squares; return its `slope`, `intercept`, `r2` and `scans`.

    `scans` is the number of pairs of x and y without an unknown value (NaN); other pairs are
    ignored. The coefficients are NaN if fewer than four pairs are known or all x are equal.
    """
    known = np.isfinite(x) & np.isfinite(y)
    x = x[known]
    y = y[known]
    scans = float(len(x))
    unknown = {"slope": np.nan, "intercept": np.nan, "r2": np.nan, "scans": scans}
    if len(x) < _FEWEST_SCANS or np.ptp(x) == 0:
        return unknown
    line = stats.linregress(x, y)
    r2 = float(line.rvalue**2) if np.ptp(y) else np.nan
    return {
        "slope": float(line.slope),
        "intercept": float(line.intercept),
        "r2": r2,
        "scans": scans,
    }


def groups_of(participants: pd.DataFrame, fact: str) -> list[str]:
    """Return the distinct values of a column of `participants`, such as names of groups, sorted.

    `fact` is the column: group, site or sex. Unknown values ("") are left out.
    """
    return sorted(set(participants[fact]) - {""})


def participants_of(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a table with a row for each participant and structure, with means over their scans.

    `frame` is the frame of a `Cohort`, `metric` one of its metrics. The means are `value`, `age`
    and `icv` (the intracranial volume); without any value they are NaN. Age and intracranial volume
    are those of the scans that have a value of the structure, if there are any. The columns group,
    site, sex and family are those of `facts_of`. Rows are in the order of the structures.
    """
    values = frame[frame["metric"] == metric]
    by = values.groupby(["structure", "subject"], sort=False)
    found = by.agg(value=("value", "mean")).join(facts_of(frame), on="subject")
    measured = values.dropna(subset="value").groupby(["structure", "subject"])
    for name, column in (("age", "age"), ("icv", "intracranial_mm3")):
        of_measured = measured[column].mean().reindex(found.index)
        found[name] = of_measured.fillna(found[name])
    return found.reset_index()


def facts_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with a row for each participant, over all scans of the participant.

    `frame` is the frame of a `Cohort`. The index is the participant, and the columns are the means
    of `age` and `icv` (the intracranial volume), and group, site, sex and family. These are "" if
    they are unknown; group, site and sex also if they differ between the scans. `family` is the
    first that is known.
    """
    scans = frame.drop_duplicates("scan")
    texts = (*FACTORS, "family")
    known = {fact: scans[fact].where(scans[fact] != "") for fact in texts}
    by = scans.assign(**known).groupby("subject", sort=False)
    facts = {fact: (fact, "first") for fact in texts}
    found = by.agg(age=("age", "mean"), icv=("intracranial_mm3", "mean"), **facts)
    found["family"] = found["family"].fillna("")
    names = list(FACTORS)
    found[names] = found[names].where(by[names].nunique() == 1, "")
    return found


def differing_participants(frame: pd.DataFrame, fact: str) -> list[str]:
    """Return the participants whose scans do not agree in the column `fact`, such as the group.

    Scans without a value do not count.
    """
    known = frame[frame[fact] != ""]
    kinds = known.groupby("subject")[fact].nunique()
    return [str(participant) for participant in kinds.index[kinds > 1]]
