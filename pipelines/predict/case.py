"""One scan, from its file to its outputs, in three steps that a pipeline can overlap."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.common.discovery import Case
from pipelines.common.naming import Product
from pipelines.predict.ledger import Entry
from pipelines.predict.outputs import CaseNames, RunSettings
from pipelines.predict.tables import format_aseg_stats, write_label_table
from segmentation.errors import reason_of
from segmentation.inference.quality import (
    grade,
    limits_of,
    mean_agreement,
    tissue_contrast,
    total_brain_mm3,
)
from segmentation.inference.segmentation import Segmentation
from segmentation.inference.segmenter import Prepared, Segmenter
from segmentation.io.files import atomic_path, atomic_text, sha256_of
from segmentation.io.volume import Volume, write_maps
from segmentation.models.checkpoint import load_model
from segmentation.report.pictures import draw_mosaic
from segmentation.space.views import View

__all__ = ["CaseWorker"]

_REPORTED_CHANGE = 0.01


@dataclass
class Job:
    """A case on its way; each step adds what the next needs and drops what it does not."""

    case: Case
    digest: str
    prepared: Prepared | None = None
    found: Segmentation | None = None
    timings: dict[str, float] = field(default_factory=dict)


class CaseWorker:
    """The model, loaded once, and what to do with each case."""

    def __init__(self, settings: RunSettings, device: str) -> None:
        self.settings = settings
        views = [View(name) for name in settings.output.views] or None
        self.segmenter = Segmenter(
            load_model(settings.model, views),
            device=device,
            precision=settings.output.precision,
            views=views,
            batch=settings.batch,
            allow_cpu=settings.allow_cpu,
        )
        self._limits = limits_of(self.segmenter.model.info)
        self._has_label_table = not settings.bids

    def do(self, case: Case) -> Entry:
        """All three steps; what fails becomes a failed entry."""
        try:
            return self.write(self.infer(self.read(case)))
        except Exception as error:
            return self.failed(case, error)

    def failed(self, case: Case, error: Exception) -> Entry:
        return Entry.failed(case, self.settings, reason_of(error, where=False))

    def read(self, case: Case) -> Job:
        timings: dict[str, float] = {}
        with _timed(timings, "read"):
            volume = Volume.read(
                case.path,
                trust_affine=self.settings.output.trust_affine,
                fill_nonfinite=self.settings.output.fill_nonfinite,
            )
        # Taken while it was read: what is in the ledger is what was segmented.
        digest = volume.source_sha256 or ""
        return Job(case, digest, self.segmenter.prepare(volume), timings=timings)

    def infer(self, job: Job) -> Job:
        assert job.prepared is not None
        output = self.settings.output
        job.found = self.segmenter.infer(
            job.prepared,
            mirror=output.mirror,
            samples=output.samples,
            # The same scan draws the same dropout, in whatever order scans are done.
            seed=int(job.digest[:15], 16),
        )
        job.prepared = None
        return job

    def write(self, job: Job) -> Entry:
        """Restore and judge; write to a folder of the case's own, from which the run moves all."""
        assert job.found is not None
        case, settings, found = job.case, self.settings, job.found
        _ = found.indices  # restored to the scan's space, which is timed by itself
        with _timed(job.timings, "judge"):
            found, changes = found.cleaned() if settings.output.clean else (found, {})
            result = self._judge(found, changes)
        with _timed(job.timings, "write"):
            # A name of its own: on a cluster a worker given up for dead may still be at this case.
            staging = settings.staging / secrets.token_hex(8)
            names = CaseNames(staging, case.id, case.entities, settings.bids)
            names.labels(settings.output, case.path).parent.mkdir(parents=True)
            picture = self._write_all(names, case, found)
            result["picture"] = str(picture.relative_to(staging)) if picture else ""
            paths = [path for path in sorted(staging.rglob("*")) if path.is_file()]
            outputs = {str(path.relative_to(staging)): sha256_of(path) for path in paths}
            if not self._has_label_table:
                by_index = settings.output.format == "index"
                write_label_table(staging, found.scheme, by_index=by_index)
                self._has_label_table = True
        timings = found.timings | job.timings
        return Entry.of(
            case,
            settings,
            "done",
            input_sha256=job.digest,
            outputs=outputs,
            result=result,
            timings_s={name: round(seconds, 4) for name, seconds in timings.items()},
            staged=str(staging),
            worker=f"{socket.gethostname()}:{os.getpid()}:{self.segmenter.device}",
        )

    def _judge(self, found: Segmentation, changes: dict[str, float]) -> dict[str, Any]:
        """All numbers that the group's tables show."""
        volumes = found.volumes_mm3
        verdict = grade(found, self._limits)
        result: dict[str, Any] = {
            "model": self.segmenter.model.name,
            "grade": verdict.name,
            "reasons": list(verdict.reasons),
            "structure_grades": dict(verdict.structures),
            "notes": list(found.notes),
            "total_brain_mm3": round(total_brain_mm3(found.scheme, volumes), 3),
            "volumes_mm3": {name: round(volume, 3) for name, volume in volumes.items()},
            "tissue_contrast": _rounded(tissue_contrast(found)),
        }
        doubts: dict[str, np.ndarray] = {}
        if found.agreement is not None:
            result["mean_agreement"] = _rounded(mean_agreement(found))
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
        cleaned = {name: round(c, 4) for name, c in changes.items() if c > _REPORTED_CHANGE}
        if cleaned:
            result["cleaned"] = cleaned
            changed = ", ".join(f"{name} {share:.0%}" for name, share in cleaned.items())
            result["notes"].append(f"clean-up changed {changed}")
        return result

    def _write_all(self, names: CaseNames, case: Case, found: Segmentation) -> Path | None:
        """Every file of a case; the path of its picture."""
        output = self.settings.output
        source = f"bids:raw:{case.shown}"
        origin = {"SpatialReference": source, "Sources": [source]} if self.settings.bids else {}
        labels = found.labels if output.format == "aseg" else found.indices
        labels.write(names.labels(output, case.path), labels=True)
        if origin:
            _write_json(names.path(Product.LABELS, ".json"), origin)
        if output.wants(Product.STATS):
            with atomic_text(names.path(Product.STATS)) as file:
                table = format_aseg_stats(case.stem, found.scheme, found.voxels, found.voxel_mm3)
                file.write(table)
        if output.wants(Product.ENTROPY):
            found.entropy.write(names.path(Product.ENTROPY))
        if output.wants(Product.PROBABILITIES):
            # One 4D file, background first, and what each of its maps is of, as BIDS has it: by
            # the abbreviations of the label table that lies beside the label maps.
            known = [
                label for label in found.scheme.labels if label.name not in found.not_predicted
            ]
            maps = (found.probabilities(label.name) for label in known)
            write_maps(names.path(Product.PROBABILITIES), maps, len(known))
            label_map = {"LabelMap": [label.abbreviation for label in known]}
            _write_json(names.path(Product.PROBABILITIES, ".json"), origin | label_map)
        if not output.wants(Product.PICTURE):
            return None
        picture = names.path(Product.PICTURE)
        figure = draw_mosaic(found.image, found.working, found.scheme, title=case.stem)
        with atomic_path(picture) as temporary:
            figure.savefig(temporary, format="png", dpi=80)
        return picture


def _rounded(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else round(value, 4)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with atomic_text(path) as file:
        file.write(json.dumps(content, indent=2) + "\n")


@contextmanager
def _timed(timings: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    timings[name] = time.perf_counter() - start
