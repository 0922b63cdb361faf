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

# Labels within this number of voxels of the end of the scan count as reaching it, because networks
# may miss the last slice of a cut brain.
_NEAR_END = 2
# Thickness of the plane while its direction is searched, and once the direction is known.
_SEARCHED_MM = 5.0
_PLANE_MM = 1.0
# This many directions are about 8° apart on a sphere.
_DIRECTIONS = 700
_TRIED = 8
_FEWEST = 50
# A structure is named if it has at least this area in the plane.
_NAMED_MM2 = 60


def check_field_of_view(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Report a brain that is cut where the scan ends.

    Measured is the area of labels in the plane in which the field of view may cut the brain. The
    scan ends at its last voxels, or where it is as dark as air. Fluid around the brain is ignored,
    because a stripped scan may end anywhere in the fluid. A stripped brain ends in the dark
    everywhere, but its surface is round, so that no plane contains much of the brain.
    """
    area, structures = find_cut(evidence)
    reason = f"the field of view ends inside the brain: {area / 100:.0f} cm² of {some(structures)}"
    return above(area, limits.cut_mm2, reason, structures)


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
    hull = _line_ends(labelled)
    directions = _candidate_normals(evidence, ends, hull)
    planes = [_mark_plane(ends, hull, direction) for direction in directions]
    in_plane = max(planes, key=np.count_nonzero)
    # Without the padding.
    x, y, z = ends[in_plane].astype(int).T - 1
    classes = evidence.indices.data[x, y, z]
    counts = np.bincount(classes, minlength=len(evidence.scheme))
    # Name structures with a large area in the plane, the largest first; at least one.
    largest_first = np.argsort(-counts, kind="stable").tolist()
    named = [k for k in largest_first if counts[k] >= _NAMED_MM2]
    if not named:
        named = largest_first[:1]
    names = tuple(evidence.scheme.names[k] for k in named)
    return float(np.count_nonzero(in_plane)), names


def _line_ends(mask: NDArray[np.bool_]) -> Points:
    """Return the first and the last set voxel of each line along the first axis, (N, 3).

    They contain the corners of the convex hull of the mask (X, Y, Z).
    """
    first = mask.argmax(axis=0)
    from_the_end = mask[::-1].argmax(axis=0)
    last = len(mask) - 1 - from_the_end
    lines = np.nonzero(mask.any(axis=0))
    low_ends = np.stack([first[lines], *lines], axis=1)
    high_ends = np.stack([last[lines], *lines], axis=1)
    return np.concatenate([low_ends, high_ends]).astype(np.float32)


def _candidate_normals(evidence: Evidence, ends: Points, hull: Points) -> list[Points]:
    """Return directions in which the brain may be cut off: the normals of possible planes.

    These are the scan's axes in both directions, and the normals of the planes that contain most of
    the points `ends` (N, 3). `hull` (M, 3) are points that contain the corners of the labels'
    convex hull.
    """
    to_scan = np.linalg.inv(evidence.scan.affine)[:3, :3]
    steps = to_scan @ evidence.image.affine[:3, :3]
    lengths = np.linalg.norm(steps, axis=1, keepdims=True)
    axes = (steps / lengths).astype(np.float32)
    tried = on_sphere(_DIRECTIONS)
    counts = []
    for direction in tried:
        near = _mark_plane(ends, hull, direction, _SEARCHED_MM)
        counts.append(np.count_nonzero(near))
    best = np.argsort(counts)[-_TRIED:]
    fitted = [_refined_direction(ends, hull, tried[k]) for k in best]
    return [*axes, *-axes, *fitted]


def _mark_plane(
    ends: Points,
    hull: Points,
    direction: Points,
    depth_mm: float = _PLANE_MM,
) -> NDArray[np.bool_]:
    """Return a mask (N,) of the points `ends` (N, 3) that lie in the outermost plane of the brain.

    `ends` are the labelled voxels at the end of the scan. The plane is perpendicular to `direction`
    (3,). It begins at the outermost of the points `hull` (M, 3) in that direction, and is
    `depth_mm` thick.
    """
    outermost = (hull @ direction).max()
    return np.asarray(ends @ direction > outermost - depth_mm)


def _refined_direction(ends: Points, hull: Points, direction: Points) -> Points:
    """Return the normal of a plane fitted to the outermost points `ends` in a direction.

    `direction` (3,) is a first estimate of that normal. It stays if there are too few points.
    """
    for depth_mm in (_SEARCHED_MM, 3.0, 2.0):
        near = ends[_mark_plane(ends, hull, direction, depth_mm)]
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
    """Return `count` unit vectors, (count, 3), spread evenly over a sphere.

    They lie on a spiral with steps of the golden angle.
    """
    steps = np.arange(count) + 0.5
    polar = np.arccos(1 - 2 * steps / count)
    around = np.pi * (1 + 5**0.5) * steps
    spread = [
        np.cos(around) * np.sin(polar),
        np.sin(around) * np.sin(polar),
        np.cos(polar),
    ]
    return np.stack(spread, axis=1).astype(np.float32)
