"""Fusion of views: weighted mean of their probabilities in one buffer, and odds of classes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from trinat.segmentation.errors import ConfigError
from trinat.segmentation.labels.label import CSF_GROUP
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.models.model_info import DEFAULT_WEIGHTS, Mean
from trinat.segmentation.space.views import SliceAxes, View, slice_axes, to_slices

# Lower limit of a class's probability in each view of a geometric mean. On the two scans that chose
# it, 0.01 and 0.001 did alike, and 0.1 a thousandth worse.
_MIN_PROBABILITY = 1e-3
_SPAN = -math.log(_MIN_PROBABILITY)
# Number of voxels whose classes stay in a processor's cache from one operation to the next: adding
# views takes a fifth less time, finishing half the time (docs/notes/speed.md).
_VOXELS_IN_CACHE = 4096
# Slices whose CSF is weighted at a time.
_SLAB = 8
# Voxels whose probabilities are multiplied by odds at a time.
_VOXELS_AT_A_TIME = 1 << 18

# Factors on the probabilities of classes by name, before the most probable one is taken: above 1 a
# structure wins more of the uncertain voxels. They are fitted to labelled scans.
Odds = Mapping[str, float]


class ViewAggregator:
    """Accumulates slice probabilities in a volume (X, Y, Z, K), float16, sagittal view last.

    The volume is `fused`: incomplete while slices are added, the fused probabilities once
    `finish` was called. Classes are innermost because networks return them so and every step
    but restoring needs them so.

    A sagittal slice shows no side: the probability of a merged structure is divided between
    left and right in the ratio of the other views at that voxel, so that the sums of an
    arithmetic mean stay 1.

    For a geometric mean `fused` accumulates logarithms, from 0 for the lowest probability to 1
    for certainty, so that voxels that no view has segmented are 0 there, too. In half precision
    this resolves a third of a percent; and a side that all other views give less than the
    lowest probability cannot be distinguished from its partner.

    `views` are those that will be added. Only the ratios of their `weights` matter. The default
    weights are for models without any: those in a model's model.yaml take precedence
    (`Model.fusion_weights`). With the sagittal view alone the classes are the merged ones:
    `scheme` has the classes of the volume.
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
        # A tensor of one element, which makes products with half precision single precision.
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
        """Prepare matrices that divide merged probabilities between left and right.

        Products with rows of ones and zeros are over twice as fast as selecting by index.
        """
        merged = scheme.merged
        partner = torch.from_numpy(scheme.partner_permutation.copy()).to(device)
        identity = torch.eye(len(scheme), device=device)
        self._swap = identity[partner]
        to_merged = torch.from_numpy(merged.to_merged.copy()).to(device)
        merged_identity = torch.eye(len(merged.scheme), device=device)
        self._expand = merged_identity[:, to_merged]
        # Share of a side if the other views know neither: half, or all of an unpaired class.
        own = torch.arange(len(scheme), device=device)
        self._if_unknown = torch.where(partner == own, 1.0, 0.5)
        self._parts = 2 * self._if_unknown
        # Logarithm of left to right, in the geometric mean of the previous views: a difference.
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
        """Add slices start, start + 1, ... of one view, (N, H, W, K or merged K), each with sum 1.

        Outside of the given rows and columns these slices are background.
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
        for block in _blocks(probabilities):
            before = slices[block]
            added = self.weighted(view, before, probabilities[block])
            before += added.to(before.dtype)

    def background_weight(self, view: View) -> float:
        """Return what a view adds to the background of a voxel that is certainly background."""
        return float(self._weights[view])

    def weighted(self, view: View, before: Tensor, probabilities: Tensor) -> Tensor:
        """Return a view's weighted contribution (N, H, W, K), float32.

        `probabilities` are (N, H, W, K or merged K). `before` (N, H, W, K) is the sum of the
        other views at these voxels. Nothing changes in place, so that `graphs.py` can export
        this function.
        """
        weight = self._weights[view]
        if view is View.SAGITTAL and self._is_divided:
            probabilities = self._divide(before, probabilities)
        if self.is_geometric:
            logarithms = probabilities.clamp(min=_MIN_PROBABILITY).log_()
            return logarithms.mul_(weight / _SPAN).add_(weight)
        return probabilities * weight

    def finish(self) -> Tensor:
        """Complete the fused probabilities, (X, Y, Z, K) float16, with sums of 1.

        Returns `fused` itself, not a copy. Call it once, after all views were added.
        """
        if not self.is_geometric:
            return self.fused
        for block in _blocks(self.fused):
            part = self.fused[block]
            part.copy_(self.finished(part))
        return self.fused

    def finished(self, added: Tensor) -> Tensor:
        """Return the fused probabilities (..., K) for the sum of all views (..., K); sums are 1."""
        if not self.is_geometric:
            return added
        logarithms = added.float().sub(1).mul_(_SPAN)
        # A class that no view considers possible gets probability 0.
        values = logarithms.exp_().sub_(_MIN_PROBABILITY).clamp_(min=0).to(added.dtype)
        sums = values.sum(-1, keepdim=True, dtype=torch.float32)
        return values / sums.clamp_(min=1e-6)

    def _divide(self, others: Tensor, merged: Tensor) -> Tensor:
        """Divide merged probabilities (N, H, W, M) between sides, giving (N, H, W, K).

        `others` is the sum of the other views at these voxels, (N, H, W, K).
        """
        own = others.float()
        if self.is_geometric:
            share = (own @ self._log_ratio).sigmoid_().mul_(self._parts)
        else:
            pair = own + own @ self._swap
            # A class without sides is its own partner, and gets all: half of itself twice.
            share = torch.where(pair > 0, own / pair * self._parts, self._if_unknown)
        of_both = merged @ self._expand
        return of_both.mul_(share)


def _blocks(values: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield parts of the first two axes of values (N, H, W, K) that fit in a processor's cache.

    One slice at a time and some of its rows. A GPU takes all at once.
    """
    slices, rows, columns, _ = values.shape
    if values.device.type != "cpu":
        yield slice(slices), slice(rows)
        return
    rows_at_a_time = max(1, _VOXELS_IN_CACHE // max(1, columns))
    for number in range(slices):
        for first in range(0, rows, rows_at_a_time):
            yield slice(number, number + 1), slice(first, first + rows_at_a_time)


def multiply_csf_odds(fused: Tensor, scheme: LabelScheme, odds: float) -> None:
    """Multiply the odds of CSF against background in probabilities (X, Y, Z, K), in place.

    The sum of the two and all other classes are preserved: only the border between CSF and
    background moves.
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
    """Return probabilities of background and of CSF with other odds, float32; their sum stays."""
    background = background.float()
    csf = csf.float()
    weighted = csf * odds
    share = weighted / (weighted + background).clamp_(min=1e-6)
    both = csf + background
    return both * (1 - share), both * share


def multiply_odds(fused: Tensor, scheme: LabelScheme, odds: Odds) -> None:
    """Multiply the probabilities (X, Y, Z, K) or (N, K) of classes by their factors, in place.

    Sums stay 1. Classes without a factor lose what others gain, or gain what they lose.
    """
    if not odds or not len(fused):
        return
    factors = odds_by_class(scheme, odds).to(fused.device)
    voxels_of_slice = fused[0, ..., 0].numel()
    slices = max(_VOXELS_AT_A_TIME // voxels_of_slice, 1)
    for slab in torch.split(fused, slices):
        slab.copy_(weighted_classes(slab, factors))


def odds_by_class(scheme: LabelScheme, odds: Odds) -> Tensor:
    """Return the factor of each class, (K,): 1 for those without one."""
    return torch.tensor([odds.get(name, 1.0) for name in scheme.names])


def weighted_classes(probabilities: Tensor, factors: Tensor) -> Tensor:
    """Multiply probabilities (..., K) by the factors of their classes, float32; sums are 1."""
    weighted = probabilities.float() * factors
    return weighted / weighted.sum(-1, keepdim=True).clamp_(min=1e-6)
