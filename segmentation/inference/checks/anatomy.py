"""Checks of the labels as one whole brain: size, components, symmetry, surroundings."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import some
from trinat.segmentation.inference.checks.evidence import (
    ENOUGH_MM3,
    NO_TISSUE,
    Evidence,
)
from trinat.segmentation.inference.checks.findings import (
    Finding,
    above,
    below,
)
from trinat.segmentation.inference.checks.limits import Limits
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.space.morphology import dilated, largest_part

# The layer around the brain, in voxels of 1 mm, that is compared with cortex. The layer inside of
# it is partly brain.
_LAYER_FROM = 1
_LAYER_TO = 2
# Range of brightness, relative to cortex, that counts as like cortex.
_DARKEST = 0.8
_BRIGHTEST = 1.3


def check_brain_size(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Report an implausible volume of the brain: half a head, no head or wrong voxel sizes."""
    brain = total_brain_mm3(evidence.scheme, evidence.volumes_mm3)
    text = f"brain of {brain / 1e3:.0f} ml"
    return [
        *below(brain, limits.smallest_brain_mm3, f"{text} only"),
        *above(brain, limits.largest_brain_mm3, text),
    ]


def total_brain_mm3(scheme: LabelScheme, volumes_mm3: Mapping[str, float]) -> float:
    """Return the volume of all tissue in mm³: every structure except ventricles and other fluid.

    `volumes_mm3` has the volumes by name; structures that it lacks count as 0.
    """
    tissue = [label.name for label in scheme.labels if label.group not in NO_TISSUE]
    return sum(volumes_mm3.get(name, 0.0) for name in tissue)


def check_resolution(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Report thick voxels, because small structures are lost between thick slices.

    The largest voxel side of the scan counts. The finding names the structures that are small in
    this scan.
    """
    spacing = max(evidence.scan.spacing_mm)
    small = tuple(
        name for name, mm3 in evidence.volumes_mm3.items() if mm3 < limits.small_mm3
    )
    reason = f"voxels are {spacing:.1f} mm apart: small structures come out wrong"
    if small:
        reason += f": {some(small)}"
    return above(spacing, limits.spacing_mm, reason, small)


def check_missing(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Report structures that the model predicts and that have no voxel in this scan."""
    absent = [name for name, volume in evidence.volumes_mm3.items() if volume == 0]
    if len(absent) < limits.missing[0]:
        return []
    rejects = len(absent) >= limits.missing[1]
    return [Finding(rejects, f"not found: {some(absent)}")]


def check_pieces(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Report tissue that is not connected to the brain, as in the face, scalp or neck.

    The brain is the largest component of labelled tissue; only shared faces of voxels connect.
    The finding names the structures with at least 100 mm³ outside of the brain.
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
    return above(volume, limits.apart_mm3, reason, structures)


def find_apart(evidence: Evidence) -> NDArray[np.intp]:
    """Return the volume (mm³) of each class that is not connected to the brain, (K,).

    The brain is the largest component of tissue: it is connected by faces and contains several
    structures. Fluid is no tissue.
    """
    tissue = ~evidence.mask(NO_TISSUE)
    apart = tissue & ~largest_part(tissue)
    classes = evidence.indices.data[apart]
    return np.bincount(classes, minlength=len(evidence.scheme))


def check_symmetry(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Report a brain of which one side has much less tissue than the other.

    There is no finding if neither side has tissue, because other checks report that.
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
    """Report structures that are much smaller than the same structure on the other side.

    Returns a finding, a reason to look at the scan, for each such pair. Two kinds of pairs are
    skipped: pairs with an empty side, which another check reports or the model does not predict,
    and small pairs, whose ratio is unreliable.
    """
    volumes = evidence.volumes_mm3
    findings = []
    for label in evidence.scheme.labels:
        # Visit each pair once.
        if label.partner is None or label.partner < label.index:
            continue
        partner = evidence.scheme.labels[label.partner]
        if label.name not in volumes or partner.name not in volumes:
            continue
        smaller = label.name
        larger = partner.name
        if volumes[smaller] > volumes[larger]:
            smaller, larger = larger, smaller
        if volumes[smaller] == 0 or volumes[larger] < limits.sided_mm3:
            continue
        ratio = volumes[smaller] / volumes[larger]
        if ratio < limits.sides.get(label.group, limits.other_sides):
            reason = f"{smaller} has {ratio:.0%} of the volume of {larger}"
            findings.append(Finding(False, reason, (smaller, larger)))
    return findings


def check_surroundings(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Report a brain with many voxels just outside of its labels that are as bright as cortex.

    Sound brains are surrounded by fluid, which is darker. A large share means that cortex is
    missing from the labels, also on both sides, which no volume and no comparison of sides shows.
    """
    share = share_like_cortex(evidence)
    if share is None:
        return []
    reason = f"{share:.0%} of what is just outside the brain is as bright as cortex"
    return above(share, limits.like_cortex, f"{reason}: cortex missing?")


def share_like_cortex(evidence: Evidence) -> float | None:
    """Return the share of voxels just outside of the labelled brain that are as bright as cortex.

    These are the voxels 2 mm outside. None if there is too little cortex to measure its brightness.
    """
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
