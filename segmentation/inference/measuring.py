"""Measurements of a segmentation: the whole brain, the intracranial volume, and parcels.

The intracranial volume is known if the scan shows all of the inside of the skull, and all of it
was found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.errors import some
from trinat.segmentation.grid import Grid
from trinat.segmentation.inference.checks.brightness import (
    check_continuity,
    edge_sharpness,
    noise_share,
)
from trinat.segmentation.inference.checks.evidence import (
    Evidence,
)
from trinat.segmentation.inference.checks.field import find_cut, on_sphere
from trinat.segmentation.inference.checks.findings import (
    above,
    below,
    grade_findings,
)
from trinat.segmentation.inference.checks.limits import LIMITS, GradeName, Limits
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.inference.quality import grade_structure
from trinat.segmentation.labels import Side
from trinat.segmentation.labels.label import CSF_GROUP
from trinat.segmentation.labels.measures import INTRACRANIAL, BrainVolumes, sums_mm3
from trinat.segmentation.space.background import TISSUE
from trinat.segmentation.space.morphology import dilated

# Nearest and farthest distance of skull and scalp from the inside of the skull, in voxels of 1 mm.
_SKULL_FROM = 3
_SKULL_TO = 9
# Skull is searched above the middle of the head: in this number of sectors around it, in as many
# where the direction rises by more than `_STEEP`, and at the top, where it rises by more than
# `_TOP` (sine of the elevation). Face and neck are below and may be defaced or cut.
_AROUND = 8
_STEEP = 0.5
_TOP = 0.87
# Tissue is searched in this number of directions, about 10° apart, up to this distance from the
# mask, and in every n-th voxel along each axis.
_DIRECTIONS = 400
_REACH_MM = 25.0
_STEP = 2
# Directions in which tissue ends within this distance of the farthest end are even. The farthest
# end is a percentile, so that specks do not count.
_EVEN_MM = 2.0
_FARTHEST_PERCENTILE = 95
# Limits of the grade of cortical thickness: look and reject. Sound scans of 1 mm have edges of 0.30
# to 0.34 and noise of 0.02 to 0.06. A blur to 0.21 adds 0.22 mm and noise of 0.56 takes 0.23 mm
# off, which is more than participants differ by (SD 0.19 mm).
_SHARP_FOR_THICKNESS = (0.28, 0.22)
_NOISE_FOR_THICKNESS = (0.3, 0.5)
_SPACING_FOR_THICKNESS_MM = (1.3, 2.0)


def measure(found: Prediction, limits: Limits = LIMITS) -> BrainVolumes:
    """Compute the volumes of the whole brain from a segmentation.

    The intracranial volume is the volume of the brain mask in the scan's own voxels. It is None if
    the scan or the model does not show all of the inside of the skull; it is never estimated.
    """
    why_not = why_not_measured(found.evidence, found.inside, limits)
    mm3: dict[str, float | None] = {INTRACRANIAL.column: None}
    note = f"no intracranial volume: {why_not}"
    if not why_not:
        mask = found.brain
        mm3[INTRACRANIAL.column] = float(mask.data.sum() * mask.grid.voxel_mm3)
        note = ""
    mm3.update(sums_mm3(found.scheme, found.volumes_mm3))
    return BrainVolumes(mm3, note)


def why_not_measured(
    evidence: Evidence, inside: NDArray[np.bool_], limits: Limits
) -> str:
    """Return the reason why the intracranial volume is unknown, or "" if it is known.

    `evidence` holds the scan and its labels. `inside` (X, Y, Z) is the inside of the skull on the
    same 1 mm grid.
    """
    # The model must predict all fluid inside the skull as CSF.
    fluids = [
        label.name for label in evidence.scheme.labels if label.group == CSF_GROUP
    ]
    is_known = any(name in evidence.volumes_mm3 for name in fluids)
    if evidence.csf != "intracranial" or not is_known:
        return "the model does not find the fluid around the brain"
    if not inside.any() or not evidence.brain.any():
        return "no brain was found"
    shares = skull_shares(evidence, inside)
    if shares.max() < limits.skull:
        return "the scan shows no skull"
    area, structures = find_cut(evidence, with_fluid=True)
    if area > limits.cut_mm2[0]:
        return f"the field of view ends inside the skull, in {some(structures)}"
    if shares.min() < limits.skull:
        return "the scan does not show the skull on all sides"
    if _evenness(evidence, inside) > limits.even:
        return "the tissue around the brain ends at a mask, not at a scalp"
    # Lost or repeated slices change the volume.
    if check_continuity(evidence, limits):
        return "slices are lost, repeated or shifted"
    return ""


def skull_shares(evidence: Evidence, inside: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the share of voxels that are tissue, 0 to 1, where skull and scalp should be, by side.

    `evidence` holds the scan, and `inside` (X, Y, Z) is the inside of the skull. The layer of
    voxels around its upper half is divided into sides (`_side_of_voxels`), and a share is computed
    for each. Compact bone is as dark as air, but marrow and scalp are not. A side outside of the
    scan has 0. The threshold for tissue is above any noise, so that noise does not count as skull.
    """
    near = dilated(inside, (_SKULL_FROM,) * 3)
    layer = dilated(inside, (_SKULL_TO,) * 3) & ~near
    sides, count = _side_of_voxels(
        evidence.image.grid, np.argwhere(inside), np.argwhere(layer)
    )
    is_tissue = evidence.image.data[layer] > TISSUE
    counted = sides < count
    voxels = np.bincount(sides[counted], minlength=count)
    tissue = np.bincount(sides[counted], is_tissue[counted], minlength=count)
    return np.asarray(tissue / np.maximum(voxels, 1))


