"""Whether the space inside the skull can be measured: all of it is in the scan, and was found."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.inference.checks.evidence import Evidence, some
from trinat.segmentation.inference.checks.field import find_cut
from trinat.segmentation.inference.checks.limits import Limits
from trinat.segmentation.labels.fluid import CSF_GROUP
from trinat.segmentation.space.morphology import dilated

# Skull and scalp are between these distances from the space inside the skull, in voxels of 1 mm.
_SKULL_FROM = 3
_SKULL_TO = 6


def why_not_measured(
    evidence: Evidence, inside: NDArray[np.bool_], limits: Limits
) -> str:
    """Why the intracranial volume is not known, in a few words; empty where it is.

    `inside` (X, Y, Z) is what is inside the skull, on the grid of the evidence.
    """
    if not finds_all_fluid(evidence):
        return "the model does not find the fluid around the brain"
    if not inside.any():
        return "no brain was found"
    if empty_share_outside(evidence, inside) > limits.stripped:
        return "the scan shows no skull"
    area, structures = find_cut(evidence, with_fluid=True)
    if area > limits.cut_mm2[0]:
        return f"the field of view ends inside the skull, in {some(structures)}"
    return ""


def finds_all_fluid(evidence: Evidence) -> bool:
    """Whether the model's CSF is all fluid inside the skull."""
    if evidence.csf != "intracranial":
        return False
    fluids = [
        label.name for label in evidence.scheme.labels if label.group == CSF_GROUP
    ]
    return any(name in evidence.volumes_mm3 for name in fluids)


def empty_share_outside(evidence: Evidence, inside: NDArray[np.bool_]) -> float:
    """How much of the place where skull and scalp are holds nothing, 0 to 1.

    Nearly all of it in a scan that was stripped of its skull, next to nothing in a whole head.
    1 where the scan ends before it.
    """
    near = dilated(inside, (_SKULL_FROM,) * 3)
    outside = dilated(inside, (_SKULL_TO,) * 3) & ~near
    values = evidence.image.data[outside]
    if not values.size:
        return 1.0
    return float(np.mean(values == 0))
