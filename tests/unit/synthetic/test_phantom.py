"""The phantom: same seed same head, exact truth, any geometry, left differs from right."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.ndimage import binary_erosion, map_coordinates

from trinat.segmentation.errors import ConfigError
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.synthetic import phantom as module
from trinat.segmentation.synthetic.anatomy import (
    ANATOMY_FILE,
    MIXED,
    largest_fraction,
    load_anatomy,
)
from trinat.segmentation.synthetic.phantom import FIELD_OF_VIEW_MM, SmoothField, phantom

SCHEME = load_scheme("quicknat33")
COARSE = (3.0, 3.0, 3.0)
Phantom = tuple[Volume, Volume]


@cache
def full() -> Phantom:
    return phantom(1)


@cache
def medium(seed: int) -> Phantom:
    return phantom(seed, spacing_mm=(2.0, 2.0, 2.0))


def volumes_ml(labels: Volume) -> NDArray[np.float64]:
    """Return the volume of each class in ml, (K,)."""
    classes = SCHEME.from_freesurfer(labels.data)
    voxel_ml = abs(np.linalg.det(labels.affine[:3, :3])) / 1000
    return np.bincount(classes.ravel(), minlength=len(SCHEME)) * voxel_ml


def centroids_mm(labels: Volume) -> NDArray[np.float64]:
    """Return world centroids of each class but background in mm, (K-1, 3)."""
    points = np.argwhere(labels.data)
    classes = SCHEME.from_freesurfer(labels.data)[tuple(points.T)]
    sums = [np.bincount(classes, axis, len(SCHEME)) for axis in points.T]
    voxels = (
        np.stack(sums, -1)[1:] / np.bincount(classes, minlength=len(SCHEME))[1:, None]
    )
    return nib.affines.apply_affine(labels.affine, voxels)


# --- the anatomy ---


def test_the_anatomy_is_small_and_has_all_structures() -> None:
    assert (Path(module.__file__).parent / ANATOMY_FILE).stat().st_size < 600_000
    anatomy = load_anatomy()
    assert set(np.unique(anatomy.truth).tolist()) == set(range(33))


def test_cells_are_mixed_where_their_corners_differ() -> None:
    anatomy = load_anatomy(3)
    rng = np.random.default_rng(0)
    for x, y, z in rng.integers(0, np.array(anatomy.cells.shape), (300, 3)):
        corners = anatomy.truth[x : x + 2, y : y + 2, z : z + 2]
        same = (corners == corners[0, 0, 0]).all()
        assert anatomy.cells[x, y, z] == (corners[0, 0, 0] if same else MIXED)


def test_a_coarse_anatomy_takes_the_commonest_tissue() -> None:
    fine, coarse = load_anatomy().tissues, load_anatomy(2).tissues
    rng = np.random.default_rng(0)
    for x, y, z in rng.integers(0, np.array(fine.shape) // 2, (300, 3)):
        block = fine[2 * x : 2 * x + 2, 2 * y : 2 * y + 2, 2 * z : 2 * z + 2]
        counts = np.bincount(block.ravel())
        assert coarse[x, y, z] == counts.argmax()


# --- one seed, one head ---


def test_the_same_seed_gives_the_same_bytes() -> None:
    first, second = phantom(4, spacing_mm=COARSE), phantom(4, spacing_mm=COARSE)
    for one, other in zip(first, second, strict=True):
        assert one.data.tobytes() == other.data.tobytes()
        assert one.affine.tobytes() == other.affine.tobytes()


def test_another_seed_gives_another_head() -> None:
    truths = [volumes_ml(phantom(seed, spacing_mm=COARSE)[1])[1:] for seed in (4, 5)]
    assert not np.allclose(truths[0], truths[1], rtol=0.02)


def test_a_generator_goes_on_to_the_next_head() -> None:
    rng = np.random.default_rng(4)
    first, second = phantom(rng, spacing_mm=COARSE), phantom(rng, spacing_mm=COARSE)
    np.testing.assert_array_equal(first[1].data, phantom(4, spacing_mm=COARSE)[1].data)
    assert not np.array_equal(first[1].data, second[1].data)


# --- geometry ---


def test_image_and_truth_share_one_grid() -> None:
    image, labels = full()
    assert image.shape == labels.shape == (184, 248, 240)
    np.testing.assert_array_equal(image.affine, labels.affine)
    assert image.data.dtype == labels.data.dtype == np.int16


@pytest.mark.parametrize("orientation", ["RAS", "LIA", "PSL", "SRA", "ILP", "ASR"])
def test_axes_grow_where_the_orientation_says(orientation: str) -> None:
    image, labels = phantom(2, spacing_mm=(4.0, 5.0, 6.0), orientation=orientation)
    assert image.axcodes == labels.axcodes == orientation
    assert image.spacing_mm == pytest.approx((4, 5, 6))
    extents = {"R": 184, "L": 184, "A": 248, "P": 248, "S": 240, "I": 240}
    for letter, size, mm in zip(orientation, image.shape, (4, 5, 6), strict=True):
        assert abs(size * mm - extents[letter]) <= mm / 2


@pytest.mark.parametrize("angle", [0.0, 1.0, 12.0, 45.0])
def test_an_oblique_grid_is_turned_by_the_angle(angle: float) -> None:
    image, _ = phantom(
        2, spacing_mm=(4.0, 4.0, 6.0), orientation="LIA", oblique_deg=angle
    )
    straight, _ = phantom(2, spacing_mm=(4.0, 4.0, 6.0), orientation="LIA")
    turn = (image.affine[:3, :3] / image.spacing_mm) @ np.linalg.inv(
        straight.affine[:3, :3] / straight.spacing_mm
    )
    assert np.degrees(
        np.arccos(np.clip((np.trace(turn) - 1) / 2, -1, 1))
    ) == pytest.approx(angle, abs=0.05)
    assert np.linalg.det(turn) == pytest.approx(1)
    assert image.axcodes == "LIA"


def test_the_head_stays_where_it_is_when_the_grid_turns() -> None:
    _, straight = medium(1)
    _, turned = phantom(
        1, spacing_mm=(2.0, 2.2, 2.4), orientation="PIR", oblique_deg=30
    )
    # Only the rounding of the boundary to voxels; a third of a voxel is 0.7 mm here.
    large = volumes_ml(straight)[1:] > 3
    assert large.sum() > 15
    assert np.abs(centroids_mm(straight) - centroids_mm(turned))[large].max() < 0.7
    ratio = (volumes_ml(turned)[1:] / volumes_ml(straight)[1:])[large]
    np.testing.assert_allclose(ratio, 1, atol=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed"),
        ({"spacing_mm": (1.0, 1.0)}, "spacing"),
        ({"spacing_mm": (1.0, 1.0, 0.29)}, "spacing"),
        ({"spacing_mm": (1.0, 1.0, 10.1)}, "spacing"),
        ({"spacing_mm": (1.0, float("nan"), 1.0)}, "spacing"),
        ({"orientation": "RAR"}, "'RAR' is no orientation"),
        ({"orientation": "RA"}, "'RA' is no orientation"),
        ({"orientation": "RASS"}, "'RASS' is no orientation"),
        ({"orientation": "XAS"}, "'XAS' is no orientation"),
        ({"oblique_deg": -1.0}, "oblique angle"),
        ({"oblique_deg": 46.0}, "oblique angle"),
    ],
)
def test_an_impossible_setting_is_refused(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        phantom(**options)  # type: ignore[arg-type]


# --- the truth ---


def test_every_structure_is_there_in_an_adult_brain() -> None:
    for labels in (full()[1], *(medium(seed)[1] for seed in range(3))):
        volumes = volumes_ml(labels)
        assert (volumes > 0.1).all()
        assert 1000 < volumes[1:].sum() < 2000


def test_csf_is_a_pocket_or_all_fluid_around_the_brain_of_the_same_scan() -> None:
    spacing_mm = (3.0, 3.0, 3.0)
    scan, region = phantom(5, spacing_mm=spacing_mm)
    same, around = phantom(5, spacing_mm=spacing_mm, csf="intracranial")
    np.testing.assert_array_equal(scan.data, same.data)
    litres = 27e-6 * np.array([(x.data == 24).sum() for x in (region, around)])
    assert litres[0] < 0.01
    assert 0.1 < litres[1] < 0.5
    # Deep structures are unchanged.
    np.testing.assert_array_equal(region.data == 10, around.data == 10)
    # There is fluid nearly everywhere between the brain and the skull.
    cortex = np.isin(region.data, (3, 42))
    assert (binary_erosion(around.data > 0) & cortex).sum() > 0.8 * cortex.sum()


def test_truth_is_the_largest_of_the_classes_interpolated_shares() -> None:
    """Compared with the direct way: each class's indicator interpolated, averaged, compared."""
    anatomy = load_anatomy(3)
    shape, factors = np.array([8, 9, 10]), (1, 2, 3)
    # Oblique lines through the brain, and beyond the anatomy's edge.
    steps = np.stack(
        np.meshgrid(*(np.arange(n) for n in shape * factors), indexing="ij")
    )
    turn = np.array([[0.9, 0.2, 0.1], [-0.2, 0.8, 0.3], [0.1, -0.2, 0.7]])
    seen: set[int] = set()
    for start in ((15.0, 20.0, 45.0), (20.0, 35.0, 45.0), (-3.0, 20.0, 40.0)):
        places = np.tensordot(turn, steps, 1) + np.reshape(start, (3, 1, 1, 1))
        shares = np.zeros((len(SCHEME), *shape))
        for k in range(len(SCHEME)):
            indicator = (anatomy.truth == k).astype(float)
            samples = map_coordinates(indicator, places, order=1, mode="nearest")
            shares[k] = samples.reshape(8, 1, 9, 2, 10, 3).mean(axis=(1, 3, 5))
        found = largest_fraction(anatomy, places.astype(np.float32), factors)
        chosen = np.take_along_axis(shares, found[None].astype(int), 0)[0]
        # Single precision decides between equal shares.
        np.testing.assert_allclose(chosen, shares.max(axis=0), atol=1e-4)
        seen |= set(np.unique(found).tolist())
    assert len(seen) > 10


