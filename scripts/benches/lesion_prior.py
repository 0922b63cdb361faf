"""An untrained network for lesions, which knows where lesions lie.

`scripts/bench lesion_prior MASKS OUT [NAME ...]` reads masks of lesions in MNI space, without those
of the participants NAME, and writes a network to the file OUT. In the folder of a model, as
lesions.safetensors, it is the start of `trinat learn --lesions`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from trinat.segmentation.inference.lesion_network import LesionNetwork, prior_of
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
