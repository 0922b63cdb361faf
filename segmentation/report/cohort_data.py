"""A group of segmentations without a truth: volumes, asymmetry, outliers, groups of people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from segmentation.labels.scheme import LabelScheme
from segmentation.metrics.statistics import robust_z

__all__ = ["OUTLIER_Z", "Cohort", "Range", "Scan", "cohort_of", "volume_frame"]

# Iglewicz and Hoaglin's limit for robust z-scores.
OUTLIER_Z = 3.5
# A robust spread of fewer values than this says nothing.
_FEWEST_FOR_Z = 8
_AGE_BANDS = 10  # years


@dataclass(frozen=True)
class Scan:
    """One label map: whose it is, its volumes in mm3 by structure, and what is known beside."""

    subject: str
    session: str
    volumes_mm3: Mapping[str, float]
    sex: str = ""
    age: float | None = None
    site: str = ""
    grade: str = ""
    notes: str = ""
    uncertainty: Mapping[str, float] | None = None  # CV of the volume over dropout samples

    @property
    def name(self) -> str:
        return f"{self.subject} {self.session}".strip()


@dataclass(frozen=True)
class Range:
    """Expected volumes of a structure, for people of a sex and age where these are given."""

    structure: str
    low_mm3: float
    high_mm3: float
    sex: str = ""
    age_from: float = -np.inf
    age_to: float = np.inf

    def fits(self, scan: Scan) -> bool:
        """Whether it speaks of this person; ranges by age or sex say nothing where these lack."""
        if self.sex and self.sex != scan.sex:
            return False
        if np.isfinite(self.age_from) or np.isfinite(self.age_to):
            return scan.age is not None and self.age_from <= scan.age <= self.age_to
        return True


@dataclass(frozen=True)
class Cohort:
    """The tables of the report, all made from the scans' volumes."""

    scans: tuple[Scan, ...]
    frame: pd.DataFrame
    structures: tuple[str, ...]

    def outliers(self) -> pd.DataFrame:
        """Volumes and asymmetries far from the group's median, or out of their range."""
        far = self.frame["z"].abs() > OUTLIER_Z
        return self.frame[far | (self.frame["note"] != "")].copy()

    def largest_z(self) -> list[float]:
        """The farthest of each scan's volumes and asymmetries; NaN where no z is known."""
        sizes = self.frame["z"].abs().groupby(self.frame["scan"]).max()
        return [float(sizes[n]) for n in range(len(self.scans))]

    def described(self, metric: str) -> pd.DataFrame:
        """Mean, median, SD and extremes over scans, a structure a row."""
        rows = self.frame[self.frame["metric"] == metric]
        by = rows.groupby("structure", sort=False)["value"]
        return by.agg(["count", "mean", "median", "std", "min", "max"]).reset_index()

    def by_group(self, key: str) -> pd.DataFrame:
        """Mean and SD of each structure in each group: by sex, site or band of age."""
        rows = self.frame[(self.frame["metric"] == "volume") & (self.frame[key] != "")]
        by = rows.groupby(["structure", key], sort=False)["value"]
        return by.agg(["count", "mean", "std"]).reset_index()


def cohort_of(scans: Sequence[Scan], scheme: LabelScheme, ranges: Iterable[Range] = ()) -> Cohort:
    """Volumes in long form with asymmetry, robust z over the group, and ranges looked up."""
    structures = tuple(
        label.name
        for label in scheme.labels[1:]
        if any(label.name in scan.volumes_mm3 for scan in scans)
    )
    frame = volume_frame(scans, scheme, structures)
    frame["z"] = np.nan
    for _, rows in frame.groupby(["structure", "metric"]):
        values = rows["value"].to_numpy(float)
        if np.isfinite(values).sum() >= _FEWEST_FOR_Z:
            frame.loc[rows.index, "z"] = robust_z(values)
    frame["note"] = _range_notes(frame, scans, tuple(ranges))
    return Cohort(tuple(scans), frame, structures)


def volume_frame(
    scans: Sequence[Scan], scheme: LabelScheme, structures: Sequence[str]
) -> pd.DataFrame:
    """A row for each volume, and one for each pair's asymmetry index in percent."""
    labels = {label.name: label for label in scheme.labels}
    rows = []
    for number, scan in enumerate(scans):
        facts = {
            **{"scan": number, "subject": scan.subject, "session": scan.session},
            **{"sex": scan.sex, "age_band": _age_band(scan.age), "site": scan.site},
        }
        for name in structures:
            label = labels[name]
            volume = scan.volumes_mm3.get(name, np.nan)
            row = {**facts, "structure": name, "fs_id": label.fs_id}
            rows.append(row | {"metric": "volume", "value": volume, "unit": "mm3"})
            if label.side == "left" and label.partner is not None:
                right = scan.volumes_mm3.get(scheme.names[label.partner], np.nan)
                index = _asymmetry_percent(volume, right)
                rows.append(row | {"metric": "asymmetry_index", "value": index, "unit": "%"})
    return pd.DataFrame(rows)


def _asymmetry_percent(left: float, right: float) -> float:
    """100 (L - R) / mean of L and R: positive where the left is larger; NaN where both lack."""
    both = left + right
    return 200 * (left - right) / both if both > 0 else float("nan")


def _age_band(age: float | None) -> str:
    if age is None:
        return ""
    low = int(age // _AGE_BANDS) * _AGE_BANDS
    return f"{low}-{low + _AGE_BANDS - 1}"


def _range_notes(frame: pd.DataFrame, scans: Sequence[Scan], ranges: Sequence[Range]) -> list[str]:
    by_structure: dict[str, list[Range]] = {}
    for limits in ranges:
        by_structure.setdefault(limits.structure, []).append(limits)
    notes = []
    for row in frame.to_dict("records"):
        note, volume = "", row["metric"] == "volume"
        for limits in by_structure.get(row["structure"], ()) if volume else ():
            if limits.fits(scans[row["scan"]]):
                if row["value"] < limits.low_mm3:
                    note = f"below {limits.low_mm3:,.0f} mm³"
                elif row["value"] > limits.high_mm3:
                    note = f"above {limits.high_mm3:,.0f} mm³"
        notes.append(note)
    return notes
