"""Tables and page of changes in a participant's volumes and cortical thickness between scans."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

from natsort import natsorted

from trinat.pipelines.predict.lesion_changes import LesionChange, lesion_changes
from trinat.pipelines.predict.settings import CHANGES, LESION_CHANGES, changes_table
from trinat.pipelines.report.changes import (
    Course,
    change_of,
    changes_page,
    retest_of,
)
from trinat.pipelines.study.corrections import newest
from trinat.pipelines.study.entry import Entry, find_moved
from trinat.pipelines.study.naming import Product
from trinat.pipelines.study.record import EXCLUDED_GRADES, FURTHER
from trinat.segmentation.io.files import sha256_of, write_tsv, write_whole
from trinat.segmentation.models.zoo import MODEL_FILE, shipped_models

# Joint segmentation: the hash of the model, and pairs of each scan's case and SHA-256.
_Segmentation = tuple[str, frozenset[Any]]


def write_changes(
    folder: Path,
    entries: Iterable[Entry],
    excluded: Collection[str] = EXCLUDED_GRADES,
    results: Path | None = None,
) -> None:
    """Write the tables and the page of all participants with two or more scans into `folder`.

    `entries` are the ledger entries of all scans. Scans and structures whose grade is in `excluded`
    appear as time points, but no change is computed from them, and none from lesions that were
    corrected by hand. Paths of scans are relative to `results`, by default to `folder`. Nothing is
    written if there are no such participants.
    """
    if results is None:
        results = folder
    participants = participants_in(entries, results)
    if not participants:
        return
    changes, time_points, page, *_ = CHANGES
    _write_time_points(folder / time_points, participants, excluded)
    left_out = []
    for scans in participants.values():
        left_out += _left_out(scans, excluded)
        for number, entry in enumerate(scans):
            mask = entry.output(results, Product.LESIONS)
            if mask is not None and newest(mask, entry.input_sha256) != mask:
                # The ledger has the lesions of the prediction.
                left_out.append((entry.case, "lesions", "corrected by hand"))
                result = entry.result.model_copy(update={"lesions": None})
                scans[number] = replace(entry, result=result)
    courses = {"": courses_in(participants, excluded)}
    # Volumes have a table even if no participant has two usable scans.
    columns = ("structure", "scans", "years", "first_mm3", "last_mm3")
    _write_courses(folder / changes, courses[""], columns, digits=1)
    for output in FURTHER:
        of_output = courses_in(participants, excluded, output)
        if of_output:
            courses[output] = of_output
            # Units are part of the name of a measure.
            columns = ("measure", "scans", "years", "first", "last")
            _write_courses(folder / changes_table(output), of_output, columns, digits=3)
    usable = {
        participant: _sort_by_time(_usable(scans, excluded))
        for participant, scans in participants.items()
    }
    lesions = [vars(change) for change in lesion_changes(usable, excluded)]
    if any(entry.result.lesions for scans in participants.values() for entry in scans):
        of_lesions = [field.name for field in fields(LesionChange)]
        rows = [list(lesion.values()) for lesion in lesions]
        write_tsv(folder / LESION_CHANGES, of_lesions, rows)
    write_whole(folder / page, changes_page(courses, left_out, lesions))


def courses_in(
    participants: Mapping[str, Sequence[Entry]],
    excluded: Collection[str],
    output: str = "",
    counting: Mapping[str, Collection[str]] | None = None,
) -> list[Course]:
    """Return the volumes over time of each structure, for all participants with two or more scans.

    With the name of another `output`, such as thickness, return its measures over time.

    `participants` are those of `participants_in`. Scans and structures whose grade is in `excluded`
    are left out. If `counting` is given, so are cases that are not its keys; its values are the
    names of structures to leave out of a case.
    """
    courses = []
    for scans in participants.values():
        taken = scans
        if counting is not None:
            taken = [entry for entry in scans if entry.case in counting]
        if taken:
            courses += _courses(taken, excluded, output, counting or {})
    return courses


def _left_out(
    scans: Sequence[Entry], excluded: Collection[str]
) -> list[tuple[str, str, str]]:
    """Return the scans and structures of a participant from which no change is computed.

    Each item is (case, structure, reason); the structure is "" if the whole scan is excluded.
    `scans` are the ledger entries of the participant's scans; `excluded` are the grades to exclude.
    """
    rows = []
    first_with: dict[tuple[str, str], str] = {}
    for entry in scans:
        why = entry.result.why_left_out(excluded) or _why_unfit(entry, first_with)
        if why:
            rows.append((entry.case, "", why))
            continue
        for structure, grade in entry.result.structures_left_out(excluded).items():
            rows.append((entry.case, structure, f"graded {grade}"))
    return rows


def _usable(scans: Sequence[Entry], excluded: Collection[str]) -> list[Entry]:
    """Return the scans of a participant that are not left out as a whole."""
    whole = {case for case, structure, _ in _left_out(scans, excluded) if not structure}
    return [entry for entry in scans if entry.case not in whole]


def _why_unfit(entry: Entry, first_with: dict[tuple[str, str], str]) -> str:
    """Return why no change over time may be computed from a scan; "" if one may.

    The grade is ignored. Reasons are that it is a copy of another scan, or that the size of the
    head differs. `first_with` maps the content of a scan to the first case of the participant with
    these bytes; the scan of `entry` is added.
    """
    first = entry.case
    if entry.input_sha256:
        first = first_with.setdefault(entry.content, entry.case)
    if first != entry.case:
        return f"byte for byte the same as {first}"
    stretch = entry.time_point.stretch_percent
    if not stretch:
        return ""
    larger = "larger" if stretch > 0 else "smaller"
    return (
        f"the head is {abs(stretch):g} % {larger} along one axis than in another scan of the "
        "participant: check the voxel sizes in both headers"
    )


def participants_in(entries: Iterable[Entry], results: Path) -> dict[str, list[Entry]]:
    """Return the ledger entries of each participant with two or more scans, in chronological order.

    Keys are names of participants, in natural order. Volumes of different segmentations are never
    compared: only the scans of a participant's latest joint segmentation are returned.
    Segmentations that include a scan that has since been removed or renamed are skipped. `results`
    is the folder that the paths of scans are relative to.
    """
    known = {entry.case: entry for entry in entries}
    moved = find_moved(known.values(), results)
    # For each participant, the scans by joint segmentation.
    found: dict[str, dict[_Segmentation, list[Entry]]] = {}
    for entry in known.values():
        time_point = entry.result.longitudinal
        if entry.status == "done" and time_point is not None:
            groups = found.setdefault(time_point.participant, {})
            groups.setdefault(_segmentation_of(entry), []).append(entry)
    ordered = {}
    for participant in natsorted(found):
        groups = found[participant]
        current = [
            group
            for segmentation, group in groups.items()
            if len(group) > 1 and _is_complete(segmentation, known, moved)
        ]
        if current:
            last = max(
                current, key=lambda group: max(entry.finished for entry in group)
            )
            ordered[participant] = _sort_by_time(last)
    return ordered


def _sort_by_time(scans: Iterable[Entry]) -> list[Entry]:
    """Sort the ledger entries of scans by time; if any time is unknown, sort all by name."""
    ordered: list[Entry] = natsorted(scans, key=lambda entry: entry.case)
    years = {entry.case: entry.time_point.year for entry in ordered}
    known = {case: year for case, year in years.items() if year is not None}
    if len(known) == len(years):
        ordered.sort(key=lambda entry: known[entry.case])
    return ordered


def _is_complete(
    segmentation: _Segmentation, known: Mapping[str, Entry], moved: Collection[str]
) -> bool:
    """Return True if the ledger has all results of a joint segmentation, none replaced since.

    A run may have stopped between two of the results. `segmentation` has the hash of the model, and
    the cases with their SHA-256. `known` are the ledger entries by case. Scans that failed or were
    corrected by hand have no result to compare. A case in `moved` has its result under another
    name, so the segmentation is not complete.
    """
    _, scans = segmentation
    for case, _ in scans:
        if case not in known or case in moved:
            return False
        if (
            known[case].status == "done"
            and _segmentation_of(known[case]) != segmentation
        ):
            return False
    return True


def _segmentation_of(entry: Entry) -> _Segmentation:
    """Return which joint segmentation a result is from: model, and all its scans.

    These are the hash of the model, and pairs of case and SHA-256.
    """
    time_point = entry.result.longitudinal
    scans = {} if time_point is None else time_point.scans
    return entry.model, frozenset(scans.items())


def _courses(
    scans: Sequence[Entry],
    excluded: Collection[str],
    output: str,
    left_out: Mapping[str, Collection[str]],
) -> list[Course]:
    """Return the values over time of each measure of one output, for one participant.

    `output` is thickness, callosum or lesions; "" stands for the volumes of structures. `scans` are
    the ledger entries of the participant's scans. Scans and structures whose grade is in `excluded`
    are left out, and so are the structures that `left_out` names for a case. A measure with fewer
    than two values, or with values of 0 only, is omitted.
    """
    first = scans[0].time_point
    retest = _retest_of(scans[0])
    taken = _usable(scans, excluded)
    values = {}
    for entry in taken:
        named = left_out.get(entry.case, ())
        if output:
            values[entry.case] = entry.result.counted_columns(output, excluded, named)
            continue
        omitted = {*entry.result.structures_left_out(excluded), *named}
        volumes_mm3 = entry.time_point.volumes_mm3
        values[entry.case] = {
            name: mm3 for name, mm3 in volumes_mm3.items() if name not in omitted
        }
    # Structures keep their order, even if the first scan leaves some of them out.
    names = {} if output else dict.fromkeys(first.volumes_mm3)
    names.update(dict.fromkeys(chain.from_iterable(values.values())))
    courses = []
    for name in names:
        # Sort again: if the scan without a time is left out, the times of all others may be known.
        with_value = _sort_by_time(
            entry for entry in taken if name in values[entry.case]
        )
        if len(with_value) < 2:
            continue
        of_name = [values[entry.case][name] for entry in with_value]
        years = [entry.time_point.year for entry in with_value]
        change = change_of(of_name, years, retest.get(name))
        if change is None:  # all values are 0
            continue
        course = Course(
            first.participant,
            first.group,
            name,
            [entry.case for entry in with_value],
            years,
            of_name,
            change,
            retest.get(name),
        )
        courses.append(course)
    return courses


def _retest_of(entry: Entry) -> Mapping[str, float]:
    """Return how much each structure differs between two scans of an unchanged participant, in %.

    It is known for shipped models with all their views; {} for any other model. The hash of the
    model is compared, because a user's own model may have the same name.
    """
    name = entry.result.model
    shipped = shipped_models().get(name)
    if shipped is None or sha256_of(shipped / MODEL_FILE) != entry.model:
        return {}
    if entry.time_point.views:
        return {}
    return retest_of(name)


def _write_courses(
    path: Path, courses: Sequence[Course], named: Sequence[str], digits: int
) -> None:
    """Write a table of changes, a row for each measure of each participant.

    `named` are the titles of the columns from the name of the measure to its last value. `digits`
    is the number of decimals of the first and the last value.
    """
    words = {True: "yes", False: "no", None: None}
    rows = []
    for course in courses:
        change = course.change
        row = [
            course.participant,
            course.group or None,
            course.structure,
            change.scans,
            _rounded(change.years, 3),
            round(course.values[0], digits),
            round(course.values[-1], digits),
            round(change.percent, 3),
            _rounded(change.percent_per_year, 3),
            _rounded(change.low, 3),
            _rounded(change.high, 3),
            _rounded(change.noise, 3),
            words[change.is_beyond_noise],
        ]
        rows.append(row)
    columns = (
        *("participant", "group", *named),
        *("change_percent", "percent_per_year", "low", "high"),
        *("noise", "beyond_noise"),
    )
    write_tsv(path, columns, rows)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _write_time_points(
    path: Path, participants: Mapping[str, Sequence[Entry]], excluded: Collection[str]
) -> None:
    """Write a table with a row for each scan, with the volumes that changes are computed from.

    Columns: `participant`, `group`, `case`, `year`, `left_out`, and the volume in mm³ of each
    structure (`NAME_mm3`). `participants` has the ledger entries of each participant's scans. The
    column `left_out` lists the structures that are excluded by their grade (in `excluded`), or the
    scan as a whole, with the reasons.
    """
    names: dict[str, None] = {}
    for scans in participants.values():
        for entry in scans:
            names.update(dict.fromkeys(entry.time_point.volumes_mm3))
    rows = []
    for participant, scans in participants.items():
        left_out_here = _left_out(scans, excluded)
        for entry in scans:
            time_point = entry.time_point
            volumes = [time_point.volumes_mm3.get(name) for name in names]
            year = _rounded(time_point.year, 4)
            remarks = [
                f"{structure}: {why}" if structure else why
                for case, structure, why in left_out_here
                if case == entry.case
            ]
            left_out = "; ".join(remarks) or None
            group = time_point.group or None
            row = [participant, group, entry.case, year, left_out, *volumes]
            rows.append(row)
    columns = [f"{name}_mm3" for name in names]
    write_tsv(
        path, ("participant", "group", "case", "year", "left_out", *columns), rows
    )
