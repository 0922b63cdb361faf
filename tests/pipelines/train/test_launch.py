"""Several processes: torchrun starts them, a death or a signal ends all, --resume continues."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
import yaml
from helpers.refusals import refusal
from helpers.small_store import all_train, small_store
from helpers.tiny_training import LONG_STEPS, SILENT, write_long_recipe
from helpers.warm import Started, Warm

from trinat.pipelines.train.launch import launch
from trinat.pipelines.train.run import find_device, read_recipe
from trinat.pipelines.train.settings import TrainSettings
from trinat.segmentation.errors import ConfigError, DeviceError, TrinatError
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.space.views import View
from trinat.segmentation.training.state import State, read_latest

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
# Variables of torchrun or the user must not reach the processes that are started here.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in PLACE} | {
    "OMP_NUM_THREADS": "1"
}
ROOT = Path(__file__).parents[3]
JOB = "train/coronal"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_long_recipe(tmp_path_factory.mktemp("recipe"))


@pytest.fixture(scope="module")
def undisturbed(
    warm: Warm, recipe: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a run of two processes from start to end."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    status, words = ended(start(warm, recipe, run), run)
    assert status == 0, words
    return run


def start(warm: Warm, recipe: Path, run: Path, *more: str) -> Started:
    words = ("trinat", "train", recipe, "--out", run, "--nproc", "2", *more)
    with run.with_suffix(".log").open("wb") as log:
        return warm.start(*words, environment=ENVIRONMENT, stderr=log)


def ended(process: Started, run: Path) -> tuple[int, str]:
    """Return the exit status and the output of a process."""
    status = process.wait(500)
    return status, run.with_suffix(".log").read_text()


def wait_for_a_state(run: Path) -> None:
    deadline = time.monotonic() + 500
    while not list((run / JOB).glob("state-*")):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ranks(process: Started) -> list[psutil.Process]:
    """Return the training processes, the leader first."""
    children = psutil.Process(process.pid).children()
    trainers = [
        child
        for child in children
        if "resource_tracker" not in " ".join(child.cmdline())
    ]
    return sorted(trainers, key=psutil.Process.create_time)


def state_of(run: Path) -> State:
    state, problems = read_latest(run / JOB)
    assert state is not None
    assert not problems
    return state


def assert_same_weights(first: Path, second: Path) -> None:
    one, two = state_of(first), state_of(second)
    assert one.counters.step == two.counters.step == LONG_STEPS
    for group in ("network", "average", "optimiser"):
        ours, theirs = getattr(one, group), getattr(two, group)
        assert ours.keys() == theirs.keys()
        assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == []
    models = [
        (run / "model/coronal.safetensors").read_bytes() for run in (first, second)
    ]
    assert models[0] == models[1]


@pytest.mark.slow
@pytest.mark.important
def test_two_processes_train_one_model_and_one_of_them_writes(
    undisturbed: Path,
) -> None:
    assert set(load_model(undisturbed / "model").networks) == {View.CORONAL}
    lines = (undisturbed / JOB / "metrics.csv").read_text().splitlines()
    steps = [int(line.split(",")[0]) for line in lines[1:]]
    assert steps == sorted(set(steps))
    assert steps[-1] == LONG_STEPS


@pytest.mark.slow
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.important), 1])
def test_after_a_killed_process_the_run_goes_on_to_the_same_bits(
    warm: Warm, recipe: Path, undisturbed: Path, tmp_path: Path, rank: int
) -> None:
    process = start(warm, recipe, tmp_path / "run")
    wait_for_a_state(tmp_path / "run")
    ranks(process)[rank].kill()
    status, words = ended(process, tmp_path / "run")
    assert status == 4, words
    assert "SIGKILL" in words.splitlines()[-1]
    resumed = start(warm, recipe, tmp_path / "run", "--resume")
    status, words = ended(resumed, tmp_path / "run")
    assert status == 0, words
    assert_same_weights(tmp_path / "run", undisturbed)


@pytest.mark.slow
@pytest.mark.important
def test_a_signal_saves_ends_with_75_and_the_run_goes_on_to_the_same_bits(
    warm: Warm, recipe: Path, undisturbed: Path, tmp_path: Path
) -> None:
    process = start(warm, recipe, tmp_path / "run")
    wait_for_a_state(tmp_path / "run")
    process.send_signal(signal.SIGUSR1)
    status, words = ended(process, tmp_path / "run")
    assert status == 75, words
    assert "its state is saved" in words.splitlines()[-1]
    resumed = start(warm, recipe, tmp_path / "run", "--resume")
    status, words = ended(resumed, tmp_path / "run")
    assert status == 0, words
    assert_same_weights(tmp_path / "run", undisturbed)


@pytest.mark.slow
def test_two_processes_do_the_schedule_within_a_time(
    warm: Warm, recipe: Path, tmp_path: Path
) -> None:
    process = start(warm, recipe, tmp_path / "run", "--seconds", "15")
    status, words = ended(process, tmp_path / "run")
    assert status == 0, words
    counters = json.loads((tmp_path / "run" / JOB / "done.json").read_text())
    assert counters["share"] == 1
    assert counters["step"] > LONG_STEPS
    assert counters["seconds"] < 15
    assert set(load_model(tmp_path / "run/model").networks) == {View.CORONAL}


@pytest.mark.slow
def test_two_processes_that_read_ahead_give_the_bits_of_two_that_do_not(
    warm: Warm, recipe: Path, tmp_path: Path
) -> None:
    store = small_store(tmp_path / "store", {"a": (16, 18, 20), "b": (17, 15, 13)})
    content = yaml.safe_load(recipe.read_text()) | {"scheme": "tissue4"}
    runs = [tmp_path / "ahead-0", tmp_path / "ahead-2"]
    for workers, run in zip((0, 2), runs, strict=True):
        source = {
            "path": str(store),
            "split": str(all_train(store)),
            "workers": workers,
        }
        content["data"] = {
            "store": source,
            "rows": 16,
            "columns": 16,
            "epoch_slices": 64,
        }
        (tmp_path / "stored.yaml").write_text(yaml.safe_dump(content))
        process = start(warm, tmp_path / "stored.yaml", run)
        status, words = ended(process, run)
        assert status == 0, words
    assert_same_weights(*runs)


@pytest.mark.slow
def test_an_error_of_the_leader_before_a_step_is_one_line(
    warm: Warm, recipe: Path, undisturbed: Path
) -> None:
    status, words = ended(start(warm, recipe, undisturbed, "--quiet"), undisturbed)
    assert status == 4
    assert words.splitlines() == [
        f"trinat: {undisturbed}: the folder already has a run: continue it with "
        "--resume, or choose another --out"
    ]


FAILING = """
import sys
from trinat.segmentation.training.loop import Trainer
from trinat.pipelines.cli import main

