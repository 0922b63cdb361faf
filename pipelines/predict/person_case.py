"""The scans of one person, from reading to writing: what `CaseWorker` does with a person."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from trinat.pipelines.predict.case_in_progress import CaseInProgress, PersonInProgress
from trinat.pipelines.predict.entry import Entry
from trinat.pipelines.predict.settings import RunSettings
from trinat.segmentation.errors import reason_of
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.longitudinal.person import (
    Together,
    image_to_align,
    in_order,
    segment_person,
)
from trinat.segmentation.longitudinal.space import Head, heads_of
from trinat.segmentation.timing import stage, timed

# What is noted of a scan that has no others to be compared with.
ONLY_SCAN = "no other scan of this person to compare with: segmented by itself"


def prepare_person(person: PersonInProgress, settings: RunSettings) -> PersonInProgress:
    """Check that each scan shows something; those that do not fail.

    The scans stay as they were read: they are resampled once, to the space of all.
    """
    kept = []
    for scan in person.scans:
        assert scan.volume is not None
        try:
            with timed(scan.clock), stage("conform"):
                scan.to_align = image_to_align(scan.volume)
        except Exception as error:
            person.failed.append(_failed(scan, settings, error))
        else:
            kept.append(scan)
    person.scans = kept
    return person


def infer_person(
    person: PersonInProgress, predictor: Predictor, settings: RunSettings
) -> PersonInProgress:
    """Segment the scans of a person that show one head; the others are refused."""
    # In an order that is the same for the same scans, so that results are, too.
    volumes = [_volume(scan) for scan in person.scans]
    person.scans = [person.scans[number] for number in in_order(volumes)]
    head = None
    if len(person.scans) > 1:
        with stage("align"):
            heads = heads_of([_aligned(scan) for scan in person.scans])
        head = _most_common(heads, len(person.scans))
        person.failed += _refused(person.scans, heads, head, settings)
        if head is None:
            person.scans = []
            return person
        person.scans = [person.scans[number] for number in head.scans]
    try:
        if len(person.scans) == 1:
            _segment_alone(person.scans[0], predictor, mirror=settings.output.mirror)
        elif person.scans:
            assert head is not None
            person.stretches_percent = head.stretches_percent
            _segment_together(person, head, predictor, mirror=settings.output.mirror)
    except Exception as error:
        # They are segmented together, or not at all.
        person.failed += [_failed(scan, settings, error) for scan in person.scans]
        person.scans = []
    return person


def write_person(
    person: PersonInProgress,
    settings: RunSettings,
    finish: Callable[[CaseInProgress], Entry],
) -> Entry:
    """The entry of a person, with one for each scan; `finish` writes one and never raises."""
    entries = list(person.failed)
    for number, scan in enumerate(person.scans):
        try:
            if person.together is not None:
                _take_result(person, person.together, number)
        except Exception as error:
            entries.append(_failed(scan, settings, error))
            continue
        entries.append(finish(scan))
        # It is as large as all that the others have in common.
        scan.found = None
    return Entry.of(person.case, settings, "done", parts=tuple(entries))


def _take_result(person: PersonInProgress, together: Together, number: int) -> None:
    """Give a scan its result, and what the tables of changes need of it."""
    scan = person.scans[number]
    with timed(scan.clock):
        point = together.time_point(number)
    scan.found = point.prediction
    cases = [case.id for case in person.case.scans]
    years = dict(zip(cases, person.case.years, strict=True))
    digests = {other.case.id: other.digest for other in person.scans}
    volumes = {name: round(mm3, 3) for name, mm3 in point.volumes_mm3.items()}
    scan.longitudinal = {
        "person": person.case.name,
        "group": person.case.group,
        "year": years[scan.case.id],
        "scans": dict(sorted(digests.items())),
        "volumes_mm3": volumes,
    }
    stretch = person.stretches_percent[number]
    if stretch:
        scan.longitudinal["stretch_percent"] = round(stretch, 2)


def _volume(scan: CaseInProgress) -> Volume:
    assert scan.volume is not None
    return scan.volume


def _aligned(scan: CaseInProgress) -> Volume:
    assert scan.to_align is not None
    return scan.to_align


def _failed(scan: CaseInProgress, settings: RunSettings, error: Exception) -> Entry:
    return Entry.failed(scan.case, settings, reason_of(error, where=False))


def _most_common(heads: Sequence[Head], scans: int) -> Head | None:
    """The head that more than half of the scans show; None if none is."""
    if 2 * len(heads[0].scans) > scans:
        return heads[0]
    return None


def _refused(
    scans: Sequence[CaseInProgress],
    heads: Sequence[Head],
    head: Head | None,
    settings: RunSettings,
) -> list[Entry]:
    """A failed entry for each scan that does not show the head of the others."""
    entries: list[Entry] = []
    for other in heads:
        if other is head:
            continue
        compared = _name_to_compare(scans, other, head)
        reason = (
            f"does not show the same head as {compared}, so they are not one person's: "
            "check names and sides, or name the persons in --persons"
        )
        if any(one.is_mirrored for one in heads):
            reason = (
                f"shows the head of {compared} as in a mirror: left and right are exchanged in one "
                "of the two: mend its header, or leave it out"
            )
        cases = [scans[number].case for number in other.scans]
        entries += [Entry.failed(case, settings, reason) for case in cases]
    return entries


def _name_to_compare(
    scans: Sequence[CaseInProgress], other: Head, head: Head | None
) -> str:
    """The first scan of the head that counts; without one, of those that do not show `other`."""
    compared = set(range(len(scans))) - set(other.scans)
    if head is not None:
        compared = set(head.scans)
    return min(scans[number].case.id for number in compared)


def _segment_alone(scan: CaseInProgress, predictor: Predictor, *, mirror: bool) -> None:
    """Segment the only scan that is left, as any scan is."""
    with timed(scan.clock):
        conformed = predictor.prepare(_volume(scan))
        scan.found = predictor.infer(conformed, mirror=mirror)
    scan.volume = None
    scan.to_align = None


def _segment_together(
    person: PersonInProgress,
    head: Head,
    predictor: Predictor,
    *,
    mirror: bool,
) -> None:
    """Segment two or more scans in the space of all."""
    scans = person.scans
    work = partial(
        segment_person,
        predictor,
        [_volume(scan) for scan in scans],
        [_aligned(scan) for scan in scans],
        head.alignments,
        mirror=mirror,
    )
    # The time is that of all; the clock of the first has it.
    with timed(scans[0].clock):
        person.together = work()
    for scan in scans:
        scan.volume = None
        scan.to_align = None
