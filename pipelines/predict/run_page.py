"""report.html: the most doubtful scans with slices, then each scan's grade and its picture."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
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
from trinat.pipelines.scans.naming import Product
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.labels.measures import INTRACRANIAL
from trinat.segmentation.report.doubts import doubt_about
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
        facts=_facts(entries),
        pictures=pictures,
    )
    write_whole(path, page)


def _scans(ranked: Iterable[Entry]) -> Table:
    """A row for each scan; sorted by its grade it has the order of `ranked`."""
    rows: list[list[Any]] = []
    for rank, entry in enumerate(ranked):
        grade = grade_of(entry)
        graded = Cell(grade, rank, kind=grade)
        # A scan without a result has no volume to show.
        brain = _ml(entry.result.get("total_brain_mm3"))
        measures_mm3 = entry.result.get("measures_mm3", {})
        intracranial = _ml(measures_mm3.get(INTRACRANIAL.column))
        name = Cell(entry.case, link=_page_of(entry))
        rows.append([name, graded, brain, intracranial, why_of(entry)])
    titles: Columns = [
        "Scan",
        "Grade",
        Column("Brain (ml)", 0),
        Column("Intracranial (ml)", 0, "Volume inside the skull, where it is known"),
        "Why",
    ]
    return table("scan-table", "The most doubtful first", titles, rows)


def _ml(mm3: float | None) -> float | None:
    """A volume in ml; None where it is not known, or is none."""
    return mm3 / 1000 if mm3 else None


def _page_of(entry: Entry) -> str:
    """The address of the scan's own page beside this one; "" where it has none."""
    for name in entry.outputs:
        if name.endswith(
            (f"_{Product.PAGE.suffix}.html", f"_{Product.PAGE.plain}.html")
        ):
            return quote(name)
    return ""


def _facts(entries: Iterable[Entry]) -> dict[str, str]:
    """How the results were made: the version, the models, the days of the first and the last."""
    models: dict[str, None] = {}
    days = set()
    for entry in entries:
        name = entry.result.get("model")
        if name:
            models[f"{name} (SHA-256 {entry.model})" if entry.model else name] = None
            days.add(entry.finished[:10])
    facts = {"trinat": version("trinat")}
    if models:
        facts["model"] = ", ".join(models)
        first_to_last = dict.fromkeys((min(days), max(days)))
        facts["date"] = " to ".join(first_to_last)
    return facts


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
                doubt_about(name, result),
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
