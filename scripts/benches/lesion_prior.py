"""An untrained network for lesions, which knows where lesions lie.

`scripts/bench lesion_prior MASKS OUT [NAME ...]` reads masks of lesions in MNI space, without those
of the participants NAME, and writes a network to the file OUT. In the folder of a model, as
lesions.safetensors, it is the start of `trinat learn --lesions`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from scipy import ndimage

from benches._painted_lesions import MNI_HIGH, MNI_LOW
from trinat.segmentation.inference.lesion_network import LesionNetwork
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.views import reoriented


def run(masks: str, out: str, *without: str) -> None:
    """Write the network."""
    read = []
    for path in sorted(Path(masks).glob("*.nii.gz")):
        if path.name.removesuffix(".nii.gz") not in without:
            mask = reoriented(Volume.read(path, labels=True), "RAS")
            read.append((mask.data > 0, mask.affine[:3, 3]))
    prior = prior_of(read)
    network = LesionNetwork(prior.shape)
    network.prior.copy_(torch.from_numpy(prior))
    save_file(network.state_dict(), out)


def prior_of(
    masks: list[tuple[NDArray[np.bool_], NDArray[np.float64]]],
    shape: tuple[int, int, int] = (48, 60, 40),
) -> NDArray[np.float32]:
    """Compute a map of how often lesions lie at each position in the white matter, as a logarithm.

    Each of `masks` is a lesion mask (X, Y, Z) in MNI space, with RAS axes and voxels of 1 mm, and
    the position of its voxel (0, 0, 0) in MNI mm. The map has the given shape and is symmetric in
    left and right. It covers the extent of the white matter and, beyond each end of it, half of
    that extent.
    """
    total = np.zeros(shape)
    scale = np.array(shape) / 2 - 0.5
    for mask, origin_mm in masks:
        place = (np.argwhere(mask) + origin_mm - MNI_LOW) / (MNI_HIGH - MNI_LOW)
        cells = np.round((place + 0.5) * scale).astype(int)
        kept = ((cells >= 0) & (cells < shape)).all(1)
        own = np.zeros(shape)
        np.add.at(own, tuple(cells[kept].T), 1)
        # Patients with many lesions must not outweigh the others.
        total += own / own.sum() ** 0.5
    total = total + total[::-1]
    total = ndimage.gaussian_filter(total, 1.5)
    return np.asarray(np.log(total / total.sum() + 1e-6), np.float32)
