"""Search for subjects whose labels are probably wrong, by comparison with a trained network.

`look` runs the network on slices of a view, `summarise` combines the views of a subject, and `rank`
compares the subjects. Four kinds of measures show wrong labels: the loss of the network, exchanged
sides, shifted labels, and the sizes of structures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from trinat.segmentation.labels.scheme import IGNORE
from trinat.segmentation.metrics.overlap import dice, joint_histogram, side_swap
from trinat.segmentation.models.base import Network

Values = NDArray[np.float64]

# Measures by name, with the meaning of a large value.
MEASURES = {
    "loss": "labels differ everywhere",
    "slice loss": "labels differ in some slices",
    "sides": "left and right are exchanged",
    "shift": "labels lie beside the image",
}
_DIFFERS = "{} differs"
# Expected spread of measures of correct labels, as a share of the median, and the smallest spread
# of the measures of structures.
_USUAL_SPREAD = 0.05
_MIN_SPREAD = 0.02
# Minimum number of voxels in the sampled slices for a reliable position or size.
_FEWEST = 20
# Weight of the expected spread, as a number of subjects, when it is averaged with the observed
# spread.
_USUAL = 5
# Share of a structure's overlap that has the label of the other side, above which left and right
# count as exchanged.
_EXCHANGED = 0.5
# Factor from median absolute deviation to standard deviation, for a normal distribution.
_MAD_TO_STD = 1.4826


class Look(NamedTuple):
    """Labels and predictions of the slices of one subject in one view, and the loss of each slice.

    `truth` and `predicted` (N, H, W) are class indices. `loss` (N,) is the mean cross entropy over
    the pixels that are labelled or predicted as a structure.
    """

    truth: NDArray[np.uint8]
    predicted: NDArray[np.uint8]
    loss: Values


class SubjectSummary(NamedTuple):
    """Signs of wrong labels of a subject, and its voxels by label and prediction.

    `measures` are by name, as in `MEASURES`. `halves` (2, K, K) counts voxels by label and
    prediction in the slices with even and those with odd index: the difference shows how much the
    choice of slices matters. `worst` is the slice with the highest loss, as (index of the view,
    index of the slice). `of_structures` (K, 2) is, in the same form, the slice in which label and
    prediction of each class differ most.
    """

    measures: Mapping[str, float]
    halves: NDArray[np.int64]
    worst: tuple[int, int]
    of_structures: NDArray[np.int64]

    @property
    def joint(self) -> NDArray[np.int64]:
        """Voxels of all slices by label and prediction, (K, K)."""
        return np.asarray(self.halves.sum(0))


@torch.no_grad()
def look(network: Network, slices: Tensor, truth: Tensor) -> Look:
    """Run the network on slices (N, C, H, W) and compare its classes with their labels (N, H, W).

    Pixels labelled IGNORE do not count; in the result they are background in labels and prediction.
    The loss is over pixels that are labelled or predicted as a structure, because correct
    background would outweigh all else.
    """
    rows, columns = truth.shape[1:]
    logits = network(slices)[..., :rows, :columns].float()
    predicted = logits.argmax(1)
    costs = cross_entropy(logits, truth.long(), ignore_index=IGNORE, reduction="none")
    known = truth != IGNORE
    counted = known & ((truth > 0) | (predicted > 0))
    number = counted.sum((1, 2)).clamp(min=1)
    loss = (costs * counted).sum((1, 2)) / number
    return Look(
        truth=(truth * known).cpu().numpy().astype(np.uint8),
        predicted=(predicted * known).cpu().numpy().astype(np.uint8),
        loss=loss.double().cpu().numpy(),
    )


def summarise(views: Sequence[Look], partners: NDArray[np.int64]) -> SubjectSummary:
    """Compute the measures of a subject that show whether its labels are wrong.

    `views` has labels, predictions and losses of the subject's slices in each view. `partners` (K,)
    has the class of the same structure on the other side. Slices with too few voxels to judge get a
    loss of 0. In the search for the worst slice, the loss of small slices is reduced.
    """
    classes = len(partners)
    halves = np.zeros((2, classes, classes), np.int64)
    for view in views:
        for half, counts in enumerate(halves):
            truth = view.truth[half::2]
            counts += joint_histogram(truth, view.predicted[half::2], classes)
    losses: list[Values] = []
    of_slices: list[Values] = []
    for view in views:
        # Number of voxels of each slice that are labelled or predicted as a structure.
        voxels = ((view.truth > 0) | (view.predicted > 0)).sum((1, 2))
        is_sure = voxels >= _FEWEST
        losses.append(view.loss * is_sure)
        of_slices.append(view.loss * _slice_weights(voxels))
    # Extent of a left-right exchange, over the structures with a side that are present.
    swapped = side_swap(halves.sum(0), partners)
    exchanged = 0.0
    if not np.isnan(swapped).all():
        exchanged = float(np.nanmean(swapped))
    measures = {
        "loss": float(np.concatenate(losses).mean()),
        "slice loss": float(np.concatenate(of_slices).max()),
        "sides": exchanged,
        "shift": max(_median_shift(view, classes) for view in views),
    }
    worst_view = int(np.argmax([of_view.max() for of_view in of_slices]))
    worst_slice = int(of_slices[worst_view].argmax())
    of_structures = _where_structures_differ(views, classes)
    return SubjectSummary(measures, halves, (worst_view, worst_slice), of_structures)


def _where_structures_differ(views: Sequence[Look], classes: int) -> NDArray[np.int64]:
    """Return the slice in which label and prediction of each class differ most, (K, 2).

    `views` has labels and predictions of a subject's slices in each view. A row is the index of the
    view and that of the slice.
    """
    places = []
    differing = []
    for number, view in enumerate(views):
        differs = view.truth != view.predicted
        for place, is_apart in enumerate(differs):
            either = (view.truth[place][is_apart], view.predicted[place][is_apart])
            counts = np.bincount(np.concatenate(either), minlength=classes)
            places.append((number, place))
            differing.append(counts)
    most = np.argmax(differing, axis=0)
    return np.asarray(np.array(places)[most])


def _slice_weights(voxels: NDArray[np.int64]) -> Values:
    """Return factors, 0 to 1, for the losses of slices (N,) in the search for the worst slice.

    `voxels` (N,) is the number of voxels of structures in each slice. A slice smaller than the
    median slice has a factor in proportion to its size: at the ends of a brain a slice of a few
    voxels may have any loss, and the choice of slices decides whether such a slice occurs.
    """
    is_sure = voxels >= _FEWEST
    if not is_sure.any():
        return np.zeros(len(voxels))
    return np.minimum(1, voxels / np.median(voxels[is_sure])) * is_sure


def _median_shift(view: Look, classes: int) -> float:
    """Return how far labels are shifted against the prediction in the slices of a view, in pixels.

    It is the length of the median shift over structures.
    """
    labelled = _centres(view.truth, classes)
    predicted = _centres(view.predicted, classes)
    apart = labelled - predicted
    known = apart[:, ~np.isnan(apart).any(0)]
    if not known.size:
        return 0.0
    down, across = np.median(known, axis=1)
    return float(np.hypot(down, across))


def _centres(labels: NDArray[np.uint8], classes: int) -> Values:
    """Return mean row and column of each structure, (2, K - 1); NaN if it has too few pixels.

    `labels` (N, H, W) are class indices; `classes` is K.
    """
    _, rows, columns = np.indices(labels.shape)
    flat = labels.ravel()
    counts = np.bincount(flat, minlength=classes)
    row_sums = np.bincount(flat, rows.ravel(), classes)
    column_sums = np.bincount(flat, columns.ravel(), classes)
    means = np.stack([row_sums, column_sums]) / np.maximum(counts, 1)
    means[:, counts < _FEWEST] = np.nan
    return means[:, 1:]


def rank(
    found: Mapping[str, SubjectSummary],
    names: Sequence[str],
    partners: NDArray[np.int64],
    limit: float,
) -> pd.DataFrame:
    """Return a table with a row for each subject, the most suspect first.

    `found` has the measures of each subject, by name. `names` (K,) are the names of the classes,
    and `partners` (K,) the class of the same structure on the other side.

    The columns are `score`, `why`, `structure` and the measures. The score is the largest distance
    from the median of all subjects, in units of the expected spread, and at least 0. If the score
    is above `limit`, `why` names its cause, and `structure` is the structure that differs most from
    that of other subjects. Otherwise both are empty.
    """
    subjects = list(found)
    rows = [subject.measures for subject in found.values()]
    measures = pd.DataFrame(rows, subjects, list(MEASURES))
    # Shifted by 1, so that measures which are 0 for most subjects have a usual spread too.
    from_one = 1 + measures
    apart, own = _apart_from_others(from_one.to_numpy())
    usual = _USUAL_SPREAD * from_one.median().to_numpy()
    spread = _shrunken_spread(own, usual, len(subjects))
    distances = pd.DataFrame(apart / spread, subjects, list(MEASURES))
    by_structure = _structure_distances(list(found.values()), partners)
    # Among many structures one always differs somewhat, so only the excess over other subjects
    # counts.
    farthest = by_structure.max(1)
    distances["structure"] = farthest - np.median(farthest)
    # The columns of `by_structure` begin with the first structure, while `names` begins with
    # background.
    structures = [names[1 + number] for number in by_structure.argmax(1)]
    kinds = distances.idxmax(axis=1)
    is_exchanged = measures["sides"] > _EXCHANGED
    why = []
    for kind, exchanged, structure in zip(kinds, is_exchanged, structures, strict=True):
        # An exchange explains all other deviations, though the loss may deviate more.
        if exchanged:
            why.append(MEASURES["sides"])
        else:
            why.append(MEASURES.get(str(kind), _DIFFERS.format(structure)))
    scores = distances.max(axis=1).clip(lower=0)
    table = pd.DataFrame({"score": scores, "why": why, "structure": structures})
    table.loc[scores <= limit, ["why", "structure"]] = ""
    table = table.join(measures)
    return table.sort_values("score", ascending=False, kind="stable")


def where_to_look(
    found: SubjectSummary, why: str, names: Sequence[str]
) -> tuple[int, int]:
    """Return the slice that shows why a subject is suspect, as (index of the view, of the slice).

    `why` is the cause in the table of `rank`: a measure, or a structure that differs. `names` (K,)
    are the names of the classes.
    """
    for index, name in enumerate(names):
        if why == _DIFFERS.format(name):
            view, place = found.of_structures[index]
            return int(view), int(place)
    return found.worst


def are_judged(found: Iterable[SubjectSummary]) -> NDArray[np.bool_]:
    """Return which structures have enough voxels in most subjects to be judged, (K - 1,) bool.

    Both halves of the slices must show enough voxels: the measured size of a structure of a few
    voxels depends on the choice of slices.
    """
    shown = []
    for subject in found:
        in_either = subject.halves.sum(2) + subject.halves.sum(1)
        in_both = subject.halves.diagonal(axis1=1, axis2=2)
        voxels = (in_either - in_both)[:, 1:]
        shown.append(voxels.min(0))
    return np.asarray(np.median(shown, axis=0) >= _FEWEST)


def _structure_distances(
    found: Sequence[SubjectSummary], partners: NDArray[np.int64]
) -> Values:
    """Return how far each subject's structures are from those of the other subjects, (N, K - 1).

    The unit is the spread over subjects, or the spread due to the choice of slices if that is
    larger. 0 for structures with too few voxels to judge.
    """
    whole = np.array(
        [_structure_measures(one.joint, partners, _FEWEST) for one in found]
    )
    differences = []
    for one in found:
        first, second = (
            _structure_measures(half, partners, _FEWEST / 2) for half in one.halves
        )
        differences.append(np.abs(first - second))
    # Each half has half of the slices, so their mean varies by half of their difference.
    of_slices = _MAD_TO_STD * np.median(differences, axis=0) / 2
    apart, own = _apart_from_others(whole)
    usual = np.maximum(np.median(own, axis=1, keepdims=True), _MIN_SPREAD)
    spread = np.maximum(_shrunken_spread(own, usual, len(found)), of_slices)
    distances = apart / spread
    # A better Dice than usual is no fault; sizes may be wrong in both directions.
    distances[:, 1:] = np.abs(distances[:, 1:])
    return np.asarray(distances.max(1) * are_judged(found))


def _structure_measures(
    joint: NDArray[np.int64], partners: NDArray[np.int64], fewest: float
) -> Values:
    """Return four measures of each structure of a subject, (4, K - 1), from voxel counts (K, K).

    They are 1 - Dice, and three logarithms of the labelled size: as a share of all structures,
    relative to the predicted size, and relative to the other side. `fewest` voxels are added to
    each size, so that small sizes do not differ by much.
    """
    labelled = joint.sum(1)[1:] + fewest
    predicted = joint.sum(0)[1:] + fewest
    missed = 1 - np.nan_to_num(dice(joint)[1:], nan=1.0)
    # Share of all structures, because a large head is no fault.
    share = labelled / labelled.sum()
    # The participant's own anatomy cancels out.
    against_predicted = labelled / predicted
    # Sides are more alike than participants.
    against_other_side = labelled / labelled[partners[1:] - 1]
    sizes = (share, against_predicted, against_other_side)
    return np.array([missed, *(np.log(size) for size in sizes)])


def _apart_from_others(values: Values) -> tuple[Values, Values]:
    """Return each subject's difference from the median, (N, ...), and the spread, (...).

    The spread is the standard deviation, estimated from the median absolute deviation.
    """
    apart = values - np.median(values, axis=0)
    return apart, _MAD_TO_STD * np.median(np.abs(apart), axis=0)


def _shrunken_spread(own: Values, usual: Values, subjects: int) -> Values:
    """Average the observed spread with the expected one, as in moderated t statistics (Smyth 2004).

    `own` is the spread over `subjects` subjects, `usual` the expected spread. A few subjects say
    little about a spread: of five, three may be alike by chance.
    """
    variance = (subjects * own**2 + _USUAL * usual**2) / (subjects + _USUAL)
    return np.sqrt(variance)
