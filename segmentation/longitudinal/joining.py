"""Probabilities of several scans of one head become one set, and each scan gets its own back.

The networks answer a little differently each time, even where nothing has changed. Their answers
for one piece of tissue are averaged over all scans, along the flow that says where that piece is in
each. After that, scans differ only by what their images differ by: tissue that moved. Where an
image shows something that the others do not, such as a lesion or an artefact, the scan keeps its
own answer.

Probabilities are tensors (X, Y, Z, K), float16. Flows and images are on the same grid of 1 mm, that
of the template, which is the mean image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import avg_pool3d

from trinat.segmentation.inference.prior import most_probable
from trinat.segmentation.longitudinal.flow import find_flow, inverse_of, warped
from trinat.segmentation.space.interpolation import rows_at

__all__ = ["Joining", "flows_from"]

# A voxel whose class is less certain than this is at a boundary.
_CERTAIN = 0.995
# An image's difference from the template is averaged over this many voxels along each axis.
_WINDOW = 5
# At this many times the usual difference a scan begins to keep its own answer; at twice as many it
# keeps all of it.
_UNUSUAL = 6.0
# Where the template is brighter than this there is a head.
_BRIGHT = 0.2
# Less than this share of an own answer is none.
_LEAST_OWN = 0.01
# Voxels that are changed at a time: few enough for a processor's caches (0.5 s for a million of
# voxels and 33 classes; 1.3 s in pieces of half a million).
_CHUNK = 1 << 14


def flows_from(template: Tensor, images: Sequence[Tensor]) -> list[Tensor]:
    """The flow from a template to each image.

    Their mean is taken off, so that the template is in the middle of all.
    """
    flows = [find_flow(template, image) for image in images]
    mean = torch.stack(flows).mean(0)
    return [flow - mean for flow in flows]


@dataclass(frozen=True, eq=False)
class _Own:
    """What a scan keeps for itself: at `places`, (N,) along each axis, its probabilities (N, K).

    `share` (N, 1) is how much they count there.
    """

    places: tuple[Tensor, ...]
    share: Tensor
    probabilities: Tensor

    def on_processor(self) -> _Own:
        """The same in the host's memory."""
        places = tuple(place.cpu() for place in self.places)
        return _Own(places, self.share.cpu(), self.probabilities.cpu())


class Joining:
    """The mean of the template's probabilities and of all scans', which are added one by one.

    `mean` (X, Y, Z, K) is in the template's space, and may be changed once all are added. It is the
    tensor that was given. The template's probabilities count `weight` times as much as a scan's.
    """

    def __init__(
        self, template: Tensor, probabilities: Tensor, weight: float = 1.0
    ) -> None:
        self.mean = probabilities
        self._template = template
        self._total_weight = weight
        self._ways_back: list[Tensor] = []
        self._own: list[_Own] = []

    def add(self, probabilities: Tensor, image: Tensor, flow: Tensor) -> None:
        """Add a scan: its probabilities, its image and the flow from the template to it."""
        in_template = warped(image[None], flow)[0]
        difference = in_template.sub_(self._template).abs_()
        strange = _strangeness(difference, self._template > _BRIGHT)
        self._total_weight += 1
        flow_of_voxel = flow.permute(1, 2, 3, 0)
        is_open = _near_boundaries(self.mean, probabilities)
        for voxels in _chunks(_within_reach(is_open, flow)):
            at = voxels.unbind(1)
            places = voxels + flow_of_voxel[at]
            before = self.mean[at].float()
            share = (1 - strange[at])[:, None] / self._total_weight
            change = rows_at(probabilities, places).float()
            change.sub_(before).mul_(share)
            self.mean[at] = (before + change).to(self.mean.dtype)
        back = inverse_of(flow)
        in_scan = warped(strange[None], back)[0]
        at = (in_scan > _LEAST_OWN).nonzero().unbind(1)
        share_of_own = in_scan[at][:, None]
        self._own.append(_Own(at, share_of_own, probabilities[at]))
        self._ways_back.append(back)

    def change_own(self, change: Callable[[Tensor], None]) -> None:
        """Change what each scan keeps of its own, probabilities (N, K), in place.

        What is done to `mean` once all are added is not done to that.
        """
        for own in self._own:
            change(own.probabilities)

    def on_processor(self) -> None:
        """Move all to the host's memory: what is left to do needs no GPU."""
        self.mean = self.mean.cpu()
        self._ways_back = [back.cpu() for back in self._ways_back]
        self._own = [own.on_processor() for own in self._own]

    @cached_property
    def _is_open(self) -> Tensor:
        """`_near_boundaries` of the mean, which changes no more once a scan's part is asked for."""
        return _near_boundaries(self.mean)

    def of_scan(self, number: int) -> Tensor:
        """The probabilities (X, Y, Z, K) of a scan in the place where it has its tissue.

        `number` counts in the order in which scans were added.
        """
        back = self._ways_back[number]
        flow_of_voxel = back.permute(1, 2, 3, 0)
        result = self.mean.clone()
        for voxels in _chunks(_within_reach(self._is_open, back)):
            at = voxels.unbind(1)
            places = voxels + flow_of_voxel[at]
            result[at] = rows_at(self.mean, places)
        own = self._own[number]
        joined = result[own.places].float()
        kept = torch.lerp(joined, own.probabilities.float(), own.share)
        result[own.places] = kept.to(result.dtype)
        return result


