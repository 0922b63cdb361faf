"""One scan, from its file to its outputs, in three steps that a pipeline can overlap."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipelines.batch.inputs import Case
from pipelines.batch.ledger import Entry, digest_files
from pipelines.batch.naming import bids_name
from pipelines.batch.settings import RunSettings
from pipelines.batch.stats import format_aseg_stats
from segmentation.errors import TrinatError
from segmentation.files import atomic_path, atomic_text
from segmentation.inference.quality import (
    Limits,
    grade,
    limits_of,
    mean_agreement,
    tissue_contrast,
    total_brain_mm3,
)
from segmentation.inference.segmentation import Segmentation
from segmentation.inference.segmenter import Prepared, Segmenter
from segmentation.labels import LabelScheme
from segmentation.maps import write_maps
from segmentation.views import View
from segmentation.volume import Volume

__all__ = ["CaseWorker", "failure"]

_REPORTED_CHANGE = 0.01
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass
class Job:
    """A case on its way; each step adds what the next needs and drops what it does not."""

    case: Case
    digest: str = ""
    prepared: Prepared | None = None
    found: Segmentation | None = None
    timings: dict[str, float] = field(default_factory=dict)


class CaseWorker:
    """The model, loaded once, and what to do with each case."""

    def __init__(self, settings: RunSettings, device: str) -> None:
        self.settings = settings
        self.segmenter = Segmenter.load(
            settings.model,
            device=device,
            precision=settings.output.precision,
            views=tuple(View(name) for name in settings.output.views) or None,
            batch=settings.batch,
            allow_cpu=settings.allow_cpu,
        )

    def do(self, case: Case) -> Entry:
        """All three steps; what fails becomes a failed entry."""
        try:
            return self.write(self.infer(self.read(case)))
        except Exception as error:
            return failure(case, error, self.settings)

    def read(self, case: Case) -> Job:
        job = Job(case)
        with _timed(job.timings, "read"):
            job.digest = digest_files(case.files)
            volume = Volume.read(
                case.path,
                trust_affine=self.settings.output.trust_affine,
                fill_nonfinite=self.settings.output.fill_nonfinite,
            )
        job.prepared = self.segmenter.prepare(volume)
        return job

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
        """Write to a folder of the case's own, then rename everything into place."""
        assert job.found is not None
        case, settings = job.case, self.settings
        # A name of its own: on a cluster a worker given up for dead may still be at this case.
        staging = settings.staging / secrets.token_hex(8)
        (staging / case.folder).mkdir(parents=True)
        with _timed(job.timings, "write"):
            found, changes = job.found.cleaned() if settings.output.clean else (job.found, {})
            result = _result(found, changes, limits_of(self.segmenter.model.info))
            result["picture"] = self._write_all(staging, case, found)
            paths = [path for path in sorted(staging.rglob("*")) if path.is_file()]
            outputs = {str(path.relative_to(staging)): digest_files([path]) for path in paths}
            (settings.out / case.folder).mkdir(parents=True, exist_ok=True)
            for path in paths:
                path.replace(settings.out / path.relative_to(staging))
            shutil.rmtree(staging)
        timings = found.timings | job.timings
        return _entry(
            case,
            settings,
            status="done",
            input_sha256=job.digest,
            outputs=outputs,
            result=result,
            timings_s={name: round(seconds, 4) for name, seconds in timings.items()},
            worker=f"{socket.gethostname()}:{os.getpid()}:{self.segmenter.device}",
        )

    def _write_all(self, root: Path, case: Case, found: Segmentation) -> str:
        output = self.settings.output
        name = _Names(root, case, self.settings.bids)
        labels = found.labels if output.format == "aseg" else found.indices
        mgz = output.mgz and case.path.suffix.lower() in (".mgz", ".mgh")
        path = name.path("dseg", ".mgz" if mgz else ".nii.gz")
        labels.write(path, labels=True)
        if self.settings.bids:
            _write_json(path, ".nii.gz", _sidecar(case))
        if output.stats:
            with atomic_text(name.path("stats", ".stats", plain="aseg")) as file:
                table = format_aseg_stats(case.stem, found.scheme, found.voxels, found.voxel_mm3)
                file.write(table)
        if output.entropy:
            found.entropy.write(name.path("entropy", ".nii.gz"))
        if output.probabilities:
            self._write_probabilities(name, case, found)
        if not output.picture:
            return ""
        picture = name.path("qc", ".png")
        _draw(picture, case, found)
        return str(picture.relative_to(root))

    def _write_probabilities(self, name: _Names, case: Case, found: Segmentation) -> None:
        """One 4D file, background first, and what each of its maps is of, as BIDS has it."""
        known = [label for label in found.scheme.labels if label.name not in found.not_predicted]
        path = name.path("probseg", ".nii.gz")
        write_maps(path, (found.probabilities(label.name) for label in known), len(known))
        source = _sidecar(case) if self.settings.bids else {}
        # The abbreviations of the label table that lies beside the label maps.
        label_map = {"LabelMap": [label.abbreviation for label in known]}
        _write_json(path, ".nii.gz", source | label_map)


