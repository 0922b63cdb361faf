"""The volumes of the brain as a whole in one segmentation, the intracranial volume among them."""

from __future__ import annotations

from trinat.segmentation.inference.checks.evidence import Evidence
from trinat.segmentation.inference.checks.inside import why_not_measured
from trinat.segmentation.inference.checks.limits import LIMITS, Limits
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.labels.measures import INTRACRANIAL, BrainVolumes, sums_mm3


def measure(
    found: Prediction, evidence: Evidence, limits: Limits = LIMITS
) -> BrainVolumes:
    """All measures of a segmentation, of which `evidence` was taken.

    The intracranial volume is that of the brain mask in the scan's own voxels. It is never
    guessed: where the scan or the model does not show it, it is None.
    """
    why_not = why_not_measured(evidence, found.inside, limits)
    mm3: dict[str, float | None] = {INTRACRANIAL.column: None}
    note = f"no intracranial volume: {why_not}"
    if not why_not:
        mask = found.brain
        mm3[INTRACRANIAL.column] = float(mask.data.sum() * mask.grid.voxel_mm3)
        note = ""
    mm3.update(sums_mm3(found.scheme, found.volumes_mm3))
    return BrainVolumes(mm3, note)
