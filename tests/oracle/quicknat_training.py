"""Reference training of QuickNAT from its formulas: the loss of the paper, and SGD with momentum.

Written pixel by pixel where that is plain to read, and in doubles, without any code of
trinat. It follows the authors' code (github.com/ai-med/QuickNATv2, quickNAT_pytorch,
nn-common-modules) except for its mistakes: softmax once, class weights that are no
integers, edges within a slice, and weights that multiply the cross entropy of each pixel
and not its mean.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

# The authors' protection against a division by zero in the Dice loss.
_EPSILON = 1e-4


def pixel_weights(labels: Tensor, counts: Tensor) -> Tensor:
    """Return omega (N, H, W): median(f) / f of the label, plus 2 median(f) / min(f) on an edge."""
    frequency = counts.numpy().astype(np.float64)
    median = np.median(frequency)
    on_edge = 2 * median / frequency.min()
    images, rows, columns = labels.shape
    truth = labels.tolist()
    omega = np.empty(labels.shape)
    for image, row, column in np.ndindex(images, rows, columns):
        label = truth[image][row][column]
        is_edge = False
        for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            is_inside = 0 <= row + down < rows and 0 <= column + right < columns
            if is_inside and truth[image][row + down][column + right] != label:
                is_edge = True
        omega[image, row, column] = median / frequency[label] + is_edge * on_edge
    return torch.from_numpy(omega)


def loss(logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Return the weighted cross entropy (mean over pixels) plus Dice loss (mean over classes)."""
    probabilities = logits.softmax(1)
    omega = pixel_weights(labels, counts)
    of_label = probabilities.gather(1, labels[:, None].long())[:, 0]
    cross_entropy = -(omega * of_label.log()).mean()
    classes = logits.shape[1]
    dice_losses = []
    for number in range(classes):
        is_class = (labels == number).to(logits.dtype)
        p = probabilities[:, number]
        overlap = 2 * (p * is_class).sum()
        dice_losses.append(1 - overlap / (p.sum() + is_class.sum() + _EPSILON))
    return cross_entropy + sum(dice_losses) / classes


class Sgd:
    """v = 0.95 v + gradient + 1e-4 weight; weight = weight - 0.1 v."""

    def __init__(self) -> None:
        self.velocity: dict[str, Tensor] = {}

    def step(self, weights: Mapping[str, Tensor]) -> None:
        """Update the weights that have a gradient."""
        with torch.no_grad():
            for name, weight in weights.items():
                pull = weight.grad + 1e-4 * weight
                before = self.velocity.get(name, torch.zeros_like(weight))
                self.velocity[name] = 0.95 * before + pull
                weight -= 0.1 * self.velocity[name]
