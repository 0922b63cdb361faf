"""trinat predict: scans that are done, done again or skipped, and the files it writes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers.overfitted import overfitted_model, random_model
from helpers.serial import (
    QUICK,
    run_serially,
    small_scan,
    table,
    write_heads,
    write_scans,
)

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.predict.engine import SerialEngine
from trinat.pipelines.predict.run import Listener, merge, predict
from trinat.pipelines.predict.settings import PredictRequest, Shard
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.ledger import read_entries
from trinat.segmentation.errors import ConfigError, InputError, OutputError
from trinat.segmentation.io.files import sha256_of


def statuses(out: Path) -> dict[str, str]:
    return {
        case: entry.status for case, entry in read_entries([out / "run.jsonl"]).items()
    }


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Segment three scans, one of them broken, and return both folders."""
    root = tmp_path_factory.mktemp("three")
    scans = write_scans(root / "in", "a.nii.gz", "b/c.nii.gz")
    (scans / "broken.nii.gz").write_bytes(b"no scan")
    outcome = run_serially(scans, root / "out")
    assert (outcome.done, outcome.failed, outcome.skipped) == (2, 1, 0)
    assert outcome.exit == Exit.SOME_FAILED
    assert sum(outcome.grades.values()) == 2
    return scans, root / "out"