@dataclass(frozen=True)
class _Names:
    root: Path
    case: Case
    bids: bool

    def path(self, suffix: str, ending: str, *, plain: str = "") -> Path:
        """Where a product of this case goes; `plain` is its suffix where names are not BIDS."""
        folder = self.root / self.case.folder
        if not self.bids:
            return folder / f"{self.case.stem}_{plain or suffix}{ending}"
        stem = bids_name(self.case.entities, suffix, space="orig", desc="trinat")
        return folder / f"{stem}{ending}"


def failure(case: Case, error: BaseException, settings: RunSettings) -> Entry:
    """The entry of a case that raised."""
    if isinstance(error, TrinatError):
        # The input is named beside it; its full path is nobody's business in a shared table.
        reason = f"{error.what}: {error.remedy}" if error.remedy else error.what
    elif isinstance(error, MemoryError | torch.OutOfMemoryError):
        reason = "out of memory: close other programs or use a machine with more"
    elif isinstance(error, OSError):
        # By its name alone, too: which half of a pair it is matters.
        name = f"{os.path.basename(os.fsdecode(error.filename))}: " if error.filename else ""  # noqa: PTH119
        remedy = "free some space" if error.errno in _FULL else "check that it is there and yours"
        reason = f"{name}{error.strerror or error}: {remedy}"
    else:
        reason = f"{type(error).__name__}: {error}: a fault of trinat"
    reason = "".join(ch if ch.isprintable() else " " for ch in reason)
    return _entry(case, settings, status="failed", reason=reason)


def _entry(case: Case, settings: RunSettings, **fields: Any) -> Entry:
    return Entry(
        case=case.id,
        input=case.shown,
        model=settings.model_sha256,
        settings=settings.output.digest(),
        finished=datetime.now(UTC).isoformat(timespec="milliseconds"),
        **fields,
    )


def _result(found: Segmentation, changes: dict[str, float], limits: Limits) -> dict[str, Any]:
    """All numbers that the group's tables show."""
    volumes = found.volumes_mm3
    verdict = grade(found, limits)
    brain = total_brain_mm3(found.scheme, volumes)
    result: dict[str, Any] = {
        "grade": verdict.name,
        "reasons": list(verdict.reasons),
        "structure_grades": dict(verdict.structures),
        "notes": list(found.notes),
        "total_brain_mm3": round(brain, 3),
        "volumes_mm3": {name: round(volume, 3) for name, volume in volumes.items()},
    }
    result["tissue_contrast"] = _rounded(tissue_contrast(found))
    if found.agreement is not None:
        result["mean_agreement"] = _rounded(mean_agreement(found))
        result["agreement"] = _by_structure(found.scheme, found.agreement, volumes)
    if found.uncertainty is not None:
        doubt = found.uncertainty
        for name in ("iou", "pairwise_dice", "volume_cv"):
            result[name] = _by_structure(found.scheme, getattr(doubt, name), volumes)
    cleaned = {name: round(share, 4) for name, share in changes.items() if share > _REPORTED_CHANGE}
    if cleaned:
        result["cleaned"] = cleaned
        changed = ", ".join(f"{name} {share:.0%}" for name, share in cleaned.items())
        result["notes"].append(f"clean-up changed {changed}")
    return result


def _by_structure(
    scheme: LabelScheme, values: np.ndarray, known: dict[str, float]
) -> dict[str, float | None]:
    names = (label for label in scheme.labels[1:] if label.name in known)
    return {label.name: _rounded(float(values[label.index])) for label in names}


def _rounded(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else round(value, 4)


def _sidecar(case: Case) -> dict[str, Any]:
    source = f"bids:raw:{case.shown}"
    return {"SpatialReference": source, "Sources": [source]}


def _write_json(image: Path, ending: str, content: dict[str, Any]) -> None:
    with atomic_text(image.with_name(image.name.removesuffix(ending) + ".json")) as file:
        file.write(json.dumps(content, indent=2) + "\n")


def _draw(path: Path, case: Case, found: Segmentation) -> None:
    from segmentation.report.mosaic import draw_mosaic

    figure = draw_mosaic(found.image, found.working, found.scheme, title=case.stem)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=80)


@contextmanager
def _timed(timings: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    timings[name] = time.perf_counter() - start