@pytest.mark.parametrize("seed", range(4))
def test_the_warp_never_folds(seed: int) -> None:
    head = module._draw_head(np.random.default_rng(seed))
    lines = [np.arange(-mm / 2, mm / 2, 4.0) for mm in FIELD_OF_VIEW_MM]
    moved = head.to_anatomy_mm(np.stack(np.meshgrid(*lines, indexing="ij")))
    jacobian = np.stack([np.stack(np.gradient(axis, 4.0), -1) for axis in moved], -2)
    assert np.linalg.det(jacobian).min() > 0.1


def test_a_wild_warp_is_tamed() -> None:
    rng = np.random.default_rng(0)
    x, y, z = (SmoothField.draw(rng, 40.0, module.WARP_KNOTS_MM) for _ in range(3))
    tame = module._invertible((x, y, z))
    factor = tame[0].knots.max() / x.knots.max()
    assert factor <= 1 / 4
    assert np.log2(factor) == pytest.approx(round(np.log2(factor)))


# --- the image ---


def test_tissues_are_as_bright_as_in_t1() -> None:
    image, labels = medium(1)
    of = {
        n: float(np.median(image.data[labels.data == n])) for n in (2, 3, 4, 41, 42, 43)
    }
    air = float(np.median(image.data[:5]))
    assert air < 0.1 * of[2]
    for white, grey, fluid in ((2, 3, 4), (41, 42, 43)):
        assert of[white] > 1.2 * of[grey] > 1.2 * 1.2 * of[fluid]
    assert of[2] == pytest.approx(of[41], rel=0.1)


