"""The container recipes copy all files that the package is built from, and do the same steps.

No image is built here.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import pytest
from setuptools import find_packages

ROOT = Path(__file__).parents[2]


DOCKER = (ROOT / "containers/Dockerfile").read_text()
APPTAINER = (ROOT / "containers/trinat.def").read_text()


def instructions(name: str) -> list[str]:
    """Return the arguments of every occurrence of an instruction in the Dockerfile."""
    return re.findall(rf"^{name} (.*)$", DOCKER, re.MULTILINE)


def section(name: str) -> list[str]:
    """Return the lines of a section of the Apptainer recipe."""
    text = APPTAINER.partition(f"%{name}\n")[2].partition("\n\n")[0]
    return [line.strip() for line in text.splitlines()]


def copied_by_docker() -> list[str]:
    """Return the sources of the COPY lines, without their destinations."""
    sources: list[str] = []
    for line in instructions("COPY"):
        sources += line.split()[:-1]
    return sources


def copied_by_apptainer() -> list[str]:
    """Return the sources in the section %files."""
    return [line.split()[0] for line in section("files")]


def test_both_recipes_make_the_same() -> None:
    assert f"\nFrom: {instructions('FROM')[0]}\n" in APPTAINER
    assert copied_by_apptainer() == copied_by_docker()
    (folder,) = instructions("WORKDIR")
    assert section("post") == [f"cd {folder}", *instructions("RUN")]
    assert section("environment") == [f"export {each}" for each in instructions("ENV")]
    (entry,) = instructions("ENTRYPOINT")
    assert section("runscript") == [
        f'exec {entry.strip("[]").replace(chr(34), "")} "$@"'
    ]


@pytest.mark.parametrize("sources", [copied_by_docker(), copied_by_apptainer()])
def test_a_container_gets_all_packages_and_files_of_the_build(
    sources: list[str], tmp_path: Path
) -> None:
    for name in sources:
        if (ROOT / name).is_dir():
            # The weights are not needed to find the packages.
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
