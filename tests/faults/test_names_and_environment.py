"""Odd names, closed streams and folders, files with wrong values.

One line, and the rest goes on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.overfitted import random_model
from helpers.refusals import refusal
from helpers.serial import run_serially, write_scans

from trinat.pipelines.common.config import read_yaml, with_settings
from trinat.pipelines.common.exits import Exit
from trinat.pipelines.study.discovery import find_cases
from trinat.pipelines.study.files import find_files
from trinat.pipelines.study.ledger import read_entries
from trinat.segmentation.errors import ConfigError, IntegrityError


def test_a_list_line_that_is_not_utf8_and_a_dangling_link_leave_a_report(
    tmp_path: Path,
) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz")
    (scans / "link.nii.gz").symlink_to("nowhere")
    lines = [
        b"in/a.nii.gz",
        b"in/\xff.nii.gz",
        b"in/link.nii.gz",
        b"in/" + b"x" * 300 + b".nii",
    ]
    (tmp_path / "list.txt").write_bytes(b"\n".join(lines))
    outcome = run_serially([str(tmp_path / "list.txt")], tmp_path / "out")
    assert (outcome.done, outcome.failed) == (1, 3)
    assert r"\udcff.nii.gz" in (tmp_path / "out/report.html").read_text()


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """Provide a set of folders that cannot be read, even by root, who runs tests in containers."""
    closed: set[Path] = set()
    scan, access = os.scandir, os.access

    def refusing(path: str | os.PathLike[str]) -> object:
        if Path(path) in closed:
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refusing)
    monkeypatch.setattr(
        os, "access", lambda p, mode: Path(p) not in closed and access(p, mode)
    )
    return closed


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("b/scan.nii.gz", "b"),
        ("sub-2/anat/sub-2_T1w.nii.gz", "sub-2/anat"),
        ("sub-2/ses-1/anat/sub-2_ses-1_T1w.nii.gz", "sub-2/ses-1/anat"),
        ("subject/mri/orig.mgz", "subject"),
    ],
)
def test_a_folder_that_cannot_be_read_is_told_and_the_others_go_on(
    tmp_path: Path, closed: set[Path], name: str, folder: str
) -> None:
    other = name.replace("b/", "c/").replace("-2", "-3").replace("subject", "other")
    write_scans(tmp_path, name, other)
    closed.add(tmp_path / folder)
    found = find_cases([tmp_path])
    assert [case.shown for case in found.cases] == [other]
    assert [(r.shown, r.reason) for r in found.refusals] == [
        (folder, "this folder cannot be read: check its permissions")
    ]


def test_closed_folders_of_one_name_are_told_apart(
    tmp_path: Path, closed: set[Path]
) -> None:
    write_scans(tmp_path, "a/scan.nii.gz", "a/x/s.nii.gz", "b/s.nii.gz", "b/x/s.nii.gz")
    closed.update((tmp_path / "a/x", tmp_path / "b/x"))
    found = find_cases([tmp_path / "a", tmp_path / "b"])
    assert [refusal.shown for refusal in found.refusals] == ["a/x", "b/x"]


def test_a_comparison_without_a_folder_that_cannot_be_read_is_refused(
    tmp_path: Path, closed: set[Path]
) -> None:
    write_scans(tmp_path, "a/a_dseg.nii.gz", "b/b_dseg.nii.gz")
    closed.add(tmp_path / "b")
    with pytest.raises(PermissionError):
        find_files(tmp_path)


@pytest.mark.slow
@pytest.mark.important
def test_closed_streams_change_nothing(tmp_path: Path) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz")
    command = f'"{sys.executable}" -m trinat predict in --out out --json --no-pictures --threads 1'
    line = f'{command} --model "{random_model()}" <&- >&- 2>&-'
    assert subprocess.run(line, shell=True, cwd=tmp_path).returncode == Exit.OK
    assert read_entries([tmp_path / "out/run.jsonl"])["a"].status == "done"
    assert [path.name for path in scans.iterdir()] == ["a.nii.gz"]


@pytest.mark.parametrize(
    "fields",
    [
        {"case": 5},
        {"case": ["a"]},
        {"status": "odd"},
        {"outputs": [1]},
        {"timings_s": {"read": "long"}},
        {"result": {"volumes_mm3": 5}},
        {"result": {"total_brain_mm3": float("nan")}},
        {"result": {"reasons": 3}},
        {"unknown": ""},
    ],
    ids=str,
)
def test_values_of_wrong_types_in_a_ledger_are_refused(
    tmp_path: Path, fields: dict
) -> None:
    ledger = tmp_path / "run.jsonl"
    ledger.write_text(json.dumps({"case": "a", "status": "done"} | fields) + "\n")
    with pytest.raises(IntegrityError, match="line 1 is no entry of a ledger"):
        read_entries([ledger])


LAUGHS = "".join(
    f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(11)
)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 20_000,
        "name: 2020-99-99",
        "name: !!bool x",
        "1" * 5_000,
        f"a0: &a0 [x]\n{LAUGHS}",
    ],
    ids=["brackets", "date", "bool", "number", "laughs"],
)
def test_a_recipe_that_is_no_yaml_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.yaml").write_text(text)
    with refusal(ConfigError, tmp_path / "r.yaml"):
        read_yaml(tmp_path / "r.yaml")
    if "\n" not in text:
        with pytest.raises(ConfigError, match="is no value"):
            with_settings({}, [f"a={text.removeprefix('name: ')}"])


def test_anchors_of_a_recipe_are_read(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("a: &a {b: 1}\nc: [*a, *a]\n")
    assert read_yaml(tmp_path / "r.yaml")["c"] == [{"b": 1}, {"b": 1}]
