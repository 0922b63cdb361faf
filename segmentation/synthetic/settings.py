"""Settings of synthetic slices: how much of each variation is drawn."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1)]
_Positive = Annotated[float, Field(gt=0)]
_NotNegative = Annotated[float, Field(ge=0)]


class SynthesisConfig(BaseModel):
    """How much of each variation is drawn; lengths in mm, intensities as parts of white matter.

    Of two numbers, values are drawn evenly from the first to the second.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    # A "share" is a part of the scans (or slices, or heads) that a variation is drawn for.
    # Random contrast in place of that of T1.
    random_contrast: Share = 0.03
    # Sides exchanged, labels too.
    mirrored: Share = 0.5
    # Nothing outside the brain.
    skull_stripped: Share = 0.4
    # Without a face.
    defaced: Share = 0.2
    # Slices through a voxel of a random structure; the others lie anywhere in the head.
    balanced: Share = 0.6
    # Planes centred anywhere in the head, not near the brain: faces, necks, air.
    astray: Share = 0.15
    # Heads with random contrast outside the brain, and how patchy it may be there.
    outside_contrast: Share = 0.5
    clutter: float = Field(default=0.3, ge=0)
    clutter_spacing_mm: float = Field(default=7.0, gt=0)
    # Scans whose field of view ends within the head, and how far from the middle of the brain.
    cropped: Share = 0.08
    cropped_mm: tuple[_Positive, _Positive] = (35.0, 80.0)
    # Scans blurred by motion.
    motion: Share = 0.08
    motion_mm: float = Field(default=3.0, ge=1)
    # How far heads are turned (standard deviation), scaled, sheared and moved.
    rotation_deg: float = Field(default=8.0, ge=0)
    scaling: float = Field(default=0.12, ge=0, lt=1)
    shearing: float = Field(default=0.06, ge=0)
    shift_mm: float = Field(default=22.0, ge=0)
    # How far they are bent, and over what distance alike.
    elastic_mm: float = Field(default=2.5, ge=0)
    elastic_spacing_mm: float = Field(default=28.0, gt=0)
    # Border variation: how far borders in the image are from those of the target, as a rater's are
    # from what a scan shows; largest standard deviation, and over what distance they move alike.
    border_mm: float = Field(default=0.7, ge=0)
    border_spacing_mm: float = Field(default=8.0, gt=0)
    # Real tissue is not uniform: how much brightness varies within it, and over what distance.
    mottle: float = Field(default=0.0, ge=0)
    mottle_spacing_mm: float = Field(default=6.0, gt=0)
    # Partial volume: the number of places within each voxel whose mean it is. One: none.
    places: int = Field(default=2, ge=1, le=8)
    # Whether what lies within the skull is learnt. If not, only that all outside of it is
    # background: for networks that learn the brain itself from stripped scans in a store. Such a
    # network lost cortex where a skull is near (docs/notes/manual.md): no recipe does so.
    learn_brain: bool = True
    # Whether the linings of ventricles are learnt as ventricle, or not at all.
    learn_linings: bool = False
    # Whether all between the brain and the skull is learnt as CSF, or as background.
    learn_fluid: bool = False
    # Of the scanner's point spread: standard deviation.
    blur_mm: tuple[_Positive, _Positive] = (0.3, 0.8)
    # Scans with voxels that are thick along one axis, and how thick at most.
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
    # How strong the bias field, the noise and the change of gamma are at most.
    bias: float = Field(default=0.25, ge=0)
    noise: float = Field(default=0.05, ge=0)
    gamma: float = Field(default=0.15, ge=0)
    # Contrast of grey to white matter, which sequences and field strengths change: brightness x of
    # white matter's becomes 1 - (1 - x)^p, p drawn from this range.
    contrast: tuple[_Positive, _Positive] = (0.85, 1.8)
    # Where white matter ends up on the working grid's scale (1 is the bright end of the head).
    white_matter: tuple[_Positive, _Positive] = (0.4, 1.15)
