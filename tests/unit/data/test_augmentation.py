"""Augmentation: each kind has its effect, alone and reproducibly; sides are never confused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.refusals import refusal
from pydantic import ValidationError

from trinat.segmentation.data.augmentation import AugmentationConfig, Augmenter
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.labels.scheme import IGNORE, load_scheme
from trinat.segmentation.space.views import View

QUICKNAT = load_scheme("quicknat33")
LEFT, RIGHT = (
    QUICKNAT.names.index(f"{side}-Hippocampus") for side in ("Left", "Right")
)
KINDS = (
    "flip",
    "affine",
    "elastic",
    "structures",
    "contrast",
    "gain",
    "bias",
    "gamma",
    "blur",
    "low_resolution",
    "noise",
)


def only(kind: str = "", share: float = 1.0, **settings: object) -> AugmentationConfig:
    """Return settings with one kind only."""
    off = dict.fromkeys(KINDS, 0.0)
    names = {"structure_names": ("Hippocampus",)}
    return AugmentationConfig(
        **(off | names | ({kind: share} if kind else {}) | settings)
    )


@pytest.mark.parametrize(
    ("key", "lowest"),
    [
        ("gain_range", 0.1),
        ("gamma_range", 0.1),
        ("blur_sigma", 0.1),
        ("low_resolution_factor", 1.0),
        ("noise_std", 0.0),
    ],
)
def test_ranges_are_finite_pairs_in_order_above_their_limit(
    key: str, lowest: float
) -> None:
    AugmentationConfig.model_validate({key: (lowest, lowest)})
    below = lowest - 0.1
    for wrong in ((below, 2), (2, lowest), (lowest, math.inf), (math.nan, 2), (2,)):
        with pytest.raises(ValidationError) as caught:
            AugmentationConfig.model_validate({key: wrong})
        assert {error["loc"][0] for error in caught.value.errors()} == {key}


def batch(count: int = 4, channels: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Return bright blocks on background, left hippocampus in low columns, right one in high."""
    images = torch.zeros(count, channels, 32, 40)
    images[:, :, 6:26, 5:35] = 0.5
    images[:, :, 10:16, 8:14] = 0.9
    labels = torch.zeros(count, 32, 40, dtype=torch.uint8)
    labels[:, 10:16, 8:14] = LEFT
    labels[:, 10:14, 28:32] = RIGHT
    return images, labels


