"""Measuring pairs of label maps, one process a job; a pair that fails says why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipelines.common.discovery import refuse_changed
from pipelines.common.process import isolated
from pipelines.evaluate.pairing import Pair
from segmentation.errors import ConfigError, GeometryError, TrinatError
from segmentation.io.files import read_rows
from segmentation.io.volume import TrustAffine, Volume
from segmentation.labels.scheme import load_scheme
from segmentation.metrics import Measurement, compare
from segmentation.metrics.common_grid import drawn_slices, labelled_slices, on_grid_of

_KILLED = "its process was killed (out of memory?): try again with fewer --jobs"


@dataclass(frozen=True)
class Mappings:
    """Label numbers of a dataset's own -> FreeSurfer numbers, for either side."""

    truth: Mapping[int, int] = field(default_factory=dict)
    prediction: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """One pair to measure, with all that a worker process needs for it."""

    model: str
    pair: Pair
    scheme: str
    mappings: Mappings
    resample: bool = False
    trust_affine: TrustAffine | None = None
    not_predicted: tuple[str, ...] = ()
    # By the SHA-256 of a prediction: what of it a rater rejected ("" is all of it), and who.
    rejected: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """One pair measured, or the reason why not."""

    task: Task
    measurements: tuple[Measurement, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    failure: str = ""
    rejected: str = ""  # by whom

    @property
    def subject(self) -> str:
        return self.task.pair.truth.name


def read_mapping(path: Path) -> Mappings:
    """A table with columns `number` and `freesurfer`, and maybe `of`: truth (default), prediction
    or both."""
    sides: dict[str, dict[int, int]] = {"truth": {}, "prediction": {}}
    for line, row in enumerate(read_rows(path, required=("number", "freesurfer")), start=2):
        of = row.get("of") or "truth"
        if of not in ("truth", "prediction", "both"):
            raise ConfigError(
                f"line {line}: `of` is truth, prediction or both, not {of!r}", where=path
            )
        try:
            number, freesurfer = int(row["number"]), int(row["freesurfer"])
        except ValueError:
            raise ConfigError(f"line {line}: label numbers are whole numbers", where=path) from None
        for side in ("truth", "prediction") if of == "both" else (of,):
            sides[side][number] = freesurfer
    return Mappings(sides["truth"], sides["prediction"])


def measure_all(tasks: Sequence[Task], jobs: int) -> Iterator[Done]:
    """Results as they come; one process a job, each takes the next pair when it is free."""
    jobs = min(jobs, len(tasks))
    for task, done in isolated(_measure, tasks, jobs, killed=_killed, torch_threads=None):
        # What comes back from a process holds a copy of its task; callers compare by identity.
        yield replace(done, task=task)


def _killed(task: Task) -> Done:
    return Done(task, failure=_KILLED)


def _measure(task: Task) -> Done:
    try:
        truth, true, predicted, facts = read_pair(task)
        scheme = load_scheme(task.scheme)
        rejected = task.rejected.get(facts["prediction_sha256"], {})
        if "" in rejected:
            return Done(task, (), facts, facts.pop("note"), rejected=rejected[""])
        predicted[np.isin(scheme.names, list(rejected))[predicted]] = 0
        measured = labelled_slices(true, predicted, truth.spacing_mm)
        rows = compare(*measured, scheme, (*task.not_predicted, *rejected)).rows()
        rows = [
            replace(row, note=f"rejected by {rejected[row.structure]}")
            if row.structure in rejected
            else row
            for row in rows
        ]
    except (TrinatError, OSError) as error:
        return Done(task, failure=str(error))
    return Done(task, tuple(rows), facts, facts.pop("note"))


def read_pair(task: Task) -> tuple[Volume, NDArray[np.uint8], NDArray[np.uint8], dict[str, str]]:
    """The truth as read, both maps as class indices on its grid, and facts for the table."""
    truth, prediction = (
        Volume.read(file.path, labels=True, axes=file.axes, trust_affine=task.trust_affine)
        for file in (task.pair.truth, task.pair.prediction)
    )
    refuse_changed(task.pair.truth.sha256, truth.source_sha256, task.pair.truth.path)
    facts = {
        "shape": "×".join(map(str, truth.shape)),
        "spacing_mm": "×".join(f"{s:.4g}" for s in truth.spacing_mm),
        "truth_sha256": truth.source_sha256 or "",
        "prediction_sha256": prediction.source_sha256 or "",
    }
    try:
        prediction, note = on_grid_of(prediction, truth, resample=task.resample)
    except GeometryError as error:
        error.where = task.pair.prediction.path.name
        raise
    notes = [note] if note else []
    if min(truth.shape) == 1:
        notes.append("a single slice: distances are within the slice")
    scheme = load_scheme(task.scheme)
    true, predicted = (
        scheme.from_freesurfer(
            volume.data,
            spacing_mm=volume.spacing_mm,
            extra={**extra, **file.numbers},
            where=file.path,
        )
        for volume, extra, file in (
            (truth, task.mappings.truth, task.pair.truth),
            (prediction, task.mappings.prediction, task.pair.prediction),
        )
    )
    if drawn := drawn_slices(true, truth.spacing_mm):
        notes.append(drawn.note)
        predicted = drawn.blank_between(predicted)
    return truth, true, predicted, facts | {"note": "; ".join(notes)}


def scan_of(task: Task) -> dict[str, str]:
    truth = task.pair.truth
    return {"subject": truth.subject, "session": truth.scan, "model": task.model}
