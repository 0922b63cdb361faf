"""Segmentation of one case, from file to outputs, in steps that a pipeline can overlap.

A case is a scan, or all scans of a participant, which are segmented together.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter

from natsort import natsorted

from trinat.pipelines.predict.case_files import (
    FURTHER_RESULTS,
    CaseFiles,
    by_name,
    judge,
)
from trinat.pipelines.predict.case_in_progress import (
    CaseInProgress,
    ScanInProgress,
    failed_entries,
    failed_entry,
    read,
)
from trinat.pipelines.predict.settings import RunSettings
from trinat.pipelines.study.cases import Case, Participant, Work
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.record import EXCLUDED_GRADES, TimePoint
from trinat.segmentation.errors import is_disk_full, reason_of
from trinat.segmentation.inference import quality
from trinat.segmentation.inference.measuring import measure_parcels
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.longitudinal.lesions import on_grid, sites_of
from trinat.segmentation.longitudinal.participant import (
    image_to_align,
    in_order,
    segment_participant,
)
from trinat.segmentation.longitudinal.space import Head, heads_of
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.space.views import View
from trinat.segmentation.timing import stage, time_process, timed

# Note on the only scan of a participant in a longitudinal run.
_ONLY_SCAN = "segmented alone, because this participant has no other scan in this run"


class CaseWorker:
    """Segmenter of cases: loads the model once and takes each case from its file to its outputs.

    The steps are `read`, `prepare`, `infer` and `write`, so that a pipeline can overlap those of
    several cases. `begin` does all but the last.
    """

    def __init__(self, settings: RunSettings, device: str) -> None:
        self.settings = settings
        self._process_clock = time_process() if settings.timings else None
        views = [View(name) for name in settings.output.views] or None
        with stage("model"):
            self._predictor = Predictor(
                load_model(settings.model, views),
                device=device,
                precision=settings.output.precision,
                views=views,
                batch=settings.batch,
                allow_cpu=settings.allow_cpu,
                parcels=settings.output.parcels,
                lesions=settings.output.lesions,
            )
        self._limits = quality.limits_of(self._predictor.model.info)
        self._parcel_limits = self._limits
        if self._predictor.parcels_model is not None:
            self._parcel_limits = quality.limits_of(self._predictor.parcels_model.info)
        self._has_label_table = False

    def begin(self, case: Work) -> Callable[[], list[Entry]]:
        """Read and segment a case; return a function that writes its outputs.

        The function returns the rows for the ledger, an entry for each scan of the case; they are
        failed entries if a step fails. It may be called in any thread.
        """
        try:
            begun = read(case, self.settings)
            begun = self.prepare(begun)
            begun = self.infer(begun)
        except Exception as error:
            failed = self._failed(case, error)
            return lambda: failed
        return partial(self.write, begun)

    def _failed(self, case: Work, error: Exception) -> list[Entry]:
        return failed_entries(case, self.settings, reason_of(error, where=False))

    def prepare(self, begun: CaseInProgress) -> CaseInProgress:
        """Resample a scan to the grid of the networks, usually of 1 mm in RAS orientation.

        The result is in `ScanInProgress.conformed`. Each scan of a participant only gets an image
        to align it with the others, `to_align`. Its volume stays as it was read, because it is
        resampled only once, to the common space. If this fails for a scan, the scan is replaced by
        a failed entry, and the others continue.
        """
        if not isinstance(begun.case, Participant):
            self._prepare_scan(begun.scans[0])
            return begun
        kept = []
        for scan in begun.scans:
            try:
                with timed(scan.clock), stage("conform"):
                    scan.to_align = image_to_align(_volume(scan))
            except Exception as error:
                begun.failed.append(failed_entry(scan.case, self.settings, error))
            else:
                kept.append(scan)
        begun.scans = kept
        return begun

    def _prepare_scan(self, scan: ScanInProgress) -> None:
        with timed(scan.clock), stage("conform"):
            scan.conformed = self._predictor.prepare(_volume(scan))
        scan.volume = None

    def infer(self, begun: CaseInProgress) -> CaseInProgress:
        """Segment a resampled scan, or all scans of a participant in their common space.

        The segmentation is in `ScanInProgress.found`, or in `together` for a participant.
        """
        if isinstance(begun.case, Participant):
            self._infer_participant(begun)
        else:
            self._infer_scan(begun.scans[0])
        return begun

    def _infer_scan(self, scan: ScanInProgress) -> None:
        """Segment a resampled scan; release the resampled image, which is as large as the scan."""
        assert scan.conformed is not None
        output = self.settings.output
        # Seed by content, so that dropout does not depend on the order of scans.
        seed = int(scan.digest[:15], 16)
        with timed(scan.clock):
            scan.found = self._predictor.infer(
                scan.conformed,
                mirror=output.mirror,
                samples=output.samples,
                seed=seed,
            )
        scan.conformed = None

    def write(self, begun: CaseInProgress) -> list[Entry]:
        """Write the outputs of all segmented scans of a case.

        Returns the rows for the ledger, an entry for each scan. If writing fails, the entry has
        failed; its `no_room` is True if the disk is full.
        """
        entries = list(begun.failed)
        for number, scan in enumerate(begun.scans):
            try:
                _take_result(begun, number)
                entries.append(self._write(scan))
            except Exception as error:
                (failed,) = self._failed(scan.case, error)
                entries.append(replace(failed, no_room=is_disk_full(error)))
            # Release the prediction: it takes as much memory as all that the scans share.
            scan.found = None
        _match_lesions(begun.scans)
        return entries

    def _write(self, scan: ScanInProgress) -> Entry:
        """Map the segmentation to the scan's own grid, grade it and write its files.

        The files are in a new folder below the run's staging folder, from where the run moves them
        into place. Returns the entry for the ledger.
        """
        assert scan.found is not None
        smallest_mm3 = self.settings.output.smallest_lesion_mm3
        found = replace(scan.found, smallest_lesion_mm3=smallest_mm3)
        changes: dict[str, float] = {}
        with timed(scan.clock):
            if self.settings.output.clean:
                with stage("clean"):
                    found, changes = found.cleaned()
            with stage("restore"):
                # Labels in the scan's own space are computed on first access: do it inside this
                # stage.
                _ = found.indices
            with stage("grade"):
                result, volumes = judge(
                    found, changes, self._predictor.model, self._limits
                )
                if found.parcel_map is not None:
                    parcels = measure_parcels(found, self._parcel_limits.agreement)
                    result.parcels = by_name(parcels)
                for name, measure_further in FURTHER_RESULTS.items():
                    if not getattr(self.settings.output, name):
                        continue
                    with stage(name):
                        further = measure_further(found)
                    setattr(result, name, further)
                    result.measures_mm3 |= further.measures_mm3()
                    result.notes += [f"{name}: {reason}" for reason in further.reasons]
            if scan.longitudinal is not None and self.settings.output.lesions:
                scan.longitudinal.voxel_mm3 = found.voxel_mm3
                numbers = on_grid(found.lesions.numbers, found.plan.working)
                scan.lesions = (numbers, found.lesions.count)
                assert result.lesions is not None
                grades = {result.grade, result.lesions.grade}
                scan.has_rejected_lesions = not grades.isdisjoint(EXCLUDED_GRADES)
            # Use a unique name: a worker that was given up for dead may still be writing.
            staging = self.settings.staging / secrets.token_hex(8)
            with stage("write"):
                files = CaseFiles(
                    staging,
                    scan.case,
                    found,
                    volumes,
                    self.settings,
                    sources=scan.together or (scan.case,),
                    digest=scan.digest,
                    result=result,
                )
                outputs = files.write_all(label_table=not self._has_label_table)
                self._has_label_table = True
        result.picture = files.picture
        if scan.longitudinal is not None:
            result.longitudinal = scan.longitudinal
            if self.settings.output.views:
                result.longitudinal.views = self.settings.output.views
        elif self.settings.output.longitudinal:
            result.notes.append(_ONLY_SCAN)
        timings_s = {}
        for name, (wall_s, _) in scan.clock.take().items():
            if name:
                timings_s[name] = round(wall_s, 4)
        return replace(
            Entry.of(scan.case, self.settings, "done"),
            input_sha256=scan.digest,
            outputs=outputs,
            result=result,
            timings_s=timings_s,
            staged=str(staging),
            worker=f"{socket.gethostname()}:{os.getpid()}:{self._predictor.device}",
            spent={} if self._process_clock is None else self._process_clock.take(),
        )

    def _infer_participant(self, participant: CaseInProgress) -> None:
        """Segment together the scans of a participant that show the same head.

        Scans that show another head become failed entries, and so do all scans if this fails.
        """
        # Sort the scans, so that the results do not depend on the order of input.
        volumes = [_volume(scan) for scan in participant.scans]
        participant.scans = [participant.scans[number] for number in in_order(volumes)]
        head = None
        if len(participant.scans) > 1:
            with stage("align"):
                heads = heads_of([_to_align(scan) for scan in participant.scans])
            # The participant's head is the head that more than half of the scans show, if there is
            # one.
            if 2 * len(heads[0].scans) > len(participant.scans):
                head = heads[0]
            for case, reason in _find_mismatches(participant.scans, heads, head):
                participant.failed.append(Entry.unusable(case, self.settings, reason))
            kept = () if head is None else head.scans
            participant.scans = [participant.scans[number] for number in kept]
        try:
            if len(participant.scans) == 1:
                # A single remaining scan is segmented like any other scan.
                self._prepare_scan(participant.scans[0])
                self._infer_scan(participant.scans[0])
            elif participant.scans:
                assert head is not None
                participant.stretches_percent = head.stretches_percent
                # The scans are timed together, on the clock of the first scan.
                with timed(participant.scans[0].clock):
                    participant.together = segment_participant(
                        self._predictor,
                        [_volume(scan) for scan in participant.scans],
                        [_to_align(scan) for scan in participant.scans],
                        head.alignments,
                        mirror=self.settings.output.mirror,
                    )
        except Exception as error:
            # The scans are segmented together, so all of them fail.
            for scan in participant.scans:
                participant.failed += self._failed(scan.case, error)
            participant.scans = []
        for scan in participant.scans:
            scan.volume = None
            scan.to_align = None


def _volume(scan: ScanInProgress) -> Volume:
    assert scan.volume is not None
    return scan.volume


def _to_align(scan: ScanInProgress) -> Volume:
    assert scan.to_align is not None
    return scan.to_align


def _find_mismatches(
    scans: Sequence[ScanInProgress], heads: Sequence[Head], head: Head | None
) -> list[tuple[Case, str]]:
    """Return the scans that do not show the participant's head, each with the reason to refuse it.

    `heads` are all heads that the scans show, each with the indices of its scans; `head` is the one
    that more than half of the scans show, None if there is none.
    """
    refused = []
    for other in heads:
        if other is head:
            continue
        compared = set(range(len(scans))) - set(other.scans)
        if head is not None:
            compared = set(head.scans)
        first = min(scans[number].case.id for number in compared)
        reason = (
            f"does not show the same head as {first}, so they are not one participant's: "
            "check names and sides, or name the participants in --sessions"
        )
        if any(one.is_mirrored for one in heads):
            reason = (
                f"shows the head of {first} as in a mirror: left and right are exchanged in one "
                "of the two: mend its header, or leave it out"
            )
        refused += [(scans[number].case, reason) for number in other.scans]
    return refused


def _match_lesions(scans: Sequence[ScanInProgress]) -> None:
    """Set which lesions of a participant's scans lie at one place, if lesions were requested."""
    maps = []
    counts = []
    points = []
    rejected = []
    for scan in scans:
        # A scan whose files could not be written may have none.
        if scan.lesions is not None and scan.longitudinal is not None:
            numbers, count = scan.lesions
            maps.append(numbers)
            counts.append(count)
            points.append(scan.longitudinal)
            if scan.has_rejected_lesions:
                rejected.append(len(maps) - 1)
    if not maps:
        return
    for point, sites in zip(points, sites_of(maps, counts, rejected), strict=True):
        point.lesion_sites = sites


def _take_result(begun: CaseInProgress, number: int) -> None:
    """Take a scan's part of the joint segmentation of its participant.

    `number` is the index of the scan. Its `found`, `together` and `longitudinal` (the data for the
    tables of changes) are set. A scan that was segmented by itself has its result already.
    """
    participant = begun.case
    if begun.together is None or not isinstance(participant, Participant):
        return
    scan = begun.scans[number]
    with timed(scan.clock):
        point = begun.together.time_point(number)
    scan.found = point.prediction
    together = [other.case for other in begun.scans]
    scan.together = tuple(natsorted(together, key=attrgetter("id")))
    cases = [case.id for case in participant.scans]
    years = dict(zip(cases, participant.years, strict=True))
    digests = {other.case.id: other.digest for other in begun.scans}
    volumes = {name: round(mm3, 3) for name, mm3 in point.volumes_mm3.items()}
    scan.longitudinal = TimePoint(
        participant=participant.name,
        group=participant.group,
        year=years[scan.case.id],
        scans=dict(sorted(digests.items())),
        volumes_mm3=volumes,
    )
    stretch = begun.stretches_percent[number]
    if stretch:
        scan.longitudinal.stretch_percent = round(stretch, 2)
