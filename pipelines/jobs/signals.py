"""Signals: how they stop a run in order, and how its workers are kept from them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from types import FrameType

# After a signal, for what is in hand: less than a queue or a container waits may be too little for
# one scan on a processor, more than this is a scan that hangs.
GRACE_S = 60.0


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Processes started here, and later by threads started here, never see a Ctrl-C.

    It reaches all processes of a terminal, and what it means is this one's to decide: it does when
    the block ends.
    """
    # Starting it, as the first process would, lets interrupts through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def stop_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` at SIGTERM, SIGUSR1, Ctrl-C or an alarm; only in the main thread.

    The handlers from before are back when the context ends. In another thread nothing is changed,
    as Python allows handlers in the main thread alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        stop()

    signals = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGALRM)
    before = [signal.signal(number, handle) for number in signals]
    try:
        yield
    finally:
        for number, old in zip(signals, before, strict=True):
            signal.signal(number, old)


class _OverdueError(BaseException):
    """Ends the block at once: what is in hand is left for the next run."""


@contextmanager
def stop_on_signal(on_stop: Callable[[], object]) -> Iterator[Callable[[], bool]]:
    """Turn the first signal into a flag, which the yielded function returns.

    What is in hand can be finished so. A second signal, or the end of the grace, leaves the block
    at once, wherever it is. `on_stop` is called when the flag is first seen, and not by the handler
    of the signal: that may come in the middle of a line that is printed.
    """
    is_asked = False
    is_told = False

    def ask() -> None:
        nonlocal is_asked
        if is_asked:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise _OverdueError
        signal.setitimer(signal.ITIMER_REAL, GRACE_S)
        is_asked = True

    def stop() -> bool:
        nonlocal is_told
        if is_asked and not is_told:
            is_told = True
            on_stop()
        return is_told

    with suppress(_OverdueError), stop_signals(ask):
        try:
            yield stop
        finally:
            if is_asked:
                signal.setitimer(signal.ITIMER_REAL, 0)
