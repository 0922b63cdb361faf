"""Findings of checks, and the grade that follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trinat.segmentation.inference.checks.limits import GradeName, Pair


@dataclass(frozen=True)
class Finding:
    """A problem: the reason to look at a scan or to reject it.

    `structures` are the affected ones, which need a look, too.
    """

    rejects: bool
    reason: str
    structures: tuple[str, ...] = ()


def grade_findings(findings: Iterable[Finding]) -> tuple[GradeName, tuple[str, ...]]:
    """Return the grade of what was found, and all reasons, those that reject first.

    A finding that rejects makes the grade a reject, any other one makes it a look.
    """
    rejecting: list[str] = []
    others: list[str] = []
    for finding in findings:
        (rejecting if finding.rejects else others).append(finding.reason)
    grade: GradeName = "pass"
    if rejecting:
        grade = "reject"
    elif others:
        grade = "look"
    return grade, (*rejecting, *others)


def below(value: float, limits: Pair, reason: str) -> list[Finding]:
    """Return a finding if a value is below the first limit; it rejects below the second."""
    if value >= limits[0]:
        return []
    return [Finding(value < limits[1], reason)]


def above(value: float, limits: Pair, reason: str) -> list[Finding]:
    """Return a finding if a value is above the first limit; it rejects above the second."""
    if value <= limits[0]:
        return []
    return [Finding(value > limits[1], reason)]
