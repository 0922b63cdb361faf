"""Whether the labels are those of one whole brain: its size, its pieces, its sides, its borders."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import some
from trinat.segmentation.inference.checks.evidence import (
    ENOUGH_MM3,
    NO_TISSUE,
    Evidence,
    Finding,
    above,
    below,
)
from trinat.segmentation.inference.checks.limits import Limits
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.space.morphology import dilated, largest_part

# The layer around the brain, in voxels of 1 mm, that is compared with cortex. The one below it is
# partly brain.
_LAYER_FROM = 1
_LAYER_TO = 2
# Shares of the brightness of cortex, between which something is like cortex.
_DARKEST = 0.8
_BRIGHTEST = 1.3


def check_brain_size(evidence: Evidence, limits: Limits) -> list[Finding]:
    """A brain that is too small or too large: half a head, no head, or a wrong size of voxels."""
    brain = total_brain_mm3(evidence.scheme, evidence.volumes_mm3)
    text = f"brain of {brain / 1e3:.0f} ml"
    return [
        *below(brain, limits.smallest_brain_mm3, f"{text} only"),
        *above(brain, limits.largest_brain_mm3, text),
    ]


def total_brain_mm3(scheme: LabelScheme, volumes_mm3: Mapping[str, float]) -> float:
    """All tissue: every structure but ventricles and other fluid."""
    tissue = [label.name for label in scheme.labels if label.group not in NO_TISSUE]
    return sum(volumes_mm3.get(name, 0.0) for name in tissue)


def check_resolution(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Small structures are lost between thick slices."""
    spacing = max(evidence.scan.spacing_mm)
    reason = f"voxels are {spacing:.1f} mm apart: small structures come out wrong"
    return above(spacing, limits.spacing_mm, reason)


def check_missing(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Structures that the model knows and did not find."""
    absent = [name for name, volume in evidence.volumes_mm3.items() if volume == 0]
    if len(absent) < limits.missing[0]:
        return []
    rejects = len(absent) >= limits.missing[1]
    return [Finding(rejects, f"not found: {some(absent)}")]


def check_pieces(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Tissue that no face of a voxel joins to the largest piece of tissue.

    It lies in the face, scalp or neck. The reason names the structures that have 100 mm³ or more
    there.
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


def check_symmetry(evidence: Evidence, limits: Limits) -> list[Finding]:
    """The smaller side of all tissue, of the larger.

    Nothing is found if neither side has tissue, as other checks say that nothing was found.
    """
    tissue = {"left": 0.0, "right": 0.0}
    for label in evidence.scheme.labels:
        if label.side is not None and label.group not in NO_TISSUE:
            tissue[label.side] += evidence.volumes_mm3.get(label.name, 0.0)
    if not any(tissue.values()):
        return []
    ratio = min(tissue.values()) / max(tissue.values())
    return below(ratio, limits.symmetry, f"one side has {ratio:.0%} of the other")


def check_sides(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Each structure that is much smaller than its partner on the other side.

    Pairs of which one side has no volume at all, as those that the model does not predict, are
    passed over; so are small ones, whose ratio says little.
    """
    volumes = evidence.volumes_mm3
    findings = []
    for label in evidence.scheme.labels:
        # Each pair once.
        if label.partner is None or label.partner < label.index:
            continue
        partner = evidence.scheme.labels[label.partner]
        if label.name not in volumes or partner.name not in volumes:
            continue
        smaller = label.name
        larger = partner.name
        if volumes[smaller] > volumes[larger]:
            smaller, larger = larger, smaller
        if volumes[larger] < limits.sided_mm3:
            continue
        ratio = volumes[smaller] / volumes[larger]
        if ratio < limits.sides.get(label.group, limits.other_sides):
            reason = f"{smaller} has {ratio:.0%} of the volume of {larger}"
            findings.append(Finding(False, reason, (smaller, larger)))
    return findings


def check_surroundings(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Little of what is just outside of the brain is as bright as cortex: fluid is darker.

    Cortex that is missing on both sides alike shows in no volume and no comparison of sides.
    """
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
    near = dilated(evidence.brain, (_LAYER_FROM,) * 3)
    layer = dilated(evidence.brain, (_LAYER_TO,) * 3) & ~near
    values = evidence.image.data[layer]
    if not values.size:
        return None
    is_like_cortex = (values > _DARKEST * cortex) & (values < _BRIGHTEST * cortex)
    return float(is_like_cortex.mean())