def _strangeness(difference: Tensor, is_head: Tensor) -> Tensor:
    """How far an image shows something else than the template, (X, Y, Z) from 0 to 1.

    `difference` is that of their brightness, 0 or more; what is usual is its median in the head.
    """
    # Means in a cube around each voxel; beyond the edge is 0. Axis after axis: 15 products a voxel,
    # where the cube at once has 125.
    means = difference[None, None]
    for axis in range(3):
        window = [1, 1, 1]
        window[axis] = _WINDOW
        padding = [side // 2 for side in window]
        means = avg_pool3d(means, window, stride=1, padding=padding)
    mean = means[0, 0]
    if not is_head.any():
        return torch.zeros_like(mean)
    usual = mean[is_head].median().clamp(min=1e-6)
    excess = mean / (_UNUSUAL * usual) - 1
    return excess.clamp_(0, 1)


def _near_boundaries(*probabilities: Tensor) -> Tensor:
    """Voxels (X, Y, Z) where classes meet, are in doubt, or differ between sets of probabilities.

    Elsewhere all sets have the same class, with certainty, in a voxel and beside it.
    """
    first_classes = None
    is_open = torch.zeros(
        probabilities[0].shape[:3], dtype=torch.bool, device=probabilities[0].device
    )
    for values in probabilities:
        largest, classes = most_probable(values)
        is_open |= largest < _CERTAIN
        # Where the class is another one than that of the next voxel along an axis.
        for axis in range(3):
            length = classes.shape[axis] - 1
            low = classes.narrow(axis, 0, length)
            high = classes.narrow(axis, 1, length)
            is_open.narrow(axis, 0, length).logical_or_(low != high)
        if first_classes is None:
            first_classes = classes
        is_open |= classes != first_classes
    return is_open


def _within_reach(mask: Tensor, flow: Tensor) -> Tensor:
    """A mask (X, Y, Z), grown in all directions by as many voxels as a flow reaches."""
    reach = max(1, int(flow.abs().max().ceil()))
    for _ in range(reach):
        # By a voxel to both sides along one axis after another: 0.03 s for four million voxels,
        # pooling takes 0.12 s.
        for axis in range(3):
            length = mask.shape[axis] - 1
            grown = mask.clone()
            grown.narrow(axis, 0, length).logical_or_(mask.narrow(axis, 1, length))
            grown.narrow(axis, 1, length).logical_or_(mask.narrow(axis, 0, length))
            mask = grown
    return mask


def _chunks(mask: Tensor) -> Iterator[Tensor]:
    """The voxels of a mask as rows (N, 3) of indices, some at a time."""
    yield from torch.split(mask.nonzero(), _CHUNK)
