"""Which prediction belongs to which truth, how we know, and how they compare.

Each pair is measured in a process a job; one that fails says why.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trinat.pipelines.common.naming import safe_component
from trinat.pipelines.common.process import isolated
from trinat.pipelines.common.scanfiles import ScanFile, refuse_changed
from trinat.segmentation.data.sources.base import natural_order
from trinat.segmentation.errors import ConfigError, GeometryError, TrinatError
from trinat.segmentation.io.files import read_rows
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.folding import FoldingTable
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.metrics.common_grid import (
    drawn_slices,
    labelled_slices,
    on_grid_of,
)
from trinat.segmentation.metrics.counted import Made
from trinat.segmentation.metrics.pair import Measurement, compare


@dataclass(frozen=True)
class Pair:
    truth: ScanFile
    prediction: ScanFile
    how: str
    is_guess: bool = False  # no name says it: the user is told to check


@dataclass(frozen=True)
class Pairing:
    """Pairs, and what has no partner; `doubts` says of a file (by its path) why, where that is
    not for want of a like name."""

    pairs: tuple[Pair, ...]
    truths_alone: tuple[ScanFile, ...]
    predictions_alone: tuple[ScanFile, ...]
    doubts: Mapping[Path, str] = field(default_factory=dict)

    @property
    def guesses(self) -> list[str]:
        """What to check, a line each; of many pairs the first ones."""
        guessed = [pair for pair in self.pairs if pair.is_guess]
        lines = [
            f"{pair.truth.shown} is compared with {pair.prediction.shown}, by {pair.how}"
            for pair in guessed[:_MOST_NAMED]
        ]
        if len(guessed) > _MOST_NAMED:
            lines.append(
                f"{len(guessed) - _MOST_NAMED} more pairs of that kind are in pairs.csv"
            )
        return lines


def pair_files(
    truths: Iterable[ScanFile], predictions: Iterable[ScanFile], *, guess: bool = False
) -> Pairing:
    """Pair by the most specific rule that names one file on each side, then the next.

    A rule looks at all files, not at those alone that are left: what is not unique is not made so
    by taking others away. The looser readings of names are tried where no stricter one has found a
    pair. `guess`: also by what is left of names whose beginnings and endings differ.
    """
    matching = _Matching(list(truths), list(predictions))
    for how, key in _RULES:
        matching.take(matching.alike(key, key), how)
    if not matching.pairs:
        matching.take_by_one_ending()
    if not matching.pairs:
        matching.take_by_beginning(guess=guess)
    if guess and not matching.pairs:
        matching.take_by_what_is_left()
    if not matching.pairs:
        matching.take_the_only_two()
    return matching.result()


Key = Callable[[ScanFile], object]
_Match = tuple[ScanFile, ScanFile]


_RULES: tuple[tuple[str, Key], ...] = (
    ("BIDS entities", lambda file: file.identity or None),
    ("name", lambda file: file.name),
    ("subject and session", lambda file: (file.subject, file.session)),
    ("subject", lambda file: file.subject),
)


@dataclass
class _Matching:
    truths: list[ScanFile]
    predictions: list[ScanFile]
    pairs: list[Pair] = field(default_factory=list)
    doubts: dict[Path, str] = field(default_factory=dict)

    def alike(self, key: Key, their_key: Key) -> list[_Match]:
        """Every truth with every prediction that has the same key."""
        theirs: dict[object, list[ScanFile]] = defaultdict(list)
        for prediction in self.predictions:
            theirs[their_key(prediction)].append(prediction)
        found = []
        for truth in self.truths:
            value = key(truth)
            if value:
                found += [(truth, prediction) for prediction in theirs.get(value, ())]
        return found

    def take(
        self, matches: Iterable[_Match], how: str, *, is_guess: bool = False
    ) -> None:
        """Make pairs of those that match each other alone; remember why others do not."""
        possible = []
        for truth, prediction in matches:
            if not _same_scan(truth, prediction):
                continue
            if _folders_differ(truth, prediction):
                self._doubt(
                    truth, f"{prediction.shown} has its name, in another folder"
                )
                self._doubt(
                    prediction, f"{truth.shown} has its name, in another folder"
                )
                continue
            possible.append((truth, prediction))
        of_truth: dict[int, list[ScanFile]] = defaultdict(list)
        of_prediction: dict[int, list[ScanFile]] = defaultdict(list)
        for truth, prediction in possible:
            of_truth[id(truth)].append(prediction)
            of_prediction[id(prediction)].append(truth)
        taken = {
            id(file) for pair in self.pairs for file in (pair.truth, pair.prediction)
        }
        for truth, prediction in possible:
            mine, theirs = of_truth[id(truth)], of_prediction[id(prediction)]
            if len(mine) > 1 or len(theirs) > 1:
                self._doubt(truth, _not_unique(truth, mine, theirs))
                self._doubt(prediction, _not_unique(prediction, theirs, mine))
            elif not taken & {id(truth), id(prediction)}:
                unsaid = _says_less(truth, prediction)
                self.pairs.append(Pair(truth, prediction, how, is_guess or unsaid))

    def take_by_one_ending(self) -> None:
        """`case_1` belongs to `case_1_seg`, where all names of one side end alike."""
        ending = _common_ending([file.name for file in self.predictions])
        if ending:
            shorter = self.alike(_name, lambda file: file.name.removesuffix(ending))
            self.take(shorter, f"name and {ending}", is_guess=not _says_what(ending))
        ending = _common_ending([file.name for file in self.truths])
        if ending and not self.pairs:
            shorter = self.alike(lambda file: file.name.removesuffix(ending), _name)
            self.take(shorter, f"name and {ending}", is_guess=not _says_what(ending))

    def take_by_beginning(self, *, guess: bool) -> None:
        """`case_1` belongs to `case_1_seg`; whether to `case_1_b` is a guess."""
        matches = _by_beginning(self.truths, self.predictions)
        rests = {}
        for truth, prediction in matches:
            shorter, longer = sorted((truth.name, prediction.name), key=len)
            rests[truth.path, prediction.path] = longer.removeprefix(shorter)
        is_guess = not all(map(_says_what, rests.values()))
        if guess or not is_guess:
            self.take(matches, "beginning of the name", is_guess=is_guess)

    def take_by_what_is_left(self) -> None:
        """`t_1_manual` belongs to `p_1_auto`, where all names of a side begin and end alike."""
        ours, theirs = _cores(self.truths), _cores(self.predictions)
        matches = self.alike(
            lambda file: ours[file.path], lambda file: theirs[file.path]
        )
        self.take(
            matches, "what is left of names that begin or end otherwise", is_guess=True
        )

    def take_the_only_two(self) -> None:
        """One file on each side, of which the user has named one at least."""
        if len(self.truths) != 1 or len(self.predictions) != 1:
            return
        truth, prediction = self.truths[0], self.predictions[0]
        if truth.is_given and prediction.is_given:
            self.take([(truth, prediction)], "the two files that were given")
        elif truth.is_given or prediction.is_given:
            self.take([(truth, prediction)], "being the only files", is_guess=True)

    def result(self) -> Pairing:
        pairs = sorted(self.pairs, key=lambda pair: natural_order(pair.truth.name))
        taken = {id(file) for pair in pairs for file in (pair.truth, pair.prediction)}
        truths = tuple(file for file in self.truths if id(file) not in taken)
        predictions = tuple(file for file in self.predictions if id(file) not in taken)
        alone = {file.path for file in (*truths, *predictions)}
        doubts = {path: why for path, why in self.doubts.items() if path in alone}
        return Pairing(tuple(pairs), truths, predictions, doubts)

    def _doubt(self, file: ScanFile, why: str) -> None:
        self.doubts.setdefault(file.path, why)


def _name(file: ScanFile) -> str:
    return file.name


def _not_unique(
    file: ScanFile, candidates: list[ScanFile], rivals: list[ScanFile]
) -> str:
    """Why a file has no partner: several fit, or the one that fits does so for others, too."""
    if len(candidates) > 1:
        return f"not unique: {_either(candidates)} could be its partner"
    return (
        f"not unique: {candidates[0].shown} could be the partner of {_either(rivals)}"
    )


def _either(files: Sequence[ScanFile]) -> str:
    names = sorted((file.shown for file in files), key=natural_order)
    if len(names) > _MOST_NAMED:
        return f"{', '.join(names[:_MOST_NAMED])} or one of {len(names) - _MOST_NAMED} more"
    return " or ".join(names)


_MOST_NAMED = 3


def _same_scan(one: ScanFile, other: ScanFile) -> bool:
    """Whether no entity that both names carry differs: session 1 is not session 2."""
    theirs = dict(other.identity)
    same = all(theirs.get(key, value) == value for key, value in one.identity)
    return same and (
        not one.session or not other.session or one.session == other.session
    )


def _says_less(one: ScanFile, other: ScanFile) -> bool:
    """Whether one says which scan it is and the other does not: sub-01_ses-1 may be sub-01, and
    p1/T1 may be T1."""
    if one.name != other.name and one.scan != other.scan:
        return True
    return _safe_folders(one) != _safe_folders(other)


def _safe_folders(file: ScanFile) -> list[str]:
    """As folders are called in the output of `trinat predict`."""
    return [safe_component(part) for part in file.folders]


def _folders_differ(one: ScanFile, other: ScanFile) -> bool:
    """Whether both lie in subfolders and these are of two persons: p1/T1 is not p2/T1.

    One may lie deeper: disc1/p1/T1 can be p1/T1.
    """
    shorter, longer = sorted((_safe_folders(one), _safe_folders(other)), key=len)
    rest = iter(longer)
    return not all(part in rest for part in shorter)


_SEPARATORS = "_-. "
# What files are called beside their scans; any other word may tell one scan from another.
_KINDS = frozenset(
    (
        *(
            "seg",
            "segmentation",
            "label",
            "labels",
            "labelmap",
            "pred",
            "prediction",
            "predicted",
        ),
        *(
            "dseg",
            "aseg",
            "mask",
            "manual",
            "truth",
            "true",
            "gt",
            "auto",
            "result",
            "brain",
        ),
        *("t1", "t1w", "mri", "mprage", "anat", "anon", "orig", "image", "img", "scan"),
    )
)


def _says_what(ending: str) -> bool:
    """Whether an ending says what a file is (`_seg`), not whose (`_MR2`)."""
    parts = [part for part in re.split(r"[_. -]", ending) if part]
    return all(part.casefold() in _KINDS for part in parts)


def _common_ending(names: Sequence[str]) -> str:
    """What all names end with, from a separator on, as `_seg`; without digits, which tell scans
    apart. Of fewer than two names nothing is known."""
    if len(names) < 2:
        return ""
    shared = _shared_beginning([name[::-1] for name in names])[::-1]
    after_digits = re.split(r"\d", shared)[-1]
    starts = [after_digits.find(separator) for separator in _SEPARATORS]
    found = [start for start in starts if start >= 0]
    return after_digits[min(found) :] if found else ""


def _common_beginning(names: Sequence[str]) -> str:
    """What all names begin with, up to a separator or a digit."""
    if len(names) < 2:
        return ""
    shared = _shared_beginning(names)
    before_digits = re.split(r"\d", shared)[0]
    follows_digit = all(name[len(before_digits) :][:1].isdigit() for name in names)
    if follows_digit:
        return before_digits
    return before_digits[: 1 + max(before_digits.rfind(s) for s in _SEPARATORS)]


def _shared_beginning(names: Sequence[str]) -> str:
    """The letters that all names begin with."""
    first = names[0]
    length = min(len(name) for name in names)
    for end in range(length):
        if any(name[end] != first[end] for name in names):
            return first[:end]
    return first[:length]


def _cores(files: Sequence[ScanFile]) -> dict[Path, str]:
    """What is left of names without what all have in common."""
    names = [file.name for file in files]
    beginning, ending = _common_beginning(names), _common_ending(names)
    return {
        file.path: file.name.removeprefix(beginning)
        .removesuffix(ending)
        .strip(_SEPARATORS)
        for file in files
    }


def _by_beginning(truths: list[ScanFile], predictions: list[ScanFile]) -> list[_Match]:
    """`case_1` belongs to `case_1_seg`: one name begins the other, up to a separator, and no longer
    name on its side does: `case_1_b_seg` belongs to `case_1_b` where that is there."""
    by_name: dict[str, list[ScanFile]] = defaultdict(list)
    for file in truths:
        by_name[file.name].append(file)
    matches = [
        (truth, p) for p in predictions for truth in _longest_beginning(p.name, by_name)
    ]
    by_name = defaultdict(list)
    for file in predictions:
        by_name[file.name].append(file)
    matches += [
        (truth, p) for truth in truths for p in _longest_beginning(truth.name, by_name)
    ]
    return matches


def _longest_beginning(
    name: str, files: Mapping[str, list[ScanFile]]
) -> list[ScanFile]:
    """Of the files that are called as this name begins, those with the longest name."""
    for end in range(len(name) - 1, 0, -1):
        if not name[end].isalnum() and name[:end] in files:
            return files[name[:end]]
    return []


# Measuring ----------------------------------------------------------------------------------

_KILLED = "its process was killed (out of memory?): try again with fewer --jobs"


@dataclass(frozen=True)
class Mappings:
    """Label numbers of a dataset's own -> FreeSurfer numbers, for either side.

    Where a side has a folding table, all its numbers are those of the table.
    """

    truth: Mapping[int, int] = field(default_factory=dict)
    prediction: Mapping[int, int] = field(default_factory=dict)
    truth_fold: FoldingTable | None = None
    prediction_fold: FoldingTable | None = None


@dataclass(frozen=True)
class Task:
    """One pair to measure, with all that a worker process needs for it."""

    model: str
    pair: Pair
    scheme: str
    mappings: Mappings
    resample: bool = False
    trust_affine: TrustAffine | None = None
    made: Made = field(default_factory=Made)
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
    for line, row in enumerate(
        read_rows(path, required=("number", "freesurfer")), start=2
    ):
        of = row.get("of") or "truth"
        if of not in ("truth", "prediction", "both"):
            raise ConfigError(
                f"line {line}: `of` is truth, prediction or both, not {of!r}",
                where=path,
            )
        try:
            number, freesurfer = int(row["number"]), int(row["freesurfer"])
        except ValueError:
            raise ConfigError(
                f"line {line}: label numbers are whole numbers", where=path
            ) from None
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
    return [
        replace(result, task=task) for result, task in zip(done, tasks, strict=True)
    ]


def _measure(task: Task) -> Done:
    try:
        truth, true, predicted, facts = read_pair(task)
        scheme = load_scheme(task.scheme)
        rejected = task.rejected.get(facts["prediction_sha256"], {})
        if "" in rejected:
            return Done(task, (), facts, facts.pop("note"), rejected=rejected[""])
        measured = labelled_slices(true, predicted, truth.spacing_mm)
        rows = compare(*measured, scheme, task.made.left_out(scheme, rejected)).rows()
    except (TrinatError, OSError) as error:
        return Done(task, failure=str(error))
    return Done(task, tuple(rows), facts, facts.pop("note"))


def read_pair(
    task: Task,
) -> tuple[Volume, NDArray[np.uint8], NDArray[np.uint8], dict[str, str]]:
    """The truth as read, both maps as class indices on its grid, and facts for the table."""
    truth, prediction = (
        Volume.read(
            file.path, labels=True, axes=file.axes, trust_affine=task.trust_affine
        )
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
    mappings = task.mappings
    true, predicted = (
        scheme.from_freesurfer(
            volume.data,
            spacing_mm=volume.spacing_mm,
            extra={**extra, **file.numbers},
            fold=file.fold or fold,
            where=file.path,
        )
        for volume, extra, fold, file in (
            (truth, mappings.truth, mappings.truth_fold, task.pair.truth),
            (
                prediction,
                mappings.prediction,
                mappings.prediction_fold,
                task.pair.prediction,
            ),
        )
    )
    if drawn := drawn_slices(true, truth.spacing_mm):
        notes.append(drawn.note)
        predicted = drawn.blank_between(predicted)
    return truth, true, predicted, facts | {"note": "; ".join(notes)}


def scan_of(task: Task) -> dict[str, str]:
    truth = task.pair.truth
    return {"subject": truth.subject, "session": truth.scan, "model": task.model}
