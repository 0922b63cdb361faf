"""Whether left and right are alike: all tissue, and each structure that has a partner."""

from __future__ import annotations

from trinat.segmentation.inference.checks.evidence import (
    NO_TISSUE,
    Evidence,
    Finding,
    below,
)
from trinat.segmentation.inference.checks.limits import Limits


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
