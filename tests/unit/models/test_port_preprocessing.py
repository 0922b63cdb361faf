"""An imported checkpoint receives a whole scan preprocessed as by the authors' own code.

Their code in short is the reference: the conformed volume with axes L, I, A, scaled from its
minimum to its maximum, slices by transpose, one after another through their network.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.miniatures import SHAPE, head_image, head_labels, turned
from oracle import quicknat_port as port

from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.models.checkpoint import save_model
from trinat.segmentation.models.foreign import PORT_PREPROCESSING, read_port
from trinat.segmentation.models.model_info import Description
from trinat.segmentation.space.views import View

SIDE = 48  # instead of 256
# The axis permutation by which the port's loader makes slices of each view.
TRANSPOSED = {View.CORONAL: (2, 0, 1), View.AXIAL: (1, 2, 0), View.SAGITTAL: (0, 1, 2)}
CLASSES = {View.CORONAL: 33, View.AXIAL: 33, View.SAGITTAL: 19}


@cache
def network(view: View) -> port.QuickNat:
    """Return a random network that is certain of something else in each part of the head."""
    trained = port.trained(classes=CLASSES[view])
    slices = conformed().transpose(TRANSPOSED[view])[SIDE // 3 :: SIDE // 3]
    with torch.inference_mode():
        logits = trained(torch.from_numpy(slices.copy())[:, None])
    with torch.no_grad():
        gain = 2 / logits.std((0, 2, 3)).mean()
        classifier = trained.classifier.conv
        classifier.bias.sub_(logits.mean((0, 2, 3))).mul_(gain)
        classifier.weight.mul_(gain)
    return trained


def imported(folder: Path, *views: View) -> Predictor:
    """Import the checkpoints of these views as one model, on a grid of fewer voxels."""
    networks = {}
    for view in views:
        torch.save(network(view).state_dict(), folder / f"{view.value}.pth")
        networks[view] = read_port(folder / f"{view.value}.pth")
    preprocessing = PORT_PREPROCESSING.model_copy(update={"shape": (SIDE, SIDE, SIDE)})
    description = Description(name="port", preprocessing=preprocessing)
    save_model(folder / "port", description, networks)
    return Predictor(folder / "port", device="cpu", precision="float32")


@cache
def head() -> np.ndarray:
    """Return a head in RAS, noisy everywhere.

    In flat areas pooling may choose any of equal voxels.
    """
    margins = [((SIDE - n) // 2, (SIDE - n) // 2) for n in SHAPE]
    image = np.pad(head_image(head_labels()), margins)
    return (image + 200 * np.random.default_rng(3).random(image.shape)).astype(
        np.float32
    )


def conformed() -> np.ndarray:
    """Return the head with axes L, I, A, from 0 to 1."""
    lia = head()[::-1].transpose(0, 2, 1)[:, ::-1]
    return (lia - lia.min()) / (lia.max() - lia.min())


def straightforward(view: View) -> np.ndarray:
    """Return the probabilities (L, I, A, K) of one view."""
    order = TRANSPOSED[view]
    slices = conformed().transpose(order)
    found = []
    with torch.inference_mode():
        for image in slices:
            logits = network(view)(torch.from_numpy(image.copy())[None, None])
            found.append(logits.softmax(1)[0].permute(1, 2, 0).numpy())
    return np.stack(found).transpose([*np.argsort(order), 3])


def scan(axes: str) -> Volume:
    return Volume(*turned(head(), axes))


@pytest.mark.parametrize("view", list(View))
def test_each_view_gives_the_ports_probabilities(view: View, tmp_path: Path) -> None:
    found = imported(tmp_path, view).segment(scan("PIR"))
    lia = straightforward(view)
    # A prediction has RAS axes.
    expected = lia[:, ::-1].transpose(0, 2, 1, 3)[::-1]
    off = np.abs(found.fused.float().numpy() - expected).max(axis=-1)
    # Half precision in the sum; and a pool with two all but equal voxels may take the other one,
    # which moves the voxels around it (0.2 % of them on one processor, none on another). With
    # slices turned, mirrored or scaled otherwise, 98 % of all voxels are off.
    assert (off > 2e-3).mean() < 0.01
    assert expected.std(axis=(0, 1, 2)).max() > 0.05


def test_the_fused_labels_lie_where_the_scans_voxels_are(tmp_path: Path) -> None:
    found = imported(tmp_path, View.CORONAL, View.AXIAL).segment(scan("PIR"))
    lia = (straightforward(View.CORONAL) + straightforward(View.AXIAL)).argmax(-1)
    ras = lia[:, ::-1].transpose(0, 2, 1)[::-1]
    expected, _ = turned(ras.astype(np.uint8), "PIR")
    assert len(np.unique(expected)) > 3
    assert (found.indices.data == expected).mean() > 0.999
