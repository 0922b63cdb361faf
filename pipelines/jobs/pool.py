"""Pool of worker processes, in which an item that crashes its process costs that item only.

`Pool` sends items to processes, watches them, and replaces processes that die. It alone decides
which item is to blame. `run_isolated` applies a function to items in such processes.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any, Generic, Protocol, TypeVar

from trinat.pipelines.jobs.process import block_interrupts, prepare_process
from trinat.segmentation.errors import DeviceError
from trinat.segmentation.timing import stage

# Message of a process that is ready to work.
READY = "ready"
# Stage of an item that waits in its process: this time does not count for the time limit.
WAITING = "waiting"
POLL_S = 0.5
# Maximum number of processes that may die before they are ready.
_FAILED_STARTS = 2


class Item(Protocol):
    """Item of work of a pool."""

    @property
    def id(self) -> str:
        """Unique name of the item, used in messages."""
        ...

    @property
    def work(self) -> int:
        """Expected duration as a multiple of that of a usual item; scales the time limit."""
        ...


ItemT = TypeVar("ItemT", bound=Item)
Answer = TypeVar("Answer")
Given = TypeVar("Given")


@dataclass(frozen=True)
class Done(Generic[Answer]):
    """Message by which a worker process reports that an item is finished.

    `id` is the id of the item, and `answer` its result.
    """

    id: str
    answer: Answer


def ignore_stage(item: str, stage: str) -> None:
    """Ignore a change of stage; the default callback."""


@dataclass(eq=False)
class Pool(Generic[ItemT, Answer]):
    """Worker processes that run `target`, one for each of `devices`.

    For two processes on the CPU, `devices` has cpu twice. `target` is called with its end of a
    connection, followed by `args` and its device. Through the connection it receives items, and
    None when there are no more. It sends READY once, (item id, stage) whenever a stage of an item
    begins, `Done` for a finished item, or an exception, which ends the pool.

    If a process dies while it works on several items, each of them is repeated alone in a process:
    only an item that crashes that process, too, is to blame. `failed` returns the answer for an
    item that has crashed its process or exceeded the time limit; it gets the item and the reason.

    - `capacity` is the number of items that a process holds. If it is 1, the process works on the
      item at once. After a crash, the item is repeated while no other process works, so that it has
      all of the memory, before it is blamed.
    - `timeout_s` is the time limit for one item; there is none if it is 0 or None.
    - `poll_s` is the longest wait between two checks of the time limit and of `stop`.
    - `on_stage` is called with an item's id and its new stage, and with ("", "ready") when a
      process is ready.
    - `context` starts the processes. It is not fork, because threads of torch and OpenMP do not
      survive a fork.
    """

    target: Callable[..., None]
    args: tuple[Any, ...]
    devices: Sequence[str]
    failed: Callable[[ItemT, str], Answer]
    _: KW_ONLY
    capacity: int = 1
    timeout_s: float | None = None
    poll_s: float = POLL_S
    on_stage: Callable[[str, str], None] = ignore_stage
    context: SpawnContext | ForkServerContext = field(
        default_factory=lambda: multiprocessing.get_context("spawn")
    )
    # Items that may have crashed a process, and items that only shared a process with them.
    _suspects: deque[ItemT] = field(default_factory=deque, init=False)
    _again: deque[ItemT] = field(default_factory=deque, init=False)
    # True if workers get items before they are ready. It becomes False once a worker has died while
    # starting.
    _early: bool = field(default=True, init=False)
    _failed_starts: int = field(default=0, init=False)

    def run(
        self, items: Iterable[ItemT | None], stop: Callable[[], bool]
    ) -> Iterator[Answer]:
        """Yield one answer for each item that was begun, in any order.

        `items` may yield None if no item is available yet; it is asked again later. `stop` is
        called repeatedly; once it returns True, running items are finished and no more are begun.
        No process is left when this iterator ends or is closed.
        """
        waiting = iter(items)
        workers = [self._start(device) for device in self.devices]
        self._failed_starts = 0
        try:
            while workers:
                for worker in workers:
                    if not self._leaves_room_for_suspect(worker, workers):
                        self._feed(worker, waiting, stop)
                is_over = all(worker.finishing for worker in workers)
                connections = [worker.connection for worker in workers]
                with stage("stop") if is_over else nullcontext():
                    readable = set(wait(connections, timeout=self.poll_s))
                for worker in list(workers):
                    if worker.connection not in readable:
                        continue
                    answers, is_alive = self._receive(worker)
                    yield from answers
                    if is_alive:
                        continue
                    workers.remove(worker)
                    worker.connection.close()
                    if stop() and worker.process.exitcode == -signal.SIGTERM:
                        # A batch queue ends all processes of a job with one signal: the items of
                        # this process are not to blame, and are left for the next run.
                        continue
                    yield from self._settle_items_of_dead(worker)
                    if not worker.finishing:
                        workers.append(self._start(worker.device))
                for worker in list(workers):
                    late = self._late_item(worker)
                    if late is None:
                        continue
                    worker.kill()
                    workers.remove(worker)
                    # The other items of the process are not to blame.
                    del worker.in_hand[late.id]
                    self._again.extend(hand.item for hand in worker.in_hand.values())
                    limit_s = (self.timeout_s or 0) * late.work
                    yield self.failed(late, f"took longer than {limit_s:g} s")
                    if not stop():
                        workers.append(self._start(worker.device))
        finally:
            for worker in workers:
                worker.kill()

    def _start(self, device: str) -> _Worker[ItemT]:
        # A signal to the whole process group also ends Python's resource tracker, which Python
        # restarts.
        warnings.filterwarnings("ignore", "resource_tracker: process died unexpectedly")
        ours, theirs = self.context.Pipe()
        process = self.context.Process(
            target=_run_target,
            args=(self.target, theirs, *self.args, device),
            daemon=True,
        )
        # Ctrl-C during the imports of the process would make Python print a traceback.
        with block_interrupts():
            process.start()
        theirs.close()
        return _Worker(process, ours, device)

    def _leaves_room_for_suspect(
        self, worker: _Worker[ItemT], workers: Sequence[_Worker[ItemT]]
    ) -> bool:
        """Return True if a worker must stay idle, so that a suspect item can be tried alone.

        Suspect are items that may have crashed a process. They are tried once all other workers are
        idle, if each process holds a single item.
        """
        if self.capacity > 1:
            return False
        at_work = [other for other in workers if other is not worker and other.in_hand]
        if self._suspects:
            return bool(at_work)
        return any(other.alone for other in at_work)

    def _feed(
        self,
        worker: _Worker[ItemT],
        waiting: Iterator[ItemT | None],
        stop: Callable[[], bool],
    ) -> None:
        """Send a worker as many items as it may have now; tell it to end if there are no more.

        `waiting` yields the items, or None if none is available yet. Items that are to be repeated
        come first. Once `stop` returns True, the worker is told to end.
        """
        may_begin = worker.ready or self._early
        if worker.finishing or not may_begin:
            return
        if stop():
            worker.finish()
            return
        if worker.alone and worker.in_hand:
            return
        worker.alone = False
        entered = WAITING if self.capacity > 1 else "at work"
        if self._suspects:
            # A suspect is tried alone: a worker with other items finishes them first.
            if not worker.in_hand:
                suspect = self._suspects.popleft()
                worker.alone = worker.give(suspect, entered)
                if not worker.alone:
                    # The process is gone: keep the suspect for the next one.
                    self._suspects.appendleft(suspect)
            return
        while len(worker.in_hand) < self.capacity:
            try:
                item = self._again.popleft() if self._again else next(waiting)
            except StopIteration:
                if not worker.in_hand:
                    worker.finish()
                return
            if item is None:
                return
            if not worker.give(item, entered):
                # The process is gone: keep the item.
                self._again.appendleft(item)
                return

    def _receive(self, worker: _Worker[ItemT]) -> tuple[list[Answer], bool]:
        """Read all messages that a worker has sent; return its answers, and True if it is alive.

        An exception that the worker has sent is raised.
        """
        answers: list[Answer] = []
        try:
            while worker.connection.poll():
                message = worker.connection.recv()
                if isinstance(message, Done):
                    worker.in_hand.pop(message.id)
                    answers.append(message.answer)
                elif isinstance(message, Exception):
                    raise message
                elif message == READY:
                    worker.ready = True
                    self.on_stage("", READY)
                else:
                    item, entered = message
                    worker.in_hand[item].enter(entered)
                    self.on_stage(item, entered)
        except (EOFError, ConnectionResetError):
            with stage("stop"):
                worker.process.join()
            return answers, False
        return answers, True

    def _settle_items_of_dead(self, worker: _Worker[ItemT]) -> Iterator[Answer]:
        """Decide what happens to the items of a worker whose process has died.

        Yields the answer for the item that is to blame, if one is. The others are repeated. Raises
        DeviceError if processes keep dying at their start.
        """
        if worker.finishing and worker.process.exitcode == 0:
            return
        if not worker.ready:
            self._early = False
            self._failed_starts += 1
            if self._failed_starts > _FAILED_STARTS:
                what = f"a worker process on {worker.device} died while starting"
                remedy = "see trinat doctor; is there enough memory?"
                raise DeviceError(f"{what} ({worker.describe_exit()})", remedy=remedy)
            # Start-up itself may fail, so the next worker gets no item until it is ready.
            self._again.extend(hand.item for hand in worker.in_hand.values())
            return
        at_work = [hand for hand in worker.in_hand.values() if hand.stage != WAITING]
        # With `capacity` 1, items of other processes may have taken the memory that this item
        # needed, so it is blamed only if it was the only item at work.
        if len(worker.in_hand) == 1 and at_work and (worker.alone or self.capacity > 1):
            (hand,) = at_work
            reason = f"its process died while {hand.stage} ({worker.describe_exit()})"
            yield self.failed(hand.item, reason)
            return
        # One of the items at work has crashed the process. Items that only waited are not suspects.
        self._suspects.extend(hand.item for hand in at_work)
        self._again.extend(
            hand.item for hand in worker.in_hand.values() if hand.stage == WAITING
        )

    def _late_item(self, worker: _Worker[ItemT]) -> ItemT | None:
        """Return an item that has exceeded its time limit; None if there is none.

        Raises DeviceError if the process has not become ready within the limit.
        """
        if not self.timeout_s:
            return None
        if not worker.ready and time.monotonic() - worker.started > self.timeout_s:
            what = f"a worker process on {worker.device} did not start within"
            raise DeviceError(
                f"{what} {self.timeout_s:g} s", remedy="see trinat doctor"
            )
        for hand in worker.in_hand.values():
            if hand.seconds > self.timeout_s * hand.item.work:
                return hand.item
        return None


@dataclass
class _InHand(Generic[ItemT]):
    """Item that a worker process has received and not finished, with its stage and its times.

    `stage` is the current stage of the work, such as "writing". `since` is the start of the stage
    in seconds of `time.monotonic`; `spent_s` is the working time in earlier stages.
    """

    item: ItemT
    stage: str = WAITING
    since: float = field(default_factory=time.monotonic)
    spent_s: float = 0.0

    def enter(self, stage: str) -> None:
        """Begin another stage; the time in the stage `WAITING` is not working time."""
        self.spent_s = self.seconds
        self.since = time.monotonic()
        self.stage = stage

    @property
    def seconds(self) -> float:
        """Working time of the item until now, without waiting, in seconds."""
        if self.stage == WAITING:
            return self.spent_s
        return self.spent_s + time.monotonic() - self.since


@dataclass
class _Worker(Generic[ItemT]):
    """Worker process on one device, as seen by its parent.

    `connection` is the parent's end of the pipe to it, `started` its start in seconds of
    `time.monotonic`. `ready` is True once it has sent READY, and `finishing` once it has been told
    to end. `alone` is True if it works on a single item, which may have crashed another process.
    `in_hand` has the items that it has received and not finished, by their ids.
    """

    process: BaseProcess
    connection: Connection
    device: str
    started: float = field(default_factory=time.monotonic)
    ready: bool = False
    finishing: bool = False
    alone: bool = False
    in_hand: dict[str, _InHand[ItemT]] = field(default_factory=dict)

    def give(self, item: ItemT, entered: str) -> bool:
        """Send an item to the process; return False if the process is gone.

        `entered` is the first stage of the item.
        """
        try:
            self.connection.send(item)
        except OSError:
            return False
        self.in_hand[item.id] = _InHand(item, entered)
        return True

    def finish(self) -> None:
        """Tell the process to end after its current items."""
        self.finishing = True
        with suppress(OSError):
            self.connection.send(None)

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.join()
        self.connection.close()

    def describe_exit(self) -> str:
        """Describe the signal or exit status that ended the process."""
        code = self.process.exitcode
        if code == -9:
            return "killed, perhaps because memory ran out"
        if code is not None and code < 0:
            return f"signal {-code}"
        return f"exit status {code}"


def _run_target(
    target: Callable[..., None], connection: Connection, *args: Any
) -> None:
    """Run `target` and exit; entry point of the processes of a pool."""
    # A signal to the whole process group is handled by the parent. A SIGTERM to this process ends
    # it.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    follow_parent()
    target(connection, *args)
    # Tearing down torch takes part of a second, which would delay the run.
    os._exit(0)


def follow_parent() -> None:
    """Leave Ctrl-C to the parent process, and exit when it exits.

    Ctrl-C reaches every process of a terminal: the parent alone decides what to do. If the parent
    is killed, this process must not go on and write to a folder that another run uses by then.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end_with_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


