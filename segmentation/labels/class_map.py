"""Mapping of label numbers to the classes of a scheme.

Voxels whose number does not say on which side they are get the side of the nearest voxel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import LabelError, some
from trinat.segmentation.labels.folding import (
    MAX_NUMBER,
    FoldingTable,
    Targets,
    freesurfer_targets,
)

# Class indices are uint8. The two largest values mark voxels without a class: `_SIDELESS` voxels,
# whose side is determined later, and `_UNKNOWN` numbers.
MAX_CLASSES = 254
_SIDELESS = 254
_UNKNOWN = 255
_BACKGROUND = (0,)
# With more unknown numbers than this, the file is probably a scan and not a label map.
_MANY_UNKNOWN = 200
# Number of unknown label numbers that a message lists.
_LISTED = 20
# Distances are equal if they differ by less than this.
_SAME_MM = 1e-6


@dataclass(frozen=True, eq=False)
class ClassMap:
    """Mapping from label numbers to the class indices of one scheme.

    `scheme` is the name of the scheme. `numbering` is the name of the atlas's own numbering, "" if
    the numbers are FreeSurfer's. `table` has the class index of each number, up to the largest
    known number. `sideless` are the numbers that do not say on which side a voxel is, such as
    FreeSurfer's 251 to 255 (corpus callosum): each of their voxels gets the class of the nearer
    side.
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
        """Build a class map from `classes`, the class index of each FreeSurfer number of a scheme.

        `scheme` is the scheme's name. A FreeSurfer number that the scheme lacks gets the class that
        FreeSurfer's folding table names: 78, a lesion on the left, becomes left white matter.
        `extra` maps further numbers to FreeSurfer numbers, and numbers in `ignore` become
        background. With `fold`, all numbers are those of another atlas, which the table `fold` maps
        to FreeSurfer numbers. A LabelError is raised for invalid `extra` or `ignore`.
        """
        _check_own_rules(extra, ignore)
        freesurfer = freesurfer_targets(classes)
        targets = dict(freesurfer) if fold is None else _resolve_fold(fold, freesurfer)
        # Numbers whose voxels define a side. Numbers that the caller ignores are included, because
        # they are still anatomy of that side.
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
        table = np.full(max(targets) + 1, _UNKNOWN, np.uint8)
        # Numbers whose side is decided voxel by voxel, by their two targets (left, right): corpus
        # callosum becomes 2 or 41, the white matter of either side.
        open_numbers: dict[tuple[int, ...], list[int]] = {}
        for number, candidates in targets.items():
            indices = {classes.get(candidate, _UNKNOWN) for candidate in candidates}
            if len(indices) == 1:
                table[number] = indices.pop()
            else:
                table[number] = _SIDELESS
                open_numbers.setdefault(candidates, []).append(number)
        # A FreeSurfer number that has a side marks that side even if the scheme lacks it. In
        # another numbering the same number means something else.
        sideless = _describe_sideless(
            open_numbers, classes, anatomy, with_targets=fold is None
        )
        numbering = "" if fold is None else fold.name
        return cls(scheme, numbering, table, sideless)

    def apply(
        self,
        array: NDArray[Any],
        spacing_mm: tuple[float, float, float],
        where: str | Path | None,
    ) -> NDArray[np.uint8]:
        """Return the class index of each voxel of a label map, in the memory order of `array`.

        `array` (X, Y, Z) has label numbers. Raises a LabelError for unknown numbers; `where` names
        the file in the message.
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
        """Return the error for a label map with unknown numbers; it lists the first of them."""
        listed = []
        numbers, counts = np.unique(array, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            is_known = 0 <= number < len(self.table) and self.table[number] != _UNKNOWN
            if not is_known:
                voxels = "voxel" if count == 1 else "voxels"
                listed.append(f"{number} ({count} {voxels})")
        shown = some(listed, most=_LISTED)
        what = f"has label numbers that are not in {self.scheme}"
        remedy = "map them to known numbers, or ignore them"
        if self.numbering:
            what = f"holds label numbers that {self.numbering} does not fold into {self.scheme}"
            remedy = "add them to the table, or ignore them"
        if len(listed) > _MANY_UNKNOWN:
            remedy = "give a label map, not a scan"
        return LabelError(f"{what}: {shown}", where=where, remedy=remedy)


def _check_own_rules(extra: Mapping[int, int], ignore: Collection[int]) -> None:
    """Raise a LabelError for invalid label numbers, and for numbers both mapped and ignored."""
    for number in (*extra, *ignore):
        if not 0 <= number < MAX_NUMBER:
            raise LabelError(
                f"{number} is no label number", remedy="numbers start at 0"
            )
    both = sorted(set(extra) & set(ignore))
    if both:
        raise LabelError(f"{both} are both mapped and ignored", remedy="choose one")


def _describe_sideless(
    open_numbers: Mapping[tuple[int, ...], list[int]],
    classes: Mapping[int, int],
    anatomy: Targets,
    *,
    with_targets: bool,
) -> tuple[_SidelessNumbers, ...]:
    """Describe the label numbers without a side, and the numbers that show where each side is.

    `open_numbers` maps a pair of FreeSurfer numbers (left, right) to the label numbers whose voxels
    become one of the two, whichever is nearer. `anatomy` maps all label numbers to FreeSurfer
    numbers: the numbers that it maps to the left one of a pair show where left is. With
    `with_targets` the left number itself shows that, too. The same holds for the right.
    """
    kinds = []
    for (left, right), numbers in open_numbers.items():
        left_side = _numbers_with_target(left, anatomy)
        right_side = _numbers_with_target(right, anatomy)
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


def _resolve_fold(
    fold: FoldingTable, freesurfer: Targets
) -> dict[int, tuple[int, ...]]:
    """Return what the numbers of another atlas become in a scheme: number -> FreeSurfer numbers.

    The table `fold` maps them to FreeSurfer numbers, and `freesurfer` maps these to the FreeSurfer
    numbers of the scheme's classes. Two numbers are the left and the right one of a number without
    a side. 0 is background in every atlas.
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


