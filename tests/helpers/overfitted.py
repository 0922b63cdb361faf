"""Real networks for tests: one that knows the miniature head by heart, one that knows nothing."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch

from helpers.miniatures import head_image, head_labels, turned
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.checkpoint import save_model
from trinat.segmentation.models.model_info import Description
from trinat.segmentation.models.quicknat import QuickNat, QuickNatConfig
from trinat.segmentation.space.conform import conform
from trinat.segmentation.space.views import View, to_slices

STEPS = 60
# Each step sees a third of the slices, in turn.
PART = 3
SMALL = QuickNatConfig(
    filters=8,
    kernel=3,
    depth=3,
    excitation="none",
    activation="relu",
    order="convolution-norm-activation",
    dropout=0.1,
)


def miniature(axes: str = "RAS", seed: int = 0) -> tuple[Volume, Volume]:
    """Scan and truth (FreeSurfer numbers) of the miniature head."""
    image, affine = turned(head_image(head_labels(), seed), axes)
    truth, _ = turned(head_labels(), axes)
    return Volume(image, affine), Volume(truth, affine)


@cache
def random_model() -> Path:
    """The folder of a model that knows nothing, for tests that need no right answers."""
    folder = Path(tempfile.mkdtemp(prefix="trinat-random-"))
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        networks = {
            view: QuickNat(
                SMALL.model_copy(
                    update={
                        "filters": 4,
                        "depth": 2,
                        "classes": 19 if view is View.SAGITTAL else 33,
                    }
                )
            )
            for view in View
        }
    save_model(folder, Description(name="random"), networks)
    return folder


@cache
def overfitted_model() -> Path:
    """The folder of a model of three views that knows one head by heart."""
    folder = Path(tempfile.mkdtemp(prefix="trinat-overfitted-"))
    scheme = load_scheme("quicknat33")
    networks = {view: _train(view, len(scheme), scheme) for view in View}
    absent = [
        label.name
        for label in scheme.labels[1:]
        if label.fs_id not in np.unique(head_labels()).tolist()
    ]
    description = Description(
        name="overfitted", not_predicted=tuple(absent), metrics={"slices": STEPS}
    )
    save_model(folder, description, networks)
    return folder


def _train(view: View, classes: int, scheme) -> QuickNat:
    scan, truth = miniature()
    conformed = conform(scan, shape=None)
    indices = scheme.from_freesurfer(
        conform(truth, labels=True, plan=conformed.plan).volume.data
    )
    if view is View.SAGITTAL:
        indices = scheme.merged.to_merged[indices]
        classes = len(scheme.merged.scheme)
    # The head without most of the air around it, of which there is nothing to learn.
    head = (slice(4, 60),) * 3
    image = torch.from_numpy(conformed.volume.data[head])
    images = to_slices(image, view)[:, None]
    targets = to_slices(torch.from_numpy(indices[head].astype(np.int64)), view)
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        network = QuickNat(SMALL.model_copy(update={"classes": classes}))
        optimiser = torch.optim.AdamW(network.parameters(), 0.02)
        # Most of a slice is background.
        weights = torch.ones(classes)
        weights[0] = 0.2
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.02, STEPS)
        for step in range(STEPS):
            part = slice(step % PART, None, PART)
            loss = torch.nn.functional.cross_entropy(
                network(images[part]), targets[part], weights
            )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return network.eval()
