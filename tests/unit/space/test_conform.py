"""Scans to the working grid and back, judged by ellipsoids whose places in the world are known."""

from __future__ import annotations

import itertools
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from nibabel.affines import apply_affine
from nibabel.nifti1 import Nifti1Image
from nibabel.processing import resample_from_to
from scipy.spatial.transform import Rotation

from trinat.segmentation.errors import FormatError, GeometryError
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.conform import conform, restore, restore_probabilities

ORIENTATIONS = [
    "".join(letters)
    for order in itertools.permutations(["LR", "PA", "IS"])
    for letters in itertools.product(*order)
]
# A seeded part by default; the rest is marked slow.
QUICK = {
    ORIENTATIONS[i] for i in np.random.default_rng(48).choice(48, 6, replace=False)
}
KINDS = [".nii", ".nii.gz", ".mgz"]

# label: (centre in world mm, half axes in mm). A right structure is larger than its left partner
# and lies higher, so that neither a swap nor a reflection goes unseen.
STRUCTURES = {
    1: ((-22.0, 5.0, 8.0), (9.0, 14.0, 11.0)),
    2: ((24.0, 3.0, 12.0), (11.0, 16.0, 12.0)),
    3: ((0.0, -30.0, -14.0), (20.0, 9.0, 10.0)),
    4: ((3.0, 31.0, 2.0), (9.0, 9.0, 17.0)),
}
HEAD_MM = (46.0, 52.0, 44.0)
FIELD_MM = 110.0


def affine_of(
    axes: str,
    spacing_mm: tuple[float, ...],
    shape: tuple[int, ...],
    turn_degrees: tuple[float, float, float] = (0, 0, 0),
    middle_mm: tuple[float, float, float] = (1.3, -2.4, 0.7),
) -> np.ndarray:
    """An affine whose field of view is centred at `middle_mm`, its axes as named, then turned."""
    flips = nib.orientations.axcodes2ornt(tuple(axes))
    linear = np.zeros((3, 3))
    for voxel_axis, (world_axis, sign) in enumerate(flips):
        linear[int(world_axis), voxel_axis] = sign * spacing_mm[voxel_axis]
    affine = np.eye(4)
    affine[:3, :3] = (
        Rotation.from_euler("xyz", turn_degrees, degrees=True).as_matrix() @ linear
    )
    affine[:3, 3] = middle_mm - affine[:3, :3] @ ((np.array(shape) - 1) / 2)
    return affine


def field(spacing_mm: tuple[float, ...], field_mm: float = FIELD_MM) -> tuple[int, ...]:
    return tuple(max(16, round(field_mm / s)) for s in spacing_mm)


def squared_radius(
    world: np.ndarray, centre: tuple[float, ...], axes: tuple[float, ...]
) -> np.ndarray:
    return sum(((world[..., n] - centre[n]) / axes[n]) ** 2 for n in range(3))


