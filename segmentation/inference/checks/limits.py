"""The limits of all checks in one table. docs/quality.md says how often each check is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

GradeName = Literal["pass", "look", "reject"]
Pair = tuple[float, float]
# For checks that never reject.
_NEVER = float("inf")


# Least plausible ratio of the smaller to the larger side, by group of structures. Sound brains have
# at least 0.90 in large structures, 0.73 in subcortical ones and 0.58 in ventricles.
_USUAL_SIDES = {
    "white-matter": 0.85,
    "cortical": 0.85,
    "grey-matter": 0.85,
    "cerebellum": 0.85,
    "subcortical": 0.65,
    "ventricles": 0.4,
}


@dataclass(frozen=True)
class Limits:
    """Limits of all checks of a segmentation, which grade it pass, look or reject.

    A pair has the limit beyond which a person should look at a scan, and the limit beyond which it
    is rejected. The limits of `missing` are inclusive: one structure not found is enough to look. A
    single number is a limit beyond which the grade is look, or a least size.
    """

    # Mean Dice between views, of a structure and on average over structures; for models
    # without limits of their own.
    agreement: Pair = (0.75, 0.55)
    # Volume of the brain. Adults' brains have 0.85 to 1.8 litres.
    smallest_brain_mm3: Pair = (8.0e5, 5.0e5)
    largest_brain_mm3: Pair = (1.9e6, 2.4e6)
    # Ratio of the smaller to the larger side, of all tissue.
    symmetry: Pair = (0.85, 0.65)
    # Ratio of the smaller to the larger side of a structure, by group of structures; `other_sides`
    # is for groups that are not listed. Below it the grade is look.
    sides: Mapping[str, float] = field(default_factory=_USUAL_SIDES.copy)
    other_sides: float = 0.65
    # Structures whose larger side is smaller than this are not compared: a few voxels would matter.
    sided_mm3: float = 1000.0
    # Area of labels in one plane at the end of the scan. A brain that is complete has at most 250
    # mm² there, or 400 mm² with the fluid around it. A brain that lacks the upper 15 mm has 1,500
    # mm² and more.
    cut_mm2: Pair = (500.0, 5000.0)
    # Volume of tissue that is not connected to the brain. Sound scans have at most 0.05 ml.
    apart_mm3: Pair = (500.0, 2.0e4)
    # Share of the layer outside of the brain that is as bright as cortex. Scans of whole heads have
    # up to 0.26, stripped scans less than 0.1. Heads that lost a quarter of the brain have 0.55 to
    # 0.63.
    like_cortex: Pair = (0.35, _NEVER)
    # Share of tissue where skull and scalp should be, on the side with the smallest share. Below
    # this limit there is no intracranial volume. Whole heads have 0.18 and more. Scans that were
    # stripped, partly or with a margin of 3 mm, have up to 0.03.
    skull: float = 0.1
    # Share of directions in which tissue ends at a constant distance from the brain. Above this
    # limit there is no intracranial volume. Seven whole heads have 0.12 to 0.39; the same heads,
    # stripped with a margin of 2 to 12 mm, have 0.70 and more.
    even: float = 0.55
    # Brightness of white matter relative to cortex: T1 has 1.15 to 1.9, T2 below 1.
    contrast: Pair = (1.08, 1.0)
    # Share of white matter with exactly its maximum value.
    saturated: Pair = (0.02, _NEVER)
    # Standard deviation between neighbouring voxels of white matter, relative to white matter minus
    # cortex.
    noise: Pair = (0.6, 2.0)
    # Standard deviation over 4 to 8 mm, relative to the same difference: ghosts, motion, lost
    # slices.
    bands: Pair = (0.06, 0.3)
    # Step from a voxel of white matter to a neighbour in cortex, relative to white matter minus
    # cortex, along the axis with the smallest step.
    edges: Pair = (0.26, 0.1)
    # Change from a slice to the next, relative to the changes around: `jump` limits the largest
    # change, `still` the smallest. Sound heads have 0.8 to 1.45, heads that lost two slices 1.7 and
    # more, heads whose halves are shifted by 4 mm 1.8, repeated slices 0.
    jump: Pair = (1.6, _NEVER)
    still: float = 0.3
    # Volume of dark, grey or bright places. Sound brains have at most 100 mm³.
    lesion_mm3: float = 200.0
    # Largest distance between neighbouring voxels. Volumes of structures below `small_mm3` differ
    # by up to 66 % between scans with voxels of 1 and 2 mm (docs/notes/quality.md).
    spacing_mm: Pair = (1.9, 6.0)
    small_mm3: float = 2_000.0
    # Number of predicted structures without a voxel.
    missing: tuple[int, int] = (1, 6)
    # Share of the structures that are rejected.
    rejected: Pair = (0.0, 0.25)


LIMITS = Limits()
