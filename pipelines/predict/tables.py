"""What a group of scans gives: tables and BIDS files, all made from ledger entries."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from natsort import natsorted

from trinat.pipelines.predict.doubt import why_of
from trinat.pipelines.predict.entry import Entry
from trinat.pipelines.predict.outputs import BIDSIGNORE
from trinat.pipelines.predict.run_page import write_page
from trinat.segmentation.io.files import write_tsv, write_whole
from trinat.segmentation.labels.measures import MEASURES, BrainVolumes

if TYPE_CHECKING:
    from trinat.segmentation.labels.scheme import LabelScheme

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
_SCAN_GONE = "its scan is no longer where it was read"
_README = """\
# Structures of the brain, segmented by trinat {version}

- `sub-*/[ses-*/]anat/*_desc-trinat_dseg.nii.gz`: label maps in the space of each scan, with the
  numbers of FreeSurfer, which `desc-trinat_dseg.tsv` names.
- `*_desc-brain_mask.nii.gz`: what lies inside the skull.
- `volumes.tsv` (mm3), `qc.tsv` (grades and reasons), `summary.tsv` (each input), `report.html`
  (the page), `run.jsonl` (the record of the run).

Grades: *pass*, *look* (check the picture first), *reject* (do not use the result).
For research, not for diagnosis.
"""
# What is known of each structure: always the first, the others with dropout samples.
_DOUBTS = ("agreement", "iou", "pairwise_dice", "volume_cv")


def write_tables(
    out: Path, entries: Iterable[Entry], results: Path | None = None
) -> None:
    """summary.tsv, volumes.tsv, qc.tsv and report.html, in natural order of cases.

    `results` is where the scans' own files are, or will be; else they are in `out`.
    """
    given = (entry for entry in entries if not entry.is_withdrawn)
    ordered = natsorted(given, key=lambda entry: entry.case)
    # Of a result that was changed since, what was measured does not hold: its row says so.
    measured = [entry for entry in ordered if entry.status == "done" or entry.is_kept]
    folder = out if results is None else results
    _write_summary(out / "summary.tsv", ordered, folder)
    write_volumes(out / "volumes.tsv", measured)
    _write_quality(out / "qc.tsv", measured)
    write_page(out / "report.html", ordered, folder)


def _write_summary(path: Path, entries: Sequence[Entry], folder: Path) -> None:
    """A row a scan: what became of it, why, and how long it took.

    Of a result whose scan is gone since it says so; `folder` is the output folder.
    """
    rows = []
    for entry in entries:
        seconds = None
        if entry.timings_s:
            seconds = round(sum(entry.timings_s.values()), 3)
        grade = entry.result.get("grade", "")
        reason = entry.reason
        if not reason and entry.scan and not (folder / entry.scan).exists():
            reason = _SCAN_GONE
        rows.append((entry.case, entry.status, grade, entry.input, reason, seconds))
    write_tsv(path, ("case", "status", "grade", "input", "reason", "seconds"), rows)


def write_volumes(path: Path, entries: Sequence[Entry]) -> None:
    """A row a scan: volumes in mm³, then each structure's as a share of the total brain.

    Cells of scans without that structure or measure, as of failed ones, are empty (n/a). The order
    is that of `entries`.
    """
    measures = _keys_in(entries, "measures_mm3")
    names = _keys_in(entries, "volumes_mm3")
    key_names, keys = _keys(entries)
    rows = []
    for key, entry in zip(keys, entries, strict=True):
        volumes = entry.result.get("volumes_mm3", {})
        total = entry.result.get("total_brain_mm3")
        measured = entry.result.get("measures_mm3", {})
        row: list[Any] = [*key, total]
        row += [measured.get(name) for name in measures]
        row += [volumes.get(name) for name in names]
        row += [_share(volumes.get(name), total) for name in names]
        rows.append(row)
    columns = [f"{name}_mm3" for name in (*measures, *names)]
    columns += [f"{name}_share" for name in names]
    write_tsv(path, (*key_names, "total_brain_mm3", *columns), rows)


def _share(volume: float | None, total: float | None) -> float | None:
    """A volume as a share of the total brain; None where either is not known."""
    if volume is None or not total:
        return None
    return round(volume / total, 6)


def _write_quality(path: Path, entries: Sequence[Entry]) -> None:
    """A row a scan: its grade and why, the grade of each structure, and what that rests on."""
    names = _keys_in(entries, "structure_grades")
    measures = _measures_in(entries)
    facts = ("grade", "mean_agreement", "tissue_contrast", "total_brain_mm3")
    key_names, keys = _keys(entries)
    rows = []
    for key, entry in zip(keys, entries, strict=True):
        result = entry.result
        row: list[Any] = [*key]
        row += [result.get(name) for name in facts]
        row.append(why_of(entry))
        row.append("; ".join(result.get("notes", ())))
        grades = result.get("structure_grades", {})
        row += [grades.get(name) for name in names]
        for measure, name in measures:
            by_structure = result.get(measure, {})
            row.append(by_structure.get(name))
        rows.append(row)
    columns = [f"{name}_{measure}" for measure, name in measures]
    header = (*key_names, *facts, "reasons", "notes", *names, *columns)
    write_tsv(path, header, rows)


def _keys_in(entries: Iterable[Entry], field: str) -> list[str]:
    """The keys of a mapping in the results, each once, in the order in which they come first."""
    keys: dict[str, None] = {}
    for entry in entries:
        keys.update(dict.fromkeys(entry.result.get(field, ())))
    return list(keys)


def _measures_in(entries: Iterable[Entry]) -> list[tuple[str, str]]:
    """Each (measure, structure) in the results once, in the order in which they come first."""
    measures: dict[tuple[str, str], None] = {}
    for entry in entries:
        for measure in _DOUBTS:
            for name in entry.result.get(measure, ()):
                measures[measure, name] = None
    return list(measures)


def _keys(entries: Sequence[Entry]) -> tuple[list[str], list[list[str | None]]]:
    """Names and values of the columns that say whose a row is: in a BIDS dataset as BIDS has it."""
    keys: list[list[str | None]] = []
    for entry in entries:
        match = _BIDS_CASE.fullmatch(entry.case)
        if match is None:
            return ["case"], [[entry.case] for entry in entries]
        keys.append([match["sub"], match["ses"], entry.case])
    if not keys:
        return ["case"], []
    return ["participant_id", "session_id", "case"], keys


def write_bids_files(folder: Path, out: Path, raw: Path) -> None:
    """dataset_description.json, README.md and .bidsignore, for `out`; `raw` is what was segmented.

    They are written into `folder`, from where they are moved to `out` as the other outputs are.
    """
    # As seen from the output, so that no path of this machine gets into the file.
    raw_from_out = Path(os.path.relpath(raw.resolve(), out.resolve()))
    description = {
        "Name": "trinat segmentations",
        "BIDSVersion": "1.10.0",
        "DatasetType": "derivative",
        "GeneratedBy": [{"Name": "trinat", "Version": version("trinat")}],
        "DatasetLinks": {"raw": f"{raw_from_out.as_posix()}/"},
    }
    text = json.dumps(description, indent=2) + "\n"
    write_whole(folder / "dataset_description.json", text)
    write_whole(folder / "README.md", _README.format(version=version("trinat")))
    write_whole(folder / ".bidsignore", "\n".join(BIDSIGNORE) + "\n")


def write_label_table(path: Path, scheme: LabelScheme, *, by_index: bool) -> None:
    """What the numbers in label maps mean, as BIDS has it; all maps of a dataset inherit it.

    The numbers are class indices with `by_index`, else FreeSurfer's.
    """
    rows = []
    for label in scheme.labels:
        value = label.index if by_index else label.fs_id
        red, green, blue = label.color
        color = f"#{red:02X}{green:02X}{blue:02X}"
        group = _BIDS_LABELS.get(label.group)
        rows.append((value, label.name, label.abbreviation, color, group))
    write_tsv(path, ("index", "name", "abbreviation", "color", "mapping"), rows)


def format_aseg_stats(
    subject: str,
    scheme: LabelScheme,
    voxels: Mapping[str, int],
    voxel_mm3: float,
    volumes: BrainVolumes,
) -> str:
    """`aseg.stats` in FreeSurfer's form; measures that are not known have no line, but a reason.

    Rows are sorted by FreeSurfer number and counted from 1. Structures that are not in `voxels`
    have no row; those with 0 voxels have one.
    """
    lines = [
        "# Title Segmentation Statistics",
        "# generating_program trinat",
        f"# subjectname {subject}",
        *_measure_lines(volumes),
        f"# VoxelVolume_mm3 {voxel_mm3:g}",
        "# ColHeaders Index SegId NVoxels Volume_mm3 StructName",
    ]
    found = [label for label in scheme.labels if label.name in voxels]
    found.sort(key=lambda label: label.fs_id)
    for index, label in enumerate(found, start=1):
        count = voxels[label.name]
        volume_mm3 = count * voxel_mm3
        lines.append(
            f"{index:3d} {label.fs_id:3d} {count:9d} {volume_mm3:13.3f}  {label.name}"
        )
    return "\n".join(lines) + "\n"


def _measure_lines(volumes: BrainVolumes) -> list[str]:
    """The lines `# Measure` of aseg.stats, and a comment on what is not known."""
    lines = []
    for measure in MEASURES:
        mm3 = volumes.mm3.get(measure.column)
        if mm3 is not None:
            fields = (measure.key, measure.name, measure.words, f"{mm3:.6f}", "mm^3")
            lines.append(f"# Measure {', '.join(fields)}")
    if volumes.note:
        lines.append(f"# {volumes.note}")
    return lines
