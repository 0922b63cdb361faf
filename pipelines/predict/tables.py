"""Tables, page and BIDS files of a whole run, made from the rows (entries) of its ledger.

report.html shows the most doubtful scans with slices, then each scan's grade and its picture.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from operator import attrgetter
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from trinat.pipelines.common.text import count
from trinat.pipelines.predict.settings import BIDSIGNORE, slices_of
from trinat.pipelines.report.case_view import CaseView
from trinat.pipelines.report.page import (
    UNDEFINED,
    Cell,
    Column,
    NamedColumns,
    Table,
    number,
    record_table,
    render,
    short_name,
)
from trinat.pipelines.study.entry import (
    Entry,
    counted_entries,
    most_doubtful,
    taught_by_models,
)
from trinat.pipelines.study.naming import Product
from trinat.pipelines.study.record import FURTHER, GRADES, ScanResult
from trinat.segmentation.io.files import write_json, write_tsv, write_whole

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
# Values of a scan by column, in groups: scans may differ in their columns, which stay grouped.
_Row = Sequence[Mapping[str, Any]]
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


def write_tables(
    out: Path, entries: Collection[Entry], results: Path | None = None
) -> None:
    """Write summary.tsv, volumes.tsv, qc.tsv and report.html to `out`, in natural order of cases.

    `entries` are the ledger entries of all inputs. parcels.tsv, thickness.tsv, callosum.tsv and
    lesions.tsv are written if results have these measures. `results` is the folder that has, or
    will have, the scans' own files; by default `out`.
    """
    folder = out if results is None else results
    counted = counted_entries(entries, folder)
    _write_summary(out / "summary.tsv", counted, folder)
    write_measures(out, counted)
    _write_page(out / "report.html", counted, folder)


def write_measures(out: Path, counted: Iterable[Entry]) -> None:
    """Write volumes.tsv, qc.tsv and the tables of optional measures for all scans that are done.

    `counted` are the ledger entries of `counted_entries`, whose order the tables keep. Optional
    tables are parcels.tsv, thickness.tsv, callosum.tsv and lesions.tsv. Each is written if at least
    one scan has such measures.
    """
    measured = [entry for entry in counted if entry.status == "done"]
    write_volumes(out / "volumes.tsv", measured)
    rows = [(entry, _quality_columns(entry.result)) for entry in measured]
    _write_rows(out / "qc.tsv", rows, _quality_columns(ScanResult()))
    if any(entry.result.parcels for entry in measured):
        write_parcels(out / "parcels.tsv", measured)
    for name in FURTHER:
        further = [entry.result.further().get(name) for entry in measured]
        if any(further):
            # Grade, reasons and measures of the output; empty for a scan without it.
            values = [{} if found is None else found.row() for found in further]
            rows = [(entry, [row]) for entry, row in zip(measured, values, strict=True)]
            _write_rows(out / f"{name}.tsv", rows)


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
    """Write volumes.tsv, with a row for each scan in the order of `entries`, its ledger entries."""
    rows = [(entry, _volume_columns(entry.result)) for entry in entries]
    _write_rows(path, rows, _volume_columns(ScanResult()))


def _volume_columns(result: ScanResult) -> _Row:
    """Return the row of a scan in volumes.tsv.

    It has the volume of the brain (total_brain_mm3), the other measures of the whole head
    (NAME_mm3), each structure's volume (NAME_mm3), and its share of the brain (NAME_share).
    """
    total = result.total_brain_mm3
    measures = {f"{name}_mm3": mm3 for name, mm3 in result.measures_mm3.items()}
    volumes = {f"{name}_mm3": mm3 for name, mm3 in result.volumes_mm3.items()}
    shares = {
        f"{name}_share": round(mm3 / total, 6) if total else None
        for name, mm3 in result.volumes_mm3.items()
    }
    return {"total_brain_mm3": total}, measures, volumes, shares


def _quality_columns(result: ScanResult) -> _Row:
    """Return the row of a scan in qc.tsv: grades, and the measures that they are based on.

    It has grade, mean_agreement, tissue_contrast, total_brain_mm3, reasons, notes, the grade of
    each structure (NAME), and each measure of each structure (NAME_MEASURE).
    """
    texts = {"reasons": "; ".join(result.reasons), "notes": "; ".join(result.notes)}
    measures = {
        f"{name}_{measure}": value
        for measure, by_structure in result.structure_measures().items()
        for name, value in by_structure.items()
    }
    return {**result.quality_columns(), **texts}, result.structure_grades, measures


def write_parcels(path: Path, entries: Iterable[Entry]) -> None:
    """Write parcels.tsv, with a row for each scan and parcel; scans without parcels have no rows.

    Columns: case (in BIDS after participant_id and session_id), parcel, and the fields of
    `ParcelResult`: freesurfer, side, lobe, mm3, share, asymmetry, agreement, grade.
    """
    rows: list[tuple[Entry, _Row]] = []
    for entry in entries:
        for name, parcel in entry.result.parcels.items():
            rows.append((entry, [{"parcel": name, **parcel.model_dump()}]))
    _write_rows(path, rows)


def _write_rows(
    path: Path, rows: Sequence[tuple[Entry, _Row]], header: _Row = ()
) -> None:
    """Write a table with a row for each pair of a ledger entry and the values of its scan.

    Columns: case (in BIDS after participant_id and session_id), then those of the values. Cells
    that a scan does not have are empty (n/a). `header` has the columns of a table without rows.
    """
    key_names, keys = _key_columns([entry for entry, _ in rows])
    groups = zip(*([row for _, row in rows] or [header]), strict=True)
    columns = [list(dict.fromkeys(chain.from_iterable(group))) for group in groups]
    cells = []
    for key, (_, row) in zip(keys, rows, strict=True):
        of_row: list[Any] = list(key)
        for names, values in zip(columns, row, strict=True):
            of_row += [values.get(name) for name in names]
        cells.append(of_row)
    write_tsv(path, (*key_names, *chain.from_iterable(columns)), cells)


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
    columns: NamedColumns = {
        "scan": "Scan",
        "grade": "Grade",
        "brain": Column("Brain (ml)", 0),
        "intracranial": Column(
            "Intracranial (ml)", 0, "Volume inside the skull, where it is known"
        ),
        "why": "Why",
    }
    rows = []
    for rank, entry in enumerate(ranked):
        page = Product.PAGE.among(entry.outputs)
        row = {
            "scan": Cell(entry.case, link=quote(page) if page else ""),
            "grade": Cell(entry.grade, rank, kind=entry.grade),
            # None for a scan without a result.
            "brain": _to_ml(entry.result.total_brain_mm3),
            "intracranial": _to_ml(entry.result.intracranial_mm3),
            "why": entry.why,
        }
        rows.append(row)
    return record_table("scan-table", "The most doubtful first", columns, rows)


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
        slices = CaseView.model_validate_json(file.read_bytes())
    except (OSError, ValueError):
        # The file is missing or damaged.
        slices = None
    return {
        "title": f"{entry.case}: {entry.grade}",
        "text": "; ".join(result.remarks),
        "still": quote(result.picture),
        "alt": f"Three views of {entry.case} with its labels",
        "view": slices,
        "table": _structure_table(entry, volumes),
    }


def _structure_table(entry: Entry, volumes: Mapping[str, Sequence[float]]) -> Table:
    """Return a table of a scan's structures with grade, volume and agreement of the views.

    The most doubtful structure is the first. `volumes` has the sorted volumes in mm³ of each
    structure in all scans of the run: the table has the rank of this scan's volume among them.
    """
    place_hint = (
        "From the smallest of those that are not rejected; the bar has the middle half"
    )
    columns: NamedColumns = {
        "structure": "Structure",
        "grade": "Grade",
        "volume": Column("Volume (mm³)", 0),
        "place": Column("Place in this batch", hint=place_hint),
        "agreement": Column("Agreement", 2, "Mean Dice between views"),
        "why": "Why",
    }
    result = entry.result
    counted = result.counted_volumes()
    rows: list[dict[str, Any]] = []
    for number_of_row, (name, volume_mm3) in enumerate(result.volumes_mm3.items()):
        grade = result.structure_grades.get(name, "")
        urgency = GRADES.index(grade) if grade in GRADES else UNDEFINED
        batch = volumes.get(name, ())
        row = {
            "structure": Cell(short_name(name), number_of_row),
            # Sorting starts with the most urgent.
            "grade": Cell(grade, urgency, kind=grade),
            "volume": volume_mm3,
            "place": _place_in_batch(volume_mm3, batch, is_one=name in counted),
            "agreement": result.agreement.get(name),
            "why": result.doubt_about(name),
        }
        rows.append(row)
    # The sort is stable: within a grade, structures keep the order of the scheme.
    urgency_of = {grade: place for place, grade in enumerate(GRADES)}
    rows.sort(key=lambda row: urgency_of.get(row["grade"].text, len(GRADES)))
    table_id = f"case-{slices_of(entry.case)}"
    return record_table(table_id, f"Structures of {entry.case}", columns, rows)


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
    write_json(folder / "dataset_description.json", description, indent=2)
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
