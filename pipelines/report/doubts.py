"""Why a structure of a scan is doubtful, in words.

Imports no torch: the command line has it at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Grades of structures that need a reason.
DOUBTFUL = ("reject", "look")


def doubt_about(name: str, result: Mapping[str, Any]) -> str:
    """Why a structure has the grade look or reject; "" where it has neither.

    `result` is the scan's in the ledger: a reason of the scan that names the structure, else what
    its own grade rests on.
    """
    if result.get("structure_grades", {}).get(name) not in DOUBTFUL:
        return ""
    if not result["volumes_mm3"].get(name):
        return "not found"
    naming = [reason for reason in result.get("reasons", ()) if name in reason]
    if naming:
        return "; ".join(naming)
    agreement = result.get("agreement", {}).get(name)
    if agreement is None:
        return "a reason above is about it"
    return f"views agree by {agreement:.2f} only"