@dataclass(frozen=True)
class _Numbered(Generic[Given]):
    """Item of `run_isolated` for the pool: `given` is the item, and `id` its position as text."""

    id: str
    given: Given
    work: int = 1


@dataclass(frozen=True)
class _Raised:
    """Error raised by the work in a process of `run_isolated`, encoded by `pickle_error`."""

    error: bytes


def run_isolated(
    work: Callable[[Given], Answer],
    items: Sequence[Given],
    jobs: int,
    *,
    killed: Callable[[Given], Answer],
    finished: Callable[[Answer, int, int], object] = lambda answer, done, total: None,
    torch_threads: int | None = 1,
) -> list[Answer]:
    """Call `work` with each item in separate processes; return the answers in the order of items.

    - `jobs` is the number of processes. With one, all work is done in this process.
    - `killed` returns the answer for an item whose process has died.
    - `finished(answer, done, total)` is called after each item.
    - `torch_threads` is the number of threads of torch in each process. If it is None, torch is not
      configured, so that work that seldom needs torch does not wait for its import.

    The first error that `work` raises is raised again once the running items are finished.
    """
    processes = min(jobs, len(items))
    answers: dict[int, Answer] = {}
    errors: list[Exception] = []
    if processes <= 1:
        prepare_process()
        for number, item in enumerate(items):
            answers[number] = work(item)
            finished(answers[number], len(answers), len(items))
    else:
        # Processes are forks of one that has imported only the module of `work`: they start fast.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([work.__module__])
        pool: Pool[_Numbered[Given], tuple[int, Answer | _Raised]] = Pool(
            _work_in_turn,
            (work, torch_threads),
            ["cpu"] * processes,
            failed=lambda item, reason: (int(item.id), killed(item.given)),
            context=context,
        )
        numbered = [_Numbered(str(number), item) for number, item in enumerate(items)]
        for number, answer in pool.run(numbered, stop=lambda: bool(errors)):
            if isinstance(answer, _Raised):
                errors.append(pickle.loads(answer.error))
                continue
            answers[number] = answer
            finished(answer, len(answers), len(items))
    if errors:
        raise errors[0]
    return [answers[number] for number in range(len(items))]


