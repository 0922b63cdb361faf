"""Figures and pages as files."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from segmentation.io.files import atomic_text, atomic_write
from segmentation.report.figures import Drawing


def provenance(started: datetime, command: str, labels: str) -> dict[str, str]:
    """How a page was made, to be shown at its end."""
    return {
        "trinat": version("trinat"),
        "date": started.isoformat(timespec="seconds"),
        "command": command,
        "labels": labels,
    }


def save_drawings(folder: Path, drawings: Iterable[Drawing]) -> None:
    """Each figure as PNG on white (150 dpi) and as SVG, in a folder that is made for them."""
    for drawing in drawings:
        folder.mkdir(exist_ok=True)
        for ending, picture in (("png", drawing.png), ("svg", drawing.svg)):
            with atomic_write(folder / f"{drawing.name}.{ending}") as file:
                file.write(picture)


def write_page(path: Path, page: str) -> None:
    with atomic_text(path) as file:
        file.write(page)
