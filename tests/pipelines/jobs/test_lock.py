"""Lock of a run: a second run is refused at once; the lock of a dead process is taken over."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers.refusals import refusal

from trinat.pipelines.jobs.lock import run_lock
from trinat.segmentation.errors import LockedError, OutputError

_HOLD = """
import sys, time
from pathlib import Path
from trinat.pipelines.jobs.lock import run_lock
with run_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "out" / ".trinat-work" / "lock"


@pytest.fixture
def holder(lock: Path):
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(lock)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_second_run_is_refused_with_the_first_ones_host_and_process(
    lock, holder
) -> None:
    start = time.monotonic()
    with pytest.raises(LockedError) as caught, run_lock(lock):
        pass
    assert time.monotonic() - start < 2
    assert f"process {holder.pid} on {socket.gethostname()}" in str(caught.value)


def test_a_patient_one_waits_until_the_holder_has_ended(lock, holder) -> None:
    end = threading.Timer(0.5, holder.kill)
    end.start()
    with run_lock(lock, patience_s=60):
        assert not end.is_alive()


def test_patience_ends(lock, holder) -> None:
    start = time.monotonic()
    with pytest.raises(LockedError), run_lock(lock, patience_s=0.5):
        pass
    assert time.monotonic() - start >= 0.5


def test_lock_of_a_killed_run_is_taken_over(lock, holder) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert lock.exists()
    with run_lock(lock):
        assert json.loads(lock.read_text())["pid"] == os.getpid()


def test_lock_file_is_gone_afterwards(lock) -> None:
    with run_lock(lock):
        assert lock.exists()
    assert not lock.parent.exists()


def _written_elsewhere(lock: Path, seconds_ago: float, **changes: object) -> None:
    lock.parent.mkdir(parents=True, exist_ok=True)
    holder = {"host": "node7", "pid": 41, "boot": "b", "namespace": "pid:[1]"}
    lock.write_text(json.dumps(holder | changes))
    then = time.time() - seconds_ago
    os.utime(lock, (then, then))


def test_live_holder_on_another_machine_is_respected(lock) -> None:
    _written_elsewhere(lock, seconds_ago=30)
    with pytest.raises(LockedError, match="process 41 on node7"), run_lock(lock):
        pass


def test_silent_holder_on_another_machine_is_dead(lock) -> None:
    _written_elsewhere(lock, seconds_ago=90)
    with run_lock(lock):
        assert json.loads(lock.read_text())["pid"] == os.getpid()


def test_machines_of_one_name_are_told_apart(lock) -> None:
    with run_lock(lock):
        own = json.loads(lock.read_text())
    _written_elsewhere(lock, 30, **(own | {"boot": "another"}))
    with refusal(LockedError, lock.parent), run_lock(lock):
        pass


def test_a_process_whose_lock_was_taken_over_is_stopped_and_keeps_the_lock(
    lock, monkeypatch
) -> None:
    monkeypatch.setattr("trinat.pipelines.jobs.lock._BEAT_S", 0.01)

    def lose_it() -> None:
        with run_lock(lock):
            _written_elsewhere(lock, seconds_ago=0)
            time.sleep(60)

    with pytest.raises(LockedError, match="process 41 on node7"):
        lose_it()
    assert json.loads(lock.read_text())["pid"] == 41


def test_a_disk_without_locks_is_told(lock, monkeypatch) -> None:
    def refuse(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with refusal(OutputError, lock.parent, remedy="mount"), run_lock(lock):
        pass
    assert not lock.parent.exists()


def test_another_error_of_locking_is_not_taken_for_a_disk_without_locks(
    lock, monkeypatch
) -> None:
    def fail(descriptor: int, kind: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("fcntl.flock", fail)
    with pytest.raises(OSError, match="Input/output") as caught, run_lock(lock):
        pass
    assert not isinstance(caught.value, OutputError)


def test_a_lock_dated_in_the_future_blocks_for_no_longer_than_any_other(lock) -> None:
    _written_elsewhere(lock, seconds_ago=-1e6)
    with pytest.raises(LockedError, match="node7"), run_lock(lock):
        pass
    assert lock.stat().st_mtime < time.time() + 5
    then = lock.stat().st_mtime - 90
    os.utime(lock, (then, then))
    with run_lock(lock):
        assert json.loads(lock.read_text())["pid"] == os.getpid()


def test_a_lock_that_is_a_link_is_refused_and_its_target_kept(
    lock, tmp_path: Path
) -> None:
    target = tmp_path / "mine"
    target.write_text("mine")
    lock.parent.mkdir(parents=True)
    lock.symlink_to(target)
    with refusal(OutputError, lock), run_lock(lock):
        pass
    assert target.read_text() == "mine"


def test_error_in_the_block_releases_the_lock(lock) -> None:
    with pytest.raises(RuntimeError), run_lock(lock):
        raise RuntimeError
    with run_lock(lock):
        pass
