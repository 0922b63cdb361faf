"""Who trains, who validates, who tests: persons and families are never divided."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
from natsort import natsorted
from pydantic import BaseModel, ConfigDict, ValidationError
from scipy.sparse import lil_array
from scipy.sparse.csgraph import connected_components

from trinat.segmentation.errors import DatasetError, first_mistake
from trinat.segmentation.io.files import atomic_text, read_text

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")

_AGE_BINS = 5


@dataclass(frozen=True)
class Participant:
    """One subject of a store: a session of a person, who may belong to a family (twins)."""

    subject: str
    person: str
    family: str | None = None
    age: float | None = None
    sex: str | None = None


class Split(BaseModel):
    """Subjects of one store, by name, in three parts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    store: str  # fingerprint of the store that it was made for
    seed: int
    train: tuple[str, ...]
    validation: tuple[str, ...] = ()
    test: tuple[str, ...] = ()

    def part(self, name: Part) -> tuple[str, ...]:
        return {"train": self.train, "validation": self.validation, "test": self.test}[
            name
        ]

    def write(self, path: Path) -> None:
        with atomic_text(path) as file:
            file.write(json.dumps(self.model_dump(), indent=1) + "\n")

    def check(
        self, participants: Sequence[Participant], store: str, *, where: str = ""
    ) -> None:
        """Raise where this split belongs to another store or a person stands in two parts."""
        if self.store != store:
            raise DatasetError(
                "this split was made for another store, or for this one before it changed",
                where=where,
                remedy="run `trinat split` on the store",
            )
        placed = [subject for name in PARTS for subject in self.part(name)]
        if len(set(placed)) < len(placed):
            twice = next(subject for subject in placed if placed.count(subject) > 1)
            raise DatasetError(f"subject {twice} is listed twice", where=where)
        unknown = set(placed) - {p.subject for p in participants}
        if unknown:
            raise DatasetError(
                f"{min(unknown)} is not a subject of the store", where=where
            )
        for group in _groups(participants):
            parts = [
                name
                for name in PARTS
                if set(self.part(name)) & {p.subject for p in group}
            ]
            if len(parts) > 1:
                raise DatasetError(
                    f"person or family {group[0].family or group[0].person} is in "
                    f"{' and '.join(parts)}",
                    where=where,
                    remedy="run `trinat split`, which keeps persons and families together",
                )


def read_split(path: Path) -> Split:
    try:
        return Split.model_validate_json(read_text(path))
    except FileNotFoundError:
        what = "no such split file"
    except UnicodeDecodeError:
        what = "not a split file (it is not text)"
    except ValidationError as error:
        what = f"not a split file ({': '.join(filter(None, first_mistake(error)))})"
    raise DatasetError(what, where=path, remedy="make it with `trinat split`")


def read_exclusions(path: Path) -> tuple[str, ...]:
    """Subjects of a text file, one a line; what follows a # is a remark."""
    try:
        lines = read_text(path).splitlines()
    except (FileNotFoundError, UnicodeDecodeError):
        raise DatasetError(
            "is no list of subjects",
            where=path,
            remedy="give a text file, one subject a line",
        ) from None
    names = (line.partition("#")[0].strip() for line in lines)
    return tuple(name for name in names if name)


def make_split(
    participants: Sequence[Participant],
    ratios: tuple[float, float, float] = (8, 1, 1),
    *,
    seed: int,
    store: str,
) -> Split:
    """Persons in the proportions train : validation : test, spread evenly over age and sex."""
    if min(ratios) < 0 or ratios[0] <= 0:
        raise DatasetError(
            f"ratios {ratios} cannot be met",
            remedy="give three, none negative, the first positive",
        )
    parts = _deal(participants, ratios, np.random.default_rng(seed))
    return _split(dict(zip(PARTS, parts, strict=True)), seed, store)


def make_folds(
    participants: Sequence[Participant], folds: int, *, seed: int, store: str
) -> list[Split]:
    """One split a fold: fold i tests, fold i + 1 validates, the others train."""
    if folds < 3:
        raise DatasetError(
            "cross-validation takes at least 3 folds: one tests, one validates"
        )
    dealt = _deal(participants, (1.0,) * folds, np.random.default_rng(seed))
    splits = []
    for test in range(folds):
        # The folds in a circle: the first tests, the second validates.
        tested, validating, *training = *dealt[test:], *dealt[:test]
        parts = {"train": [*chain(*training)], "validation": validating, "test": tested}
        splits.append(_split(parts, seed, store))
    return splits


