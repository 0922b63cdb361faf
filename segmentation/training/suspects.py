"""What wrong labels do to a network that knows better: losses, gradients, sides, places, sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy

from trinat.segmentation.labels.scheme import IGNORE
from trinat.segmentation.metrics.overlap import dice, joint_histogram, side_swap
from trinat.segmentation.metrics.statistics import robust_z
from trinat.segmentation.models.base import Classifier, Network

Values = NDArray[np.float64]

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
# Voxels of the sampled slices under which a place or a size is not sure.
_FEWEST = 20
# Subjects that the usual spread of all structures counts as, beside a structure's own.
_USUAL = 5


class Look(NamedTuple):
    """Slices of one view (N, H, W) as a network sees them, and what their labels cost."""

    truth: NDArray[np.uint8]
    predicted: NDArray[np.uint8]
    loss: Values  # (N,) mean cross entropy of what is labelled or predicted
    gradient: Values  # (N,) norm of its gradient for the classifier's weights


class SubjectSummary(NamedTuple):
    """A subject's measures, voxels by label and prediction (K, K), and where loss is highest."""

    measures: Mapping[str, float]
    joint: NDArray[np.int64]
    worst: tuple[int, int]  # view and slice


def look(network: Network, slices: Tensor, truth: Tensor) -> Look:
    """Slices (N, C, H, W) and their classes (N, H, W); what is IGNORE costs nothing."""
    with torch.no_grad():
        features = network.features(slices)
    weights = {
        name: value.detach() for name, value in network.classifier.named_parameters()
    }
    each = vmap(grad_and_value(_loss, has_aux=True), in_dims=(None, None, 0, 0))
    gradients, (loss, predicted) = each(
        weights, network.classifier, features, truth.long()
    )
    squares = sum(value.flatten(1).square().sum(1) for value in gradients.values())
    known = truth.cpu() != IGNORE
    return Look(
        (truth.cpu() * known).numpy().astype(np.uint8),
        (predicted.cpu() * known).numpy().astype(np.uint8),
        loss.double().cpu().numpy(),
        squares.sqrt().double().cpu().numpy(),
    )


def _loss(
    weights: Mapping[str, Tensor],
    classifier: Classifier,
    features: Tensor,
    truth: Tensor,
) -> tuple[Tensor, Tensor]:
    """Of one slice; background that is seen as such would drown all else."""
    rows, columns = truth.shape
    found = functional_call(classifier, dict(weights), (features[None],))
    logits = found[..., :rows, :columns].float()
    predicted = logits.argmax(1)[0]
    costs = cross_entropy(logits, truth[None], ignore_index=IGNORE, reduction="none")[0]
    counted = (truth != IGNORE) & ((truth > 0) | (predicted > 0))
    return (costs * counted).sum() / counted.sum().clamp(min=1), predicted


def summarise(views: Sequence[Look], partners: NDArray[np.int64]) -> SubjectSummary:
    """One subject's looks from several views as one; `partners` are the classes' other sides."""
    classes = len(partners)
    joint = np.sum(
        [joint_histogram(v.truth, v.predicted, classes) for v in views], axis=0
    )
    # 0 where hardly anything is labelled or predicted.
    inside = [((v.truth > 0) | (v.predicted > 0)).sum((1, 2)) >= _FEWEST for v in views]
    losses = [v.loss * known for v, known in zip(views, inside, strict=True)]
    gradients = [v.gradient * known for v, known in zip(views, inside, strict=True)]
    view = int(np.argmax([of_view.max() for of_view in losses]))
    swapped = side_swap(joint, partners)
    measures = {
        "loss": np.concatenate(losses).mean(),
        "slice loss": np.concatenate(losses).max(),
        "gradient": np.concatenate(gradients).mean(),
        "sides": np.nanmean(swapped) if (~np.isnan(swapped)).any() else 0.0,
        "shift": max(_shift(v, classes) for v in views),
    }
    place = (view, int(losses[view].argmax()))
    return SubjectSummary(
        {name: float(value) for name, value in measures.items()}, joint, place
    )


def _shift(view: Look, classes: int) -> float:
    """Voxels within slices between label and prediction: the median over structures."""
    lines = np.indices(view.truth.shape)[1:].reshape(2, -1)
    places = []
    for labels in (view.truth.ravel(), view.predicted.ravel()):
        counts = np.bincount(labels, minlength=classes)
        sums = np.array([np.bincount(labels, line, classes) for line in lines])
        places.append(
            np.where(counts >= _FEWEST, sums / np.maximum(counts, 1), np.nan)[:, 1:]
        )
    apart = places[0] - places[1]
    known = apart[:, ~np.isnan(apart).any(0)]
    return float(np.hypot(*np.median(known, axis=1))) if known.size else 0.0


def rank(
    found: Mapping[str, SubjectSummary],
    names: Sequence[str],
    partners: NDArray[np.int64],
) -> pd.DataFrame:
    """A row a subject, the most suspect first: score, why, structure, and the measures.

    The score is the largest distance from the other subjects, in robust standard deviations;
    `structure` is the one that is farthest from theirs.
    """
    measures = pd.DataFrame(
        [e.measures for e in found.values()], list(found), list(MEASURES)
    )
    # From 1 on, so that measures which are 0 for most subjects have a least spread too.
    distances = (1 + measures).apply(robust_z, raw=True, least_spread=_LEAST)
    by_structure = _by_structure(np.array([e.joint for e in found.values()]), partners)
    # Of many structures one is always somewhat far: what counts is how much farther.
    farthest = by_structure.max(1)
    distances["structure"] = farthest - np.median(farthest)
    structures = [names[1 + n] for n in by_structure.argmax(1)]
    kinds = zip(distances.idxmax(axis=1), structures, strict=True)
    why = [MEASURES.get(str(kind), f"{structure} differs") for kind, structure in kinds]
    table = pd.DataFrame(
        {"score": distances.max(axis=1), "why": why, "structure": structures}
    )
    return table.join(measures).sort_values("score", ascending=False, kind="stable")


def _by_structure(joint: NDArray[np.int64], partners: NDArray[np.int64]) -> Values:
    """How far each subject's structures are from the others', (N, K, K) to (N, K - 1)."""
    labelled, predicted = (joint.sum(axis)[:, 1:] + float(_FEWEST) for axis in (2, 1))
    missed = 1 - np.nan_to_num(np.array([dice(each) for each in joint]), nan=1.0)[:, 1:]
    sizes = (
        labelled / labelled.sum(1, keepdims=True),  # large heads are none to look at
        labelled / predicted,  # a person's own anatomy drops out
        labelled
        / labelled[:, partners[1:] - 1],  # and sides are more alike than persons
    )
    distances = [
        _moderated(missed),
        *(np.abs(_moderated(np.log(size))) for size in sizes),
    ]
    return np.asarray(np.max(distances, axis=0))


def _moderated(values: Values) -> Values:
    """Distances from the median of each column, (N, K), in its spread and the usual spread.

    Of a few subjects a column's own spread is little known; so that of the other columns counts
    too, as in moderated t statistics (Smyth 2004).
    """
    apart = values - np.median(values, axis=0)
    own = 1.4826 * np.median(np.abs(apart), axis=0)
    usual = max(float(np.median(own)), _LEAST)
    count = len(values)
    return apart / np.sqrt((count * own**2 + _USUAL * usual**2) / (count + _USUAL))
