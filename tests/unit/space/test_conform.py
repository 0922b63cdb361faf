"""Scans to the working grid and back, tested by ellipsoids with known places in the world."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from helpers.placed import (
    STRUCTURES,
    affine_of,
    centroid_mm,
    ellipsoids,
    field,
    head,
    volume_mm3,
)
from nibabel.nifti1 import Nifti1Image
from nibabel.processing import resample_from_to

from trinat.segmentation.errors import GeometryError
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.background import on_working_scale
from trinat.segmentation.space.conform import conform, restore, restore_probabilities

ORIENTATIONS = [
    "".join(letters)
    for order in itertools.permutations(["LR", "PA", "IS"])
    for letters in itertools.product(*order)
]
# A seeded selection by default; the rest is marked slow.
QUICK = {
    ORIENTATIONS[i] for i in np.random.default_rng(48).choice(48, 3, replace=False)
}


def there_and_back(labels: Volume) -> tuple[Volume, Volume]:
    """Return the labels on the working grid, and restored from it."""
    conformed = conform(labels, labels=True, shape=(128, 128, 128))
    return conformed.volume, restore(conformed.volume, conformed.plan, labels=True)


def assert_in_place(volume: Volume, spacing_mm: tuple[float, ...]) -> None:
    """Assert that centroids are within half a voxel of the truth, which also keeps sides apart."""
    for label, (centre, _) in STRUCTURES.items():
        voxels = np.linalg.solve(
            volume.affine[:3, :3], centroid_mm(volume, label) - centre
        )
        assert np.linalg.norm(voxels) < 0.5, (label, voxels, spacing_mm)
    assert centroid_mm(volume, 1)[0] < -15 < 15 < centroid_mm(volume, 2)[0]


@pytest.mark.parametrize(
    "axes",
    [
        a
        if a in QUICK
        else pytest.param(a, marks=[pytest.mark.slow, pytest.mark.important])
        for a in ORIENTATIONS
    ],
)
def test_every_orientation_comes_back(axes: str, tmp_path: Path) -> None:
    """Formats of files are in tests/unit/io/test_volume.py, in every orientation."""
    spacing = (0.94, 1.3, 1.1)
    shape = field(spacing)
    # A rotation on top: no axis of the scan is one of the world's.
    labels = ellipsoids(affine_of(axes, spacing, shape, (9, -6, 4)), shape)
    labels.write(tmp_path / "scan.nii.gz", labels=True)
    read = Volume.read(tmp_path / "scan.nii.gz", labels=True)
    assert read.axcodes == axes
    grid, back = there_and_back(read)
    assert grid.axcodes == "RAS"
    assert_in_place(grid, (1, 1, 1))
    assert_in_place(back, spacing)
    np.testing.assert_array_equal(back.affine, read.affine)


@pytest.mark.parametrize("degrees", [1, 5, 12, 20, 30, 45])
@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (0.8, 0.8, 0.8)])
def test_oblique_scans_keep_places_and_volumes(
    degrees: float, spacing: tuple[float, float, float]
) -> None:
    shape = field(spacing)
    labels = ellipsoids(
        affine_of("LIA", spacing, shape, (degrees, -degrees, degrees / 2)), shape
    )
    assert_keeps_places_and_volumes(labels)


@pytest.mark.parametrize(
    "spacing", [(0.5, 0.5, 0.5), (0.7, 0.7, 0.7), (0.9, 0.9, 1.0), (0.5, 1.0, 0.8)]
)
def test_fine_scans_keep_places_and_volumes(
    spacing: tuple[float, float, float],
) -> None:
    shape = field(spacing, 86)
    labels = ellipsoids(affine_of("PSR", spacing, shape, (0, 0, 0)), shape)
    assert_keeps_places_and_volumes(labels)


def assert_keeps_places_and_volumes(labels: Volume) -> None:
    grid, back = there_and_back(labels)
    for volume in (grid, back):
        assert_in_place(volume, labels.spacing_mm)
        for label, (_, axes) in STRUCTURES.items():
            truth = 4 / 3 * np.pi * np.prod(axes)
            assert volume_mm3(volume, label) == pytest.approx(truth, rel=0.02), label


@pytest.mark.parametrize("degrees", [0, 15])
@pytest.mark.parametrize(
    "spacing",
    [(1.2, 1.2, 1.2), (2, 2, 2), (1, 1, 3), (5, 1, 1), (0.5, 0.5, 5), (4, 4, 4)],
)
def test_coarse_and_thick_scans_keep_places(
    spacing: tuple[float, float, float], degrees: float
) -> None:
    shape = field(spacing)
    grid, back = there_and_back(
        ellipsoids(affine_of("SAL", spacing, shape, (degrees, degrees, 0)), shape)
    )
    # Half a voxel of the scan, which is its own precision.
    for label, (centre, _) in STRUCTURES.items():
        assert np.linalg.norm(centroid_mm(grid, label) - centre) < 0.5 * max(
            *spacing, 1
        )
    assert_in_place(back, spacing)


@pytest.mark.parametrize("axes", ["LIA", "RAS", "PSR", "ALS"])
def test_a_scan_of_1_mm_is_only_reordered(axes: str) -> None:
    shape = (97, 110, 88)
    labels = ellipsoids(affine_of(axes, (1, 1, 1), shape), shape)
    grid, back = there_and_back(labels)
    np.testing.assert_array_equal(back.data, labels.data)
    assert grid.data.sum() == labels.data.sum()
    scan = head(labels.affine, shape)
    conformed = conform(scan, shape=(128, 128, 128))
    values = restore(conformed.volume, conformed.plan, labels=False)
    # Values are not interpolated.
    np.testing.assert_array_equal(values.data, on_working_scale(scan).data)


def test_the_default_grid_is_256_voxels_of_1_mm_in_ras() -> None:
    shape = (60, 60, 60)
    conformed = conform(head(affine_of("LIA", (2, 2, 2), shape), shape))
    assert conformed.volume.shape == conformed.plan.working.shape == (256, 256, 256)
    assert conformed.volume.data.dtype == np.float32
    np.testing.assert_array_equal(conformed.volume.affine[:3, :3], np.eye(3))
    np.testing.assert_array_equal(
        conformed.volume.affine, conformed.plan.working.affine
    )


def test_labels_follow_their_scan_to_the_same_grid() -> None:
    spacing = (1.1, 0.9, 1.4)
    shape = field(spacing)
    affine = affine_of("ASL", spacing, shape, (8, 3, -5))
    conformed = conform(head(affine, shape), shape=(112, 128, 112))
    labels = conform(ellipsoids(affine, shape), labels=True, plan=conformed.plan)
    assert labels.plan is conformed.plan
    np.testing.assert_array_equal(labels.volume.affine, conformed.volume.affine)
    assert labels.volume.shape == (112, 128, 112)
    assert_in_place(labels.volume, (1, 1, 1))


@pytest.mark.parametrize("offset_mm", [0.0009, 0.0011])
def test_a_plan_serves_its_own_scans_grid_alone(offset_mm: float) -> None:
    shape = (40, 40, 40)
    affine = affine_of("RAS", (2, 2, 2), shape)
    plan = conform(head(affine, shape), shape=(96, 96, 96)).plan
    moved = affine.copy()
    moved[1, 3] += offset_mm
    labels = ellipsoids(moved, shape)
    if offset_mm < 1e-3:
        conform(labels, labels=True, plan=plan)
        return
    with pytest.raises(GeometryError, match=r"up to 0\.0011 mm off"):
        conform(labels, labels=True, plan=plan)


def test_a_plan_refuses_another_shape() -> None:
    affine = affine_of("RAS", (2, 2, 2), (40, 40, 40))
    plan = conform(head(affine, (40, 40, 40)), shape=(96, 96, 96)).plan
    with pytest.raises(GeometryError, match="not that of the scan"):
        conform(ellipsoids(affine, (40, 40, 39)), labels=True, plan=plan)


def test_only_what_lies_on_the_working_grid_is_restored() -> None:
    shape = (40, 40, 40)
    conformed = conform(
        head(affine_of("RAS", (2, 2, 2), shape), shape), shape=(96, 96, 96)
    )
    affine = conformed.volume.affine.copy()
    affine[0, 3] += 1
    shifted = Volume(conformed.volume.data, affine)
    with pytest.raises(GeometryError, match="working grid"):
        restore(shifted, conformed.plan, labels=False)
    with pytest.raises(GeometryError, match="probabilities"):
        restore_probabilities(np.zeros((2, 95, 96, 96), np.float32), conformed.plan)


def test_codes_and_notes_come_through() -> None:
    shape = (40, 40, 40)
    scan = head(affine_of("RAS", (2, 2, 2), shape), shape)
    scan = Volume(scan.data, scan.affine, (1, 4), ("a note",))
    conformed = conform(scan, shape=(96, 96, 96))
    assert conformed.volume.notes == ("a note",)
    back = restore(conformed.volume, conformed.plan, labels=False)
    assert (back.codes, back.notes) == ((1, 4), ("a note",))


def test_a_cropped_plan_restores_to_the_same_place() -> None:
    spacing = (1.2, 1, 1.3)
    shape = field(spacing)
    conformed = conform(
        ellipsoids(affine_of("LAS", spacing, shape, (10, 0, 5)), shape),
        labels=True,
        shape=(128, 128, 128),
    )
    whole = restore(conformed.volume, conformed.plan, labels=True)
    box = (slice(16, 112), slice(8, 120), slice(20, 116))
    plan = conformed.plan.cropped(box)
    part = Volume(conformed.volume.data[box], plan.working.affine)
    np.testing.assert_array_equal(restore(part, plan, labels=True).data, whole.data)
    shares = np.stack([part.data == k for k in range(5)]).astype(np.float16)
    probable = restore_probabilities(shares, plan)
    # Only ties may be resolved differently.
    assert (probable.data != whole.data).mean() < 1e-4
    assert probable.data.dtype == np.uint8
    np.testing.assert_array_equal(probable.affine, whole.affine)


@pytest.mark.parametrize("degrees", [0, 14])
def test_images_are_as_sharp_as_nibabels_cubic_ones(degrees: float) -> None:
    spacing = (1.2, 1.0, 1.3)
    shape = field(spacing)
    scan = head(affine_of("LPI", spacing, shape, (degrees, degrees / 2, 0)), shape)
    ours = conform(scan, shape=(128, 128, 128)).volume
    # Away from the edges of the turned field, where nibabel cuts and trinat fades.
    inner = (slice(30, -30),) * 3
    linear, cubic = (
        resample_from_to(
            Nifti1Image(scan.data, scan.affine), (ours.shape, ours.affine), order=order
        ).get_fdata()[inner]
        for order in (1, 3)
    )
    seen = cubic > 0
    factor = np.median(ours.data[inner][seen] / cubic[seen])
    off = np.abs(ours.data[inner] - factor * cubic)[seen].mean()
    assert off < 0.4 * np.abs(factor * (linear - cubic))[seen].mean()


def test_images_agree_with_torchios_and_monais_resampling() -> None:
    """Three ways from an oblique grid of 1.6 mm to the working grid."""
    import torch
    import torchio
    from monai.data import MetaTensor
    from monai.transforms import SpatialResample

    shape = field((1.6, 1.6, 1.6))
    scan = head(affine_of("RAS", (1.6, 1.6, 1.6), shape, (6, 0, 3)), shape)
    ours = conform(scan, shape=(112, 112, 112)).volume
    source = torch.from_numpy(scan.data)[None]
    grid = torchio.ScalarImage(
        tensor=torch.zeros(1, *ours.shape), affine=ours.affine.copy(), check_nans=False
    )
    torchios = torchio.Resample(grid)(
        torchio.ScalarImage(tensor=source, affine=scan.affine.copy())
    )
    monais = SpatialResample(mode="bilinear", padding_mode="zeros", align_corners=True)(
        MetaTensor(source, affine=torch.tensor(scan.affine)),
        dst_affine=torch.tensor(ours.affine),
        spatial_size=ours.shape,
    )
    inner = (slice(25, -25),) * 3
    for theirs in (torchios.data[0].numpy(), monais[0].numpy()):
        factor = np.median(ours.data[50:60, 50:60, 50:60] / theirs[50:60, 50:60, 50:60])
        np.testing.assert_allclose(ours.data[inner], factor * theirs[inner], atol=5e-3)


def test_inputs_stay_as_they_were() -> None:
    shape = (40, 40, 40)
    scan = head(affine_of("RAS", (2, 2, 2), shape), shape)
    kept = scan.data.copy()
    conform(scan, shape=(96, 96, 96))
    np.testing.assert_array_equal(scan.data, kept)


def test_real_labels_in_lia_come_back_bit_for_bit(dev_data: Path) -> None:
    for subject in ("sub-01", "sub-03"):
        path = dev_data / "freesurfer" / subject / "mri/aseg.mgz"
        labels = Volume.read(path, labels=True)
        assert labels.axcodes == "LIA"
        conformed = conform(labels, labels=True)
        back = restore(conformed.volume, conformed.plan, labels=True)
        assert conformed.volume.axcodes == "RAS"
        np.testing.assert_array_equal(back.data, labels.data)
        assert back.data.dtype == labels.data.dtype
        # Left caudate is on the left, right caudate on the right.
        assert (
            centroid_mm(conformed.volume, 11)[0] < centroid_mm(conformed.volume, 50)[0]
        )
