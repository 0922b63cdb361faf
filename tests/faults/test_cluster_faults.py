"""A live queue of two workers: one dies during the run, and nothing is lost."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from helpers.overfitted import random_model
from helpers.poison import IN_HAND, segment_poison, segment_without_end
from helpers.serial import SerialEngine, run_serially, write_heads

from trinat.pipelines.cli.options import OnCluster
from trinat.pipelines.common.exits import Exit
from trinat.pipelines.predict.engine import DaskEngine
from trinat.pipelines.predict.settings import PredictRequest, RunSettings
from trinat.pipelines.study.cases import Case
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.ledger import read_entries
from trinat.segmentation.errors import ConfigError, InterruptedRunError
from trinat.segmentation.io.files import sha256_of

if TYPE_CHECKING:
    from distributed import LocalCluster

dask = pytest.importorskip("dask")
pytest.importorskip("distributed")


class _KillsOneWorker:
    """A local cluster in which one worker is killed when the first scan is done."""

    def __init__(self, settings: RunSettings) -> None:
        self.engine = DaskEngine(settings, "local:2")
        self.killed = 0

    def run(self, cases: Iterable[Case], stop: Callable[[], bool]) -> Iterator[Entry]:
        for entry in self.engine.run(cases, stop):
            if not self.killed:
                self.killed = int(entry.worker.split(":")[1])
                assert self.killed != os.getpid()
                psutil.Process(self.killed).kill()
            yield entry


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    scans = write_heads(tmp_path / "in", *(f"s{i}.nii.gz" for i in range(8)))
    outcome = run_serially(scans, tmp_path / "cluster", engine=_KillsOneWorker)
    assert (outcome.done, outcome.failed) == (8, 0)
    run_serially(scans, tmp_path / "alone")
    for path in (tmp_path / "alone").glob("*.nii.gz"):
        assert sha256_of(path) == sha256_of(tmp_path / "cluster" / path.name)
    entries = read_entries([tmp_path / "cluster/run.jsonl"])
    assert len({entry.worker for entry in entries.values()}) >= 2


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_a_scan_that_kills_three_workers_is_set_aside(tmp_path: Path) -> None:
    scans = write_heads(tmp_path / "in", "a.nii.gz", "kills.nii.gz", "z.nii.gz")
    out = tmp_path / "out"
    outcome = run_serially(
        scans,
        out,
        engine=lambda settings: DaskEngine(settings, "local:2", task=segment_poison),
    )
    assert (outcome.done, outcome.failed) == (2, 1)
    entry = read_entries([out / "run.jsonl"])["kills"]
    assert entry.status == "failed"
    assert (
        entry.reason == "3 workers died while processing it, so it is not tried again"
    )


def restrictions(settings: RunSettings, device: str, case: Case) -> Entry:
    """Return an entry that reports the limits of its worker."""
    from distributed import get_worker

    worker = get_worker()
    task = worker.state.tasks[worker.get_current_task()]
    return Entry(case.id, "done", result=task.resource_restrictions or {})


@pytest.fixture
def no_workers_yet() -> Iterator[LocalCluster]:
    """Provide a scheduler whose workers, with a GPU each, have not started yet."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=0,
        processes=False,
        threads_per_worker=2,
        dashboard_address=":0",
        resources={"GPU": 1},
    ) as cluster:
        yield cluster


SETTINGS = RunSettings(Path(), Path(), "", Path())
CASES = [Case(name, Path(name), name) for name in ("a", "b")]


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_workers_that_come_late_do_one_scan_a_gpu(no_workers_yet: LocalCluster) -> None:
    def stop() -> bool:
        no_workers_yet.scale(1)
        return False

    engine = DaskEngine(SETTINGS, no_workers_yet.scheduler_address, task=restrictions)
    entries = list(engine.run(CASES, stop))
    assert [(entry.case, entry.result) for entry in entries] == [
        ("a", {"GPU": 1}),
        ("b", {"GPU": 1}),
    ]


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_a_run_that_waits_for_its_first_worker_can_be_stopped(
    no_workers_yet: LocalCluster,
) -> None:
    asked: list[bool] = []

    def stop() -> bool:
        asked.append(len(asked) >= 4)
        return asked[-1]

    engine = DaskEngine(SETTINGS, no_workers_yet.scheduler_address, task=restrictions)
    assert list(engine.run(CASES, stop)) == []