def _numbers_with_target(target: int, targets: Targets) -> set[int]:
    """Return the label numbers that become the FreeSurfer number `target`, and no other."""
    return {number for number, found in targets.items() if found == (target,)}


@dataclass(frozen=True)
class _SidelessNumbers:
    """Label numbers without a side, and the left and the right class that their voxels may get.

    For example, `numbers` 251 to 255 (corpus callosum) have the `targets` 2 and 41, FreeSurfer's
    white matter of the left and the right side, and `classes` are the class indices of these two.
    `sides` has, for each side, the label numbers whose voxels show where that side is.
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
    """Set the class of the sideless voxels of a label map to that of the nearer side.

    `kind` has the numbers without a side and the two classes that they may become. `array` has the
    label numbers, all below `size`; `indices` has the class indices and is changed in place. Raises
    a LabelError if neither side is in the map.
    """
    points = np.argwhere(_mask_of_numbers(array, kind.numbers, size))
    if not len(points):
        return  # the sideless voxels of this map belong to other sideless numbers
    left_numbers, right_numbers = kind.sides
    left_mm = _distances_mm(
        points, _mask_of_numbers(array, left_numbers, size), spacing_mm
    )
    right_mm = _distances_mm(
        points, _mask_of_numbers(array, right_numbers, size), spacing_mm
    )
    if np.isinf(left_mm).all() and np.isinf(right_mm).all():
        left_target, right_target = kind.targets
        raise LabelError(
            f"{len(points)} voxels belong to the nearer of FreeSurfer's {left_target} and "
            f"{right_target}, and neither is there",
            where=where,
            remedy=f"map or ignore the numbers {', '.join(map(str, kind.numbers))}",
        )
    # At equal distances the side alternates from voxel to voxel, as in resampling of labels, so
    # that no side is favoured.
    is_even = points.sum(axis=1) % 2 == 0
    # The difference of two infinite distances is NaN. The tolerance prevents rounding from deciding
    # between equal distances.
    with np.errstate(invalid="ignore"):
        is_tie = np.abs(left_mm - right_mm) < _SAME_MM
    joins_left = np.where(is_tie, is_even, left_mm < right_mm)
    left_class, right_class = kind.classes
    chosen = np.where(joins_left, np.uint8(left_class), np.uint8(right_class))
    indices[tuple(points.T)] = chosen


def outer_rim(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask of the voxels outside of `mask` that share a face with it.

    `mask` (X, Y, Z) is not changed; the result has its memory order. If the mask is empty or full,
    the rim is empty.
    """
    # Shifted slices take a twentieth of the time of scipy's binary_dilation if both arrays have the
    # same memory order.
    grown = mask.copy(order="K")
    for axis in range(mask.ndim):
        new = grown.swapaxes(0, axis)
        old = mask.swapaxes(0, axis)
        new[1:] |= old[:-1]
        new[:-1] |= old[1:]
    grown &= ~mask
    return grown


def _mask_of_numbers(
    array: NDArray[Any], numbers: tuple[int, ...], size: int
) -> NDArray[np.bool_]:
    """Return a mask of the voxels whose number is in `numbers`.

    All numbers in `array` are below `size`.
    """
    flags = np.zeros(size, np.bool_)
    flags[[number for number in numbers if number < size]] = True
    selected: NDArray[np.bool_] = flags[array]
    return selected


def _distances_mm(
    points: NDArray[np.int64],
    mask: NDArray[np.bool_],
    spacing_mm: tuple[float, float, float],
) -> NDArray[np.float64]:
    """Return the distance in mm of each point to the nearest voxel of `mask`; inf if it is empty.

    `points` are voxel indices (M, 3) outside of the mask.
    """
    # Imported here, because class names and numbers, which are all that training needs, work
    # without SciPy and nibabel.
    from scipy.spatial import cKDTree

    from trinat.segmentation.grid import is_empty, occupied_box

    box = occupied_box(mask)
    if is_empty(box):
        return np.full(len(points), np.inf)
    inside = mask[box]

    # The nearest voxel is always on the surface of the mask: a voxel that shares a face with the
    # outside. These are a tenth of the mask. The padding makes every surface voxel have an outside
    # neighbour in the array.
    in_padded = np.argwhere(outer_rim(~np.pad(inside, 1)))
    surface = in_padded - 1 + [side.start for side in box]
    spacing = np.asarray(spacing_mm)
    tree = cKDTree(surface * spacing)
    distances: NDArray[np.float64]
    distances, _ = tree.query(points * spacing)
    return distances
