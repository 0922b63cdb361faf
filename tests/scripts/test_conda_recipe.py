"""The conda recipe agrees with pyproject.toml: version, dependencies, commands, licences."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
# Packages that have another name on conda-forge than on PyPI.
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "scripts/conda/recipe.yaml").read_text())


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def conda_requirement(requirement: str) -> str:
    """Return a requirement such as torch>=2.10 as conda writes it: pytorch >=2.10."""
    name, bound = re.fullmatch(r"([\w-]+)(.*)", requirement).groups()  # type: ignore[union-attr]
    return f"{CONDA_NAMES.get(name, name)} {bound}"


def test_it_is_of_the_same_version_and_needs_the_same(
    recipe: dict[str, Any], pyproject: dict[str, Any]
) -> None:
    project = pyproject["project"]
    assert recipe["package"]["name"] == project["name"]
    assert recipe["context"]["version"] == project["version"]
    assert project["requires-python"] == f">={recipe['context']['python_min']}"
    needed = [conda_requirement(each) for each in project["dependencies"]]
    # Linux and macOS only.
    python = ["__unix", "python >=${{ python_min }}"]
    assert recipe["requirements"]["run"] == python + needed
    build = [conda_requirement(each) for each in pyproject["build-system"]["requires"]]
    assert recipe["requirements"]["host"][2:] == build


def test_it_has_the_same_commands_and_licences(
    recipe: dict[str, Any], pyproject: dict[str, Any]
) -> None:
    project = pyproject["project"]
    commands = [f"{name} = {call}" for name, call in project["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == commands
    assert recipe["about"]["license"] == project["license"]
    assert recipe["about"]["license_file"] == project["license-files"]
    assert recipe["about"]["summary"] == project["description"]
    source = ROOT / "scripts/conda" / recipe["source"]["path"]
    assert source.resolve() == ROOT
