"""What wrong labels do to a network that knows better: losses, gradients, sides, places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy

from segmentation.labels.scheme import IGNORE
from segmentation.metrics.overlap import dice, joint_histogram, side_swap
from segmentation.metrics.statistics import robust_z
from segmentation.models.base import Classifier, Network

__all__ = ["MEASURES", "Evidence", "Look", "Suspect", "look", "rank", "summarise"]

# Measure: what it says where it is large.
MEASURES = {
    "loss": "labels differ everywhere",
    "slice loss": "labels differ in some slices",
    "gradient": "labels pull the network elsewhere",
    "sides": "left and right are exchanged",
    "shift": "labels lie beside the image",
}
# Least spread of a measure: a share of the median.
_LEAST = 0.02
# Voxels of the sampled slices under which a place is not sure.
_FEWEST = 20


@dataclass(frozen=True, eq=False)
class Look:
    """Slices of one view (N, H, W) as a network sees them, and what their labels cost."""

    truth: NDArray[np.uint8]
    predicted: NDArray[np.uint8]
    loss: NDArray[np.float64]  # (N,) mean cross entropy of what is labelled or predicted
    gradient: NDArray[np.float64]  # (N,) norm of its gradient for the classifier's weights


@dataclass(frozen=True, eq=False)
class Evidence:
    """A subject's measures, Dice and labelled voxels by class (K,), and where loss is highest."""

    measures: Mapping[str, float]
    dice: NDArray[np.float64]
    voxels: NDArray[np.int64]
    worst: tuple[int, int]  # view and slice


@dataclass(frozen=True, eq=False)
class Suspect:
    """`score` is the largest distance from the other subjects, in robust standard deviations."""

    subject: str
    score: float
    why: str
    structure: str  # that is farthest from the other subjects' Dice
    evidence: Evidence


def look(network: Network, slices: Tensor, truth: Tensor) -> Look:
    """Slices (N, C, H, W) and their classes (N, H, W); what is IGNORE costs nothing."""
    with torch.no_grad():
        features = network.features(slices)
    weights = {name: value.detach() for name, value in network.classifier.named_parameters()}
    each = vmap(grad_and_value(_loss, has_aux=True), in_dims=(None, None, 0, 0))
    gradients, (loss, predicted) = each(weights, network.classifier, features, truth.long())
    squares = sum(value.flatten(1).square().sum(1) for value in gradients.values())
    known = truth.cpu() != IGNORE
    return Look(
        (truth.cpu() * known).numpy().astype(np.uint8),
        (predicted.cpu() * known).numpy().astype(np.uint8),
        loss.double().cpu().numpy(),
        squares.sqrt().double().cpu().numpy(),
    )


def _loss(
    weights: Mapping[str, Tensor], classifier: Classifier, features: Tensor, truth: Tensor
) -> tuple[Tensor, Tensor]:
    """Of one slice; background that is seen as such would drown all else."""
    rows, columns = truth.shape
    found = functional_call(classifier, dict(weights), (features[None],))
    logits = found[..., :rows, :columns].float()
    predicted = logits.argmax(1)[0]
    costs = cross_entropy(logits, truth[None], ignore_index=IGNORE, reduction="none")[0]
    counted = (truth != IGNORE) & ((truth > 0) | (predicted > 0))
    return (costs * counted).sum() / counted.sum().clamp(min=1), predicted


def summarise(views: Sequence[Look], partners: NDArray[np.int64]) -> Evidence:
    """One subject's looks from several views as one; `partners` are the classes' other sides."""
    classes = len(partners)
    joint = sum(
        (joint_histogram(v.truth, v.predicted, classes) for v in views),
        np.zeros((classes, classes), np.int64),
    )
    losses = [_of_brain(v, v.loss) for v in views]
    swapped = side_swap(joint, partners)
    view = int(np.argmax([of_view.max() for of_view in losses]))
    measures = {
        "loss": float(np.mean(np.concatenate(losses))),
        "slice loss": float(np.max(np.concatenate(losses))),
        "gradient": float(np.mean(np.concatenate([_of_brain(v, v.gradient) for v in views]))),
        "sides": float(np.nanmean(swapped)) if (~np.isnan(swapped)).any() else 0.0,
        "shift": float(np.max([_shift(v, classes) for v in views])),
    }
    return Evidence(measures, dice(joint), joint.sum(1), (view, int(losses[view].argmax())))


def _of_brain(view: Look, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values of slices, 0 where hardly anything is labelled or predicted."""
    inside = ((view.truth > 0) | (view.predicted > 0)).sum((1, 2))
    return np.where(inside >= _FEWEST, values, 0.0)


def _shift(view: Look, classes: int) -> float:
    """Voxels within slices between label and prediction: the median over structures."""
    lines = np.indices(view.truth.shape)[1:].reshape(2, -1)
    places = []
    for labels in (view.truth.ravel(), view.predicted.ravel()):
        counts = np.bincount(labels, minlength=classes)
        sums = np.array([np.bincount(labels, line, classes) for line in lines])
        places.append(np.where(counts >= _FEWEST, sums / np.maximum(counts, 1), np.nan)[:, 1:])
    apart = places[0] - places[1]
    known = apart[:, ~np.isnan(apart).any(0)]
    return float(np.hypot(*np.median(known, axis=1))) if known.size else 0.0


def rank(found: Mapping[str, Evidence], names: Sequence[str]) -> list[Suspect]:
    """All subjects, the most suspect first."""
    missed = 1 - np.nan_to_num(np.array([e.dice for e in found.values()]), nan=1.0)[:, 1:]
    voxels = np.array([e.voxels for e in found.values()], float)[:, 1:]
    # Shares of the brain, so that large heads are none to look at.
    sizes = np.log((voxels + 1) / (voxels.sum(1, keepdims=True) + 1))
    by_structure = np.column_stack([_distance(column) for column in missed.T])
    by_size = np.column_stack([np.abs(robust_z(c, least_spread=_LEAST)) for c in sizes.T])
    by_structure = np.fmax(by_structure, by_size)
    columns = {
        name: _distance(np.array([e.measures[name] for e in found.values()])) for name in MEASURES
    }
    # These are distances already, and of many structures one is always somewhat far.
    columns["structure"] = _distance(by_structure.max(1), 1.0)
    table = np.column_stack(list(columns.values()))
    suspects = []
    for subject, distances, structures in zip(found, table, by_structure, strict=True):
        what = list(columns)[int(distances.argmax())]
        structure = names[1 + int(structures.argmax())]
        why = MEASURES.get(what, f"{structure} differs")
        suspects.append(Suspect(subject, float(distances.max()), why, structure, found[subject]))
    return sorted(suspects, key=lambda suspect: -suspect.score)


def _distance(values: NDArray[np.float64], least: float = _LEAST) -> NDArray[np.float64]:
    """Robust standard deviations above the median; one is at least this share of 1 + median."""
    # From 1 on, so that measures which are 0 for most subjects have a least spread too.
    return robust_z(1 + values, least_spread=least)
