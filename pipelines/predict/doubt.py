"""Which results to doubt: how urgently a scan needs a look, and what is in no number of a group."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from heapq import nsmallest
from typing import Any

from trinat.pipelines.predict.entry import Entry
from trinat.pipelines.predict.outputs import MOST_SHOWN
from trinat.segmentation.data.sources.base import natural_order

# The most urgent first. A result without a grade is looked at before those that pass.
GRADES = ("failed", "reject", "look", "ungraded", "pass")
# Results of these grades are in no mean, test, norm, adjustment or change of a group.
EXCLUDED_GRADES = ("reject",)


def grade_of(entry: Entry) -> str:
    """The grade of a scan; where it has none, the status of its entry."""
    return entry.result.get("grade") or entry.status


def why_of(entry: Entry) -> str:
    """The reasons for a scan's grade; where there are none, for the status of its entry."""
    return "; ".join(entry.result.get("reasons", ())) or entry.reason


def doubt_of(entry: Entry) -> tuple[int, float, Any]:
    """A key to sort scans by, the most doubtful first, in tables, pages and `trinat view`.

    In the order of grades, then of agreement between views, then of names.
    """
    grade = grade_of(entry)
    if grade not in GRADES:
        grade = "ungraded"
    urgency = GRADES.index(grade)
    agreement = entry.result.get("mean_agreement")
    if agreement is None:
        agreement = 1.0
    return urgency, agreement, natural_order(entry.case)


def most_doubtful(entries: Iterable[Entry]) -> list[Entry]:
    """The scans of which the page has slices, the most doubtful first."""
    done = (entry for entry in entries if entry.status == "done")
    return nsmallest(MOST_SHOWN, done, key=doubt_of)


def why_left_out(result: Mapping[str, Any], excluded: Collection[str]) -> str:
    """Why a scan is in no number of its group; "" where it is in them.

    `result` is that of its entry, `excluded` the grades that are left out.
    """
    grade = result.get("grade", "")
    if grade not in excluded:
        return ""
    reasons = "; ".join(result.get("reasons", ()))
    return f"graded {grade}: {reasons}" if reasons else f"graded {grade}"


def structures_left_out(
    result: Mapping[str, Any], excluded: Collection[str]
) -> dict[str, str]:
    """Structures of a scan that are in no number of its group by their own grade, and which it is.

    `result` is that of the scan's entry, `excluded` the grades that are left out.
    """
    grades = result.get("structure_grades", {})
    return {name: grade for name, grade in grades.items() if grade in excluded}


def counted_volumes(
    result: Mapping[str, Any], excluded: Collection[str] = EXCLUDED_GRADES
) -> dict[str, float]:
    """The volumes of a scan in mm³ that others are held against: none of what is left out."""
    if why_left_out(result, excluded):
        return {}
    left_out = structures_left_out(result, excluded)
    volumes_mm3 = result.get("volumes_mm3", {})
    return {name: mm3 for name, mm3 in volumes_mm3.items() if name not in left_out}
