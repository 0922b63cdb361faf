"""Work on many items in processes, of which each may die and take nothing but its item with it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import TypeVar

from pipelines.common.process import prepare_process

Item = TypeVar("Item")
Result = TypeVar("Result")


def isolated(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    jobs: int,
    *,
    killed: Callable[[Item], Result],
    torch_threads: int | None = 1,
) -> Iterator[tuple[Item, Result]]:
    """Items with results as they come; `killed` is the result of one whose process died.

    With one job all is done in this process. Without a number of threads torch is not touched:
    work that seldom needs it need not wait for its import.
    """
    waiting = list(items)
    if jobs <= 1:
        yield from ((item, work(item)) for item in waiting)
        return
    while waiting:
        crashed: list[Item] = []
        with _pool(jobs, work, torch_threads) as pool:
            running: dict[Future[Result], Item] = {}
            while running or (waiting and not crashed):
                # No more than are at work, so that a broken pool leaves few in doubt.
                while waiting and not crashed and len(running) < jobs:
                    item = waiting.pop(0)
                    try:
                        running[pool.submit(work, item)] = item
                    except BrokenProcessPool:
                        crashed.append(item)
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    item = running.pop(future)
                    try:
                        yield item, future.result()
                    except BrokenProcessPool:
                        crashed.append(item)
        # Whose fault it was is not told: each suspect gets a process of its own.
        for item in crashed:
            with _pool(1, work, torch_threads) as pool:
                try:
                    result = pool.submit(work, item).result()
                except BrokenProcessPool:
                    result = killed(item)
            yield item, result


def _pool(
    workers: int, work: Callable[[Item], Result], torch_threads: int | None
) -> ProcessPoolExecutor:
    # Workers are forked from one clean process that has imported everything once.
    context = get_context("forkserver")
    context.set_forkserver_preload([work.__module__])
    return ProcessPoolExecutor(workers, context, _start_worker, (torch_threads,))


def _start_worker(torch_threads: int | None) -> None:
    # Ctrl-C reaches the whole process group: the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nor does a worker outlive a parent that was killed, and write where another run is.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    prepare_process(torch_threads)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
