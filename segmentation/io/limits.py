"""How large a scan and its voxels may be; what is beyond is refused before it is read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trinat.segmentation.errors import FormatError, GeometryError, IntegrityError
from trinat.segmentation.io.memory import free_memory

Sides = tuple[int, int, int]
Zooms = tuple[float, float, float]

MAX_SIDE = 1500
MIN_SIDE = 16
MAX_BYTES = 2 * 2**30
# A voxel is not smaller than a cell nor larger than a head.
SPACING_RANGE_MM = (0.01, 100.0)
# What bringing a scan to the working grid takes, measured: bytes for each voxel beside the voxels
# themselves, and for each cell of 4 mm in which the head is looked for. Less than the last is
# taken for granted.
_WORK_BYTES = 14
_CELL_BYTES = 50
_CELL_MM3 = 64.0
_GRANTED_BYTES = 2**30
REMAKE = "its header is wrong; convert the scan again from its source"


def check_sides(dims: list[int], where: Path) -> Sides:
    """Three sides within the limits, once trailing ones are squeezed.

    `dims` has one to seven dimensions. Raises FormatError for several volumes in one file.
    """
    if min(dims) <= 0:
        raise wrong(f"impossible dimensions {_by(dims)}", where)
    volumes = math.prod(dims[3:])
    if volumes > 1:
        raise FormatError(
            f"{volumes} volumes in one file",
            where=where,
            remedy="split it and name one volume",
        )
    x, y, z = (*dims, 1, 1, 1)[:3]
    sides = (x, y, z)
    if max(sides) > MAX_SIDE:
        raise FormatError(
            f"{_by(sides)} voxels, more than {MAX_SIDE} a side",
            where=where,
            remedy="resample it to a coarser grid",
        )
    if min(sides) < MIN_SIDE:
        raise FormatError(
            f"{_by(sides)} voxels, fewer than {MIN_SIDE} slices along an axis",
            where=where,
            remedy="give a whole-head 3D scan",
        )
    return sides


def check_zooms(zooms: Any, where: Path) -> Zooms:
    """Three voxel sizes in mm within the limits; GeometryError for others.

    NaN is outside of the limits as well. `where` names the scan in the message.
    """
    x, y, z = (float(zoom) for zoom in zooms)
    low, high = SPACING_RANGE_MM
    if not all(low <= zoom <= high for zoom in (x, y, z)):
        raise GeometryError(
            f"impossible voxel size {x:g} x {y:g} x {z:g} mm",
            where=where,
            remedy=REMAKE,
        )
    return x, y, z


def check_bytes(count: int, where: Path) -> None:
    """Refuse more bytes of voxels than any scan has, which is 2 GiB: FormatError.

    The count is that in memory; `where` names the scan in the message.
    """
    if count > MAX_BYTES:
        raise FormatError(
            f"{count / 2**30:.1f} GiB of voxels, more than {MAX_BYTES >> 30}",
            where=where,
            remedy="resample it to a coarser grid",
        )


def check_memory(shape: Sides, zooms: Zooms, nbytes: int, where: Path) -> None:
    """Refuse a scan that cannot be prepared in the memory that is free.

    Its voxels take `nbytes`. What needs less than a GiB is taken without a look.
    """
    cells_per_voxel = min(1.0, math.prod(zooms) / _CELL_MM3)
    voxel_bytes = _WORK_BYTES + _CELL_BYTES * cells_per_voxel
    needed = nbytes + math.prod(shape) * voxel_bytes
    if needed <= _GRANTED_BYTES:
        return
    free = free_memory()
    if needed > free:
        raise FormatError(
            f"{_by(shape)} voxels take {needed / 2**30:.1f} GiB of memory to prepare, and "
            f"{free / 2**30:.1f} are free",
            where=where,
            remedy="resample it to a coarser grid, or use a larger machine",
        )


def wrong(what: str, where: Path) -> IntegrityError:
    """What to raise for a header that contradicts itself or the standard."""
    return IntegrityError(what, where=where, remedy=REMAKE)


def _by(sides: Iterable[int]) -> str:
    """Sides as "256 x 256 x 176"."""
    return " x ".join(str(side) for side in sides)
