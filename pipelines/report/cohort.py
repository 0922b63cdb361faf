"""A group of segmentations without a truth: volumes, asymmetry, outliers, effects and trends.

Volumes may be adjusted for the size of the head, by the intracranial volume:

- `residual`: for each structure a line of volume over intracranial volume is fitted to the group,
  by least squares, and what it gives for the difference of a scan from the group's mean is taken
  away. Values stay in mm³, as of a head of mean size.
- `proportion`: the volume in percent of the intracranial volume.

Effects of sites may be taken away by ComBat, from the adjusted volumes where there are any.

Persons are compared by a linear model (`group_model`). A person's value is the mean over their
scans: intervals count persons, not scans.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from trinat.pipelines.report.group_model import FACTORS, GroupModel, fit_groups
from trinat.pipelines.report.harmonised import Harmonisation, harmonise
from trinat.segmentation.errors import EvaluationError
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.norms import NormError, Norms
from trinat.segmentation.metrics.statistics import robust_z

Method = Literal["residual", "proportion"]
_Values = NDArray[np.float64]

# The metric of volumes that were adjusted for the intracranial volume.
ADJUSTED = "adjusted_volume"
# That of volumes, adjusted or not, without the effects of sites.
HARMONISED = "harmonised_volume"
# Iglewicz and Hoaglin's limit for robust z-scores.
OUTLIER_Z = 3.5
# A robust spread of fewer values than this says nothing.
FEWEST_FOR_Z = 8

_AGE_BANDS = 10  # years
# A line through fewer scans says nothing.
_FEWEST_SCANS = 4
_REMEDY = (
    "use a model that finds all fluid inside the skull on whole heads, or give a table of "
    "participants with a column eTIV"
)
# Percentiles of norms beyond these stand out: two volumes in a hundred of healthy persons.
_USUAL_PERCENTILES = (1, 99)


@dataclass(frozen=True)
class Scan:
    """One label map: whose it is, its volumes in mm3 by structure, and what is known beside.

    `uncertainty` is, by structure, the CV of the volume over samples with dropout. `group` is what
    a study calls the person's group. `intracranial_mm3` is None where it is not known.

    `left_out` says why the scan is in no number, "" where it is in them; `structures_left_out` says
    it for structures of a scan that is: `volumes_mm3` lacks these. `structure_grades` has the
    grades of single structures.
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
    intracranial_mm3: float | None = None
    left_out: str = ""
    structures_left_out: Mapping[str, str] = field(default_factory=dict)
    structure_grades: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Subject and session, as the page shows them."""
        return f"{self.subject} {self.session}".strip()


@dataclass(frozen=True)
class Range:
    """Expected volumes of a structure, for people of a sex and age where these are given.

    Volumes in mm³, ages in years, both ends included. `sex` "" is for both sexes.
    """

    structure: str
    low_mm3: float
    high_mm3: float
    sex: str = ""
    age_from: float = -np.inf
    age_to: float = np.inf

    @property
    def is_for_some(self) -> bool:
        """Whether it is for one sex or for some ages."""
        is_by_age = np.isfinite(self.age_from) or np.isfinite(self.age_to)
        return bool(self.sex or is_by_age)

    def fits(self, scan: Scan) -> bool:
        """Whether it speaks of this person; ranges by age or sex say nothing where these lack.

        Both conditions must hold where both are given.
        """
        if self.sex and self.sex != scan.sex:
            return False
        is_by_age = np.isfinite(self.age_from) or np.isfinite(self.age_to)
        if not is_by_age:
            return True
        if scan.age is None:
            return False
        return self.age_from <= scan.age <= self.age_to


@dataclass(frozen=True)
class Adjustment:
    """How volumes were adjusted: a row of coefficients for each structure, by its name.

    `mean_mm3` is the mean intracranial volume, `scans` the number of scans that have one, and
    `without` that of scans that lack it: they have no adjusted volume. The columns of
    `coefficients` are `slope`, `intercept`, `r2` and `scans`; empty for proportions.
    """

    method: Method
    mean_mm3: float
    scans: int
    without: int
    coefficients: pd.DataFrame

    @property
    def unit(self) -> str:
        """The unit of what is adjusted."""
        return "mm3" if self.method == "residual" else "%"


@dataclass(frozen=True)
class Cohort:
    """The tables of the report, all made from the scans' volumes.

    `frame` has a row for each scan, structure and metric; `structures` are in the order of the
    label scheme. `adjustment` says how volumes were adjusted, `harmonisation` how effects of sites
    were taken away; None where they were not.

    `left_out` are scans that no number of these tables is of; `scans` are all others. `covariates`
    are those that the user named for the linear model; None leaves the choice to the model.
    """

    scans: tuple[Scan, ...]
    frame: pd.DataFrame
    structures: tuple[str, ...]
    adjustment: Adjustment | None = None
    left_out: tuple[Scan, ...] = ()
    harmonisation: Harmonisation | None = None
    covariates: Collection[str] | None = None

    @property
    def is_tested(self) -> bool:
        """Whether there were scans enough to hold any volume against the group."""
        return bool(self.frame["z"].notna().any())

    @property
    def compared(self) -> str:
        """The metric that scans are compared by: the volume, or the last that was made of it."""
        if self.harmonisation is not None:
            return HARMONISED
        return "volume" if self.adjustment is None else ADJUSTED

    @property
    def unit(self) -> str:
        """The unit of that metric, as people write it."""
        unit = "mm3" if self.adjustment is None else self.adjustment.unit
        return unit.replace("mm3", "mm³")

    @cached_property
    def persons(self) -> pd.DataFrame:
        """Persons with their mean values in the metric that is compared; see `persons_of`."""
        return persons_of(self.frame, self.compared)

    @cached_property
    def model(self) -> GroupModel | None:
        """The linear model of measured volumes; see `fit_groups`.

        Volumes that were harmonised, or adjusted by a regression, have lost degrees of freedom that
        a test would not know of. So site and head size are terms of the model instead.
        """
        needed = []
        if self.harmonisation is not None:
            needed.append("site")
        if self.adjustment is not None and self.adjustment.method == "proportion":
            shares = persons_of(self.frame, ADJUSTED).assign(icv=np.nan)
            return fit_groups(shares, "share", self.covariates, needed)
        if self.adjustment is not None:
            needed.append("icv")
        volumes = persons_of(self.frame, "volume")
        return fit_groups(volumes, "volume", self.covariates, needed)

    def outliers(self) -> pd.DataFrame:
        """Volumes and asymmetries far from the group's median, or out of their range.

        Of volumes that were adjusted or harmonised, these are held against the group, and the
        measured ones against ranges.
        """
        far = self.frame["z"].abs() > OUTLIER_Z
        return self.frame[far | (self.frame["note"] != "")].copy()

    def largest_z(self) -> list[float]:
        """The farthest of each scan's volumes and asymmetries; NaN where no z is known."""
        distances = self.frame["z"].abs()
        sizes = distances.groupby(self.frame["scan"]).max()
        return [float(sizes[number]) for number in range(len(self.scans))]


