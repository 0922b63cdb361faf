"""An old result is never taken for a result of the present scan."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime, tzinfo
from pathlib import Path

import pytest
from helpers.overfitted import random_model
from helpers.refusals import refusal
from helpers.serial import QUICK, run_serially, small_scan, write_scans

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.evaluate.cohort import report_cohort
from trinat.pipelines.evaluate.evaluation import (
    EvaluationSettings,
    evaluate_predictions,
)
from trinat.pipelines.evaluate.settings import CohortSettings
from trinat.pipelines.jobs.lock import run_lock
from trinat.pipelines.predict.engine import SerialEngine
from trinat.pipelines.predict.run import Listener, merge, predict
from trinat.pipelines.predict.settings import SLICES, PredictRequest, Shard
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.ledger import Ledger, LedgerContents, read_entries
from trinat.pipelines.study.naming import WORK
from trinat.pipelines.study.study import Study
from trinat.segmentation.errors import EvaluationError, LockedError
from trinat.segmentation.io.files import read_rows, sha256_of

pytestmark = pytest.mark.usefixtures("without_figures")


@pytest.fixture(scope="module")
def segmented(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which `in` has two scans and `out` their segmentations."""
    folder = tmp_path_factory.mktemp("segmented")
    scans = write_scans(folder / "in", "a.nii.gz", "b.nii.gz")
    run_serially(scans, folder / "out", output=replace(QUICK, stats=True))
    return folder


