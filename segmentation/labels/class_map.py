"""Mapping of label numbers to the classes of a scheme.

A voxel whose number has no side joins the side with the nearest voxel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import LabelError
from trinat.segmentation.labels.folding import (
    MAX_NUMBER,
    FoldingTable,
    Targets,
    freesurfer_targets,
)

# Indices are uint8; the two values above the last class mark voxels with no class (yet).
MAX_CLASSES = 254
_SIDELESS = 254
_UNKNOWN = 255
_BACKGROUND = (0,)
# More unknown numbers than this suggest that the file is a scan, not a label map.
_MANY = 200
# Number of unknown labels that a message lists.
_NAMED = 20
# Tolerance for equal distances.
_SAME_MM = 1e-6


@dataclass(frozen=True, eq=False)
class ClassMap:
    """The class of each label number in one scheme.

    `numbering` is the folding table's name, empty for FreeSurfer's own numbers. `table` holds the
    class index by number, up to the largest known number. `sideless` are the numbers that join the
    nearest of two classes.
    """

    scheme: str
    numbering: str
    table: NDArray[np.uint8]
    sideless: tuple[_SidelessNumbers, ...]

    @classmethod
    def build(
        cls,
        scheme: str,
        classes: Mapping[int, int],
        extra: Mapping[int, int],
        ignore: Collection[int],
        fold: FoldingTable | None = None,
    ) -> ClassMap:
        """Build a class map from `classes`: number -> index.

        A scheme's own numbers take precedence over FreeSurfer's table. With `fold` the numbers are
        those of that table, and FreeSurfer's only as its targets. `extra` maps numbers to
        FreeSurfer numbers, and those in `ignore` become background.
        """
        _check_own_rules(extra, ignore)
        freesurfer = freesurfer_targets(classes)
        targets = dict(freesurfer) if fold is None else _through(fold, freesurfer)
        # Voxels that define a side: numbers that the caller ignores still count, because anatomy
        # does not move.
        anatomy = dict(targets)
        for number, target in extra.items():
            if target not in freesurfer:
                raise LabelError(
                    f"{number} is mapped to {target}, which is not a label of {scheme}",
                    remedy="map it to a FreeSurfer number of the scheme",
                )
            targets[number] = freesurfer[target]
            if targets[number] != _BACKGROUND:
                anatomy[number] = targets[number]
        for number in ignore:
            targets[number] = _BACKGROUND
        table, open_numbers = _classes_of(targets, classes)
        # FreeSurfer's number of a side is that side even if the scheme lacks it. In another
        # numbering the same number means something else.
        sideless = _sideless(open_numbers, classes, anatomy, with_targets=fold is None)
        numbering = "" if fold is None else fold.name
        return cls(scheme, numbering, table, sideless)

    def apply(
        self,
        array: NDArray[Any],
        spacing_mm: tuple[float, float, float],
        where: str | Path | None,
    ) -> NDArray[np.uint8]:
        """Return the class index of each voxel, in the memory order of `array`.

        Raises a LabelError for unknown numbers; `where` names the file in it.
        """
        size = len(self.table)
        if array.size and (array.min() < 0 or array.max() >= size):
            raise self._unknown(array, where)
        indices: NDArray[np.uint8] = self.table[array]
        for kind in self.sideless:
            if not (indices == _SIDELESS).any():
                break
            _join_nearest(kind, array, indices, spacing_mm, size=size, where=where)
        if (indices == _UNKNOWN).any():
            raise self._unknown(array, where)
        return indices

    def _unknown(self, array: NDArray[Any], where: str | Path | None) -> LabelError:
        """Return the error for a map with unknown numbers; the first are named."""
        listed = []
        numbers, counts = np.unique(array, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            is_known = 0 <= number < len(self.table) and self.table[number] != _UNKNOWN
            if not is_known:
                voxels = "voxel" if count == 1 else "voxels"
                listed.append(f"{number} ({count} {voxels})")
        shown = ", ".join(listed[:_NAMED])
        if len(listed) > _NAMED:
            shown += f" and {len(listed) - _NAMED} more"
        what = f"has label numbers that are not in {self.scheme}"
        remedy = "map them to known numbers, or ignore them"
        if self.numbering:
            what = f"holds label numbers that {self.numbering} does not fold into {self.scheme}"
            remedy = "add them to the table, or ignore them"
        if len(listed) > _MANY:
            remedy = "give a label map, not a scan"
        return LabelError(f"{what}: {shown}", where=where, remedy=remedy)


def _check_own_rules(extra: Mapping[int, int], ignore: Collection[int]) -> None:
    """Refuse invalid label numbers, and numbers that are both mapped and ignored."""
    for number in (*extra, *ignore):
        if not 0 <= number < MAX_NUMBER:
            raise LabelError(
                f"{number} is no label number", remedy="numbers start at 0"
            )
    both = sorted(set(extra) & set(ignore))
    if both:
        raise LabelError(f"{both} are both mapped and ignored", remedy="choose one")


def _classes_of(
    targets: Targets, classes: Mapping[int, int]
) -> tuple[NDArray[np.uint8], dict[tuple[int, ...], list[int]]]:
    """Return the class by number, and by left and right target the numbers whose side is open.

    A number is open if its two targets are two classes; if both are one class, or neither is any,
    it is not.
    """
    table = np.full(max(targets) + 1, _UNKNOWN, np.uint8)
    open_numbers: dict[tuple[int, ...], list[int]] = {}
    for number, candidates in targets.items():
        indices = {classes.get(candidate, _UNKNOWN) for candidate in candidates}
        if len(indices) == 1:
            table[number] = indices.pop()
        else:
            table[number] = _SIDELESS
            open_numbers.setdefault(candidates, []).append(number)
    return table, open_numbers


def _sideless(
    open_numbers: Mapping[tuple[int, ...], list[int]],
    classes: Mapping[int, int],
    anatomy: Targets,
    *,
    with_targets: bool,
) -> tuple[_SidelessNumbers, ...]:
    """Describe the numbers that join the nearest of two sides.

    The voxels of a side are those whose numbers become it by `anatomy`, and `with_targets` those
    with the side's own number.
    """
    kinds = []
    for (left, right), numbers in open_numbers.items():
        left_side = _folding_into(left, anatomy)
        right_side = _folding_into(right, anatomy)
        if with_targets:
            left_side.add(left)
            right_side.add(right)
        kind = _SidelessNumbers(
            numbers=tuple(numbers),
            targets=(left, right),
            classes=(classes.get(left, _UNKNOWN), classes.get(right, _UNKNOWN)),
            sides=(tuple(sorted(left_side)), tuple(sorted(right_side))),
        )
        kinds.append(kind)
    return tuple(kinds)


def _through(fold: FoldingTable, freesurfer: Targets) -> dict[int, tuple[int, ...]]:
    """Resolve a folding table through FreeSurfer's.

    `freesurfer` has the targets of FreeSurfer's numbers. 0 is background in every table.
    """
    targets: dict[int, tuple[int, ...]] = {0: _BACKGROUND}
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


def _folding_into(target: int, targets: Targets) -> set[int]:
    """Return the numbers that become this one."""
    return {number for number, found in targets.items() if found == (target,)}


@dataclass(frozen=True)
class _SidelessNumbers:
    """Label numbers without a side, and the left and right classes that their voxels may join.

    `targets` are the FreeSurfer numbers of the two sides and `classes` their class indices. Each of
    `sides` holds the numbers in a label map whose voxels make that side.
    """

    numbers: tuple[int, ...]
    targets: tuple[int, int]
    classes: tuple[int, int]
    sides: tuple[tuple[int, ...], tuple[int, ...]]


def _join_nearest(
    kind: _SidelessNumbers,
    array: NDArray[Any],
    indices: NDArray[np.uint8],
    spacing_mm: tuple[float, float, float],
    *,
    size: int,
    where: str | Path | None,
) -> None:
    """Give the sideless voxels of a label map the class of the nearer side, in `indices`.

    Every number in `array` is below `size`. Raises a LabelError if neither side is there.
    """
    points = np.argwhere(_select(array, kind.numbers, size))
    if not len(points):
        return  # the sideless voxels of this map belong to another pair
    left_numbers, right_numbers = kind.sides
    left_mm = _distances_mm(points, _select(array, left_numbers, size), spacing_mm)
    right_mm = _distances_mm(points, _select(array, right_numbers, size), spacing_mm)
    if np.isinf(left_mm).all() and np.isinf(right_mm).all():
        left_target, right_target = kind.targets
        raise LabelError(
            f"{len(points)} voxels belong to the nearer of FreeSurfer's {left_target} and "
            f"{right_target}, and neither is there",
            where=where,
            remedy=f"map or ignore the numbers {', '.join(map(str, kind.numbers))}",
        )
    # Ties alternate from voxel to voxel, as in resampling of labels, so that neither side
    # gains.
    is_even = points.sum(axis=1) % 2 == 0
    # Two infinite distances have no difference. Rounding must not decide a tie.
    with np.errstate(invalid="ignore"):
        is_tie = np.abs(left_mm - right_mm) < _SAME_MM
    joins_left = np.where(is_tie, is_even, left_mm < right_mm)
    left_class, right_class = kind.classes
    chosen = np.where(joins_left, np.uint8(left_class), np.uint8(right_class))
    indices[tuple(points.T)] = chosen


def outer_rim(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark the voxels outside of `mask` that share a face with it, in the memory order of `mask`.

    `mask` (X, Y, Z) is not changed. Voxels at the border of the array have no neighbours outside of
    it; an empty or full mask has an empty rim.
    """
    # Shifted slices take a twentieth of the time of scipy's binary_dilation, provided both arrays
    # have one memory order.
    grown = mask.copy(order="K")
    for axis in range(mask.ndim):
        new = grown.swapaxes(0, axis)
        old = mask.swapaxes(0, axis)
        new[1:] |= old[:-1]
        new[:-1] |= old[1:]
    grown &= ~mask
    return grown