def cohort_of(
    scans: Sequence[Scan],
    scheme: LabelScheme,
    ranges: Iterable[Range] = (),
    adjusting: Method | None = None,
    *,
    harmonising: bool = False,
    norms: Norms | None = None,
    covariates: Collection[str] | None = None,
) -> Cohort:
    """The tables of a group, from its scans' volumes.

    Volumes in long form with asymmetry, their robust z over the group, and a note on those
    outside of the `ranges`. Structures are those of the scheme that any scan has. With `adjusting`
    each volume is there again, adjusted for the intracranial volume, and with `harmonising` again,
    without the effects of sites; the last one has the z. With `norms` measured volumes have a
    percentile, and `norm_z`. Scans that are left out have no part in any of it.
    """
    left_out = tuple(scan for scan in scans if scan.left_out)
    scans = tuple(scan for scan in scans if not scan.left_out)
    measured: set[str] = set()
    for scan in scans:
        measured.update(scan.volumes_mm3)
    structures = tuple(name for name in scheme.names[1:] if name in measured)
    frame = _volume_frame(scans, scheme, structures)
    compared = "volume"
    adjustment = None
    if adjusting is not None:
        volumes = {
            structure: np.array(
                [scan.volumes_mm3.get(structure, np.nan) for scan in scans]
            )
            for structure in structures
        }
        intracranial = np.array([_or_nan(scan.intracranial_mm3) for scan in scans])
        adjusted, adjustment = adjust(volumes, intracranial, adjusting)
        frame = _with_more(frame, compared, adjusted, ADJUSTED, adjustment.unit)
        compared = ADJUSTED
    harmonisation = None
    if harmonising:
        unit = "mm3" if adjustment is None else adjustment.unit
        harmonised, harmonisation = harmonise(frame, compared)
        frame = _with_more(frame, compared, harmonised, HARMONISED, unit)
        compared = HARMONISED
    frame["z"] = frame.groupby(["structure", "metric"])["value"].transform(_z_scores)
    is_compared = frame["metric"].isin([compared, "asymmetry_index"])
    frame["z"] = frame["z"].where(is_compared)
    frame["note"] = _range_notes(frame, scans, ranges)
    if norms is not None:
        places = _places(frame, scans, norms)
        frame = frame.join(places)
        is_far = ~frame["percentile"].between(*_USUAL_PERCENTILES)
        is_far &= frame["percentile"].notna()
        shown = frame.loc[is_far, "percentile"].map("percentile {:.1f}".format)
        frame.loc[is_far, "note"] = shown
    return Cohort(
        scans, frame, structures, adjustment, left_out, harmonisation, covariates
    )


