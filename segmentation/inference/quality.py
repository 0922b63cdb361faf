"""Quality grades of a segmentation and its structures: pass, look or reject, with reasons.

Each check compares a value with a pair of limits, all of which are in `checks/limits.py`. Beyond
the first limit of a pair the scan has the grade look, beyond the second one it is rejected. A scan
is graded reject by any check of `CHECKS`, or if too many of its structures are rejected
(`_check_rejected_structures`).

The limits of the agreement between views depend on the model and are in its model.yaml
(docs/quality.md). All other limits are common to all models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trinat.segmentation.errors import some
from trinat.segmentation.inference.checks import anatomy, brightness
from trinat.segmentation.inference.checks.evidence import (
    ENOUGH_MM3,
    Evidence,
)
from trinat.segmentation.inference.checks.field import check_field_of_view
from trinat.segmentation.inference.checks.findings import (
    Finding,
    above,
    below,
    grade_findings,
)
from trinat.segmentation.inference.checks.lesions import check_lesions
from trinat.segmentation.inference.checks.limits import LIMITS, GradeName, Limits
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.models.model_info import ModelInfo

# A check returns its findings: reasons to look at the scan or to reject it. Most have at most one.
Check = Callable[[Evidence, Limits], list[Finding]]


@dataclass(frozen=True)
class Grade:
    """Grade of a scan with its reasons, and grades of its structures.

    `name` is pass, look or reject. `reasons` has the reasons to reject first. `structures` maps
    names of structures to their grades. With one view there is no agreement between views: then
    structures that were not found are rejected, those that a check names have the grade look, and
    all others are left out.
    """

    name: GradeName
    reasons: tuple[str, ...]
    structures: Mapping[str, GradeName] = field(default_factory=dict)


def limits_of(model: ModelInfo) -> Limits:
    """Return the limits by which results of a model are graded pass, look or reject.

    For a model for any contrast, white matter may be darker than cortex, and the surroundings of
    the brain may be as bright as cortex.
    """
    limits = LIMITS
    if model.quality is not None:
        limits = replace(limits, agreement=model.quality.agreement)
    if model.contrast == "any":
        limits = replace(limits, contrast=(0.0, 0.0), like_cortex=(1.0, 1.0))
    return limits


def grade(evidence: Evidence, limits: Limits = LIMITS) -> Grade:
    """Grade a segmentation by all checks, without a reference: pass, look or reject, with reasons.

    `evidence` holds the scan, its labels and their volumes. A finding of a check that rejects (a
    value beyond the second limit of its pair) makes the scan a reject, any other finding at least a
    look. Without findings it passes. A structure that a finding names gets at least a look.
    """
    structures = _grade_structures(evidence, limits.agreement)
    findings: list[Finding] = []
    for check in CHECKS:
        findings.extend(check(evidence, limits))
    findings.extend(_check_rejected_structures(evidence, structures, limits))
    for finding in findings:
        for name in finding.structures:
            # A structure that a check names is at least a look.
            if structures.get(name, "pass") == "pass":
                structures[name] = "look"
    verdict, reasons = grade_findings(findings)
    return Grade(verdict, reasons, structures)


def check_agreement(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Report that the views of the model (axial, coronal, sagittal) label the scan differently.

    The mean Dice between views is compared with the limits.
    """
    agreement = mean_agreement(evidence)
    if agreement is None:
        return []
    return below(agreement, limits.agreement, f"views agree by {agreement:.2f} only")


# All checks, in the order of their reasons. Comments name the limits that each check uses.
CHECKS: Sequence[Check] = (
    check_agreement,  # agreement
    check_field_of_view,  # cut_mm2
    anatomy.check_brain_size,  # smallest_brain_mm3, largest_brain_mm3
    anatomy.check_pieces,  # apart_mm3
    anatomy.check_surroundings,  # like_cortex: never rejects
    anatomy.check_symmetry,  # symmetry
    brightness.check_contrast,  # contrast
    anatomy.check_missing,  # missing
    anatomy.check_sides,  # sides, other_sides: never rejects
    check_lesions,  # lesion_mm3: never rejects
    brightness.check_continuity,  # jump, still: never rejects
    brightness.check_bands,  # bands
    brightness.check_edges,  # edges
    brightness.check_noise,  # noise
    brightness.check_saturation,  # saturated: never rejects
    anatomy.check_resolution,  # spacing_mm
)


def mean_agreement(found: Prediction | Evidence) -> float | None:
    """Return the mean Dice between views, averaged over structures large enough to compare.

    Views are the axial, coronal and sagittal predictions before fusion. None with one view; 0 if no
    structure is large enough.
    """
    if found.agreement is None:
        return None
    volumes = found.volumes_mm3
    values = []
    for label in found.scheme.labels:
        is_large = volumes.get(label.name, 0) >= ENOUGH_MM3
        value = found.agreement[label.index]
        if is_large and np.isfinite(value):
            values.append(value)
    if not values:
        return 0.0
    return float(np.mean(values))


def _grade_structures(
    evidence: Evidence, limits: tuple[float, float]
) -> dict[str, GradeName]:
    """Grade each predicted structure by the Dice between views: pass, look or reject, by name.

    `limits` are a pair: look below the first, reject below the second. Structures without a grade
    are left out.
    """
    grades: dict[str, GradeName] = {}
    for name, volume in evidence.volumes_mm3.items():
        agreement = None
        if evidence.agreement is not None:
            index = evidence.scheme.names.index(name)
            agreement = float(evidence.agreement[index])
        verdict = grade_structure(volume, agreement, limits)
        if verdict is not None:
            grades[name] = verdict
    return grades


def grade_structure(
    volume: float, agreement: float | None, limits: tuple[float, float]
) -> GradeName | None:
    """Return pass, look or reject for a structure: reject if it was not found, else by agreement.

    `volume` may have any unit; 0 means not found. `agreement` is the mean Dice between views, None
    with one view: then a structure that was found has no grade, which is None. `limits` are a pair:
    look below the first, reject below the second.
    """
    look_below, reject_below = limits
    if volume == 0:
        return "reject"
    if agreement is None:
        return None
    # NaN: the structure is in the fused labels, but no single view has it.
    agreement = float(np.nan_to_num(agreement))
    if agreement < reject_below:
        return "reject"
    if agreement < look_below:
        return "look"
    return "pass"


def _check_rejected_structures(
    evidence: Evidence, structures: Mapping[str, GradeName], limits: Limits
) -> list[Finding]:
    """Report that many of the structures in a scan are graded reject.

    `structures` has the grade of each structure (pass, look or reject) by name. Returns [] or one
    finding, which is a reason to look at the scan or to reject it. It names the rejected structures
    that were found, if there are any. Structures that were not found are named by another check.
    """
    if not structures:
        return []
    rejected = [name for name, verdict in structures.items() if verdict == "reject"]
    found = [name for name in rejected if evidence.volumes_mm3[name] > 0]
    reason = f"{len(rejected)} structures rejected"
    if found:
        reason = f"views disagree on {some(found)}"
    # Divide by all predicted structures, because with a single view only missing ones have a grade.
    share = len(rejected) / len(evidence.volumes_mm3)
    return above(share, limits.rejected, reason)
