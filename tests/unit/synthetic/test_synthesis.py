"""Synthetic slices: content, targets, and reproducibility by seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trinat.segmentation.labels.scheme import IGNORE, load_scheme
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.heads import HeadMaps
from trinat.segmentation.synthetic.settings import SynthesisConfig
from trinat.segmentation.synthetic.synthesis import synthesise, synthesise_volume
from trinat.segmentation.synthetic.targets import Heads, aim

SCHEME = load_scheme("quicknat33")
LEFT, RIGHT = (
    SCHEME.names.index(f"{s}-Cerebral-White-Matter") for s in ("Left", "Right")
)
# Nothing moves, blurs or is added, so that intensities identify the entries.
STILL = SynthesisConfig(
    random_contrast=0,
    border_mm=0,
    places=1,
    contrast=(1, 1),
    mirrored=0,
    skull_stripped=0,
    defaced=0,
    astray=0,
    outside_contrast=0,
    clutter=0,
    cropped=0,
    motion=0,
    rotation_deg=0,
    scaling=0,
    shearing=0,
    shift_mm=0,
    elastic_mm=0,
    blur_mm=(0.05, 0.05),
    low_resolution=0,
    structure_offset=0,
    texture=(0, 0),
    bias=0,
    noise=0,
    gamma=0,
    white_matter=(1, 1),
)


def head_of(left: int, right: int, *others: int, learn_fluid: bool = False) -> Heads:
    """Return 20 x 20 x 20: scalp around CSF around two structures, split at x = 10.

    The structures have these FreeSurfer numbers. All are as bright as white matter; scalp has
    0.75 of it, CSF 0.25.
    """
    head = np.zeros((20, 20, 20), np.uint8)
    head[1:19, 1:19, 1:19] = 4
    head[3:17, 3:17, 3:17] = 3
    head[5:10, 5:15, 5:15], head[10:15, 5:15, 5:15] = 1, 2
    maps = HeadMaps(
        head[None],
        np.array([0, left, right, 24, 507, *others]),
        np.array([0, 1, 1, 2, 3, *[1 for _ in others]]),
        np.array([[0.0, 100, 25, 75], [0.0, 0, 0, 0]]),
        np.zeros((2, 4)),
    )
    return aim(maps, SCHEME, learn_fluid=learn_fluid)


@pytest.fixture(scope="module")
def heads() -> Heads:
    return head_of(2, 41)


def draw(
    heads: Heads, config: SynthesisConfig, seed: int = 0, **over: object
) -> tuple[Tensor, Tensor]:
    view = over.pop("view", View.AXIAL)
    count = over.pop("count", 6)
    generator = torch.Generator().manual_seed(seed)
    return synthesise(heads, config, view, count, (20, 20), generator, **over)  # type: ignore[arg-type]


def test_shapes_and_types(heads: Heads) -> None:
    images, classes = draw(heads, SynthesisConfig(), neighbours=2)
    assert (images.shape, images.dtype) == ((6, 5, 20, 20), torch.float32)
    assert (classes.shape, classes.dtype) == ((6, 20, 20), torch.uint8)
    assert images.isfinite().all()
    assert 0 <= images.min() <= images.max() <= 2


def test_a_seed_fixes_images_and_classes(heads: Heads) -> None:
    one, same, other = (draw(heads, SynthesisConfig(), seed) for seed in (3, 3, 4))
    assert torch.equal(one[0], same[0])
    assert torch.equal(one[1], same[1])
    assert not torch.equal(one[0], other[0])


class Waits(TorchDispatchMode):
    """Collects operations that make the host wait for a GPU."""

    names = (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "lift_fresh",
        "matrix_exp",
    )

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function)
        masks = "index" in name and isinstance(args[1], list | tuple)
        by_mask = masks and any(
            x is not None and x.dtype == torch.bool for x in args[1]
        )
        if by_mask or any(wait in name for wait in self.names):
            self.found.append(name)
        return function(*args, **(kwargs or {}))


def test_drawing_never_waits_for_the_device(heads: Heads) -> None:
    with Waits() as waits:
        draw(heads, SynthesisConfig())
    assert waits.found == []


def test_what_waits_is_noticed() -> None:
    x = torch.arange(4)
    for wait in (
        lambda: x[x > 2],
        lambda: x[[0, 1]],
        lambda: bool(x.any()),
        lambda: x[x[1]],
    ):
        with Waits() as waits:
            wait()
        assert waits.found


def test_left_is_at_the_low_end_of_columns(heads: Heads) -> None:
    _, classes = draw(heads, STILL)
    columns = torch.arange(20).expand_as(classes)
    assert columns[classes == LEFT].max() < columns[classes == RIGHT].min()


def test_a_mirrored_head_still_has_its_left_on_the_left(heads: Heads) -> None:
    plain, mirrored = (
        draw(heads, STILL),
        draw(heads, STILL.model_copy(update={"mirrored": 1})),
    )
    columns = torch.arange(20).expand_as(mirrored[1])
    assert columns[mirrored[1] == LEFT].max() < columns[mirrored[1] == RIGHT].min()
    assert (plain[1] == LEFT).any()


def test_intensities_follow_the_priors(heads: Heads) -> None:
    images, classes = draw(heads, STILL)
    middle = images[:, 1]
    assert torch.allclose(middle[classes == LEFT], torch.tensor(1.0), atol=1e-3)
    # CSF has a quarter of white matter's, scalp three quarters.
    assert set(middle.mul(100).round().int().unique().tolist()) <= {0, 25, 75, 100}


def test_contrast_changes_what_is_darker_than_white_matter(heads: Heads) -> None:
    """With an exponent of 2, CSF has 1 - (1 - 0.25)^2; scalp is brighter, and stays.

    Nothing is below 0.0001.
    """
    brighter = replace(heads, means=torch.tensor([[0.0, 100, 25, 150], [0, 0, 0, 0]]))
    images, _ = draw(brighter, STILL.model_copy(update={"contrast": (2, 2)}))
    assert set(images.mul(10000).round().int().unique().tolist()) == {
        1,
        4375,
        10000,
        15000,
    }


def test_a_voxel_at_a_border_is_the_mean_of_its_places(heads: Heads) -> None:
    """Half a voxel to the right, column 4 shows x = 4 (CSF) and x = 5 (brain) equally often."""
    beside = replace(heads, centre=heads.centre + torch.tensor([0.5, 0, 0]))
    images, _ = draw(beside, STILL.model_copy(update={"places": 2, "balanced": 1}))
    inside = images[:, 1, 6:14]
    assert set(inside[:, :, 4].mul(1000).round().int().unique().tolist()) == {
        250,
        625,
        1000,
    }
    assert torch.allclose(inside[:, :, 3], torch.tensor(0.25))
    assert torch.allclose(inside[:, :, 5:14], torch.tensor(1.0))


def test_borders_stray_in_the_image_near_deep_structures_alone() -> None:
    """The thalamus ends at x = 9: its border and what is within 3 mm move, not the target."""
    beside_cortex = head_of(10, 42, 2)
    plain, classes = draw(beside_cortex, STILL)
    images, target = draw(beside_cortex, STILL.model_copy(update={"border_mm": 3}))
    assert torch.equal(target, classes)
    changed = (images - plain).abs()[:, 1] > 1e-3
    assert changed[:, :, 2:6].any()
    # The cortex has its outer border at x = 14.
    assert not changed[:, :, 13:].any()


def test_linings_of_ventricles_are_not_learnt() -> None:
    entries = head_of(136, 41, 2)
    _, classes = draw(entries, STILL)
    assert (classes == IGNORE).any()
    assert not (classes == SCHEME.names.index("Left-Lateral-Ventricle")).any()


def test_a_stripped_head_shows_the_brain_and_no_scalp(heads: Heads) -> None:
    images, classes = draw(heads, STILL.model_copy(update={"skull_stripped": 1}))
    middle = images[:, 1]
    assert (middle[classes > 0] > 0.9).all()
    # Masks reach 3 mm beyond the brain, which begins at 5.
    assert not middle[:, :2].any()
    assert draw(heads, STILL)[0][:, 1, 1].any()


def test_defacing_takes_nothing_of_the_brain(heads: Heads) -> None:
    config = STILL.model_copy(update={"defaced": 1})
    images, classes = draw(heads, config, count=16)
    assert (images[:, 1][classes > 0] > 0.9).all()


def test_neighbours_lie_one_slice_apart(heads: Heads) -> None:
    """In axial slices the brain ends at z = 14: from below it the upper neighbour loses it."""
    config = STILL.model_copy(update={"balanced": 0})
    images, _ = draw(heads, config, count=64)
    inside = images[:, :, 10, 7] > 0.9
    last = inside[:, 0] & inside[:, 1] & ~inside[:, 2]
    first = ~inside[:, 0] & inside[:, 1] & inside[:, 2]
    assert last.any()
    assert first.any()
    assert not (inside[:, 0] & ~inside[:, 1] & inside[:, 2]).any()


@pytest.mark.parametrize("view", list(View))
def test_balanced_slices_go_through_the_brain(heads: Heads, view: View) -> None:
    config = STILL.model_copy(update={"balanced": 1})
    _, classes = draw(heads, config, view=view, count=16)
    assert (classes > 0).flatten(1).any(1).all()


def test_planes_go_astray(heads: Heads) -> None:
    """Centred at any voxel from 1 to 18, a plane of 20 shows the head's edge and air beyond."""
    config = STILL.model_copy(update={"astray": 1})
    images, _ = draw(heads, config, count=64)
    head = images[:, 1] > 0.1
    # Its middle row shows the head from the first column on in some, up to the last in others.
    assert head[:, :, 0].any()
    assert head[:, :, 19].any()
    assert (draw(heads, STILL, count=64)[0][:, 1, :, 0] < 1e-3).all()


