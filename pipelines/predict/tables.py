"""Tables, page and BIDS files of a whole run, made from the rows (entries) of its ledger.

report.html shows the most doubtful scans with slices, then each scan's grade and its picture.
"""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from operator import attrgetter
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from natsort import natsorted
from pydantic import BaseModel, Field

from trinat.pipelines.common.text import count
from trinat.pipelines.predict.settings import BIDSIGNORE, slices_of
from trinat.pipelines.report.page import (
    UNDEFINED,
    Cell,
    Column,
    Columns,
    Table,
    number,
    render,
    short_name,
    table,
)
from trinat.pipelines.study.entry import Entry, most_doubtful, taught_by_models
from trinat.pipelines.study.naming import Product
from trinat.pipelines.study.record import FURTHER, GRADES, ParcelResult, ScanResult
from trinat.segmentation.io.files import write_tsv, write_whole

if TYPE_CHECKING:
    from trinat.segmentation.labels.scheme import LabelScheme

# Indices of BIDS' standard labels for our groups of structures.
_BIDS_LABELS = {
    "background": 0,
    "white-matter": 2,
    "ventricles": 3,
    "csf": 3,
    "cortical": 8,
    "frontal": 8,
    "parietal": 8,
    "temporal": 8,
    "occipital": 8,
    "cingulate": 8,
    "insula": 8,
    "subcortical": 9,
    "brainstem": 10,
    "cerebellum": 11,
}
_BIDS_CASE = re.compile(r"(?P<sub>sub-[^/]+)/(?:(?P<ses>ses-[^/]+)/)?anat/[^/]+")
_SCAN_GONE = "its scan is no longer where it was read"
_README = """\
# Structures of the brain, segmented by trinat {version}

- `sub-*/[ses-*/]anat/*_desc-trinat_dseg.nii.gz`: label maps in the space of each scan;
  `desc-trinat_dseg.tsv` says what their numbers mean.
- `*_desc-brain_mask.nii.gz`: what lies inside the skull.
- `volumes.tsv` (mm3), `qc.tsv` (grades and reasons), `summary.tsv` (each input), `report.html`
  (the page), `run.jsonl` (the record of the run).

Grades: *pass*, *look* (check the picture first), *reject* (do not use the result).
For research, not for diagnosis.
"""


class _Slices(BaseModel):
    """Slices of one scan and its labels for the page of the run, as a worker has written them.

    `gray` and `prediction` are pictures as data URIs, with the slices tiled in a number of
    `columns`. `shape` is the grid of the slices, `start` the voxel to show first.
    """

    shape: tuple[int, int, int]
    columns: int
    gray: str = Field(pattern="^data:image/")
    prediction: str = Field(pattern="^data:image/")
    start: tuple[int, int, int]
    palette: dict[str, list[Any]]
    truth: None = None


def write_tables(
    out: Path, entries: Iterable[Entry], results: Path | None = None
) -> None:
    """Write summary.tsv, volumes.tsv, qc.tsv and report.html to `out`, in natural order of cases.

    `entries` are the ledger entries of all inputs. parcels.tsv, thickness.tsv, callosum.tsv and
    lesions.tsv are written if results have these measures. `results` is the folder that has, or
    will have, the scans' own files; by default `out`.
    """
    ordered = _in_order(entries)
    folder = out if results is None else results
    _write_summary(out / "summary.tsv", ordered, folder)
    write_measures(out, ordered)
    _write_page(out / "report.html", ordered, folder)


