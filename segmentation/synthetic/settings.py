"""Settings of synthetic slices: how much of each variation is drawn."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1)]
_Positive = Annotated[float, Field(gt=0)]
_NotNegative = Annotated[float, Field(ge=0)]


class SynthesisConfig(BaseModel):
    """How much of everything; lengths in mm, intensities as parts of white matter."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    random_contrast: Share = 0.03  # in place of that of T1
    mirrored: Share = 0.5  # sides exchanged, labels too
    skull_stripped: Share = 0.4  # nothing outside the brain
    defaced: Share = 0.2  # without a face
    # Part of the slices through a voxel of a random structure; the others lie anywhere in the head.
    balanced: Share = 0.6
    # Part of the planes centred anywhere in the head, not near the brain: faces, necks, air.
    astray: Share = 0.15
    # Part of the heads with random contrast outside the brain, and how patchy it may be there.
    outside_contrast: Share = 0.5
    clutter: float = Field(default=0.3, ge=0)
    clutter_spacing_mm: float = Field(default=7.0, gt=0)
    # Part of the scans whose field of view ends within the head, and of those blurred by motion.
    cropped: Share = 0.08
    cropped_mm: tuple[_Positive, _Positive] = (
        35.0,
        80.0,
    )  # from the middle of the brain
    motion: Share = 0.08
    motion_mm: float = Field(default=3.0, ge=1)
    rotation_deg: float = Field(default=8.0, ge=0)
    scaling: float = Field(default=0.12, ge=0, lt=1)
    shearing: float = Field(default=0.06, ge=0)
    shift_mm: float = Field(default=22.0, ge=0)
    elastic_mm: float = Field(default=2.5, ge=0)
    elastic_spacing_mm: float = Field(default=28.0, gt=0)
    # How far borders in the image stray from those of the target, as a rater's do from what a scan
    # shows: largest standard deviation, and over what distance they stray alike.
    border_mm: float = Field(default=0.7, ge=0)
    border_spacing_mm: float = Field(default=8.0, gt=0)
    # Tissue is no more uniform than real one: brightness varies within it by so much, over so far.
    mottle: float = Field(default=0.0, ge=0)
    mottle_spacing_mm: float = Field(default=6.0, gt=0)
    # Partial volume: each voxel is the mean of so many places within it. One: none.
    places: int = Field(default=2, ge=1, le=8)
    # Whether the linings of ventricles are learnt as ventricle, or not at all.
    learn_linings: bool = False
    # Whether all between the brain and the skull is learnt as CSF, or as background.
    learn_fluid: bool = False
    blur_mm: tuple[_Positive, _Positive] = (0.3, 0.8)  # standard deviation
    low_resolution: Share = 0.2
    low_resolution_mm: float = Field(default=3.0, ge=1)
    # Part of the variance of the classes' means that a scan's classes have in common: over scans,
    # a scanner's gain moves them together. With much of it rare contrasts are not learnt: at 0.75
    # putamen and thalamus became worse.
    common_gain: Share = 0.3
    # Between structures of one class of intensity, standard deviation.
    structure_offset: float = Field(default=0.05, ge=0)
    # Part of a class's spread, over its voxels, that is drawn voxel by voxel.
    texture: tuple[_NotNegative, _NotNegative] = (0.3, 1.0)
    bias: float = Field(default=0.25, ge=0)
    noise: float = Field(default=0.05, ge=0)
    gamma: float = Field(default=0.15, ge=0)
    # Contrast of grey to white matter, which sequences and field strengths change: brightness x of
    # white matter's becomes 1 - (1 - x)^p, p drawn from this range.
    contrast: tuple[_Positive, _Positive] = (0.85, 1.8)
    # Where white matter ends up on the working grid's scale (1 is the bright end of the head).
    white_matter: tuple[_Positive, _Positive] = (0.4, 1.15)
