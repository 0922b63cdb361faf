"""Truths that are drawn on some slices alone, every tenth say, and nowhere between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DrawnSlices", "drawn_slices"]

Indices = NDArray[np.uint8]
Spacing = tuple[float, float, float]

# So few lone slices can also be a small structure whole; with so many structures they cannot.
_FEW_SLICES = 3
_FEW_STRUCTURES = 3


@dataclass(frozen=True, eq=False)
class DrawnSlices:
    """The slices of a map that hold labels, no two of them neighbours."""

    axis: int
    places: NDArray[np.intp]
    thickness_mm: float  # from one to the next, as a rule
    total: int

    @property
    def note(self) -> str:
        drawn = "a single slice" if len(self.places) == 1 else f"{len(self.places)} slices"
        where = ("first", "second", "third")[self.axis]
        return (
            f"the truth is labelled on {drawn} of {self.total} along its {where} axis: "
            f"measured on these alone, as {self.thickness_mm:.3g} mm thick"
        )

    def alone(self, labels: Indices) -> Indices:
        """The drawn slices side by side, as a map of thick slices."""
        return labels.take(self.places, axis=self.axis)

    def blank_between(self, labels: Indices) -> Indices:
        """The whole map with background on all other slices."""
        blank = np.zeros_like(labels)
        chosen: tuple[Any, ...] = (slice(None),) * self.axis + (self.places,)
        blank[chosen] = labels[chosen]
        return blank

    def spacing_mm(self, spacing_mm: Spacing) -> Spacing:
        """That of the map of thick slices."""
        x, y, z = (
            self.thickness_mm if axis == self.axis else step for axis, step in enumerate(spacing_mm)
        )
        return x, y, z


def drawn_slices(truth: Indices, spacing_mm: Spacing) -> DrawnSlices | None:
    """The labelled slices of a truth that is drawn on single ones alone; None for a whole one."""
    for axis in range(3):
        others = tuple({0, 1, 2} - {axis})
        places = np.flatnonzero(truth.any(axis=others))
        steps = np.diff(places)
        if truth.shape[axis] == 1 or not len(places) or (steps == 1).any():
            continue
        structures = np.count_nonzero(np.bincount(truth.ravel(), minlength=2)[1:])
        if len(places) < _FEW_SLICES and structures < _FEW_STRUCTURES:
            continue
        step = float(np.median(steps)) if len(steps) else 1.0
        return DrawnSlices(axis, places, step * spacing_mm[axis], truth.shape[axis])
    return None
