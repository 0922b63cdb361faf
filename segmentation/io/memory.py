"""How much memory there is: of the machine, and within the limits that its control groups set."""

from __future__ import annotations

from pathlib import Path

# Controllers in /proc/self/cgroup -> folder, limit, use, and what of that use is given back.
_GROUPS = {
    "": ("", "memory.max", "memory.current", "inactive_file"),
    "memory": (
        "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
}


def free_memory(
    own: Path = Path("/proc/self/cgroup"), groups: Path = Path("/sys/fs/cgroup")
) -> int:
    """Bytes that this process may still take."""
    import psutil

    return min([int(psutil.virtual_memory().available), *_left_in_groups(own, groups)])


def _left_in_groups(own: Path, groups: Path) -> list[int]:
    """What each limit leaves; groups that are not visible, as in containers, are passed over."""
    left = []
    for line in own.read_text().splitlines() if own.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if controllers not in _GROUPS:
            continue
        folder, limit, use, given_back = _GROUPS[controllers]
        group = Path(path.strip("/"))
        for place in (groups / folder / g for g in (group, *group.parents)):
            try:
                most, used = (int((place / name).read_text()) for name in (limit, use))
                stat = dict(
                    x.split() for x in (place / "memory.stat").read_text().splitlines()
                )
            except (OSError, ValueError):  # no such group; its limit is "max"
                continue
            left.append(max(0, most - used + int(stat.get(given_back, 0))))
    return left
