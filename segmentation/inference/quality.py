"""A grade for each segmentation: pass, look or fail, by stated limits and with the reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from segmentation.inference.segmentation import Segmentation
from segmentation.labels import LabelScheme

__all__ = ["LIMITS", "Grade", "Limits", "grade", "total_brain_mm3"]

# Fluid is no brain tissue.
_NO_TISSUE = frozenset({"background", "ventricles", "csf"})
# Agreement on specks says little.
_ENOUGH_MM3 = 100.0


@dataclass(frozen=True)
class Limits:
    """Beyond the first of each pair a person should look; beyond the second it has failed."""

    # Mean over structures of the mean Dice between views.
    agreement: tuple[float, float] = (0.65, 0.45)
    # Adults' brains have 0.85 to 1.8 litres; half a head, or no head, has not.
    smallest_brain_mm3: tuple[float, float] = (8.0e5, 5.0e5)
    largest_brain_mm3: tuple[float, float] = (1.9e6, 2.4e6)
    # The smaller of left and right of all tissue, of the larger.
    symmetry: tuple[float, float] = (0.85, 0.65)
    # Structures that the model knows and did not find at all.
    missing: tuple[int, int] = (1, 6)


LIMITS = Limits()


@dataclass(frozen=True)
class Grade:
    name: Literal["pass", "look", "fail"]
    reasons: tuple[str, ...]


def grade(found: Segmentation, limits: Limits = LIMITS) -> Grade:
    """Judge one segmentation by what can be known without a truth."""
    volumes = found.volumes_mm3
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
    left, right = (_side_mm3(found.scheme, volumes, side) for side in ("left", "right"))
    if max(left, right) > 0:
        ratio = min(left, right) / max(left, right)
        check(ratio, limits.symmetry, f"one side has {ratio:.0%} of the other", least=True)
    absent = [name for name, volume in volumes.items() if volume == 0]
    if len(absent) >= limits.missing[0]:
        named = ", ".join(absent[:3]) + (" ..." if len(absent) > 3 else "")
        problems.append((len(absent) >= limits.missing[1], f"not found: {named}"))
    reasons = tuple(reason for _, reason in sorted(problems, key=lambda problem: not problem[0]))
    if any(failed for failed, _ in problems):
        return Grade("fail", reasons)
    return Grade("look" if problems else "pass", reasons)


def mean_agreement(found: Segmentation) -> float | None:
    """Mean Dice between views over structures large enough to compare; None with one view."""
    if found.agreement is None:
        return None
    volumes = found.volumes_mm3
    values = [
        found.agreement[label.index]
        for label in found.scheme.labels
        if volumes.get(label.name, 0) >= _ENOUGH_MM3 and np.isfinite(found.agreement[label.index])
    ]
    return float(np.mean(values)) if values else 0.0


def total_brain_mm3(scheme: LabelScheme, volumes: Mapping[str, float]) -> float:
    """All tissue: every structure but ventricles and other fluid."""
    return sum(
        volumes.get(label.name, 0.0) for label in scheme.labels if label.group not in _NO_TISSUE
    )


def _side_mm3(scheme: LabelScheme, volumes: Mapping[str, float], side: str) -> float:
    return sum(volumes.get(label.name, 0.0) for label in scheme.labels if label.side == side)
