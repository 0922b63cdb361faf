"""report.html: the most doubtful scans with slices, then each scan's grade and its picture."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, Field

from trinat.pipelines.predict.doubt import (
    GRADES,
    counted_volumes,
    doubt_of,
    grade_of,
    most_doubtful,
    why_of,
)
from trinat.pipelines.predict.entry import Entry, taught_by_models
from trinat.pipelines.predict.outputs import slices_of
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.report.page import (
    UNDEFINED,
    Cell,
    Column,
    Columns,
    Table,
    count,
    number,
    render,
    short_name,
    table,
)


class _Slices(BaseModel):
    """What a worker wrote of a scan for the page: tiled pictures, and where to look first."""

    shape: tuple[int, int, int]
    columns: int
    gray: str = Field(pattern="^data:image/")
    prediction: str = Field(pattern="^data:image/")
    start: tuple[int, int, int]
    palette: dict[str, list[Any]]
    truth: None = None


def write_page(path: Path, entries: Sequence[Entry], results: Path) -> None:
    """Write the page of all entries, given in natural order; `results` has the scans' own files.

    Pictures are linked, not included, so that pages of many scans stay small. An existing page is
    replaced.
    """
    ranked = sorted(entries, key=doubt_of)
    counts = Counter(grade_of(entry) for entry in entries)
    volumes = _volumes_of_batch(entries)
    doubtful = [_case(entry, results, volumes) for entry in most_doubtful(entries)]
    pictures = []
    for entry in ranked:
        picture = entry.result.get("picture")
        if picture:
            pictures.append((entry.case, picture))
    page = render(
        "scans.html",
        images="'self' data:",
        title=f"trinat: {count(len(entries), 'scan')}",
        lead="Labels without a truth to compare with: grades say how far to trust them.",
        notices=taught_by_models(entries),
        cards=[(grade, f"{scans:,}", "") for grade, scans in counts.items()],
        doubtful=doubtful,
        scans=_scans(ranked),
        pictures=pictures,
    )
    write_whole(path, page)


def _scans(ranked: Iterable[Entry]) -> Table:
    """A row for each scan; sorted by its grade it has the order of `ranked`."""
    rows: list[list[Any]] = []
    for rank, entry in enumerate(ranked):
        grade = grade_of(entry)
        graded = Cell(grade, rank, kind=grade)
        brain_ml = None
        # A scan without a result has no volume to show.
        if entry.result.get("total_brain_mm3"):
            brain_ml = entry.result["total_brain_mm3"] / 1000
        rows.append([entry.case, graded, brain_ml, why_of(entry)])
    titles: Columns = ["Scan", "Grade", Column("Brain (ml)", 0), "Why"]
    return table("scan-table", "The most doubtful first", titles, rows)


def _volumes_of_batch(entries: Iterable[Entry]) -> dict[str, list[float]]:
    """The volumes of each structure in all scans, in mm³, from the smallest.

    Those of rejected scans and structures are not what others are held against.
    """
    volumes: dict[str, list[float]] = defaultdict(list)
    for entry in entries:
        for name, volume_mm3 in counted_volumes(entry.result).items():
            volumes[name].append(volume_mm3)
    for values in volumes.values():
        values.sort()
    return volumes


def _case(
    entry: Entry, results: Path, volumes: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """A scan as the page shows it: its slices, and its structures among those of the batch."""
    result = entry.result
    slices = _read_slices(results / slices_of(entry.case))
    picture = result.get("picture")
    remarks = [*result.get("reasons", ()), *result.get("notes", ())]
    return {
        "title": f"{entry.case}: {grade_of(entry)}",
        "text": "; ".join(remarks),
        "still": quote(picture) if picture else "",
        "alt": f"Three views of {entry.case} with its labels",
        "view": slices,
        "palette": None if slices is None else slices.palette,
        "table": _structures(entry, volumes),
    }


def _read_slices(path: Path) -> _Slices | None:
    """The slices of a scan; None where they are missing or damaged."""
    try:
        return _Slices.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def _structures(entry: Entry, volumes: Mapping[str, Sequence[float]]) -> Table:
    """The structures of a scan, with their volumes among those of the batch."""
    result = entry.result
    counted = counted_volumes(result)
    rows: list[list[Any]] = []
    for name, volume_mm3 in result.get("volumes_mm3", {}).items():
        grade = result.get("structure_grades", {}).get(name, "")
        agreement = result.get("agreement", {}).get(name)
        rows.append(
            [
                Cell(short_name(name), len(rows)),
                _grade_cell(grade),
                volume_mm3,
                _place(volume_mm3, volumes.get(name, ()), is_one=name in counted),
                agreement,
                _doubt_about(grade, volume_mm3, agreement),
            ]
        )
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


def _grade_cell(grade: str) -> Cell:
    """The grade of a structure; sorting has the most urgent first."""
    order = GRADES.index(grade) if grade in GRADES else UNDEFINED
    return Cell(grade, order, kind=grade)


def _doubt_about(grade: str, volume_mm3: float, agreement: float | None) -> str:
    """Why a structure needs a look; empty where it does not."""
    if grade not in ("look", "reject"):
        return ""
    if not volume_mm3:
        return "not found"
    return f"views agree by {agreement or 0:.2f} only"


def _place(volume_mm3: float, of_batch: Sequence[float], *, is_one: bool) -> Cell:
    """Where a volume is among those of the batch, which are in order.

    `is_one` is whether it is one of them: a rejected one is not.
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
