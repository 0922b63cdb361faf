"""Figures and pages as files: PNG and SVG, and PDF where a Chromium is installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from segmentation.errors import EvaluationError
from segmentation.io.files import atomic_path, atomic_text, atomic_write
from segmentation.report.figures import Drawing

__all__ = [
    "HEADLESS",
    "find_chromium",
    "print_to_pdf",
    "provenance",
    "save_drawings",
    "write_page",
]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_LIMIT_S = 180
HEADLESS = (
    "--headless=new",
    # Pages are our own, and as root or in a container the sandbox cannot start.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
)


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


def write_page(path: Path, page: str, *, pdf: bool = False) -> None:
    with atomic_text(path) as file:
        file.write(page)
    if pdf:
        print_to_pdf(path)


def find_chromium() -> str | None:
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


def print_to_pdf(page: Path) -> Path:
    """The page beside itself as PDF, without a network."""
    browser = find_chromium()
    if browser is None:
        raise EvaluationError(
            "no Chromium to print with; the page itself is written",
            where=page,
            remedy="install chromium, or print the page from any browser",
        )
    target = page.with_suffix(".pdf")
    with tempfile.TemporaryDirectory() as profile, atomic_path(target) as temporary:
        command = [
            browser,
            *HEADLESS,
            "--no-pdf-header-footer",
            f"--user-data-dir={profile}",
            f"--print-to-pdf={temporary}",
            page.resolve().as_uri(),
        ]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            raise EvaluationError(f"Chromium took over {_LIMIT_S} s", where=page) from None
        if done.returncode or not temporary.read_bytes().startswith(b"%PDF"):
            reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise EvaluationError(
                f"Chromium could not print it ({' '.join(reason) or done.returncode})", where=page
            )
    return target
