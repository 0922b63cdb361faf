"""Text that people read: counts with their nouns."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 scan" or "2 scans"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}s"
