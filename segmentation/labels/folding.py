"""Label numbers to class indices: folding tables, and which side a sideless voxel joins."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import LabelError
from trinat.segmentation.io.files import read_rows

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


# Numberings that ship beside FreeSurfer's, each as configs/labels/<name>-folding.tsv.
FREESURFER = "freesurfer"
SHIPPED_FOLDINGS = (FREESURFER, "neuromorphometrics")
_COLUMNS = ("first", "last", "name", "target")

Targets = Mapping[
    int, tuple[int, ...]
]  # number -> (target,), or (left, right) to join the nearest


@dataclass(frozen=True)
class FoldingTable:
    """A numbering other than FreeSurfer's, and the FreeSurfer number that each number becomes.

    It stands alone: a number has the table's meaning, whatever it means to FreeSurfer.
    """

    name: str
    targets: Targets


@cache
def folding_table() -> Targets:
    """FreeSurfer's numbers outside the schemes, by its number."""
    return _shipped_targets(FREESURFER)


def load_folding(name_or_path: str | Path) -> FoldingTable | None:
    """A shipped table by its name, or a table of the user's; None for FreeSurfer's own numbers."""
    # A shipped name wins over a file of that name, as for schemes.
    if str(name_or_path) == FREESURFER:
        return None
    if str(name_or_path) in SHIPPED_FOLDINGS:
        return FoldingTable(str(name_or_path), _shipped_targets(str(name_or_path)))
    path = Path(name_or_path)
    if not path.is_file():
        raise LabelError(
            "no such folding table",
            where=path,
            remedy=f"give a TSV file or one of {', '.join(SHIPPED_FOLDINGS)}",
        )
    return FoldingTable(path.stem, _read_targets(path))


def _shipped_targets(name: str) -> Targets:
    with resources.as_file(
        resources.files("trinat.configs") / "labels" / f"{name}-folding.tsv"
    ) as path:
        return _read_targets(path)


def _read_targets(path: Path) -> Targets:
    """Columns first, last, target, and name for people; each number stands in one row."""
    targets: dict[int, tuple[int, ...]] = {}
    for line, row in enumerate(
        read_rows(path, required=("first", "last", "target")), start=2
    ):
        where = f"{path}, line {line}"
        if unknown := [column for column in row if column not in _COLUMNS]:
            raise LabelError(
                f"has an unknown column {unknown[0]!r}",
                where=path,
                remedy=f"columns: {', '.join(_COLUMNS)}",
            )
        first = _number(row["first"], where)
        last = _number(row["last"], where)
        if last < first:
            raise LabelError(f"numbers {first} to {last} run backwards", where=where)
        target = _target(row["target"], where)
        for number in range(first, last + 1):
            if number in targets:
                raise LabelError(f"{number} is in two rows", where=where)
            targets[number] = target
    if not targets:
        raise LabelError("has no rows", where=path)
    return targets


def _target(text: str, where: str) -> tuple[int, ...]:
    """(4,) of "4"; (2, 41) of "nearest 2 41"."""
    words = text.split()
    if len(words) == 1:
        return (_number(words[0], where),)
    if len(words) == 3 and words[0] == "nearest":
        return (_number(words[1], where), _number(words[2], where))
    raise LabelError(
        f"target {text!r} is not readable",
        where=where,
        remedy="give a FreeSurfer number, or 'nearest LEFT RIGHT'",
    )


def _number(text: str, where: str) -> int:
    if not re.fullmatch("[0-9]{1,7}", text) or int(text) >= _MAX_NUMBER:
        raise LabelError(
            f"{text!r} is no label number", where=where, remedy="numbers start at 0"
        )
    return int(text)


