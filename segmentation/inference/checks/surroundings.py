"""Whether brain goes on beyond its labels: there tissue is as bright as cortex, not dark as fluid.

Cortex that is missing on both sides alike shows in no volume and no comparison of sides.
"""

from __future__ import annotations

from trinat.segmentation.inference.checks.evidence import Evidence, Finding, above
from trinat.segmentation.inference.checks.limits import Limits
from trinat.segmentation.space.morphology import dilated

# The layer of voxels of 1 mm that is looked at. The first one is partly brain.
_FROM = 1
_TO = 2
# Of the brightness of cortex.
_DARKEST = 0.8
_BRIGHTEST = 1.3


def check_surroundings(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Little of what is just outside of the brain is as bright as cortex."""
    share = share_like_cortex(evidence)
    if share is None:
        return []
    reason = f"{share:.0%} of what is just outside the brain is as bright as cortex"
    return above(share, limits.like_cortex, f"{reason}: cortex missing?")


def share_like_cortex(evidence: Evidence) -> float | None:
    """Share of the second layer of voxels outside of the brain; None without cortex."""
    if evidence.brightness is None:
        return None
    cortex = evidence.brightness[1]
    near = dilated(evidence.brain, (_FROM,) * 3)
    layer = dilated(evidence.brain, (_TO,) * 3) & ~near
    values = evidence.image.data[layer]
    if not values.size:
        return None
    is_like_cortex = (values > _DARKEST * cortex) & (values < _BRIGHTEST * cortex)
    return float(is_like_cortex.mean())
