"""A network for lesions whose answer is known."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
import torch

from trinat.segmentation.inference.lesion_network import FEATURES, LesionNetwork
from trinat.segmentation.models.zoo import LESIONS_FILE


def save_lesion_network(
    folder: Path, brighter: float = 0.3, thinnest_mm: float = 0
) -> Path:
    """Write a network that takes every voxel for lesion that is brighter by this share.

    In T1 these are the voxels that are darker by it. In slices thinner than `thinnest_mm` it is
    unreliable.
    """
    network = LesionNetwork((4, 4, 4))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        first, _, second, _, last = network.layers
        first.weight[0, FEATURES.index("brighter")] = 1
        second.weight[0, 0] = 1
        last.weight[0, 0] = 50
        last.bias.fill_(-50 * brighter)
        network.thinnest_mm.fill_(thinnest_mm)
    path = folder / LESIONS_FILE
    safetensors.torch.save_file(network.state_dict(), path)
    return path
