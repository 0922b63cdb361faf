"""How much memory there is: of the machine, and within the limits that its control groups set."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class _GroupFiles(NamedTuple):
    """What a version of control groups calls things.

    `folder` holds the groups; `limit` and `use` are files of a group; `given_back` is the line of
    its statistics that says how much of the use is given back when memory gets scarce.
    """

    folder: str
    limit: str
    use: str
    given_back: str


# By the controllers that /proc/self/cgroup names: none in version 2.
_VERSIONS = {
    "": _GroupFiles("", "memory.max", "memory.current", "inactive_file"),
    "memory": _GroupFiles(
        "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
}


def free_memory(
    own: Path = Path("/proc/self/cgroup"), groups: Path = Path("/sys/fs/cgroup")
) -> int:
    """Bytes that this process may still take: what the machine has, within all limits.

    The smaller of what the machine has available and of what is left within each control group that
    the process belongs to. `own` and `groups` are where Linux states these; where they are missing,
    as on macOS, the machine alone counts.
    """
    import psutil

    of_machine = int(psutil.virtual_memory().available)
    return min([of_machine, *_left_in_groups(own, groups)])


def _left_in_groups(own: Path, groups: Path) -> list[int]:
    """What each limit leaves; groups that are not visible, as in containers, are passed over.

    `own` lists the groups of this process, `groups` holds the files of all.
    """
    if not own.is_file():
        return []
    left = []
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in _VERSIONS:
            continue
        files = _VERSIONS[controllers]
        group = Path(path.strip("/"))
        # The limits of all groups that it is in hold too.
        for one in (group, *group.parents):
            left_here = _left_in_group(groups / files.folder / one, files)
            if left_here is not None:
                left.append(left_here)
    return left


def _left_in_group(place: Path, files: _GroupFiles) -> int | None:
    """What the limit of one group leaves; None without a limit."""
    try:
        most = int((place / files.limit).read_text())
        used = int((place / files.use).read_text())
        lines = (place / "memory.stat").read_text().splitlines()
        statistics = dict(line.split() for line in lines)
    except (OSError, ValueError):  # no such group; its limit is "max"
        return None
    given_back = int(statistics.get(files.given_back, 0))
    return max(0, most - used + given_back)
