"""FreeSurfer numbers to class indices: the folding table, and which side a sideless voxel joins."""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import LabelError

# Indices are uint8; the two values above the last class mark voxels with no class (yet).
MAX_CLASSES = 254
_SIDELESS, _UNKNOWN = 254, 255
_SAME_MM = 1e-6  # distances that differ by less are equal
_MANY = 200  # an atlas has fewer numbers that are not known, a scan more
_MAX_NUMBER = 2**20  # bounds the lookup table; FreeSurfer's own numbers end near 15,000

# How label maps for generation number what FreeSurfer does not. 136 and 163 line the ventricles,
# 137 and 164 their inferior horns; 25 and 57 are lesions in white matter.
GENERATION_FOLDED = {136: 4, 163: 43, 137: 5, 164: 44, 25: 2, 57: 41}
# There, 24 is all CSF around the brain and in the neck, not FreeSurfer's small 24.
GENERATION_SURROUNDINGS = 24
GENERATION_FIRST_OUTSIDE = 500  # from here on: skull, scalp, eyes and so on
# Ours: the part of 24 that lies in the neck, outside the skull.
GENERATION_NECK_FLUID = 599
# Inside the skull, and neither brain nor ventricle: vessels, optic chiasm, fifth ventricle.
GENERATION_BETWEEN = (30, 62, 72, 85)


@cache
def folding_table() -> Mapping[int, tuple[int, ...]]:
    """FreeSurfer number -> (the number it folds into,), or (left, right) to join the nearest."""
    table: dict[int, tuple[int, ...]] = {}
    text = (resources.files("trinat.configs") / "labels" / "freesurfer-folding.tsv").read_text(
        "utf-8"
    )
    for row in csv.DictReader(text.splitlines(), delimiter="\t"):
        targets = tuple(int(word) for word in row["target"].split() if word != "nearest")
        for number in range(int(row["first"]), int(row["last"]) + 1):
            table[number] = targets
    return table


@dataclass(frozen=True, eq=False)
class Folding:
    """Which class each FreeSurfer number becomes in one scheme."""

    scheme: str
    table: NDArray[np.uint8]  # class index by number, up to the largest known number
    # Per kind of sideless number: its class on the left and on the right, and the numbers whose
    # voxels make that side. Empty where both sides are one class.
    sideless: tuple[_Sideless, ...]

    @classmethod
    def build(
        cls,
        scheme: str,
        classes: Mapping[int, int],
        extra: Mapping[int, int],
        ignore: Collection[int],
    ) -> Folding:
        """`classes`: number -> index. A scheme's own numbers go before the folding table."""
        for number in (*extra, *ignore):
            if not 0 <= number < _MAX_NUMBER:
                raise LabelError(f"{number} is no label number", remedy="numbers start at 0")
        if both := sorted(set(extra) & set(ignore)):
            raise LabelError(f"{both} are both mapped and ignored", remedy="choose one")
        targets = {**folding_table(), **{number: (number,) for number in classes}}
        for number, target in extra.items():
            if target not in targets:
                raise LabelError(
                    f"{number} is mapped to {target}, which {scheme} does not know",
                    remedy="map it to a FreeSurfer number of the scheme",
                )
        targets |= {number: targets[target] for number, target in extra.items()}
        targets |= dict.fromkeys(ignore, (0,))

        table = np.full(max(targets) + 1, _UNKNOWN, np.uint8)
        sideless: dict[tuple[int, ...], list[int]] = {}
        for number, candidates in targets.items():
            indices = [classes.get(candidate, _UNKNOWN) for candidate in candidates]
            table[number] = indices[0] if len(set(indices)) == 1 else _SIDELESS
            if table[number] == _SIDELESS:
                sideless.setdefault(candidates, []).append(number)
        kinds = []
        for (left, right), numbers in sideless.items():
            sides = _folding_into(left, targets), _folding_into(right, targets)
            of_sides = classes.get(left, _UNKNOWN), classes.get(right, _UNKNOWN)
            kinds.append(_Sideless(tuple(numbers), of_sides, sides))
        return cls(scheme, table, tuple(kinds))

    def apply(
        self, array: NDArray[Any], spacing_mm: tuple[float, float, float], where: str | Path | None
    ) -> NDArray[np.uint8]:
        """Class index of each voxel, in the memory order of `array`."""
        if array.size and (array.min() < 0 or array.max() >= len(self.table)):
            raise self._unknown(array, where)
        indices: NDArray[np.uint8] = self.table[array]
        for kind in self.sideless:
            self._join_nearest(kind, array, indices, spacing_mm, where)
        if (indices == _UNKNOWN).any():
            raise self._unknown(array, where)
        return indices

    def _join_nearest(
        self,
        kind: _Sideless,
        array: NDArray[Any],
        indices: NDArray[np.uint8],
        spacing_mm: tuple[float, float, float],
        where: str | Path | None,
    ) -> None:
        if not (indices == _SIDELESS).any():
            return
        size = len(self.table)
        points = np.argwhere(_select(array, kind.numbers, size))
        left, right = (
            _distances_mm(points, _select(array, numbers, size), spacing_mm)
            for numbers in kind.sides
        )
        if np.isinf(left).all() and np.isinf(right).all():
            raise LabelError(
                f"{len(points)} voxels belong to the nearest white matter, and there is none",
                where=where,
                remedy=f"map or ignore the numbers {', '.join(map(str, kind.numbers))}",
            )
        # As where labels are resampled, ties alternate from voxel to voxel: neither side gains.
        is_even = points.sum(axis=1) % 2 == 0
        # Two infinite distances have no difference. Rounding must not decide a tie.
        with np.errstate(invalid="ignore"):
            is_tie = np.abs(left - right) < _SAME_MM
        joins_left = np.where(is_tie, is_even, left < right)
        left_class, right_class = kind.classes
        chosen = np.where(joins_left, np.uint8(left_class), np.uint8(right_class))
        indices[tuple(points.T)] = chosen

    def _unknown(self, array: NDArray[Any], where: str | Path | None) -> LabelError:
        numbers, counts = np.unique(array, return_counts=True)
        listed = [
            f"{number} ({count} {'voxel' if count == 1 else 'voxels'})"
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
            if not 0 <= number < len(self.table) or self.table[number] == _UNKNOWN
        ]
        shown = ", ".join(listed[:20]) + (f" and {len(listed) - 20} more" if listed[20:] else "")
        remedy = "map them to known numbers, or ignore them"
        return LabelError(
            f"holds label numbers that {self.scheme} does not know: {shown}",
            where=where,
            remedy="give a label map, not a scan" if len(listed) > _MANY else remedy,
        )


