"""The smallest training run: its recipe and its outputs."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from trinat.pipelines.train.job import Watcher
from trinat.pipelines.train.run import adapt_to_store, read_recipe
from trinat.segmentation.synthetic.heads import phantom_heads
from trinat.segmentation.training.config import Recipe
from trinat.segmentation.training.state import read_latest

NETWORK = {
    "filters": 4,
    "kernel": 3,
    "depth": 2,
    "excitation": "none",
    "activation": "relu",
    "order": "convolution-norm-activation",
}
SILENT = Watcher()
LONG_STEPS = 30


@cache
def _heads() -> str:
    """Write the phantom's head at 4 mm, with an eighth of the voxels of the source "phantom"."""
    path = Path(tempfile.mkdtemp(prefix="trinat-heads-")) / "heads.npz"
    phantom_heads(4).save(path)
    return str(path)


def write_recipe(folder: Path, **changes: Any) -> Path:
    """Write a recipe of eight steps of two views; a key that is changed to None is left out."""
    content = {
        "name": "tiny",
        "network": NETWORK,
        "views": ["coronal", "sagittal"],
        "data": {
            "synthetic": {"heads": _heads()},
            "rows": 32,
            "columns": 32,
            "epoch_slices": 16,
        },
        "schedule": {"steps": 8},
        "batch": 4,
        "checkpoint_every_steps": 2,
        **changes,
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in content.items() if v is not None}))
    return path


def tiny_recipe(folder: Path, *settings: str, **changes: Any) -> Recipe:
    return read_recipe(str(write_recipe(folder, **changes)), settings)


def tiny_recipe_on(store: Path, folder: Path, *settings: str, **changes: Any) -> Recipe:
    """Return the recipe of `write_recipe` on a slice store, as --store does."""
    path = write_recipe(folder, **changes)
    return adapt_to_store(read_recipe(str(path), settings, store), store)


def write_long_recipe(folder: Path, steps: int = LONG_STEPS) -> Path:
    """Write a recipe of one view and one epoch that is long enough to be stopped midway."""
    path = write_recipe(folder, views=["coronal"], schedule={"steps": steps})
    content = yaml.safe_load(path.read_text())
    content["data"]["epoch_slices"] = 999
    path.write_text(yaml.safe_dump(content))
    return path


def weights(run: Path, job: str) -> dict[str, list[float]]:
    state, problems = read_latest(run / job)
    assert state is not None
    assert not problems
    return {name: value.flatten().tolist() for name, value in state.network.items()}
