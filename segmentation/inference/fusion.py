"""Fusion of views: weighted mean of their probabilities in one buffer, and odds of classes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from trinat.segmentation.errors import ConfigError
from trinat.segmentation.labels.label import CSF_GROUP
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.models.model_info import DEFAULT_WEIGHTS, Mean
from trinat.segmentation.space.views import SliceAxes, View, slice_axes, to_slices

# Views of voxels up to this size are equally sharp for the networks, which see a grid of 1 mm.
_SHARP_MM = 2.0
# Lower limit of a class's probability in each view of a geometric mean. On the two scans by which
# it was chosen, 0.01 and 0.001 were equally good, and 0.1 was worse by a thousandth.
_MIN_PROBABILITY = 1e-3
_SPAN = -math.log(_MIN_PROBABILITY)
# Number of voxels whose classes stay in a processor's cache from one operation to the next: adding
# views takes a fifth less time, finishing half the time (docs/notes/speed.md).
_VOXELS_IN_CACHE = 4096
# Slices that are processed at a time, to save memory.
_SLAB = 8
# Voxels whose probabilities are multiplied by odds at a time.
_VOXELS_AT_A_TIME = 1 << 18

# Class name -> factor on the class's probability, applied before the most probable class is chosen.
# With a factor above 1, a structure wins more of the uncertain voxels. Factors are fitted to
# labelled scans.
Odds = Mapping[str, float]


def weights_for_voxels(
    weights: Mapping[View, float],
    axes: Mapping[View, SliceAxes],
    sides_mm: Sequence[float],
    exponent: float,
) -> dict[View, float]:
    """Return the weights of the views for a scan, in which thick slices blur some of them.

    The blur of a view is the longest side of the scan's voxels within its slices, at least 2 mm.
    The weight of a view is multiplied by (least blur of all views / its own blur) ** `exponent`. In
    axial slices of 8 mm the weights of the coronal and sagittal views are divided by 4 **
    `exponent`; if voxels are at most 2 mm long, or cubes, all weights stay the same.

    `weights` are those for sharp scans. `axes` are the axes of the working grid along which the
    slices of each view are cut, and `sides_mm` (3,) the sides of the scan's voxels along the axes
    of that grid.
    """
    blur = {}
    for view in weights:
        _, rows, columns = axes[view]
        blur[view] = max(_SHARP_MM, sides_mm[rows], sides_mm[columns])
    least = min(blur.values())
    return {
        view: weight * (least / blur[view]) ** exponent
        for view, weight in weights.items()
    }


class ViewAggregator:
    """Weighted mean of the class probabilities of the views, accumulated in one volume.

    `fused` is that volume, (X, Y, Z, K) float16. While slices are added it holds incomplete sums;
    after `finish` it holds the fused probabilities. The sagittal view must be added last. The axis
    of classes comes last because networks return it so and all steps but restoring need it so.

    A sagittal slice does not show which side it is on, so its network has merged classes, without
    sides. The probability of a merged class is divided between left and right in the ratio that the
    other views give at that voxel. The sums of an arithmetic mean therefore stay 1.

    For a geometric mean `fused` accumulates logarithms, scaled from 0 for the lowest probability to
    1 for certainty, so that voxels that no view has segmented are 0 here, too. In half precision
    this resolves a third of a percent. If all other views give both sides less than the lowest
    probability, the ratio between the sides is lost.

    Parameters
    ----------
    shape : tuple
        Shape (X, Y, Z) of the volume.
    scheme : LabelScheme
        Classes of the model, with sides. The attribute `scheme` has the K classes of `fused`; these
        are the merged ones if only the sagittal view is used.
    views : tuple of View
        The views that will be added.
    weights : mapping
        Weight of each view; only their ratios matter. The default is for models without weights of
        their own (`Model.fusion_weights`).
    device : torch.device or str
        Device of `fused`.
    axes : mapping, optional
        Axes of the volume along which the slices of each view are cut. Default: as in a RAS volume.
    sagittal_is_merged : bool
        True if the sagittal network has merged classes.
    mean : str
        "arithmetic" or "geometric". With a single view both are the same.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        scheme: LabelScheme,
        views: tuple[View, ...],
        weights: Mapping[View, float] = DEFAULT_WEIGHTS,
        device: torch.device | str = "cpu",
        *,
        axes: Mapping[View, SliceAxes] | None = None,
        sagittal_is_merged: bool = True,
        mean: Mean = "arithmetic",
    ) -> None:
        self.views = views
        self.is_geometric = mean == "geometric" and len(views) > 1
        self.axes = axes or {view: slice_axes(view) for view in views}
        # Sagittal slices alone cannot distinguish sides at all.
        self.is_merged = views == (View.SAGITTAL,) and sagittal_is_merged
        if self.is_merged:
            self.scheme = scheme.merged.scheme
        else:
            self.scheme = scheme
        total = sum(weights[view] for view in views)
        if total <= 0 or min(weights[view] for view in views) < 0:
            raise ConfigError("view weights are negative, or all are 0")
        # Tensors of one element, so that products with half precision are in single precision.
        self._weights = {
            view: torch.tensor([weights[view] / total], device=device) for view in views
        }
        self.fused = torch.zeros(
            (*shape, len(self.scheme)), dtype=torch.float16, device=device
        )
        self._added: set[View] = set()
        has_merged_view = View.SAGITTAL in views and sagittal_is_merged
        self._is_divided = has_merged_view and not self.is_merged
        if self._is_divided:
            self._prepare_division(scheme, device)

    def _prepare_division(
        self, scheme: LabelScheme, device: torch.device | str
    ) -> None:
        """Prepare matrices that divide probabilities of both sides together into left and right.

        A product with a matrix of ones and zeros is over twice as fast as selecting by index.
        """
        merged = scheme.merged
        partner = torch.from_numpy(scheme.partner_permutation.copy()).to(device)
        identity = torch.eye(len(scheme), device=device)
        self._swap = identity[partner]
        to_merged = torch.from_numpy(merged.to_merged.copy()).to(device)
        merged_identity = torch.eye(len(merged.scheme), device=device)
        self._expand = merged_identity[:, to_merged]
        # Share of a side if the other views find neither: half, or 1 for a class without sides.
        own = torch.arange(len(scheme), device=device)
        self._if_unknown = torch.where(partner == own, 1.0, 0.5)
        self._parts = 2 * self._if_unknown
        # In a geometric mean, the ratio of left to right is a difference of logarithms.
        left_to_right = identity - self._swap
        weight_before = 1 - self._weights[View.SAGITTAL]
        self._log_ratio = left_to_right * (_SPAN / weight_before.clamp(min=1e-6))

    def add(
        self,
        view: View,
        start: int,
        probabilities: Tensor,
        rows: slice = slice(None),
        columns: slice = slice(None),
    ) -> None:
        """Add probabilities of consecutive slices of one view to the volume.

        `probabilities` (N, H, W, K) sum to 1 in each pixel; a sagittal view may have one class for
        both sides of a structure, and so fewer than K. They belong to the slices `start`, `start` +
        1, ... and, within these slices, to the given `rows` and `columns`. All other pixels of
        these slices count as certain background.
        """
        if view is not View.SAGITTAL and View.SAGITTAL in self._added:
            raise ValueError(
                "the sagittal view is added last: it needs the others' ratios"
            )
        self._added.add(view)
        slices = to_slices(self.fused, self.axes[view], trailing=1)
        slices = slices[start : start + len(probabilities)]
        weight = self._weights[view]
        if probabilities.shape[1:3] != slices.shape[1:3]:
            background = weight.to(slices.dtype).repeat(slices.shape[1:3])
            background[rows, columns] = 0
            slices[..., 0] += background
            slices = slices[:, rows, columns]
        for block in _cache_sized_blocks(probabilities):
            before = slices[block]
            added = self.weighted(view, before, probabilities[block])
            before += added.to(before.dtype)

    def background_weight(self, view: View) -> float:
        """Return the amount that a view adds to the background class if it is certain of it."""
        return float(self._weights[view])

    def weighted(self, view: View, before: Tensor, probabilities: Tensor) -> Tensor:
        """Compute the weighted contribution of a view to the volume, (N, H, W, K) float32.

        `probabilities` (N, H, W, K) are the view's; a sagittal view may have one class for both
        sides of a structure, and so fewer than K. `before` (N, H, W, K) is the sum of the views
        that were added before, at the same voxels. No tensor is changed in place, so that
        `graphs.py` can export this function.
        """
        weight = self._weights[view]
        if view is View.SAGITTAL and self._is_divided:
            probabilities = self._divide_between_sides(before, probabilities)
        if self.is_geometric:
            logarithms = probabilities.clamp(min=_MIN_PROBABILITY).log_()
            return logarithms.mul_(weight / _SPAN).add_(weight)
        return probabilities * weight

    def finish(self) -> Tensor:
        """Complete the fused probabilities and return them, (X, Y, Z, K) float16; they sum to 1.

        The result is `fused` itself, not a copy. Call this once, after all views were added.
        """
        if not self.is_geometric:
            return self.fused
        for block in _cache_sized_blocks(self.fused):
            part = self.fused[block]
            part.copy_(self.finished(part))
        return self.fused

    def finished(self, added: Tensor) -> Tensor:
        """Return the fused probabilities, (..., K), from what `add` has summed over all views.

        For an arithmetic mean, `added` already holds the weighted sum of the views' probabilities
        and is returned as it is. For a geometric mean, it holds 1 + (weighted sum of their
        logarithms) / `_SPAN`: the exponential is taken and the classes of each voxel are scaled to
        sum to 1.
        """
        if not self.is_geometric:
            return added
        logarithms = added.float().sub(1).mul_(_SPAN)
        # A class that no view considers possible gets probability 0.
        values = logarithms.exp_().sub_(_MIN_PROBABILITY).clamp_(min=0).to(added.dtype)
        sums = values.sum(-1, keepdim=True, dtype=torch.float32)
        return values / sums.clamp_(min=1e-6)

    def _divide_between_sides(self, others: Tensor, merged: Tensor) -> Tensor:
        """Divide probabilities without sides, (N, H, W, M), between left and right, (N, H, W, K).

        `merged` has one class for both sides of a structure. `others` (N, H, W, K) is the sum of
        the other views at these voxels; the ratio of the sides is taken from it.
        """
        own = others.float()
        if self.is_geometric:
            share = (own @ self._log_ratio).sigmoid_().mul_(self._parts)
        else:
            pair = own + own @ self._swap
            # A class without sides is its own partner, so `pair` is twice its value; `_parts` is 2.
            share = torch.where(pair > 0, own / pair * self._parts, self._if_unknown)
        of_both = merged @ self._expand
        return of_both.mul_(share)


