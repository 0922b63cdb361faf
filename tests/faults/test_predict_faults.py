"""Crashes, hangs, kills and two runs at once: each is reported, and nothing is lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from helpers.overfitted import random_model
from helpers.poison import serve_poison, serve_without_end, start_without_end
from helpers.serial import run_serially, write_heads
from helpers.warm import Started, Warm

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.jobs.lock import run_lock
from trinat.pipelines.predict.engine import local_engine
from trinat.pipelines.predict.settings import (
    OutputSettings,
    PredictRequest,
    RunSettings,
)
from trinat.pipelines.study.cases import Case
from trinat.pipelines.study.ledger import read_entries
from trinat.pipelines.study.naming import WORK
from trinat.segmentation.errors import DeviceError, LockedError
from trinat.segmentation.io.files import sha256_of


@pytest.mark.slow
@pytest.mark.important
def test_scans_that_kill_hang_and_eat_memory_fail_alone(tmp_path: Path) -> None:
    names = ("a", "eats-memory", "hangs", "kills", "z")
    scans = write_heads(tmp_path / "in", *(f"{name}.nii.gz" for name in names))
    outcome = run_serially(
        scans,
        tmp_path / "out",
        engine=lambda settings: local_engine(
            settings, ["cpu"], timeout_s=15, target=serve_poison
        ),
    )
    assert (outcome.done, outcome.failed) == (2, 3)
    assert outcome.exit == Exit.SOME_FAILED
    entries = read_entries([tmp_path / "out/run.jsonl"])
    assert "out of memory" in entries["eats-memory"].reason
    assert "longer than 15 s" in entries["hangs"].reason
    assert "died while reading" in entries["kills"].reason
    assert {case for case, entry in entries.items() if entry.status == "done"} == {
        "a",
        "z",
    }


@pytest.mark.slow
@pytest.mark.important
def test_a_scan_that_kills_the_process_before_it_is_ready_fails_alone(
    tmp_path: Path,
) -> None:
    scans = write_heads(tmp_path / "in", "kills.nii.gz", "z.nii.gz")
    outcome = run_serially(
        scans,
        tmp_path / "out",
        engine=lambda settings: local_engine(settings, ["cpu"], target=serve_poison),
    )
    assert (outcome.done, outcome.failed) == (1, 1)
    entries = read_entries([tmp_path / "out/run.jsonl"])
    assert "died while reading" in entries["kills"].reason


@pytest.fixture(scope="module")
def many(
    warm: Warm, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, str]]:
    """Provide scans and the digests of the outputs of an undisturbed run."""
    root = tmp_path_factory.mktemp("many")
    scans = write_heads(root / "in", *(f"s{i}.nii.gz" for i in range(12)))
    assert _start(warm, scans, root / "out").wait() == Exit.OK
    return scans, _digests(root / "out")


def _start(warm: Warm, scans: Path, out: Path) -> Started:
    words = ("trinat", "predict", scans, "--out", out, "--model", random_model())
    quick = ("--threads", "1", "--no-pictures", "--quiet")
    return warm.start(*words, *quick, environment=os.environ)


def _digests(out: Path) -> dict[str, str]:
    return {path.name: sha256_of(path) for path in out.rglob("*.nii.gz")}


def _wait_for_entries(out: Path, count: int) -> None:
    ledger = out / "run.jsonl"
    deadline = time.monotonic() + 120
    while not ledger.exists() or ledger.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.important
def test_after_kill_a_rerun_gives_the_same_bytes_and_leaves_nothing_stray(
    warm: Warm, many, tmp_path
) -> None:
    scans, expected = many
    run = _start(warm, scans, tmp_path)
    _wait_for_entries(tmp_path, 2)
    workers = psutil.Process(run.pid).children(recursive=True)
    run.kill()
    run.wait()
    # Workers must end with the leader, or they would write into the next run.
    _, alive = psutil.wait_procs(workers, timeout=5)
    assert alive == []
    assert _start(warm, scans, tmp_path).wait() == Exit.OK
    assert _digests(tmp_path) == expected
    names = {path.name for path in tmp_path.rglob("*")}
    tables = {
        "labels.tsv",
        "run.jsonl",
        "summary.tsv",
        "volumes.tsv",
        "qc.tsv",
        "report.html",
    }
    assert names == tables | set(expected)


@pytest.mark.slow
@pytest.mark.important
def test_interrupt_finishes_the_scan_in_hand_and_a_rerun_the_others(
    warm: Warm, many, tmp_path
) -> None:
    scans, expected = many
    run = _start(warm, scans, tmp_path)
    _wait_for_entries(tmp_path, 1)
    os.kill(run.pid, signal.SIGINT)
    assert run.wait(timeout=60) == Exit.INTERRUPTED
    written = _digests(tmp_path)
    entries = read_entries([tmp_path / "run.jsonl"])
    # Every output is whole and in the ledger; scans that were not begun have neither. Each scan
    # has a label map and a brain mask.
    assert len(written) == 2 * len(entries) < 24
    assert all(expected[name] == digest for name, digest in written.items())
    assert _start(warm, scans, tmp_path).wait() == Exit.OK
    assert _digests(tmp_path) == expected


def test_scans_of_a_worker_that_was_ended_with_the_run_have_not_failed() -> None:
    asked: list[bool] = []

    def stop() -> bool:
        # Once the scan is in hand, the queue terminates the job: this process and its workers.
        if asked:
            for worker in multiprocessing.active_children():
                worker.terminate()
                worker.join()
        asked.append(bool(asked))
        return asked[-1]

    settings = RunSettings(Path(), Path(), "", Path())
    engine = local_engine(settings, ["cpu"], target=serve_without_end)
    assert list(engine.run([Case("a", Path("a"), "a")], stop)) == []


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.parametrize(
    ("number", "grace_s", "times"),
    [(signal.SIGTERM, 1.0, 1), (signal.SIGINT, 600.0, 2)],
)
def test_a_signal_and_its_grace_or_a_second_one_end_a_run_whose_worker_is_stuck(
    number: signal.Signals,
    grace_s: float,
    times: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trinat.pipelines.jobs.process.GRACE_S", grace_s)
    scans = write_heads(tmp_path / "in", "a.nii.gz", "hangs.nii.gz")

    def signal_once_one_is_done() -> None:
        ledger = tmp_path / "out/run.jsonl"
        while not (ledger.exists() and b'"done"' in ledger.read_bytes()):
            time.sleep(0.1)
        for _ in range(times):
            os.kill(os.getpid(), number)
            time.sleep(1)

    threading.Thread(target=signal_once_one_is_done, daemon=True).start()
    outcome = run_serially(
        scans,
        tmp_path / "out",
        # The signal is ignored, so the time limit ends the scan, which counts as failed.
        engine=lambda settings: local_engine(
            settings, ["cpu"], timeout_s=20, target=serve_poison
        ),
    )
    assert outcome.exit == Exit.INTERRUPTED
    assert (outcome.done, outcome.failed) == (1, 0)
    assert (tmp_path / "out/summary.tsv").exists()
    assert multiprocessing.active_children() == []


def test_a_worker_that_does_not_start_in_time_ends_the_run(tmp_path: Path) -> None:
    settings = RunSettings(Path(), Path(), "", Path())
    engine = local_engine(settings, ["cpu"], timeout_s=2, target=start_without_end)
    with pytest.raises(DeviceError, match="did not start within 2 s"):
        list(engine.run([Case("a", Path("a"), "a")], lambda: False))


def test_a_scan_has_two_hours_for_each_pass_unless_the_limit_is_switched_off() -> None:
    request = PredictRequest([], Path(), output=OutputSettings(mirror=True, samples=2))
    assert request.limit_s == 6 * 7200
    assert replace(request, timeout_s=0).limit_s == 0


def test_a_second_run_on_the_same_output_is_refused(tmp_path: Path) -> None:
    scans, out = write_heads(tmp_path / "in", "a.nii.gz"), tmp_path / "out"
    with (
        run_lock(out / WORK / "lock"),
        pytest.raises(LockedError, match=str(os.getpid())),
    ):
        run_serially(scans, out)


@pytest.mark.slow
def test_two_workers_share_the_work(many, tmp_path: Path) -> None:
    scans, expected = many
    run_serially(scans, tmp_path, engine=lambda s: local_engine(s, ["cpu", "cpu"]))
    assert _digests(tmp_path) == expected
