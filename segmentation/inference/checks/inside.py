"""Whether the space inside the skull can be measured: all of it is in the scan, and was found."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.grid import Grid
from trinat.segmentation.inference.checks.evidence import Evidence, some
from trinat.segmentation.inference.checks.field import find_cut
from trinat.segmentation.inference.checks.limits import Limits
from trinat.segmentation.labels.label import CSF_GROUP
from trinat.segmentation.space.background import TISSUE
from trinat.segmentation.space.morphology import dilated

# Skull and scalp are between these distances from the space inside the skull, in voxels of 1 mm.
_SKULL_FROM = 3
_SKULL_TO = 9
# Skull is looked for on the sides above the middle, of which each is this wide, and at the top.
# Below are face and neck, which may be defaced or cut.
_AROUND = 8
_STEEP = 0.5
_TOP = 0.87


def why_not_measured(
    evidence: Evidence, inside: NDArray[np.bool_], limits: Limits
) -> str:
    """Why the intracranial volume is not known, in a few words; empty where it is.

    `inside` (X, Y, Z) is what is inside the skull, on the grid of the evidence.
    """
    if not finds_all_fluid(evidence):
        return "the model does not find the fluid around the brain"
    if not inside.any():
        return "no brain was found"
    shares = skull_shares(evidence, inside)
    if shares.max() < limits.skull:
        return "the scan shows no skull"
    area, structures = find_cut(evidence, with_fluid=True)
    if area > limits.cut_mm2[0]:
        return f"the field of view ends inside the skull, in {some(structures)}"
    if shares.min() < limits.skull:
        return "the scan does not show the skull on all sides"
    return ""


def finds_all_fluid(evidence: Evidence) -> bool:
    """Whether the model's CSF is all fluid inside the skull."""
    if evidence.csf != "intracranial":
        return False
    fluids = [
        label.name for label in evidence.scheme.labels if label.group == CSF_GROUP
    ]
    return any(name in evidence.volumes_mm3 for name in fluids)


def skull_shares(evidence: Evidence, inside: NDArray[np.bool_]) -> NDArray[np.float64]:
    """How much of the place of skull and scalp is tissue, 0 to 1, on each side above the middle.

    Compact bone is as dark as air, but marrow and scalp are not. A side of which the scan shows
    nothing has 0. What counts as dark is above any noise, so that noise is no skull.
    """
    near = dilated(inside, (_SKULL_FROM,) * 3)
    layer = dilated(inside, (_SKULL_TO,) * 3) & ~near
    sides, count = _sides(evidence.image.grid, np.argwhere(inside), np.argwhere(layer))
    is_tissue = evidence.image.data[layer] > TISSUE
    counted = sides < count
    voxels = np.bincount(sides[counted], minlength=count)
    tissue = np.bincount(sides[counted], is_tissue[counted], minlength=count)
    return np.asarray(tissue / np.maximum(voxels, 1))


def _sides(
    grid: Grid, inside: NDArray[np.intp], layer: NDArray[np.intp]
) -> tuple[NDArray[np.intp], int]:
    """The side that each voxel of a layer (N, 3) is on, seen from the middle; how many there are.

    Voxels below the middle have the number behind the last side.
    """
    directions = grid.places(layer) - grid.places(inside).mean(axis=0)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    x, y, z = directions.T
    turn = (np.arctan2(y, x) / (2 * np.pi)) % 1
    sides = np.minimum((turn * _AROUND).astype(np.intp), _AROUND - 1)
    sides[z > _STEEP] += _AROUND
    top = 2 * _AROUND
    sides[z > _TOP] = top
    sides[z <= 0] = top + 1
    return sides, top + 1