def test_outside_the_brain_contrast_is_random_for_some(heads: Heads) -> None:
    images, classes = draw(
        heads, STILL.model_copy(update={"outside_contrast": 1}), count=8
    )
    middle, brain = images[:, 1], classes > 0
    assert torch.allclose(middle[brain], torch.tensor(1.0), atol=1e-3)
    # Scalp, whose prior is 0.75, and its random spread.
    assert (middle[~brain] - 0.75).abs().max() > 0.5


def test_clutter_leaves_the_brain_alone(heads: Heads) -> None:
    plain, _ = draw(heads, STILL)
    images, classes = draw(heads, STILL.model_copy(update={"clutter": 0.5}))
    changed = (images - plain).abs()[:, 1] > 1e-3
    assert changed.any()
    assert not changed[classes > 0].any()
    # CSF is no clutter either: only scalp, 0.75 of white matter, changes.
    assert torch.allclose(plain[:, 1][changed], torch.tensor(0.75), atol=1e-3)


def test_what_lies_beyond_the_field_of_view_is_neither_seen_nor_learned(
    heads: Heads,
) -> None:
    """The brain, 5 to 14, has its middle at 9.5: with 2.5 mm each way one side keeps 2 voxels."""
    config = STILL.model_copy(update={"cropped": 1, "cropped_mm": (2.5, 2.5)})
    images, classes = draw(heads, config, count=48)
    assert torch.equal(classes > 0, images[:, 1] > 0.9)
    areas = set((classes > 0).flatten(1).sum(1).tolist())
    # 10 x 10 pixels, or 10 x 7 where a side in the plane is cut, or nothing above and below.
    assert areas <= {0, 70, 100}
    assert 70 in areas


