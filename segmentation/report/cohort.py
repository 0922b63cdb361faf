"""A group of segmentations without a truth: volumes, asymmetry, outliers, and their page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.definitions import METRICS
from trinat.segmentation.metrics.statistics import robust_z
from trinat.segmentation.report.figures import Drawing, z_score_plot
from trinat.segmentation.report.page import (
    Cell,
    Column,
    Columns,
    Table,
    asset,
    count,
    number,
    render,
    short_name,
    table,
)

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


def cohort_of(scans: Sequence[Scan], scheme: LabelScheme, ranges: Iterable[Range] = ()) -> Cohort:
    """Volumes in long form with asymmetry, robust z over the group, and ranges looked up."""
    structures = tuple(
        label.name
        for label in scheme.labels[1:]
        if any(label.name in scan.volumes_mm3 for scan in scans)
    )
    frame = _volume_frame(scans, scheme, structures)
    frame["z"] = frame.groupby(["structure", "metric"])["value"].transform(_z_scores)
    frame["note"] = _range_notes(frame, scans, ranges)
    return Cohort(tuple(scans), frame, structures)


def _z_scores(values: pd.Series) -> NDArray[np.float64]:
    enough = values.notna().sum() >= _FEWEST_FOR_Z
    return robust_z(values.to_numpy(float)) if enough else np.full(len(values), np.nan)


def _volume_frame(
    scans: Sequence[Scan], scheme: LabelScheme, structures: Sequence[str]
) -> pd.DataFrame:
    """A row for each volume, and one for each pair's asymmetry index in percent."""
    rows = []
    for n, scan in enumerate(scans):
        facts = {
            **{"scan": n, "subject": scan.subject, "session": scan.session},
            **{"sex": scan.sex, "age_band": _age_band(scan.age), "site": scan.site},
        }
        for name in structures:
            label = scheme.labels[scheme.names.index(name)]
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


def _range_notes(frame: pd.DataFrame, scans: Sequence[Scan], ranges: Iterable[Range]) -> pd.Series:
    notes = pd.Series("", frame.index)
    for limits in ranges:
        fits = np.array([limits.fits(scan) for scan in scans])[frame["scan"]]
        asked = fits & (frame["metric"] == "volume") & (frame["structure"] == limits.structure)
        notes[asked & (frame["value"] < limits.low_mm3)] = f"below {limits.low_mm3:,.0f} mm³"
        notes[asked & (frame["value"] > limits.high_mm3)] = f"above {limits.high_mm3:,.0f} mm³"
    return notes


_GROUPS = {"sex": "sex", "age_band": "age (years)", "site": "site"}
_MOST_SCANS = 500


def cohort_drawings(cohort: Cohort) -> list[Drawing]:
    if cohort.frame["z"].notna().sum() == 0:
        return []
    return [z_score_plot(cohort.frame, cohort.structures, OUTLIER_Z)]


def cohort_page(
    cohort: Cohort,
    drawings: Sequence[Drawing],
    pictures: Sequence[tuple[str, str, bytes]],
    provenance: Mapping[str, str],
    *,
    failures: Sequence[tuple[str, str]] = (),
) -> str:
    """The HTML file; `pictures`: title, text, PNG; `failures`: scans without volumes and why."""
    scans, people = len(cohort.scans), len({scan.subject for scan in cohort.scans})
    return render(
        "cohort.html",
        title="Segmented scans",
        lead=f"{count(scans, 'scan')} of {people:,} {'person' if people == 1 else 'people'}, "
        f"{len(cohort.structures)} structures; there is no truth to compare with.",
        notices=_notices(cohort, failures),
        cards=_cards(cohort, failures),
        outliers=_outliers(cohort),
        plots=drawings,
        limit=OUTLIER_Z,
        volumes=_described(cohort, "volume"),
        asymmetry=_described(cohort, "asymmetry_index"),
        groups=[found for key in _GROUPS if (found := _by_group(cohort, key))],
        uncertainty=_uncertainty(cohort),
        pictures=pictures,
        scans=_scans(cohort),
        failures=table("failure-table", "Scans without a result", ["Scan", "Reason"], failures),
        volume_definition=METRICS["volume"].definition,
        again=asset("cohort-again.txt"),
        provenance=provenance,
    )


def _notices(cohort: Cohort, failures: Sequence[tuple[str, str]]) -> list[str]:
    notices = []
    if failures:
        notices.append(f"{len(failures)} of {len(cohort.scans) + len(failures)} scans have failed.")
    if cohort.frame["z"].notna().sum() == 0:
        notices.append("Too few scans to find outliers: eight are needed for robust z-scores.")
    grades = [scan.grade for scan in cohort.scans]
    texts = {"reject": "rejected by quality control", "look": "should be looked at by a person"}
    for grade, text in texts.items():
        if grade in grades:
            notices.append(f"{count(grades.count(grade), 'scan')} {text}.")
    return notices