@dataclass(frozen=True, eq=False)
class Folding:
    """Which class each label number becomes in one scheme."""

    scheme: str
    numbering: str  # the folding table's name; empty for FreeSurfer's own numbers
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
        fold: FoldingTable | None = None,
    ) -> Folding:
        """`classes`: number -> index. A scheme's own numbers go before FreeSurfer's table.

        With `fold` the numbers are those of that table, and FreeSurfer's only what they become.
        """
        for number in (*extra, *ignore):
            if not 0 <= number < _MAX_NUMBER:
                raise LabelError(
                    f"{number} is no label number", remedy="numbers start at 0"
                )
        if both := sorted(set(extra) & set(ignore)):
            raise LabelError(f"{both} are both mapped and ignored", remedy="choose one")
        freesurfer = {**folding_table(), **{number: (number,) for number in classes}}
        targets = dict(freesurfer) if fold is None else _through(fold, freesurfer)
        for number, target in extra.items():
            if target not in freesurfer:
                raise LabelError(
                    f"{number} is mapped to {target}, which {scheme} does not know",
                    remedy="map it to a FreeSurfer number of the scheme",
                )
        mapped = {number: freesurfer[target] for number, target in extra.items()}
        # Which voxels make a side: what the caller makes background counts too, anatomy does not
        # move.
        anatomy = targets | {
            n: target for n, target in mapped.items() if target != (0,)
        }
        targets = targets | mapped | dict.fromkeys(ignore, (0,))

        table = np.full(max(targets) + 1, _UNKNOWN, np.uint8)
        sideless: dict[tuple[int, ...], list[int]] = {}
        for number, candidates in targets.items():
            indices = [classes.get(candidate, _UNKNOWN) for candidate in candidates]
            table[number] = indices[0] if len(set(indices)) == 1 else _SIDELESS
            if table[number] == _SIDELESS:
                sideless.setdefault(candidates, []).append(number)
        kinds = []
        for (left, right), numbers in sideless.items():
            sides = _folding_into(left, anatomy), _folding_into(right, anatomy)
            if fold is None:
                # FreeSurfer's number of a side is that side even where the scheme lacks it. In
                # another numbering the same number names something else.
                sides = _with(sides[0], left), _with(sides[1], right)
            of_sides = classes.get(left, _UNKNOWN), classes.get(right, _UNKNOWN)
            kinds.append(_Sideless(tuple(numbers), (left, right), of_sides, sides))
        return cls(scheme, "" if fold is None else fold.name, table, tuple(kinds))

    def apply(
        self,
        array: NDArray[Any],
        spacing_mm: tuple[float, float, float],
        where: str | Path | None,
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
        if not len(points):
            return  # The sideless voxels of this map are of another kind.
        left, right = (
            _distances_mm(points, _select(array, numbers, size), spacing_mm)
            for numbers in kind.sides
        )
        if np.isinf(left).all() and np.isinf(right).all():
            left_target, right_target = kind.targets
            raise LabelError(
                f"{len(points)} voxels belong to the nearer of FreeSurfer's {left_target} and "
                f"{right_target}, and neither is there",
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
        shown = ", ".join(listed[:20]) + (
            f" and {len(listed) - 20} more" if listed[20:] else ""
        )
        what = f"holds label numbers that {self.scheme} does not know"
        remedy = "map them to known numbers, or ignore them"
        if self.numbering:
            what = f"holds label numbers that {self.numbering} does not fold into {self.scheme}"
            remedy = "add them to the table, or ignore them"
        if len(listed) > _MANY:
            remedy = "give a label map, not a scan"
        return LabelError(f"{what}: {shown}", where=where, remedy=remedy)


@dataclass(frozen=True)
class _Sideless:
    numbers: tuple[int, ...]
    targets: tuple[int, int]
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


def _through(fold: FoldingTable, freesurfer: Targets) -> dict[int, tuple[int, ...]]:
    """What a table's numbers become: what FreeSurfer's numbers become that they are folded into."""
    targets: dict[int, tuple[int, ...]] = {0: (0,)}
    for number, target in fold.targets.items():
        if len(target) == 1:
            targets[number] = freesurfer.get(target[0], target)
            continue
        sides = []
        for side in target:
            folded = freesurfer.get(side, (side,))
            sides.append(folded[0] if len(folded) == 1 else side)
        targets[number] = tuple(sides)
    return targets


def _folding_into(number: int, targets: Targets) -> tuple[int, ...]:
    return tuple(sorted(n for n, target in targets.items() if target == (number,)))


def _with(numbers: tuple[int, ...], number: int) -> tuple[int, ...]:
    return tuple(sorted({*numbers, number}))


def _select(
    array: NDArray[Any], numbers: tuple[int, ...], size: int
) -> NDArray[np.bool_]:
    """Voxels that hold one of `numbers`; every voxel is below `size`."""
    flags = np.zeros(size, np.bool_)
    flags[[number for number in numbers if number < size]] = True
    selected: NDArray[np.bool_] = flags[array]
    return selected


def _distances_mm(
    points: NDArray[np.int64],
    mask: NDArray[np.bool_],
    spacing_mm: tuple[float, float, float],
) -> NDArray[np.float64]:
    """Distance from each point outside `mask` to its nearest voxel; infinite if it has none."""
    box = tuple(
        slice(lines.min(), lines.max() + 1) if len(lines) else slice(0)
        for lines in (
            np.flatnonzero(mask.any(axis=tuple({0, 1, 2} - {axis})))
            for axis in range(mask.ndim)
        )
    )
    inside = mask[box]
    if not inside.size:
        return np.full(len(points), np.inf)
    # Imported here: class names and numbers, all that training wants, need no SciPy.
    from scipy.spatial import cKDTree

    # The nearest voxel always lies on the mask's surface, which is a tenth of it.
    surface = (
        np.argwhere(outer_rim(~np.pad(inside, 1))) - 1 + [lines.start for lines in box]
    )
    spacing = np.asarray(spacing_mm)
    distances: NDArray[np.float64] = cKDTree(surface * spacing).query(points * spacing)[
        0
    ]
    return distances
