"""Measurement of label maps in a process pool: pairs with a ground truth, and maps alone.

Each is measured on its own: an error is recorded in its result and does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from trinat.pipelines.evaluate.user_tables import Mappings
from trinat.pipelines.jobs.pool import run_isolated
from trinat.pipelines.jobs.process import cpu_count
from trinat.pipelines.study.corrections import Correction, structures_beside
from trinat.pipelines.study.files import ScanFile, refuse_changed
from trinat.pipelines.study.pairing import Pair
from trinat.segmentation.errors import EvaluationError, GeometryError, TrinatError
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels import Csf
from trinat.segmentation.labels.folding import FoldingTable
from trinat.segmentation.labels.scheme import LOBES, LabelScheme, load_scheme
from trinat.segmentation.metrics.common_grid import (
    drawn_slices,
    labelled_slices,
    on_grid_of,
)
from trinat.segmentation.metrics.counted import Made
from trinat.segmentation.metrics.pair import Measurement, compare

KILLED = "its process was killed (out of memory?)"


@dataclass(frozen=True)
class Task:
    """One pair to measure, with all that a worker process needs for it.

    `rejected` has, by the SHA-256 of a prediction, the structures that raters rejected and the
    raters' names; the structure "" stands for the whole label map. `truth_csf` is the truth's
    meaning of CSF.
    """

    model: str
    pair: Pair
    scheme: str
    mappings: Mappings
    resample: bool = False
    trust_affine: TrustAffine | None = None
    made: Made = field(default_factory=Made)
    rejected: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    truth_csf: Csf = "region"


@dataclass(frozen=True)
class Done:
    """Outcome of one pair: its rows, or a `failure`, or the rater who `rejected` it.

    `failure` and `rejected` are empty for a pair that was measured; `facts` are the columns of
    pairs.csv that come from the files.
    """

    task: Task
    measurements: tuple[Measurement, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    failure: str = ""
    rejected: str = ""

    @property
    def subject(self) -> str:
        """The name of the true label map."""
        return self.task.pair.truth.name


@dataclass(frozen=True, eq=False)
class AlignedPair:
    """Both label maps of a pair on the truth's grid.

    `true` and `predicted` are (X, Y, Z) class indices, `facts` columns of the table of pairs, and
    `note` describes how the two were made comparable.
    """

    truth: Volume
    true: NDArray[np.uint8]
    predicted: NDArray[np.uint8]
    facts: dict[str, str]
    note: str


def measure_all(
    tasks: Sequence[Task],
    jobs: int,
    finished: Callable[[Done, int, int], object] = lambda done, so_far, total: None,
) -> list[Done]:
    """Measure pairs in worker processes; results have the order of the tasks.

    `finished(result, done, total)` is called with each result as it arrives.
    """
    results = run_isolated(
        _measure_pair,
        tasks,
        jobs,
        killed=lambda task: Done(
            task, failure=f"{KILLED}: try again with fewer --jobs"
        ),
        finished=finished,
        torch_threads=None,
    )
    # Results from a worker carry a pickled copy of their task; put the original back.
    pairs = zip(results, tasks, strict=True)
    return [replace(result, task=task) for result, task in pairs]


def _measure_pair(task: Task) -> Done:
    """Measure one pair; an error in its files becomes the failure of the result."""
    try:
        pair = read_pair(task)
        scheme = load_scheme(task.scheme)
        digest = rated_sha256(task.pair.prediction, pair.facts["prediction_sha256"])
        rejected = task.rejected.get(digest, {})
        if "" in rejected:
            return Done(task, (), pair.facts, pair.note, rejected=rejected[""])
        true, predicted, spacing_mm = labelled_slices(
            pair.true, pair.predicted, pair.truth.spacing_mm
        )
        left_out = task.made.left_out(scheme, rejected, truth_csf=task.truth_csf)
        rows = compare(true, predicted, spacing_mm, scheme, left_out).rows()
    except (TrinatError, OSError) as error:
        return Done(task, failure=str(error))
    return Done(task, tuple(rows), pair.facts, pair.note)


def read_pair(task: Task) -> AlignedPair:
    """Read both label maps and bring them to one grid, as class indices.

    Raises if a map cannot be read, if the truth differs from its record in the store, or if the
    prediction is on another grid and may not be resampled.
    """
    pair = task.pair
    truth = read_labels(pair.truth, task.trust_affine)
    prediction = read_labels(pair.prediction, task.trust_affine)
    refuse_changed(pair.truth.sha256, truth.source_sha256, pair.truth.path)
    facts = {
        "shape": "×".join(str(length) for length in truth.shape),
        "spacing_mm": "×".join(f"{step:.4g}" for step in truth.spacing_mm),
        "truth_sha256": truth.source_sha256 or "",
        "prediction_sha256": prediction.source_sha256 or "",
    }
    notes = []
    try:
        prediction, note = on_grid_of(prediction, truth, resample=task.resample)
    except GeometryError as error:
        error.where = pair.prediction.path.name
        raise
    if note:
        notes.append(note)
    if min(truth.shape) == 1:
        notes.append("a single slice: distances are within the slice")
    scheme = load_scheme(task.scheme)
    mappings = task.mappings
    true = as_classes(
        truth, pair.truth, scheme, mappings.truth, mappings.truth_numbering
    )
    predicted = as_classes(
        prediction,
        pair.prediction,
        scheme,
        mappings.prediction,
        mappings.prediction_numbering,
    )
    slices = drawn_slices(true, truth.spacing_mm)
    if slices is not None:
        # The truth is labelled on some slices only and unknown between them.
        notes.append(slices.note)
        predicted = slices.blank_between(predicted)
    return AlignedPair(truth, true, predicted, facts, "; ".join(notes))


def read_labels(file: ScanFile, trust_affine: TrustAffine | None) -> Volume:
    """Read a label map as it is on disk; a store may vouch for its axes."""
    return Volume.read(
        file.path,
        labels=True,
        axes=file.axes,
        trust_affine=trust_affine,
    )


def as_classes(
    labels: Volume,
    file: ScanFile,
    scheme: LabelScheme,
    mapping: Mapping[int, int],
    fold: FoldingTable | None,
) -> NDArray[np.uint8]:
    """Return class indices of a label map; a store's metadata takes precedence over options.

    EvaluationError for a map without parcels if the scheme has parcels: none would be found.
    """
    classes = scheme.from_freesurfer(
        labels.data,
        spacing_mm=labels.spacing_mm,
        extra={**mapping, **file.numbers},
        fold=file.fold or fold,
        where=file.path,
    )
    if scheme.has_parcels:
        parcels = [label.index for label in scheme.labels if label.group in LOBES]
        if not np.isin(classes, parcels).any():
            raise EvaluationError(
                f"has no parcels, which {scheme.name} asks for",
                where=file.path,
                remedy="run trinat predict --parcels, or leave --labels out",
            )
    return classes


def scan_of(task: Task) -> dict[str, str]:
    """Return the columns that identify the scan of a row: subject, session and model."""
    truth = task.pair.truth
    return {
        "subject": truth.participant,
        "session": truth.table_session,
        "model": task.model,
    }


def rated_sha256(file: ScanFile, sha256: str) -> str:
    """Return the SHA-256 of the map that raters judge: for parcels, the map of structures."""
    structures = structures_beside(file.path)
    return sha256 if structures is None else sha256_of(structures)


@dataclass(frozen=True)
class MapVolumes:
    """Volumes of one label map in mm³ by structure, or the reason why it was not measured.

    `sha256` is the hash of the file that raters judge; empty if it could not be read.
    """

    file: ScanFile
    volumes_mm3: Mapping[str, float] | None
    failure: str = ""
    sha256: str = ""

    @property
    def subject(self) -> str:
        """The name of the label map."""
        return self.file.name


@dataclass(frozen=True)
class _MapTask:
    """A file, the scheme of its labels, and the orientation headers to trust."""

    file: ScanFile
    scheme: str
    trust_affine: TrustAffine | None


def measure_volumes(
    files: Sequence[ScanFile],
    scheme: str,
    trust_affine: TrustAffine | None,
    jobs: int | None,
    finished: Callable[[MapVolumes, int, int], object],
) -> list[MapVolumes]:
    """Measure label maps in the order of files, and call `finished(result, done, total)` with each.

    `scheme` is the name or file of a label scheme. The default number of `jobs` is the number of
    processors. A file that cannot be read gives a result with its failure.
    """
    tasks = [_MapTask(file, scheme, trust_affine) for file in files]
    return run_isolated(
        _measure_map,
        tasks,
        jobs or cpu_count(),
        killed=lambda task: MapVolumes(task.file, None, f"{KILLED}: use fewer --jobs"),
        finished=finished,
        torch_threads=None,
    )


def _measure_map(task: _MapTask) -> MapVolumes:
    """Measure all the scheme's structures; a structure that is not in the map has 0."""
    file = task.file
    scheme = load_scheme(task.scheme)
    try:
        labels = Volume.read(file.path, labels=True, trust_affine=task.trust_affine)
        sha256 = rated_sha256(file, labels.source_sha256 or "")
        if file.corrects is not None:
            labels = Correction(file.path, file.corrects, None).read()
        classes = as_classes(labels, file, scheme, {}, None)
    except (TrinatError, OSError) as error:
        return MapVolumes(file, None, str(error))
    voxels = np.bincount(classes.ravel(), minlength=len(scheme))
    volumes_mm3 = {}
    for label in scheme.labels[1:]:
        volumes_mm3[label.name] = float(voxels[label.index] * labels.grid.voxel_mm3)
    return MapVolumes(file, volumes_mm3, sha256=sha256)
