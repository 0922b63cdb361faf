"""Measurement of label maps in a process pool: pairs with manual labels, and single label maps.

Each measurement is independent: an error is recorded in its result and does not stop the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trinat.pipelines.jobs.pool import run_isolated
from trinat.pipelines.jobs.process import cpu_count
from trinat.pipelines.jobs.progress import BatchProgress, no_progress
from trinat.pipelines.study.corrections import (
    Correction,
    is_of_lesions,
    newest,
    structures_beside,
)
from trinat.pipelines.study.files import NO_ENTRY, ScanFile
from trinat.pipelines.study.naming import Product
from trinat.pipelines.study.pairing import Pair
from trinat.pipelines.study.stored import refuse_changed
from trinat.segmentation.errors import GeometryError, TrinatError
from trinat.segmentation.inference.lesions import regions_of
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels import DEFAULT_SCHEME, Csf
from trinat.segmentation.labels.folding import FoldingTable
from trinat.segmentation.labels.lesions import LesionCounts, MatchedLesions
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.metrics.common_grid import (
    drawn_slices,
    labelled_slices,
    on_grid_of,
)
from trinat.segmentation.metrics.counted import Made
from trinat.segmentation.metrics.pair import (
    Measurement,
    compare,
    refuse_without_parcels,
)

# Counts of lesions by kind of class (all, size, region) and class.
CountsByClass = dict[tuple[str, str], LesionCounts]

KILLED = "its process was killed (out of memory?)"


@dataclass(frozen=True)
class Task:
    """One pair of label maps to measure, with everything that a worker process needs for it.

    `model` is the name of the model that made the prediction. `scheme` is the name or file of the
    label scheme to measure with. `truth_numbering` and `numbering` map the label numbers of the
    truth (the manual labels) and of the prediction to FreeSurfer's; None if they are FreeSurfer's.
    With `resample`, a prediction on another grid is resampled to the grid of the truth. `made` says
    which structures the model predicts and how it defines CSF; `truth_csf` is the definition of CSF
    in the truth. `rejected` maps the SHA-256 of a prediction to the structures in it that raters
    have rejected; each structure, or "" for the whole label map, is mapped to the raters' names.
    `structures` is the label map of structures of the same scan, for the regions of lesions; None
    if there is none.
    """

    model: str
    pair: Pair
    scheme: str
    truth_numbering: FoldingTable | None = None
    numbering: FoldingTable | None = None
    resample: bool = False
    trust_affine: TrustAffine | None = None
    made: Made = field(default_factory=Made)
    rejected: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    truth_csf: Csf = "region"
    structures: Path | None = None


@dataclass(frozen=True)
class Done:
    """Outcome of the measurement of one pair of label maps.

    `measurements` are its values, and `lesions` the counts of lesions in masks of lesions. `facts`
    are columns of pairs.csv that describe the files (shape, spacing_mm, truth_sha256,
    prediction_sha256). `note` describes how the two label maps were made comparable. `failure` is
    the error message, and `rejected` has the names of the raters who rejected the whole prediction;
    both are "" for a pair that was measured. `rated_sha256` is the SHA-256 by which ratings
    identify the prediction; "" if it was not read.
    """

    task: Task
    measurements: tuple[Measurement, ...] = ()
    lesions: CountsByClass = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    failure: str = ""
    rejected: str = ""
    rated_sha256: str = ""

    @property
    def subject(self) -> str:
        """Name of the true label map."""
        return self.task.pair.truth.name


@dataclass(frozen=True, eq=False)
class AlignedPair:
    """Both label maps of a pair on the grid of the true one.

    `truth` is the true label map as it was read. `true` and `predicted` (X, Y, Z) are class indices
    of the label scheme. `facts` are columns of pairs.csv that describe the files, and `note`
    describes how the two were made comparable. `rated_sha256` is the SHA-256 by which ratings
    identify the prediction, and `rejected` are its structures that raters have rejected, as in
    `Task.rejected`.
    """

    truth: Volume
    true: NDArray[np.uint8]
    predicted: NDArray[np.uint8]
    facts: dict[str, str]
    note: str
    rated_sha256: str
    rejected: Mapping[str, str]


def measure_all(
    tasks: Sequence[Task],
    jobs: int,
    finished: BatchProgress = no_progress,
) -> list[Done]:
    """Measure pairs of label maps in worker processes; return the outcomes in the order of `tasks`.

    `jobs` is the number of processes. `finished(result, done, total)` is called with each outcome
    as it arrives, the number of outcomes so far, and the number of all tasks.
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
    """Read and compare the two label maps of a pair, and return their measurements.

    `task` has the pair and how to measure it. An error in the files is recorded as `failure` of the
    outcome. If raters have rejected the whole prediction, nothing is measured and `rejected` has
    their names.
    """
    try:
        pair = read_pair(task)
        scheme = load_scheme(task.scheme)
        rejected = pair.rejected
        done = Done(
            task, facts=pair.facts, note=pair.note, rated_sha256=pair.rated_sha256
        )
        if "" in rejected:
            return replace(done, rejected=rejected[""])
        true = pair.true
        predicted = pair.predicted
        spacing_mm = pair.truth.spacing_mm
        if scheme.kind != "lesions":
            true, predicted, spacing_mm = labelled_slices(true, predicted, spacing_mm)
        left_out = task.made.left_out(scheme, rejected, truth_csf=task.truth_csf)
        measured = compare(true, predicted, spacing_mm, scheme, left_out)
        notes = [pair.note]
        lesions: CountsByClass = {}
        if measured.lesions is not None:
            lesions, note = _count_lesions(measured.lesions, task, pair.truth)
            notes.append(note)
    except (TrinatError, OSError) as error:
        return Done(task, failure=str(error))
    note = "; ".join(filter(None, notes))
    rows = tuple(measured.rows())
    return replace(done, measurements=rows, lesions=lesions, note=note)


