"""Sheets of cortex of known thickness: flat, folded, at open and closed sulci, on two sides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.evidence import CORTEX, WHITE, evidence
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial import cKDTree

from trinat.segmentation.errors import LabelError
from trinat.segmentation.grid import Grid, Shape
from trinat.segmentation.inference.measuring import grade_thickness
from trinat.segmentation.inference.parcels import Parcels
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.inference.thickness import sheet_thickness
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.parcels import Parcellation
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.conform import ConformPlan

_Field = NDArray[np.float64]

STRUCTURES = load_scheme("quicknat33")
DESIKAN = Parcellation(STRUCTURES, load_scheme("desikan34"))
SHAPE = (36, 36, 36)
# Surfaces end at the edge of the grid, so nothing can be measured near it.
MIDDLE = (slice(8, -8),) * 3


def oblique(spacing_mm: tuple[float, float, float], shape: Shape = SHAPE) -> Grid:
    """Return a grid about the origin whose axes are turned by 30 and 20 degrees."""
    a, b = np.radians([30, 20])
    first = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    second = np.array(
        [[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]]
    )
    affine = np.eye(4)
    affine[:3, :3] = first @ second @ np.diag(spacing_mm)
    affine[:3, 3] = -affine[:3, :3] @ (np.array(shape) - 1) / 2
    return Grid(shape, affine)


UPRIGHT = oblique((1, 1, 1))
UPRIGHT = Grid(SHAPE, np.block([[np.eye(3), UPRIGHT.affine[:3, 3:]], [0, 0, 0, 1]]))
GRIDS = {
    "upright": UPRIGHT,
    "oblique": oblique((1, 1, 1)),
    "anisotropic": oblique((0.8, 1.0, 1.3)),
}


def places_of(grid: Grid) -> tuple[_Field, _Field, _Field]:
    """Return x, y and z of each voxel in mm."""
    voxels = np.indices(grid.shape).reshape(3, -1).T
    x, y, z = grid.places(voxels).T.reshape(3, *grid.shape)
    return x, y, z


def within(distance_mm: _Field) -> NDArray[np.float32]:
    """Return the probability of the near side of a border that is blurred over 1.5 mm."""
    return np.clip(0.5 - distance_mm / 1.5, 0, 1).astype(np.float32)


def mean_of(grid: Grid, depth_mm: _Field, thickness_mm: float, is_open: bool) -> float:
    """Return the mean thickness of a sheet that begins at depth 0 and extends outwards."""
    inside = within(depth_mm)
    outside = 1 - within(depth_mm - thickness_mm) if is_open else 0
    cortex = (1 - inside - outside).astype(np.float32)
    found = sheet_thickness(Volume(inside, grid.affine), Volume(cortex, grid.affine))
    volumes = cortex[MIDDLE]
    thickness = found.data[MIDDLE]
    known = thickness > 0
    return float(volumes[known].sum() / (volumes[known] / thickness[known]).sum())


def flat(grid: Grid) -> _Field:
    """Return the depth below a plane that is oblique to all axes of the world."""
    x, y, z = places_of(grid)
    return (x + 2 * y + 2 * z) / 3


def round_(grid: Grid) -> _Field:
    """Return the depth outside a cylinder of 7 mm, as of a gyrus."""
    x, y, _ = places_of(grid)
    return np.hypot(x, y) - 7


def folded(grid: Grid) -> _Field:
    """Return the depth above waves, 20 mm from one to the next and 10 mm high."""
    x, y, _ = places_of(grid)
    along = np.linspace(-60, 60, 24001)
    height = 5 * np.cos(2 * np.pi * along / 20)
    tree = cKDTree(np.stack([along, height], axis=1))
    distance, _ = tree.query(np.stack([x, y], axis=-1))
    is_above = y > 5 * np.cos(2 * np.pi * x / 20)
    return np.where(is_above, distance, -distance)


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("depth", [flat, round_, folded])
@pytest.mark.parametrize("thickness_mm", [2.0, 3.0])
def test_thickness_of_a_sheet(
    grid: Grid, depth: Callable[[Grid], _Field], thickness_mm: float
) -> None:
    found_mm = mean_of(grid, depth(grid), thickness_mm, is_open=True)
    assert found_mm == pytest.approx(thickness_mm, abs=0.1)


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("gap_mm", [0.0, 2.0])
def test_each_bank_of_a_sulcus_has_its_own_thickness(grid: Grid, gap_mm: float) -> None:
    half_mm = 2.5 + gap_mm / 2
    depth_mm = half_mm - np.abs(flat(grid))
    found_mm = mean_of(grid, depth_mm, 2.5, is_open=gap_mm > 0)
    assert found_mm == pytest.approx(2.5, abs=0.1)


def test_without_cortex_nothing_is_measured() -> None:
    nothing = Volume(np.zeros((4, 5, 6), np.float32), np.eye(4))
    assert not sheet_thickness(nothing, nothing).data.any()


def test_a_grid_that_is_one_voxel_wide_is_measured() -> None:
    z = np.broadcast_to(np.arange(30.0, dtype=np.float32), (1, 16, 30))
    inside = Volume((z < 10).astype(np.float32), np.eye(4))
    sheet = Volume(((z >= 10) & (z < 13)).astype(np.float32), np.eye(4))
    thickness = sheet_thickness(inside, sheet).data
    assert thickness[:, :, 10:13] == pytest.approx(3, abs=0.1)


def predicted(left_mm: float, right_mm: float) -> Prediction:
    """Return two plates of 16 by 16 mm on white matter, the left one below the right one.

    The front half of each is precentral, the other half postcentral.
    """
    shape = (16, 16, 30)
    z = np.broadcast_to(np.arange(30), shape)
    fused = torch.zeros((*shape, len(STRUCTURES)), dtype=torch.float16)
    for side, bottom, thickness in (("Left", 5, left_mm), ("Right", 19, right_mm)):
        white = (z >= bottom - 4) & (z < bottom)
        grey = np.clip(bottom + thickness - z, 0, 1) * (z >= bottom)
        fused[..., STRUCTURES.find(f"{side}-Cerebral-White-Matter").index] = (
            torch.from_numpy(white.astype(np.float16))
        )
        fused[..., STRUCTURES.find(f"{side}-Cerebral-Cortex").index] = torch.from_numpy(
            grey.astype(np.float16)
        )
    fused[..., 0] = 1 - fused[..., 1:].sum(-1)
    places = np.ones(shape, bool)
    classes = np.full(shape, DESIKAN.parcels.find("postcentral").index, np.uint8)
    classes[:, 8:] = DESIKAN.parcels.find("precentral").index
    grid = Grid(shape, np.eye(4))
    return Prediction(
        fused=fused,
        scheme=STRUCTURES,
        plan=ConformPlan(grid, (1, 1), grid),
        image=Volume(np.zeros(shape, np.float32), np.eye(4)),
        notes=(),
        agreement=None,
        uncertainty=None,
        not_predicted=(),
        parcel_map=Parcels(DESIKAN, places, classes.ravel(), {}),
    )


def test_a_parcel_has_thickness_volume_and_the_area_of_the_middle_surface() -> None:
    found = predicted(left_mm=3, right_mm=2)
    parcels = {parcel.name: parcel for parcel in found.cortex_thickness.parcels}
    assert len(parcels) == 68
    left = parcels["ctx-lh-precentral"]
    assert left.side == "left"
    assert left.thickness_mm == pytest.approx(3, abs=0.05)
    assert left.std_mm == pytest.approx(0, abs=0.1)
    # 8 by 16 voxels, 3 high.
    assert left.volume_mm3 == pytest.approx(384, rel=0.01)
    assert left.area_mm2 == pytest.approx(128, rel=0.03)
    right = parcels["ctx-rh-postcentral"]
    assert right.thickness_mm == pytest.approx(2, abs=0.05)
    absent = parcels["ctx-lh-insula"]
    assert (absent.thickness_mm, absent.std_mm) == (None, None)
    assert (absent.volume_mm3, absent.area_mm2) == (0, 0)


def test_a_hemisphere_is_measured_over_all_its_parcels() -> None:
    left, right = predicted(left_mm=3, right_mm=2).cortex_thickness.hemispheres
    assert (left.side, right.side) == ("left", "right")
    assert left.thickness_mm == pytest.approx(3, abs=0.05)
    assert right.volume_mm3 == pytest.approx(16 * 16 * 2, rel=0.01)


def test_the_map_has_mm_on_the_cortex_of_the_scan_and_nothing_elsewhere() -> None:
    found = predicted(left_mm=3, right_mm=2)
    fine = Grid((32, 16, 30), np.diag([0.5, 1, 1, 1]))
    found = replace(found, plan=ConformPlan(fine, (1, 1), found.plan.working))
    shown = found.thickness_map
    assert shown.shape == fine.shape
    cortex = np.isin(found.labels.data, (3, 42))
    assert np.array_equal(shown.data > 0, cortex)
    assert np.median(shown.data[found.labels.data == 3]) == pytest.approx(3, abs=0.05)
    assert np.median(shown.data[found.labels.data == 42]) == pytest.approx(2, abs=0.05)


def test_thickness_needs_parcels() -> None:
    found = replace(predicted(left_mm=3, right_mm=2), parcel_map=None)
    with pytest.raises(LabelError):
        _ = found.cortex_thickness


def test_blur_noise_thick_slices_and_cut_heads_are_graded() -> None:
    labels = np.full((48, 48, 48), WHITE, np.uint8)
    labels[:8] = labels[:, :8] = labels[:, :, :8] = CORTEX
    # Nothing is labelled where the scan ends, and what is around is not as dark as air.
    whole = np.zeros_like(labels)
    whole[3:-3, 3:-3, 3:-3] = labels[3:-3, 3:-3, 3:-3]
    cut = whole.copy()
    cut[-3:] = labels[-3:]
    noise = np.random.default_rng(0).standard_normal(labels.shape)
    values = np.array([0.3, 1.0, 0.6])

    def grade(
        labels: NDArray[np.uint8], change: _Field | float = 0, scan: Grid | None = None
    ) -> str:
        return grade_thickness(evidence(labels, values[labels] + change, scan=scan))[0]

    assert grade(whole, 0.01 * noise) == "pass"
    # Noise beside a difference of 0.4.
    assert grade(whole, 0.16 * noise) == "look"
    assert grade(whole, 0.28 * noise) == "reject"
    blur = ndimage.gaussian_filter(values[whole], 2) - values[whole]
    assert grade(whole, blur) == "reject"
    assert grade(whole, scan=Grid((48, 48, 30), np.diag([1, 1, 1.6, 1]))) == "look"
    assert grade(whole, scan=Grid((48, 48, 19), np.diag([1, 1, 2.5, 1]))) == "reject"
    assert grade(cut) == "look"