def _work_in_turn(
    connection: Connection,
    work: Callable[[Given], Answer],
    torch_threads: int | None,
    device: str,
) -> None:
    """Apply `work` to one item after another in a worker process of `run_isolated`.

    Items are received from `connection`, and answers are sent through it, as `Pool` describes.
    `torch_threads` is the number of torch's threads; None to leave torch alone. `device` is not
    used.
    """
    prepare_process(torch_threads)
    connection.send(READY)
    # EOF means that the parent is gone.
    with suppress(EOFError):
        while (item := connection.recv()) is not None:
            answer: Answer | _Raised
            try:
                answer = work(item.given)
            except Exception as error:
                answer = _Raised(pickle_error(error))
            connection.send(Done(item.id, (int(item.id), answer)))


def pickle_error(error: Exception) -> bytes:
    """Pickle an error with its traceback, for --debug.

    An error that cannot be unpickled is replaced by a RuntimeError with its text.
    """
    error.add_note(traceback.format_exc())
    try:
        content = pickle.dumps(error)
        pickle.loads(content)
    # Any exception: both calls run code of the error's own class.
    except Exception:
        as_text = RuntimeError(f"{type(error).__name__}: {error}")
        as_text.__notes__ = error.__notes__
        content = pickle.dumps(as_text)
    return content
