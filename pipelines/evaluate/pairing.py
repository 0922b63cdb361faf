"""Which prediction belongs to which truth, how we know, and how they compare.

Each pair is measured in a process a job; one that fails says why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipelines.common.discovery import ScanFile, refuse_changed
from pipelines.common.process import isolated
from segmentation.data.sources.base import natural_order
from segmentation.errors import ConfigError, GeometryError, TrinatError
from segmentation.io.files import read_rows
from segmentation.io.orientation import TrustAffine
from segmentation.io.volume import Volume
from segmentation.labels.scheme import load_scheme
from segmentation.metrics.common_grid import drawn_slices, labelled_slices, on_grid_of
from segmentation.metrics.pair import Measurement, compare


@dataclass(frozen=True)
class Pair:
    truth: ScanFile
    prediction: ScanFile
    how: str


@dataclass(frozen=True)
class Pairing:
    pairs: tuple[Pair, ...]
    truths_alone: tuple[ScanFile, ...]
    predictions_alone: tuple[ScanFile, ...]


def pair_files(
    truths: Iterable[ScanFile], predictions: Iterable[ScanFile], *, by_order: bool = False
) -> Pairing:
    """Pair by the most specific rule that names one file on each side, then the next.

    `by_order`: where no name says anything and both sides have equally many files.
    """
    left, right = list(truths), list(predictions)
    pairs: list[Pair] = []

    def take(found: Iterable[tuple[ScanFile, ScanFile]], how: str) -> None:
        pairs.extend(Pair(truth, prediction, how) for truth, prediction in found)
        left[:] = [t for t in left if not any(t is pair.truth for pair in pairs)]
        right[:] = [p for p in right if not any(p is pair.prediction for pair in pairs)]

    for how, key in _RULES:
        take(_matches(left, right, key), how)
    if not pairs:
        take(_by_beginning(left, right), "beginning of the name")
    by_order = by_order or len(left) == 1
    if by_order and not pairs and len(left) == len(right) and all(map(_compatible, left, right)):
        take(zip(left, right, strict=True), "natural order of names that do not match: check it")
    pairs.sort(key=lambda pair: natural_order(pair.truth.name))
    return Pairing(tuple(pairs), tuple(left), tuple(right))


Key = Callable[[ScanFile], object]


_RULES: tuple[tuple[str, Key], ...] = (
    ("BIDS entities", lambda file: file.identity or None),
    ("name", lambda file: file.name),
    ("subject and session", lambda file: (file.subject, file.session)),
    ("subject", lambda file: file.subject),
)


def _matches(
    left: list[ScanFile], right: list[ScanFile], key: Key
) -> list[tuple[ScanFile, ScanFile]]:
    """Pairs of files that alone have a key on their side; sessions never contradict."""
    theirs = _alone(right, key)
    return [
        (truth, theirs[value])
        for value, truth in _alone(left, key).items()
        if value in theirs and _compatible(truth, theirs[value])
    ]


def _alone(files: list[ScanFile], key: Key) -> dict[object, ScanFile]:
    groups: dict[object, list[ScanFile]] = defaultdict(list)
    for file in files:
        groups[key(file)].append(file)
    return {value: found[0] for value, found in groups.items() if value and len(found) == 1}


def _compatible(one: ScanFile, other: ScanFile) -> bool:
    """Whether no entity that both names carry differs: session 1 is not session 2."""
    theirs = dict(other.identity)
    same = all(theirs.get(key, value) == value for key, value in one.identity)
    return same and (not one.session or not other.session or one.session == other.session)


def _by_beginning(left: list[ScanFile], right: list[ScanFile]) -> list[tuple[ScanFile, ScanFile]]:
    """`case_1` belongs to `case_1_seg`: one name begins the other, up to a separator, and only
    one does."""
    candidates = []
    for truth, prediction in product(left, right):
        short, long = sorted((truth.name, prediction.name), key=len)
        if long.startswith(short) and not long[len(short) : len(short) + 1].isalnum():
            candidates.append((truth, prediction))
    return [
        (t, p)
        for t, p in candidates
        if sum(t is other for other, _ in candidates) == 1
        and sum(p is other for _, other in candidates) == 1
    ]


# Measuring ----------------------------------------------------------------------------------

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


def measure_all(
    tasks: Sequence[Task],
    jobs: int,
    finished: Callable[[Done, int, int], object] = lambda done, so_far, total: None,
) -> list[Done]:
    """Results in the order of tasks; `finished` hears of each as it comes."""
    done = isolated(
        _measure,
        tasks,
        jobs,
        killed=lambda task: Done(task, failure=_KILLED),
        finished=finished,
        torch_threads=None,
    )
    # What comes back from a process holds a copy of its task.
    return [replace(result, task=task) for result, task in zip(done, tasks, strict=True)]


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
        notes = {structure: f"rejected by {who}" for structure, who in rejected.items()}
        rows = [
            replace(row, note=notes.get(row.structure, row.note))
            for row in rows
            if not (row.structure in rejected and row.metric.startswith("labelled_as:"))
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