@pytest.fixture
def two(segmented: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Copy two scans and their segmentations for a test to change."""
    shutil.copytree(segmented, tmp_path, dirs_exist_ok=True)
    return tmp_path / "in", tmp_path / "out"


class In2039(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return datetime(2039, 1, 1, tzinfo=tz)


def held(out: Path, ledger: str = "run.jsonl") -> dict[str, Entry]:
    return read_entries([out / ledger])


def status_in(table: Path) -> dict[str, str]:
    return {
        row["case"]: row["status"] for row in read_rows(table, required=("status",))
    }


def test_a_clock_that_ran_ahead_keeps_no_old_volumes_through_shards(
    tmp_path, monkeypatch
) -> None:
    scans, out = write_scans(tmp_path / "in", "a.nii.gz", "b.nii.gz"), tmp_path / "out"
    with monkeypatch.context() as ahead:
        ahead.setattr("trinat.pipelines.study.entry.datetime", In2039)
        run_serially(scans, out)
    assert held(out)["a"].finished.startswith("2039")
    (scans / "a.nii.gz").write_bytes(b"damaged")
    for part in (1, 2):
        run_serially(scans, out, shard=Shard(part, 2))
    outcome = merge(out)
    assert (outcome.done, outcome.failed, outcome.exit) == (1, 1, Exit.SOME_FAILED)
    assert status_in(out / "summary.tsv") == {"a": "failed", "b": "done"}
    cases = [row["case"] for row in read_rows(out / "volumes.tsv", required=("case",))]
    assert cases == ["b"]


def test_outputs_of_a_scan_are_deleted_when_another_in_its_place_fails(two) -> None:
    scans, out = two
    old = (out / "a_dseg.nii.gz").read_bytes()
    (scans / "a.nii.gz").write_bytes(b"damaged")
    run_serially(scans, out)
    assert not list(out.glob("a_*"))
    small_scan(0).write(scans / "a.nii.gz")
    assert run_serially(scans, out).done == 1
    assert (out / "a_dseg.nii.gz").read_bytes() == old


def test_outputs_of_a_scan_stay_when_the_same_scan_fails(
    two, truth: Path, logged: pytest.LogCaptureFixture
) -> None:
    scans, out = two
    old = (out / "a_dseg.nii.gz").read_bytes()
    # The input was not DICOM.
    for _ in range(2):
        wrong = replace(QUICK, dicom_seg=True)
        assert run_serially(scans, out, output=wrong).failed == 2
        assert (out / "a_dseg.nii.gz").read_bytes() == old
    # The table has no rows of scans that failed in the last run.
    assert not read_rows(out / "volumes.tsv", required=("case",))
    logged.clear()
    with pytest.raises(EvaluationError):
        _evaluated(out, truth)


def test_what_an_older_scan_had_besides_is_deleted(two) -> None:
    scans, out = two
    small_scan(9).write(scans / "a.nii.gz")
    run_serially(scans, out)
    assert (out / "a_dseg.nii.gz").exists()
    assert not (out / "a_aseg.stats").exists()


def test_what_an_older_scan_with_an_equal_label_map_had_besides_is_deleted(two) -> None:
    scans, out = two
    entry = held(out)["a"]
    with Ledger(out / "run.jsonl", LedgerContents({"a": entry})) as ledger:
        ledger.add(replace(entry, input_sha256="of an older scan", settings="older"))
    assert run_serially([str(scans / "a.nii.gz")], out).done == 1
    assert (out / "a_dseg.nii.gz").exists()
    assert not (out / "a_aseg.stats").exists()


def test_what_other_settings_had_besides_the_same_label_map_stays(two) -> None:
    scans, out = two
    run_serially(scans, out, output=replace(QUICK, entropy=True))
    assert (out / "a_aseg.stats").exists()


@pytest.mark.parametrize("shard", [None, Shard(1, 2)])
def test_a_table_of_labels_that_older_label_maps_need_is_replaced_with_a_warning(
    two, logged: pytest.LogCaptureFixture, shard: Shard | None
) -> None:
    scans, out = two
    by_index = replace(QUICK, format="index")
    logged.clear()
    inputs = scans if shard else [str(scans / "a.nii.gz")]
    run_serially(inputs, out, output=by_index, shard=shard)
    assert len(logged.messages) == 1
    logged.clear()
    run_serially(scans, out, output=QUICK)
    assert not logged.messages


def test_what_the_user_wrote_stays_where_it_is(two) -> None:
    scans, out = two
    (out / "a_aseg.stats").write_text("mine")
    (scans / "a.nii.gz").write_bytes(b"damaged")
    run_serially(scans, out, overwrite=True)
    assert (out / "a_aseg.stats").read_text() == "mine"


def test_the_result_of_a_scan_that_is_refused_now_is_told_no_more(two) -> None:
    scans, out = two
    (scans / "a.nii").write_bytes(b"would get the same output")
    run_serially(scans, out)
    assert status_in(out / "summary.tsv") == {
        "a.nii": "failed",
        "a.nii.gz": "failed",
        "b": "done",
    }
    study = Study(out)
    files = study.checked(study.label_maps())
    assert [file.path for file in files if file.unfit] == [out / "a_dseg.nii.gz"]


def test_the_result_of_a_scan_whose_content_was_dropped_stays(two) -> None:
    scans, out = two
    for name in ("a.nii.gz", "c.nii.gz"):
        (scans / name).unlink(missing_ok=True)
        (scans / name).symlink_to("../dropped.nii.gz")
    outcome = run_serially(scans, out, output=replace(QUICK, stats=True))
    assert (outcome.skipped, outcome.failed) == (2, 1)
    assert status_in(out / "summary.tsv") == {"a": "done", "b": "done", "c": "failed"}
    small_scan(9).write(scans.parent / "dropped.nii.gz")
    assert run_serially(scans, out, output=replace(QUICK, stats=True)).done == 2


def test_a_result_of_another_scan_that_is_replaced_is_named(
    two, logged: pytest.LogCaptureFixture
) -> None:
    scans, out = two
    other = scans.with_name("other")
    shutil.copytree(scans, other)
    small_scan(9).write(other / "a.nii.gz")
    logged.clear()
    outcome = run_serially(other, out, output=replace(QUICK, stats=True))
    assert (outcome.done, outcome.skipped) == (1, 1)
    assert held(out)["a"].input_sha256 == sha256_of(other / "a.nii.gz")
    [message] = [text for text in logged.messages if "another scan" in text]
    assert message.endswith(str(scans / "a.nii.gz"))


def test_a_renamed_scan_counts_once(two) -> None:
    scans, out = two
    (scans / "b.nii.gz").rename(scans / "c.nii.gz")
    run_serially(scans, out)
    assert _counted(out) == ["a", "c"]
    (scans / "c.nii.gz").rename(scans / "b.nii.gz")
    run_serially(scans, out)
    assert _counted(out) == ["a", "b"]


@pytest.mark.parametrize("shards", [1, 2])
def test_a_renamed_scan_counts_once_where_the_scans_are_missing(
    two, tmp_path: Path, shards: int
) -> None:
    scans, out = two

    def run_after_renaming(old: str, new: str) -> list[str]:
        (scans / old).rename(scans / new)
        if shards == 1:
            run_serially(scans, out)
        else:
            for part in range(1, shards + 1):
                run_serially(scans, out, shard=Shard(part, shards))
            merge(out)
        copy = tmp_path / "far" / "away" / new
        shutil.copytree(out, copy)
        merge(copy)
        return _counted(copy)

    assert run_after_renaming("b.nii.gz", "c.nii.gz") == ["a", "c"]
    assert run_after_renaming("c.nii.gz", "b.nii.gz") == ["a", "b"]


def test_a_scan_that_was_given_alone_and_with_its_folder_counts_once(
    tmp_path: Path,
) -> None:
    scans, out = write_scans(tmp_path / "in", "p/T1.nii.gz"), tmp_path / "out"
    # A scan of another participant with the same bytes is a scan of its own.
    shutil.copytree(scans / "p", scans / "copy")
    run_serially([str(scans / "p/T1.nii.gz")], out)
    for part in (1, 2):
        run_serially(scans, out, shard=Shard(part, 2))
    assert merge(out).done == 2
    assert _counted(out) == ["copy/T1", "p/T1"]


def test_a_result_is_judged_by_the_scan_where_it_was_read_last(two) -> None:
    scans, out = two
    again = scans.with_name("again")
    shutil.copytree(scans, again)
    with_stats = replace(QUICK, stats=True)
    assert run_serially(again, out, output=with_stats).skipped == 2
    small_scan(9).write(scans / "a.nii.gz")
    assert _counted(out) == ["a", "b"]


def _counted(out: Path) -> list[str]:
    """Return the cases in volumes.tsv, which are those whose label maps count, too."""
    cases = [row["case"] for row in read_rows(out / "volumes.tsv", required=("case",))]
    study = Study(out)
    files = study.checked(study.label_maps())
    fit = {file.path for file in files if not file.unfit}
    assert fit == {out / f"{case}_dseg.nii.gz" for case in cases}
    return cases


def _evaluated(out: Path, truth: Path) -> Exit:
    settings = EvaluationSettings(
        truth=truth,
        models={"m": out},
        out=out.parent / "compared",
        jobs=1,
        tables_only=True,
    )
    return evaluate_predictions(settings)


@pytest.fixture
def truth(two) -> Path:
    """Use the predictions as truth."""
    _, out = two
    folder = out.parent / "truth"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.nii.gz").write_bytes(
            (out / f"{name}_dseg.nii.gz").read_bytes()
        )
    return folder


def test_evaluate_does_not_measure_what_has_failed_since(
    two, truth: Path, logged: pytest.LogCaptureFixture
) -> None:
    scans, out = two
    old = (out / "a_dseg.nii.gz").read_bytes()
    (scans / "a.nii.gz").write_bytes(b"damaged")
    run_serially(scans, out)
    # As a run of an earlier version would leave it.
    (out / "a_dseg.nii.gz").write_bytes(old)
    logged.clear()
    assert _evaluated(out, truth) == Exit.SOME_FAILED
    rows = read_rows(out.parent / "compared/pairs.csv", required=("status", "note"))
    assert {row["subject"]: row["status"] for row in rows} == {
        "a": "failed",
        "b": "measured",
    }
    assert any("a, m: failed in trinat predict" in line for line in logged.messages)
    assert any("a, m: is an old result" in line for line in logged.messages)


def test_evaluate_does_not_measure_a_result_of_another_scan(
    two, truth: Path, logged: pytest.LogCaptureFixture
) -> None:
    scans, out = two
    small_scan(9).write(scans / "a.nii.gz")
    logged.clear()
    assert _evaluated(out, truth) == Exit.SOME_FAILED
    assert any(
        "a, m: is an old result: its scan was changed since" in line
        for line in logged.messages
    )
    # Files of the folder and of its subfolders are treated alike.
    with pytest.raises(EvaluationError, match="its scan was changed since"):
        _evaluated(out / "a_dseg.nii.gz", truth / "a.nii.gz")


def test_results_in_a_folder_below_the_ledger_are_judged_by_it(tmp_path: Path) -> None:
    scans, out = (
        write_scans(tmp_path / "in", "p/q/a.nii.gz", "b.nii.gz"),
        tmp_path / "out",
    )
    run_serially(scans, out)
    small_scan(9).write(scans / "p/q/a.nii.gz")
    labels = out / "p/q/a_dseg.nii.gz"
    with pytest.raises(EvaluationError, match="its scan was changed since"):
        _evaluated(labels.parent, labels)


def test_a_label_map_that_was_corrected_by_hand_is_measured(two, truth: Path) -> None:
    scans, out = two
    (out / "a_dseg.nii.gz").write_bytes((out / "b_dseg.nii.gz").read_bytes())
    run_serially(scans, out)
    assert _evaluated(out, truth) == Exit.OK


def test_where_scans_are_elsewhere_results_are_measured(two, truth: Path) -> None:
    scans, out = two
    scans.rename(scans.with_name("moved"))
    assert _evaluated(out, truth) == Exit.OK


def test_report_does_not_count_a_result_of_another_scan(
    two, logged: pytest.LogCaptureFixture
) -> None:
    scans, out = two
    small_scan(9).write(scans / "a.nii.gz")
    logged.clear()
    settings = CohortSettings(out, out.parent / "group", jobs=1, excluded=())
    assert report_cohort(settings) == Exit.SOME_FAILED
    rows = read_rows(out.parent / "group/volumes.csv", required=("subject",))
    assert {row["subject"] for row in rows} == {"b"}
    assert logged.messages == [
        "a: is an old result: its scan was changed since, or is another scan of this name if the "
        "results were copied; run trinat predict again"
    ]


def test_a_result_of_a_run_that_was_killed_before_its_line_is_not_measured(
    two, truth: Path, logged: pytest.LogCaptureFixture
) -> None:
    _, out = two
    other = truth.parent / "other.nii.gz"
    other.write_bytes((out / "b_dseg.nii.gz").read_bytes())
    with Ledger(out / "run.jsonl") as ledger:
        ledger.add(Entry("a", "writing", outputs={"a_dseg.nii.gz": sha256_of(other)}))
    other.replace(out / "a_dseg.nii.gz")
    logged.clear()
    assert _evaluated(out, truth) == Exit.SOME_FAILED
    assert any(
        "is not of the last run that was finished" in line for line in logged.messages
    )


# Runs side by side ----------------------------------------------------------------------------


@contextmanager
def at_work(out: Path, name: str) -> Iterator[None]:
    with run_lock(out / WORK / f"lock{name}"):
        yield


@pytest.mark.parametrize(
    ("running", "shard", "refused"),
    [
        (".all", Shard(1, 2), True),
        (".shard-1-of-2", None, True),
        (".shard-1-of-2", Shard(1, 3), True),
        (".shard-1-of-2", Shard(1, 2), True),
        (".shard-1-of-2", Shard(2, 2), False),
        (".sub-01", Shard(2, 2), True),
        ("", Shard(2, 2), False),  # merge
    ],
)
def test_runs_that_may_have_scans_in_common_are_not_side_by_side(
    tmp_path: Path, running: str, shard: Shard | None, refused: bool
) -> None:
    scans, out = write_scans(tmp_path / "in", "a.nii.gz", "b.nii.gz"), tmp_path / "out"
    error = refusal(LockedError, out / ".trinat-work") if refused else nullcontext()
    with at_work(out, running), error:
        run_serially(scans, out, shard=shard)
    assert list(out.glob("*.nii.gz")) == ([] if refused else [out / "b_dseg.nii.gz"])


def test_a_whole_run_holds_its_folder_against_shards(tmp_path: Path) -> None:
    scans, out = write_scans(tmp_path / "in", "a.nii.gz"), tmp_path / "out"
    refused = []

    def beside(count: int) -> None:
        try:
            run_serially(scans, out, shard=Shard(1, 1))
        except LockedError as error:
            refused.append(str(error))

    request = PredictRequest(
        [str(scans)], out, str(random_model()), engine=SerialEngine, threads=1
    )
    assert predict(request, Listener(on_start=beside)).done == 1
    assert len(refused) == 1
    assert "\n" not in refused[0]


def test_a_run_that_lost_its_folder_writes_no_tables(tmp_path: Path) -> None:
    scans, out = write_scans(tmp_path / "in", "a.nii.gz"), tmp_path / "out"
    work = out / WORK

    def lose(_: object) -> None:
        (work / "lock.all").write_text(
            '{"host": "b", "pid": 1, "boot": "", "namespace": ""}'
        )

    request = PredictRequest(
        [str(scans)], out, str(random_model()), engine=SerialEngine, threads=1
    )
    with refusal(LockedError, work):
        predict(request, Listener(on_entry=lose))
    assert not (out / "summary.tsv").exists()
    assert {path.name for path in work.iterdir()} == {"lock.all", "staging"}


def test_a_whole_run_removes_what_killed_shards_left(tmp_path: Path) -> None:
    scans, out = write_scans(tmp_path / "in", "a.nii.gz"), tmp_path / "out"
    (out / WORK / "staging.shard-1-of-2").mkdir(parents=True)
    (out / WORK / "lock.shard-1-of-2").write_text("")
    assert run_serially(scans, out).done == 1
    assert not (out / WORK).exists()


def test_a_refused_input_whose_name_is_a_path_ends_no_run(tmp_path: Path) -> None:
    scans, empty = write_scans(tmp_path / "in", "a.nii.gz"), tmp_path / "empty"
    empty.mkdir()
    outcome = run_serially([str(scans / "a.nii.gz"), str(empty)], tmp_path / "out")
    assert (outcome.done, outcome.failed) == (1, 1)


def test_slices_that_no_run_has_written_stay(two) -> None:
    scans, out = two
    own = out / SLICES / "a.json"
    own.parent.mkdir()
    own.write_text("mine")
    (scans / "a.nii.gz").write_bytes(b"damaged")
    run_serially(scans, out)
    assert own.read_text() == "mine"
