"""Worker processes: answers in order, and the blame for a process that dies."""

from __future__ import annotations

import os
import pickle
import signal
import time
import warnings
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from trinat.pipelines.jobs.pool import READY, Done, Pool, pickle_error, run_isolated
from trinat.segmentation.errors import DeviceError


def double(number: int) -> int:
    """Return twice a number; 3 kills the process, 99 is refused."""
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 99:
        raise ValueError("99 is too much")
    return 2 * number


def killed(number: int) -> int:
    return -number


def test_an_item_that_ends_its_process_costs_itself_alone() -> None:
    told: list[tuple[int, int, int]] = []
    answers = run_isolated(
        double,
        [1, 2, 3, 4, 5],
        2,
        killed=killed,
        finished=lambda answer, done, total: told.append((answer, done, total)),
        torch_threads=None,
    )
    assert answers == [2, 4, -3, 8, 10]
    assert sorted(answer for answer, _, _ in told) == [-3, 2, 4, 8, 10]
    assert [(done, total) for _, done, total in told] == [
        (number, 5) for number in range(1, 6)
    ]


def at_work_beside(folder: Path) -> int:
    """Return 1, or die as if out of memory if another task is running."""
    own = folder / f"{os.getpid()}.at-work"
    own.touch()
    until = time.monotonic() + 1
    while time.monotonic() < until:
        if len(list(folder.glob("*.at-work"))) > 1:
            own.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)
    own.unlink()
    return 1


def test_an_item_that_died_of_want_of_memory_is_tried_again_with_none_beside_it(
    tmp_path: Path,
) -> None:
    answers = run_isolated(
        at_work_beside,
        [tmp_path] * 3,
        3,
        killed=lambda folder: 0,
        torch_threads=None,
    )
    assert answers == [1, 1, 1]


def test_what_the_work_raises_is_raised_with_the_traceback_of_its_process() -> None:
    with pytest.raises(ValueError, match="99 is too much") as raised:
        run_isolated(double, [1, 99, 2], 2, killed=killed, torch_threads=None)
    assert "in double" in raised.value.__notes__[0]


def write_slowly(path: Path) -> None:
    """Write the file after a second; "refused" raises as soon as "slow" is running."""
    begun = path.with_suffix(".begun")
    begun.touch()
    if path.name == "refused":
        while not path.with_name("slow.begun").exists():
            time.sleep(0.01)
        raise OSError("no space")
    time.sleep(1)
    begun.unlink()
    path.touch()


def test_what_is_in_hand_is_finished_before_an_error_is_raised(tmp_path: Path) -> None:
    paths = [tmp_path / "slow", tmp_path / "refused", tmp_path / "later"]
    with pytest.raises(OSError, match="no space"):
        run_isolated(
            write_slowly, paths, 2, killed=lambda path: None, torch_threads=None
        )
    assert {path.name for path in tmp_path.iterdir()} == {"slow", "refused.begun"}


class FromTwoError(Exception):
    """Cannot be unpickled: pickle passes one argument to an __init__ that needs two."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")


def test_an_error_that_cannot_be_unpickled_is_said_in_its_words_with_its_traceback() -> (
    None
):
    try:
        raise FromTwoError("no kernel", "too old")
    except FromTwoError as error:
        told = pickle.loads(pickle_error(error))
    assert str(told) == "FromTwoError: no kernel: too old"
    assert "in test_an_error_that_cannot_be" in told.__notes__[0]


@dataclass(frozen=True)
class Letter:
    id: str
    work: int = 1


def spell(connection: Connection, device: str) -> None:
    """Return what it receives; x kills the process while y is waiting."""
    connection.send(READY)
    while (letter := connection.recv()) is not None:
        connection.send((letter.id, "spelling"))
        if letter.id == "x":
            os.kill(os.getpid(), signal.SIGKILL)
        connection.send(Done(letter.id, letter.id.upper()))


def die(connection: Connection, device: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sleep(connection: Connection, device: str) -> None:
    time.sleep(600)


def pool_of(target, capacity: int) -> Pool[Letter, str]:
    return Pool(
        target,
        (),
        ["cpu"],
        failed=lambda letter, reason: f"{letter.id}: {reason}",
        capacity=capacity,
    )


def test_items_that_waited_behind_the_one_to_blame_are_done() -> None:
    letters = [Letter(name) for name in "axyz"]
    answers = list(pool_of(spell, capacity=3).run(letters, lambda: False))
    blamed = (
        "x: its process died while spelling (killed, perhaps because memory ran out)"
    )
    assert sorted(answers) == ["A", "Y", "Z", blamed]


def test_processes_that_die_at_their_start_end_the_work() -> None:
    message = "a worker process on cpu died while starting"
    with pytest.raises(DeviceError, match=message):
        list(pool_of(die, capacity=1).run([Letter("a")], lambda: False))


def test_a_suspect_is_not_lost_with_a_worker_that_dies_before_it_gets_it() -> None:
    pool = pool_of(sleep, capacity=3)
    worker = pool._start("cpu")
    worker.ready = True
    worker.process.kill()
    worker.process.join()
    suspect = Letter("a")
    pool._suspects.append(suspect)
    pool._feed(worker, iter([]), lambda: False)
    worker.kill()
    assert list(pool._suspects) == [suspect]


def test_that_a_signal_ended_the_tracker_of_resources_is_no_warning() -> None:
    resource_tracker.ensure_running()
    tracker = resource_tracker._resource_tracker._pid  # type: ignore[attr-defined]
    os.kill(tracker, signal.SIGKILL)
    os.waitpid(tracker, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        worker = pool_of(sleep, capacity=1)._start("cpu")
    worker.kill()


def test_a_worker_never_sees_ctrl_c_not_even_while_it_imports() -> None:
    worker = pool_of(sleep, capacity=1)._start("cpu")
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    worker.kill()
    blocked = next(line for line in status.splitlines() if line.startswith("SigBlk"))
    assert int(blocked.split()[1], 16) >> signal.SIGINT - 1 & 1
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
