"""Check of the field of view: whether the brain continues where the scan ends."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import some
from trinat.segmentation.grid import to_box
from trinat.segmentation.inference.checks.evidence import (
    Evidence,
)
from trinat.segmentation.inference.checks.findings import (
    Finding,
    above,
)
from trinat.segmentation.inference.checks.limits import Limits
from trinat.segmentation.labels.class_map import outer_rim
from trinat.segmentation.space.background import AIR

Points = NDArray[np.float32]

# Distance to the end of the scan that still counts: networks may miss the last slice of a cut
# brain.
_NEAR_END = 2
# Depth in which the plane is searched, and thickness of the plane once found.
_SEARCHED_MM = 5.0
_PLANE_MM = 1.0
# This many directions are about 8° apart on a sphere.
_DIRECTIONS = 700
_TRIED = 8
_FEWEST = 50
# Smallest part of a structure in the plane that is named.
_NAMED_MM2 = 60


def check_field_of_view(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Check for labels that end in one plane at the end of the scan, or where it is as dark as air.

    Fluid around the brain does not count: a stripped scan may end anywhere in it. A stripped brain
    ends in the dark everywhere, but its surface is round: no plane holds much of it.
    """
    area, structures = find_cut(evidence)
    reason = f"the field of view ends inside the brain: {area / 100:.0f} cm² of {some(structures)}"
    return [
        Finding(finding.rejects, reason, structures)
        for finding in above(area, limits.cut_mm2, reason)
    ]


def find_cut(
    evidence: Evidence, *, with_fluid: bool = False
) -> tuple[float, tuple[str, ...]]:
    """Find the plane in which the field of view may cut the brain; return its area and structures.

    Of all planes at the end of the scan, this is the one that contains the largest area of labels,
    in mm². A brain that only touches the end has a small area, a cut brain a large one. The area is
    0, without structures, if the labels do not reach the end. CSF counts only `with_fluid`.
    """
    labels = evidence.brain
    if with_fluid:
        labels = evidence.indices.data > 0
    # Pad by a voxel on each side, so that the arrays have voxels beyond the scan. Voxels as dark
    # as air count as beyond it, too.
    labelled = np.pad(labels, 1)
    with_one_more = tuple(slice(-1, length + 1) for length in labels.shape)
    near_end = evidence.image.grid.cut(to_box(with_one_more)).beyond(evidence.scan)
    near_end[1:-1, 1:-1, 1:-1] |= evidence.image.data < AIR
    for _ in range(_NEAR_END):
        near_end |= outer_rim(near_end)
    ends = np.argwhere(labelled & near_end).astype(np.float32)
    if len(ends) < _FEWEST:
        return 0.0, ()
    hull = _outermost(labelled)
    directions = _directions(evidence, ends, hull)
    planes = [_in_plane(ends, hull, direction) for direction in directions]
    in_plane = max(planes, key=np.count_nonzero)
    # Without the padding.
    x, y, z = ends[in_plane].astype(int).T - 1
    classes = evidence.indices.data[x, y, z]
    counts = np.bincount(classes, minlength=len(evidence.scheme))
    # Structures with a large part in the plane, the largest first; at least one.
    largest_first = np.argsort(-counts, kind="stable").tolist()
    named = [k for k in largest_first if counts[k] >= _NAMED_MM2]
    if not named:
        named = largest_first[:1]
    names = tuple(evidence.scheme.names[k] for k in named)
    return float(np.count_nonzero(in_plane)), names


def _outermost(mask: NDArray[np.bool_]) -> Points:
    """Return the first and the last voxel of each line along the first axis.

    They contain the corners of the convex hull.
    """
    first = mask.argmax(axis=0)
    from_the_end = mask[::-1].argmax(axis=0)
    last = len(mask) - 1 - from_the_end
    lines = np.nonzero(mask.any(axis=0))
    low_ends = np.stack([first[lines], *lines], axis=1)
    high_ends = np.stack([last[lines], *lines], axis=1)
    return np.concatenate([low_ends, high_ends]).astype(np.float32)


def _directions(evidence: Evidence, ends: Points, hull: Points) -> list[Points]:
    """Return the scan's axes in both directions, and the normals of planes with most ends."""
    to_scan = np.linalg.inv(evidence.scan.affine)[:3, :3]
    steps = to_scan @ evidence.image.affine[:3, :3]
    lengths = np.linalg.norm(steps, axis=1, keepdims=True)
    axes = (steps / lengths).astype(np.float32)
    tried = on_sphere(_DIRECTIONS)
    counts = []
    for direction in tried:
        near = _in_plane(ends, hull, direction, _SEARCHED_MM)
        counts.append(np.count_nonzero(near))
    best = np.argsort(counts)[-_TRIED:]
    fitted = [_fitted(ends, hull, tried[k]) for k in best]
    return [*axes, *-axes, *fitted]


def _in_plane(
    ends: Points,
    hull: Points,
    direction: Points,
    depth_mm: float = _PLANE_MM,
) -> NDArray[np.bool_]:
    """Mark the points less than a depth below the outermost label in a direction."""
    outermost = (hull @ direction).max()
    return np.asarray(ends @ direction > outermost - depth_mm)


def _fitted(ends: Points, hull: Points, direction: Points) -> Points:
    """Turn a direction to the normal of the plane through the points near it."""
    for depth_mm in (_SEARCHED_MM, 3.0, 2.0):
        near = ends[_in_plane(ends, hull, direction, depth_mm)]
        if len(near) < _FEWEST:
            break
        centred = near - near.mean(axis=0)
        _, _, axes = np.linalg.svd(centred, full_matrices=False)
        # Points vary least along the last axis.
        normal = axes[2]
        outwards = np.sign(normal @ direction)
        direction = np.asarray(normal * outwards, np.float32)
    return direction


def on_sphere(count: int) -> Points:
    """Return unit vectors spread evenly over a sphere: a spiral by the golden angle."""
    steps = np.arange(count) + 0.5
    polar = np.arccos(1 - 2 * steps / count)
    around = np.pi * (1 + 5**0.5) * steps
    spread = [
        np.cos(around) * np.sin(polar),
        np.sin(around) * np.sin(polar),
        np.cos(polar),
    ]
    return np.stack(spread, axis=1).astype(np.float32)
