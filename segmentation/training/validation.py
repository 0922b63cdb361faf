"""Validation on whole scans, not on single slices: Dice and IoU of each class."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.segmentation.errors import TrainingError
from trinat.segmentation.inference.network import thick
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.overlap import Counts, dice, iou, joint_histogram
from trinat.segmentation.models.base import Network
from trinat.segmentation.models.hardware import computing_in
from trinat.segmentation.space.views import View, to_slices
from trinat.segmentation.synthetic.heads import HeadMaps
from trinat.segmentation.synthetic.settings import SynthesisConfig
from trinat.segmentation.synthetic.synthesis import synthesise_volume
from trinat.segmentation.synthetic.targets import aim
from trinat.segmentation.training.state import seeded

# Number of slices in a batch.
_BATCH = 8


@dataclass(frozen=True, eq=False)
class ValidationScan:
    """A whole scan as slices of one view.

    `images` (N, H, W) is float32, `labels` (N, H, W) are class indices. `name` is for messages and
    tables. If `counted` (N, H, W) is given, only voxels where it is True are scored.
    """

    name: str
    images: Tensor
    labels: Tensor
    counted: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Scores:
    """Mean Dice and IoU of each class over scans, (K,).

    NaN for background, and for classes that are neither in the labels nor in the predictions.
    """

    dice: NDArray[np.float64]
    iou: NDArray[np.float64]

    @property
    def mean_dice(self) -> float:
        """Mean Dice over the classes that are not NaN."""
        return float(torch.from_numpy(self.dice).nanmean())

    @property
    def mean_iou(self) -> float:
        """Mean IoU over the classes that are not NaN."""
        return float(torch.from_numpy(self.iou).nanmean())


def synthetic_scans(
    maps: HeadMaps,
    chosen: Sequence[int],
    scheme: LabelScheme,
    config: SynthesisConfig,
    view: View,
    seed: int,
) -> Iterator[ValidationScan]:
    """Yield a synthetic scan of each of the `chosen` heads; `chosen` has their indices.

    The same `seed` gives the same scans. Each is made when it is requested, so that only one is in
    memory.
    """
    for head in chosen:
        alone = maps.part(slice(head, head + 1))
        heads = aim(alone, scheme, learn_fluid=config.learn_fluid).seen_in(view)
        generator = seeded("cpu", seed, 2, head)
        image, classes = synthesise_volume(heads, config, generator)
        yield ValidationScan(
            name=f"head-{head + 1}",
            images=to_slices(image, view),
            labels=to_slices(classes, view),
        )


@torch.inference_mode()
def predict_classes(
    network: Network,
    images: Tensor,
    device: torch.device,
    precision: torch.dtype = torch.float32,
) -> Tensor:
    """Return the most probable class of each pixel of a scan, (N, H, W) uint8 on the CPU.

    `images` (N, H, W) are the slices of the scan. The network gets batches in which each slice has
    its neighbouring slices as channels; neighbours beyond the scan's ends are empty.
    """
    classes = []
    for batch in torch.split(thick(images, network.config.channels), _BATCH):
        with computing_in(precision, device):
            logits = network(batch.to(device))
        classes.append(logits.argmax(1).to(torch.uint8).cpu())
    return torch.cat(classes)


def foresee(
    network: Network,
    scans: Iterable[ValidationScan],
    device: torch.device,
    precision: torch.dtype = torch.float32,
) -> float:
    """Estimate how long `validate` will take, in seconds, by timing one batch of each scan.

    All scans are read or made, but only one batch of each is segmented. The network is set to
    evaluation mode.
    """
    network.eval()
    began = time.monotonic()
    unseen_s = 0.0
    for scan in scans:
        middle = len(scan.images) // 2
        batch = scan.images[middle : middle + _BATCH]
        before = time.monotonic()
        predict_classes(network, batch, device, precision)
        seen_s = time.monotonic() - before
        unseen_s += seen_s * (len(scan.images) / len(batch) - 1)
    return time.monotonic() - began + unseen_s


def validate(
    network: Network,
    scans: Iterable[ValidationScan],
    device: torch.device,
    precision: torch.dtype = torch.float32,
) -> Scores:
    """Score the network on whole scans.

    The network is set to evaluation mode, so the statistics of its norms do not change. Raises
    TrainingError if there is no scan.
    """
    network.eval()
    joints = []
    for scan in scans:
        predicted = predict_classes(network, scan.images, device, precision)
        joints.append(_count_pairs(scan, predicted, network.config.classes))
    if not joints:
        raise TrainingError(
            "validation has no scan", remedy="give held_out heads or a split"
        )
    return Scores(
        dice=_mean_over([dice(joint) for joint in joints]),
        iou=_mean_over([iou(joint) for joint in joints]),
    )


def _count_pairs(scan: ValidationScan, predicted: Tensor, classes: int) -> Counts:
    """Count voxels by true and predicted class, (K, K).

    Voxels that are not scored become background in both, which has no score.
    """
    truth = scan.labels
    if scan.counted is not None:
        truth = truth * scan.counted
        predicted = predicted * scan.counted
    return joint_histogram(truth.numpy(), predicted.numpy(), classes)


def _mean_over(values: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the mean of each class over the scans in which it is defined, (K,).

    Background is NaN.
    """
    stacked = torch.from_numpy(np.stack(values))
    means = np.asarray(stacked.nanmean(0))
    means[0] = np.nan
    return means
