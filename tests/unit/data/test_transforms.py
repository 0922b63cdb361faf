"""TorchIO's and MONAI's transforms by name.

Each changes slices, and spatial ones the labels too.
"""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from trinat.segmentation.data.augmentation import AugmentationConfig
from trinat.segmentation.data.transforms import NamedTransform, SliceTransforms
from trinat.segmentation.data.transforms.base import SliceTransform
from trinat.segmentation.data.transforms.from_monai import MonaiTransform
from trinat.segmentation.data.transforms.from_torchio import TorchIOTransform

ADAPTER: TypeAdapter[NamedTransform] = TypeAdapter(NamedTransform)
KINDS = {
    get_args(kind.model_fields["name"].annotation)[0]: kind
    for kind in (*get_args(TorchIOTransform), *get_args(MonaiTransform))
}
MOVING = [name for name, kind in KINDS.items() if kind.moves]
STILL = [name for name, kind in KINDS.items() if not kind.moves]
# Transforms that are different in each channel.
INDEPENDENT = {"RandomNoise", "RandGaussianNoise", "RandRicianNoise"}


def named(name: str, share: float = 1.0, **keys: object) -> SliceTransforms:
    kind = ADAPTER.validate_python({"name": name, "share": share, **keys})
    assert isinstance(kind, SliceTransform)
    return SliceTransforms([kind])


def a_slice() -> tuple[torch.Tensor, torch.Tensor]:
    """Return three channels of 96 × 80: a block of 0.5 with a brighter one inside, structure 7."""
    image = torch.zeros(3, 96, 80)
    image[:, 16:80, 12:68] = 0.5
    image[:, 40:56, 30:46] = 1.0
    labels = torch.zeros(96, 80, dtype=torch.uint8)
    labels[40:56, 30:46] = 7
    return image, labels


@pytest.mark.parametrize("name", KINDS)
def test_a_seed_fixes_a_transform_and_nothing_else_is_moved(name: str) -> None:
    image, labels = a_slice()
    transforms = named(name)
    torch.manual_seed(5)
    first, first_labels = transforms(image, labels, 3)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    transforms(image, labels, 4)
    assert torch.equal(torch.rand(1), drawn)
    again, again_labels = transforms(image, labels, 3)
    assert torch.equal(first, again)
    assert torch.equal(first_labels, again_labels)
    assert not torch.equal(first, image)
    assert (type(first), first.dtype, first.shape) == (
        torch.Tensor,
        torch.float32,
        image.shape,
    )
    assert (first_labels.dtype, first_labels.shape) == (torch.uint8, labels.shape)
    assert (first >= 0).all()
    assert torch.equal(image, a_slice()[0])
    assert torch.equal(labels, a_slice()[1])


@pytest.mark.parametrize("name", STILL)
def test_labels_stay_under_transforms_of_intensity(name: str) -> None:
    image, labels = a_slice()
    assert torch.equal(named(name)(image, labels, 1)[1], labels)


@pytest.mark.parametrize("name", STILL)
def test_transforms_of_intensity_leave_the_image_where_it_is(name: str) -> None:
    """The original slice, shifted by more than a pixel, resembles the result less."""
    image, labels = a_slice()
    before = torch.fft.fft2(image[0] - image[0].mean())
    for seed in range(4):
        changed = named(name)(image, labels, seed)[0][0]
        after = torch.fft.fft2(changed - changed.mean())
        likeness = torch.fft.ifft2(after * before.conj()).real
        best = likeness.max()
        near = [likeness[row, column] for row in (-1, 0, 1) for column in (-1, 0, 1)]
        assert best in near


def test_motion_leaves_traces_beside_the_head() -> None:
    image, labels = a_slice()
    moved = named("RandomMotion", degrees=0.0)(image, labels, 0)[0]
    # The block begins in column 12, and moves by no more than 5.
    assert (moved[:, :, :5] > 0.001).any()


def test_motion_by_nothing_changes_nothing() -> None:
    image, labels = a_slice()
    still = named("RandomMotion", degrees=0.0, translation=0.0)
    torch.testing.assert_close(still(image, labels, 0)[0], image)


@pytest.mark.parametrize("name", sorted(KINDS.keys() - INDEPENDENT))
def test_a_slice_and_its_neighbours_change_alike(name: str) -> None:
    for seed in range(3):
        changed, _ = named(name)(*a_slice(), seed)
        torch.testing.assert_close(changed[1], changed[0])
        torch.testing.assert_close(changed[2], changed[0])