def step(self):
    with open({log!r}, "a") as log:
        log.write("step\\n")
    if self.workers.rank == 1:
        raise RuntimeError("no such kernel in /data/igloo")
    return real(self)

real, Trainer.step = Trainer.step, step
if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
@pytest.mark.important
def test_an_error_of_one_process_in_a_step_is_one_line(
    recipe: Path, tmp_path: Path
) -> None:
    """Spawned processes run the top of the script too, and so replace their step."""
    script, log = tmp_path / "failing.py", tmp_path / "steps.log"
    script.write_text(FAILING.format(log=str(log)))
    command = [sys.executable, script, "train", recipe, "--out", tmp_path / "run"]
    done = subprocess.run(
        [*command, "--quiet", "--nproc", "2"],
        env=ENVIRONMENT | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    # Each process began its first step, once.
    assert log.read_text().splitlines() == ["step"] * 2
    assert done.returncode == 4
    (line,) = done.stderr.splitlines()
    assert line.startswith("trinat: RuntimeError: no such kernel")


@pytest.mark.slow
def test_torchrun_on_two_machines_gives_the_bits_of_two_processes_on_one(
    recipe: Path, undisturbed: Path, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [
        *(
            *TORCHRUN,
            "--nnodes",
            "2",
            "--nproc-per-node",
            "1",
            "--rdzv-backend",
            "c10d",
        ),
        *("--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "test"),
        *("-m", "trinat", "train", str(recipe), "--out", str(tmp_path / "run")),
    ]
    # As many threads as each of two processes on one machine, so that sums are in the same
    # order.
    cores = sorted(os.sched_getaffinity(0))
    half = partial(os.sched_setaffinity, 0, cores[: max(1, len(cores) // 2)])
    machines = [
        subprocess.Popen(
            command,
            env=ENVIRONMENT,
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=half,
        )
        for _ in range(2)
    ]
    for machine in machines:
        _, words = machine.communicate(timeout=500)
        assert machine.returncode == 0, words
    assert_same_weights(tmp_path / "run", undisturbed)


def test_whom_torchrun_started_starts_no_others(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PLACE:
        monkeypatch.setenv(name, "0" if name.endswith("RANK") else "2")
    with refusal(ConfigError, remedy="--nproc"):
        launch(
            tmp_path,
            read_recipe(str(recipe)),
            lambda: nullcontext(SILENT),
            TrainSettings(processes=2),
        )


@pytest.mark.parametrize("device", ["cuda:0", "cuda"])
def test_processes_of_one_machine_do_not_share_a_gpu(
    recipe: Path, tmp_path: Path, device: str
) -> None:
    with pytest.raises(
        TrinatError, match=r"cannot share cuda:0|devices for 99 processes"
    ):
        launch(
            tmp_path / "run",
            read_recipe(str(recipe)),
            lambda: nullcontext(SILENT),
            TrainSettings(device=device, processes=99),
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        pytest.param(
            "mps",
            "this torch has no MPS device",
            marks=pytest.mark.skipif(
                torch.backends.mps.is_available(), reason="has one"
            ),
        ),
        ("cuda:77", "cuda"),
        ("xpu", "not supported"),
    ],
)
def test_a_device_that_is_not_there_is_refused_before_there_is_a_run(
    recipe: Path, tmp_path: Path, device: str, reason: str
) -> None:
    with pytest.raises(DeviceError, match=reason):
        launch(
            tmp_path / "run",
            read_recipe(str(recipe)),
            lambda: nullcontext(SILENT),
            TrainSettings(device=device),
        )
    assert not (tmp_path / "run").exists()


def test_where_no_device_is_named_it_is_the_gpu_or_else_the_processor() -> None:
    wanted = "cuda" if torch.cuda.is_available() else "cpu"
    assert find_device("auto").type == wanted
