"""Files that a run did not write, or that have been edited since, are never replaced."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.refusals import refusal
from helpers.serial import QUICK, SerialEngine, run_serially, write_scans

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.predict.run import merge
from trinat.pipelines.predict.settings import Shard
from trinat.pipelines.study.cases import Case
from trinat.pipelines.study.corrections import (
    corrected_path,
    mask_path,
    sidecar_path,
)
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.ledger import Ledger, read_entries
from trinat.pipelines.study.naming import WORK
from trinat.segmentation.errors import ConfigError, OutputError
from trinat.segmentation.io.files import read_rows, sha256_of

TABLES = ("summary.tsv", "qc.tsv", "volumes.tsv", "report.html")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


def test_a_label_map_of_the_users_is_kept_and_the_other_scans_go_on(
    tmp_path: Path,
) -> None:
    scans, out = write_scans(tmp_path / "in", "a.nii.gz", "b.nii.gz"), tmp_path / "out"
    out.mkdir()
    (out / "a_dseg.nii.gz").write_bytes(b"by hand")
    outcome = run_serially(scans, out)
    assert (outcome.done, outcome.skipped, outcome.failed) == (1, 0, 1)
    # Also if the other folder is only looked at.
    again = run_serially(scans, out)
    assert (again.skipped, again.failed) == (1, 1)
    assert outcome.exit == again.exit == merge(out).exit == Exit.SOME_FAILED
    assert (out / "a_dseg.nii.gz").read_bytes() == b"by hand"
    reason = read_entries([out / "run.jsonl"])["a"].reason
    assert reason.startswith("a_dseg.nii.gz is there, but in no ledger")
    assert "--overwrite" in reason


def test_joined_folders_have_the_results_of_both_if_they_keep_their_ledgers(
    tmp_path: Path,
) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz", "b.nii.gz")
    out, other = tmp_path / "out", tmp_path / "other"
    run_serially([str(scans / "a.nii.gz")], out)
    run_serially([str(scans / "b.nii.gz")], other)
    (other / "run.jsonl").rename(other / "run-2.jsonl")
    shutil.copytree(other, out, dirs_exist_ok=True)
    assert run_serially(scans, out).skipped == 2


def test_a_file_that_comes_while_its_scan_is_segmented_is_kept(tmp_path: Path) -> None:
    scans, out = write_scans(tmp_path / "in", "a.nii.gz"), tmp_path / "out"

    class Slow(SerialEngine):
        def run(
            self, cases: Iterable[Case], stop: Callable[[], bool]
        ) -> Iterator[list[Entry]]:
            for entries in super().run(cases, stop):
                (out / "a_dseg.nii.gz").write_bytes(b"by hand")
                yield entries

    assert run_serially(scans, out, engine=Slow).failed == 1
    assert (out / "a_dseg.nii.gz").read_bytes() == b"by hand"
    assert read_entries([out / "run.jsonl"])["a"].status == "failed"


def test_a_corrected_result_does_not_stand_in_for_a_new_output(tmp_path: Path) -> None:
    scans, out = write_scans(tmp_path / "in", "a.nii.gz"), tmp_path / "out"
    run_serially(scans, out)
    (out / "a_dseg.nii.gz").write_bytes(b"corrected")
    (out / "a_aseg.stats").write_bytes(b"mine")
    outcome = run_serially(scans, out, output=replace(QUICK, stats=True))
    assert outcome.failed == 1


def test_a_correction_beside_its_result_is_never_replaced_or_taken_for_a_scan(
    tmp_path: Path,
) -> None:
    scans, out = write_scans(tmp_path / "in", "a.nii.gz"), tmp_path / "out"
    run_serially(scans, out)
    result = out / "a_dseg.nii.gz"
    files = [corrected_path(result), mask_path(result), sidecar_path(result)]
    draft = out / WORK / "drafts/anna.draft"
    draft.parent.mkdir(parents=True)
    for path in (*files, draft):
        path.write_bytes(b"by hand")
        # Next to scans it is not taken for a scan.
        (tmp_path / "in" / path.name).write_bytes(b"by hand")
    # Other settings, so that it is segmented again.
    again = replace(QUICK, stats=True)
    outcome = run_serially(scans, out, output=again, overwrite=True)
    assert (outcome.done, outcome.failed) == (1, 0)
    # When another scan of this name gives no result, the outputs of the first are deleted, and
    # no other file.
    (tmp_path / "in/a.nii.gz").write_bytes(b"no scan")
    assert run_serially(scans, out, overwrite=True).failed == 1
    assert not result.exists()
    assert merge(out, overwrite=True).failed == 1
    for path in (*files, draft):
        assert path.read_bytes() == b"by hand"


def test_a_label_map_that_was_changed_by_hand_is_replaced_with_overwrite_alone(
    tmp_path: Path,
) -> None:
    scans, out = write_scans(tmp_path / "in", "a.nii.gz"), tmp_path / "out"
    assert run_serially(scans, out).done == 1
    ours = (out / "a_dseg.nii.gz").read_bytes()
    (out / "a_dseg.nii.gz").write_bytes(b"changed")
    for _ in range(2):
        outcome = run_serially(scans, out)
        assert (outcome.failed, outcome.exit) == (1, Exit.ALL_FAILED)
        reason = read_entries([out / "run.jsonl"])["a"].reason
        assert reason.startswith("a_dseg.nii.gz was changed since")
        assert "--overwrite" in reason
        assert (out / "a_dseg.nii.gz").read_bytes() == b"changed"
        # The measurements do not belong to this label map.
        assert not read_rows(out / "volumes.tsv", required=("case",))
    assert run_serially(scans, out, overwrite=True).done == 1
    assert {path.name: path.read_bytes() for path in out.glob("a_dseg*")} == {
        "a_dseg.nii.gz": ours
    }


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_the_users_refuses_the_run_and_nothing_is_written(
    tmp_path: Path, name: str
) -> None:
    own = write_scans(tmp_path / "own", "scan.nii.gz")
    (own / name).write_text("mine")
    before = contents(own)
    with pytest.raises(OutputError, match=name):
        run_serially([str(own / "scan.nii.gz")], own)
    assert contents(own) == before
    assert run_serially([str(own / "scan.nii.gz")], own, overwrite=True).exit == Exit.OK
    assert (own / name).read_text() != "mine"


def test_an_output_folder_that_is_the_input_writes_nothing(tmp_path: Path) -> None:
    own = write_scans(tmp_path / "own", "scan.nii.gz")
    before = contents(own)
    with refusal(ConfigError, own, remedy="--out"):
        run_serially(own, own)
    assert contents(own) == before


def test_a_kill_between_renaming_and_the_ledgers_line_is_no_change_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans, out = write_scans(tmp_path / "in", "a.nii.gz", "b.nii.gz"), tmp_path / "out"
    add = Ledger.add

    def killed(self: Ledger, entry: object) -> None:
        if getattr(entry, "status", "") == "done":
            raise KeyboardInterrupt
        add(self, entry)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "add", killed)
        with pytest.raises(KeyboardInterrupt):
            run_serially(scans, out)
    (written,) = out.glob("*_dseg.nii.gz")
    digest = sha256_of(written)
    assert run_serially(scans, out).done == 2
    assert sha256_of(written) == digest


def test_a_kill_while_tables_are_written_is_no_change_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans, out = write_scans(tmp_path / "in", "a.nii.gz"), tmp_path / "out"
    replace = Path.replace

    def killed(self: Path, target: Path) -> Path:
        done = replace(self, target)
        if Path(target) == out / "summary.tsv":
            raise KeyboardInterrupt
        return done

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            run_serially(scans, out)
    assert (out / "summary.tsv").exists()
    assert run_serially(scans, out).exit == Exit.OK
    assert all((out / name).exists() for name in TABLES)


def test_a_link_in_the_place_of_a_result_is_kept(tmp_path: Path) -> None:
    scans, out = write_scans(tmp_path / "in", "a.nii.gz"), tmp_path / "out"
    out.mkdir()
    (out / "a_dseg.nii.gz").symlink_to(tmp_path / "nowhere")
    assert run_serially(scans, out).failed == 1
    assert os.readlink(out / "a_dseg.nii.gz") == str(tmp_path / "nowhere")  # noqa: PTH115


def test_what_a_killed_merge_has_left_does_not_become_an_output(tmp_path: Path) -> None:
    scans, out = write_scans(tmp_path / "in", "a.nii.gz"), tmp_path / "out"
    run_serially(scans, out, shard=Shard(1, 1))
    left = out / WORK / "staging/tables/.trinat-0.tmp"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half a table")
    assert merge(out).exit == Exit.OK
    assert not (out / left.name).exists()
    assert not (out / WORK).exists()
