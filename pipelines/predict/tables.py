"""What a group of scans gives: tables, BIDS files and one page, all made from ledger entries."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from natsort import natsorted

from pipelines.predict.ledger import Entry, taught_by_models
from pipelines.predict.outputs import BIDSIGNORE
from segmentation.io.files import atomic_text, write_tsv
from segmentation.report.page import render

if TYPE_CHECKING:
    from segmentation.labels.scheme import LabelScheme

_T = TypeVar("_T")

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
_BIDS_CASE = re.compile(r"(?P<sub>sub-[^/]+)/(?:(?P<ses>ses-[^/]+)/)?anat/[^/]+")
# What is known of each structure: always, then where samples were drawn.
_DOUBTS = ("agreement", "iou", "pairwise_dice", "volume_cv")


def write_tables(out: Path, entries: Iterable[Entry]) -> None:
    """summary.tsv, volumes.tsv, qc.tsv and report.html, in natural order of cases."""
    told = (entry for entry in entries if not entry.is_withdrawn)
    ordered = natsorted(told, key=lambda entry: entry.case)
    # Of a result that was changed since, what was measured does not hold: its row says so.
    shown = [entry for entry in ordered if entry.status == "done" or entry.is_kept]
    write_tsv(
        out / "summary.tsv",
        ("case", "status", "grade", "input", "reason", "seconds"),
        [
            (e.case, e.status, e.result.get("grade", ""), e.input, e.reason, _seconds(e))
            for e in ordered
        ],
    )
    write_volumes(out / "volumes.tsv", shown)
    _write_quality(out / "qc.tsv", shown)
    _write_report(out, ordered)


def write_bids_files(folder: Path, out: Path, raw: Path) -> None:
    """dataset_description.json and .bidsignore, for `out`; `raw` is what was segmented."""
    # As seen from the output, so that no path of this machine is told.
    link = Path(os.path.relpath(raw.resolve(), out.resolve())).as_posix() + "/"
    description = {
        "Name": "trinat segmentations",
        "BIDSVersion": "1.10.0",
        "DatasetType": "derivative",
        "GeneratedBy": [{"Name": "trinat", "Version": version("trinat")}],
        "DatasetLinks": {"raw": link},
    }
    with atomic_text(folder / "dataset_description.json") as file:
        file.write(json.dumps(description, indent=2) + "\n")
    with atomic_text(folder / ".bidsignore") as file:
        file.write("\n".join(BIDSIGNORE) + "\n")


def write_label_table(path: Path, scheme: LabelScheme, *, by_index: bool) -> None:
    """What the numbers in label maps mean, as BIDS has it; all maps of a dataset inherit it."""
    write_tsv(
        path,
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


def format_aseg_stats(
    subject: str, scheme: LabelScheme, voxels: Mapping[str, int], voxel_mm3: float
) -> str:
    """`aseg.stats` in FreeSurfer's form; measures that were not measured (eTIV) are not there."""
    lines = [
        "# Title Segmentation Statistics",
        "# generating_program trinat",
        f"# subjectname {subject}",
        f"# VoxelVolume_mm3 {voxel_mm3:g}",
        "# ColHeaders Index SegId NVoxels Volume_mm3 StructName",
    ]
    rows = sorted(
        (label.fs_id, voxels[label.name], label.name)
        for label in scheme.labels
        if label.name in voxels
    )
    for index, (number, count, name) in enumerate(rows, start=1):
        lines.append(f"{index:3d} {number:3d} {count:9d} {count * voxel_mm3:13.3f}  {name}")
    return "\n".join(lines) + "\n"


def _write_quality(path: Path, entries: Sequence[Entry]) -> None:
    """A row a scan: its grade and why, the grade of each structure, and what that rests on."""
    results = [entry.result for entry in entries]
    names = _union(result.get("structure_grades", ()) for result in results)
    measures = _union(
        [(measure, name) for measure in _DOUBTS for name in result.get(measure, ())]
        for result in results
    )
    key_names, keys = _keys(entries)
    facts = ("grade", "mean_agreement", "tissue_contrast", "total_brain_mm3")
    rows = [
        (
            *whose,
            *(result.get(name) for name in facts),
            _why(entry),
            "; ".join(result.get("notes", ())),
            *(result.get("structure_grades", {}).get(name) for name in names),
            *(result.get(measure, {}).get(name) for measure, name in measures),
        )
        for whose, entry, result in zip(keys, entries, results, strict=True)
    ]
    columns = (f"{name}_{measure}" for measure, name in measures)
    write_tsv(path, (*key_names, *facts, "reasons", "notes", *names, *columns), rows)


def write_volumes(path: Path, entries: Sequence[Entry]) -> None:
    """A row a scan: volumes in mm³, then each as a share of the total brain."""
    names = _union(entry.result.get("volumes_mm3", ()) for entry in entries)
    key_names, keys = _keys(entries)
    rows = []
    for whose, entry in zip(keys, entries, strict=True):
        volumes = entry.result.get("volumes_mm3", {})
        total = entry.result.get("total_brain_mm3")
        shares = [
            round(volumes[name] / total, 6) if name in volumes and total else None for name in names
        ]
        rows.append((*whose, total, *map(volumes.get, names), *shares))
    columns = [f"{name}_{unit}" for unit in ("mm3", "share") for name in names]
    write_tsv(path, (*key_names, "total_brain_mm3", *columns), rows)


def _keys(entries: Sequence[Entry]) -> tuple[list[str], list[list[str | None]]]:
    """Names and values of the columns that say whose a row is: in a BIDS dataset as BIDS has it."""
    found = [_BIDS_CASE.fullmatch(entry.case) for entry in entries]
    if not entries or None in found:
        return ["case"], [[entry.case] for entry in entries]
    names = ["participant_id", "session_id", "case"]
    return names, [[m["sub"], m["ses"], m[0]] for m in found if m]


def _union(groups: Iterable[Iterable[_T]]) -> list[_T]:
    """Each once, in the order in which they come first."""
    return list(dict.fromkeys(item for group in groups for item in group))


def _seconds(entry: Entry) -> float | None:
    return round(sum(entry.timings_s.values()), 3) if entry.timings_s else None


def _write_report(out: Path, entries: Sequence[Entry]) -> None:
    """One page: counts, failures, and each scan's grade with its picture beside the page."""
    rows = [
        {
            "case": entry.case,
            "grade": _grade(entry),
            "text": _why(entry),
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
        notices=taught_by_models(entries),
    )
    with atomic_text(out / "report.html") as file:
        file.write(page)


def _why(entry: Entry) -> str:
    return "; ".join(entry.result.get("reasons", ())) or entry.reason


def _grade(entry: Entry) -> str:
    return entry.result.get("grade") or entry.status


def _most_urgent_first(entry: Entry) -> int:
    order = ["failed", "reject", "look", "pass"]
    return order.index(_grade(entry)) if _grade(entry) in order else len(order)