def _cache_sized_blocks(values: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield slices of the first two axes of values (N, H, W, K), in blocks that fit in a CPU cache.

    On a CPU a block is a part of the rows of one slice. On a GPU a single block covers everything.
    """
    slices, rows, columns, _ = values.shape
    if values.device.type != "cpu":
        yield slice(slices), slice(rows)
        return
    rows_at_a_time = max(1, _VOXELS_IN_CACHE // max(1, columns))
    for number in range(slices):
        for first in range(0, rows, rows_at_a_time):
            yield slice(number, number + 1), slice(first, first + rows_at_a_time)


def most_probable(fused: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest probability of each voxel and its class (uint8), both (X, Y, Z).

    `fused` are probabilities (X, Y, Z, K).
    """
    values = []
    classes = []
    for slab in torch.split(fused, _SLAB):
        largest = slab.max(-1)
        values.append(largest.values)
        classes.append(largest.indices.to(torch.uint8))
    return torch.cat(values), torch.cat(classes)


def multiply_csf_odds(fused: Tensor, scheme: LabelScheme, odds: float) -> None:
    """Multiply the odds of CSF against background by `odds`, in place.

    `fused` (X, Y, Z, K) are the probabilities. The sum of CSF and background stays, and so do all
    other classes: only the border between CSF and background moves.
    """
    if odds == 1:
        return
    for label in scheme.labels:
        if label.group != CSF_GROUP:
            continue
        for slab in torch.split(fused, _SLAB):
            background, csf = weighted_csf(slab[..., 0], slab[..., label.index], odds)
            slab[..., label.index] = csf
            slab[..., 0] = background


def weighted_csf(background: Tensor, csf: Tensor, odds: float) -> tuple[Tensor, Tensor]:
    """Multiply the odds of CSF against background; return both probabilities, float32.

    `background` and `csf` are probabilities of the same voxels. Their sum is preserved.
    """
    background = background.float()
    csf = csf.float()
    weighted = csf * odds
    share = weighted / (weighted + background).clamp_(min=1e-6)
    both = csf + background
    return both * (1 - share), both * share


def multiply_odds(fused: Tensor, scheme: LabelScheme, odds: Odds) -> None:
    """Multiply the probabilities of classes by their factors and normalise the sums to 1, in place.

    `fused` are probabilities (X, Y, Z, K) or (N, K). `odds` has the factors by class name; classes
    that it does not name have a factor of 1.
    """
    if not odds or not len(fused):
        return
    factors = odds_by_class(scheme, odds).to(fused.device)
    voxels_of_slice = fused[0, ..., 0].numel()
    slices = max(_VOXELS_AT_A_TIME // voxels_of_slice, 1)
    for slab in torch.split(fused, slices):
        slab.copy_(weighted_classes(slab, factors))


def odds_by_class(scheme: LabelScheme, odds: Odds) -> Tensor:
    """Return the factor of each class of a scheme, (K,); 1 for classes not named in `odds`."""
    return torch.tensor([odds.get(name, 1.0) for name in scheme.names])


def weighted_classes(probabilities: Tensor, factors: Tensor) -> Tensor:
    """Multiply probabilities (..., K) by `factors` (K,) and normalise their sums to 1; float32."""
    weighted = probabilities.float() * factors
    return weighted / weighted.sum(-1, keepdim=True).clamp_(min=1e-6)
