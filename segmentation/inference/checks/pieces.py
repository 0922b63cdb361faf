"""Whether the brain is one piece: tissue found apart from it lies in the face, scalp or neck."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.inference.checks.evidence import (
    ENOUGH_MM3,
    NO_TISSUE,
    Evidence,
    Finding,
    above,
    some,
)
from trinat.segmentation.inference.checks.limits import Limits
from trinat.segmentation.space.morphology import largest_part


def check_pieces(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Tissue that no face of a voxel joins to the largest piece of tissue.

    The reason names the structures that have 100 mm³ or more there.
    """
    apart = find_apart(evidence)
    volume = float(apart.sum())
    structures = tuple(
        label.name
        for label in evidence.scheme.labels
        if apart[label.index] >= ENOUGH_MM3
    )
    reason = f"{volume / 1e3:.1f} ml of tissue lie apart from the brain"
    if structures:
        reason += f": {some(structures)}"
    return [
        Finding(finding.rejects, reason, structures)
        for finding in above(volume, limits.apart_mm3, reason)
    ]


def find_apart(evidence: Evidence) -> NDArray[np.intp]:
    """Voxels (mm³) of each class apart from the largest piece of tissue, (K,)."""
    classes = evidence.indices.data
    is_fluid = np.array([label.group in NO_TISSUE for label in evidence.scheme.labels])
    tissue = ~is_fluid[classes]
    apart = tissue & ~largest_part(tissue)
    return np.bincount(classes[apart], minlength=len(evidence.scheme))
