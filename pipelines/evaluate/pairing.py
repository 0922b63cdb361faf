"""Which prediction belongs to which truth, and how we know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pipelines.common.discovery import ScanFile
from segmentation.data.sources.base import natural_order


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


def pair_files(truths: Iterable[ScanFile], predictions: Iterable[ScanFile]) -> Pairing:
    """Pair by the most specific rule that names one file on each side, then the next.

    Order is used only where no name says anything and both sides have equally many files.
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
    if not pairs and len(left) == len(right) and all(map(_compatible, left, right)):
        take(zip(left, right, strict=True), "natural order of names that do not match: check it")
    pairs.sort(key=lambda pair: natural_order(pair.truth.name))
    return Pairing(tuple(pairs), tuple(left), tuple(right))


Key = Callable[[ScanFile], object]


def _by_entities(file: ScanFile) -> object:
    return file.identity or None


def _by_session(file: ScanFile) -> object:
    return (file.subject, file.session)


def _by_name(file: ScanFile) -> object:
    return file.name


def _by_subject(file: ScanFile) -> object:
    return file.subject


_RULES: tuple[tuple[str, Key], ...] = (
    ("BIDS entities", _by_entities),
    ("name", _by_name),
    ("subject and session", _by_session),
    ("subject", _by_subject),
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
    candidates = [(t, p) for t in left for p in right if _begins(t.name, p.name)]
    return [
        (t, p)
        for t, p in candidates
        if sum(t is other for other, _ in candidates) == 1
        and sum(p is other for _, other in candidates) == 1
    ]


def _begins(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return long.startswith(short) and not long[len(short) : len(short) + 1].isalnum()