def _with_more(
    frame: pd.DataFrame,
    metric: str,
    made: Mapping[str, _Values],
    made_metric: str,
    unit: str,
) -> pd.DataFrame:
    """The frame, and after each row of one metric (of scan n) what was `made` of it."""
    rows = frame[frame["metric"] == metric]
    values = [
        made[structure][scan]
        for structure, scan in zip(rows["structure"], rows["scan"], strict=True)
    ]
    added = rows.assign(metric=made_metric, value=values, unit=unit)
    # Sorted by their old place, what it was made of first: the index of the two is the same.
    joined = pd.concat([frame, added]).sort_index(kind="stable")
    return joined.reset_index(drop=True)


def _z_scores(values: pd.Series) -> NDArray[np.float64]:
    """Robust z of each value; NaN where there are too few."""
    if values.notna().sum() < FEWEST_FOR_Z:
        return np.full(len(values), np.nan)
    return robust_z(values.to_numpy(float))


def _volume_frame(
    scans: Sequence[Scan], scheme: LabelScheme, structures: Sequence[str]
) -> pd.DataFrame:
    """A row for each volume, and one for each pair's asymmetry index in percent."""
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
            "site": scan.site,
            "intracranial_mm3": _or_nan(scan.intracranial_mm3),
        }
        for name in structures:
            label = scheme.labels[scheme.names.index(name)]
            volume_mm3 = scan.volumes_mm3.get(name, np.nan)
            row = {**facts, "structure": name, "fs_id": label.fs_id}
            rows.append({**row, "metric": "volume", "value": volume_mm3, "unit": "mm3"})
            if label.side != "left" or label.partner is None:
                continue
            right_mm3 = scan.volumes_mm3.get(scheme.names[label.partner], np.nan)
            # Positive where the left is larger; NaN where both lack.
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


