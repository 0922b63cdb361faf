"""Checks that models are not validated or tested on participants that they were trained on."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from trinat.pipelines.study.naming import FOLD
from trinat.pipelines.train.provenance import subjects_trained_on
from trinat.pipelines.train.result import read_data
from trinat.segmentation.data.splits import Part, read_split
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import DatasetError
from trinat.segmentation.models.zoo import find_model
from trinat.segmentation.training.config import Recipe


def refuse_divided_stages(recipe: Recipe) -> None:
    """Raise DatasetError if a stage validates or tests on participants of an earlier stage.

    This happens if two stages use one store with different splits: a participant for training in
    the earlier split is for validation or testing in the later one.
    """
    trained: dict[Path, set[str]] = defaultdict(set)
    for stage in recipe.stages:
        if stage.data.store is None:
            continue
        store = Store(stage.data.store.path)
        split = store.split(stage.data.store.split)
        participant_of = {one.subject: one.participant for one in store.metadata}
        known = trained[store.root.resolve()]
        for name in (*split.validation, *split.test):
            if participant_of[name] in known:
                raise DatasetError(
                    f"{name} is not for training in the stage {stage.name}, but an earlier stage "
                    "trains on this participant",
                    where=stage.data.store.split,
                    remedy="use one split in all stages that share a store",
                )
        if stage.data.trains_on_store:
            known.update(participant_of[name] for name in split.train)


def refuse_other_folds(store: Store, models: Path) -> None:
    """Raise DatasetError if a fold's model was trained with another split than the store has now.

    `models` is the folder with the training runs of all folds. The split of a fold is known from
    the data.json of its run; a fold without this file is not checked.
    """
    for number, split in enumerate(store.folds):
        run = models / FOLD.format(number)
        trained_with = {data["split_sha256"] for data in read_data(run).values()}
        if trained_with and read_split(split).sha256 not in trained_with:
            raise DatasetError(
                f"was trained with another split than {split.name} has now",
                where=run,
                remedy=f"train the folds of {store.root} again (trinat train --folds)",
            )


def refuse_trained_participants(store: Store, part: Part, model: str) -> None:
    """Raise DatasetError if a model was trained on participants of a part of the store's split.

    This happens if the store was split again after the training. `model` is a folder or the name of
    a shipped model; a model whose provenance names no subject of this store is accepted. So is any
    model for the part for training.
    """
    if part == "train":
        return
    folder = find_model(model)
    participant_of = {one.subject: one.participant for one in store.metadata}
    trained = {
        participant_of[subject] for subject in subjects_trained_on(folder, store)
    }
    seen = [name for name in store.part(part) if participant_of[name] in trained]
    if seen:
        raise DatasetError(
            f"was trained on participants for {part} in {store.root}, such as that of {seen[0]}",
            where=folder,
            remedy="train again with the present split, or restore the split of the training",
        )
