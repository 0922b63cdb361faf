"""What goes wrong in a scanner and torch has no means for: TorchIO's and MONAI's transforms.

They work on one slice at a time on the processor, so they are asked for by name and cost time
(docs/data.md); nothing is imported until then.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

__all__ = ["Artefact", "add_artefact"]

Artefact = Literal["ghosting", "motion", "spike", "gibbs"]


def add_artefact(image: Tensor, artefact: Artefact, seed: int) -> Tensor:
    """One slice (C, H, W) with the artefact, on the slice's device; the seed fixes it."""
    slices = image.detach().cpu()
    changed = (_monai if artefact in ("spike", "gibbs") else _torchio)(slices, artefact, seed)
    return changed.clamp(min=0).to(image)


def _torchio(slices: Tensor, artefact: Artefact, seed: int) -> Tensor:
    import torchio

    transform = {
        "ghosting": torchio.RandomGhosting(num_ghosts=(2, 8), axes=(0, 1), intensity=(0.2, 0.7)),
        "motion": torchio.RandomMotion(degrees=6, translation=5, num_transforms=2),
    }[artefact]
    # TorchIO draws from torch's global generator, which is not ours to move.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        changed: Tensor = transform(slices[..., None])
    return changed[..., 0]


def _monai(slices: Tensor, artefact: Artefact, seed: int) -> Tensor:
    from monai.transforms import RandGibbsNoise, RandKSpaceSpikeNoise

    transform = {
        "spike": RandKSpaceSpikeNoise(prob=1.0, channel_wise=False),
        "gibbs": RandGibbsNoise(prob=1.0, alpha=(0.3, 0.7)),
    }[artefact]
    transform.set_random_state(seed)
    return torch.as_tensor(transform(slices))
