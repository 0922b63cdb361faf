"""scripts/release stops before it builds anything if a check fails."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BOUTIQUES = "containers/trinat-bids.boutiques.json"
FILES = {
    "pyproject.toml": '[project]\nversion = "1.2.3"\n',
    "CHANGELOG.md": "# Changelog\n\n## 1.2.3\n",
    "CITATION.cff": "version: 1.2.3\n",
    BOUTIQUES: '{\n    "tool-version": "1.2.3",\n}\n',
    # The first step that these tests leave out.
    "scripts/check": "#!/bin/sh\necho checks\nexit 7\n",
    # Installing takes minutes.
    "scripts/install": "#!/bin/sh\necho installed\n",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Provide a clean tree of version 1.2.3 whose checks fail."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    shutil.copy(ROOT / "scripts/release", tmp_path / "scripts")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(repository: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *who, *arguments], cwd=repository, check=True)


def commit(repository: Path) -> None:
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "all")


def release(repository: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [repository / "scripts/release", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_where_all_is_right_the_checks_decide(repository: Path) -> None:
    done = release(repository)
    assert (done.returncode, done.stdout, done.stderr) == (7, "installed\nchecks\n", "")


def test_an_option_that_is_misspelt_is_refused(repository: Path) -> None:
    done = release(repository, "--untestd")
    assert (done.returncode, done.stdout) == (1, "")
    assert "--untestd" in done.stderr


def test_a_tree_that_is_not_clean_is_refused(repository: Path) -> None:
    (repository / "new.py").touch()
    done = release(repository)
    assert done.returncode == 1
    assert "the tree is not clean" in done.stderr


@pytest.mark.parametrize("name", ["CHANGELOG.md", "CITATION.cff", BOUTIQUES])
def test_a_file_of_another_version_is_named(name: str, repository: Path) -> None:
    path = repository / name
    path.write_text(path.read_text().replace("1.2.3", "1.2.30"))
    commit(repository)
    done = release(repository)
    assert (done.returncode, done.stdout) == (1, "")
    assert name in done.stderr
    assert "1.2.3" in done.stderr


def test_a_version_that_has_its_tag_is_refused(repository: Path) -> None:
    git(repository, "tag", "v1.2.3")
    assert "raise the version" in release(repository).stderr


def test_copies_of_the_version_agree_here() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    version = text.partition('\nversion = "')[2].partition('"')[0]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f'"tool-version": "{version}"' in (ROOT / BOUTIQUES).read_text()
    assert version in (ROOT / "CHANGELOG.md").read_text()
