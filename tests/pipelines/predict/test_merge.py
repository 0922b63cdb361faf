"""trinat merge: the last attempt at each case.

Ledgers are read once, and nothing is written twice.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.refusals import refusal
from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.pipelines.jobs.lock import run_lock
from trinat.pipelines.predict.run import merge
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.ledger import Ledger, read_entries
from trinat.pipelines.study.naming import WORK
from trinat.segmentation.errors import (
    InputError,
    IntegrityError,
    LockedError,
    OutputError,
)

FAILED = Entry("a", "failed", "a.nii", "is damaged", attempt=1)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Write two shards; the second has repeated a case of the first."""
    with Ledger(tmp_path / "run.shard-1-of-2.jsonl") as first:
        first.add(FAILED)
        first.add(replace(FAILED, case="b"))
    with Ledger(tmp_path / "run.shard-2-of-2.jsonl") as second:
        second.add(replace(FAILED, reason="is still damaged", attempt=2))
    return tmp_path


def test_the_last_attempt_at_each_case_is_joined_and_counted(out: Path) -> None:
    assert merge(out).failed == 2
    joined = read_entries([out / "run.jsonl"])
    assert {case: entry.reason for case, entry in joined.items()} == {
        "a": "is still damaged",
        "b": "is damaged",
    }
    assert (
        len((out / "run.jsonl").read_text().splitlines()) == 1 + 2
    )  # one of the tables
    assert len((out / "summary.tsv").read_text().splitlines()) == 1 + 2
    assert not (out / WORK).exists()


def test_as_json_merge_prints_the_counts_of_a_run(out: Path) -> None:
    printed = CliRunner().invoke(app, ["merge", str(out), "--json"]).stdout
    assert json.loads(printed) == {
        "done": 0,
        "skipped": 0,
        "failed": 2,
        "interrupted": False,
    }


def test_a_work_folder_that_is_a_link_is_refused_and_what_is_there_stays(
    out: Path,
) -> None:
    theirs = out / "theirs" / "staging" / "notes.txt"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    (out / WORK).symlink_to(out / "theirs")
    with refusal(OutputError, out / ".trinat-work"):
        merge(out)
    assert theirs.exists()


def test_merging_again_adds_only_what_is_new_and_reads_each_line_once(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge(out)
    with Ledger(out / "run.shard-1-of-2.jsonl") as first:
        first.add(replace(FAILED, case="b", reason="is gone", attempt=2))
    read = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda line: read.append(line) or loads(line))
    merge(out)
    # The header and two merged entries, three of the first shard and one of the second.
    assert len([line for line in read if b'"case"' in line]) == 3 + 3 + 1
    lines = (out / "run.jsonl").read_text().splitlines()
    assert len(lines) == 3 + 2
    assert "is gone" in lines[-1]


def test_a_run_at_work_is_left_alone(out: Path) -> None:
    with run_lock(out / WORK / "lock"), pytest.raises(LockedError):
        merge(out)
    assert not (out / "run.jsonl").exists()


def test_a_folder_without_ledgers_is_told(tmp_path: Path) -> None:
    with refusal(InputError, tmp_path, remedy="--out"):
        merge(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_ledger_is_named_and_nothing_written(out: Path) -> None:
    (out / "run.shard-2-of-2.jsonl").write_text('{"case": 1, "nonsense": 2}\n')
    with pytest.raises(IntegrityError, match=r"run\.shard-2-of-2\.jsonl: line 1"):
        merge(out)
    assert not (out / "run.jsonl").exists()
    assert not (out / "summary.tsv").exists()
