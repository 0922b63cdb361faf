"""A network of the smoke recipe overfits two heads within five times that recipe's steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.known import KnownSlices

from trinat.pipelines.jobs.process import prepare_process
from trinat.pipelines.train.run import read_recipe
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.views import View, to_slices
from trinat.segmentation.synthetic.phantom import phantom
from trinat.segmentation.training.loop import Trainer
from trinat.segmentation.training.network import copy_network, new_network
from trinat.segmentation.training.validation import ValidationScan, validate

SCHEME = load_scheme("quicknat33")
SPACING_MM = 3.0
TIMES = 5
RATE = 1e-2  # twice the recipe's rate: with two heads nothing is forgotten


def brain_of(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return image (white matter about 1) and classes of a phantom, cut to its brain's box."""
    image, truth = phantom(seed, spacing_mm=(SPACING_MM,) * 3)
    classes = SCHEME.from_freesurfer(truth.data).astype(np.uint8)
    box = tuple(
        slice(int(hit.min()), int(hit.max()) + 1) for hit in np.nonzero(classes)
    )
    scaled = image.data / np.percentile(image.data[image.data > 0], 99)
    return scaled[box].astype(np.float32), classes[box]


def two_scans(view: View) -> list[ValidationScan]:
    """Return two phantoms as slices of a view, padded with air to one size."""
    brains = [brain_of(seed) for seed in range(2)]
    shape = np.max([image.shape for image, _ in brains], axis=0)
    scans = []
    for number, brain in enumerate(brains):
        missing = [
            (0, int(want - have))
            for want, have in zip(shape, brain[0].shape, strict=True)
        ]
        image, classes = (np.pad(array, missing) for array in brain)
        if view is View.SAGITTAL:
            classes = SCHEME.merged.to_merged[classes].astype(np.uint8)
        slices = (
            to_slices(torch.from_numpy(array), view) for array in (image, classes)
        )
        scans.append(ValidationScan(str(number), *(s.contiguous() for s in slices)))
    return scans


def trainer_of(view: View, scans: list[ValidationScan], *settings: str) -> Trainer:
    smoke = read_recipe("smoke").stages[0]
    assert smoke.schedule.steps is not None
    steps, rate = TIMES * smoke.schedule.steps, f"optimiser.rate={RATE}"
    recipe = read_recipe(
        "smoke", [f"views=[{view.value}]", f"schedule.steps={steps}", rate, *settings]
    )
    images, labels = (
        torch.cat([getattr(s, name) for s in scans]) for name in ("images", "labels")
    )
    classes = len(SCHEME.seen_in(view))
    torch.manual_seed(recipe.seed)
    return Trainer(
        recipe,
        recipe.stages[0],
        new_network(recipe.network, classes),
        KnownSlices(images, labels, classes),
        torch.device("cpu"),
    )


@pytest.mark.slow
@pytest.mark.timeout(7200)  # about three minutes of processor time
@pytest.mark.parametrize("view", list(View), ids=[view.value for view in View])
def test_two_heads_are_learnt_by_heart(view: View) -> None:
    prepare_process()
    scans = two_scans(view)
    trainer = trainer_of(view, scans)
    while trainer.progress < 1:
        trainer.step()
    network = copy_network(trainer.best_weights)
    assert validate(network, scans, trainer.device).mean_dice > 0.95