def _in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Return the ledger entries that tables show, in natural order of cases.

    Entries of inputs that were refused earlier and are no longer given are not shown.
    """
    given = (entry for entry in entries if not entry.is_withdrawn)
    ordered: list[Entry] = natsorted(given, key=lambda entry: entry.case)
    return ordered


def write_measures(out: Path, entries: Iterable[Entry]) -> None:
    """Write volumes.tsv, qc.tsv and the tables of optional measures for all scans that are done.

    `entries` are ledger entries. Optional tables are parcels.tsv, thickness.tsv, callosum.tsv and
    lesions.tsv. Each is written if at least one scan has such measures.
    """
    measured = [entry for entry in _in_order(entries) if entry.status == "done"]
    write_volumes(out / "volumes.tsv", measured)
    _write_quality(out / "qc.tsv", measured)
    if any(entry.result.parcels for entry in measured):
        write_parcels(out / "parcels.tsv", measured)
    for name in FURTHER:
        if any(name in entry.result.further() for entry in measured):
            write_further(out / f"{name}.tsv", name, measured)


def _write_summary(path: Path, entries: Sequence[Entry], folder: Path) -> None:
    """Write a row for each scan: case, status, grade, input, reason and duration in seconds.

    `entries` are the ledger entries of the scans. If the scan of a result has since disappeared,
    the reason says so. `folder` is the output folder; paths of scans are relative to it.
    """
    rows = []
    for entry in entries:
        seconds = None
        if entry.timings_s:
            seconds = round(sum(entry.timings_s.values()), 3)
        grade = entry.result.grade
        reason = entry.reason
        if not reason and entry.scan and not (folder / entry.scan).exists():
            reason = _SCAN_GONE
        rows.append((entry.case, entry.status, grade, entry.input, reason, seconds))
    write_tsv(path, ("case", "status", "grade", "input", "reason", "seconds"), rows)


def write_volumes(path: Path, entries: Sequence[Entry]) -> None:
    """Write volumes.tsv, with a row for each scan in the order of `entries`, its ledger entries.

    Columns: case (in BIDS after participant_id and session_id), the volume of the brain
    (total_brain_mm3), the other measures of the whole head (NAME_mm3), each structure's volume
    (NAME_mm3), and each structure's share of the brain (NAME_share). Cells for structures or
    measures that a scan does not have are empty (n/a).
    """
    measures = _unique_keys(entry.result.measures_mm3 for entry in entries)
    names = _unique_keys(entry.result.volumes_mm3 for entry in entries)
    key_names, keys = _key_columns(entries)
    rows = []
    for key, entry in zip(keys, entries, strict=True):
        volumes = entry.result.volumes_mm3
        total = entry.result.total_brain_mm3
        measured = entry.result.measures_mm3
        row: list[Any] = [*key, total]
        row += [measured.get(name) for name in measures]
        row += [volumes.get(name) for name in names]
        for name in names:
            # The share is unknown if the volume or the total is unknown.
            share = None
            if name in volumes and total:
                share = round(volumes[name] / total, 6)
            row.append(share)
        rows.append(row)
    columns = [f"{name}_mm3" for name in (*measures, *names)]
    columns += [f"{name}_share" for name in names]
    write_tsv(path, (*key_names, "total_brain_mm3", *columns), rows)


def _write_quality(path: Path, entries: Sequence[Entry]) -> None:
    """Write qc.tsv, with a row for each scan: grades, and the measures that they are based on.

    Columns: case (in BIDS after participant_id and session_id), grade, mean_agreement,
    tissue_contrast, total_brain_mm3, reasons, notes, the grade of each structure (NAME), and each
    measure of each structure (NAME_MEASURE).
    """
    names = _unique_keys(entry.result.structure_grades for entry in entries)
    # Used as an ordered set of the measures of structures.
    measures: dict[tuple[str, str], None] = {}
    for entry in entries:
        for measure, by_structure in entry.result.structure_measures().items():
            for name in by_structure:
                measures[measure, name] = None
    key_names, keys = _key_columns(entries)
    rows = []
    for key, entry in zip(keys, entries, strict=True):
        result = entry.result
        row: list[Any] = [*key, *result.quality_columns().values()]
        row += [entry.why, "; ".join(result.notes)]
        row += [result.structure_grades.get(name) for name in names]
        measured = result.structure_measures()
        row += [measured[measure].get(name) for measure, name in measures]
        rows.append(row)
    facts = ScanResult().quality_columns()
    columns = [f"{name}_{measure}" for measure, name in measures]
    header = (*key_names, *facts, "reasons", "notes", *names, *columns)
    write_tsv(path, header, rows)


def write_parcels(path: Path, entries: Sequence[Entry]) -> None:
    """Write parcels.tsv, with a row for each scan and parcel; scans without parcels have no rows.

    Columns: case (in BIDS after participant_id and session_id), parcel, and the fields of
    `ParcelResult`: freesurfer, side, lobe, mm3, share, asymmetry, agreement, grade.
    """
    key_names, keys = _key_columns(entries)
    rows = []
    for key, entry in zip(keys, entries, strict=True):
        for name, parcel in entry.result.parcels.items():
            rows.append((*key, name, *parcel.cells()))
    write_tsv(path, (*key_names, "parcel", *ParcelResult.model_fields), rows)


def write_further(path: Path, name: str, entries: Sequence[Entry]) -> None:
    """Write the table of one optional output, such as `lesions`, with a row for each scan.

    `name` is thickness, callosum or lesions. Columns: case (in BIDS after participant_id and
    session_id), grade, reasons, and the measures of the output. Scans without this output have
    empty cells.
    """
    key_names, keys = _key_columns(entries)
    found = []
    for entry in entries:
        result = entry.result.further().get(name)
        found.append({} if result is None else result.row())
    columns = _unique_keys(found)
    rows = []
    for key, values in zip(keys, found, strict=True):
        rows.append((*key, *(values.get(column) for column in columns)))
    write_tsv(path, (*key_names, *columns), rows)


def _unique_keys(mappings: Iterable[Iterable[str]]) -> list[str]:
    """Return the unique keys of mappings, in the order of their first appearance."""
    return list(dict.fromkeys(chain.from_iterable(mappings)))


def _key_columns(entries: Sequence[Entry]) -> tuple[list[str], list[list[str | None]]]:
    """Return the names of the columns that identify a row, and their values for each entry.

    They are participant_id, session_id and case for scans of a BIDS dataset, else the case only.
    """
    keys: list[list[str | None]] = []
    for entry in entries:
        match = _BIDS_CASE.fullmatch(entry.case)
        if match is None:
            return ["case"], [[entry.case] for entry in entries]
        keys.append([match["sub"], match["ses"], entry.case])
    if not keys:
        return ["case"], []
    return ["participant_id", "session_id", "case"], keys


def _write_page(path: Path, entries: Sequence[Entry], results: Path) -> None:
    """Write report.html, the page of all scans, from their ledger entries in natural order.

    `results` is the output folder, which has the scans' own files. Pictures are linked, not
    embedded, so that pages of many scans stay small. An existing page is replaced.
    """
    ranked = sorted(entries, key=attrgetter("doubt"))
    counts = Counter(entry.grade for entry in entries)
    # Sorted volumes of each structure over all scans. Rejected scans and structures are left out,
    # so that others are not compared with them.
    volumes: dict[str, list[float]] = defaultdict(list)
    for entry in entries:
        for name, volume_mm3 in entry.result.counted_volumes().items():
            volumes[name].append(volume_mm3)
    for values in volumes.values():
        values.sort()
    doubtful = [
        _case_variables(entry, results, volumes) for entry in most_doubtful(entries)
    ]
    pictures = [
        (entry.case, entry.result.picture) for entry in ranked if entry.result.picture
    ]
    page = render(
        "scans.html",
        images="'self' data:",
        title=f"trinat: {count(len(entries), 'scan')}",
        lead="Labels without a truth to compare with: grades say how far to trust them.",
        notices=taught_by_models(entries),
        cards=[(grade, f"{scans:,}", "") for grade, scans in counts.items()],
        doubtful=doubtful,
        scans=_scan_table(ranked),
        facts=_provenance(entries),
        pictures=pictures,
    )
    write_whole(path, page)


def _scan_table(ranked: Iterable[Entry]) -> Table:
    """Return a table with grade, volumes and reasons of each scan, in the order of `ranked`.

    `ranked` are ledger entries. On the page, sorting the column of grades restores this order.
    """
    rows: list[list[Any]] = []
    for rank, entry in enumerate(ranked):
        grade = entry.grade
        graded = Cell(grade, rank, kind=grade)
        # None for a scan without a result.
        brain = _to_ml(entry.result.total_brain_mm3)
        intracranial = _to_ml(entry.result.intracranial_mm3)
        page = Product.PAGE.among(entry.outputs)
        name = Cell(entry.case, link=quote(page) if page else "")
        rows.append([name, graded, brain, intracranial, entry.why])
    titles: Columns = [
        "Scan",
        "Grade",
        Column("Brain (ml)", 0),
        Column("Intracranial (ml)", 0, "Volume inside the skull, where it is known"),
        "Why",
    ]
    return table("scan-table", "The most doubtful first", titles, rows)


def _to_ml(mm3: float | None) -> float | None:
    """Convert a volume to ml; return None if it is unknown or 0."""
    return mm3 / 1000 if mm3 else None


def _provenance(entries: Iterable[Entry]) -> dict[str, str]:
    """Return the version of trinat, the models, and the first and last day of the results.

    Keys are the names of these facts on the page. Without results there is only the version.
    """
    models: dict[str, None] = {}
    days = set()
    for entry in entries:
        name = entry.result.model
        if name:
            models[f"{name} (SHA-256 {entry.model})" if entry.model else name] = None
            days.add(entry.finished[:10])
    facts = {"trinat": version("trinat")}
    if models:
        facts["model"] = ", ".join(models)
        first_to_last = dict.fromkeys((min(days), max(days)))
        facts["date"] = " to ".join(first_to_last)
    return facts


def _case_variables(
    entry: Entry, results: Path, volumes: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """Return the template variables of one scan: its slices and a table of its structures.

    `entry` is the ledger entry of the scan, and `results` the folder with its files. `volumes` has
    the sorted volumes in mm³ of each structure in all scans of the run.
    """
    result = entry.result
    try:
        file = results / slices_of(entry.case)
        slices = _Slices.model_validate_json(file.read_bytes())
    except (OSError, ValueError):
        # The file is missing or damaged.
        slices = None
    return {
        "title": f"{entry.case}: {entry.grade}",
        "text": "; ".join(result.remarks),
        "still": quote(result.picture),
        "alt": f"Three views of {entry.case} with its labels",
        "view": slices,
        "palette": None if slices is None else slices.palette,
        "table": _structure_table(entry, volumes),
    }


def _structure_table(entry: Entry, volumes: Mapping[str, Sequence[float]]) -> Table:
    """Return a table of a scan's structures with grade, volume and agreement of the views.

    The most doubtful structure is the first. `volumes` has the sorted volumes in mm³ of each
    structure in all scans of the run: the table has the rank of this scan's volume among them.
    """
    result = entry.result
    counted = result.counted_volumes()
    rows: list[list[Any]] = []
    for name, volume_mm3 in result.volumes_mm3.items():
        grade = result.structure_grades.get(name, "")
        urgency = GRADES.index(grade) if grade in GRADES else UNDEFINED
        agreement = result.agreement.get(name)
        rows.append(
            [
                Cell(short_name(name), len(rows)),
                # Sorting starts with the most urgent.
                Cell(grade, urgency, kind=grade),
                volume_mm3,
                _place_in_batch(
                    volume_mm3, volumes.get(name, ()), is_one=name in counted
                ),
                agreement,
                result.doubt_about(name),
            ]
        )
    # The sort is stable: within a grade, structures keep the order of the scheme.
    urgency_of = {grade: place for place, grade in enumerate(GRADES)}
    rows.sort(key=lambda row: urgency_of.get(row[1].text, len(GRADES)))
    place_hint = (
        "From the smallest of those that are not rejected; the bar has the middle half"
    )
    columns: Columns = [
        "Structure",
        "Grade",
        Column("Volume (mm³)", 0),
        Column("Place in this batch", hint=place_hint),
        Column("Agreement", 2, "Mean Dice between views"),
        "Why",
    ]
    table_id = f"case-{slices_of(entry.case)}"
    return table(table_id, f"Structures of {entry.case}", columns, rows)


def _place_in_batch(
    volume_mm3: float, of_batch: Sequence[float], *, is_one: bool
) -> Cell:
    """Return a table cell with the rank of a volume among those of all scans of the run.

    `of_batch` are these volumes, sorted. `is_one` is True if the volume is one of them; the volume
    of a rejected scan or structure is not.
    """
    if not of_batch:
        return number(None, hint="all are rejected")
    low = of_batch[0]
    high = of_batch[-1]
    if low == high:
        return number(None, hint="all are equal")

    def percent(value: float) -> float:
        within = min(max(value, low), high)
        return round(100 * (within - low) / (high - low), 1)

    q1, q2, q3 = quantiles(of_batch, n=4, method="inclusive")
    place = (percent(q1), percent(q2), percent(q3), percent(volume_mm3))
    smaller = bisect_left(of_batch, volume_mm3)
    if not is_one:
        text = f"{smaller} of {len(of_batch)} smaller"
        return Cell(text, smaller, place=place)
    return Cell(f"{smaller + 1} of {len(of_batch)}", smaller + 1, place=place)


def write_bids_files(folder: Path, out: Path, raw: Path) -> None:
    """Write dataset_description.json, README.md and .bidsignore for the derivatives in `out`.

    `raw` is the BIDS dataset that was segmented. The files are written into `folder`, from where
    they are moved to `out` like the other outputs.
    """
    # Relative to the output, so that no path of this machine gets into the file.
    raw_from_out = Path(os.path.relpath(raw.resolve(), out.resolve()))
    description = {
        "Name": "trinat segmentations",
        "BIDSVersion": "1.11.0",
        "DatasetType": "derivative",
        "GeneratedBy": [{"Name": "trinat", "Version": version("trinat")}],
        "DatasetLinks": {"raw": f"{raw_from_out.as_posix()}/"},
    }
    text = json.dumps(description, indent=2) + "\n"
    write_whole(folder / "dataset_description.json", text)
    write_whole(folder / "README.md", _README.format(version=version("trinat")))
    write_whole(folder / ".bidsignore", "\n".join(BIDSIGNORE) + "\n")


def write_label_table(path: Path, scheme: LabelScheme, *, by_index: bool) -> None:
    """Write the BIDS table that explains the numbers in label maps: name and colour of each.

    `scheme` has the structures. The numbers are class indices with `by_index`, else FreeSurfer's.
    """
    rows = []
    for label in scheme.labels:
        value = label.index if by_index else label.fs_id
        color = label.hex_color.upper()
        group = _BIDS_LABELS.get(label.group)
        rows.append((value, label.name, label.abbreviation, color, group))
    write_tsv(path, ("index", "name", "abbreviation", "color", "mapping"), rows)
