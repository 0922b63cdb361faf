"""Splits of a store: a single split, or one per fold of a cross-validation."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from trinat.segmentation.data.sources.registry import SOURCES
from trinat.segmentation.data.splits import (
    Split,
    make_folds,
    make_published_split,
    make_split,
)
from trinat.segmentation.data.store import SPLIT, Store, paths_of_folds
from trinat.segmentation.errors import DatasetError


def split_store(
    root: Path,
    *,
    ratios: tuple[float, float, float] = (8, 1, 1),
    folds: int | None = None,
    seed: int = 0,
    out: Path | None = None,
    exclude: Collection[str] = (),
    published: bool = False,
    validation: int | None = None,
) -> list[tuple[Path, Split]]:
    """Split the subjects of a store; write the splits and return their paths and contents.

    Parameters
    ----------
    root
        Folder of the store.
    ratios
        Proportions of train, validation and test, for a single split.
    folds
        Number of folds for cross-validation; None for a single split.
    out
        File to write, by default split.json in the store. With folds, a number is added to its
        name: split-0.json, split-1.json and so on.
    seed
        Seed of the random choices.
    exclude
        Names of subjects that are in no part.
    published
        Use the published split of the dataset. With folds, only its training part is divided.
    validation
        With a published split, the number of training participants that validate (default 0). With
        folds, 0 means that no fold validates.
    """
    store = Store(root)
    training = _published_training(store) if published else ()
    unknown = set(exclude) - set(store.subjects)
    if unknown:
        raise DatasetError(f"has no subject {min(unknown)!r} to exclude", where=root)
    entries = [entry for entry in store.labelled if entry.subject not in exclude]
    path = root / SPLIT if out is None else out
    identity = store.fingerprint

    if folds is None:
        if published:
            split = make_published_split(
                entries,
                training,
                validation=validation or 0,
                seed=seed,
                store=identity,
            )
        else:
            split = make_split(entries, ratios, seed=seed, store=identity)
        splits = [split]
        paths = [path]
    else:
        if published:
            entries = [entry for entry in entries if entry.subject in training]
        splits = make_folds(
            entries,
            folds,
            seed=seed,
            store=identity,
            validate=validation != 0,
        )
        paths = paths_of_folds(path, folds)
        if out is None:
            # Remove further folds of an earlier call with more folds; they would be taken for folds
            # of this call.
            for old in paths_of_folds(path, len(store.subjects))[folds:]:
                old.unlink(missing_ok=True)

    written = list(zip(paths, splits, strict=True))
    for split_path, split in written:
        split.write(split_path)
    return written


def _published_training(store: Store) -> tuple[str, ...]:
    """Return the training subjects of the dataset's published split.

    Raises DatasetError if the dataset has no published split.
    """
    name = store.info.source
    training = SOURCES[name].published_training if name in SOURCES else ()
    if not training:
        raise DatasetError(
            f"{name} has no published split",
            where=store.root,
            remedy="use --ratios or --kfold without --published",
        )
    return training
