"""Settings of synthetic slices: the strength of each variation."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1)]
_Positive = Annotated[float, Field(gt=0)]
_NotNegative = Annotated[float, Field(ge=0)]


class SynthesisConfig(BaseModel):
    """Strength of each variation; lengths in mm, intensities relative to white matter.

    Two numbers are the limits of a uniform distribution.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    # A "share" is the fraction of scans (or slices, or heads) with a variation.
    # Random contrast in place of the contrast of T1.
    random_contrast: Share = 0.03
    # Left and right exchanged, in the labels too.
    mirrored: Share = 0.5
    # Skull-stripped scans.
    skull_stripped: Share = 0.4
    # Defaced scans.
    defaced: Share = 0.2
    # Slices through a voxel of a random structure; other slices lie anywhere in the head.
    balanced: Share = 0.6
    # Planes centred anywhere in the head, not near the brain: faces, necks, air.
    astray: Share = 0.15
    # Heads with random contrast outside of the brain, and the strength of patches there.
    outside_contrast: Share = 0.5
    clutter: float = Field(default=0.3, ge=0)
    clutter_spacing_mm: float = Field(default=7.0, gt=0)
    # Scans whose field of view ends within the head, and the distance from the middle of the brain.
    cropped: Share = 0.08
    cropped_mm: tuple[_Positive, _Positive] = (35.0, 80.0)
    # Scans blurred by motion.
    motion: Share = 0.08
    motion_mm: float = Field(default=3.0, ge=1)
    # Standard deviations of rotation, scaling, shear and shift of heads.
    rotation_deg: float = Field(default=8.0, ge=0)
    scaling: float = Field(default=0.12, ge=0, lt=1)
    shearing: float = Field(default=0.06, ge=0)
    shift_mm: float = Field(default=22.0, ge=0)
    # Elastic deformation, and the distance over which it is smooth.
    elastic_mm: float = Field(default=2.5, ge=0)
    elastic_spacing_mm: float = Field(default=28.0, gt=0)
    # Border variation: distance between borders in the image and in the target, as between a
    # rater's borders and the scan; largest standard deviation, and the distance over which it is
    # smooth.
    border_mm: float = Field(default=0.7, ge=0)
    border_spacing_mm: float = Field(default=8.0, gt=0)
    # Variation of brightness within a tissue, and the distance over which it is smooth.
    mottle: float = Field(default=0.0, ge=0)
    mottle_spacing_mm: float = Field(default=6.0, gt=0)
    # Partial volume: the number of samples in each voxel that are averaged. One: none.
    places: int = Field(default=2, ge=1, le=8)
    # Learn all fluid between brain and skull as CSF; if False it is background.
    learn_fluid: bool = False
    # Point spread of the scanner: standard deviation.
    blur_mm: tuple[_Positive, _Positive] = (0.3, 0.8)
    # Scans with voxels that are thick along one axis, and their largest thickness.
    low_resolution: Share = 0.2
    low_resolution_mm: float = Field(default=3.0, ge=1)
    # Correlation of the mean brightness of different tissues within a scan: the share of the
    # variance of these means that all tissues of a scan have in common, as when a scanner's gain
    # changes them together. High values make unusual contrasts rare: at 0.75 putamen and thalamus
    # became worse.
    common_gain: Share = 0.3
    # Standard deviation of brightness between structures of one intensity class.
    structure_offset: float = Field(default=0.05, ge=0)
    # Noise-like texture: standard deviation from voxel to voxel, as a factor of the standard
    # deviation within the tissue.
    texture: tuple[_NotNegative, _NotNegative] = (0.3, 1.0)
    # Largest strength of bias field, noise and gamma.
    bias: float = Field(default=0.25, ge=0)
    noise: float = Field(default=0.05, ge=0)
    gamma: float = Field(default=0.15, ge=0)
    # Contrast of grey to white matter, which depends on sequence and field strength: a brightness
    # of x times white matter becomes 1 - (1 - x)^p, with p drawn from this range.
    contrast: tuple[_Positive, _Positive] = (0.85, 1.8)
    # Brightness of white matter on the working grid's scale (1 is the bright end of the head).
    white_matter: tuple[_Positive, _Positive] = (0.4, 1.15)