def deep_white_matter(
    monkeypatch: pytest.MonkeyPatch, **kept: object
) -> NDArray[np.int16]:
    """Return values two voxels inside the white matter, with at most one cause of variation."""
    none = {"NOISE": (0.0, 0.0), "BIAS_SD": 0.0, "TEXTURE": 0.0}
    for name, value in (none | kept).items():
        monkeypatch.setattr(module, name, value)
    image, labels = phantom(1, spacing_mm=(2.0, 2.0, 2.0))
    inside = binary_erosion(
        np.isin(labels.data, (2, 41)), np.ones((3, 3, 3)), iterations=2
    )
    assert inside.sum() > 200
    return image.data[inside]


def test_inside_a_tissue_there_is_one_brightness(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The truth has the place of the tissue: not elsewhere, nor on the other side.
    assert np.ptp(deep_white_matter(monkeypatch)) == 0


def test_boundaries_are_between_the_tissues_on_both_sides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deep = deep_white_matter(monkeypatch)[0]
    image, labels = phantom(1, spacing_mm=(2.0, 2.0, 2.0))
    fluid = image.data[labels.data == 4]
    darkest = np.bincount(fluid).argmax()
    assert fluid.min() >= darkest - 1
    assert ((fluid > darkest + 1) & (fluid < deep)).sum() > 30


def test_noise_has_the_strength_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    values = deep_white_matter(monkeypatch, NOISE=(0.03, 0.03))
    assert values.std() == pytest.approx(0.03 * values.mean(), rel=0.25)
    # Magnitude noise only: Rayleigh, with a mean of 1.25 standard deviations.
    air = phantom(1, spacing_mm=(2.0, 2.0, 2.0))[0].data[:2]
    assert air.mean() == pytest.approx(1.25 * 0.03 * values.mean(), rel=0.1)


def test_the_coil_shades_tissue_smoothly(monkeypatch: pytest.MonkeyPatch) -> None:
    values = deep_white_matter(monkeypatch, BIAS_SD=0.12)
    assert 0.02 < values.std() / values.mean() < 0.3


def test_tissue_has_texture(monkeypatch: pytest.MonkeyPatch) -> None:
    values = deep_white_matter(monkeypatch, TEXTURE=0.3)
    assert 0.005 < values.std() / values.mean() < 0.1


def test_contrast_and_noise_differ_from_scan_to_scan() -> None:
    air = [float(medium(seed)[0].data[:4].mean()) for seed in range(3)]
    assert max(air) > 1.1 * min(air)


def test_below_the_anatomy_the_neck_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    heights = []
    sample = module._sample

    def watch(field: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        heights.append(float(places[2].min()))
        return sample(field, places)

    monkeypatch.setattr(module, "_sample", watch)
    phantom(1, spacing_mm=(4.0, 4.0, 4.0), oblique_deg=45)
    assert 0 <= min(heights) < 0.5


# --- left and right ---


@pytest.mark.parametrize("seed", range(3))
def test_left_is_on_the_left(seed: int) -> None:
    centroids = centroids_mm(medium(seed)[1])
    for label in SCHEME.labels:
        if label.side == "left" and label.partner is not None:
            left, right = centroids[label.index - 1], centroids[label.partner - 1]
            assert left[0] < right[0] - 5, label.name


def test_swapped_sides_show_in_the_volumes() -> None:
    left, right = (
        SCHEME.names.index(f"{side}-Lateral-Ventricle") for side in ("Left", "Right")
    )
    for seed in range(3):
        volumes = volumes_ml(medium(seed)[1])
        assert volumes[left] > 1.2 * volumes[right]
