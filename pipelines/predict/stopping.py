"""How a signal stops a run: what is in hand is finished, within a time of grace."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trinat.pipelines.common.process import stop_signals

# After a signal, for what is in hand: less than a queue or a container waits may be too little for
# one scan on a processor, more than this is a scan that hangs.
GRACE_S = 60.0


class _OverdueError(BaseException):
    """Ends the block at once: what is in hand is left for the next run."""


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Turn the first signal into a flag, which the yielded function returns.

    The scans in hand can be finished so. A second signal, or the end of the grace, leaves the
    block at once, wherever it is.
    """
    is_asked = False

    def ask() -> None:
        nonlocal is_asked
        if is_asked:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise _OverdueError
        signal.setitimer(signal.ITIMER_REAL, GRACE_S)
        is_asked = True

    def asked() -> bool:
        return is_asked

    with contextlib.suppress(_OverdueError), stop_signals(ask):
        try:
            yield asked
        finally:
            if is_asked:
                signal.setitimer(signal.ITIMER_REAL, 0)