def apply(
    config: AugmentationConfig,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    view: View = View.CORONAL,
    seed: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    scheme = QUICKNAT.merged.scheme if view is View.SAGITTAL else QUICKNAT
    generator = torch.Generator().manual_seed(seed)
    return Augmenter(config, view, scheme)(images, labels, generator)


@pytest.mark.parametrize("view", [View.CORONAL, View.AXIAL])
def test_a_flip_exchanges_sides_in_picture_and_labels(view: View) -> None:
    images, labels = batch()
    flipped, swapped = apply(only("flip"), images, labels, view=view)
    assert torch.equal(flipped, images.flip(-1))
    # The right hippocampus was in columns 28-31, so it is now in 8-11, as a left one.
    assert (swapped[:, 10:14, 8:12] == LEFT).all()
    assert (swapped[:, 10:16, 26:32] == RIGHT).all()
    assert (swapped == LEFT).sum() == (labels == RIGHT).sum()


def test_what_does_not_count_stays_so_when_sides_are_exchanged() -> None:
    images, labels = batch()
    labels[:, :, :20] = IGNORE
    _, swapped = apply(only("flip"), images, labels)
    assert (swapped[:, :, 20:] == IGNORE).all()
    assert (swapped[:, 10:14, 8:12] == LEFT).all()


def test_a_sagittal_flip_turns_the_order_of_neighbours_alone() -> None:
    images = torch.arange(5.0).view(1, 5, 1, 1).expand(2, 5, 8, 8).contiguous()
    labels = torch.randint(0, 19, (2, 8, 8), dtype=torch.uint8)
    flipped, same = apply(only("flip"), images, labels, view=View.SAGITTAL)
    assert flipped[0, :, 0, 0].tolist() == [4, 3, 2, 1, 0]
    assert torch.equal(same, labels)


def test_schemes_with_one_side_alone_refuse_flips() -> None:
    left4 = load_scheme("left4")
    with refusal(ConfigError, "flip"):
        Augmenter(only("flip", 0.01), View.AXIAL, left4)
    Augmenter(only(), View.AXIAL, left4)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_can_be_switched_off_and_changes_something_when_on(kind: str) -> None:
    images, labels = batch()
    changed, new_labels = apply(only(kind), images, labels)
    assert not torch.equal(changed, images)
    assert torch.equal(new_labels, labels) == (
        kind not in {"flip", "affine", "elastic"}
    )
    same, same_labels = apply(only(), images, labels)
    assert torch.equal(same, images)
    assert torch.equal(same_labels, labels)


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_are_never_changed(kind: str) -> None:
    images, labels = batch()
    before = images.clone(), labels.clone()
    apply(only(kind), images, labels)
    assert torch.equal(images, before[0])
    assert torch.equal(labels, before[1])


def test_the_seed_decides() -> None:
    images, labels = batch(8)
    everything = AugmentationConfig(**dict.fromkeys(KINDS, 0.5))
    first, again, other = (
        apply(everything, images, labels, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


def test_the_share_is_that_of_slices() -> None:
    images, labels = batch(400)
    changed, _ = apply(only("gain", 0.3), images, labels)
    touched = (changed != images).flatten(1).any(1).float().mean()
    assert float(touched) == pytest.approx(0.3, abs=0.07)


def test_labels_move_with_their_image() -> None:
    images = torch.zeros(16, 1, 64, 64)
    images[:, :, 20:40, 24:44] = 1
    labels = (images[:, 0] > 0).to(torch.uint8)
    moved, moved_labels = apply(only("affine", elastic=1.0), images, labels)
    # Linear and nearest sampling of the same block agree except at its rim.
    agree = ((moved[:, 0] > 0.5) == (moved_labels > 0)).float().mean()
    assert float(agree) > 0.995
    assert not torch.equal(moved_labels, labels)


def test_turns_go_around_the_middle_as_far_as_allowed() -> None:
    image = torch.zeros(1, 1, 33, 33)
    image[0, 0, 16, 24:30] = 1  # to the right of the middle
    labels = (image[:, 0] > 0).to(torch.uint8)
    config = only("affine", rotation_deg=90, scaling=0, shearing=0, shift=0)
    found = set()
    for seed in range(400):
        _, turned = apply(config, image, labels, seed=seed)
        rows, columns = np.nonzero(turned[0].numpy())
        found.add((round(float(rows.mean())) - 16, round(float(columns.mean())) - 16))
    # The middle of the bar, 10.5 or 11 voxels out, runs along the right half of a circle.
    assert all(9 <= np.hypot(*place) <= 12 for place in found)
    assert min(c for _, c in found) >= -1
    assert {np.sign(r) for r, _ in found} == {-1, 0, 1}


def test_shifts_stay_within_their_bound() -> None:
    image = torch.zeros(200, 1, 33, 33)
    image[:, 0, 16, 16] = 1
    labels = torch.zeros(200, 33, 33, dtype=torch.uint8)
    labels[:, 16, 16] = 1
    config = only("affine", rotation_deg=0, scaling=0, shearing=0, shift=5)
    _, moved = apply(config, image, labels)
    places = moved.nonzero()[:, 1:] - 16
    assert len(places) == 200, (
        "a shift by whole and part voxels keeps one nearest voxel"
    )
    assert places.abs().max() == 5
    assert places.min() == -5


def test_what_enters_from_outside_is_background() -> None:
    images = torch.ones(8, 1, 32, 32)
    labels = torch.full((8, 32, 32), 3, dtype=torch.uint8)
    config = only("affine", rotation_deg=0, scaling=0, shearing=0, shift=12)
    moved, moved_labels = apply(config, images, labels)
    outside = moved_labels == 0
    assert outside.any()
    assert float(moved[:, 0][outside].max()) <= 0.51


@pytest.mark.parametrize(
    "kind", ["structures", "contrast", "gain", "bias", "gamma", "noise"]
)
def test_empty_background_stays_empty(kind: str) -> None:
    images, labels = batch()
    changed, _ = apply(only(kind), images, labels)
    assert (changed[images == 0] == 0).all()


def test_gain_multiplies_within_its_range() -> None:
    images, labels = batch(300)
    changed, _ = apply(only("gain", gain_range=(0.5, 2.0)), images, labels)
    gains = (changed / images)[:, 0, 10, 10]
    assert 0.5 <= float(gains.min()) < 0.55
    assert 1.9 < float(gains.max()) <= 2.0
    assert torch.allclose((changed / images)[:, 0, 25, 34], gains)


def test_a_structure_changes_by_one_amount_on_both_sides_and_in_neighbouring_slices() -> (
    None
):
    images, labels = batch(200, channels=3)
    images += 1
    changed, _ = apply(only("structures", structure_shift=0.1), images, labels)
    shift = changed - images
    inside = shift[:, 0, 12, 11]
    assert torch.allclose(shift[:, 1, 12, 30], inside, atol=1e-6)
    assert float(inside.std()) == pytest.approx(0.1, rel=0.15)
    # Columns 8 to 13 are hippocampus: its border is smoothed over three voxels.
    border = shift[:, 0, 12, 6:9] / inside[:, None]
    assert torch.allclose(border, torch.tensor([0, 1 / 3, 2 / 3]), atol=1e-3)


def test_structures_have_shifts_of_their_own() -> None:
    images, labels = batch(200)
    labels[labels == RIGHT] = QUICKNAT.names.index("Right-Putamen")
    config = only("structures", structure_names=("Hippocampus", "Putamen"))
    changed, _ = apply(config, images, labels)
    shifts = (changed - images)[:, 0, 12, [11, 30]]
    assert abs(float(torch.corrcoef(shifts.T)[0, 1])) < 0.2


@pytest.mark.parametrize("view", [View.CORONAL, View.SAGITTAL])
def test_structures_that_the_scheme_lacks_are_refused(view: View) -> None:
    images, labels = batch()
    with refusal(ConfigError, "structure_names"):
        apply(
            only("structures", structure_names=("insula",)), images, labels, view=view
        )


def test_contrast_follows_one_curve_in_a_slice_and_its_neighbours() -> None:
    brightness = torch.linspace(0, 1.5, 60)
    images = brightness.expand(200, 3, 8, 60).contiguous()
    changed, _ = apply(only("contrast"), images, torch.zeros(200, 8, 60).byte())
    curves = changed[:, 0, 0]
    assert torch.equal(changed, curves[:, None, None].expand_as(changed))
    assert not torch.equal(curves[0], curves[1])
    # Straight between values 0.2 apart, and level from 1.2 on.
    bends = curves.diff(dim=1).diff(dim=1).abs() > 1e-4
    steps = brightness[1:-1] / 0.2
    is_between = (steps - steps.round()).abs() > 0.15
    assert not bends[:, is_between].any()
    assert torch.equal(curves[:, brightness >= 1.2], curves[:, -1:].expand(200, 12))
    # Half of them increase throughout, and three in ten decrease from some point to the end.
    rises = curves.diff(dim=1) > 1e-6
    falls = curves.diff(dim=1) < -1e-6
    has_fallen = falls.int().cumsum(1) > 0
    has_one_top = ~(rises & has_fallen).any(1)
    assert float((~falls.any(1)).float().mean()) == pytest.approx(0.5, abs=0.1)
    assert float(has_one_top.float().mean()) == pytest.approx(0.8, abs=0.1)


def test_gamma_is_a_power() -> None:
    images, labels = batch(1)
    changed, _ = apply(only("gamma", gamma_range=(2.0, 2.0)), images, labels)
    assert torch.allclose(changed, images**2)


def test_a_bias_field_is_smooth_and_positive() -> None:
    images, labels = torch.ones(4, 1, 64, 64), torch.zeros(4, 64, 64, dtype=torch.uint8)
    field, _ = apply(only("bias", bias_strength=0.5), images, labels)
    assert (field > 0).all()
    assert float((field.amax((1, 2, 3)) / field.amin((1, 2, 3))).min()) > 1.2
    assert float(field.diff(dim=-1).abs().max()) < 0.2


def test_noise_has_the_strength_that_was_asked_for() -> None:
    images, labels = (
        torch.ones(2, 1, 128, 128),
        torch.zeros(2, 128, 128, dtype=torch.uint8),
    )
    noisy, _ = apply(only("noise", noise_std=(0.05, 0.05)), images, labels)
    assert float((noisy - 1).std()) == pytest.approx(0.05, rel=0.03)
    assert float((noisy - 1).mean()) == pytest.approx(0, abs=0.001)


def test_blur_is_a_gaussian_of_its_sigma() -> None:
    images, labels = (
        torch.zeros(1, 1, 41, 41),
        torch.zeros(1, 41, 41, dtype=torch.uint8),
    )
    images[0, 0, 20, 20] = 1
    blurred, _ = apply(only("blur", blur_sigma=(2.0, 2.0)), images, labels)
    offsets = torch.arange(41.0) - 20
    weights = blurred[0, 0].sum(0)
    assert float(weights.sum()) == pytest.approx(1, abs=1e-4)
    assert float((weights * offsets**2).sum()) == pytest.approx(4, rel=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_low_resolution_loses_detail_and_keeps_level(seed: int) -> None:
    # Voxels twice as long average stripes of one voxel to even grey.
    rows = torch.arange(64)
    stripes = (rows[:, None] + rows) % 2
    images = stripes.float()[None, None].clone()
    labels = torch.zeros(1, 64, 64, dtype=torch.uint8)
    config = only("low_resolution", low_resolution_factor=(2.0, 2.0))
    coarse, _ = apply(config, images, labels, seed=seed)
    inside = coarse[0, 0, 4:-4, 4:-4]
    assert float(inside.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(inside.std()) < 0.01
    flat, _ = apply(config, torch.ones_like(images), labels, seed=seed)
    assert torch.allclose(flat, torch.ones_like(flat), atol=1e-5)


def test_labels_keep_their_type() -> None:
    images, labels = batch()
    everything = AugmentationConfig(**dict.fromkeys(KINDS, 1.0))
    for kind in (torch.uint8, torch.int64):
        _, changed = apply(everything, images, labels.to(kind))
        assert changed.dtype == kind


def test_named_transforms_are_applied_to_slices_of_a_batch() -> None:
    images, labels = batch(2, channels=3)
    named = only(transforms=[{"name": "RandGibbsNoise", "share": 1.0}])
    first, same = apply(named, images, labels)
    again, _ = apply(named, images, labels)
    assert torch.equal(first, again)
    assert not torch.allclose(first, images, atol=1e-3)
    assert torch.equal(same, labels)


@pytest.mark.slow
@pytest.mark.important
def test_training_runs_without_torchio() -> None:
    import subprocess
    import sys

    probe = (
        "import sys\nsys.modules['torchio'] = sys.modules['monai'] = None\nimport torch\n"
        "from trinat.segmentation.data.augmentation import *\n"
        "from trinat.segmentation.labels.scheme import load_scheme\n"
        "from trinat.segmentation.space.views import View\n"
        "a = Augmenter(AugmentationConfig(), View.AXIAL, load_scheme('quicknat33'))\n"
        "a(torch.rand(2, 1, 32, 32), torch.zeros(2, 32, 32).byte(), torch.Generator())\n"
    )
    subprocess.run([sys.executable, "-c", probe], check=True)


@pytest.mark.parametrize(
    "wrong",
    [{"flip": 1.5}, {"rotate": 1}, {"artefacts": {"motion": 1}}, {"scaling": -1}],
)
def test_a_wrong_setting_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        AugmentationConfig(**wrong)


@pytest.mark.gpu
def test_a_gpu_draws_the_same_parameters() -> None:
    images, labels = batch()
    config = only("affine", elastic=1.0, gain=1.0, bias=1.0, blur=1.0, flip=0.5)
    here = apply(config, images, labels)
    there = apply(config, images.cuda(), labels.cuda())
    assert torch.allclose(there[0].cpu(), here[0], atol=1e-3)
    assert (there[1].cpu() == here[1]).float().mean() > 0.999
    # A generator on the device works as well.
    augment = Augmenter(
        AugmentationConfig(**dict.fromkeys(KINDS, 1.0)), View.AXIAL, QUICKNAT
    )
    generator = torch.Generator("cuda").manual_seed(0)
    moved, _ = augment(images.cuda(), labels.cuda(), generator)
    assert moved.isfinite().all()
