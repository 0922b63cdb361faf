"""TorchIO's random transforms that suit slices, with their settings.

TorchIO transforms volumes, so a slice is passed as a volume with a single voxel along its third
axis, its neighbours as channels; transforms along an axis use the first two only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor

from trinat.segmentation.data.transforms.base import (
    Coarsenings,
    Counts,
    Factors,
    Positive,
    PositiveRange,
    Range,
    SliceChange,
    SliceTransform,
)

if TYPE_CHECKING:
    from torchio import Transform

_IN_PLANE = (0, 1)


class _FromTorchIO(SliceTransform):
    library: ClassVar[str] = "TorchIO"

    def build(self) -> SliceChange:
        """Return a function that applies TorchIO's transform to image and labels of one slice.

        Interpolation is linear for images and nearest for labels.
        """
        import torchio

        return _image_and_label_change(getattr(torchio, self.name)(**self.arguments()))


class RandomAffine(_FromTorchIO):
    """Turns, scales and shifts a slice."""

    moves: ClassVar[bool] = True

    name: Literal["RandomAffine"]
    degrees: Annotated[float, Ge(0), Le(180)] = 10.0  # to both sides
    scales: Factors = (0.9, 1.1)
    translation: Positive = 5.0  # to both sides, along each axis

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for movements within the plane."""
        shift = (-self.translation, self.translation)
        return {
            "scales": (*self.scales, *self.scales, 1, 1),
            "degrees": (0, 0, 0, 0, -self.degrees, self.degrees),
            "translation": (*shift, *shift, 0, 0),
            "default_pad_value": 0,
        }


class RandomElasticDeformation(_FromTorchIO):
    """Bends, by a grid of control points."""

    moves: ClassVar[bool] = True

    name: Literal["RandomElasticDeformation"]
    num_control_points: Annotated[int, Ge(5), Le(50)] = 7  # along each axis
    max_displacement: Positive = 7.5

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for movements within the plane; the border is fixed."""
        points = self.num_control_points
        reach = self.max_displacement
        return {
            "num_control_points": (points, points, 5),
            "max_displacement": (reach, reach, 0),
        }


class RandomAnisotropy(_FromTorchIO):
    """Lowers the resolution along rows or columns."""

    name: Literal["RandomAnisotropy"]
    downsampling: Coarsenings = (1.5, 5.0)  # factors

    def arguments(self) -> dict[str, Any]:
        """Return the settings for axes within the plane."""
        return super().arguments() | {"axes": _IN_PLANE}


class RandomBiasField(_FromTorchIO):
    """Slow changes of brightness: the exponential of a polynomial."""

    name: Literal["RandomBiasField"]
    coefficients: Annotated[float, Ge(0), Le(5)] = 0.5
    order: Annotated[int, Ge(1), Le(6)] = 3


class RandomBlur(_FromTorchIO):
    """Gaussian blur, of another width along each axis."""

    name: Literal["RandomBlur"]
    std: PositiveRange = (0.0, 2.0)

    def arguments(self) -> dict[str, Any]:
        """Return the widths within the plane."""
        return {"std": (*self.std, *self.std, 0, 0)}


class RandomGamma(_FromTorchIO):
    """Contrast: intensities to the power of exp(log_gamma)."""

    name: Literal["RandomGamma"]
    log_gamma: Range = (-0.3, 0.3)

    def build(self) -> SliceChange:
        """Return a function that changes the image of one slice, and leaves its labels."""
        from torchio import RandomGamma

        transform = RandomGamma(log_gamma=self.log_gamma)

        def change(image: Tensor, labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
            # Neighbouring slices are passed along the third axis: as channels, each would get its
            # own gamma.
            volume = image.movedim(0, -1)[None]
            with _seeded(seed):
                changed = transform(volume)
            return changed[0].movedim(-1, 0), labels

        return change


class RandomGhosting(_FromTorchIO):
    """Ghosts of the head along rows or columns."""

    name: Literal["RandomGhosting"]
    num_ghosts: Counts = (2, 8)
    intensity: PositiveRange = (0.2, 0.7)

    def arguments(self) -> dict[str, Any]:
        """Return the settings for axes within the plane."""
        return super().arguments() | {"axes": _IN_PLANE}


class RandomMotion(_FromTorchIO):
    """Motion of the head during the scan."""

    name: Literal["RandomMotion"]
    degrees: Annotated[float, Ge(0), Le(180)] = 6.0
    translation: Positive = 5.0
    num_transforms: Annotated[int, Ge(1), Le(10)] = 2  # movements

    def build(self) -> SliceChange:
        """Return a function that changes the image of one slice, and leaves its labels.

        Labels stay in place: TorchIO takes the middle of k-space, which determines where the head
        appears, from the unmoved image.

        TorchIO fills k-space along the third axis. A slice has a single voxel there, so its whole
        image would move away from its labels. The columns are therefore passed as the third axis,
        and the single voxel is along the second.
        """
        from torchio import Motion, RandomMotion, ScalarImage

        random = RandomMotion(
            degrees=self.degrees,
            translation=self.translation,
            num_transforms=self.num_transforms,
        )

        def change(image: Tensor, labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
            with _seeded(seed):
                times, degrees, shifts = random.get_params(
                    random.degrees_range,
                    random.translation_range,
                    self.num_transforms,
                    is_2d=True,
                )
            # `is_2d` applies to slices without a third axis.
            motion = Motion(
                degrees=degrees[:, [0, 2, 1]],
                translation=shifts[:, [0, 2, 1]],
                times=times,
                image_interpolation="linear",
            )
            _, height, width = image.shape
            # Rotation is about the origin, so the origin is put at the middle of the slice.
            affine = np.eye(4)
            last_row = height - 1
            last_column = width - 1
            affine[:3, 3] = (-last_row / 2, 0, -last_column / 2)
            volume = ScalarImage(tensor=image[:, :, None], affine=affine)
            return motion(volume).data[:, :, 0], labels

        return change


class RandomNoise(_FromTorchIO):
    """Adds Gaussian noise."""

    name: Literal["RandomNoise"]
    std: PositiveRange = (0.0, 0.1)


class RandomSpike(_FromTorchIO):
    """Adds stripes: spikes in k-space."""

    name: Literal["RandomSpike"]
    num_spikes: Counts = (1, 1)
    intensity: Range = (0.1, 0.5)  # of the spectrum's maximum


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator, which TorchIO uses, and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _image_and_label_change(transform: Transform) -> SliceChange:
    """Return a function that applies a TorchIO transform to image and labels of one slice."""
    import torchio

    def change(image: Tensor, labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        subject = torchio.Subject(
            image=torchio.ScalarImage(tensor=image[..., None]),
            labels=torchio.LabelMap(tensor=labels[None, ..., None]),
        )
        with _seeded(seed):
            changed = transform(subject)
        classes = changed.labels.data[0, ..., 0].to(labels.dtype)
        return changed.image.data[..., 0], classes

    return change


TorchIOTransform = (
    RandomAffine
    | RandomElasticDeformation
    | RandomAnisotropy
    | RandomBiasField
    | RandomBlur
    | RandomGamma
    | RandomGhosting
    | RandomMotion
    | RandomNoise
    | RandomSpike
)
