"""What a group of scans gives: tables, BIDS files and one page, all made from ledger entries."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from natsort import natsorted

from pipelines.batch.ledger import Entry
from segmentation.files import atomic_text, write_tsv
from segmentation.report.page import render

if TYPE_CHECKING:
    from segmentation.labels import LabelScheme

__all__ = ["write_bids_files", "write_tables"]

# Numbers of BIDS' standard labels for our groups of structures.
_BIDS_LABELS = {
    "background": 0,
    "white-matter": 2,
    "ventricles": 3,
    "csf": 3,
    "cortical": 8,
    "subcortical": 9,
    "brainstem": 10,
    "cerebellum": 11,
}
# What is known of each structure: always, then where samples were drawn.
_DOUBTS = ("agreement", "iou", "pairwise_dice", "volume_cv")
# What BIDS has no names for, and nothing else.
_BIDSIGNORE = (
    *("*.jsonl", "summary.tsv", "volumes.tsv", "qc.tsv", "report.html", "report/"),
    *("*_qc.png", "*_entropy.nii.gz", "*_stats.stats", ".trinat-work/"),
)


def write_tables(out: Path, entries: Iterable[Entry]) -> None:
    """summary.tsv, volumes.tsv, qc.tsv and report.html, in natural order of cases."""
    ordered = natsorted(entries, key=lambda entry: entry.case)
    done = [entry for entry in ordered if entry.status == "done"]
    write_tsv(
        out / "summary.tsv",
        ("case", "status", "grade", "input", "reason", "seconds"),
        [
            (e.case, e.status, e.result.get("grade", ""), e.input, e.reason, _seconds(e))
            for e in ordered
        ],
    )
    _write_volumes(out / "volumes.tsv", done)
    _write_quality(out / "qc.tsv", done)
    _write_report(out, ordered)


def write_bids_files(out: Path, scheme: LabelScheme, link: str, *, by_index: bool) -> None:
    """dataset_description.json, the label table that all maps inherit, .bidsignore."""
    description = {
        "Name": "trinat segmentations",
        "BIDSVersion": "1.10.0",
        "DatasetType": "derivative",
        "GeneratedBy": [{"Name": "trinat", "Version": version("trinat")}],
        "DatasetLinks": {"raw": link},
    }
    with atomic_text(out / "dataset_description.json") as file:
        file.write(json.dumps(description, indent=2) + "\n")
    write_tsv(
        out / "desc-trinat_dseg.tsv",
        ("index", "name", "abbreviation", "color", "mapping"),
        [
            (
                label.index if by_index else label.fs_id,
                label.name,
                label.abbreviation,
                "#{:02X}{:02X}{:02X}".format(*label.color),
                _BIDS_LABELS.get(label.group),
            )
            for label in scheme.labels
        ],
    )
    with atomic_text(out / ".bidsignore") as file:
        file.write("\n".join(_BIDSIGNORE) + "\n")


def _write_quality(path: Path, done: Sequence[Entry]) -> None:
    """A row a scan: its grade and why, the grade of each structure, and what that rests on."""
    names = _keys(done, "structure_grades")
    known = (
        (measure, name) for e in done for measure in _DOUBTS for name in e.result.get(measure, ())
    )
    measures = list(dict.fromkeys(known))
    header = ("case", "grade", "mean_agreement", "tissue_contrast", "total_brain_mm3")
    rows = []
    for entry in done:
        result = entry.result
        grades = result.get("structure_grades", {})
        rows.append(
            (
                entry.case,
                *(result.get(name) for name in header[1:]),
                "; ".join(result["reasons"]),
                "; ".join(result["notes"]),
                *(grades.get(name) for name in names),
                *(result.get(measure, {}).get(name) for measure, name in measures),
            )
        )
    columns = (f"{name}_{measure}" for measure, name in measures)
    write_tsv(path, (*header, "reasons", "notes", *names, *columns), rows)


def _write_volumes(path: Path, done: Sequence[Entry]) -> None:
    """A row a scan: volumes in mm³, then each as a share of the total brain."""
    names = _keys(done, "volumes_mm3")
    rows = []
    for entry in done:
        volumes, total = entry.result["volumes_mm3"], entry.result["total_brain_mm3"]
        shares = [
            round(volumes[name] / total, 6) if name in volumes and total else None for name in names
        ]
        rows.append((entry.case, total, *(volumes.get(name) for name in names), *shares))
    header = (
        "case",
        "total_brain_mm3",
        *(f"{n}_mm3" for n in names),
        *(f"{n}_share" for n in names),
    )
    write_tsv(path, header, rows)


def _keys(entries: Sequence[Entry], table: str) -> list[str]:
    """The structures that a table of any scan has."""
    return list(dict.fromkeys(name for entry in entries for name in entry.result.get(table, ())))


def _seconds(entry: Entry) -> float | None:
    return round(sum(entry.timings_s.values()), 3) if entry.timings_s else None


def _write_report(out: Path, entries: Sequence[Entry]) -> None:
    """One page: counts, failures, and each scan's grade with its picture beside the page."""
    rows = [
        {
            "case": entry.case,
            "grade": _grade(entry),
            "text": "; ".join(entry.result.get("reasons", [])) or entry.reason,
            "brain_ml": round(entry.result.get("total_brain_mm3", 0) / 1000),
            "picture": entry.result.get("picture", ""),
        }
        for entry in sorted(entries, key=_most_urgent_first)
    ]
    page = render(
        "scans.html",
        style="plain.css",
        script="",
        images="'self'",
        title=f"trinat: {len(rows)} scans",
        counts=Counter(map(_grade, entries)),
        rows=rows,
    )
    with atomic_text(out / "report.html") as file:
        file.write(page)


def _grade(entry: Entry) -> str:
    return entry.result.get("grade") or entry.status


def _most_urgent_first(entry: Entry) -> int:
    order = ["failed", "fail", "look", "pass"]
    return order.index(_grade(entry)) if _grade(entry) in order else len(order)
