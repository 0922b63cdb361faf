"""MONAI's random transforms that suit slices, with their settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from annotated_types import Ge, Le
from torch import Tensor

from trinat.segmentation.data.transforms.base import (
    ControlPoints,
    Fraction,
    Positive,
    PositiveRange,
    Range,
    Shares,
    SliceChange,
    SliceTransform,
)

if TYPE_CHECKING:
    from monai.transforms import Rand2DElastic, RandAffine, RandGridDistortion
    from monai.transforms.transform import RandomizableTransform

    _Moving: TypeAlias = RandAffine | Rand2DElastic | RandGridDistortion


class _FromMonai(SliceTransform):
    library: ClassVar[str] = "MONAI"

    def build(self) -> SliceChange:
        """Return a function that applies MONAI's transform to one slice.

        If the transform moves voxels, it is applied to image and labels, else to the image alone.
        """
        from monai import transforms

        kind = getattr(transforms, self.name)
        if self.moves:
            # Beyond the slice there is background.
            return _image_and_label_change(
                kind(prob=1, padding_mode="zeros", **self.arguments())
            )
        return _image_change(kind(prob=1, **self.arguments()))


class MonaiAffine(_FromMonai):
    """Turns, shears, shifts and scales."""

    moves: ClassVar[bool] = True

    name: Literal["RandAffine"]
    rotate_range: Annotated[float, Ge(0), Le(3.15)] = 0.2  # radians, to both sides
    shear_range: Fraction = 0.1
    translate_range: Positive = 5.0
    scale_range: Fraction = 0.1  # 0.1: factors from 0.9 to 1.1

    def arguments(self) -> dict[str, Any]:
        """Return the same range for both axes."""
        return {
            "rotate_range": self.rotate_range,
            "shear_range": (self.shear_range, self.shear_range),
            "translate_range": (self.translate_range, self.translate_range),
            "scale_range": (self.scale_range, self.scale_range),
        }


class MonaiElastic(_FromMonai):
    """Bends, by a grid of control points."""

    moves: ClassVar[bool] = True

    name: Literal["Rand2DElastic"]
    spacing: Annotated[float, Ge(4), Le(1000)] = 30.0  # between control points
    magnitude_range: PositiveRange = (0.0, 3.0)

    def arguments(self) -> dict[str, Any]:
        """Return the same spacing for both axes."""
        return super().arguments() | {"spacing": (self.spacing, self.spacing)}


class MonaiGridDistortion(_FromMonai):
    """Stretches and squeezes the cells of a grid."""

    moves: ClassVar[bool] = True

    name: Literal["RandGridDistortion"]
    num_cells: Annotated[int, Ge(1), Le(50)] = 5  # along each axis
    distort_limit: Annotated[float, Ge(0), Le(0.9)] = 0.1  # of a cell


class MonaiGibbsNoise(_FromMonai):
    """Adds ringing at edges."""

    name: Literal["RandGibbsNoise"]
    alpha: Shares = (0.3, 0.7)


class MonaiSpikeNoise(_FromMonai):
    """Adds stripes: spikes in k-space."""

    name: Literal["RandKSpaceSpikeNoise"]
    # range of the logarithm of the spectrum; none: from its mean to 2.5 times its mean
    intensity_range: Range | None = None

    def arguments(self) -> dict[str, Any]:
        """Return the settings, with spikes at the same places in neighbouring slices."""
        return super().arguments() | {"channel_wise": False}


class MonaiRicianNoise(_FromMonai):
    """Adds the noise of magnitude images."""

    name: Literal["RandRicianNoise"]
    std: Positive = 0.05  # at most


class MonaiGaussianNoise(_FromMonai):
    """Adds Gaussian noise."""

    name: Literal["RandGaussianNoise"]
    std: Positive = 0.05  # at most


class MonaiBiasField(_FromMonai):
    """Slow changes of brightness: the exponential of a polynomial."""

    name: Literal["RandBiasField"]
    degree: Annotated[int, Ge(1), Le(6)] = 3
    coeff_range: Range = (0.0, 0.1)


class MonaiGaussianSmooth(_FromMonai):
    """Gaussian blur, of another width along each axis."""

    name: Literal["RandGaussianSmooth"]
    sigma: PositiveRange = (0.25, 1.5)  # sigma_x and sigma_y

    def arguments(self) -> dict[str, Any]:
        """Return the same range for both axes."""
        return {"sigma_x": self.sigma, "sigma_y": self.sigma}


class MonaiGaussianSharpen(_FromMonai):
    """Sharper edges: `alpha` times the difference of two blurs is added."""

    name: Literal["RandGaussianSharpen"]
    alpha: PositiveRange = (1.0, 5.0)


class MonaiAdjustContrast(_FromMonai):
    """Contrast: intensities to the power of gamma, between the slice's darkest and brightest."""

    name: Literal["RandAdjustContrast"]
    gamma: PositiveRange = (0.7, 1.5)


class MonaiHistogramShift(_FromMonai):
    """Intensities along a random rising curve."""

    name: Literal["RandHistogramShift"]
    num_control_points: ControlPoints = (5, 10)  # of the curve


class MonaiCoarseDropout(_FromMonai):
    """Square holes, filled with 0."""

    name: Literal["RandCoarseDropout"]
    holes: Annotated[int, Ge(1), Le(100)] = 4
    spatial_size: Annotated[int, Ge(1), Le(200)] = 16  # of a hole

    def arguments(self) -> dict[str, Any]:
        """Return the settings; the network must guess the labels in a hole."""
        return super().arguments() | {"fill_value": 0}


def _image_change(transform: RandomizableTransform) -> SliceChange:
    """Return a function that applies a MONAI intensity transform to the image of one slice."""
    from monai.utils import convert_to_tensor

    def change(image: Tensor, labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        transform.set_random_state(seed)
        return convert_to_tensor(transform(image)), labels

    return change


def _image_and_label_change(transform: _Moving) -> SliceChange:
    """Return a function that applies a spatial MONAI transform to image and labels of one slice."""
    from monai.utils import convert_to_tensor

    def change(image: Tensor, labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        transform.set_random_state(seed)
        moved = transform(image, mode="bilinear")
        # Apply it again with the same random numbers, so that labels move as the image did.
        transform.set_random_state(seed)
        classes = transform(labels[None].float(), mode="nearest")
        classes = convert_to_tensor(classes)[0].to(labels.dtype)
        return convert_to_tensor(moved), classes

    return change


MonaiTransform = (
    MonaiAffine
    | MonaiElastic
    | MonaiGridDistortion
    | MonaiGibbsNoise
    | MonaiSpikeNoise
    | MonaiRicianNoise
    | MonaiGaussianNoise
    | MonaiBiasField
    | MonaiGaussianSmooth
    | MonaiGaussianSharpen
    | MonaiAdjustContrast
    | MonaiHistogramShift
    | MonaiCoarseDropout
)
