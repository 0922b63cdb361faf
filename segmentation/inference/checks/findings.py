"""Findings of checks, and the grade that follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trinat.segmentation.inference.checks.limits import GradeName, Pair


@dataclass(frozen=True)
class Finding:
    """A problem that a check found: a reason to look at a scan, or to reject it.

    `rejects` is True if the scan is rejected, False if a person should look at it. `structures` are
    the names of the affected structures, which get at least the grade look.
    """

    rejects: bool
    reason: str
    structures: tuple[str, ...] = ()


def grade_findings(findings: Iterable[Finding]) -> tuple[GradeName, tuple[str, ...]]:
    """Return the grade that follows from some findings, and all reasons, rejecting ones first.

    A finding that rejects makes the grade reject, any other finding makes it look. Without findings
    it is pass.
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
    """Return a finding if a value is below the first limit: [finding], otherwise [].

    The finding is a reason to look at the scan, or to reject it if the value is below the second
    limit, too.
    """
    if value >= limits[0]:
        return []
    return [Finding(value < limits[1], reason)]


def above(
    value: float, limits: Pair, reason: str, structures: tuple[str, ...] = ()
) -> list[Finding]:
    """Return a finding if a value is above the first limit: [finding], otherwise [].

    The finding is a reason to look at the scan, or to reject it if the value is above the second
    limit, too. `structures` are the names of the affected structures.
    """
    if value <= limits[0]:
        return []
    return [Finding(value > limits[1], reason, structures)]