def test_motion_shifts_a_part_of_the_lines(heads: Heads) -> None:
    plain, _ = draw(heads, STILL, count=16)
    moved, _ = draw(
        heads, STILL.model_copy(update={"motion": 1, "motion_mm": 3.0}), count=16
    )
    difference = (moved - plain).abs()
    assert (difference.flatten(1).max(1).values > 1e-3).sum() > 12
    assert difference.mean() < 0.3 * plain.mean()
    some, _ = draw(heads, STILL.model_copy(update={"motion": 0.5}), count=16)
    still = (some - plain).flatten(1).abs().max(1).values < 1e-5
    assert 0 < still.sum() < 16


def test_deformation_moves_image_and_classes_together(heads: Heads) -> None:
    config = STILL.model_copy(
        update={"rotation_deg": 20, "elastic_mm": 3, "scaling": 0.2}
    )
    images, classes = draw(heads, config)
    assert torch.equal(classes > 0, images[:, 1] > 0.9)
    assert not torch.equal(classes, draw(heads, STILL)[1])


def test_wholly_random_contrast_is_for_some(heads: Heads) -> None:
    images, classes = draw(
        heads, STILL.model_copy(update={"random_contrast": 1}), count=8
    )
    ratios = [
        float(image[1][label == 0].max() / image[1][label > 0].mean())
        for image, label in zip(images, classes, strict=True)
        if (label > 0).any()
    ]
    # With the priors, scalp is never brighter than white matter (0.75).
    assert max(ratios) > 1


