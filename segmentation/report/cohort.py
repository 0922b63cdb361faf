"""The page of a group of segmentations without a truth."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from segmentation.metrics.definitions import METRICS
from segmentation.report.cohort_data import OUTLIER_Z, Cohort
from segmentation.report.evaluation import PAPERS
from segmentation.report.figures import Drawing, short_name, z_score_plot
from segmentation.report.page import Cell, Column, Table, number, render

__all__ = ["SNIPPET", "Picture", "cohort_drawings", "cohort_page"]

SNIPPET = """\
import pandas as pd

table = pd.read_csv("volumes.csv", keep_default_na=False, na_values={"value": [""], "z": [""]})
volumes = table[table.metric == "volume"]
by = volumes.groupby("structure", sort=False).value
print(by.agg(["count", "mean", "median", "std", "min", "max"]))
centre = by.transform("median")
spread = 1.4826 * (volumes.value - centre).abs().groupby(volumes.structure).transform("median")
again = volumes.assign(again=(volumes.value - centre) / spread)
print(again[["subject", "structure", "z", "again"]])
"""

_GROUPS = {"sex": "Sex", "age_band": "Age (years)", "site": "Site"}
_MOST_SCANS = 500


@dataclass(frozen=True)
class Picture:
    """A quality control picture as PNG."""

    title: str
    text: str
    png: bytes

    @property
    def uri(self) -> str:
        return f"data:image/png;base64,{base64.b64encode(self.png).decode('ascii')}"


def cohort_drawings(cohort: Cohort) -> list[Drawing]:
    if cohort.frame["z"].notna().sum() == 0:
        return []
    return [z_score_plot(cohort.frame, cohort.structures, OUTLIER_Z)]


def cohort_page(
    cohort: Cohort,
    drawings: Sequence[Drawing],
    pictures: Sequence[Picture],
    provenance: Mapping[str, str],
    *,
    failures: Sequence[tuple[str, str]] = (),
    pictures_text: str = "",
) -> str:
    """The HTML file; `failures` are scans without volumes and why."""
    groups = [_by_group(cohort, key) for key in _GROUPS]
    uncertainty = _uncertainty(cohort)
    contents = [
        ("glance", "At a glance"),
        ("outliers", "What stands out"),
        ("volumes", "Volumes"),
        ("asymmetry", "Asymmetry"),
        *([("people", "Sex, age and site")] if any(groups) else []),
        *([("doubt", "Uncertainty")] if uncertainty else []),
        *([("pictures", "Pictures")] if pictures else []),
        ("scans", "Scans"),
        ("definitions", "Definitions"),
        ("again", "Compute it again"),
        ("provenance", "What was done"),
    ]
    scans, people = len(cohort.scans), len({scan.subject for scan in cohort.scans})
    return render(
        "cohort.html",
        title="Segmented scans",
        lead=f"{scans:,} scan{'' if scans == 1 else 's'} of "
        f"{people:,} {'person' if people == 1 else 'people'}, "
        f"{len(cohort.structures)} structures; there is no truth to compare with.",
        contents=contents,
        provenance=provenance,
        notices=_notices(cohort, failures),
        cards=_cards(cohort, failures),
        outliers=_outliers(cohort),
        plots=[d.inline() for d in drawings],
        limit=OUTLIER_Z,
        volumes=_described(cohort, "volume"),
        asymmetry=_described(cohort, "asymmetry_index"),
        groups=[table for table in groups if table],
        uncertainty=uncertainty,
        pictures=pictures,
        pictures_text=pictures_text,
        scans=_scans(cohort),
        failures=_failures(failures),
        snippet=SNIPPET,
        facts=list(provenance.items()),
        papers=PAPERS,
        volume_definition=METRICS["volume"].definition,
    )


def _notices(cohort: Cohort, failures: Sequence[tuple[str, str]]) -> list[str]:
    notices = []
    if failures:
        notices.append(f"{len(failures)} of {len(cohort.scans) + len(failures)} scans have failed.")
    if cohort.frame["z"].notna().sum() == 0:
        notices.append("Too few scans to tell an outlier: eight are needed for robust z-scores.")
    graded = pd.Series([scan.grade for scan in cohort.scans]).value_counts()
    for name, text in (("fail", "failed"), ("look", "should be looked at by")):
        if count := int(graded.get(name, 0)):
            verdict = f"{text} quality control" if name == "fail" else f"{text} a person"
            notices.append(f"{count} scan{'' if count == 1 else 's'} {verdict}.")
    return notices


def _cards(cohort: Cohort, failures: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    standing_out = cohort.outliers()
    graded = [scan.grade for scan in cohort.scans if scan.grade]
    cards = [
        ("Scans", f"{len(cohort.scans):,}", f"{len(failures)} failed"),
        (
            "Stand out",
            f"{standing_out['scan'].nunique():,}",
            f"in {len(standing_out):,} volumes or asymmetries",
        ),
    ]
    if graded:
        share = graded.count("pass") / len(graded)
        cards.append(("Pass quality control", f"{share:.0%}", f"of {len(graded):,} graded"))
    return [{"what": a, "value": b, "more": c} for a, b, c in cards]


def _outliers(cohort: Cohort) -> Table:
    columns = (
        Column("Scan"),
        Column("Structure"),
        Column("What", pick=True),
        Column("Value", True),
        Column("Robust z", True, "Distance from the group's median in robust SDs"),
        Column("Reference range"),
    )
    rows = []
    found = cohort.outliers()
    for row in found.sort_values("z", key=lambda z: -z.abs()).to_dict("records"):
        volume = row["metric"] == "volume"
        rows.append(
            [
                Cell(cohort.scans[row["scan"]].name),
                Cell(short_name(row["structure"])),
                Cell("volume" if volume else "asymmetry"),
                number(row["value"], 0 if volume else 1, unit=" mm³" if volume else " %"),
                number(row["z"], 1, sign=True),
                Cell(row["note"]),
            ]
        )
    return Table("outlier-table", "Far from the group, or out of range", columns, rows)


def _described(cohort: Cohort, metric: str) -> Table:
    table = cohort.described(metric)
    volume = metric == "volume"
    columns = (
        Column("Structure" if volume else "Pair"),
        Column("Scans", True),
        *(Column(t, True) for t in ("Mean", "Median", "SD", "Least", "Most")),
    )
    rows = []
    for n, row in enumerate(table.to_dict("records")):
        name = short_name(row["structure"])
        rows.append(
            [
                Cell(name if volume else name.removeprefix("L "), n),
                number(row["count"], 0),
                *(
                    number(row[k], 0 if volume else 2, sign=not volume and k != "std")
                    for k in ("mean", "median", "std", "min", "max")
                ),
            ]
        )
    caption = "Volumes (mm³)" if volume else "Asymmetry index (%): positive where left is larger"
    return Table(f"{metric}-table", caption, columns, rows)


def _by_group(cohort: Cohort, key: str) -> Table | None:
    table = cohort.by_group(key)
    if table[key].nunique() < 2:
        return None
    groups = sorted(table[key].unique())
    columns = (Column("Structure"), *(Column(f"{g} (mm³)", True, "Mean ± SD") for g in groups))
    rows = []
    found = {(r["structure"], r[key]): r for r in table.to_dict("records")}
    for n, structure in enumerate(cohort.structures):
        cells = [Cell(short_name(structure), n)]
        for group in groups:
            row = found.get((structure, group))
            if row is None:
                cells.append(number(None))
                continue
            spread = "" if np.isnan(row["std"]) else f" ± {row['std']:,.0f}"
            hint = f"{row['count']} scans"
            cells.append(Cell(f"{row['mean']:,.0f}{spread}", row["mean"], hint=hint))
        rows.append(cells)
    counts = ", ".join(f"{g}: {found[cohort.structures[0], g]['count']}" for g in groups)
    return Table(
        f"{key}-table", f"By {_GROUPS[key].lower()}: mean ± SD", columns, rows, f"Scans: {counts}."
    )


def _uncertainty(cohort: Cohort) -> Table | None:
    known = [scan for scan in cohort.scans if scan.uncertainty]
    if not known:
        return None
    columns = (
        Column("Structure"),
        Column("Scans", True),
        Column("Median CV of the volume", True, "Over samples with dropout"),
        Column("Largest", True),
        Column("Scan with the largest"),
    )
    rows = []
    for n, structure in enumerate(cohort.structures):
        values = [
            (scan.uncertainty[structure], scan.name)
            for scan in known
            if scan.uncertainty and scan.uncertainty.get(structure) is not None
        ]
        if not values:
            continue
        worst, name = max(values)
        median = float(np.median([value for value, _ in values]))
        rows.append(
            [
                Cell(short_name(structure), n),
                number(len(values), 0),
                number(median, 3),
                number(worst, 3),
                Cell(name),
            ]
        )
    return Table("doubt-table", "Uncertainty of volumes", columns, rows)


def _scans(cohort: Cohort) -> Table:
    columns = (
        Column("Scan"),
        Column("Grade", pick=False),
        Column("Sex"),
        Column("Age", True),
        Column("Site"),
        Column("Largest |z|", True),
        Column("Notes"),
    )
    largest = cohort.frame.assign(size=cohort.frame["z"].abs()).groupby("scan")["size"].max()
    order = sorted(range(len(cohort.scans)), key=lambda n: -np.nan_to_num(float(largest[n])))
    rows = []
    for n in order:
        scan = cohort.scans[n]
        rows.append(
            [
                Cell(scan.name),
                Cell(scan.grade),
                Cell(scan.sex),
                number(scan.age, 0),
                Cell(scan.site),
                number(float(largest[n]), 1),
                Cell(scan.notes),
            ]
        )
    left_out = len(rows) - _MOST_SCANS
    note = (
        f"The {_MOST_SCANS} farthest from the group; volumes.csv has all." if left_out > 0 else ""
    )
    return Table(
        "scan-table", "Every scan, the most unusual first", columns, rows[:_MOST_SCANS], note
    )


def _failures(failures: Sequence[tuple[str, str]]) -> Table | None:
    if not failures:
        return None
    rows = [[Cell(name), Cell(reason)] for name, reason in failures]
    columns = (Column("Scan"), Column("Reason"))
    return Table("failure-table", "Scans without a result", columns, rows)
