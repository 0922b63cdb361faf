"""Limits on the size of scans, and free memory; checked before voxels are read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from trinat.segmentation.errors import FormatError, GeometryError, IntegrityError

Sides = tuple[int, int, int]
Zooms = tuple[float, float, float]

MAX_SIDE = 1500
MIN_SIDE = 16
MAX_BYTES = 2 * 2**30
# A voxel is not smaller than a cell nor larger than a head.
SPACING_RANGE_MM = (0.01, 100.0)
# Memory for conforming a scan, measured: bytes for each voxel beside the voxels themselves, and for
# each 4 mm cell in which the head is searched. Less than the last value is assumed to be available.
_WORK_BYTES = 14
_CELL_BYTES = 50
_CELL_MM3 = 64.0
_GRANTED_BYTES = 2**30
REMAKE = "its header is wrong; convert the scan again from its source"


class _GroupFiles(NamedTuple):
    """File names of a version of Linux control groups.

    `folder` holds the groups; `limit` and `use` are files of a group; `given_back` is the line of
    its statistics with the part of the use that is released when memory gets scarce.
    """

    folder: str
    limit: str
    use: str
    given_back: str


# By the controllers that /proc/self/cgroup names; version 2 names none.
_VERSIONS = {
    "": _GroupFiles("", "memory.max", "memory.current", "inactive_file"),
    "memory": _GroupFiles(
        "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
}


def check_sides(dims: list[int], where: Path) -> Sides:
    """Return three sides within the limits, without trailing axes of length 1.

    `dims` has one to seven dimensions. Raises a FormatError for several volumes in one file.
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
    """Return three voxel sizes in mm; raise a GeometryError if one is beyond the limits or NaN.

    `where` names the scan in the message.
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
    """Raise a FormatError for more bytes of voxels in memory than 2 GiB, more than any scan has.

    `where` names the scan in the message.
    """
    if count > MAX_BYTES:
        raise FormatError(
            f"{count / 2**30:.1f} GiB of voxels, more than {MAX_BYTES >> 30}",
            where=where,
            remedy="resample it to a coarser grid",
        )


def check_memory(shape: Sides, zooms: Zooms, nbytes: int, where: Path) -> None:
    """Refuse a scan that cannot be conformed in the free memory.

    Its voxels take `nbytes`. Less than a GiB is accepted without a check.
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


def free_memory(
    own: Path = Path("/proc/self/cgroup"), groups: Path = Path("/sys/fs/cgroup")
) -> int:
    """Return the bytes that this process may still allocate, within all limits.

    The minimum of the machine's available memory and of what is left in each control group of the
    process. `own` lists the groups of this process and `groups` holds the files of all, on Linux;
    where they are missing, as on macOS, the machine alone counts.
    """
    import psutil

    left = [int(psutil.virtual_memory().available)]
    lines = []
    if own.is_file():
        lines = own.read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in _VERSIONS:
            continue
        files = _VERSIONS[controllers]
        group = Path(path.strip("/"))
        # The limits of all parent groups apply, too.
        for one in (group, *group.parents):
            left_here = _left_in_group(groups / files.folder / one, files)
            # Groups may not be visible, as in containers.
            if left_here is not None:
                left.append(left_here)
    return min(left)


def _left_in_group(place: Path, files: _GroupFiles) -> int | None:
    """Return what the limit of one group leaves; None without a limit."""
    try:
        most = int((place / files.limit).read_text())
        used = int((place / files.use).read_text())
        lines = (place / "memory.stat").read_text().splitlines()
        statistics = dict(line.split() for line in lines)
    except (OSError, ValueError):  # no such group, or its limit is "max"
        return None
    given_back = int(statistics.get(files.given_back, 0))
    return max(0, most - used + given_back)


def wrong(what: str, where: Path) -> IntegrityError:
    """Return the error to raise for a header that contradicts itself or the standard."""
    return IntegrityError(what, where=where, remedy=REMAKE)


def _by(sides: Iterable[int]) -> str:
    """Format sides as "256 x 256 x 176"."""
    return " x ".join(str(side) for side in sides)
