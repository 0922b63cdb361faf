"""What a group of scans gives: tables, BIDS files and one page, all made from ledger entries."""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from heapq import nsmallest
from importlib.metadata import version
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from natsort import natsorted
from pydantic import BaseModel, Field

from trinat.pipelines.predict.entry import Entry, taught_by_models
from trinat.pipelines.predict.outputs import BIDSIGNORE, MOST_SHOWN, slices_of
from trinat.segmentation.io.files import write_tsv, write_whole
from trinat.segmentation.report.page import (
    UNDEFINED,
    Cell,
    Column,
    Columns,
    count,
    number,
    render,
    short_name,
    table,
)

if TYPE_CHECKING:
    from trinat.segmentation.labels.scheme import LabelScheme

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
_GRADES = ("failed", "reject", "look", "pass")
_DOUBTS = ("agreement", "iou", "pairwise_dice", "volume_cv")


def write_tables(
    out: Path, entries: Iterable[Entry], results: Path | None = None
) -> None:
    """summary.tsv, volumes.tsv, qc.tsv and report.html, in natural order of cases.

    `results` is where the scans' own files are, or will be; else they are in `out`.
    """
    told = (entry for entry in entries if not entry.is_withdrawn)
    ordered = natsorted(told, key=lambda entry: entry.case)
    # Of a result that was changed since, what was measured does not hold: its row says so.
    shown = [entry for entry in ordered if entry.status == "done" or entry.is_kept]
    write_tsv(
        out / "summary.tsv",
        ("case", "status", "grade", "input", "reason", "seconds"),
        [
            (e.case, e.status, e.result.get("grade", ""), e.input, e.reason, seconds)
            for e in ordered
            for seconds in [
                round(sum(e.timings_s.values()), 3) if e.timings_s else None
            ]
        ],
    )
    write_volumes(out / "volumes.tsv", shown)
    _write_quality(out / "qc.tsv", shown)
    _write_report(out, ordered, results or out)


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
    write_whole(
        folder / "dataset_description.json", json.dumps(description, indent=2) + "\n"
    )
    write_whole(folder / ".bidsignore", "\n".join(BIDSIGNORE) + "\n")


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
    for index, (fs_id, many, name) in enumerate(rows, start=1):
        lines.append(
            f"{index:3d} {fs_id:3d} {many:9d} {many * voxel_mm3:13.3f}  {name}"
        )
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
            round(volumes[name] / total, 6) if name in volumes and total else None
            for name in names
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


class _Slices(BaseModel):
    """What a worker wrote of a scan for the page: tiled pictures, and where to look first."""

    shape: tuple[int, int, int]
    columns: int
    gray: str = Field(pattern="^data:image/")
    prediction: str = Field(pattern="^data:image/")
    start: tuple[int, int, int]
    palette: dict[str, list[Any]]
    truth: None = None


def _write_report(out: Path, entries: Sequence[Entry], results: Path) -> None:
    """One page: the most doubtful scans with slices, then each scan's grade and its picture."""
    ranked = sorted(entries, key=_doubt)
    counts = Counter(map(_grade, entries))
    volumes: dict[str, list[float]] = defaultdict(list)
    for entry in entries:
        for name, volume in entry.result.get("volumes_mm3", {}).items():
            volumes[name].append(volume)
    for values in volumes.values():
        values.sort()
    rows: list[list[Any]] = []
    for n, entry in enumerate(ranked):
        grade, ml = _grade(entry), entry.result.get("total_brain_mm3", 0) / 1000
        rows.append([entry.case, Cell(grade, n, kind=grade), ml or None, _why(entry)])
    titles: Columns = ["Scan", "Grade", Column("Brain (ml)", 0), "Why"]
    page = render(
        "scans.html",
        images="'self' data:",
        title=f"trinat: {count(len(entries), 'scan')}",
        lead="Labels without a truth to compare with: grades say how far to trust them.",
        notices=taught_by_models(entries),
        cards=[(grade, f"{number:,}", "") for grade, number in counts.items()],
        doubtful=[_case(entry, results, volumes) for entry in most_doubtful(entries)],
        scans=table("scan-table", "The most doubtful first", titles, rows),
        pictures=[
            (e.case, e.result["picture"]) for e in ranked if e.result.get("picture")
        ],
    )
    write_whole(out / "report.html", page)


def _case(
    entry: Entry, results: Path, volumes: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """A scan as the page shows it: its slices, and its structures among those of the batch."""
    slices = None
    with suppress(OSError, ValueError):
        slices = _Slices.model_validate_json(
            (results / slices_of(entry.case)).read_bytes()
        )
    result: Mapping[str, Any] = entry.result
    rows: list[list[Any]] = []
    for name, volume in result.get("volumes_mm3", {}).items():
        grade = result.get("structure_grades", {}).get(name, "")
        agreement = result.get("agreement", {}).get(name)
        why = "not found" if not volume else f"views agree by {agreement or 0:.2f} only"
        order = _GRADES.index(grade) if grade in _GRADES else UNDEFINED
        graded, place = Cell(grade, order, kind=grade), _place(volume, volumes[name])
        doubt = why if grade in ("look", "reject") else ""
        rows.append(
            [Cell(short_name(name), len(rows)), graded, volume, place, agreement, doubt]
        )
    columns: Columns = [
        *("Structure", "Grade", Column("Volume (mm³)", 0)),
        Column(
            "Place in this batch", hint="From the smallest; the bar has the middle half"
        ),
        *(Column("Agreement", 2, "Mean Dice between views"), "Why"),
    ]
    picture = result.get("picture")
    return {
        "title": f"{entry.case}: {_grade(entry)}",
        "text": "; ".join([*result.get("reasons", ()), *result.get("notes", ())]),
        "still": quote(picture) if picture else "",
        "alt": f"Three views of {entry.case} with its labels",
        "view": slices,
        "palette": slices and slices.palette,
        "table": table(
            f"case-{slices_of(entry.case)}",
            f"Structures of {entry.case}",
            columns,
            rows,
        ),
    }


def _place(volume: float, all_of_batch: Sequence[float]) -> Cell:
    """Where a volume is among those of all scans, which are in order."""
    low, high = all_of_batch[0], all_of_batch[-1]
    if low == high:
        return number(None, hint="all are equal")
    quartiles = quantiles(all_of_batch, n=4, method="inclusive")
    q1, q2, q3, own = (
        round(100 * (value - low) / (high - low), 1) for value in (*quartiles, volume)
    )
    rank = bisect_left(all_of_batch, volume) + 1
    return Cell(f"{rank} of {len(all_of_batch)}", rank, place=(q1, q2, q3, own))


def _why(entry: Entry) -> str:
    return "; ".join(entry.result.get("reasons", ())) or entry.reason


def _grade(entry: Entry) -> str:
    return entry.result.get("grade") or entry.status


def most_doubtful(entries: Iterable[Entry]) -> list[Entry]:
    """The scans of which the page has slices."""
    return nsmallest(
        MOST_SHOWN, (entry for entry in entries if entry.status == "done"), key=_doubt
    )


def _doubt(entry: Entry) -> tuple[int, float, str]:
    """In the order of grades, then of agreement between views, then of names."""
    grade, agreement = _grade(entry), entry.result.get("mean_agreement")
    urgency = _GRADES.index(grade) if grade in _GRADES else len(_GRADES)
    return urgency, 1.0 if agreement is None else agreement, entry.case