def world_of(affine: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """(X, Y, Z, 3), the last axis slowest in memory; far quicker than nibabel's apply_affine."""
    i, j, k = np.ogrid[tuple(slice(n) for n in shape)]
    rows = affine[:3].astype(np.float32)
    return np.moveaxis(
        np.stack([a * i + b * j + (c * k + t) for a, b, c, t in rows]), 0, -1
    )


def ellipsoids(affine: np.ndarray, shape: tuple[int, ...]) -> Volume:
    """The structures as a label map on any grid."""
    world = world_of(affine, shape)
    labels = np.zeros(shape, np.uint8)
    for label, (centre, axes) in STRUCTURES.items():
        labels[squared_radius(world, centre, axes) <= 1] = label
    return Volume(labels, affine)


def head(affine: np.ndarray, shape: tuple[int, ...], level: float = 1000.0) -> Volume:
    """A smooth bright ball with darker structures in it, in air."""
    world = world_of(affine, shape)
    inside = squared_radius(world, (0, 0, 0), HEAD_MM)
    values = level / (1 + np.exp(12 * (np.sqrt(inside) - 1)))
    for label, (centre, axes) in STRUCTURES.items():
        values *= 1 - 0.1 * label * np.exp(-squared_radius(world, centre, axes))
    return Volume(values.astype(np.float32), affine)


def centroid_mm(volume: Volume, label: int) -> np.ndarray:
    return apply_affine(volume.affine, np.argwhere(volume.data == label).mean(axis=0))


def volume_mm3(volume: Volume, label: int) -> float:
    return float((volume.data == label).sum() * np.prod(volume.spacing_mm))


def there_and_back(labels: Volume) -> tuple[Volume, Volume]:
    """On the working grid, and restored from it."""
    conformed = conform(labels, labels=True, shape=(128, 128, 128))
    return conformed.volume, restore(conformed.volume, conformed.plan, labels=True)


def assert_in_place(volume: Volume, spacing_mm: tuple[float, ...]) -> None:
    """Centroids within half a voxel of the truth, which keeps sides where they are."""
    for label, (centre, _) in STRUCTURES.items():
        voxels = np.linalg.solve(
            volume.affine[:3, :3], centroid_mm(volume, label) - centre
        )
        assert np.linalg.norm(voxels) < 0.5, (label, voxels, spacing_mm)
    assert centroid_mm(volume, 1)[0] < -15 < 15 < centroid_mm(volume, 2)[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "axes",
    [
        a
        if a in QUICK
        else pytest.param(a, marks=[pytest.mark.slow, pytest.mark.important])
        for a in ORIENTATIONS
    ],
)
def test_every_orientation_in_every_format_comes_back(
    axes: str, kind: str, tmp_path: Path
) -> None:
    spacing = (0.94, 1.3, 1.1)
    shape = field(spacing)
    # A rotation on top: no axis of the scan is one of the world's.
    labels = ellipsoids(affine_of(axes, spacing, shape, (9, -6, 4)), shape)
    labels.write(tmp_path / f"scan{kind}", labels=True)
    read = Volume.read(tmp_path / f"scan{kind}", labels=True)
    assert read.axcodes == axes
    grid, back = there_and_back(read)
    assert grid.axcodes == "RAS"
    assert_in_place(grid, (1, 1, 1))
    restored = tmp_path / f"back{kind}"
    back.write(restored, labels=True)
    assert_in_place(Volume.read(restored, labels=True), spacing)
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
    # Half a voxel of the scan: nobody knows better than the scan where things are.
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
    # The scaling is one factor: no value is mixed with another.
    factor = values.data.max() / scan.data.max()
    np.testing.assert_allclose(values.data, scan.data * factor, rtol=1e-5, atol=1e-7)


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
    shifted = Volume(
        conformed.volume.data, conformed.volume.affine + np.eye(4)[:, [3, 3, 3, 0]]
    )
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
    # Ties alone may fall otherwise.
    assert (probable.data != whole.data).mean() < 1e-4
    assert probable.data.dtype == np.uint8
    np.testing.assert_array_equal(probable.affine, whole.affine)


def test_a_scan_that_fits_is_in_the_middle_of_the_grid() -> None:
    shape, centre = (100, 120, 90), (60, -40, 90)
    affine = affine_of("LPS", (1.5, 1.5, 1.5), shape, (0, 0, 0), centre)
    grid = conform(head(affine, shape)).volume
    np.testing.assert_allclose(
        grid.affine @ (127.5, 127.5, 127.5, 1), (*centre, 1), atol=1
    )


def test_a_grid_of_the_heads_own_size() -> None:
    shape = (128, 128, 128)
    affine = affine_of("LPS", (1.5, 1.5, 1.5), shape, (0, 0, 0), (6, 0, 3))
    conformed = conform(head(affine, shape), shape=None)
    # The ball is 92 x 104 x 88 mm; with margins of 10 mm and cells of 4 to 5 mm it needs more
    # than 108 to 124 voxels, in multiples of 16 at most 144.
    assert all(side % 16 == 0 and 112 <= side <= 144 for side in conformed.volume.shape)
    inside = squared_radius(
        world_of(conformed.volume.affine, conformed.volume.shape), (0, 0, 0), HEAD_MM
    )
    assert (inside <= 1).sum() == pytest.approx(
        4 / 3 * np.pi * np.prod(HEAD_MM), rel=1e-3
    )


def test_a_grid_is_no_larger_than_labels_that_fill_it() -> None:
    voxels = np.ones((16, 32, 48), np.uint8)
    conformed = conform(Volume(voxels, np.eye(4)), labels=True, shape=None)
    np.testing.assert_array_equal(conformed.volume.data, voxels)


def test_where_the_middle_lies_half_a_voxel_off_the_grid_begins_lower() -> None:
    conformed = conform(
        Volume(np.ones((15, 16, 15), np.uint8), np.eye(4)), labels=True, shape=(16,) * 3
    )
    np.testing.assert_array_equal(conformed.volume.affine[:3, 3], (-1, 0, -1))


def test_a_scan_too_tall_for_the_grid_keeps_its_top() -> None:
    """A head on a neck and a chest, in a field of view of 320 mm."""
    shape = (80, 80, 160)
    affine = affine_of("RAS", (2, 2, 2), shape, (0, 0, 0), (0, 0, -80))
    world = world_of(affine, shape)
    body = head(affine, shape).data
    trunk = (np.abs(world[..., :2]).max(axis=-1) < 40) & (world[..., 2] < 0)
    scan = Volume(np.where(trunk, 900, body).astype(np.float32), affine)
    conformed = conform(scan)
    faces = conformed.volume.affine[2, 3] - 0.5 + np.array([0, 256])
    # The head's top is at 44 mm; the scan's at 80 and its bottom at -240.
    assert 44 + 5 < faces[1] < 44 + 35


def test_labels_too_tall_for_the_grid_keep_their_top() -> None:
    conformed = conform(Volume(np.ones((8, 8, 300), np.uint8), np.eye(4)), labels=True)
    assert conformed.volume.affine[2, 3] == 300 - 256
    assert conformed.volume.data.sum() == 8 * 8 * 256


def test_a_wide_label_map_is_centred_on_what_it_labels() -> None:
    voxels = np.zeros((300, 32, 32), np.uint8)
    voxels[280:, 8:24, 8:24] = 1
    conformed = conform(Volume(voxels, np.eye(4)), labels=True)
    assert conformed.volume.data.sum() == voxels.sum()


def test_a_wide_oblique_field_is_centred_on_the_head() -> None:
    """256 mm across and turned: the grid cannot hold the corners, but it holds the head."""
    shape = (64, 64, 64)
    affine = affine_of("LPS", (4, 4, 4), shape, (0, 0, 30), (-60, 20, 0))
    conformed = conform(head(affine, shape))
    world = world_of(conformed.volume.affine, (1, 1, 1))[0, 0, 0]
    assert np.all(world[:2] + 0.5 < np.array([-46, -52]) - 10)
    assert np.all(world[:2] - 0.5 + 256 > np.array([46, 52]) + 10)


def bright_end(scan: Volume) -> float:
    return float(np.quantile(conform(scan, shape=(128, 128, 128)).volume.data, 0.99))


def test_intensities_go_from_0_to_about_1() -> None:
    shape = field((1, 1, 1))
    affine = affine_of("LIA", (1, 1, 1), shape)
    values = conform(head(affine, shape, 743.0), shape=(128, 128, 128)).volume.data
    assert np.quantile(values, 0.05) == pytest.approx(0, abs=0.01)
    assert np.quantile(values, 0.99) == pytest.approx(1, abs=0.05)
    assert 0 <= values.min() <= values.max() <= 1.1


@pytest.mark.parametrize("air", [5, 16, 30])
def test_air_around_the_head_does_not_change_its_brightness(air: int) -> None:
    shape = field((2, 2, 2))
    scan = noisy(head(affine_of("RAS", (2, 2, 2), shape), shape))
    affine = scan.affine.copy()
    affine[:3, 3] -= 2 * air
    noise = np.random.default_rng(9).normal(0, 20, np.array(shape) + 2 * air)
    wide = np.abs(noise).astype(np.float32)
    wide[(slice(air, -air),) * 3] = scan.data
    narrow, padded = conform(scan).volume, conform(Volume(wide, affine)).volume
    np.testing.assert_allclose(narrow.affine, padded.affine)
    middle = (slice(120, 136),) * 3
    assert np.median(padded.data[middle] / narrow.data[middle]) == pytest.approx(
        1, abs=0.01
    )


def noisy(scan: Volume) -> Volume:
    noise = np.random.default_rng(3).normal(0, 20, scan.shape)
    return Volume(np.abs(scan.data + noise).astype(np.float32), scan.affine)


def test_some_voxels_far_too_bright_change_nothing() -> None:
    shape = field((1, 1, 1))
    scan = head(affine_of("RAS", (1, 1, 1), shape), shape)
    data = scan.data.copy()
    data[50:53, 50:53, 50:53] = 1e7
    spoilt = conform(Volume(data, scan.affine), shape=(128, 128, 128)).volume.data
    assert np.quantile(spoilt, 0.99) == pytest.approx(bright_end(scan), rel=0.01)
    assert spoilt.max() == 2


def test_negative_values_start_from_the_background() -> None:
    shape = field((1, 1, 1))
    scan = head(affine_of("RAS", (1, 1, 1), shape), shape)
    normalised = Volume((scan.data - scan.data.mean()) / scan.data.std(), scan.affine)
    plain, shifted = (
        conform(s, shape=(128, 128, 128)).volume.data for s in (scan, normalised)
    )
    np.testing.assert_allclose(shifted, plain, atol=0.03)


def test_overshoot_below_zero_is_background() -> None:
    shape = field((1, 1, 1))
    scan = head(affine_of("RAS", (1, 1, 1), shape), shape)
    rung = scan.data.copy()
    rung[20:24, 20:60, 20:60] = -30
    plain, ours = (
        conform(s, shape=(128, 128, 128)).volume.data
        for s in (scan, Volume(rung, scan.affine))
    )
    assert ours.min() == 0
    assert np.quantile(ours, 0.99) == pytest.approx(np.quantile(plain, 0.99), rel=0.01)
    assert np.median(ours) == pytest.approx(np.median(plain), abs=0.01)


def test_an_empty_scan_is_refused() -> None:
    with pytest.raises(FormatError, match="stands out"):
        conform(Volume(np.zeros((20, 20, 20), np.int16), np.eye(4)))


def test_a_scan_of_next_to_nothing_is_refused() -> None:
    data = np.zeros((40, 40, 40), np.float32)
    data[10:30, 10:30, 10:30] = 1e-41
    with pytest.raises(FormatError, match="stands out"):
        conform(Volume(data, np.diag([4.0, 4, 4, 1])))


@pytest.mark.parametrize("share", [1e-4, 0.9])
def test_voxels_that_are_no_numbers_are_refused(share: float) -> None:
    rng = np.random.default_rng(0)
    data = rng.random((30, 30, 30)).astype(np.float32)
    data[rng.random(data.shape) < share] = np.nan
    with pytest.raises(FormatError, match="NaN"):
        conform(Volume(data, np.diag([4.0, 4, 4, 1])), shape=(128, 128, 128))


@pytest.mark.parametrize("degrees", [0, 14])
def test_images_agree_with_nibabels_resampling(degrees: float) -> None:
    spacing = (1.2, 1.0, 1.3)
    shape = field(spacing)
    scan = head(affine_of("LPI", spacing, shape, (degrees, degrees / 2, 0)), shape)
    ours = conform(scan, shape=(128, 128, 128)).volume
    theirs = resample_from_to(
        Nifti1Image(scan.data, scan.affine), (ours.shape, ours.affine), order=1
    ).get_fdata()
    factor = np.median(ours.data[50:70, 50:70, 50:70] / theirs[50:70, 50:70, 50:70])
    # Away from the turned field's edges, where nibabel cuts what fades here.
    inner = (slice(30, -30),) * 3
    np.testing.assert_allclose(ours.data[inner], factor * theirs[inner], atol=1e-4)


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
    for path in sorted((dev_data / "freesurfer").glob("*/mri/aseg.mgz")):
        labels = Volume.read(path, labels=True)
        assert labels.axcodes == "LIA"
        conformed = conform(labels, labels=True)
        back = restore(conformed.volume, conformed.plan, labels=True)
        assert conformed.volume.axcodes == "RAS"
        np.testing.assert_array_equal(back.data, labels.data)
        assert back.data.dtype == labels.data.dtype
        # Left caudate lies left, right caudate right.
        assert (
            centroid_mm(conformed.volume, 11)[0] < centroid_mm(conformed.volume, 50)[0]
        )
