"""The same scans on a cluster, by Dask: on this machine, on a scheduler that runs, or through jobs.

One scan a task and one task a worker at a time: who dies is to blame for no more than its own scan.
The scheduler is a single point of failure; the ledger covers it, as the same command goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinat.pipelines.common.cases import Case
from trinat.pipelines.common.config import read_yaml
from trinat.pipelines.common.process import cpu_count, deaf_to_interrupts
from trinat.pipelines.predict.entry import Entry
from trinat.pipelines.predict.outputs import RunSettings
from trinat.segmentation.errors import ConfigError, InterruptedRunError, reason_of

if TYPE_CHECKING:
    from distributed import Client

    from trinat.pipelines.predict.case import CaseWorker

Task = Callable[
    [RunSettings, Case, str], Entry
]  # what a worker does: settings, case, device

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
        self._task = task or segment
        self.settings = settings
        self._where = where
        if where.startswith("local:") and not settings.threads:
            share = max(1, cpu_count() // self._local_count())
            self.settings = replace(settings, threads=share)
        self._config = config
        self._device = device

    def run(
        self, cases: Iterable[Case | None], stop: Callable[[], bool]
    ) -> Iterator[Entry]:
        from distributed import wait

        waiting = iter(cases)
        with self._client() as client:
            futures: dict[Any, Case] = {}
            exhausted = False
            while True:
                with self._told_if_lost():
                    workers = list(client.sync(_ask, client)["workers"].values())
                # Asked anew each time: those of a queue come later than this begins.
                gpus = any("GPU" in worker["resources"] for worker in workers)
                while not exhausted and not stop() and len(futures) < len(workers):
                    try:
                        case = next(waiting)
                    except StopIteration:
                        exhausted = True
                        break
                    if case is None:
                        break
                    given = (self.settings, case, self._device)
                    needs = {"GPU": 1} if gpus else None
                    future = client.submit(
                        self._task, *given, pure=False, resources=needs
                    )
                    futures[future] = case
                # What is in hand where the last worker has gone would wait for the queue.
                if (exhausted and not futures) or (
                    stop() and not (futures and workers)
                ):
                    return
                if not futures:
                    # No worker has come yet: the queue decides when.
                    time.sleep(_POLL_S)
                    continue
                with self._told_if_lost(), suppress(TimeoutError):
                    wait(list(futures), _POLL_S, return_when="FIRST_COMPLETED")
                for future in [future for future in futures if future.done()]:
                    case = futures.pop(future)
                    with self._told_if_lost():
                        error = future.exception()
                        entry = (
                            future.result()
                            if error is None
                            else self._failed(case, error)
                        )
                    yield entry

    @contextmanager
    def _told_if_lost(self) -> Iterator[None]:
        """Without its scheduler nobody knows of a scan in hand: it is neither done nor failed."""
        from distributed import CancelledError

        try:
            yield
        except (CancelledError, OSError) as error:
            remedy = "once it is back, the same command goes on"
            what = "the scheduler was lost"
            raise InterruptedRunError(what, where=self._where, remedy=remedy) from error

    @contextmanager
    def _client(self) -> Iterator[Client]:
        import dask
        from distributed import Client

        dask.config.set({"distributed.scheduler.allowed-failures": _ALLOWED_FAILURES})
        # What matters is said in the ledger; a lost worker needs no traceback on the terminal.
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
            from distributed import LocalCluster

            count = self._local_count()
            with deaf_to_interrupts():
                return LocalCluster(
                    n_workers=count,
                    threads_per_worker=1,
                    dashboard_address="127.0.0.1:0",
                )
        if self._where not in _QUEUES:
            return None
        import dask_jobqueue

        if self._config is None:
            remedy = "a YAML file with jobs, cores, memory, walltime and queue"
            raise ConfigError(
                f"--cluster {self._where} needs --cluster-config", remedy=remedy
            )
        options = read_yaml(self._config)
        jobs = options.pop("jobs", 1)
        kind = getattr(dask_jobqueue, _QUEUES[self._where])
        # One scan at a time a worker, whatever the number of processors it may use.
        cluster = kind(**{"processes": 1, **options})
        cluster.scale(jobs=jobs)
        return cluster

    def _local_count(self) -> int:
        count = self._where.removeprefix("local:")
        if not count.isdecimal() or not int(count):
            raise ConfigError(
                f"--cluster {self._where}: how many?", remedy="give local:2"
            )
        return int(count)

    def _failed(self, case: Case, error: BaseException) -> Entry:
        reason = reason_of(error, where=False)
        if type(error).__name__ == "KilledWorker":
            reason = f"killed {_ALLOWED_FAILURES + 1} workers, and was set aside"
        return Entry.failed(case, self.settings, reason)


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
    """On a worker: one scan, with the model that the worker has loaded once."""
    from distributed import get_worker

    from trinat.pipelines.common.process import prepare_process

    # As many as the worker was started for: the machine that asks knows nothing of this one. For
    # every scan anew, since a worker may do each in another thread, which has a number of its own.
    prepare_process(settings.threads or get_worker().state.nthreads)
    return _worker(settings, device).do(case)


# One only: workers of a scheduler that lives on see run after run, with other models.
@lru_cache(maxsize=1)
def _worker(settings: RunSettings, device: str) -> CaseWorker:
    from trinat.pipelines.predict.case import CaseWorker

    return CaseWorker(settings, device)
