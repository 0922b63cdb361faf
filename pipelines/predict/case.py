"""One scan, from its file to its outputs, in steps that a pipeline can overlap."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from trinat.pipelines.predict.case_files import CaseFiles, write_slices
from trinat.pipelines.predict.case_in_progress import (
    CaseInProgress,
    PersonInProgress,
    read,
)
from trinat.pipelines.predict.case_result import judge
from trinat.pipelines.predict.entry import Entry
from trinat.pipelines.predict.outputs import (
    LABEL_TABLE,
    PLAIN_LABEL_TABLE,
    CaseNames,
    slices_of,
)
from trinat.pipelines.predict.person_case import (
    ONLY_SCAN,
    infer_person,
    prepare_person,
    write_person,
)
from trinat.pipelines.predict.settings import RunSettings
from trinat.pipelines.predict.tables import write_label_table
from trinat.pipelines.scans.cases import Case
from trinat.segmentation.errors import is_disk_full, reason_of
from trinat.segmentation.inference import quality
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.labels.measures import BrainVolumes
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.space.views import View
from trinat.segmentation.timing import stage, time_process, timed


class CaseWorker:
    """The model, loaded once, and what to do with each case."""

    def __init__(self, settings: RunSettings, device: str) -> None:
        self.settings = settings
        self._process_clock = time_process() if settings.timings else None
        views = [View(name) for name in settings.output.views] or None
        with stage("model"):
            self.segmenter = Predictor(
                load_model(settings.model, views),
                device=device,
                precision=settings.output.precision,
                views=views,
                batch=settings.batch,
                allow_cpu=settings.allow_cpu,
            )
        self._limits = quality.limits_of(self.segmenter.model.info)
        self._has_label_table = False

    def do(self, case: Case) -> Entry:
        """All steps of a case; what fails becomes a failed entry."""
        finish = self.begin(case)
        return finish()

    def begin(self, case: Case) -> Callable[[], Entry]:
        """Read and segment a case; the returned function does the rest, in any thread.

        What fails becomes a failed entry.
        """
        try:
            scan = read(case, self.settings)
            scan = self.prepare(scan)
            scan = self.infer(scan)
        except Exception as error:
            failed = self._failed(case, error)
            return lambda: failed
        return partial(self._finish, scan)

    def _finish(self, scan: CaseInProgress | PersonInProgress) -> Entry:
        """Write a scan that was segmented; what fails becomes a failed entry."""
        try:
            return self.write(scan)
        except Exception as error:
            return self._failed(scan.case, error)

    def _failed(self, case: Case, error: Exception) -> Entry:
        return Entry.failed(case, self.settings, reason_of(error, where=False))

    def prepare(
        self, scan: CaseInProgress | PersonInProgress
    ) -> CaseInProgress | PersonInProgress:
        """Bring the scan to the working grid; of a person's, to where they can be aligned."""
        if isinstance(scan, PersonInProgress):
            return prepare_person(scan, self.settings)
        assert scan.volume is not None
        with timed(scan.clock), stage("conform"):
            scan.conformed = self.segmenter.prepare(scan.volume)
        scan.volume = None
        return scan

    def infer(
        self, scan: CaseInProgress | PersonInProgress
    ) -> CaseInProgress | PersonInProgress:
        """Segment the scan on the working grid, or a person's scans in the space of all.

        The scan's digest is the seed of dropout. The conformed image is released here, since it is
        as large as the scan.
        """
        if isinstance(scan, PersonInProgress):
            return infer_person(scan, self.segmenter, self.settings)
        assert scan.conformed is not None
        output = self.settings.output
        # The same scan draws the same dropout, in whatever order scans are done.
        seed = int(scan.digest[:15], 16)
        with timed(scan.clock):
            scan.found = self.segmenter.infer(
                scan.conformed,
                mirror=output.mirror,
                samples=output.samples,
                seed=seed,
            )
        scan.conformed = None
        return scan

    def write(self, scan: CaseInProgress | PersonInProgress) -> Entry:
        """The outputs of a scan and its entry, which says where the disk has no room for them.

        A full disk makes a failed entry with `no_room`; other errors are raised. The entry of a
        person has those of the scans as its parts.
        """
        if isinstance(scan, PersonInProgress):
            return write_person(scan, self.settings, self._finish)
        try:
            return self._write(scan)
        except Exception as error:
            if not is_disk_full(error):
                raise
            reason = reason_of(error, where=False)
            return Entry.of(
                scan.case, self.settings, "failed", reason=reason, no_room=True
            )

    def _write(self, scan: CaseInProgress) -> Entry:
        """Restore and judge; write to a folder of the case's own, from which the run moves all."""
        assert scan.found is not None
        found = scan.found
        changes: dict[str, float] = {}
        with timed(scan.clock):
            if self.settings.output.clean:
                with stage("clean"):
                    found, changes = found.cleaned()
            with stage("restore"):
                # Labels in the scan's own space are computed when they are first asked for.
                _ = found.indices
            with stage("grade"):
                result, volumes = judge(
                    found, changes, self.segmenter.model, self._limits
                )
            # A name of its own: on a cluster a worker given up for dead may still be at it.
            staging = self.settings.staging / secrets.token_hex(8)
            with stage("write"):
                outputs, picture = self._write_files(
                    staging, scan, found, volumes, result
                )
        result["picture"] = picture
        self._say_of_person(scan, result)
        timings_s = {}
        for name, (wall_s, _) in scan.clock.take().items():
            if name:
                timings_s[name] = round(wall_s, 4)
        return Entry.of(
            scan.case,
            self.settings,
            "done",
            input_sha256=scan.digest,
            outputs=outputs,
            result=result,
            timings_s=timings_s,
            staged=str(staging),
            worker=f"{socket.gethostname()}:{os.getpid()}:{self.segmenter.device}",
            spent={} if self._process_clock is None else self._process_clock.take(),
        )

    def _say_of_person(self, scan: CaseInProgress, result: dict[str, Any]) -> None:
        """Add to a result what is known of the scan as one of several of a person."""
        if scan.longitudinal is not None:
            result["longitudinal"] = scan.longitudinal
        elif self.settings.output.longitudinal:
            result["notes"].append(ONLY_SCAN)

    def _write_files(
        self,
        staging: Path,
        scan: CaseInProgress,
        found: Prediction,
        volumes: BrainVolumes,
        result: Mapping[str, Any],
    ) -> tuple[dict[str, str], str]:
        """Write all files of a case below `staging`.

        Returns its outputs (path -> SHA-256) and the path of its picture, "" without one. Slices
        and the label table are no outputs of the case: the run decides whether they stay.
        """
        case = scan.case
        settings = self.settings
        names = CaseNames(staging, case.id, case.entities, settings.bids)
        names.labels(settings.output, case.path).parent.mkdir(parents=True)
        model = self.segmenter.model.name
        files = CaseFiles(names, case, found, volumes, settings, model)
        picture = files.write_all(scan.digest, result)
        outputs = {}
        for path in sorted(staging.rglob("*")):
            if path.is_file():
                outputs[str(path.relative_to(staging))] = sha256_of(path)
        if picture is not None:
            write_slices(staging / slices_of(case.id), found)
        if not self._has_label_table:
            by_index = settings.output.format == "index"
            table = LABEL_TABLE if settings.bids else PLAIN_LABEL_TABLE
            write_label_table(staging / table, found.scheme, by_index=by_index)
            self._has_label_table = True
        if picture is None:
            return outputs, ""
        return outputs, str(picture.relative_to(staging))
