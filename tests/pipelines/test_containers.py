"""The containers' recipes copy all that the package is built from; no image is built here."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import pytest
from setuptools import find_packages

ROOT = Path(__file__).parents[2]


def copied_by_docker() -> list[str]:
    """The sources of the COPY lines, without what each is copied to."""
    text = (ROOT / "containers/Dockerfile").read_text()
    sources: list[str] = []
    for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE):
        sources += line.split()[:-1]
    return sources


def copied_by_apptainer() -> list[str]:
    """The sources in the section %files."""
    text = (ROOT / "containers/trinat.def").read_text()
    section = text.partition("%files\n")[2].partition("\n\n")[0]
    return [line.split()[0] for line in section.splitlines()]


@pytest.mark.parametrize("sources", [copied_by_docker(), copied_by_apptainer()])
def test_a_container_gets_all_packages_and_files_of_the_build(
    sources: list[str], tmp_path: Path
) -> None:
    for name in sources:
        if (ROOT / name).is_dir():
            # The weights are not needed to see which packages there are.
            leave_out = shutil.ignore_patterns("*.safetensors", "*.npz", "__pycache__")
            shutil.copytree(
                ROOT / name, tmp_path / name, symlinks=True, ignore=leave_out
            )
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    chosen = ["trinat*"]
    packages = find_packages(str(tmp_path), include=chosen)
    assert set(packages) == set(find_packages(str(ROOT), include=chosen))
    assert "trinat.pipelines.cli" in packages
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
    for name in (project["readme"], *project["license-files"]):
        assert (tmp_path / name).is_file()