@pytest.mark.parametrize("name", MOVING)
def test_labels_move_with_the_image(name: str) -> None:
    """The bright block is structure 7 before and after, except at its border."""
    image, labels = a_slice()
    for seed in range(4):
        moved, classes = named(name)(image, labels, seed)
        assert set(classes.unique().tolist()) == {0, 7}
        bright = moved[0] > 0.75
        assert not torch.equal(classes, labels)
        differing = (bright != (classes == 7)).sum()
        assert differing < 0.06 * (classes == 7).sum()


STILL_AFFINE: dict[str, dict[str, object]] = {
    "RandAffine": {
        "rotate_range": 0,
        "shear_range": 0,
        "translate_range": 0,
        "scale_range": 0,
    },
    "RandomAffine": {"degrees": 0, "scales": (1, 1), "translation": 0},
}


@pytest.mark.parametrize("name", STILL_AFFINE)
def test_an_affine_movement_by_nothing_changes_nothing(name: str) -> None:
    image, labels = a_slice()
    moved, classes = named(name, **STILL_AFFINE[name])(image, labels, 3)
    torch.testing.assert_close(moved, image, atol=1e-4, rtol=0)
    assert torch.equal(classes, labels)


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("RandAffine", "rotate_range", 0.25),
        ("RandAffine", "shear_range", 0.5),
        ("RandAffine", "translate_range", 8),
        ("RandAffine", "scale_range", 0.1),
        ("RandomAffine", "degrees", 15),
        ("RandomAffine", "scales", (0.9, 0.95)),
        ("RandomAffine", "translation", 8),
    ],
)
def test_each_setting_of_an_affine_movement_acts_within_the_plane(
    name: str, setting: str, value: object
) -> None:
    image, labels = a_slice()
    transforms = named(name, **(STILL_AFFINE[name] | {setting: value}))
    moved, classes = transforms(image, labels, 3)
    assert not torch.equal(classes, labels)
    # A movement out of the plane would leave little of the slice.
    assert moved.sum() == pytest.approx(image.sum(), rel=0.25)


@pytest.mark.parametrize(
    ("name", "setting"), [("RandGaussianSmooth", "sigma"), ("RandomBlur", "std")]
)
def test_a_blur_of_one_width_is_the_same_along_rows_and_columns(
    name: str, setting: str
) -> None:
    image = torch.zeros(3, 96, 80)
    image[:, 48, 40] = 1
    labels = torch.zeros(96, 80, dtype=torch.uint8)
    blurred, _ = named(name, **{setting: (2, 2)})(image, labels, 3)
    assert blurred[0, 48, 42] > 0.01
    torch.testing.assert_close(blurred[:, 50, 40], blurred[:, 48, 42])


def test_a_share_of_slices_is_changed() -> None:
    image, labels = a_slice()
    transforms = named("RandomGamma", share=0.25)
    changed = [transforms(image, labels, seed)[0] is not image for seed in range(400)]
    # Standard deviation of the count: sqrt(400 * 0.25 * 0.75) = 8.7.
    assert 70 <= sum(changed) <= 130


def test_transforms_follow_one_another_in_the_order_of_the_list() -> None:
    """Noise after holes fills them; noise before them does not."""
    image = torch.ones(1, 64, 64)
    image[0, 0, 0] = 0
    labels = torch.zeros(64, 64, dtype=torch.uint8)
    noise = ADAPTER.validate_python(
        {"name": "RandomNoise", "share": 1, "std": (0.1, 0.1)}
    )
    holes = ADAPTER.validate_python(
        {"name": "RandCoarseDropout", "share": 1, "holes": 9}
    )
    filled, _ = SliceTransforms([holes, noise])(image, labels, 0)
    empty, _ = SliceTransforms([noise, holes])(image, labels, 0)
    assert (empty == 0).sum() > 200
    assert (filled == 0).sum() < 0.7 * (empty == 0).sum()


def test_an_empty_slice_stays_as_it_is() -> None:
    empty = torch.zeros(1, 32, 32)
    labels = torch.zeros(32, 32, dtype=torch.uint8)
    assert named("RandHistogramShift")(empty, labels, 0)[0] is empty


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "os.system", "share": 1},
        {"name": "RandomFlip", "share": 1},
        {"name": "RandomBlur"},
        {"name": "RandomBlur", "share": 1, "sigma": 2},
        {"name": "RandomBlur", "share": 1, "std": (2, 1)},
        {"name": "RandHistogramShift", "share": 1, "num_control_points": (2, 5)},
        {"name": "RandomAffine", "share": 1, "scales": (-1, 1)},
        {"name": "RandomNoise", "share": 1, "std": (0, float("nan"))},
    ],
)
def test_what_is_not_in_the_list_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        AugmentationConfig(transforms=(wrong,))  # type: ignore[arg-type]
