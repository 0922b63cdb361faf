"""The smallest scheme with sides.

Background, a left and a right structure, and one without sides.
"""

from __future__ import annotations

from trinat.segmentation.labels.label import Label
from trinat.segmentation.labels.scheme import LabelScheme


def label(index: int, name: str, partner: int | None = None, side=None) -> Label:
    return Label(index, name, index, partner, (0, 0, 0), name, "g", side)


# Merged classes: 0, 1, 2.
SCHEME = LabelScheme(
    "four",
    (
        label(0, "background"),
        label(1, "Left-A", 2, "left"),
        label(2, "Right-A", 1, "right"),
        label(3, "B"),
    ),
)
