"""scripts/install prints a line per step, logs to a file, and shows its end if a step fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Stands for the environment's Python: pip prints much, and fails on request.
STUB = """#!/bin/sh
case "$*" in
    *"pip install"*)
        echo "asked for: $*"
        for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do echo "pip line $n"; done
        case "$*" in *"{failing}"*) echo "no such package" >&2; exit 1;; esac;;
    *) exec "{python}" "$@";;
esac
"""


def install(
    folder: Path, failing: str, *extras: str
) -> subprocess.CompletedProcess[str]:
    for name in ("scripts/install", "constraints.txt", "pyproject.toml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(STUB.format(failing=failing, python=sys.executable))
    python.chmod(0o755)
    below = folder / "docs"
    below.mkdir()
    return subprocess.run(
        ["sh", "../scripts/install", *extras], cwd=below, capture_output=True, text=True
    )


def test_each_step_is_a_line_and_the_last_one_says_how_to_call_it(
    tmp_path: Path,
) -> None:
    done = install(tmp_path, failing="nothing fails")
    assert done.returncode == 0
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 4
    assert "1 of 2: torch==" in lines[1]
    assert "2 of 2: trinat" in lines[2]
    # Relative to the current folder.
    assert "Call ../.venv/bin/trinat, or . ../.venv/bin/activate" in lines[3]
    log = (tmp_path / ".venv/trinat-install.log").read_text()
    assert log.count("pip line 1\n") == 2
    again = subprocess.run(
        ["sh", "scripts/install"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (again.returncode, again.stderr) == (0, "")


def test_several_extras_are_installed_at_once_and_each_is_then_there(
    tmp_path: Path,
) -> None:
    assert install(tmp_path, "nothing fails", "test", "docs").returncode == 0
    log = (tmp_path / ".venv/trinat-install.log").read_text()
    assert "--editable .[serve,dicom,test,docs]\n" in log
    for extras in ([], ["docs"], ["test"], ["docs", "test"]):
        again = subprocess.run(
            ["sh", "scripts/install", *extras],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert (again.returncode, again.stderr) == (0, "")
    other = subprocess.run(
        ["sh", "scripts/install", "test", "other"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "2 of 2: trinat" in other.stderr


@pytest.mark.parametrize("failing", ["torch==", "--editable"])
def test_a_step_that_fails_shows_the_end_of_the_log(
    tmp_path: Path, failing: str
) -> None:
    done = install(tmp_path, failing=failing)
    assert done.returncode == 1
    assert "no such package\n" in done.stderr
    assert "pip line 20\n" in done.stderr
    assert "pip line 2\n" not in done.stderr
    assert "trinat-install.log" in done.stderr.splitlines()[-1]
    assert not (tmp_path / ".venv/trinat-installed").exists()
