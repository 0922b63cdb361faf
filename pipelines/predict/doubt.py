"""How urgently a scan needs a look: by its grade, then by the agreement between views."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest

from trinat.pipelines.predict.entry import Entry
from trinat.pipelines.predict.outputs import MOST_SHOWN

# The most urgent first.
GRADES = ("failed", "reject", "look", "pass")


def grade_of(entry: Entry) -> str:
    """The grade of a scan; where it has none, the status of its entry."""
    return entry.result.get("grade") or entry.status


def why_of(entry: Entry) -> str:
    """The reasons for a scan's grade; where there are none, for the status of its entry."""
    return "; ".join(entry.result.get("reasons", ())) or entry.reason


def doubt_of(entry: Entry) -> tuple[int, float, str]:
    """A key to sort scans by, the most doubtful first.

    In the order of grades, then of agreement between views, then of names.
    """
    grade = grade_of(entry)
    urgency = GRADES.index(grade) if grade in GRADES else len(GRADES)
    agreement = entry.result.get("mean_agreement")
    if agreement is None:
        agreement = 1.0
    return urgency, agreement, entry.case


def most_doubtful(entries: Iterable[Entry]) -> list[Entry]:
    """The scans of which the page has slices, the most doubtful first."""
    done = (entry for entry in entries if entry.status == "done")
    return nsmallest(MOST_SHOWN, done, key=doubt_of)