def _evenness(evidence: Evidence, inside: NDArray[np.bool_]) -> float:
    """Return the share of directions, 0 to 1, in which tissue ends at a constant distance.

    A person's tissue ends at the surface of the scalp, whose thickness varies. If a mask was
    applied to the scan, tissue ends at a constant distance from the mask that it was grown from:
    the brain, or the inside of the skull (`inside`, (X, Y, Z)). The larger of the two shares is
    returned. Only directions above the middle of the head are used, and a direction in which tissue
    continues beyond `_REACH_MM` counts as without an end.
    """
    every = (slice(None, None, _STEP),) * 3
    tissue = evidence.image.data[every] > TISSUE
    affine = evidence.image.affine[:3, :3] * _STEP
    directions = on_sphere(_DIRECTIONS)
    upwards = directions[directions[:, 2] > 0]
    shares = []
    for mask in (inside[every], evidence.brain[every]):
        ends_mm = _last_tissue_mm(tissue, mask, affine, upwards)
        farthest_mm = np.percentile(ends_mm, _FARTHEST_PERCENTILE)
        is_even = ends_mm >= farthest_mm - _EVEN_MM
        has_end = ends_mm < _REACH_MM - _STEP
        shares.append(float((is_even & has_end).mean()))
    return max(shares)


def _last_tissue_mm(
    tissue: NDArray[np.bool_],
    mask: NDArray[np.bool_],
    affine: NDArray[np.float64],
    directions: NDArray[np.float32],
) -> NDArray[np.float64]:
    """Return the distance in mm from a mask to the last voxel of tissue in each direction, (N,).

    `tissue` and `mask` are (X, Y, Z). `affine` (3, 3) maps steps of voxels to mm. `directions` (N,
    3) are unit vectors in the world's axes.
    """
    spacing_mm = np.linalg.norm(affine, axis=0)
    distances_mm = ndimage.distance_transform_edt(~mask, spacing_mm)
    outside = tissue & (distances_mm > 0) & (distances_mm <= _REACH_MM)
    places = (np.argwhere(outside) - np.argwhere(mask).mean(axis=0)) @ affine.T
    is_above = places[:, 2] > 0
    places = places[is_above].astype(np.float32)
    ends_mm = np.zeros(len(directions))
    # Positions are not normalised to unit length, which does not change the nearest direction.
    nearest = (places @ directions.T).argmax(axis=1)
    np.maximum.at(ends_mm, nearest, distances_mm[outside][is_above])
    return ends_mm


