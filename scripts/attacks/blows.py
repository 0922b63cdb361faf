"""Attacks on running commands: kills, signals, failing calls, full disks, other runs."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time

import psutil
from helpers.disks import Disk, own_mounts

from attacks.injection import FAILURES, Calls
from attacks.jobs import JOBS, Bench
from attacks.verdicts import Refused, wrong
from attacks.workshop import Done, Running, Try, checked, happens, unchanged

_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGUSR1,
    signal.SIGHUP,
    signal.SIGQUIT,
)


def kill(attempt: Try) -> None:
    """Kill with -9 at any moment; the same command again must give the same bytes."""
    bench = Bench.in_turn(attempt)
    # Every fourth round uses worker processes, whose start takes seconds.
    serial = attempt.number // len(JOBS) % 4 != 3
    run = bench.start(serial=serial)
    seconds = (
        bench.seconds if serial or bench.job.name != "predict" else bench.seconds + 8
    )
    done = _after(
        run, attempt.chance.uniform(0, 1.05 * seconds), signal.SIGKILL, "leader"
    )
    checked_unless_killed(done, signal.SIGKILL)
    unchanged(bench.given, bench.inputs, "after the kill")
    bench.recover(f"kill -9 of {bench.job.name}")


def kill_at_a_call(attempt: Try) -> None:
    """Kill with -9 exactly before a write, sync, rename or mkdir."""
    bench, calls = _with_calls(attempt, (0,))
    checked_unless_killed(bench.run(before=calls.install), signal.SIGKILL)
    unchanged(bench.given, bench.inputs, "after the kill")
    bench.recover(f"{calls} of {bench.job.name}")


def failing_call(attempt: Try) -> None:
    """Let one write, sync, rename or mkdir fail."""
    _fail(attempt, lasting=False)


def full_disk(attempt: Try) -> None:
    """Let all writes fail from one on."""
    _fail(attempt, lasting=True)


def _fail(attempt: Try, *, lasting: bool) -> None:
    bench, calls = _with_calls(
        attempt, FAILURES[:1] if lasting else FAILURES, lasting=lasting
    )
    done = bench.run(before=calls.install)
    bench.right_or_refused(done, f"{calls} in {bench.job.name}")


def small_disk(attempt: Try) -> None:
    """Fill up a small disk, by bytes or by files, then make room again."""
    if not own_mounts():
        full_disk(attempt)
        return
    chance = attempt.chance
    disk = Disk(attempt.folder / "disk")
    try:
        bench = Bench.in_turn(attempt, disk.folder)
        what = f"little room for {bench.job.name}"
        if happens(chance, 0.3):
            disk.leave_files(chance.randint(1, 22))
        else:
            disk.leave_room(int(2 ** chance.uniform(12, 20)))
        # People often run the command again before they look at the disk.
        done = [bench.run() for _ in range(chance.randint(1, 2))][-1]
        if left := [
            path for path in disk.folder.rglob("*") if path.name.endswith(".tmp")
        ]:
            raise wrong(f"{what}: {left[0].name} is left")
        if left := list(disk.folder.glob("out/.trinat-work/staging/*")):
            raise wrong(f"{what}: {left[0].name} is left in staging")
        if (
            done.status > 0
            and "No space left" not in done.err
            and "no space left" not in done.err
        ):
            raise wrong(f"{what}: it says {done.err[-200:]!r}")
        disk.resize()
        bench.right_or_refused(done, what)
    finally:
        disk.remove()


def read_only(attempt: Try) -> None:
    """Run as a user who may not write the output, or not read the input."""
    bench = Bench.in_turn(attempt)
    closed = attempt.chance.choice(("out", "in"))
    if bench.job.built_on == "" and closed == "out":
        bench.out.mkdir()
    folder = bench.out if closed == "out" else bench.inputs
    attempt.folder.chmod(0o777)
    folder.chmod(0o555 if closed == "out" else 0o000)

    def become_nobody() -> None:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)

    try:
        done = attempt.run(*bench.line(), home=attempt.folder, before=become_nobody)
    finally:
        folder.chmod(0o755)
    # It may succeed as root, or if there was nothing to write.
    bench.right_or_refused(done, f"{closed} closed to {bench.job.name}")


def signals(attempt: Try) -> None:
    """Send one or two signals to leader, worker or group."""
    bench = Bench.in_turn(attempt)
    chance = attempt.chance
    number, target = (
        chance.choice(_SIGNALS),
        chance.choice(("leader", "group", "worker")),
    )
    serial = bench.job.name != "predict" or chance.random() < 0.5
    run = bench.start(serial=serial)
    seconds = bench.seconds + (0 if serial else 8)
    delay_s = chance.uniform(0.05, 1.05 * seconds)
    twice = chance.random() < 0.3
    done = _after(
        run, delay_s, number, target, again_s=chance.uniform(0, 1) if twice else None
    )
    what = f"{signal.Signals(number).name} to the {target} of {bench.job.name}"
    unchanged(bench.given, bench.inputs, what)
    checked_unless_killed(done, number, signal.SIGTERM)
    bench.recover(what)


def two_at_once(attempt: Try) -> None:
    """Run the same command twice at once: one may be refused, and the result is right."""
    bench = Bench.in_turn(attempt)
    line = bench.line()
    runs = []
    for _ in range(2):
        runs.append(attempt.start(*line, home=bench.inputs))
        time.sleep(
            attempt.chance.choice(
                (0, 0, 0.02, attempt.chance.uniform(0, bench.seconds))
            )
        )
    refusals = 0
    for run in runs:
        try:
            checked(run.wait())
        except Refused:
            refusals += 1
    if refusals == 2:
        raise wrong(f"both of two runs of {bench.job.name} at once were refused")
    unchanged(bench.given, bench.inputs, "two at once")
    if bench.job.name in ("train", "bundle"):
        # The later run may have found a finished run or model, which it does not touch.
        bench.check(f"two {bench.job.name} at once")
    else:
        bench.recover(f"two {bench.job.name} at once")


def checked_unless_killed(done: Done, *numbers: int) -> None:
    """Raise `Bad` unless the command succeeded, refused, or died by one of these signals."""
    with contextlib.suppress(Refused):
        checked(done, deadly=numbers)


def _with_calls(
    attempt: Try, failures: tuple[int, ...], *, lasting: bool = False
) -> tuple[Bench, Calls]:
    bench = Bench.in_turn(attempt)
    counts = bench.known["calls"]
    chance: random.Random = attempt.chance
    kind = (
        "write"
        if lasting
        else chance.choice(sorted(kind for kind in counts if counts[kind]))
    )
    number = chance.randint(1, max(1, counts.get(kind, 0)))
    return bench, Calls(
        bench.out, kind, number, chance.choice(failures), lasting=lasting
    )


def _after(
    run: Running, seconds: float, number: int, target: str, again_s: float | None = None
) -> Done:
    """Let a command run for a while, signal some of its processes, and return its outcome."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(0.005, max(0.0, end - time.monotonic())))
        if psutil.Process(run.pid).status() == psutil.STATUS_ZOMBIE:
            break
    for pause_s in (0.0, again_s):
        if pause_s is None:
            break
        time.sleep(pause_s)
        if target == "worker":
            for child in psutil.Process(run.pid).children(recursive=True)[-1:]:
                child.send_signal(number)
        else:
            run.signal(number, group=target == "group")
    return run.wait()


ATTACKS = {
    "kill -9": kill,
    "kill -9 at a call": kill_at_a_call,
    "failing write, fsync, rename": failing_call,
    "full disk": full_disk,
    "small disk": small_disk,
    "read-only, other user": read_only,
    "signals": signals,
    "two runs at once": two_at_once,
}