@dataclass(frozen=True)
class _Sideless:
    numbers: tuple[int, ...]
    classes: tuple[int, int]
    sides: tuple[tuple[int, ...], tuple[int, ...]]


def outer_rim(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Voxels outside `mask` that share a face with it."""
    # Shifted slices take a twentieth of the time of scipy's binary_dilation, as long as both
    # arrays have one memory order.
    grown = mask.copy(order="K")
    for axis in range(mask.ndim):
        new, old = grown.swapaxes(0, axis), mask.swapaxes(0, axis)
        new[1:] |= old[:-1]
        new[:-1] |= old[1:]
    grown &= ~mask
    return grown


def _folding_into(number: int, targets: Mapping[int, tuple[int, ...]]) -> tuple[int, ...]:
    # The side's own number counts even where the caller ignores it: anatomy does not move.
    return tuple(sorted({number, *(n for n, target in targets.items() if target == (number,))}))


def _select(array: NDArray[Any], numbers: tuple[int, ...], size: int) -> NDArray[np.bool_]:
    """Voxels that hold one of `numbers`; every voxel is below `size`."""
    flags = np.zeros(size, np.bool_)
    flags[[number for number in numbers if number < size]] = True
    selected: NDArray[np.bool_] = flags[array]
    return selected


def _distances_mm(
    points: NDArray[np.int64], mask: NDArray[np.bool_], spacing_mm: tuple[float, float, float]
) -> NDArray[np.float64]:
    """Distance from each point outside `mask` to its nearest voxel; infinite if it has none."""
    box = tuple(
        slice(lines.min(), lines.max() + 1) if len(lines) else slice(0)
        for lines in (
            np.flatnonzero(mask.any(axis=tuple({0, 1, 2} - {axis}))) for axis in range(mask.ndim)
        )
    )
    inside = mask[box]
    if not inside.size:
        return np.full(len(points), np.inf)
    # Imported here: class names and numbers, all that training wants, need no SciPy.
    from scipy.spatial import cKDTree

    # The nearest voxel always lies on the mask's surface, which is a tenth of it.
    surface = np.argwhere(outer_rim(~np.pad(inside, 1))) - 1 + [lines.start for lines in box]
    spacing = np.asarray(spacing_mm)
    distances: NDArray[np.float64] = cKDTree(surface * spacing).query(points * spacing)[0]
    return distances
