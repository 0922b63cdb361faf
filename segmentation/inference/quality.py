"""Grades of a segmentation and its structures: pass, look or reject, by limits, with reasons.

How much the views must agree is a matter of the model: its own limits stand in its model.yaml, and
`trinat calibrate` finds them (docs/quality.md). What a whole head is like is the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from segmentation.inference.segmentation import Segmentation
from segmentation.labels.scheme import LabelScheme
from segmentation.models.model_info import ModelInfo

GradeName = Literal["pass", "look", "reject"]

# Fluid is no brain tissue.
_NO_TISSUE = frozenset({"background", "ventricles", "csf"})
# Agreement on specks says little.
ENOUGH_MM3 = 100.0
_NAMED = 3


@dataclass(frozen=True)
class Limits:
    """Beyond the first of each pair a person should look; beyond the second it is rejected."""

    # Mean Dice between views, of a structure and in the mean over structures; for models that
    # have not been calibrated.
    agreement: tuple[float, float] = (0.75, 0.55)
    # Adults' brains have 0.85 to 1.8 litres; half a head, or no head, has not.
    smallest_brain_mm3: tuple[float, float] = (8.0e5, 5.0e5)
    largest_brain_mm3: tuple[float, float] = (1.9e6, 2.4e6)
    # The smaller of left and right of all tissue, of the larger.
    symmetry: tuple[float, float] = (0.85, 0.65)
    # Brightness of white matter, of that of cortex: T1 has 1.15 to 1.6, T2 below 1.
    contrast: tuple[float, float] = (1.08, 1.0)
    # Structures that the model knows and did not find at all.
    missing: tuple[int, int] = (1, 6)
    # Share of the structures that are rejected.
    rejected: tuple[float, float] = (0.0, 0.25)


LIMITS = Limits()


@dataclass(frozen=True)
class Grade:
    name: GradeName
    reasons: tuple[str, ...]
    # Without those that nothing is known of: with one view there is no agreement.
    structures: Mapping[str, GradeName] = field(default_factory=dict)


def limits_of(model: ModelInfo) -> Limits:
    """The limits that hold for what a model segments."""
    return replace(LIMITS, agreement=model.quality.agreement) if model.quality else LIMITS


def grade(found: Segmentation, limits: Limits = LIMITS) -> Grade:
    """Judge one segmentation by what can be known without a truth."""
    volumes = found.volumes_mm3
    structures = _grade_structures(found, volumes, limits.agreement)
    problems: list[tuple[bool, str]] = []

    def check(value: float, bounds: tuple[float, float], what: str, *, least: bool) -> None:
        sign = 1 if least else -1
        if sign * value < sign * bounds[0]:
            problems.append((sign * value < sign * bounds[1], what))

    agreement = mean_agreement(found)
    if agreement is not None:
        check(agreement, limits.agreement, f"views agree by {agreement:.2f} only", least=True)
    brain = total_brain_mm3(found.scheme, volumes)
    check(brain, limits.smallest_brain_mm3, f"brain of {brain / 1e3:.0f} ml only", least=True)
    check(brain, limits.largest_brain_mm3, f"brain of {brain / 1e3:.0f} ml", least=False)
    left, right = (
        sum(
            volumes.get(label.name, 0.0)
            for label in found.scheme.labels
            if label.side == side and label.group not in _NO_TISSUE
        )
        for side in ("left", "right")
    )
    if max(left, right) > 0:
        ratio = min(left, right) / max(left, right)
        check(ratio, limits.symmetry, f"one side has {ratio:.0%} of the other", least=True)
    contrast = tissue_contrast(found)
    if contrast is not None:
        unlike = f"white matter {contrast:.2f} times as bright as cortex: not T1-weighted?"
        check(contrast, limits.contrast, unlike, least=True)
    absent = [name for name, volume in volumes.items() if volume == 0]
    if len(absent) >= limits.missing[0]:
        problems.append((len(absent) >= limits.missing[1], f"not found: {_some(absent)}"))
    rejected = [name for name, verdict in structures.items() if verdict == "reject"]
    if structures:
        named = _some([name for name in rejected if name not in absent])
        what = f"views disagree on {named}" if named else f"{len(rejected)} structures rejected"
        check(len(rejected) / len(structures), limits.rejected, what, least=False)
    reasons = tuple(reason for _, reason in sorted(problems, key=lambda problem: not problem[0]))
    if any(rejects for rejects, _ in problems):
        return Grade("reject", reasons, structures)
    return Grade("look" if problems else "pass", reasons, structures)


def mean_agreement(found: Segmentation) -> float | None:
    """Mean Dice between views over structures large enough to compare; None with one view."""
    if found.agreement is None:
        return None
    volumes = found.volumes_mm3
    values = [
        found.agreement[label.index]
        for label in found.scheme.labels
        if volumes.get(label.name, 0) >= ENOUGH_MM3 and np.isfinite(found.agreement[label.index])
    ]
    return float(np.mean(values)) if values else 0.0


def tissue_contrast(found: Segmentation) -> float | None:
    """Median brightness of white matter, of that of cortex; None where there is too little."""
    white, cortex = (
        found.image.data[
            np.isin(found.working.data, [k.index for k in found.scheme.labels if k.group in groups])
        ]
        for groups in (("white-matter",), ("cortical", "grey-matter"))
    )
    if min(len(white), len(cortex)) < ENOUGH_MM3:
        return None
    return float(np.median(white) / max(np.median(cortex), 1e-6))


def total_brain_mm3(scheme: LabelScheme, volumes: Mapping[str, float]) -> float:
    """All tissue: every structure but ventricles and other fluid."""
    return sum(
        volumes.get(label.name, 0.0) for label in scheme.labels if label.group not in _NO_TISSUE
    )


def _grade_structures(
    found: Segmentation, volumes: Mapping[str, float], limits: tuple[float, float]
) -> dict[str, GradeName]:
    """What is not there is rejected; so is what its views do not agree on."""
    grades: dict[str, GradeName] = {}
    for label in found.scheme.labels:
        if label.name not in volumes:
            continue
        if volumes[label.name] == 0:
            grades[label.name] = "reject"
        elif found.agreement is not None:
            # No view by itself has what their sum has: that is no agreement.
            value = float(np.nan_to_num(found.agreement[label.index]))
            grades[label.name] = (
                "reject" if value < limits[1] else "look" if value < limits[0] else "pass"
            )
    return grades


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
