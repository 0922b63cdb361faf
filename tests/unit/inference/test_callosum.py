"""A callosum of known shape: an arch of even thickness between two hemispheres, with a fornix."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.errors import LabelError
from trinat.segmentation.grid import Grid
from trinat.segmentation.inference.callosum import (
    _share_in_slab,
    _with_border,
    fit_midplane,
)
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.conform import ConformPlan

SHAPE = (48, 112, 80)
STRUCTURES = load_scheme("quicknat33")
TISSUES = load_scheme("tissue4")
# Half an ellipse of 35 by 22 mm around this point, in voxels of the working grid.
MIDDLE = np.array([23.3, 55.0, 25.0])
RADII_MM = (35.0, 22.0)
THICKNESS_MM = 6.0
# Area of half an ellipse's ring: pi / 2 (a b - (a - 6) (b - 6)).
AREA_MM2 = np.pi / 2 * (35 * 22 - 29 * 16)

_Field = NDArray[np.float64]


@dataclass(frozen=True)
class Phantom:
    """Coordinates of voxels (X, Y, Z) in mm: to the right of the midplane, forward and up."""

    right: _Field
    forward: _Field
    up: _Field

    @classmethod
    def tilted(cls, degrees: float = 0) -> Phantom:
        """Return the coordinates of a head that is turned about the vertical axis."""
        angle = np.radians(degrees)
        x, y, z = (
            axis - middle
            for axis, middle in zip(np.indices(SHAPE), MIDDLE, strict=True)
        )
        return cls(
            x * np.cos(angle) + y * np.sin(angle),
            y * np.cos(angle) - x * np.sin(angle),
            z,
        )

    def arch(self, thickness_mm: float = THICKNESS_MM) -> _Field:
        """Return the callosum, 1 inside and 0 outside, smooth by half a voxel at its border."""
        a, b = RADII_MM
        outer = ellipse(self.forward, self.up, a, b)
        inner = ellipse(self.forward, self.up, a - thickness_mm, b - thickness_mm)
        return np.minimum(outer, 1 - inner) * (self.up > 0)

    def fornix(self) -> _Field:
        """Return a bundle that hangs from the hind half of the body, 10 mm wide where it starts."""
        lower = np.abs(self.forward + 8 + 0.2 * (self.up - 16)) < 5
        return (lower & (self.up > 5) & (self.up < 18)).astype(float)


def ellipse(x: _Field, y: _Field, a: float, b: float) -> _Field:
    """Return 1 inside an ellipse and 0 outside, linear over 1 mm at its border."""
    radius = np.sqrt((x / a) ** 2 + (y / b) ** 2)
    slope = np.sqrt((x / a**2) ** 2 + (y / b**2) ** 2) / np.maximum(radius, 1e-6)
    distance = (1 - radius) / np.maximum(slope, 1e-6)
    return np.asarray(np.clip(0.5 + distance, 0, 1))


def prediction(
    phantom: Phantom,
    white: _Field,
    scan: Grid | None = None,
    blur_mm: float = 0,
    grey: float = 0.5,
) -> Prediction:
    """Return a segmentation whose white matter crosses the midline where `white` is 1."""
    hemispheres = np.clip(np.abs(phantom.right) - 4, 0, 1)
    white = np.maximum(white, hemispheres)
    is_left = np.clip(0.5 - phantom.right, 0, 1)
    fused = torch.zeros((*SHAPE, len(STRUCTURES)))
    names = STRUCTURES.names
    maps = {
        "Left-Cerebral-White-Matter": white * is_left,
        "Right-Cerebral-White-Matter": white * (1 - is_left),
        "Left-Cerebral-Cortex": (1 - white) * is_left,
        "Right-Cerebral-Cortex": (1 - white) * (1 - is_left),
    }
    for name, values in maps.items():
        fused[..., names.index(name)] = torch.from_numpy(values)
    image = ndimage.gaussian_filter(grey + (1 - grey) * white, blur_mm)
    working = Grid(SHAPE, np.eye(4))
    return Prediction(
        fused=fused.half(),
        scheme=STRUCTURES,
        plan=ConformPlan(working if scan is None else scan, (1, 1), working),
        image=Volume(image.astype(np.float32), working.affine),
        notes=(),
        agreement=None,
        uncertainty=None,
        not_predicted=(),
    )


def test_area_length_and_thickness_are_those_of_the_arch() -> None:
    phantom = Phantom.tilted()
    found = prediction(phantom, phantom.arch()).callosum
    assert found.section is not None
    assert found.section.area_mm2 == pytest.approx(AREA_MM2, rel=0.03)
    assert found.section.length_mm == pytest.approx(70, abs=1)
    middle = found.thickness_mm[20:30]
    assert middle == pytest.approx(THICKNESS_MM, abs=0.3)
    assert found.grade == "pass"


def test_thickness_runs_from_behind_to_front() -> None:
    phantom = Phantom.tilted()
    arch = np.where(phantom.forward < 0, phantom.arch(8), phantom.arch(4))
    thickness = prediction(phantom, arch).callosum.thickness_mm
    assert thickness[15:20].mean() == pytest.approx(8, abs=0.5)
    assert thickness[30:35].mean() == pytest.approx(4, abs=0.5)


def test_five_parts_are_equally_long_and_five_millimetres_wide() -> None:
    phantom = Phantom.tilted()
    found = prediction(phantom, phantom.arch()).callosum
    for number in range(251, 256):
        voxels = np.argwhere(found.labels.data == number)
        assert len(np.unique(voxels[:, 0])) == 5
        assert np.ptp(voxels[:, 1]) + 1 == pytest.approx(70 / 5, abs=1)
    hindmost = np.argwhere(found.labels.data == 251)[:, 1]
    assert hindmost.max() < np.argwhere(found.labels.data == 255)[:, 1].min()
    assert found.volume_mm3 == pytest.approx(5 * AREA_MM2, rel=0.05)


def test_the_fornix_is_cut_off_where_it_touches() -> None:
    phantom = Phantom.tilted()
    without = prediction(phantom, phantom.arch()).callosum
    arch = np.maximum(phantom.arch(), phantom.fornix())
    found = prediction(phantom, arch).callosum
    assert found.section is not None
    assert without.section is not None
    assert found.section.area_mm2 == pytest.approx(without.section.area_mm2, rel=0.03)


def test_grey_matter_that_networks_take_for_white_does_not_count() -> None:
    phantom = Phantom.tilted()
    wrong = np.maximum(phantom.arch(), phantom.arch(4) * 0)
    outer = ellipse(phantom.forward, phantom.up, 41, 28) * (phantom.up > 0)
    wrong = np.maximum(
        wrong, outer * (1 - ellipse(phantom.forward, phantom.up, 30, 17))
    )
    mistaken = prediction(phantom, wrong)
    correct = prediction(phantom, phantom.arch())
    seen = replace(mistaken, image=correct.image)
    assert seen.callosum.section is not None
    assert mistaken.callosum.section is not None
    # The border of half a millimetre that is kept, on the outer side.
    border_mm2 = np.pi / 2 * (35.5 * 22.5 - 35 * 22)
    area_mm2 = seen.callosum.section.area_mm2
    assert area_mm2 == pytest.approx(AREA_MM2 + border_mm2, rel=0.04)
    assert mistaken.callosum.section.area_mm2 > 1.5 * area_mm2


@pytest.mark.parametrize(
    ("white_mm", "is_fornix", "border_mm"),
    [(2.5, False, 2.5), (2.5, True, 1), (4, False, 0.5)],
)
def test_the_border_is_narrow_at_the_fornix_and_at_grey_matter(
    white_mm: float, is_fornix: bool, border_mm: float
) -> None:
    core = np.zeros((40, 40), bool)
    core[:, 20:] = True
    reach = round(white_mm / 0.5)
    is_white = core.copy()
    is_white[:, 20 - reach : 20] = True
    is_cut = is_white & ~core & is_fornix
    is_callosum = _with_border(core, is_white, is_cut)
    assert is_callosum[:, 20:].all()
    assert (is_callosum[:, :20].sum(axis=1) * 0.5 == border_mm).all()


def test_the_midplane_follows_a_head_that_is_turned() -> None:
    phantom = Phantom.tilted(12)
    names = STRUCTURES.names
    fused = prediction(phantom, phantom.arch()).fused.float().numpy()
    plane = fit_midplane(
        fused[..., names.index("Left-Cerebral-White-Matter")],
        fused[..., names.index("Right-Cerebral-White-Matter")],
    )
    assert plane is not None
    expected = [np.cos(np.radians(12)), np.sin(np.radians(12)), 0]
    assert plane.normal == pytest.approx(expected, abs=0.01)
    assert (MIDDLE - plane.origin) @ plane.normal == pytest.approx(0, abs=0.1)


def test_a_turned_head_has_the_same_callosum() -> None:
    upright, turned = (Phantom.tilted(degrees) for degrees in (0, 12))
    one = prediction(upright, upright.arch()).callosum
    other = prediction(turned, turned.arch()).callosum
    assert one.section is not None
    assert other.section is not None
    assert other.section.area_mm2 == pytest.approx(one.section.area_mm2, rel=0.01)
    assert other.volume_mm3 == pytest.approx(one.volume_mm3, rel=0.03)


def test_an_oblique_anisotropic_scan_gets_labels_in_its_own_space() -> None:
    phantom = Phantom.tilted()
    angle = np.radians(15)
    turn = np.eye(3)
    turn[1:, 1:] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    affine = np.eye(4)
    affine[:3, :3] = turn @ np.diag([-0.8, 1.3, 1.0])
    shape = (70, 90, 90)
    centre = np.array(SHAPE) / 2
    affine[:3, 3] = centre - affine[:3, :3] @ (np.array(shape) - 1) / 2
    found = prediction(phantom, phantom.arch(), Grid(shape, affine)).callosum
    assert found.labels.shape == shape
    assert np.allclose(found.labels.affine, affine)
    assert found.volume_mm3 == pytest.approx(5 * AREA_MM2, rel=0.06)
    front = found.labels.grid.places(np.argwhere(found.labels.data == 255))
    assert front.mean(axis=0)[1] > MIDDLE[1] + 20


@pytest.mark.parametrize("spacing_mm", [1.2, 3.5])
def test_the_volume_does_not_depend_on_where_slices_lie(spacing_mm: float) -> None:
    phantom = Phantom.tilted()
    volumes = []
    for shift in (0.0, 0.25, 0.5, 0.75):
        affine = np.diag([spacing_mm, 1, 1, 1])
        affine[0, 3] = shift * spacing_mm
        shape = (int(SHAPE[0] / spacing_mm), *SHAPE[1:])
        found = prediction(phantom, phantom.arch(), Grid(shape, affine)).callosum
        volumes.append(found.volume_mm3)
    assert volumes == pytest.approx([5 * AREA_MM2] * 4, rel=0.04)


def test_a_voxel_at_the_border_of_the_slab_counts_in_part() -> None:
    # Voxels 1.2 mm wide; the slab ends at 2.5 mm.
    shares = _share_in_slab(np.array([0, -2.0, 2.5, 3.0, 3.2]), 1.2)
    assert shares == pytest.approx([1, 1.1 / 1.2, 0.5, 0.1 / 1.2, 0])
    # The slab lies within a voxel that is 10 mm wide.
    assert _share_in_slab(np.zeros(1), 10.0) == pytest.approx([0.5])


def test_the_callosum_is_part_of_the_white_matter_which_stays_as_it_is() -> None:
    phantom = Phantom.tilted()
    made = prediction(phantom, phantom.arch())
    before = made.labels.data.copy()
    is_callosum = made.callosum.labels.data > 0
    assert np.isin(made.labels.data[is_callosum], [2, 41]).all()
    assert np.array_equal(made.labels.data, before)


def test_hemispheres_that_nothing_joins_have_no_callosum() -> None:
    phantom = Phantom.tilted()
    found = prediction(phantom, np.zeros(SHAPE)).callosum
    assert found.section is None
    assert found.volume_mm3 == 0
    assert found.measures["area_mm2"] is None
    assert np.isnan(found.thickness_mm).all()
    assert found.grade == "reject"


@pytest.mark.parametrize(
    ("blur_mm", "grade"), [(0, "pass"), (1.4, "look"), (3, "reject")]
)
def test_a_blurred_scan_has_a_grade_of_its_own(blur_mm: float, grade: str) -> None:
    phantom = Phantom.tilted()
    found = prediction(phantom, phantom.arch(), blur_mm=blur_mm).callosum
    assert found.grade == grade


def test_a_callosum_that_the_field_of_view_cuts_is_rejected() -> None:
    phantom = Phantom.tilted()
    affine = np.eye(4)
    affine[1, 3] = 40
    cut = Grid((SHAPE[0], SHAPE[1] - 40, SHAPE[2]), affine)
    assert prediction(phantom, phantom.arch(), cut).callosum.grade == "reject"


def test_a_dark_callosum_is_found_as_a_bright_one() -> None:
    phantom = Phantom.tilted()
    bright = prediction(phantom, phantom.arch()).callosum
    dark = prediction(phantom, phantom.arch(), grey=1.5).callosum
    assert dark.volume_mm3 == bright.volume_mm3


def test_a_model_of_tissues_has_no_callosum() -> None:
    phantom = Phantom.tilted()
    made = prediction(phantom, phantom.arch())
    tissues = replace(made, scheme=TISSUES)
    with pytest.raises(LabelError):
        _ = tissues.callosum


def test_a_callosum_is_found_where_white_matter_and_cortex_are_equally_bright() -> None:
    phantom = Phantom.tilted()
    found = prediction(phantom, phantom.arch(), grey=1)
    assert found.callosum.section is not None
    assert found.callosum.section.area_mm2 == pytest.approx(AREA_MM2, rel=0.05)