def _side_of_voxels(
    grid: Grid, inside: NDArray[np.intp], layer: NDArray[np.intp]
) -> tuple[NDArray[np.intp], int]:
    """Return the side that each voxel of a layer lies on, (N,), and the number of sides.

    `inside` (M, 3) and `layer` (N, 3) are voxel indices on `grid`. The sides are numbered sectors
    as seen from the mean position of `inside`: eight around the head, eight steeper ones above, and
    the top. Voxels below the middle get the number after the last side.
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


def grade_thickness(evidence: Evidence) -> tuple[GradeName, tuple[str, ...]]:
    """Grade the scan for cortical thickness as pass, look or reject; return the grade and reasons.

    The reasons are a cut brain, blurred edges, noise and large voxels. The limits are narrower than
    those of the scan's own grade, because volumes tolerate more blur and noise than thickness does.
    """
    findings = []
    cut_mm2, _ = find_cut(evidence)
    cut = f"the field of view ends inside the brain: {cut_mm2 / 100:.0f} cm²"
    findings += above(cut_mm2, LIMITS.cut_mm2, cut)
    sharpness = edge_sharpness(evidence)
    if sharpness is not None:
        # Negative if noise is stronger than the edges.
        blurred = f"edges of white matter are {max(sharpness, 0.0):.0%} sharp"
        findings += below(sharpness, _SHARP_FOR_THICKNESS, blurred)
    noise = noise_share(evidence)
    if noise is not None:
        noisy = (
            f"noise of {noise:.0%} of the difference between white matter and cortex"
        )
        findings += above(noise, _NOISE_FOR_THICKNESS, noisy)
    spacing_mm = max(evidence.scan.spacing_mm)
    thick = f"voxels of {spacing_mm:.1f} mm"
    findings += above(spacing_mm, _SPACING_FOR_THICKNESS_MM, thick)
    return grade_findings(findings)


@dataclass(frozen=True)
class ParcelMeasure:
    """Measurements of one parcel on one side.

    `freesurfer` is the parcel's FreeSurfer number. `voxels` and `mm3` are counted in the scan's own
    space. `share` is the volume divided by the volume of all parcels of the same side. `asymmetry`
    is left minus right, divided by their mean: 0 if both sides are equal, 2 if only the left one
    exists. `agreement` is the mean Dice between views, None with one view. `grade` is pass, look or
    reject, by that agreement. Values that are unknown are None.
    """

    name: str
    freesurfer: int
    side: Side
    lobe: str
    voxels: int
    mm3: float
    share: float | None
    asymmetry: float | None
    agreement: float | None
    grade: GradeName | None


def measure_parcels(
    found: Prediction, limits: tuple[float, float]
) -> list[ParcelMeasure]:
    """Measure all parcels of a prediction, the left ones first.

    A parcel is graded by the mean Dice between views: look below the first of the `limits`, reject
    below the second, else pass.
    """
    voxels = found.parcel_voxels
    assert found.parcel_map is not None
    whole = found.parcel_map.parcellation.whole
    of_side: dict[str, int] = {}
    for name, count in voxels.items():
        side = whole.find(name).side
        assert side is not None
        of_side[side] = of_side.get(side, 0) + count
    measures = []
    for name, count in voxels.items():
        label = whole.find(name)
        assert label.side is not None
        assert label.partner is not None
        other = voxels[whole.names[label.partner]]
        left, right = (count, other) if label.side == "left" else (other, count)
        agreement = None
        if found.parcel_agreement is not None:
            agreement = found.parcel_agreement[name]
        share = count / of_side[label.side] if of_side[label.side] else None
        asymmetry = 2 * (left - right) / (left + right) if left + right else None
        measures.append(
            ParcelMeasure(
                name,
                label.fs_id,
                label.side,
                label.group,
                count,
                count * found.voxel_mm3,
                share,
                asymmetry,
                None if agreement is None or np.isnan(agreement) else agreement,
                grade_structure(count, agreement, limits),
            )
        )
    return measures
