"""The head's box: wide enough wherever the head is and whatever is around it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from nibabel.affines import apply_affine
from scipy import ndimage

from trinat.segmentation.grid import Box, occupied_box, to_box
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.background import on_working_scale
from trinat.segmentation.space.conform import conform, head_box
from trinat.segmentation.synthetic.phantom import phantom

BRAIN_MM = (66.0, 84.0, 62.0)
SCALP_MM = (80.0, 100.0, 78.0)


def scan_and_brain(
    *,
    shift_mm: tuple[float, float, float] = (0, 0, 0),
    shape: tuple[int, int, int] = (80, 80, 80),
    spacing_mm: float = 3.0,
    neck: bool = False,
) -> tuple[Volume, np.ndarray]:
    """Return a brain in its skull and scalp, in noisy air, and the mask of the brain."""
    affine = np.diag([spacing_mm, spacing_mm, spacing_mm, 1.0])
    affine[:3, 3] = -spacing_mm * (np.array(shape) - 1) / 2
    world = apply_affine(affine, np.moveaxis(np.indices(shape), 0, -1)) - shift_mm
    radius = np.sqrt(((world / BRAIN_MM) ** 2).sum(axis=-1))
    outer = np.sqrt(((world / SCALP_MM) ** 2).sum(axis=-1))
    brain = radius < 1
    values = np.zeros(shape, np.float32)
    values[outer < 1] = 950
    values[outer < 0.93] = 60
    if neck:
        values[
            (np.hypot(world[..., 0], world[..., 1]) < 50) & (world[..., 2] < -40)
        ] = 700
    # The cortex is half as bright as the fat around the skull, as it is in T1.
    values[brain] = 420
    values[radius < 0.75] = 640
    noise = 18 * np.random.default_rng(11).standard_normal((2, *shape), np.float32)
    return Volume(np.hypot(values + noise[0], noise[1]), affine), brain


def box_of(scan: Volume, **margin: float) -> Box:
    """Return the head's box in a scan with its own intensities."""
    image = on_working_scale(scan)
    shift = np.linalg.solve(scan.affine, image.affine)[:3, 3]
    return to_box(
        slice(side.start + first, side.stop + first)
        for side, first in zip(
            head_box(image, **margin), np.rint(shift).astype(int), strict=True
        )
    )


def assert_holds(
    box: Box, brain: np.ndarray, spacing_mm: float, margin_mm: float = 5
) -> None:
    """Assert that the brain lies in the box, with a margin unless the scan itself ends before."""
    for side, tight, length in zip(box, occupied_box(brain), brain.shape, strict=True):
        voxels = int(np.ceil(margin_mm / spacing_mm))
        assert side.start <= max(tight.start - voxels, 0)
        assert side.stop >= min(tight.stop + voxels, length)


@pytest.mark.parametrize("spacing", [1.6, 5.0])
def test_the_box_does_not_depend_on_the_voxels_size(spacing: float) -> None:
    n = round(250 / spacing)
    scan, brain = scan_and_brain(shape=(n, n, n), spacing_mm=spacing)
    box = box_of(scan)
    assert_holds(box, brain, spacing)
    # Scalp, margin and a cell: 160 + 2 x (10 + 5), and not the 250 mm of the scan.
    assert (box[0].stop - box[0].start) * spacing < 200


def test_the_margin_is_what_is_asked_for() -> None:
    scan, _ = scan_and_brain()
    narrow, wide = box_of(scan, margin_mm=0), box_of(scan, margin_mm=15)
    assert [a.start - b.start for a, b in zip(narrow, wide, strict=True)] == [5, 5, 5]
    assert [b.stop - a.stop for a, b in zip(narrow, wide, strict=True)] == [5, 5, 5]


@pytest.mark.parametrize("axes", ["RAS", "RSA", "RIA"])
def test_a_long_body_is_left_out_below_the_head(axes: str) -> None:
    scan, brain = scan_and_brain(shape=(60, 70, 150), neck=True, shift_mm=(0, 0, 120))
    data, where, affine = scan.data, brain, scan.affine.copy()
    if axes != "RAS":
        data, where = data.transpose(0, 2, 1), where.transpose(0, 2, 1)
        affine = affine[:, [0, 2, 1, 3]]
    if axes == "RIA":
        data, where = data[:, ::-1], where[:, ::-1]
        affine[:, 3] += affine[:, 1] * (data.shape[1] - 1)
        affine[:, 1] *= -1
    turned = Volume(data, affine)
    assert turned.axcodes == axes
    box = box_of(turned)
    assert_holds(box, where, 3.0)
    up = box[axes.index("S") if "S" in axes else axes.index("I")]
    assert 200 < (up.stop - up.start) * 3 < 250


def test_a_ghost_far_from_the_head_is_left_out() -> None:
    scan, brain = scan_and_brain(shape=(120, 80, 80))
    ghosted = scan.data.copy()
    ghosted[2:8, 30:36, 30:36] = 900
    box = box_of(Volume(ghosted, scan.affine))
    assert box == box_of(scan)
    assert_holds(box, brain, 3.0)


