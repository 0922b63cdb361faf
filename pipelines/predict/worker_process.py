"""A worker process as its parent sees it: its connection, and the cases that it has in hand."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from trinat.pipelines.jobs.signals import deaf_to_interrupts
from trinat.pipelines.predict.server import WAITING
from trinat.pipelines.predict.settings import RunSettings
from trinat.pipelines.scans.cases import Case

# What a process runs: its end of the connection, settings and a device name.
Target = Callable[[Connection, RunSettings, str], None]


@dataclass
class CaseInHand:
    """A case that a worker process has got: the stage it is in, and the time it was at work.

    Seconds; `since` is when its stage began, on the clock of `time.monotonic`.
    """

    case: Case
    stage: str = WAITING
    since: float = 0.0
    spent_s: float = 0.0

    def enter(self, stage: str) -> None:
        """Begin another stage; the time of one that waits does not count."""
        now = time.monotonic()
        if self.stage != WAITING:
            self.spent_s += now - self.since
        self.stage = stage
        self.since = now

    @property
    def seconds(self) -> float:
        """How long the case has been at work until now."""
        if self.stage == WAITING:
            return self.spent_s
        return self.spent_s + time.monotonic() - self.since


@dataclass
class WorkerProcess:
    """A process that does cases on one device, and what its parent knows of it.

    It is `ready` once its model is loaded, and `finishing` when it gets no more cases. One that is
    `alone` has a single case, which may have brought another process down.
    """

    process: BaseProcess
    connection: Connection
    device: str
    started: float = field(default_factory=time.monotonic)
    ready: bool = False
    finishing: bool = False
    alone: bool = False
    in_hand: dict[str, CaseInHand] = field(default_factory=dict)

    @classmethod
    def start(cls, target: Target, settings: RunSettings, device: str) -> WorkerProcess:
        """Start a process that runs `target`."""
        # A signal to the whole group ends this helper of Python's, too; Python starts it again.
        warnings.filterwarnings("ignore", "resource_tracker: process died unexpectedly")
        # Not fork: torch's and OpenMP's threads do not survive it.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=target,
            args=(theirs, settings, device),
            daemon=True,
        )
        # While it imports, too, where Python would print a traceback.
        with deaf_to_interrupts():
            process.start()
        theirs.close()
        return cls(process, ours, device)

    def give(self, case: Case) -> bool:
        """Hand a case over; False if the process is gone, which its connection will say."""
        try:
            self.connection.send(case)
        except OSError:
            return False
        self.in_hand[case.id] = CaseInHand(case)
        return True

    def finish(self) -> None:
        """Let it end when what it has in hand is done."""
        self.finishing = True
        with suppress(OSError):
            self.connection.send(None)

    def kill(self) -> None:
        """End it now."""
        self.process.kill()
        self.process.join()
        self.connection.close()

    @property
    def at_work(self) -> list[CaseInHand]:
        """Those in hand that are in a stage, and may have brought the process down."""
        return [hand for hand in self.in_hand.values() if hand.stage != WAITING]

    @property
    def waiting(self) -> list[CaseInHand]:
        """Those in hand that wait for their turn."""
        return [hand for hand in self.in_hand.values() if hand.stage == WAITING]

    def how_it_died(self) -> str:
        """The signal or exit status that it ended with, for people."""
        code = self.process.exitcode
        if code == -9:
            return "killed, perhaps for want of memory"
        if code is not None and code < 0:
            return f"signal {-code}"
        return f"exit status {code}"
