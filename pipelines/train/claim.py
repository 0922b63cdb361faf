"""The folder of a run: claimed for one recipe and its data, and left clean by a refused start."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from trinat.pipelines.common.config import read_yaml
from trinat.pipelines.common.lock import refuse_foreign
from trinat.pipelines.train.result import CONFIG, DATA, DONE, read_data
from trinat.segmentation.data.splits import read_split
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import TrainingError
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.training.config import Recipe, StoreConfig
from trinat.segmentation.training.state import check_identity, has_state


@contextmanager
def claimed_run(recipe: Recipe, out: Path, *, resume: bool) -> Iterator[None]:
    """Write down the recipe and what its stores hold; refuse to mix two runs in one folder.

    A run that is there already needs `resume`, the same recipe and the same data. A new one whose
    start is refused within the block leaves nothing.
    """
    content = recipe.model_dump(mode="json")
    data = _data_of(recipe)
    if (out / CONFIG).is_file():
        _check_same_run(out, content, data, resume=resume)
        yield
        return
    folders = [*(stage.name for stage in recipe.stages), "model"]
    refuse_foreign(out, [CONFIG, *folders, DATA])
    if data:
        write_whole(out / DATA, json.dumps(data, indent=1))
    write_whole(out / CONFIG, yaml.safe_dump(content, sort_keys=False))
    try:
        yield
    finally:
        # A start that was refused is no run.
        if not _has_begun(out):
            (out / CONFIG).unlink()
            (out / DATA).unlink(missing_ok=True)
            for name in folders:
                shutil.rmtree(out / name, ignore_errors=True)


def _check_same_run(
    out: Path,
    content: dict[str, Any],
    data: dict[str, Any],
    *,
    resume: bool,
) -> None:
    """Refuse a run in `out` that is not the one to go on with, by its recipe and data."""
    # The same that was killed before its first state begins again.
    if not resume:
        is_another = _has_begun(out) or read_yaml(out / CONFIG) != content
        if is_another:
            remedy = "go on with --resume, or give another --out"
            raise TrainingError("a run is there already", where=out, remedy=remedy)
    check_identity(read_yaml(out / CONFIG), content, out)
    check_identity(read_data(out), data, out)


def _has_begun(out: Path) -> bool:
    """Whether any job of the run has a state, or has ended."""
    jobs = out.glob("*/*/")
    return any(has_state(job) or (job / DONE).is_file() for job in jobs)


def _data_of(recipe: Recipe) -> dict[str, Any]:
    """By store, what a run takes from it."""
    data = {}
    for stage in recipe.stages:
        store = stage.data.store
        if store is not None:
            data[str(store.path)] = _taken_from(store)
    return data


def _taken_from(config: StoreConfig) -> dict[str, Any]:
    """What a run takes from a store: the files of the subjects that train or validate.

    Of those that train it has the licences, and who made the labels; `not_predicted` are the
    structures that none of these labels has.
    """
    store = Store(config.path)
    subjects = store.info.subjects
    train = store.part("train", config.split)
    used = sorted({*train, *read_split(config.split).validation})
    digests = [(subject, subjects[subject].file.sha256) for subject in used]
    files = json.dumps(digests)
    licences = {subjects[subject].licence for subject in train}
    untaught: list[set[str]] = []
    for subject in train:
        model = subjects[subject].pseudo
        if model is None:
            untaught.append(set())
        else:
            untaught.append(set(model.not_predicted))
    taken = {
        "sha256": hashlib.sha256(files.encode()).hexdigest(),
        "licences": sorted(licences - {""}),
        "pseudo_labels": store.pseudo_labels(train),
        "not_predicted": sorted(set.intersection(*untaught)),
    }
    if store.info.csf != "region":
        taken["csf"] = store.info.csf
    return taken
