"""Processing on a cluster with Dask: on this machine, an existing scheduler, or batch jobs.

Each task has one item and each worker one task at a time, so that a worker that dies costs no more
than its own item. The scheduler is a single point of failure; the ledger covers it, since the same
command resumes the run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from trinat.pipelines.common.config import read_yaml
from trinat.pipelines.jobs.pool import POLL_S
from trinat.pipelines.jobs.process import block_interrupts
from trinat.segmentation.errors import ConfigError, InterruptedRunError, reason_of

if TYPE_CHECKING:
    from distributed import Client

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# An item that has killed three workers is given up.
_ALLOWED_FAILURES = 2
_QUEUES = {
    "slurm": "SLURMCluster",
    "pbs": "PBSCluster",
    "sge": "SGECluster",
    "lsf": "LSFCluster",
}


def is_cluster(text: str) -> bool:
    """Return True if `text` is a valid value of `Cluster.where`, such as "slurm" or "local:2"."""
    return text in _QUEUES or text.startswith(("local:", "tcp://", "tls://"))


def local_workers(where: str) -> int:
    """Return the number N of workers in local:N; 0 for any other cluster.

    Raises ConfigError if N is missing or 0.
    """
    if not where.startswith("local:"):
        return 0
    count = where.removeprefix("local:")
    if not count.isdecimal() or not int(count):
        raise ConfigError(
            f"--cluster {where}: the number of workers is missing",
            remedy="give local:2",
        )
    return int(count)


@dataclass(frozen=True)
class Cluster(Generic[Item, Answer]):
    """Runs items as Dask tasks.

    - `where` is local:N, tcp://scheduler:8786, or slurm, pbs, sge, lsf with a `config` file. This
      YAML file has `jobs`, the number of workers to request, and the arguments of dask-jobqueue's
      class.
    - `task` processes an item on a worker, and returns its answer.
    - `failed` returns the answer for an item whose task has raised an error or killed its workers;
      it gets the item and the reason.
    """

    where: str
    config: Path | None
    task: Callable[[Item], Answer]
    failed: Callable[[Item, str], Answer]

    def run(
        self, items: Iterable[Item | None], stop: Callable[[], bool]
    ) -> Iterator[Answer]:
        """Yield one answer for each item that was begun, in any order.

        `items` may yield None if no item is available yet; it is asked again later. Once `stop`
        returns True, running items are finished and no more are begun. InterruptedRunError is
        raised if the scheduler is lost.
        """
        from distributed import wait

        waiting = iter(items)
        running: dict[Any, Item] = {}
        is_exhausted = False
        with self._client() as client:
            while True:
                # Asked in every round: workers of a batch queue may start later.
                with self._interrupted_if_lost():
                    workers = list(
                        client.sync(_scheduler_state, client)["workers"].values()
                    )
                if not is_exhausted:
                    is_exhausted = self._submit(client, waiting, running, workers, stop)
                if is_exhausted and not running:
                    return
                # Without any worker, the running items would wait for the batch queue.
                if stop() and not (running and workers):
                    return
                if not running:
                    # No worker has started yet; the batch queue decides when.
                    time.sleep(POLL_S)
                    continue
                with self._interrupted_if_lost(), suppress(TimeoutError):
                    wait(list(running), POLL_S, return_when="FIRST_COMPLETED")
                for future in list(running):
                    if not future.done():
                        continue
                    item = running.pop(future)
                    with self._interrupted_if_lost():
                        answer = self._answer_of(future, item)
                    yield answer

    def _submit(
        self,
        client: Client,
        waiting: Iterator[Item | None],
        running: dict[Any, Item],
        workers: Sequence[Mapping[str, Any]],
        stop: Callable[[], bool],
    ) -> bool:
        """Submit items until each worker has one; return True if no items are left.

        `waiting` yields the items, or None if none is available yet. `running` maps each task to
        its item, and is extended. `workers` are the scheduler's descriptions of its workers.
        """
        needs = None
        if any("GPU" in worker["resources"] for worker in workers):
            needs = {"GPU": 1}
        while not stop() and len(running) < len(workers):
            try:
                item = next(waiting)
            except StopIteration:
                return True
            if item is None:
                return False
            future = client.submit(self.task, item, pure=False, resources=needs)
            running[future] = item
        return False

    def _answer_of(self, future: Any, item: Item) -> Answer:
        """Return the result of a task; if the task has raised an error, the answer of `failed`."""
        error = future.exception()
        if error is None:
            answer: Answer = future.result()
            return answer
        reason = reason_of(error, where=False)
        if type(error).__name__ == "KilledWorker":
            reason = (
                f"{_ALLOWED_FAILURES + 1} workers died while processing it, so it is not tried "
                "again"
            )
        return self.failed(item, reason)

    @contextmanager
    def _interrupted_if_lost(self) -> Iterator[None]:
        """Raise InterruptedRunError if the scheduler is lost.

        The state of the running items is then unknown: they are neither done nor failed.
        """
        from distributed import CancelledError

        try:
            yield
        except (CancelledError, OSError) as error:
            remedy = "restart the scheduler and run the same command to resume"
            what = "the connection to the Dask scheduler was lost"
            raise InterruptedRunError(what, where=self.where, remedy=remedy) from error

    @contextmanager
    def _client(self) -> Iterator[Client]:
        """Yield a client of the scheduler; afterwards, stop a cluster that was started here."""
        import dask
        from distributed import Client

        dask.config.set({"distributed.scheduler.allowed-failures": _ALLOWED_FAILURES})
        # The ledger has all that matters; a lost worker needs no traceback on the terminal.
        for name in ("distributed", "distributed.client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        cluster = self._cluster()
        try:
            client = Client(self.where if cluster is None else cluster)
        except (OSError, ValueError) as error:
            if cluster is not None:
                raise
            what = f"--cluster {self.where}: no scheduler answers there"
            remedy = "start one with `dask scheduler`, or check the address"
            raise ConfigError(what, remedy=remedy) from error
        with client:
            try:
                yield client
            finally:
                if cluster is not None:
                    cluster.close()

    def _cluster(self) -> Any:
        """Start the cluster and return it; None for a scheduler that is already running."""
        count = local_workers(self.where)
        if count:
            from distributed import LocalCluster

            with block_interrupts():
                return LocalCluster(
                    n_workers=count,
                    threads_per_worker=1,
                    dashboard_address="127.0.0.1:0",
                )
        if self.where not in _QUEUES:
            return None
        # Workers are batch jobs, configured by the file.
        import dask_jobqueue

        if self.config is None:
            remedy = "a YAML file with jobs, cores, memory, walltime and queue"
            raise ConfigError(
                f"--cluster {self.where} needs --cluster-config", remedy=remedy
            )
        options = read_yaml(self.config)
        jobs = options.pop("jobs", 1)
        # One item at a time per worker, whatever the number of its processors.
        options.setdefault("processes", 1)
        kind = getattr(dask_jobqueue, _QUEUES[self.where])
        cluster = kind(**options)
        cluster.scale(jobs=jobs)
        return cluster


async def _scheduler_state(client: Client) -> dict[str, Any]:
    """Return the scheduler's description of itself and its workers.

    Raises ConnectionError as soon as the connection to the scheduler is lost.
    """
    if client.scheduler is None:
        raise ConnectionError
    # On its own, this call would look for a lost scheduler for half a minute.
    asked: asyncio.Future[dict[str, Any]] = asyncio.ensure_future(
        client.scheduler.identity(n_workers=-1)
    )
    while not asked.done():
        if client.status != "running":
            asked.cancel()
            raise ConnectionError
        await asyncio.wait({asked}, timeout=POLL_S)
    return asked.result()