def _count_lesions(
    lesions: MatchedLesions, task: Task, truth: Volume
) -> tuple[CountsByClass, str]:
    """Count the lesions of a pair of masks in total, by size, and by region if regions are known.

    Regions follow from the label map of structures in `task`, which must fit the grid of `truth`.
    The second result is the reason if regions are not known, else "".
    """
    counts: CountsByClass = {("all", "all"): lesions.counts}
    for name, of_size in lesions.counts_by_size.items():
        counts["size (mm³)", name] = of_size
    if task.structures is None:
        return counts, "regions of lesions not known: no label map of structures"
    scheme = load_scheme(DEFAULT_SCHEME)
    file = replace(task.pair.prediction, path=task.structures)
    to_classes = partial(as_classes, file=file, scheme=scheme, fold=task.numbering)
    try:
        structures, _ = on_grid_of(
            read_labels(file, task.trust_affine),
            truth,
            resample=task.resample,
            to_classes=to_classes,
        )
    except (TrinatError, OSError) as error:
        return counts, f"regions of lesions not known: {error}"
    true, predicted = regions_of([lesions.true, lesions.predicted], structures, scheme)
    for region, of_region in lesions.counts_by_region(true, predicted).items():
        counts["region", region] = of_region
    return counts, ""


def read_pair(task: Task) -> AlignedPair:
    """Read both label maps of a pair, on the grid of the true one, as class indices.

    If the truth is drawn on some slices only, the prediction is set to background between them.
    Raises a TrinatError or OSError if a map cannot be read, if the truth was changed since it was
    recorded in the store, or if the prediction is on another grid and may not be resampled.
    """
    pair = task.pair
    truth = read_labels(pair.truth, task.trust_affine)
    prediction = read_labels(pair.prediction, task.trust_affine)
    refuse_changed(pair.truth.stored.sha256, truth.source_sha256, pair.truth.path)
    facts = {
        "shape": "×".join(str(length) for length in truth.shape),
        "spacing_mm": "×".join(f"{step:.4g}" for step in truth.spacing_mm),
        "truth_sha256": truth.source_sha256 or "",
        "prediction_sha256": prediction.source_sha256 or "",
    }
    scheme = load_scheme(task.scheme)
    true = as_classes(truth, pair.truth, scheme, task.truth_numbering)
    to_classes = partial(
        as_classes, file=pair.prediction, scheme=scheme, fold=task.numbering
    )
    notes = []
    try:
        prediction, note = on_grid_of(
            prediction, truth, resample=task.resample, to_classes=to_classes
        )
    except GeometryError as error:
        error.where = pair.prediction.path.name
        raise
    if note:
        notes.append(note)
    if min(truth.shape) == 1:
        notes.append("a single slice: distances are within the slice")
    predicted = prediction.data
    slices = None
    if scheme.kind != "lesions":
        slices = drawn_slices(true, truth.spacing_mm)
    if slices is not None:
        # The truth is labelled on some slices only and unknown between them.
        notes.append(slices.note)
        predicted = slices.blank_between(predicted)
    digest = _rated_sha256(pair.prediction, facts["prediction_sha256"])
    rejected = task.rejected.get(digest, {})
    note = "; ".join(notes)
    return AlignedPair(truth, true, predicted, facts, note, digest, rejected)


def read_labels(file: ScanFile, trust_affine: TrustAffine | None) -> Volume:
    """Read a label map with the numbers that it has on disk.

    The orientation is taken from `file.stored` if a store has recorded it there, and otherwise from
    the header. NaN and infinite voxels become 0 if they did in the store, and are refused
    otherwise. `trust_affine` is the user's choice of the affine to use if the header does not
    decide: "sform", "qform" or "header"; None if not given.
    """
    return Volume.read(
        file.path,
        labels=True,
        axes=file.stored.axes,
        trust_affine=trust_affine,
        fill_nonfinite=file.stored.fill_nonfinite,
    )