@pytest.fixture
def again(three: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Copy both folders for a test to change."""
    for folder, name in zip(three, ("in", "out"), strict=True):
        shutil.copytree(folder, tmp_path / name)
    return tmp_path / "in", tmp_path / "out"


def test_a_result_knows_where_its_scan_was_moved(again: tuple[Path, Path]) -> None:
    scans, out = again
    moved = scans.rename(scans.with_name("moved"))
    assert run_serially(moved, out).skipped == 2
    entry = read_entries([out / "run.jsonl"])["a"]
    assert (out / entry.scan).samefile(moved / "a.nii.gz")
    reasons = {row["case"]: row["reason"] for row in table(out / "summary.tsv")}
    assert reasons["a"] == ""


def test_every_input_has_its_entry_and_the_broken_one_its_reason(three) -> None:
    _, out = three
    assert statuses(out) == {"a": "done", "b/c": "done", "broken": "failed"}
    reason = read_entries([out / "run.jsonl"])["broken"].reason
    assert reason.startswith("not gzip")


def test_labels_lie_on_the_scans_own_grid_as_labels(three) -> None:
    scans, out = three
    for name in ("a", "b/c"):
        scan, labels = (
            nib.load(scans / f"{name}.nii.gz"),
            nib.load(out / f"{name}_dseg.nii.gz"),
        )
        assert labels.shape == scan.shape
        np.testing.assert_allclose(labels.affine, scan.affine)
        assert labels.get_data_dtype() in (np.uint8, np.int16)
        assert labels.header.get_intent()[0] == "label"
        assert int(labels.header["qform_code"]) > 0
        assert int(labels.header["sform_code"]) > 0
        assert labels.header.get_xyzt_units()[0] == "mm"


def test_nothing_but_outputs_is_left(three) -> None:
    _, out = three
    assert {
        str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()
    } == {
        *("a_dseg.nii.gz", "b/c_dseg.nii.gz"),
        *(
            "run.jsonl",
            "summary.tsv",
            "volumes.tsv",
            "qc.tsv",
            "report.html",
            "labels.tsv",
        ),
    }
    assert not (out / ".trinat-work").exists()


def test_a_table_beside_the_label_maps_says_what_the_numbers_mean(three) -> None:
    _, out = three
    rows = {row["index"]: row for row in table(out / "labels.tsv")}
    assert rows["17"] == {
        "index": "17",
        "name": "Left-Hippocampus",
        "abbreviation": "L-Hi",
        "color": "#DCD814",
        "mapping": "9",
    }
    assert len(rows) == 33


def test_summary_has_a_row_for_every_input(three) -> None:
    _, out = three
    rows = {row["case"]: row["status"] for row in table(out / "summary.tsv")}
    assert rows == {"a": "done", "b/c": "done", "broken": "failed"}


def test_rerun_skips_what_is_done_and_tries_what_failed(again) -> None:
    outcome = run_serially(*again)
    assert (outcome.done, outcome.skipped, outcome.failed) == (0, 2, 1)


def test_a_changed_input_is_done_again(again) -> None:
    scans, out = again
    small_scan(9).write(scans / "a.nii.gz")
    assert run_serially(scans, out).done == 1


def test_a_touched_input_is_not_done_again(again) -> None:
    scans, out = again
    (scans / "a.nii.gz").touch()
    assert run_serially(scans, out).done == 0


def test_a_damaged_or_missing_output_is_made_again_the_same(again) -> None:
    scans, out = again
    before = sha256_of(out / "a_dseg.nii.gz"), sha256_of(out / "b/c_dseg.nii.gz")
    (out / "a_dseg.nii.gz").write_bytes(b"damaged")
    (out / "b/c_dseg.nii.gz").unlink()
    assert run_serially(scans, out, overwrite=True).done == 2
    assert before == (
        sha256_of(out / "a_dseg.nii.gz"),
        sha256_of(out / "b/c_dseg.nii.gz"),
    )


def test_other_settings_or_another_model_do_everything_again(
    again, tmp_path: Path
) -> None:
    scans, out = again
    assert run_serially(scans, out, output=replace(QUICK, format="index")).done == 2
    other = shutil.copytree(overfitted_model(), tmp_path / "other")
    assert (
        run_serially(
            scans, out, output=replace(QUICK, format="index"), model=str(other)
        ).done
        == 2
    )


def test_shards_divide_the_cases_and_merge_joins_them(tmp_path: Path) -> None:
    scans = write_scans(tmp_path / "in", *(f"s{i}.nii.gz" for i in range(4)))
    out = tmp_path / "out"
    for part in (1, 2, 3):
        run_serially(scans, out, shard=Shard(part, 3))
    assert not (out / "summary.tsv").exists()
    outcome = merge(out)
    assert outcome.done == 4
    assert len(table(out / "summary.tsv")) == len(table(out / "volumes.tsv")) == 4
    # One run over everything finds nothing left to do.
    assert run_serially(scans, out).skipped == 4


def test_what_was_refused_and_is_put_right_is_told_no_more(tmp_path: Path) -> None:
    scans, out = write_scans(tmp_path / "in", "a.nii.gz", "a.nii"), tmp_path / "out"
    assert run_serially(scans, out).exit == Exit.ALL_FAILED
    (scans / "a.nii").unlink()
    assert run_serially(scans, out).exit == Exit.OK
    rows = {row["case"]: row["status"] for row in table(out / "summary.tsv")}
    assert rows == {"a": "done"}
    ledger = (out / "run.jsonl").read_bytes()
    assert run_serially(scans, out).skipped == 1
    assert (out / "run.jsonl").read_bytes() == ledger
    assert merge(out).exit == Exit.OK


def test_a_failed_scan_that_was_removed_is_told_no_more(again) -> None:
    scans, out = again
    (scans / "broken.nii.gz").unlink()
    assert run_serially(scans, out).failed == 0
    assert [row["case"] for row in table(out / "summary.tsv")] == ["a", "b/c"]


def test_a_stopped_rerun_looks_through_no_more_of_what_is_done(
    again, monkeypatch
) -> None:
    @contextmanager
    def stopped(on_stop: Callable[[], None]) -> Iterator[Callable[[], bool]]:
        yield lambda: True

    monkeypatch.setattr("trinat.pipelines.predict.run.stop_on_signal", stopped)
    outcome = run_serially(*again)
    assert (outcome.done, outcome.skipped, outcome.failed) == (0, 0, 0)
    assert outcome.exit == Exit.INTERRUPTED


def test_half_a_pair_is_told_by_name_and_without_a_path(tmp_path: Path) -> None:
    scans, out = write_scans(tmp_path / "in", "a.nii.gz"), tmp_path / "out"
    nib.save(nib.Nifti1Pair.from_image(nib.load(scans / "a.nii.gz")), scans / "x.hdr")
    (scans / "x.img").unlink()
    assert run_serially(scans, out).exit == Exit.SOME_FAILED
    reason = read_entries([out / "run.jsonl"])["x"].reason
    assert reason == "its other half x.img is missing: put it beside it"


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/", "-1/2"])
def test_impossible_shards_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--shard"):
        Shard.parse(text)


@pytest.mark.parametrize(
    ("array", "shard"),
    [
        ({"ID": "5", "COUNT": "4", "MIN": "2", "STEP": "1"}, "4/4"),
        ({"ID": "7", "COUNT": "3", "MIN": "1", "STEP": "3"}, "3/3"),
        ({"ID": "3", "COUNT": "1", "MIN": "3", "STEP": "1"}, "1/1"),
        # --array=1,3 leaves some scans to no task, so `trinat predict` refuses this part.
        ({"ID": "3", "COUNT": "2", "MIN": "1", "STEP": "1"}, "3/2"),
    ],
)
def test_a_task_of_a_slurm_array_is_a_part_wherever_the_array_counts_from(
    tmp_path: Path, array: dict[str, str], shard: str
) -> None:
    (tmp_path / "trinat").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "trinat").chmod(0o755)
    script = Path(__file__).parents[3] / "scripts/slurm/array.sh"
    surroundings = {f"SLURM_ARRAY_TASK_{name}": value for name, value in array.items()}
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", script, "scans/"],
        capture_output=True,
        text=True,
        env=surroundings | {"PATH": path},
    )
    assert done.stdout.split() == [
        *("predict", "scans/", "--shard", shard, "--threads", "1", "--quiet")
    ]


def test_no_input_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no scans to segment"):
        run_serially([], tmp_path / "out")


def test_all_inputs_missing_fails_the_run(tmp_path: Path) -> None:
    outcome = run_serially([str(tmp_path / "none.nii")], tmp_path / "out")
    assert outcome.exit == Exit.ALL_FAILED


def test_scans_without_a_checksum_are_refused_on_request(tmp_path: Path) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz", "b.nii")
    outcome = run_serially(scans, tmp_path / "out", require_checksum=True)
    assert (outcome.done, outcome.failed) == (1, 1)
    entries = read_entries([tmp_path / "out/run.jsonl"])
    assert entries["a"].status == "done"
    assert "has no checksum" in entries["b"].reason
    # Also scans that were segmented before the option was given.
    assert run_serially(scans, tmp_path / "out").done == 1
    assert run_serially(scans, tmp_path / "out", require_checksum=True).failed == 1


@pytest.mark.slow
@pytest.mark.important
def test_timings_name_the_stages_and_add_up_to_the_run(tmp_path: Path) -> None:
    scans = write_heads(tmp_path / "in", "a.nii.gz", "b.nii.gz")
    trinat = str(Path(sys.executable).with_name("trinat"))
    options = ["--model", str(random_model()), "--threads", "1", "--quiet", "--timings"]
    done = subprocess.run(
        [trinat, "predict", str(scans), "--out", str(tmp_path / "out"), *options],
        check=True,
        capture_output=True,
        text=True,
    )
    lines = [line.rsplit(maxsplit=3) for line in done.stderr.splitlines()[2:]]
    walls = {name.strip(): float(wall) for name, wall, _, _ in lines}
    stages = {
        "start",
        "model",
        "find",
        "read",
        "checksum",
        "conform",
        "localisation",
        "fusion",
    }
    stages |= {
        "coronal",
        "axial",
        "sagittal",
        "agreement",
        "restore",
        "grade",
        "write",
        "picture",
    }
    assert stages <= walls.keys()
    whole, rest = walls.pop("total"), walls["other"]
    assert whole == pytest.approx(sum(walls.values()), abs=0.01 * len(walls))
    # Time outside of all stages: mostly the end of the worker process.
    assert -0.05 * whole < rest < 0.2 * whole
    for entry in read_entries([tmp_path / "out/run.jsonl"]).values():
        assert {"read", "conform", "coronal", "write"} <= entry.timings_s.keys()


def test_what_was_not_taken_is_said_also_where_nothing_is_left(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    template = tmp_path / "subjects/fsaverage/mri/orig.mgz"
    template.parent.mkdir(parents=True)
    template.touch()
    request = PredictRequest(inputs=(str(tmp_path / "subjects"),), out=tmp_path / "out")
    with pytest.raises(InputError, match="no scans to segment"):
        predict(request)
    assert logged.messages == [
        "fsaverage: not segmented, since it is a template, not a participant"
    ]


def predict_heard(scans: Path, out: Path, on_entry: Callable[[Entry], None]) -> None:
    request = PredictRequest(
        [str(scans)],
        out,
        model=str(random_model()),
        engine=SerialEngine,
        threads=1,
        output=QUICK,
    )
    predict(request, Listener(on_entry=on_entry))


def test_tables_grow_while_a_run_goes_on(tmp_path: Path) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz", "b.nii.gz")
    out = tmp_path / "out"
    seen: list[list[str]] = []

    def look(entry: Entry) -> None:
        rows = []
        for name in ("volumes.tsv", "qc.tsv"):
            if (out / name).is_file():
                rows += [row["case"] for row in table(out / name)]
        seen.append(rows)

    predict_heard(scans, out, look)
    assert seen == [[], ["a", "a"]]
    assert [row["case"] for row in table(out / "volumes.tsv")] == ["a", "b"]


def test_a_run_that_is_stopped_within_its_tables_writes_them_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz")
    out = tmp_path / "out"

    def stopped(self: object) -> None:
        folder = self._staging / "tables"
        folder.mkdir(parents=True)
        (folder / "volumes.tsv").write_text("half")

    monkeypatch.setattr("trinat.pipelines.predict.run._GrowingTables.renew", stopped)
    predict_heard(scans, out, lambda entry: None)
    assert [row["case"] for row in table(out / "volumes.tsv")] == ["a"]


def test_a_table_that_is_edited_during_a_run_is_refused_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trinat.pipelines.predict.run._LEAST_PAUSE_S", 0)
    monkeypatch.setattr("trinat.pipelines.predict.run._PAUSE_RATIO", 0)
    scans = write_scans(tmp_path / "in", "a.nii.gz", "b.nii.gz", "c.nii.gz")
    out = tmp_path / "out"

    def edit(entry: Entry) -> None:
        if (out / "volumes.tsv").is_file():
            (out / "volumes.tsv").write_text("mine")

    with pytest.raises(OutputError):
        predict_heard(scans, out, edit)
    assert (out / "volumes.tsv").read_text() == "mine"
    assert list(statuses(out).values()) == ["done", "done", "done"]