def _cards(cohort: Cohort, failures: Sequence[tuple[str, str]]) -> list[tuple[str, str, str]]:
    far = cohort.outliers()
    cards = [
        ("Scans", f"{len(cohort.scans):,}", f"{len(failures)} failed"),
        ("Stand out", f"{far['scan'].nunique():,}", f"in {len(far):,} volumes or asymmetries"),
    ]
    grades = [scan.grade for scan in cohort.scans if scan.grade]
    if grades:
        share = f"{grades.count('pass') / len(grades):.0%}"
        cards.append(("Pass quality control", share, f"of {len(grades):,} graded"))
    return cards


def _outliers(cohort: Cohort) -> Table:
    columns: Columns = [
        "Scan",
        "Structure",
        "What",
        Column("Value", 0),
        Column("Robust z", 1, "Distance from the group's median in robust SDs", sign=True),
        "Reference range",
    ]
    shown = {"volume": ("volume", 0, " mm³"), "asymmetry_index": ("asymmetry", 1, " %")}
    rows = []
    far = cohort.outliers().sort_values("z", key=lambda z: -z.abs())
    for row in far.to_dict("records"):
        scan, structure = cohort.scans[row["scan"]].name, short_name(row["structure"])
        what, digits, unit = shown[row["metric"]]
        value = number(row["value"], digits, unit=unit)
        rows.append([scan, structure, what, value, row["z"], row["note"]])
    return table("outlier-table", "Far from the group, or out of range", columns, rows)


def _described(cohort: Cohort, metric: str) -> Table:
    volume = metric == "volume"
    title, digits = ("Structure", 0) if volume else ("Pair", 2)
    signed = [
        Column(name, digits, sign=not volume) for name in ("Mean", "Median", "Smallest", "Largest")
    ]
    columns: Columns = [title, Column("Scans", 0), *signed[:2], Column("SD", digits), *signed[2:]]
    of_metric = cohort.frame[cohort.frame["metric"] == metric]
    known = of_metric.groupby("structure", sort=False)["value"]
    described = known.agg(["count", "mean", "median", "std", "min", "max"])
    rows = []
    for n, (structure, *numbers) in enumerate(described.itertuples(name=None)):
        name = short_name(structure)
        rows.append([Cell(name if volume else name.removeprefix("L "), n), *numbers])
    caption = "Volumes (mm³)" if volume else "Asymmetry index (%): positive where left is larger"
    return table(f"{metric}-table", caption, columns, rows)


def _by_group(cohort: Cohort, key: str) -> Table | None:
    volumes = cohort.frame[(cohort.frame["metric"] == "volume") & (cohort.frame[key] != "")]
    groups = sorted(volumes[key].unique())
    if len(groups) < 2:
        return None
    found = volumes.groupby(["structure", key])["value"].agg(["count", "mean", "std"])
    rows = []
    for n, structure in enumerate(cohort.structures):
        cells = []
        for group in groups:
            count_, mean, sd = found.loc[(structure, group)]
            spread = "" if np.isnan(sd) else f" ± {sd:,.0f}"
            text = number(mean, 0).text + spread
            cells.append(Cell(text, mean, hint=f"{count_:.0f} scans"))
        rows.append([Cell(short_name(structure), n), *cells])
    counts = ", ".join(f"{g}: {found.loc[(cohort.structures[0], g)]['count']:.0f}" for g in groups)
    return table(
        f"{key}-table",
        f"By {_GROUPS[key]}: mean ± SD",
        ["Structure", *(Column(f"{group} (mm³)", 0, "Mean ± SD") for group in groups)],
        rows,
        note=f"Scans: {counts}.",
    )


def _uncertainty(cohort: Cohort) -> Table | None:
    columns: Columns = [
        "Structure",
        Column("Scans", 0),
        Column("Median CV of the volume", 3, "Over samples with dropout"),
        Column("Largest", 3),
        "Scan with the largest",
    ]
    doubts = pd.DataFrame([scan.uncertainty or {} for scan in cohort.scans], dtype=float)
    rows = []
    for n, structure in enumerate(cohort.structures):
        if structure in doubts:
            known = doubts[structure].dropna()
            worst = cohort.scans[int(doubts[structure].argmax())].name
            name = Cell(short_name(structure), n)
            rows.append([name, len(known), known.median(), known.max(), worst])
    return table("doubt-table", "Uncertainty of volumes", columns, rows) if rows else None


def _scans(cohort: Cohort) -> Table:
    largest = cohort.largest_z()
    order = sorted(range(len(cohort.scans)), key=lambda n: -np.nan_to_num(largest[n]))
    rows = [
        [scan.name, scan.grade, scan.sex, scan.age, scan.site, largest[n], scan.notes]
        for n in order[:_MOST_SCANS]
        for scan in [cohort.scans[n]]
    ]
    note = f"The {_MOST_SCANS} farthest from the group; volumes.csv has all."
    return table(
        "scan-table",
        "Every scan, the most unusual first",
        ["Scan", "Grade", "Sex", Column("Age", 0), "Site", Column("Largest |z|", 1), "Notes"],
        rows,
        note=note if len(order) > _MOST_SCANS else "",
    )
