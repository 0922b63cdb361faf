"""Engines, which do cases: in this process, in worker processes, or on a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trinat.pipelines.common.process import cpu_count, prepare_process
from trinat.pipelines.jobs.cluster import Cluster, local_workers
from trinat.pipelines.jobs.pool import POLL_S, READY, Pool, ignore_stage
from trinat.pipelines.predict.entry import Entry
from trinat.pipelines.predict.settings import RunSettings
from trinat.pipelines.predict.worker import do_cases
from trinat.pipelines.scans.cases import Case

if TYPE_CHECKING:
    from trinat.pipelines.predict.case import CaseWorker

# One being read, one in the networks, one being written.
_IN_HAND = 3


class Engine(Protocol):
    """Does cases, in any order, and yields one entry for each that was begun."""

    def run(
        self, cases: Iterable[Case | None], stop: Callable[[], bool]
    ) -> Iterator[Entry]:
        """`stop` is asked often; once true, what is in hand is finished and no more begun.

        A None among the cases says that there is none yet: it is asked again.
        """
        ...


class SerialEngine:
    """One scan after another in this process: no worker has to start, and a crash ends the run.

    A scan is written while the next one is in the networks. `on_stage` is as of `LocalEngine`; a
    scan has one stage here.
    """

    def __init__(
        self,
        settings: RunSettings,
        device: str = "cpu",
        on_stage: Callable[[str, str], None] = ignore_stage,
    ) -> None:
        self._settings = settings
        self._device = device
        self._on_stage = on_stage

    def run(
        self, cases: Iterable[Case | None], stop: Callable[[], bool]
    ) -> Iterator[Entry]:
        """As of `Engine`.

        One thread writes the results of a scan while the next one is segmented.
        """
        from trinat.pipelines.predict.case import CaseWorker

        prepare_process(self._settings.threads)
        worker = CaseWorker(self._settings, self._device)
        self._on_stage("", READY)
        written: list[Future[Entry]] = []
        with ThreadPoolExecutor(1) as beside:
            for case in cases:
                if stop():
                    break
                finish = None
                if case is not None:
                    self._on_stage(case.id, "networks")
                    finish = worker.begin(case)
                yield from (entry.result() for entry in written)
                written = []
                if finish is not None:
                    written.append(beside.submit(finish))
                # It holds a scan, which is not kept here while the next one is read.
                del finish
                if case is None:
                    time.sleep(POLL_S)
            yield from (entry.result() for entry in written)


@dataclass(frozen=True)
class LocalEngine:
    """A process for each device name in `devices` (cpu twice for two on the CPU); see `Pool`.

    `timeout_s` is the limit for one scan; 0 or None: none. `on_stage` is called with a case and
    the stage that it enters, and with ("", "ready") when a process is ready.
    """

    settings: RunSettings
    devices: list[str]
    _: KW_ONLY
    timeout_s: float | None = None
    poll_s: float = POLL_S
    on_stage: Callable[[str, str], None] = ignore_stage
    target: Callable[..., None] = do_cases

    def run(
        self, cases: Iterable[Case | None], stop: Callable[[], bool]
    ) -> Iterator[Entry]:
        """As of `Engine`.

        A process that dies is replaced, and its case fails; so does a case that takes longer than
        the limit.
        """
        pool: Pool[Case, Entry] = Pool(
            self.target,
            (self.settings,),
            self.devices,
            failed=lambda case, reason: Entry.failed(case, self.settings, reason),
            room=_IN_HAND,
            timeout_s=self.timeout_s,
            poll_s=self.poll_s,
            on_stage=self.on_stage,
        )
        yield from pool.run(cases, stop)


class DaskEngine:
    """Each scan is a task of a cluster; `where` and `config` are as of `Cluster`."""

    def __init__(
        self,
        settings: RunSettings,
        where: str,
        config: Path | None = None,
        *,
        device: str = "auto",
        task: Callable[[RunSettings, str, Case], Entry] | None = None,
    ) -> None:
        count = local_workers(where)
        if count and not settings.threads:
            settings = replace(settings, threads=max(1, cpu_count() // count))
        self.settings = settings
        self._cluster: Cluster[Case, Entry] = Cluster(
            where,
            config,
            partial(task or segment, settings, device),
            failed=lambda case, reason: Entry.failed(case, settings, reason),
        )

    def run(
        self, cases: Iterable[Case | None], stop: Callable[[], bool]
    ) -> Iterator[Entry]:
        """As of `Engine`."""
        yield from self._cluster.run(cases, stop)


def segment(settings: RunSettings, device: str, case: Case) -> Entry:
    """On a worker of a cluster: one scan, with the model that the worker has loaded once.

    The entry says how it ended, also if it failed. `device` is a device of the worker's machine.
    """
    from distributed import get_worker

    # As many as the worker was started for: the machine that asks knows nothing of this one. This
    # is set for every scan, since a worker may do each in another thread with its own number.
    prepare_process(settings.threads or get_worker().state.nthreads)
    return _worker(settings, device).do(case)


# One only: workers of a scheduler that lives on see run after run, with other models.
@lru_cache(maxsize=1)
def _worker(settings: RunSettings, device: str) -> CaseWorker:
    """The case worker of this process, with its model loaded."""
    from trinat.pipelines.predict.case import CaseWorker

    return CaseWorker(settings, device)
