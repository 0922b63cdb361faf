"""Page of one scan: views, grade, volumes, percentiles, further outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trinat.pipelines.common.text import count
from trinat.pipelines.report.case_view import far_from_brain
from trinat.pipelines.report.page import (
    Cell,
    Column,
    NamedColumns,
    Table,
    number,
    record_table,
    render,
    short_name,
    table,
)
from trinat.pipelines.study.participants import Facts
from trinat.pipelines.study.record import DOUBTFUL, FurtherResult, ScanResult
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.metrics.norms import (
    LISTED,
    MEASURED,
    NormError,
    NormPosition,
    Norms,
)
from trinat.segmentation.rendering.pictures import (
    EDGES,
    brain_window,
    data_uri,
    encoded,
    label_colors,
    outlines,
    overlay,
    top_first,
)
from trinat.segmentation.space.views import View, to_slices

_GRADES = {
    "pass": "all checks of the whole scan passed",
    "look": "look at the picture before you use the numbers",
    "reject": "do not use the numbers",
}
_VIEWS = (View.AXIAL, View.CORONAL, View.SAGITTAL)  # from left to right
_ZOOM = 3
# Position of a normal range on its strip, in percent of the strip: the middle third.
_LOW, _HIGH = 100 / 3, 200 / 3


def scan_page(
    found: Prediction,
    result: ScanResult,
    facts: Mapping[str, str],
    *,
    title: str,
    norms: Norms | None = None,
    participant: Facts | None = None,
) -> str:
    """Return the page of one segmented scan as HTML: pictures, grade, volumes and further outputs.

    `found` is the segmentation, and `result` the row of the run ledger with its volumes and grades.
    `facts` maps titles to texts on how it was made. `norms` are normative values by age and sex,
    with which the volumes are compared; None for no comparison. `participant` has the age, sex and
    intracranial volume that this needs.

    Without thickness, callosum and lesions (the further outputs) the page prints on two A4 pages.
    """
    compared = _compare_with_norms(result, norms, participant or Facts())
    return render(
        "scan.html",
        script="",
        title=title,
        reasons=result.remarks,
        cards=_cards(result),
        pictures=_pictures(found),
        volumes=_volume_table(found, result, compared),
        comparison=compared.note,
        further=_further_sections(result),
        has_all_fluid=result.csf == "intracranial",
        not_predicted=[short_name(name) for name in found.not_predicted],
        facts=facts,
    )


def _cards(result: ScanResult) -> list[tuple[str, str, str]]:
    """Return the boxes at the top of the page, each with a title, a value and a detail.

    They show the grade, the brain and intracranial volumes if they were measured, and the mean Dice
    between the segmentations of the views. `result` is the row of the run ledger for the
    scan.
    """
    grade = result.grade
    meaning = _GRADES.get(grade, "")
    grades = result.structure_grades.values()
    doubtful = sum(of_structure in DOUBTFUL for of_structure in grades)
    if grade == "pass" and doubtful:
        meaning += f"; look at {count(doubtful, 'structure')}, in the table below"
    cards = [("Grade", grade, meaning)]
    whole = {
        "Total brain": result.total_brain_mm3,
        "Intracranial volume": result.intracranial_mm3,
    }
    for name, mm3 in whole.items():
        if mm3 is not None:
            cards.append((name, f"{mm3 / 1000:,.0f} ml", f"{mm3:,.0f} mm³"))
    agreement = result.mean_agreement
    if agreement is not None:
        cards.append(("Agreement of views", f"{agreement:.2f}", "mean Dice, 1 at best"))
    return cards


def _pictures(found: Prediction) -> list[tuple[str, str, tuple[str, str]]]:
    """Return a picture for each view: the view's name, the picture and the letters at its edges.

    A picture shows the slice with the most structures, with their outlines, as a data URI. The
    letters are the anatomical directions at its left and right edge: L and R, or P and A.
    """
    scheme = found.scheme
    colors = label_colors(scheme)
    indices = np.asarray(found.working.data)
    brightest = 0.0
    if indices.any():
        brightest = float(np.percentile(found.image.data[indices > 0], 99.5))
    if brightest == 0:
        # Used if nothing, or only air, is labelled.
        brightest = 1.0
    # Black away from the brain, so that no face is shown.
    shades = np.where(far_from_brain(indices > 0), 0, found.image.data / brightest)
    pictures = []
    for view in _VIEWS:
        classes = to_slices(indices, view)
        window = brain_window(classes)
        gray = to_slices(shades, view)
        chosen = _fullest_slice(classes, len(scheme))
        # Enlarge before outlines are drawn, so that the outlines are thin.
        enlarged = _enlarged(classes[chosen][window])
        values = _enlarged(gray[chosen][window])
        drawn = overlay(values, outlines(enlarged), colors, opacity=1)
        png = encoded(top_first(drawn), "PNG")
        picture = data_uri("png", png)
        pictures.append((view.value.capitalize(), picture, EDGES[view]))
    return pictures


def _enlarged(pixels: np.ndarray) -> np.ndarray:
    """Enlarge a picture (H, W): each pixel becomes a square of `_ZOOM` x `_ZOOM` pixels."""
    return pixels.repeat(_ZOOM, 0).repeat(_ZOOM, 1)


def _fullest_slice(classes: np.ndarray, count: int) -> int:
    """Return the index of the slice that shows the most structures, among slices (N, H, W).

    `count` is the number of classes, with background. Among equals it is the slice with the most
    labelled voxels; if no slice has any, the middle one.
    """
    best = (0, 0)
    chosen = len(classes) // 2
    for place, of_slice in enumerate(classes):
        voxels = np.bincount(of_slice.ravel(), minlength=count)[1:]
        structures = int((voxels > 0).sum())
        shown = (structures, int(voxels.sum()))
        if shown > best:
            best = shown
            chosen = place
    return chosen


@dataclass(frozen=True)
class _Compared:
    """Comparison of the volumes of a scan with normative values by age and sex.

    `cells` maps each compared structure to its cell in the table of volumes. `title` is the title
    of their column, and `note` explains it, or says why there is no comparison.
    """

    title: str = ""
    note: str = ""
    cells: Mapping[str, Cell] = field(default_factory=dict)


def _compare_with_norms(
    result: ScanResult,
    norms: Norms | None,
    participant: Facts,
) -> _Compared:
    """Return the percentile of each structure's volume in the normative values by age and sex.

    `participant` has the age and sex that this needs. The result has no cells if `norms` is None,
    or if the norms do not cover the participant; then `note` has the reason.
    """
    if norms is None:
        return _Compared()
    heads_mm3 = {
        MEASURED: result.intracranial_mm3,
        LISTED: participant.intracranial_mm3,
    }
    cells = {}
    participants = []
    why = ""
    for name, volume_mm3 in result.volumes_mm3.items():
        try:
            place = norms.place(
                name, volume_mm3, participant.sex, participant.age, heads_mm3
            )
        except NormError as error:
            why = why or str(error)
            continue
        cells[name] = _percentile_cell(volume_mm3, place)
        participants.append(place.participants)
    if not cells:
        return _Compared(note=f"No percentiles: {why}.")
    of_participants = f"{min(participants)}"
    if max(participants) > min(participants):
        of_participants += f" to {max(participants)}"
    note = (
        "Percentile: how many in a hundred healthy participants of this sex, age and intracranial "
        "volume have less, and z, for the left side or the only one, then for the right side; by "
        f"the norms that were given, of {of_participants} participants. The bar reaches from the "
        "5th percentile to the 95th, the dot is this scan."
    )
    return _Compared("Percentile", note, cells)


def _volume_table(
    found: Prediction,
    result: ScanResult,
    compared: _Compared,
) -> Table:
    """Return the table of volumes, with the left and right side of a structure in one row.

    A structure without sides has its volume in the column of both sides together. `found` has the
    label scheme, `result` the volumes and grades, and `compared` the cells with percentiles.
    """
    columns: NamedColumns = {
        "structure": "Structure",
        "grade": "Grade",
        "left": Column("Left (mm³)", 0),
        "right": Column("Right (mm³)", 0),
        "together": Column("Together (mm³)", 0),
        "asymmetry": Column(
            "Asymmetry (%)", 1, "100 (left - right) / mean of both", sign=True
        ),
    }
    if any(result.doubt_about(name) for name in result.volumes_mm3):
        columns["why"] = "Why"
    if compared.title:
        columns["place"] = compared.title
        columns["place_right"] = f"{compared.title}, right"
    labels = {label.name: label for label in found.scheme.labels}
    rows = []
    for name in result.volumes_mm3:
        label = labels.get(name)
        names = [name]
        if label is not None and label.side is not None and label.partner is not None:
            # The same structure on the other side.
            other = found.scheme.labels[label.partner].name
            if other in result.volumes_mm3:
                if label.side == "right":
                    continue  # in the row of the left side
                names.append(other)
        rows.append(_structure_row(names, result, compared))
    return record_table("volume-table", "Volumes", columns, rows)


def _further_sections(result: ScanResult) -> list[tuple[FurtherResult, Table]]:
    """Return the results and the table of measures of thickness, callosum and lesions.

    `result` is the row of the run ledger for the scan. There is a tuple for each output that it
    has.
    """
    sections = []
    for name, further in result.further().items():
        rows = []
        for column, value in further.columns().items():
            measure = short_name(column)
            if column.endswith("_thickness"):
                measure += " (mm)"
            rows.append([measure, number(value, 2)])
        measures = table(f"{name}-table", "Measures", ["Measure", "Value"], rows)
        sections.append((further, measures))
    return sections


def _structure_row(
    names: Sequence[str],
    result: ScanResult,
    compared: _Compared,
) -> dict[str, Cell | str | float]:
    """Return the row of a structure in the table of volumes, by column.

    `names` are the names of its left and right label, or a single name. `compared` has the cells
    with its percentiles.
    """
    volumes_mm3 = [result.volumes_mm3[name] for name in names]
    title = short_name(names[0])
    left: float | None = None
    right: float | None = None
    asymmetry: float | None = None
    if len(names) == 2:
        title = title.removeprefix("L ")
        left, right = volumes_mm3
        if sum(volumes_mm3):
            asymmetry = 200 * (left - right) / sum(volumes_mm3)
    places = [compared.cells.get(name, Cell("")) for name in names]
    return {
        "structure": Cell(title),
        "grade": _grade_cell(names, result),
        "left": _format_number(left),
        "right": _format_number(right),
        "together": sum(volumes_mm3),
        "asymmetry": _format_number(asymmetry, 1, sign=True),
        "why": _reason_for_doubt(names, result),
        "place": places[0],
        "place_right": places[1] if len(names) == 2 else Cell(""),
    }


def _format_number(value: float | None, digits: int = 0, *, sign: bool = False) -> Cell:
    """Return a number as a cell; None is an empty cell."""
    if value is None:
        return Cell("")
    return number(value, digits, sign=sign)


def _grade_cell(names: Sequence[str], result: ScanResult) -> Cell:
    """Return the quality grade of a structure as a cell; the worse one of its two sides.

    The side is named if only one side has this grade. `names` are the names of its labels, and
    `result` has the grades of all structures.
    """
    known = result.structure_grades
    grades = [known.get(name, "") for name in names]
    for grade in ("reject", "look"):
        sides = [
            name.partition("-")[0].lower()
            for name, found in zip(names, grades, strict=True)
            if found == grade
        ]
        if sides:
            shown = grade
            if len(sides) < len(names):
                shown = f"{grade} ({sides[0]})"
            return Cell(shown, kind=grade)
    return Cell(grades[0], kind=grades[0])


def _reason_for_doubt(names: Sequence[str], result: ScanResult) -> str:
    """Return the reason for the grade of a structure that is not to be trusted; else "".

    `names` are the names of its labels, and `result` has the grades of all structures with their
    reasons. A side is named if the reasons of the two sides differ.
    """
    doubts = {name: result.doubt_about(name) for name in names}
    if len(set(doubts.values())) == 1:
        return doubts[names[0]]
    return "; ".join(
        f"{name.partition('-')[0].lower()}: {doubt}"
        for name, doubt in doubts.items()
        if doubt
    )


def _percentile_cell(volume_mm3: float, place: NormPosition) -> Cell:
    """Return a cell with the percentile and z-score of a volume among normative values.

    `place` is the position of the volume in the norms.
    """
    shown = f"{place.percentile:.0f}"
    if place.percentile < 1:
        shown = "<1"
    elif place.percentile > 99:
        shown = ">99"
    return Cell(
        f"{shown} (z {number(place.z, 1, sign=True).text})",
        place.z,
        hint=f"5th to 95th percentile: {place.low_mm3:,.0f} to {place.high_mm3:,.0f} mm³; "
        f"{place.participants} participants",
        place=_strip_positions(
            volume_mm3, place.low_mm3, place.median_mm3, place.high_mm3
        ),
    )


def _strip_positions(
    volume_mm3: float, low: float, middle: float, high: float
) -> tuple[float, float, float, float]:
    """Return where to draw a normal range and a volume on a strip, in per cent of its length.

    The four positions are those of the lower limit (`low`), the middle and the upper limit (`high`)
    of the range, and of the volume, all in mm³. The range is the middle third of the strip; a
    volume beyond the strip is drawn at its end.
    """
    length = max(high - low, 1e-9)

    def at(mm3: float) -> float:
        place = _LOW + (_HIGH - _LOW) * (mm3 - low) / length
        # Limit to the ends of the strip.
        return min(max(round(place, 1), 0), 100)

    return (_LOW, at(middle), _HIGH, at(volume_mm3))
