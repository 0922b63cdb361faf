"""The ledger: what was appended holds, torn lines are ignored, currency goes by hash."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.batch.ledger import Entry, Ledger, digest_files, ledgers_in, read_entries
from segmentation.errors import IntegrityError

DONE = Entry("a", "done", input_sha256="i", model="m", settings="s", finished="2026-01-01")


def test_last_entry_of_a_case_holds_over_all_ledgers(tmp_path: Path) -> None:
    with Ledger(tmp_path / "run.shard-1-of-2.jsonl") as ledger:
        ledger.add(replace(DONE, finished="2026-01-02", reason="newer"))
    with Ledger(tmp_path / "run.shard-2-of-2.jsonl") as ledger:
        ledger.add(DONE)
        ledger.add(replace(DONE, case="b"))
    entries = read_entries(ledgers_in(tmp_path))
    assert {case: entry.reason for case, entry in entries.items()} == {"a": "newer", "b": ""}
    assert set(read_entries(ledgers_in(tmp_path), {"b", "c"})) == {"b"}


def test_torn_line_is_ignored_and_the_next_run_appends_after_it(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Ledger(path) as ledger:
        ledger.add(DONE)
        ledger.add(replace(DONE, case="b"))
    path.write_bytes(path.read_bytes()[:-20])
    assert set(read_entries([path])) == {"a"}
    with Ledger(path) as ledger:
        ledger.add(replace(DONE, case="c"))
    assert set(read_entries([path])) == {"a", "c"}


def test_a_whole_line_that_is_no_entry_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text('{"case":"a","stat":"done"}\n')
    with pytest.raises(IntegrityError, match="line 1"):
        read_entries([tmp_path / "run.jsonl"])


def test_a_name_with_a_newline_stays_on_one_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Ledger(path) as ledger:
        ledger.add(replace(DONE, input="a\nb \udcff.nii"))
    assert path.read_bytes().count(b"\n") == 1
    assert read_entries([path])["a"].input == "a\nb \udcff.nii"


@pytest.mark.parametrize(
    ("input_", "model", "settings", "content", "current"),
    [
        ("i", "m", "s", b"x", True),
        ("other", "m", "s", b"x", False),
        ("i", "other", "s", b"x", False),
        ("i", "m", "other", b"x", False),
        ("i", "m", "s", b"changed", False),
        ("i", "m", "s", None, False),
    ],
)
def test_done_means_same_input_model_settings_and_output(
    tmp_path: Path, input_: str, model: str, settings: str, content: bytes | None, current: bool
) -> None:
    (tmp_path / "o").write_bytes(b"x")
    entry = replace(DONE, outputs={"o": digest_files([tmp_path / "o"])})
    (tmp_path / "o").unlink()
    if content is not None:
        (tmp_path / "o").write_bytes(content)
    assert entry.is_current(tmp_path, input_, model, settings) is current


def test_a_failure_is_never_current(tmp_path: Path) -> None:
    assert not replace(DONE, status="failed").is_current(tmp_path, "i", "m", "s")