def as_classes(
    labels: Volume,
    file: ScanFile,
    scheme: LabelScheme,
    fold: FoldingTable | None,
) -> NDArray[np.uint8]:
    """Convert a label map to the class indices of a label scheme, (X, Y, Z).

    `fold` maps the label map's numbers to FreeSurfer's; None if they are FreeSurfer's. If `file`
    comes from a store, the mapping recorded there (`file.stored`) is used instead.
    Raises EvaluationError if the scheme has parcels of the cortex and the label map has none.
    """
    classes = scheme.from_freesurfer(
        labels.data,
        spacing_mm=labels.spacing_mm,
        extra=file.stored.numbers,
        fold=file.stored.fold or fold,
        where=file.path,
    )
    refuse_without_parcels(classes, scheme, file.path)
    return classes


def scan_of(task: Task) -> dict[str, str]:
    """Return the columns subject, session and model, which identify a scan in the tables.

    They are taken from the true label map of the pair in `task`.
    """
    truth = task.pair.truth
    return {
        "subject": truth.participant,
        "session": truth.session,
        "model": task.model,
    }


def _rated_sha256(file: ScanFile, sha256: str) -> str:
    """Return the SHA-256 by which the ratings identify a label map.

    `file` is the label map that is measured and `sha256` its hash. Parcels and lesions have no
    ratings of their own: raters see the label map of structures that `trinat predict` wrote beside
    them, with its correction if there is one, and its SHA-256 is then returned. For all others it
    is `sha256`.
    """
    structures = structures_beside(file.path)
    if is_of_lesions(file.result):
        structures = file.output(Product.LABELS)
    if structures is None:
        return sha256
    return sha256_of(newest(structures, file.entry.input_sha256))


@dataclass(frozen=True)
class MapVolumes:
    """Volumes of the structures in one label map, or the reason why they could not be measured.

    `volumes_mm3` maps each structure of the label scheme to its volume in mm³; it is empty if
    the label map could not be measured, and then `failure` has the reason. `sha256` is the hash by
    which ratings identify the label map; "" if it could not be read.
    """

    file: ScanFile
    volumes_mm3: Mapping[str, float]
    failure: str = ""
    sha256: str = ""

    @property
    def subject(self) -> str:
        """Name of the label map."""
        return self.file.name


@dataclass(frozen=True)
class _MapTask:
    """A label map to measure, with everything that a worker process needs for it.

    `scheme` is the name or file of the label scheme, and `trust_affine` the user's choice of the
    affine to use if the header does not decide; None if not given.
    """

    file: ScanFile
    scheme: str
    trust_affine: TrustAffine | None


def measure_volumes(
    files: Sequence[ScanFile],
    scheme: str,
    trust_affine: TrustAffine | None,
    jobs: int | None,
    finished: BatchProgress,
) -> list[MapVolumes]:
    """Measure the volumes of the structures in label maps; return them in the order of `files`.

    `scheme` is the name or file of a label scheme. `jobs` is the number of processes, by default
    that of the processors. `finished(result, done, total)` is called with each result as it
    arrives, the number of results so far, and the number of all files. A file that cannot be read
    gives a result with a `failure`.
    """
    # Ledger entries stay in this process: workers do not need them, and they are large.
    tasks = [
        _MapTask(replace(file, entry=NO_ENTRY), scheme, trust_affine) for file in files
    ]
    measured = run_isolated(
        _measure_map,
        tasks,
        jobs or cpu_count(),
        killed=lambda task: MapVolumes(task.file, {}, f"{KILLED}: use fewer --jobs"),
        finished=finished,
        torch_threads=None,
    )
    return [
        replace(volumes, file=file)
        for volumes, file in zip(measured, files, strict=True)
    ]


def _measure_map(task: _MapTask) -> MapVolumes:
    """Return the volume of each structure of the label scheme in one label map.

    `task` has the label map and the scheme. A structure that the label map does not have gets 0. An
    error in the file is recorded as `failure`.
    """
    file = task.file
    scheme = load_scheme(task.scheme)
    try:
        labels = Volume.read(file.path, labels=True, trust_affine=task.trust_affine)
        sha256 = _rated_sha256(file, labels.source_sha256 or "")
        if file.corrects is not None:
            labels = Correction(file.path, file.corrects, None).read()
        classes = as_classes(labels, file, scheme, None)
    except (TrinatError, OSError) as error:
        return MapVolumes(file, {}, str(error))
    # `bincount` widens its input to 64 bits, 134 MB for a whole 256 cube: leave background out.
    flat = classes.ravel("K")
    voxels = np.bincount(flat[flat > 0], minlength=len(scheme))
    volumes_mm3 = {}
    for label in scheme.labels[1:]:
        volumes_mm3[label.name] = float(voxels[label.index] * labels.grid.voxel_mm3)
    return MapVolumes(file, volumes_mm3, sha256=sha256)
