"""Whether the brain goes on from slice to slice: slices that are lost, repeated or shifted.

From one slice of the brain to the next, brightness changes by about as much as from that to the
one after. Where slices are lost, or two parts of a scan are shifted against each other, it changes
by more; where one slice stands for several, it does not change at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.inference.checks.evidence import Evidence, Finding, above
from trinat.segmentation.inference.checks.limits import Limits

# Along x, y and z of the world.
_SLICES = ("sagittal", "coronal", "axial")
_COORDINATES = ("x", "y", "z")
# Slices with less than this share of the largest one's brain are not compared.
_LARGE = 0.25
# A change is compared with those of so many slices on either side, but for its neighbours'.
_NEAR = 8
_NEXT = 1
# Fewer voxels, or fewer slices around, say nothing.
_ENOUGH_VOXELS = 1000
_ENOUGH_SLICES = 6


@dataclass(frozen=True)
class Step:
    """A change from one slice to the next, as a multiple of the usual one around it.

    `where` says the slices' view and the place between them, in RAS mm.
    """

    ratio: float
    where: str


def check_continuity(evidence: Evidence, limits: Limits) -> list[Finding]:
    """No two neighbouring slices of the brain differ by much more or less than others around.

    It never rejects: most of the labels may be right.
    """
    steps = find_steps(evidence)
    if not steps:
        return []
    largest = max(steps, key=lambda step: step.ratio)
    reason = (
        f"{largest.where}, slices differ {largest.ratio:.1f} times as much as around: "
        "slices lost or shifted?"
    )
    findings = above(largest.ratio, limits.jump, reason)
    smallest = min(steps, key=lambda step: step.ratio)
    if smallest.ratio < limits.still:
        reason = f"{smallest.where}, slices do not differ: repeated slices?"
        findings.append(Finding(False, reason))
    return findings


def find_steps(evidence: Evidence) -> list[Step]:
    """The changes between all neighbouring slices of the brain, along the three axes.

    Changes are means over what is brain in both, in shares of the median of those around.
    """
    grid = evidence.image.grid
    steps = []
    for axis in range(3):
        changes = _changes(evidence, axis)
        world = int(np.abs(grid.affine[:3, axis]).argmax())
        for number in np.flatnonzero(np.isfinite(changes)):
            around = np.concatenate(
                [
                    changes[max(number - _NEAR, 0) : max(number - _NEXT, 0)],
                    changes[number + 1 + _NEXT : number + 1 + _NEAR],
                ]
            )
            known = around[np.isfinite(around)]
            if len(known) < _ENOUGH_SLICES or not np.median(known) > 0:
                continue
            index = np.zeros(3)
            index[axis] = number + 0.5
            place_mm = grid.places(index)[world]
            where = f"{_SLICES[world]} at {_COORDINATES[world]} = {place_mm:.0f} mm"
            steps.append(Step(float(changes[number] / np.median(known)), where))
    return steps


def _changes(evidence: Evidence, axis: int) -> NDArray[np.float64]:
    """The mean change from each slice to the next; NaN where there is little brain."""
    image = np.moveaxis(evidence.image.data, axis, 0)
    brain = np.moveaxis(evidence.brain, axis, 0)
    both = brain[1:] & brain[:-1]
    voxels = both.sum(axis=(1, 2))
    change = np.abs(image[1:] - image[:-1]) * both
    sums = change.sum(axis=(1, 2), dtype=np.float64)
    is_large = voxels >= max(_LARGE * voxels.max(initial=0), _ENOUGH_VOXELS)
    return np.where(is_large, sums / np.maximum(voxels, 1), np.nan)
