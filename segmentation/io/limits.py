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
# Largest accepted size of voxels in memory; real scans are smaller.
MAX_BYTES = 2 * 2**30
# No voxel of a scan is smaller than a cell or larger than a head.
SPACING_RANGE_MM = (0.01, 100.0)
# Memory for conforming a scan, measured: bytes for each voxel in addition to the voxels themselves,
# and for each 4 mm cell in which the head is searched. A need of less than the last value is not
# checked.
_WORK_BYTES = 14
_CELL_BYTES = 50
_CELL_MM3 = 64.0
_GRANTED_BYTES = 2**30
REMAKE = "its header is wrong; convert the scan again from its source"


class _GroupFiles(NamedTuple):
    """File names of one version of Linux control groups (cgroups), version 1 or 2.

    `folder` is the folder of all cgroups, below /sys/fs/cgroup. `limit` and `use` are the files of
    a cgroup with its memory limit and its present use. `given_back` is the line in the cgroup's
    memory.stat with the part of the use that the kernel releases when memory gets scarce.
    """

    folder: str
    limit: str
    use: str
    given_back: str


# Versions by the controllers in a line of /proc/self/cgroup; a line of version 2 names none.
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
    """Return the lengths of the three axes; raise an InputError if they exceed the limits.

    `dims` has one to seven dimensions; axes of length 1 after the third are dropped. Raises a
    FormatError for several volumes in one file, and an IntegrityError for lengths that are not
    positive.
    """
    if min(dims) <= 0:
        raise wrong(f"impossible dimensions {_sides_text(dims)}", where)
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
            f"{_sides_text(sides)} voxels, more than {MAX_SIDE} a side",
            where=where,
            remedy="resample it to a coarser grid",
        )
    if min(sides) < MIN_SIDE:
        raise FormatError(
            f"{_sides_text(sides)} voxels, fewer than {MIN_SIDE} slices along an axis",
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


def check_memory(shape: Sides, zooms: Zooms, nbytes: int, where: Path) -> None:
    """Raise a FormatError if the free memory is not enough to resample a scan for the networks.

    `shape` and `zooms` (mm) are those of the scan, and its voxels take `nbytes`. A need of less
    than a GiB is accepted without a check.
    """
    cells_per_voxel = min(1.0, math.prod(zooms) / _CELL_MM3)
    voxel_bytes = _WORK_BYTES + _CELL_BYTES * cells_per_voxel
    needed = nbytes + math.prod(shape) * voxel_bytes
    if needed <= _GRANTED_BYTES:
        return
    free = free_memory()
    if needed > free:
        raise FormatError(
            f"{_sides_text(shape)} voxels take {needed / 2**30:.1f} GiB of memory to prepare, and "
            f"{free / 2**30:.1f} are free",
            where=where,
            remedy="resample it to a coarser grid, or use a larger machine",
        )


def free_memory(
    own: Path = Path("/proc/self/cgroup"), groups: Path = Path("/sys/fs/cgroup")
) -> int:
    """Return the number of bytes that this process may still allocate.

    It is the smallest of the machine's available memory and, on Linux, of the memory that is left
    below the limit of each control group (cgroup) that the process belongs to. `own` is the file
    that lists the cgroups of this process, and `groups` is the folder with the files of all
    cgroups. Where they are missing, as on macOS, only the machine's memory is considered.
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
            # The files of a group may be missing, as in containers.
            if left_here is not None:
                left.append(left_here)
    return min(left)


def _left_in_group(place: Path, files: _GroupFiles) -> int | None:
    """Return the bytes that a Linux control group (cgroup) may still allocate below its limit.

    `place` is the folder of the cgroup, and `files` has the names of the files in it. Memory that
    the kernel can release counts as free. Returns None if the cgroup has no memory limit or no such
    files.
    """
    try:
        most = int((place / files.limit).read_text())
        used = int((place / files.use).read_text())
        lines = (place / "memory.stat").read_text().splitlines()
        statistics = dict(line.split() for line in lines)
    except (OSError, ValueError):  # no such group, or its limit is the word "max"
        return None
    given_back = int(statistics.get(files.given_back, 0))
    return max(0, most - used + given_back)


def wrong(what: str, where: Path) -> IntegrityError:
    """Return the error to raise for a header that contradicts itself or the standard."""
    return IntegrityError(what, where=where, remedy=REMAKE)


def _sides_text(sides: Iterable[int]) -> str:
    """Format lengths as "256 x 256 x 176"."""
    return " x ".join(str(side) for side in sides)