def test_without_a_head_the_whole_image_is_the_box() -> None:
    sparks = np.zeros((40, 40, 40), np.float32)
    sparks[20, 20, 20] = 1
    everything = (slice(0, 40),) * 3
    assert head_box(Volume(sparks, np.diag([4.0, 4, 4, 1]))) == everything


Head = tuple[np.ndarray, np.ndarray]  # image and mask of the brain
Change = Callable[[np.ndarray, np.ndarray], Head]


def _shifted(image: np.ndarray, brain: np.ndarray) -> Head:
    """Move the head to a corner of a field half as wide again, full of noise."""
    shape = np.array(image.shape) * 3 // 2
    level = image[:4].mean()
    wide = np.random.default_rng(1).rayleigh(level, shape).astype(np.float32)
    where = np.zeros(shape, bool)
    corner = tuple(slice(0, n) for n in image.shape)
    wide[corner], where[corner] = image, brain
    return wide, where


def _stripped(image: np.ndarray, brain: np.ndarray) -> Head:
    return np.where(brain, image, 0), brain


def _cut(axis: int, *, low: bool) -> Change:
    """Cut off a quarter of the brain at the end of the scan."""

    def change(image: np.ndarray, brain: np.ndarray) -> Head:
        side = occupied_box(brain)[axis]
        quarter = (side.stop - side.start) // 4
        kept = (
            slice(side.start + quarter, None)
            if low
            else slice(None, side.stop - quarter)
        )
        part = tuple(kept if a == axis else slice(None) for a in range(3))
        return image[part], brain[part]

    return change


def _cut_all_round(image: np.ndarray, brain: np.ndarray) -> Head:
    part = tuple(slice(s.start + 2, s.stop - 2) for s in occupied_box(brain))
    return image[part], brain[part]


def _biased(axis: int, strength: float) -> Change:
    def change(image: np.ndarray, brain: np.ndarray) -> Head:
        ramp = np.linspace(-strength, strength, image.shape[axis])
        gain = np.exp(np.expand_dims(ramp, [a for a in range(3) if a != axis]))
        return image * gain, brain

    return change


def _noisy(image: np.ndarray, brain: np.ndarray) -> Head:
    noise = np.random.default_rng(2).normal(
        0, 0.2 * image[brain].mean(), (2, *image.shape)
    )
    return np.hypot(image + noise[0], noise[1]), brain


def _with_bright_fat(image: np.ndarray, brain: np.ndarray) -> Head:
    outside = ~ndimage.binary_dilation(brain, iterations=3) & (
        image > image[brain].mean() / 2
    )
    return np.where(outside, 8 * image, image), brain


PHANTOMS: dict[str, Change] = {
    "as it is": lambda image, brain: (image, brain),
    "shifted": _shifted,
    "skull-stripped": _stripped,
    "skull-stripped and shifted": lambda image, brain: _shifted(
        *_stripped(image, brain)
    ),
    "skull-stripped and cut": lambda image, brain: _cut(2, low=False)(
        *_stripped(image, brain)
    ),
    **{
        f"cut {way} along axis {axis}": _cut(axis, low=way == "below")
        for axis in range(3)
        for way in ("below", "above")
    },
    "cut all round": _cut_all_round,
    "dark in front": _biased(1, -1.0),
    "dark above": _biased(2, -1.0),
    "dark on the right": _biased(0, -1.0),
    "noisy": _noisy,
    "in bright fat": _with_bright_fat,
}


@cache
def coarse_phantom(oblique_deg: float) -> tuple[Volume, np.ndarray]:
    scan, truth = phantom(0, spacing_mm=(3.0, 3.0, 3.0), oblique_deg=oblique_deg)
    return scan, truth.data > 0


@pytest.mark.parametrize("oblique_deg", [0.0, 40.0])
@pytest.mark.parametrize("case", PHANTOMS)
def test_the_box_never_cuts_a_phantoms_brain(case: str, oblique_deg: float) -> None:
    scan, brain = coarse_phantom(oblique_deg)
    image, brain = PHANTOMS[case](scan.data.astype(np.float32), brain)
    assert_holds(box_of(Volume(image, scan.affine)), brain, 3.0)


def test_thick_slices_do_not_narrow_the_box() -> None:
    spacing_mm = (3.0, 3.0, 9.0)
    scan, truth = phantom(1, spacing_mm=spacing_mm)
    box, tight = box_of(scan), occupied_box(truth.data > 0)
    for side, within, length, mm in zip(
        box, tight, scan.shape, spacing_mm, strict=True
    ):
        assert side.start <= max(within.start - 5 / mm, 0)
        assert side.stop >= min(within.stop + 5 / mm, length)


def test_real_brains_lie_in_the_box_by_a_margin(dev_data: Path) -> None:
    for path in sorted((dev_data / "freesurfer").glob("*/mri/aseg.mgz")):
        image = path.with_name("T1.mgz")
        image = image if image.exists() else path.with_name("brainmask.mgz")
        conformed = conform(Volume.read(image))
        labels = conform(
            Volume.read(path, labels=True), labels=True, plan=conformed.plan
        )
        box = head_box(conformed.volume)
        assert_holds(box, labels.volume.data > 0, 1.0)
        assert np.prod([s.stop - s.start for s in box]) < 0.75 * 256**3