def test_a_scans_classes_share_its_gain(heads: Heads) -> None:
    # Each class's mean differs from scan to scan by a tenth of itself.
    varied = replace(heads, means=torch.stack([heads.means[0], 0.1 * heads.means[0]]))

    def spread_of_scalp(common_gain: float) -> float:
        config = STILL.model_copy(update={"common_gain": common_gain, "balanced": 1})
        images, classes = draw(varied, config, count=32)
        # White matter is scaled to 1.
        scalps = [i[1][c == 0].max() for i, c in zip(images, classes, strict=True)]
        return float(torch.stack(scalps).std())

    assert spread_of_scalp(1) < 1e-6
    # Two independent tenths: 0.75 times the square root of 0.02.
    assert spread_of_scalp(0) == pytest.approx(0.106, abs=0.04)


def test_thick_slices_blur_along_one_axis_only(heads: Heads) -> None:
    config = STILL.model_copy(update={"low_resolution": 1, "low_resolution_mm": 4.0})
    images, _ = draw(heads, config, count=32)
    sharp, _ = draw(heads, STILL, count=32)
    assert (images - sharp).abs().max() > 0.1


def test_slices_through_thick_ones_show_what_lies_beside_them(heads: Heads) -> None:
    thick = STILL.model_copy(
        update={
            "low_resolution": 1,
            "low_resolution_mm": 9.0,
            "places": 8,
            "balanced": 0,
        }
    )
    sharp, _ = draw(heads, STILL.model_copy(update={"balanced": 0}), count=32)
    images, _ = draw(heads, thick, count=32)
    # Voxels at most 1 mm thick hold one tissue each here: 0, 0.25, 0.75 or 1.
    pure = torch.tensor([0, 0.25, 0.75, 1.0])
    mixed = (images[:, 1, ..., None] - pure).abs().amin(-1) > 0.1
    assert not ((sharp[:, 1, ..., None] - pure).abs().amin(-1) > 0.1).any()
    assert mixed.flatten(1).any(1).float().mean() > 0.5


def test_fluid_that_a_stripped_scan_does_not_show_is_not_learned() -> None:
    heads = head_of(2, 41, learn_fluid=True)
    csf = SCHEME.find("CSF").index
    _, whole = draw(heads, STILL)
    assert (whole == csf).any()
    images, stripped = draw(heads, STILL.model_copy(update={"skull_stripped": 1}))
    assert not ((stripped == csf) & (images[:, 1] == 0)).any()
    assert torch.equal(
        stripped[stripped != csf],
        whole[stripped != csf] * (whole != csf)[stripped != csf],
    )


def test_mottled_tissue_varies_smoothly(heads: Heads) -> None:
    config = STILL.model_copy(
        update={"mottle": 0.2, "mottle_spacing_mm": 10.0, "balanced": 1}
    )
    images, classes = draw(heads, config, count=8)
    tissue = torch.where(classes == LEFT, images[:, 1], torch.nan)
    steps = (tissue[..., 1:, :] - tissue[..., :-1, :]).abs()
    values = tissue[tissue.isfinite()]
    assert values.std() > 0.02
    assert steps[steps.isfinite()].max() < 0.1


def test_the_brightest_tissue_of_a_random_contrast_is_at_the_bright_end() -> None:
    heads = head_of(2, 41, learn_fluid=True)
    csf = SCHEME.find("CSF").index
    config = STILL.model_copy(update={"random_contrast": 1, "balanced": 1})
    images, classes = draw(heads, config, count=16)
    brightest = []
    for image, label in zip(images[:, 1], classes, strict=True):
        matter, fluid = image[(label == LEFT) | (label == RIGHT)], image[label == csf]
        if len(matter) and len(fluid):
            brightest.append(float(max(matter.median(), fluid.median())))
    assert len(brightest) > 8
    assert brightest == pytest.approx([1.0] * len(brightest), abs=0.15)


@pytest.mark.parametrize(
    "wrong", [{"blur_mm": (0, 1)}, {"mirrored": 1.5}, {"skulls": 0.5}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SynthesisConfig.model_validate(wrong)


def test_a_volume_is_the_head_as_it_is(heads: Heads) -> None:
    image, classes = synthesise_volume(heads, STILL, torch.Generator().manual_seed(0))
    assert image.shape == classes.shape == (20, 20, 20)
    assert set(classes[5:10, 5:15, 5:15].flatten().tolist()) == {LEFT}
    assert torch.allclose(image[6:9, 6:14, 6:14], torch.tensor(1.0), atol=1e-3)
