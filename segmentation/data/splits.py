"""Training, validation and test splits; participants and families are never divided."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
from natsort import natsorted
from pydantic import BaseModel, ConfigDict, ValidationError
from scipy.sparse import lil_array
from scipy.sparse.csgraph import connected_components

from trinat.segmentation.errors import ConfigError, DatasetError, first_mistake
from trinat.segmentation.io.files import read_text, write_json

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")

_AGE_BINS = 5


@dataclass(frozen=True)
class SubjectMetadata:
    """Metadata of one subject of a store, which is one session of a participant.

    `family` is an identifier that relatives such as twins share. `age` is in years. `scan` is the
    SHA-256 of the file that the subject was made from. Participants of one family, or with the same
    scan, are never divided among parts.
    """

    subject: str
    participant: str
    family: str | None = None
    age: float | None = None
    sex: str | None = None
    scan: str | None = field(default=None, compare=False)


class Split(BaseModel):
    """Subjects of one store, by name, in three parts.

    `store` is the hash that identifies the store that the split was made for, `Store.fingerprint`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    store: str
    seed: int
    train: tuple[str, ...]
    validation: tuple[str, ...] = ()
    test: tuple[str, ...] = ()

    def part(self, name: Part) -> tuple[str, ...]:
        """Return the names of the subjects of one part, in the order of the file."""
        parts: dict[Part, tuple[str, ...]] = {
            "train": self.train,
            "validation": self.validation,
            "test": self.test,
        }
        return parts[name]

    @property
    def sha256(self) -> str:
        """SHA-256 of the whole split, to tell whether two splits are the same."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    def write(self, path: Path) -> None:
        """Write the split as JSON, atomically."""
        write_json(path, self.model_dump())

    def check(
        self,
        entries: Sequence[SubjectMetadata],
        store: str,
        *,
        where: str = "",
    ) -> None:
        """Raise DatasetError if the split belongs to another store or divides a participant.

        `entries` has the metadata of all subjects of the store, and `store` is the hash that
        identifies the store. `where` is the file of the split, for messages.
        """
        if self.store != store:
            raise DatasetError(
                "this split was made for another store, or for this one before it changed",
                where=where,
                remedy="run `trinat split` on the store",
            )
        placed = self.train + self.validation + self.test
        if len(set(placed)) < len(placed):
            twice = next(subject for subject in placed if placed.count(subject) > 1)
            raise DatasetError(f"subject {twice} is listed twice", where=where)
        unknown = set(placed) - {entry.subject for entry in entries}
        if unknown:
            raise DatasetError(
                f"{min(unknown)} is not a subject of the store", where=where
            )
        by_participant = [replace(entry, scan=None) for entry in entries]
        self._refuse_divided(by_participant, "participant or family {}", where)
        self._refuse_divided(entries, "a copy of a scan of {}", where)

    def _refuse_divided(
        self, entries: Sequence[SubjectMetadata], what: str, where: str
    ) -> None:
        """Raise DatasetError if a participant, a family or a scan is in more than one part.

        `what` begins the message; {} in it becomes the name of the family or the participant.
        """
        for group in _related_groups(entries):
            subjects = {entry.subject for entry in group}
            parts = [part for part in PARTS if not subjects.isdisjoint(self.part(part))]
            if len(parts) > 1:
                named = what.format(group[0].family or group[0].participant)
                raise DatasetError(
                    f"{named} is in {' and '.join(parts)}",
                    where=where,
                    remedy="run `trinat split`, which keeps participants and families together",
                )


def read_split(path: Path) -> Split:
    """Read a split from a JSON file, without checking its subjects against a store.

    Raises DatasetError if the file is missing or invalid; the message names the mistake.
    """
    try:
        return Split.model_validate_json(read_text(path))
    except FileNotFoundError:
        what = "no such split file"
    except UnicodeDecodeError:
        what = "not a split file (it is not text)"
    except ValidationError as error:
        what = f"not a split file ({first_mistake(error)})"
    raise DatasetError(what, where=path, remedy="make it with `trinat split`")


def read_exclusions(path: Path) -> tuple[str, ...]:
    """Read names of subjects from a text file with one name per line; text after # is a comment.

    Empty lines are skipped, and the order is preserved. A file without names gives (). Raises
    DatasetError if the file is missing or not text.
    """
    try:
        lines = read_text(path, "utf-8-sig").splitlines()
    except (FileNotFoundError, UnicodeDecodeError):
        raise DatasetError(
            "is no list of subjects",
            where=path,
            remedy="give a text file, one subject a line",
        ) from None
    names = (line.partition("#")[0].strip() for line in lines)
    return tuple(name for name in names if name)


def make_split(
    entries: Sequence[SubjectMetadata],
    ratios: tuple[float, float, float] = (8, 1, 1),
    *,
    seed: int,
    store: str,
) -> Split:
    """Split participants into train, validation and test, balanced by age and sex.

    `ratios` are the proportions of the three parts, in that order; `store` is the hash that
    identifies the store. Raises DatasetError if the ratios cannot be met, or if there are fewer
    participants than parts.
    """
    is_finite = all(map(math.isfinite, ratios))
    if not is_finite or min(ratios) < 0 or ratios[0] <= 0:
        raise DatasetError(
            f"ratios {ratios} cannot be met",
            remedy="give three finite numbers, none negative, the first positive",
        )
    rng = np.random.default_rng(seed)
    train, validation, test = _distribute(entries, ratios, rng)
    return _sorted_split(
        train=train, validation=validation, test=test, seed=seed, store=store
    )


def make_folds(
    entries: Sequence[SubjectMetadata],
    folds: int,
    *,
    seed: int,
    store: str,
    validate: bool = True,
) -> list[Split]:
    """Make one split per fold for cross-validation.

    In split i, fold i is the test part, fold i + 1 the validation part, and the other folds the
    training part. Without `validate` there is no validation part: all folds but fold i train.
    `store` is the hash that identifies the store. Raises ConfigError if no fold is left to train,
    and DatasetError for fewer participants than folds.
    """
    fewest = 3 if validate else 2
    if folds < fewest:
        others = "one fold tests and one validates" if validate else "one fold tests"
        raise ConfigError(
            f"--kfold {folds} leaves nobody to train: {others}",
            remedy=f"give --kfold {fewest} or more",
        )
    dealt = _distribute(entries, (1.0,) * folds, np.random.default_rng(seed))
    splits = []
    for test in range(folds):
        # Rotate the list so that the test fold comes first and the validation fold second.
        circle = dealt[test:] + dealt[:test]
        validating: list[str] = []
        training_folds = circle[1:]
        if validate:
            validating = circle[1]
            training_folds = circle[2:]
        training: list[str] = []
        for fold in training_folds:
            training.extend(fold)
        splits.append(
            _sorted_split(
                train=training,
                validation=validating,
                test=circle[0],
                seed=seed,
                store=store,
            )
        )
    return splits


def make_published_split(
    entries: Sequence[SubjectMetadata],
    training: Collection[str],
    *,
    validation: int = 0,
    seed: int,
    store: str,
) -> Split:
    """Apply a dataset's published split: the subjects in `training` train, all others test.

    `validation` is the number of training participants (or families) that are moved to the
    validation part; they are spread over sex and age. `store` is the hash that identifies the
    store.
    """
    trainers = [entry for entry in entries if entry.subject in training]
    others = [entry for entry in entries if entry.subject not in training]
    groups = _related_groups(_by_subject(trainers))
    if validation and validation >= len(groups):
        raise DatasetError(
            f"{validation} participants for validation leave none of {len(groups)} to train",
            remedy=f"ask for at most {max(len(groups) - 1, 0)}",
        )
    rng = np.random.default_rng(seed)
    ordered = _in_strata(groups, rng)
    # Choose groups at even distances in the order of sex and age, from a random start.
    start = rng.random()
    chosen: set[int] = set()
    for step in range(validation):
        chosen.add(int((start + step) * len(ordered) / validation))

    train: list[str] = []
    validating: list[str] = []
    for number, group in enumerate(ordered):
        if number in chosen:
            validating.extend(_subject_names(group))
        else:
            train.extend(_subject_names(group))
    return _sorted_split(
        train=train,
        validation=validating,
        test=_subject_names(others),
        seed=seed,
        store=store,
    )


def _sorted_split(
    *,
    train: Sequence[str],
    validation: Sequence[str],
    test: Sequence[str],
    seed: int,
    store: str,
) -> Split:
    """Return a Split of the given subjects, with each part sorted in natural order."""
    return Split(
        store=store,
        seed=seed,
        train=tuple(natsorted(train)),
        validation=tuple(natsorted(validation)),
        test=tuple(natsorted(test)),
    )


def _subject_names(entries: Iterable[SubjectMetadata]) -> list[str]:
    """Return the names of the subjects, in the order of `entries`."""
    return [entry.subject for entry in entries]


def _by_subject(entries: Sequence[SubjectMetadata]) -> list[SubjectMetadata]:
    """Sort entries by name, so that results do not depend on the order of the input."""
    return sorted(entries, key=lambda entry: entry.subject)


def _related_groups(entries: Sequence[SubjectMetadata]) -> list[list[SubjectMetadata]]:
    """Group entries that share a participant, family or scan, directly or through others."""
    count = len(entries)
    # Connect entry i with entry j if j is the first entry that has the same value.
    joined = lil_array((count, count), dtype=np.int8)
    first_with: dict[tuple[str, str], int] = {}
    for index, entry in enumerate(entries):
        for fact in ("participant", "family", "scan"):
            value = getattr(entry, fact)
            if value is not None:
                joined[index, first_with.setdefault((fact, value), index)] = 1
    _, group_of = connected_components(joined)
    groups: dict[int, list[SubjectMetadata]] = defaultdict(list)
    for group, entry in zip(group_of, entries, strict=True):
        groups[int(group)].append(entry)
    return list(groups.values())


def _distribute(
    entries: Sequence[SubjectMetadata],
    ratios: Sequence[float],
    rng: np.random.Generator,
) -> list[list[str]]:
    """Distribute groups of related subjects over parts with the proportions `ratios`.

    Returns the names of the subjects of each part. A part whose ratio is 0 gets none, every other
    part at least one. Groups are taken in the order of sex and age, and each goes to the part that
    is furthest behind its share. Neighbours in that order therefore go to different parts, so every
    part covers all ages and both sexes. The order among equals is random.
    """
    groups = _related_groups(_by_subject(entries))
    wanted = [part for part, ratio in enumerate(ratios) if ratio > 0]
    if len(groups) < len(wanted):
        raise DatasetError(
            f"too few participants or families for {len(wanted)} parts: {len(groups)}",
            remedy="add participants, or ask for fewer parts",
        )
    shares = np.asarray(ratios, float) / sum(ratios)
    dealt: list[list[list[SubjectMetadata]]] = [[] for _ in ratios]
    # Start each part with a random credit; otherwise the first group would always go to the same
    # part.
    credit = shares * rng.random(len(ratios))
    for group in _in_strata(groups, rng):
        credit += shares * len(group)
        credit_of_wanted = np.where(shares > 0, credit, -np.inf)
        part = int(np.argmax(credit_of_wanted))
        credit[part] -= len(group)
        dealt[part].append(group)
    for part in wanted:
        if not dealt[part]:
            # The largest part donates the first of its groups.
            donor = int(np.argmax([len(of_part) for of_part in dealt]))
            moved = next(group for group in groups if group in dealt[donor])
            dealt[donor].remove(moved)
            dealt[part].append(moved)
    return [_subject_names(chain.from_iterable(part)) for part in dealt]


def _in_strata(
    groups: list[list[SubjectMetadata]], rng: np.random.Generator
) -> list[list[SubjectMetadata]]:
    """Sort groups by sex and age bin (quintiles of age), in random order within each bin.

    The sex and age of a group are the lowest of its subjects.
    """
    ages = _ages(chain.from_iterable(groups))
    edges = np.empty(0)
    if ages:
        inner_shares = np.linspace(0, 1, _AGE_BINS + 1)[1:-1]
        edges = np.quantile(ages, inner_shares)

    def stratum(group: list[SubjectMetadata]) -> tuple[str, int]:
        """Return sex ("" if unknown) and the number of the age bin (-1 if unknown)."""
        sex = min(entry.sex or "" for entry in group)
        known = _ages(group)
        if not known:
            return sex, -1
        return sex, int(np.searchsorted(edges, min(known), side="right"))

    shuffled = [groups[index] for index in rng.permutation(len(groups))]
    return sorted(shuffled, key=stratum)


def _ages(entries: Iterable[SubjectMetadata]) -> list[float]:
    """Return the ages that are known, in years."""
    return [entry.age for entry in entries if entry.age is not None]
