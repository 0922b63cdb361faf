"""Runs every family of attacks in turn for a given time."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks import jobs
from attacks.verdicts import GOOD, Verdict, judged
from attacks.workshop import PATIENCE_S, Try, make_sound, time_limit

Attack = Callable[[Try], None]

_IN_PROCESS = ("scans", "measures", "texts", "identities", "corrections", "web")
_OF_COMMANDS = ("blows",)
# A turn of a family is as many tries as fit in this time, and at least one.
_TURN_S = 3.0
_PRELOADED = (
    # Another user may not read Python's folder.
    "encodings.unicode_escape",
    "encodings.utf_8_sig",
    "encodings.cp437",
    "encodings.idna",
    "pandas",
    "scipy.ndimage",
    "matplotlib.figure",
    "torch._dynamo",
    "trinat.pipelines.cli",
    "trinat.pipelines.predict.case",
    "trinat.pipelines.predict.tables",
    "trinat.pipelines.evaluate.evaluation",
    "trinat.pipelines.evaluate.cohort",
    "trinat.pipelines.prepare.making",
    "trinat.pipelines.prepare.store_pictures",
    "trinat.pipelines.models.bundle",
    "trinat.pipelines.serve.service",
    "trinat.pipelines.view.start",
    "trinat.pipelines.train.run",
    "trinat.pipelines.train.pages",
    "trinat.pipelines.report.evaluation",
    "helpers.serial",
)


def families(
    modules: tuple[str, ...] = _IN_PROCESS + _OF_COMMANDS,
) -> dict[str, Attack]:
    """Return the attacks by their names in the table."""
    found: dict[str, Attack] = {}
    for name in modules:
        found |= importlib.import_module(f"attacks.{name}").ATTACKS
    return found


class Suite:
    def __init__(self, seed: int, work: Path) -> None:
        self.seed, self.work = seed, work
        self.sound = work / "sound"
        self.tallies: dict[str, Counter[str]] = {}
        self.failures: list[str] = []
        self.seconds = 0.0

    def build(self, *, learn: bool) -> None:
        """Write the sound inputs in a process of their own, then import what the attacks use.

        With `learn`, also record the results of undisturbed commands.
        """
        self.sound.mkdir(parents=True)
        pid = os.fork()
        if not pid:
            status = 1
            with contextlib.suppress(BaseException), _reported():
                make_sound(self.sound)
                status = 0
            os._exit(status)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            sys.exit("scripts/torture: the sound inputs could not be made")
        for name in _PRELOADED:
            importlib.import_module(name)
        if learn:
            jobs.learn(lambda name: self._try(f"learning {name}", 0), self.sound)

    def _try(self, family: str, number: int) -> Try:
        name = "".join(ch if ch.isalnum() else "-" for ch in f"{family}-{number}")
        folder = self.work / "tries" / name
        folder.mkdir(parents=True)
        return Try(
            folder, random.Random(f"{self.seed}-{family}-{number}"), number, self.sound
        )

    def attempt(self, family: str, attack: Attack, number: int) -> tuple[Verdict, str]:
        """Make one try in this process and return its verdict."""
        attempt = self._try(family, number)
        verdict, what = Verdict.RIGHT, ""
        try:
            with time_limit(6 * PATIENCE_S), warnings.catch_warnings():
                warnings.simplefilter("error")
                attack(attempt)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            verdict, what = judged(error)
            if verdict not in GOOD and os.environ.get("TORTURE_DEBUG"):
                traceback.print_exc()
        shutil.rmtree(attempt.folder, ignore_errors=True)
        return verdict, what

    def turn(self, family: str, attack: Attack, first: int) -> None:
        """Make some tries in a process of their own, so that a crash ends only this turn."""
        results, theirs = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(results)
            with (
                contextlib.suppress(BaseException),
                os.fdopen(theirs, "w", buffering=1) as file,
            ):
                begun, number = time.monotonic(), first
                while number == first or time.monotonic() - begun < _TURN_S:
                    verdict, what = self.attempt(family, attack, number)
                    file.write(json.dumps([verdict, what]) + "\n")
                    number += 1
            os._exit(0)
        os.close(theirs)
        tally = self.tallies.setdefault(family, Counter())
        with os.fdopen(results) as file:
            for line in file:
                self._note(tally, family, *json.loads(line))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status:
            self._note(
                tally,
                family,
                Verdict.TRACEBACK,
                f"the process of the try ended ({status})",
            )

    def _note(self, tally: Counter[str], family: str, verdict: str, what: str) -> None:
        number = tally.total()
        tally[verdict] += 1
        if verdict not in GOOD:
            line = (
                f"{verdict}: {what}\n  scripts/torture --seed {self.seed} --only {family!r} "
                f"--try {number}"
            )
            self.failures.append(line)
            print(line, flush=True)

    def run(self, chosen: dict[str, Attack], minutes: float) -> None:
        """Run families in turn until the time is over; a turn that has begun is finished."""
        begun = time.monotonic()
        while True:
            for name, attack in chosen.items():
                self.turn(name, attack, self.tallies.get(name, Counter()).total())
                self.seconds = time.monotonic() - begun
                if self.seconds > 60 * minutes:
                    return

    def table(self) -> str:
        columns = ("attack", "tries", *Verdict)
        counts = {
            name: (tally.total(), *(tally[verdict] for verdict in Verdict))
            for name, tally in self.tallies.items()
        }
        totals = (sum(column) for column in zip(*counts.values(), strict=True))
        rows = [(name, *numbers) for name, numbers in counts.items()]
        total = ("all", *totals)
        cells = [[str(cell) for cell in row] for row in (columns, *rows, total)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
        lines = [
            "| "
            + " | ".join(
                cell.rjust(w) if i else cell.ljust(w)
                for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            + " |"
            for row in cells
        ]
        rule = "|" + "|".join(
            "-" * (w + 1) + ("-" if not i else ":") for i, w in enumerate(widths)
        )
        lines.insert(1, rule + "|")
        return "\n".join(
            [*lines, "", f"{self.seconds / 60:.1f} minutes, seed {self.seed}"]
        )

    @property
    def is_good(self) -> bool:
        return not any(
            count
            for tally in self.tallies.values()
            for v, count in tally.items()
            if v not in GOOD
        )


@contextlib.contextmanager
def _reported() -> Any:
    try:
        yield
    except BaseException:
        traceback.print_exc()
        raise


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", help="family of attacks; repeatable")
    parser.add_argument(
        "--try", type=int, dest="number", help="repeat this one try of --only"
    )
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    attacks = families()
    unknown = set(chosen.only or ()) - attacks.keys()
    if unknown or (chosen.number is not None and len(chosen.only or ()) != 1):
        parser.error(
            f"--only takes one of: {', '.join(attacks)}; --try takes one --only"
        )
    attacks = {
        name: attack
        for name, attack in attacks.items()
        if name in (chosen.only or attacks)
    }
    # In memory if possible: the tests are about the order of our calls, not about the disk.
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory("", "trinat-torture-", place, True) as name:
        work = Path(name)
        work.chmod(0o755)  # for tries as another user
        suite = Suite(chosen.seed, work)
        suite.build(learn=bool(attacks.keys() & families(_OF_COMMANDS).keys()))
        if chosen.number is not None:
            (family,) = attacks
            os.environ["TORTURE_DEBUG"] = "1"
            verdict, what = suite.attempt(family, attacks[family], chosen.number)
            print(f"{verdict}: {what}" if what else verdict)
            return int(verdict not in GOOD)
        suite.run(attacks, chosen.minutes)
    print(suite.table())
    return 0 if suite.is_good else 1