def _range_notes(
    frame: pd.DataFrame, scans: Sequence[Scan], ranges: Iterable[Range]
) -> pd.Series:
    """What is to be said of each row's range; nothing where it is within or has none."""
    notes = pd.Series("", frame.index)
    is_volume = frame["metric"] == "volume"
    for limits in ranges:
        scan_fits = np.array([limits.fits(scan) for scan in scans])
        is_structure = frame["structure"] == limits.structure
        asked = scan_fits[frame["scan"]] & is_volume & is_structure
        too_small = asked & (frame["value"] < limits.low_mm3)
        too_large = asked & (frame["value"] > limits.high_mm3)
        notes[too_small] = f"below {limits.low_mm3:,.0f} mm³"
        notes[too_large] = f"above {limits.high_mm3:,.0f} mm³"
    return notes


def _places(frame: pd.DataFrame, scans: Sequence[Scan], norms: Norms) -> pd.DataFrame:
    """Where each volume lies among those of a person's equals, a row for each of the frame's.

    What norms say nothing of is NaN: all but measured volumes, and persons unlike the controls.
    """
    rows = []
    for row in frame.to_dict("records"):
        z = percentile = persons = float("nan")
        scan = scans[row["scan"]]
        if row["metric"] == "volume" and np.isfinite(row["value"]):
            with suppress(NormError):
                place = norms.place(
                    row["structure"],
                    row["value"],
                    scan.sex,
                    scan.age,
                    scan.intracranial_mm3,
                )
                z, percentile, persons = place.z, place.percentile, place.persons
        rows.append((z, percentile, persons))
    columns = ["norm_z", "percentile", "norm_persons"]
    return pd.DataFrame(rows, frame.index, columns)


def adjust(
    volumes_mm3: Mapping[str, _Values], intracranial_mm3: _Values, method: Method
) -> tuple[dict[str, _Values], Adjustment]:
    """Adjusted volumes of N scans, (N,) by structure, and how they were adjusted.

    `volumes_mm3` (N,) by structure and `intracranial_mm3` (N,) are NaN where they are not known,
    and so is what is adjusted. EvaluationError where fewer than four scans have an intracranial
    volume.
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
    for structure, volumes in volumes_mm3.items():
        if method == "proportion":
            adjusted[structure] = 100 * volumes / intracranial_mm3
            continue
        line = _line(intracranial_mm3, volumes)
        adjusted[structure] = volumes - line["slope"] * (intracranial_mm3 - mean_mm3)
        rows[structure] = line
    coefficients = pd.DataFrame.from_dict(rows, orient="index")
    without = len(known) - int(known.sum())
    done = Adjustment(method, mean_mm3, int(known.sum()), without, coefficients)
    return adjusted, done


def _line(x: _Values, y: _Values) -> dict[str, float]:
    """The line of y over x by least squares; NaN where fewer than four pairs are known."""
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


def groups_of(persons: pd.DataFrame, fact: str) -> list[str]:
    """The groups of persons by one fact, sorted; a fact that is not known is no group."""
    return sorted(set(persons[fact]) - {""})


def persons_of(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """A row for each person and structure: `value`, `age` and `icv`, means of scans, and facts.

    `frame` is that of a `Cohort`, and values are of one metric of it. In the order of the
    structures; those of persons without a value have NaN. A fact by which a person's scans differ
    is "", as one that is not known.
    """
    values = frame[frame["metric"] == metric]
    known = {fact: values[fact].where(values[fact] != "") for fact in FACTORS}
    values = values.assign(**known)
    by = values.groupby(["structure", "subject"], sort=False)
    facts = {fact: (fact, "first") for fact in FACTORS}
    found = by.agg(
        value=("value", "mean"),
        age=("age", "mean"),
        icv=("intracranial_mm3", "mean"),
        **facts,
    )
    names = list(FACTORS)
    found[names] = found[names].where(by[names].nunique() == 1, "")
    return found.reset_index()


def differing_persons(frame: pd.DataFrame, fact: str) -> list[str]:
    """The persons whose scans differ by a fact, as patients who were controls before."""
    known = frame[frame[fact] != ""]
    kinds = known.groupby("subject")[fact].nunique()
    return [str(person) for person in kinds.index[kinds > 1]]
