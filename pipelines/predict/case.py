"""One scan, from its file to its outputs, in three steps that a pipeline can overlap."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from trinat.pipelines.common.cases import Case
from trinat.pipelines.common.naming import Product
from trinat.pipelines.predict.ledger import Entry
from trinat.pipelines.predict.outputs import (
    LABEL_TABLE,
    PLAIN_LABEL_TABLE,
    CaseNames,
    Job,
    RunSettings,
    read,
    slices_of,
)
from trinat.pipelines.predict.tables import format_aseg_stats, write_label_table
from trinat.segmentation.errors import is_disk_full, reason_of
from trinat.segmentation.inference import quality
from trinat.segmentation.inference.checks.evidence import Evidence
from trinat.segmentation.inference.segmentation import Segmentation
from trinat.segmentation.inference.segmenter import Segmenter
from trinat.segmentation.io.files import sha256_of, write_whole
from trinat.segmentation.io.volume import write_maps
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.report.case_view import view_result
from trinat.segmentation.report.page import short_name
from trinat.segmentation.report.pictures import draw_mosaic, encoded
from trinat.segmentation.space.views import View
from trinat.segmentation.timing import stage, time_process, timed

_T = TypeVar("_T")

_REPORTED_CHANGE = 0.01


class CaseWorker:
    """The model, loaded once, and what to do with each case."""

    def __init__(self, settings: RunSettings, device: str) -> None:
        self.settings = settings
        self._process = time_process() if settings.timings else None
        views = [View(name) for name in settings.output.views] or None
        with stage("model"):
            self.segmenter = Segmenter(
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
        """All three steps; what fails becomes a failed entry."""
        return self.begin(case)()

    def begin(self, case: Case) -> Callable[[], Entry]:
        """Read and segment; what is returned does the rest, in any thread."""

        def tried(work: Callable[[], _T]) -> _T | Entry:
            try:
                return work()
            except Exception as error:
                return Entry.failed(case, self.settings, reason_of(error, where=False))

        job = tried(lambda: self.infer(self.prepare(read(case, self.settings))))
        return lambda: job if isinstance(job, Entry) else tried(lambda: self.write(job))

    def prepare(self, job: Job) -> Job:
        assert job.volume is not None
        with timed(job.clock), stage("conform"):
            job.conformed = self.segmenter.prepare(job.volume)
        job.volume = None
        return job

    def infer(self, job: Job) -> Job:
        assert job.conformed is not None
        output = self.settings.output
        with timed(job.clock):
            job.found = self.segmenter.infer(
                job.conformed,
                mirror=output.mirror,
                samples=output.samples,
                # The same scan draws the same dropout, in whatever order scans are done.
                seed=int(job.digest[:15], 16),
            )
        job.conformed = None
        return job

    def write(self, job: Job) -> Entry:
        """The outputs of a scan and its entry, which says where the disk has no room for them."""
        try:
            return self._write(job)
        except Exception as error:
            if not is_disk_full(error):
                raise
            reason = reason_of(error, where=False)
            return Entry.of(
                job.case, self.settings, "failed", reason=reason, no_room=True
            )

    def _write(self, job: Job) -> Entry:
        """Restore and judge; write to a folder of the case's own, from which the run moves all."""
        assert job.found is not None
        case, settings, found = job.case, self.settings, job.found
        with timed(job.clock):
            changes: dict[str, float] = {}
            if settings.output.clean:
                with stage("clean"):
                    found, changes = found.cleaned()
            with stage("restore"):
                _ = found.indices
            with stage("grade"):
                result = self._judge(found, changes)
            with stage("write"):
                # A name of its own: on a cluster a worker given up for dead may still be at it.
                staging = settings.staging / secrets.token_hex(8)
                names = CaseNames(staging, case.id, case.entities, settings.bids)
                names.labels(settings.output, case.path).parent.mkdir(parents=True)
                picture = self._write_all(names, case, found, job.digest)
                result["picture"] = str(picture.relative_to(staging)) if picture else ""
                paths = [path for path in sorted(staging.rglob("*")) if path.is_file()]
                outputs = {
                    str(path.relative_to(staging)): sha256_of(path) for path in paths
                }
                # No output: the run keeps it for the most doubtful scans alone.
                if picture:
                    _write_slices(staging / slices_of(case.id), found)
                if not self._has_label_table:
                    by_index = settings.output.format == "index"
                    table = LABEL_TABLE if settings.bids else PLAIN_LABEL_TABLE
                    write_label_table(staging / table, found.scheme, by_index=by_index)
                    self._has_label_table = True
        timings = {
            name: round(s, 4) for name, (s, _) in job.clock.take().items() if name
        }
        return Entry.of(
            case,
            settings,
            "done",
            input_sha256=job.digest,
            outputs=outputs,
            result=result,
            timings_s=timings,
            staged=str(staging),
            worker=f"{socket.gethostname()}:{os.getpid()}:{self.segmenter.device}",
            spent=self._process.take() if self._process else {},
        )

    def _judge(self, found: Segmentation, changes: dict[str, float]) -> dict[str, Any]:
        """All numbers that the group's tables show."""
        volumes = found.volumes_mm3
        evidence = Evidence.of(found)
        verdict = quality.grade_by(evidence, self._limits)
        result: dict[str, Any] = {
            "model": self.segmenter.model.name,
            "grade": verdict.name,
            "reasons": list(verdict.reasons),
            "structure_grades": dict(verdict.structures),
            "notes": list(found.notes),
            "total_brain_mm3": round(quality.total_brain_mm3(found.scheme, volumes), 3),
            "volumes_mm3": {name: round(volume, 3) for name, volume in volumes.items()},
            "tissue_contrast": _rounded(quality.tissue_contrast(evidence)),
        }
        if pseudo := self.segmenter.model.info.training.pseudo_labels:
            result["pseudo_labels"] = pseudo
        doubts: dict[str, np.ndarray] = {}
        if found.agreement is not None:
            result["mean_agreement"] = _rounded(quality.mean_agreement(found))
            doubts["agreement"] = found.agreement
        if found.uncertainty is not None:
            for name in ("iou", "pairwise_dice", "volume_cv"):
                doubts[name] = getattr(found.uncertainty, name)
        for name, values in doubts.items():
            result[name] = {
                label.name: _rounded(float(values[label.index]))
                for label in found.scheme.labels[1:]
                if label.name in volumes
            }
        cleaned = {
            name: round(c, 4) for name, c in changes.items() if c > _REPORTED_CHANGE
        }
        if cleaned:
            result["cleaned"] = cleaned
            changed = ", ".join(
                f"{name} {share:.0%}" for name, share in cleaned.items()
            )
            result["notes"].append(f"clean-up changed {changed}")
        return result

    def _write_all(
        self, names: CaseNames, case: Case, found: Segmentation, digest: str
    ) -> Path | None:
        """Every file of a case; the path of its picture."""
        also: dict[str, Any] = dict.fromkeys(case.also, True)
        output = replace(self.settings.output, **also)
        source = f"bids:raw:{case.shown}"
        origin: dict[str, Any] = {"Model": self.segmenter.model.name}
        origin |= {
            "ModelSHA256": self.settings.model_sha256,
            "TrinatVersion": version("trinat"),
        }
        if self.settings.bids:
            origin = {"SpatialReference": source, "Sources": [source]} | origin
        labels = found.labels if output.format == "aseg" else found.indices
        labels.write(names.labels(output, case.path), labels=True)
        if self.settings.bids:
            _write_json(names.path(Product.LABELS, ".json"), origin)
        if output.wants(Product.STATS):
            table = format_aseg_stats(
                case.stem, found.scheme, found.voxels, found.voxel_mm3
            )
            write_whole(names.path(Product.STATS), table)
        if output.wants(Product.ENTROPY):
            found.entropy.write(names.path(Product.ENTROPY))
        if output.wants(Product.PROBABILITIES):
            # One 4D file, background first, and what each of its maps is of, as BIDS has it: by
            # the abbreviations of the label table that lies beside the label maps.
            known = [
                label
                for label in found.scheme.labels
                if label.name not in found.not_predicted
            ]
            maps = (found.probabilities(label.name) for label in known)
            write_maps(names.path(Product.PROBABILITIES), maps, len(known))
            label_map = {"LabelMap": [label.abbreviation for label in known]}
            _write_json(names.path(Product.PROBABILITIES, ".json"), origin | label_map)
        if output.wants(Product.DICOM_SEG):
            from trinat.segmentation.io.dicom_seg import write_seg

            name, unknown = self.segmenter.model.name, found.not_predicted
            what = (found.indices, found.scheme, case.path, case.series)
            path = names.path(Product.DICOM_SEG)
            write_seg(path, *what, digest=digest, model=name, left_out=unknown)
        if not output.wants(Product.PICTURE):
            return None
        picture = names.path(Product.PICTURE)
        with stage("picture"):
            drawn = draw_mosaic(
                found.image, found.working, found.scheme, title=case.stem
            )
            write_whole(picture, encoded(drawn, "PNG"))
        return picture


@stage("picture")
def _write_slices(path: Path, found: Segmentation) -> None:
    """What the page of the run shows of a scan, its most doubtful structure first."""
    labels = found.scheme.labels
    focus = 0
    if found.agreement is not None:
        voxels = np.bincount(found.working.data.ravel(), minlength=len(labels))
        agreement = np.where(voxels > 0, np.nan_to_num(found.agreement), np.inf)
        focus = 1 + int(np.argmin(agreement[1:]))
    view = asdict(view_result(found.image, found.working, focus=focus))
    del view["truth"], view["still_png"]
    palette = {
        "colors": [k.color for k in labels],
        "names": [short_name(k.name) for k in labels],
    }
    path.parent.mkdir()
    _write_json(path, view | {"palette": palette})


def _rounded(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else round(value, 4)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=2) + "\n")
