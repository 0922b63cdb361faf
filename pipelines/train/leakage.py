"""Checks that models are not validated or tested on participants that they were trained on."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from trinat.pipelines.study.naming import FOLD
from trinat.pipelines.train.provenance import subjects_trained_on
from trinat.pipelines.train.result import read_data, stores_of
from trinat.segmentation.data.splits import Part, read_split
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import DatasetError
from trinat.segmentation.models.zoo import find_model
from trinat.segmentation.training.config import Recipe

_log = logging.getLogger(__name__)


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


def warn_of_seen_participants(recipe: Recipe) -> None:
    """Log a warning if a model that a recipe starts from was trained on participants held out here.

    These are the participants for validation and testing in the stores of the recipe. Their scores
    would be too high.
    """
    starts = [stage.start for stage in recipe.stages if stage.start is not None]
    for place in stores_of(recipe).values():
        store = Store(place.path)
        split = store.split(place.split)
        for start in dict.fromkeys(starts):
            held_out = (*split.validation, *split.test)
            seen = _trained_among(held_out, find_model(start), store)
            if seen:
                _log.warning(
                    "%s was trained on participants for validation or test in %s, such as that of "
                    "%s: their scores will be too high; start from another model",
                    start,
                    store.root,
                    seen[0],
                )


def refuse_leaky_folds(store: Store, models: Path) -> None:
    """Raise DatasetError if a fold's model was trained with another split than the store has now.

    The same holds if the weights that it started from were trained on participants that it tests.
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
        refuse_trained_participants(store, "test", str(run / "model"), split)


def refuse_trained_participants(
    store: Store, part: Part, model: str, split: Path | None = None
) -> None:
    """Raise DatasetError if a model was trained on participants of a part of a split.

    This happens if the store was split again after the training, or if the weights that the
    training started from have seen these participants. `model` is a folder or the name of a shipped
    model; a model whose provenance names no subject of this store is accepted. So is any model for
    the part for training. `split` is the file of the split; None means the store's own.
    """
    if part == "train":
        return
    folder = find_model(model)
    seen = _trained_among(store.part(part, split), folder, store)
    if seen:
        raise DatasetError(
            f"was trained on participants for {part} in {store.root}, such as that of {seen[0]}",
            where=folder,
            remedy="train again with the present split, from weights that have not seen them, or "
            "restore the split of the training",
        )


def _trained_among(subjects: Iterable[str], model: Path, store: Store) -> list[str]:
    """Return those of the subjects of a store whose participants a model was trained on.

    `model` is the folder of the model.
    """
    participant_of = {one.subject: one.participant for one in store.metadata}
    trained = {participant_of[subject] for subject in subjects_trained_on(model, store)}
    return [name for name in subjects if participant_of[name] in trained]
