"""Whether the brain is as large as brains are, its voxels small enough, and all of it found."""

from __future__ import annotations

from collections.abc import Mapping

from trinat.segmentation.inference.checks.evidence import (
    NO_TISSUE,
    Evidence,
    Finding,
    above,
    below,
    some,
)
from trinat.segmentation.inference.checks.limits import Limits
from trinat.segmentation.labels.scheme import LabelScheme


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