@pytest.mark.slow
def test_ctrl_c_finishes_the_scans_that_local_workers_have_in_hand(
    tmp_path: Path,
) -> None:
    scans = write_heads(tmp_path / "in", *(f"s{i}.nii.gz" for i in range(60)))
    out, trinat = tmp_path / "out", Path(sys.executable).with_name("trinat")
    options = (
        "--model",
        random_model(),
        "--no-pictures",
        "--quiet",
        "--cluster",
        "local:1",
    )
    # A process group as in a terminal, so that the signal reaches all processes.
    run = subprocess.Popen(
        [trinat, "predict", scans, "--out", out, *options],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (out / "run.jsonl").exists() or not (out / "run.jsonl").read_bytes():
        assert run.poll() is None
        time.sleep(0.01)
    # Leaves time for the next scan to begin.
    time.sleep(0.05)
    os.killpg(run.pid, signal.SIGINT)
    _, told = run.communicate(timeout=120)
    assert run.returncode == Exit.INTERRUPTED
    entries = read_entries([out / "run.jsonl"])
    assert len(entries) == len(list(out.glob("*_dseg.nii.gz"))) < 60
    assert {entry.status for entry in entries.values()} == {"done"}
    # The workers print nothing.
    assert len(told.splitlines()) == 2


@pytest.fixture
def scheduler() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Provide a scheduler with a worker in a process of its own, and its address."""
    code = (
        "from distributed import LocalCluster\nimport time\n"
        "cluster = LocalCluster(n_workers=1, processes=False, dashboard_address=':0',"
        " protocol='tcp', host='127.0.0.1')\n"
        "print(cluster.scheduler_address, flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout
        yield process, process.stdout.readline().strip()
        process.kill()


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_scans_in_hand_when_the_scheduler_dies_are_done_by_the_next_run(
    scheduler, tmp_path: Path, caplog
) -> None:
    process, address = scheduler
    logging.getLogger("distributed.client").addHandler(caplog.handler)
    scans, out = write_heads(tmp_path / "in", "a.nii.gz", "b.nii.gz"), tmp_path / "out"

    class _Loses:
        """A cluster whose scheduler is killed when a worker has received the first of two scans."""

        def __init__(self, settings: RunSettings) -> None:
            self.engine = DaskEngine(settings, address, task=segment_without_end)

        def run(
            self, cases: Iterable[Case], stop: Callable[[], bool]
        ) -> Iterator[Entry]:
            def asked() -> bool:
                if (out / IN_HAND).exists():
                    process.kill()
                return stop()

            return self.engine.run(cases, asked)

    with pytest.raises(InterruptedRunError) as lost:
        run_serially(scans, out, engine=_Loses)
    assert str(lost.value) == (
        f"{address}: the connection to the Dask scheduler was lost: restart the "
        "scheduler and run the same "
        "command to resume"
    )
    assert caplog.records == []
    assert not (out / "run.jsonl").exists()
    assert run_serially(scans, out).done == 2


def test_an_address_where_no_scheduler_answers_is_told() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        with (
            dask.config.set({"distributed.comm.timeouts.connect": "200ms"}),
            pytest.raises(
                ConfigError, match="no scheduler answers there: start one with `dask"
            ),
        ):
            list(DaskEngine(SETTINGS, address).run(CASES, lambda: False))


@pytest.mark.parametrize(("given", "threads"), [(None, 2), (3, 3)])
def test_workers_on_one_machine_share_its_processors(
    monkeypatch, given, threads: int
) -> None:
    monkeypatch.setattr("trinat.pipelines.predict.engine.cpu_count", lambda: 9)
    settings = RunSettings(Path(), Path(), "", Path(), threads=given)
    assert DaskEngine(settings, "local:4").settings.threads == threads


def test_the_submitting_machine_does_not_say_how_many_threads_others_have(
    tmp_path: Path,
) -> None:
    told = []

    class Engine(SerialEngine):
        def __init__(self, settings: RunSettings) -> None:
            told.append(settings.threads)
            super().__init__(settings)

    scans = write_heads(tmp_path / "in", "a.nii.gz")
    run_serially(scans, tmp_path / "out", engine=Engine, threads=None)
    assert told == [None]


def test_unknown_clusters_are_refused() -> None:
    with pytest.raises(ConfigError, match="--cluster cloud"):
        OnCluster("cloud").apply_to(PredictRequest([], Path()))


def test_job_queues_need_a_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--cluster-config"):
        run_serially(
            write_heads(tmp_path / "in", "a.nii.gz"),
            tmp_path / "o",
            engine=OnCluster("slurm").apply_to(PredictRequest([], Path())).engine,
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": ("cuda:0", "cuda:1")}, "each worker uses one device: give one"),
        ({"workers": 2}, "give --cluster local:2"),
        ({"timeout_s": 60}, "walltime"),
    ],
)
def test_what_the_cluster_decides_is_refused_in_one_line(options, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        OnCluster("local:2").apply_to(PredictRequest([], Path(), **options))
    assert message in str(refused.value)