def _select(
    array: NDArray[Any], numbers: tuple[int, ...], size: int
) -> NDArray[np.bool_]:
    """Mark voxels that hold one of `numbers`; every voxel is below `size`."""
    flags = np.zeros(size, np.bool_)
    flags[[number for number in numbers if number < size]] = True
    selected: NDArray[np.bool_] = flags[array]
    return selected


def _distances_mm(
    points: NDArray[np.int64],
    mask: NDArray[np.bool_],
    spacing_mm: tuple[float, float, float],
) -> NDArray[np.float64]:
    """Return the distance of each point to the nearest voxel of `mask`; infinite if it is empty.

    Points are voxel indices (M, 3) outside of the mask.
    """
    # Imported here: class names and numbers, all that training needs, work without SciPy.
    from scipy import ndimage
    from scipy.spatial import cKDTree

    boxes = ndimage.find_objects(mask.view(np.uint8))
    if not boxes:
        return np.full(len(points), np.inf)
    (box,) = boxes
    inside = mask[box]

    # The nearest voxel is always on the mask's surface, a tenth of its voxels: those that share a
    # face with the outside. The padding is one voxel outside.
    in_padded = np.argwhere(outer_rim(~np.pad(inside, 1)))
    surface = in_padded - 1 + [side.start for side in box]
    spacing = np.asarray(spacing_mm)
    tree = cKDTree(surface * spacing)
    distances: NDArray[np.float64]
    distances, _ = tree.query(points * spacing)
    return distances
