"""Real networks for tests: one overfitted to the miniature head, and one with random weights."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from helpers.miniatures import head_image, head_labels, turned
from helpers.small_model import save_parcels
from trinat.segmentation.grid import Grid, grown, occupied_box, to_shape
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.models.checkpoint import (
    load_model,
    save_model,
    update_info,
)
from trinat.segmentation.models.model_info import (
    Description,
    Fusion,
    Preprocessing,
    Quality,
    Training,
)
from trinat.segmentation.models.quicknat import QuickNat, QuickNatConfig
from trinat.segmentation.space.conform import conform
from trinat.segmentation.space.grid_map import GridMap
from trinat.segmentation.space.resample import resample_image
from trinat.segmentation.space.views import View, to_slices

# Committed weights of each view, made by write_weights.
WEIGHTS = Path(__file__).parent / "overfitted-weights"
STEPS = 500
# Each step trains on a third of the slices, in turn.
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
    """Return scan and truth (FreeSurfer numbers) of the miniature head."""
    image, affine = turned(head_image(head_labels(), seed), axes)
    truth, _ = turned(head_labels(), axes)
    return Volume(image, affine), Volume(truth, affine)


def miniature_on(spacing_mm: tuple[float, float, float], angle: float) -> Volume:
    """Return the miniature head on another grid in LIA order, turned about the vertical axis."""
    scan, _ = miniature("LIA")
    cosine, sine = np.cos(angle), np.sin(angle)
    turn = np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]])
    shape = to_shape(np.array(scan.shape) / spacing_mm + 4)
    affine = np.eye(4)
    affine[:3, :3] = turn @ scan.affine[:3, :3] @ np.diag(spacing_mm)
    # The centre of the field of view stays in place.
    middle = scan.grid.places((np.array(scan.shape) - 1) / 2)
    affine[:3, 3] = middle - affine[:3, :3] @ ((np.array(shape) - 1) / 2)
    to = GridMap.between(scan.grid, Grid(shape, affine))
    return Volume(resample_image(scan.data, to), affine)


@cache
def random_model() -> Path:
    """Return the folder of a model with random weights, for tests that need no right answers."""
    folder = Path(tempfile.mkdtemp(prefix="trinat-random-"))
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        networks = {
            view: QuickNat(
                SMALL.model_copy(
                    update={
                        "filters": 4,
                        "depth": 1,
                        "classes": 19 if view is View.SAGITTAL else 33,
                    }
                )
            )
            for view in View
        }
    save_model(folder, Description(name="random"), networks)
    return folder


def model_of_all_fluid(folder: Path) -> Path:
    """Write a model with random weights whose CSF is all fluid inside the skull."""
    shutil.copytree(random_model(), folder)
    update_info(folder, csf="intracranial")
    return folder


@cache
def overfitted_model() -> Path:
    """Return the folder of a model of three views that is overfitted to one head.

    Its weights are committed, because training on another processor gives other weights, and
    some of them are worse.
    """
    folder = Path(tempfile.mkdtemp(prefix="trinat-overfitted-"))
    scheme = load_scheme("quicknat33")
    networks = {}
    for view in View:
        network = _network(view, scheme)
        network.load_state_dict(load_file(WEIGHTS / f"{view.value}.safetensors"))
        networks[view] = network.eval()
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


def with_parcels(folder: Path, scheme: str = "desikan34") -> Path:
    """Copy the overfitted model and add networks for parcels with random weights."""
    shutil.copytree(overfitted_model(), folder)
    save_parcels(folder / "parcels", scheme)
    return folder


def _train(view: View, scheme: LabelScheme) -> QuickNat:
    """Train a network on one view of the miniature head, on one thread."""
    scan, truth = miniature()
    conformed = conform(scan, shape=None)
    indices = scheme.from_freesurfer(
        conform(truth, labels=True, plan=conformed.plan).volume.data
    )
    if view is View.SAGITTAL:
        indices = scheme.merged.to_merged[indices]
    # The head with a few voxels of air around it; more air teaches nothing.
    scan_data = conformed.volume.data
    head = grown(occupied_box(scan_data > 0), scan_data.shape, 8)
    images = to_slices(torch.from_numpy(scan_data[head]), view)[:, None]
    targets = to_slices(torch.from_numpy(indices[head].astype(np.int64)), view)
    torch.manual_seed(1)
    network = _network(view, scheme)
    optimiser = torch.optim.AdamW(network.parameters(), 0.01)
    # Most of a slice is background.
    weights = torch.ones(len(scheme.seen_in(view)))
    weights[0] = 0.3
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.01, STEPS)
    for step in range(STEPS):
        part = slice(step % PART, None, PART)
        loss = torch.nn.functional.cross_entropy(
            network(images[part]), targets[part], weights
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return network


def _network(view: View, scheme: LabelScheme) -> QuickNat:
    """Return a small network for the classes that a view can show."""
    classes = len(scheme.seen_in(view))
    return QuickNat(SMALL.model_copy(update={"classes": classes}))


def write_weights() -> None:
    """Train the three views and write their weights: `python -m helpers.overfitted` in tests/."""
    torch.set_num_threads(1)
    scheme = load_scheme("quicknat33")
    for view in View:
        weights = _train(view, scheme).state_dict()
        save_file(dict(weights), WEIGHTS / f"{view.value}.safetensors")


if __name__ == "__main__":
    write_weights()


def shy_model(folder: Path, side: int = 256) -> Path:
    """Save a model that knows the head but underestimates the probability of cortex.

    The working grid has `side` voxels along each axis.
    """
    model = load_model(overfitted_model())
    for view, network in model.networks.items():
        assert network.classifier.bias is not None
        # The overfitted network is too certain for odds to have an effect.
        network.classifier.weight.data *= 0.4
        network.classifier.bias.data *= 0.4
        for index, name in enumerate(model.classes_of(view).names):
            if name.endswith("Cerebral-Cortex"):
                network.classifier.bias[index] -= 2.5
    description = Description(
        name="shy",
        preprocessing=Preprocessing(shape=(side, side, side)),
        not_predicted=model.info.not_predicted,
        fusion=Fusion(csf_odds=0.5),
        quality=Quality(agreement=(0.7, 0.4)),
        training=Training(licence="CC BY-NC 3.0"),
        metrics={"of other odds": 1},
    )
    save_model(folder, description, model.networks)
    return folder
