"""The same scans on a cluster, by Dask: on this machine, on a scheduler that runs, or through jobs.

One scan a task and one task a worker at a time: who dies is to blame for no more than its own scan.
The scheduler is a single point of failure; the ledger covers it, as the same command goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinat.pipelines.common.config import read_yaml
from trinat.pipelines.common.process import cpu_count
from trinat.pipelines.jobs.signals import deaf_to_interrupts
from trinat.pipelines.predict.entry import Entry
from trinat.pipelines.predict.settings import RunSettings
from trinat.pipelines.scans.cases import Case
from trinat.segmentation.errors import ConfigError, InterruptedRunError, reason_of

if TYPE_CHECKING:
    from distributed import Client

    from trinat.pipelines.predict.case import CaseWorker

# What a worker does, with settings, a case and a device name.
Task = Callable[[RunSettings, Case, str], Entry]

# A scan that has killed three workers is set aside.
_ALLOWED_FAILURES = 2
_POLL_S = 0.5
_QUEUES = {
    "slurm": "SLURMCluster",
    "pbs": "PBSCluster",
    "sge": "SGECluster",
    "lsf": "LSFCluster",
}


def is_cluster(text: str) -> bool:
    """Whether `text` is a word that `DaskEngine` takes as `where`."""
    return text in _QUEUES or text.startswith(("local:", "tcp://", "tls://"))


class DaskEngine:
    """`where` is local:N, tcp://scheduler:8786, or slurm, pbs, sge, lsf with a config file.

    The file holds `jobs`, how many workers to ask for, and what dask-jobqueue's class takes.
    """

    def __init__(
        self,
        settings: RunSettings,
        where: str,
        config: Path | None = None,
        *,
        device: str = "auto",
        task: Task | None = None,
    ) -> None:
        self._task = segment if task is None else task
        self._where = where
        self._config = config
        self._device = device
        if where.startswith("local:") and not settings.threads:
            share = max(1, cpu_count() // self._local_count())
            settings = replace(settings, threads=share)
        self.settings = settings

    def run(
        self, cases: Iterable[Case | None], stop: Callable[[], bool]
    ) -> Iterator[Entry]:
        """As of `Engine`."""
        from distributed import wait

        waiting = iter(cases)
        running: dict[Any, Case] = {}
        is_exhausted = False
        with self._client() as client:
            while True:
                # Asked every time: workers of a queue come later than this begins.
                with self._interrupted_if_lost():
                    workers = list(client.sync(_ask, client)["workers"].values())
                if not is_exhausted:
                    is_exhausted = self._submit(client, waiting, running, workers, stop)
                if is_exhausted and not running:
                    return
                # What is in hand where the last worker has gone would wait for the queue.
                if stop() and not (running and workers):
                    return
                if not running:
                    # No worker has come yet: the queue decides when.
                    time.sleep(_POLL_S)
                    continue
                with self._interrupted_if_lost(), suppress(TimeoutError):
                    wait(list(running), _POLL_S, return_when="FIRST_COMPLETED")
                for future in list(running):
                    if not future.done():
                        continue
                    case = running.pop(future)
                    with self._interrupted_if_lost():
                        entry = self._entry_of(future, case)
                    yield entry

    def _submit(
        self,
        client: Client,
        waiting: Iterator[Case | None],
        running: dict[Any, Case],
        workers: Sequence[Mapping[str, Any]],
        stop: Callable[[], bool],
    ) -> bool:
        """Add to `running` until each worker has a case; True where there are no more cases."""
        needs = None
        if any("GPU" in worker["resources"] for worker in workers):
            needs = {"GPU": 1}
        while not stop() and len(running) < len(workers):
            try:
                case = next(waiting)
            except StopIteration:
                return True
            if case is None:
                return False
            future = client.submit(
                self._task,
                self.settings,
                case,
                self._device,
                pure=False,
                resources=needs,
            )
            running[future] = case
        return False

    def _entry_of(self, future: Any, case: Case) -> Entry:
        """The entry that a task has come to, or a failed one where it has raised."""
        error = future.exception()
        if error is None:
            entry: Entry = future.result()
            return entry
        reason = reason_of(error, where=False)
        if type(error).__name__ == "KilledWorker":
            reason = f"killed {_ALLOWED_FAILURES + 1} workers, and was set aside"
        return Entry.failed(case, self.settings, reason)

    @contextmanager
    def _interrupted_if_lost(self) -> Iterator[None]:
        """InterruptedRunError where the scheduler is lost.

        Without it nobody knows of a scan in hand: it is neither done nor failed.
        """
        from distributed import CancelledError

        try:
            yield
        except (CancelledError, OSError) as error:
            remedy = "once it is back, the same command goes on"
            what = "the scheduler was lost"
            raise InterruptedRunError(what, where=self._where, remedy=remedy) from error

    @contextmanager
    def _client(self) -> Iterator[Client]:
        """A client of the scheduler; a cluster that is started for it ends with the block."""
        import dask
        from distributed import Client

        dask.config.set({"distributed.scheduler.allowed-failures": _ALLOWED_FAILURES})
        # What matters is in the ledger; a lost worker needs no traceback on the terminal.
        for name in ("distributed", "distributed.client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        cluster = self._cluster()
        try:
            client = Client(self._where if cluster is None else cluster)
        except (OSError, ValueError) as error:
            if cluster is not None:
                raise
            what = f"--cluster {self._where}: no scheduler answers there"
            remedy = "start one with `dask scheduler`, or check the address"
            raise ConfigError(what, remedy=remedy) from error
        with client:
            try:
                yield client
            finally:
                if cluster is not None:
                    cluster.close()

    def _cluster(self) -> Any:
        """The cluster to start, or None where one runs already."""
        if self._where.startswith("local:"):
            return self._local_cluster()
        if self._where in _QUEUES:
            return self._queue_cluster()
        return None

    def _local_cluster(self) -> Any:
        """Workers on this machine."""
        from distributed import LocalCluster

        count = self._local_count()
        with deaf_to_interrupts():
            return LocalCluster(
                n_workers=count,
                threads_per_worker=1,
                dashboard_address="127.0.0.1:0",
            )

    def _queue_cluster(self) -> Any:
        """Workers that come as jobs of a queue, as the config file says."""
        import dask_jobqueue

        if self._config is None:
            remedy = "a YAML file with jobs, cores, memory, walltime and queue"
            raise ConfigError(
                f"--cluster {self._where} needs --cluster-config", remedy=remedy
            )
        options = read_yaml(self._config)
        jobs = options.pop("jobs", 1)
        # One scan at a time a worker, whatever the number of processors it may use.
        options.setdefault("processes", 1)
        kind = getattr(dask_jobqueue, _QUEUES[self._where])
        cluster = kind(**options)
        cluster.scale(jobs=jobs)
        return cluster

    def _local_count(self) -> int:
        """The N of local:N."""
        count = self._where.removeprefix("local:")
        if not count.isdecimal() or not int(count):
            raise ConfigError(
                f"--cluster {self._where}: how many?", remedy="give local:2"
            )
        return int(count)


async def _ask(client: Client) -> dict[str, Any]:
    """What the scheduler knows; ConnectionError as soon as the client has lost it."""
    if client.scheduler is None:
        raise ConnectionError
    # By itself this would look for a lost scheduler for half a minute.
    asked: asyncio.Future[dict[str, Any]] = asyncio.ensure_future(
        client.scheduler.identity(n_workers=-1)
    )
    while not asked.done():
        if client.status != "running":
            asked.cancel()
            raise ConnectionError
        await asyncio.wait({asked}, timeout=_POLL_S)
    return asked.result()


def segment(settings: RunSettings, case: Case, device: str) -> Entry:
    """On a worker: one scan, with the model that the worker has loaded once.

    The entry says how it ended, also if it failed. `device` is a device of the worker's machine.
    """
    from distributed import get_worker

    from trinat.pipelines.common.process import prepare_process

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
