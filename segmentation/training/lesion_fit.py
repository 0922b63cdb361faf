"""Training of the lesion network on features of single voxels.

Most voxels of a brain are easy to classify. A sample therefore has voxels of all kinds, each with
the number of voxels that it stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import binary_cross_entropy_with_logits

from trinat.segmentation.inference.lesion_network import (
    FEATURES,
    LesionNetwork,
    VoxelFeatures,
)

# Maximum number of voxels that are sampled in a scan: of lesions, of bright tissue that is no
# lesion, and of other tissue.
_LESION_VOXELS = 4000
_BRIGHT_VOXELS = 12_000
_OTHER_VOXELS = 6000
# A voxel whose surroundings are brighter than white matter by this share may look like a lesion.
_BRIGHT = 0.1
# The weights of a scan's voxels are divided by its number of lesion voxels plus this number, so
# that scans with few lesions do not dominate.
_EXTRA_VOXELS = 2000
_SEED = 0
_BATCH = 4096
_RATE = 5e-3
# Rate at which a trained network is trained further.
_RATE_OF_MORE = 1e-3
_WEIGHT_DECAY = 5e-2
_DICE_WEIGHT = 0.5


@dataclass(frozen=True, eq=False)
class VoxelSample:
    """Some voxels of a scan.

    `features` (N, F) are their features (`FEATURES`), `is_lesion` (N,) their true class, and
    `weights` (N,) their weight in the loss.
    """

    features: NDArray[np.float32]
    is_lesion: NDArray[np.bool_]
    weights: NDArray[np.float32]


def sample_voxels(
    features: VoxelFeatures,
    lesions: NDArray[np.bool_],
    rng: np.random.Generator,
) -> VoxelSample:
    """Sample voxels of a scan for training.

    `features` are those of the scan's voxels, and `lesions` (X, Y, Z) is the true mask.
    """
    values = features.values
    is_lesion = lesions[features.places]
    is_bright = values[:, FEATURES.index("brighter_1mm")] > _BRIGHT
    chosen = []
    weights = []
    for members, most in (
        (is_lesion, _LESION_VOXELS),
        (~is_lesion & is_bright, _BRIGHT_VOXELS),
        (~is_lesion & ~is_bright, _OTHER_VOXELS),
    ):
        places = np.flatnonzero(members)
        kept = places
        if len(places) > most:
            kept = rng.choice(places, most, replace=False)
        chosen.append(kept)
        weights.append(np.full(len(kept), len(places) / max(len(kept), 1)))
    of_scan = 1 / (is_lesion.sum() + _EXTRA_VOXELS)
    every = np.concatenate(chosen)
    return VoxelSample(
        values[every],
        is_lesion[every],
        (np.concatenate(weights) * of_scan).astype(np.float32),
    )


def fit_lesion_network(
    samples: Sequence[VoxelSample],
    start: LesionNetwork,
    *,
    steps: int,
    anew: bool = False,
) -> LesionNetwork:
    """Train a network on voxels of several scans.

    The loss is cross entropy plus the Dice loss of the whole batch. Training goes on from the
    network `start`, at a lower rate; or with `anew` from random weights, of which only the map of
    how often lesions lie at each position is that of `start`. The same samples give the same
    network.
    """
    features = torch.from_numpy(np.concatenate([one.features for one in samples]))
    truth = torch.from_numpy(np.concatenate([one.is_lesion for one in samples])).float()
    weights = torch.from_numpy(np.concatenate([one.weights for one in samples]))
    generator = torch.Generator().manual_seed(_SEED)
    network = deepcopy(start)
    rate = _RATE_OF_MORE
    if anew:
        rate = _RATE
        with torch.random.fork_rng([]):
            torch.manual_seed(_SEED)
            network = LesionNetwork(tuple(start.prior.shape))
        network.prior.copy_(start.prior)
        network.mean.copy_(features.mean(0))
        network.deviation.copy_(features.std(0).clamp(min=1e-3))
    optimiser = torch.optim.AdamW(
        network.parameters(), rate, weight_decay=_WEIGHT_DECAY
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    # Voxels with a large weight are drawn more often, in proportion to the square root of the
    # weight. The other factor, again the square root, is applied in the loss.
    likelihood = (weights / weights.mean()).sqrt()
    for _ in range(steps):
        drawn = torch.multinomial(
            likelihood, _BATCH, replacement=True, generator=generator
        )
        left = likelihood[drawn]
        left = left / left.mean()
        logits = network(features[drawn])
        loss = binary_cross_entropy_with_logits(logits, truth[drawn], weight=left)
        found = torch.sigmoid(logits)
        both = (left * found * truth[drawn]).sum()
        either = (left * (found + truth[drawn])).sum()
        loss = loss + _DICE_WEIGHT * (1 - 2 * both / either.clamp(min=1e-6))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    return network.eval()