def make_published_split(
    participants: Sequence[Participant],
    training: Collection[str],
    *,
    validation: int = 0,
    seed: int,
    store: str,
) -> Split:
    """A dataset's own division: the subjects `training` train, all others test.

    `validation` persons (or families) of the training part validate, spread over sex and age.
    """
    trained = [p for p in participants if p.subject in training]
    groups = _groups(sorted(trained, key=lambda p: p.subject))
    if validation and validation >= len(groups):
        raise DatasetError(
            f"{validation} persons for validation leave none of {len(groups)} to train",
            remedy=f"ask for at most {max(len(groups) - 1, 0)}",
        )
    rng = np.random.default_rng(seed)
    ordered = _in_strata(groups, rng)
    # Evenly spaced in the order of sex and age, from a random start.
    start = rng.random()
    chosen = {
        int((start + step) * len(ordered) / validation) for step in range(validation)
    }
    parts: dict[str, list[str]] = {
        "train": [
            p.subject
            for n, group in enumerate(ordered)
            if n not in chosen
            for p in group
        ],
        "validation": [p.subject for n in sorted(chosen) for p in ordered[n]],
        "test": [p.subject for p in participants if p.subject not in training],
    }
    return _split(parts, seed, store)


def _split(parts: Mapping[str, Sequence[str]], seed: int, store: str) -> Split:
    ordered = {name: tuple(natsorted(subjects)) for name, subjects in parts.items()}
    return Split.model_validate({"store": store, "seed": seed, **ordered})


def _groups(participants: Sequence[Participant]) -> list[list[Participant]]:
    """Participants that belong together: joined by person, by family, or through others."""
    first_with: dict[tuple[str, str], int] = {}
    joined = lil_array((len(participants), len(participants)), dtype=np.int8)
    for index, participant in enumerate(participants):
        for kind, name in (
            ("person", participant.person),
            ("family", participant.family),
        ):
            if name is not None:
                joined[index, first_with.setdefault((kind, name), index)] = 1
    groups: dict[int, list[Participant]] = defaultdict(list)
    for group, participant in zip(
        connected_components(joined)[1], participants, strict=True
    ):
        groups[int(group)].append(participant)
    return list(groups.values())


def _deal(
    participants: Sequence[Participant],
    ratios: Sequence[float],
    rng: np.random.Generator,
) -> list[list[str]]:
    """Deal groups out in the order of sex and age, always to the part that is furthest behind.

    Neighbours in that order go to different parts, so every part sees all ages and both sexes
    without bins that would have to be filled; the order within equals is random.
    """
    groups = _groups(sorted(participants, key=lambda p: p.subject))
    wanted = [part for part, ratio in enumerate(ratios) if ratio > 0]
    if len(groups) < len(wanted):
        raise DatasetError(
            f"{len(groups)} persons or families do not make {len(wanted)} parts",
            remedy="add persons, or ask for fewer parts",
        )
    shares = np.asarray(ratios, float) / sum(ratios)
    dealt: list[list[str]] = [[] for _ in ratios]
    size = [0] * len(ratios)
    # Where each part starts in its rhythm is random too, else the first are always the same.
    credit = shares * rng.random(len(ratios))
    for group in _in_strata(groups, rng):
        credit += shares * len(group)
        part = int(np.argmax(np.where(shares > 0, credit, -np.inf)))
        credit[part] -= len(group)
        dealt[part].extend(participant.subject for participant in group)
        size[part] += 1
    for part in wanted:
        if not dealt[part]:
            donor = int(np.argmax(size))
            moved = next(group for group in groups if group[0].subject in dealt[donor])
            for participant in moved:
                dealt[donor].remove(participant.subject)
                dealt[part].append(participant.subject)
            size[donor], size[part] = size[donor] - 1, 1
    return dealt


def _in_strata(
    groups: list[list[Participant]], rng: np.random.Generator
) -> list[list[Participant]]:
    """Groups by sex and fifth of the age range of persons, in random order within each."""
    ages = [p.age for group in groups for p in group if p.age is not None]
    edges = (
        np.quantile(ages, np.linspace(0, 1, _AGE_BINS + 1)[1:-1])
        if ages
        else np.empty(0)
    )

    def stratum(group: list[Participant]) -> tuple[str, int]:
        known = [p.age for p in group if p.age is not None]
        age_bin = int(np.searchsorted(edges, min(known), side="right")) if known else -1
        return min(p.sex or "" for p in group), age_bin

    shuffled = [groups[index] for index in rng.permutation(len(groups))]
    return sorted(shuffled, key=stratum)
