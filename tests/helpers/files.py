"""Empty files for tests that only need names."""

from __future__ import annotations

from pathlib import Path


def touch(root: Path, *names: str) -> Path:
    """Create empty files in a folder and return the folder."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root
