"""Commands of trinat in forks of a process that has the libraries: no start, no import of torch."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

# What takes long to import. Nothing of ours: each fork imports it as a fresh process does.
LIBRARIES = (
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "pandas",
    "scipy.stats",
    "torch._dynamo",
    "torchio",
)
PROGRAMS = {
    "trinat": "trinat.pipelines.cli",
    "trinat-bids": "trinat.pipelines.cli.bids",
}


def import_libraries() -> None:
    for name in LIBRARIES:
        importlib.import_module(name)


def become(
    words: Sequence[str],
    home: Path,
    streams: Sequence[int],
    before: Callable[[], object] = lambda: None,
) -> NoReturn:
    """Make a forked process a command, such as trinat predict, in the folder `home`.

    `streams` are descriptors of what it reads, says and says of failures. `before` runs in it last.
    """
    status = 70
    try:
        # As a fresh process has them: no handlers, no alarm.
        for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for descriptor, stream in enumerate(streams):
            os.dup2(stream, descriptor)
            if stream > 2:
                os.close(stream)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        os.chdir(home)
        warnings.resetwarnings()
        warnings.simplefilter("ignore", (DeprecationWarning, PendingDeprecationWarning))
        # Workers are spawned anew, and must not begin with importing what was forked.
        sys.modules["__main__"] = types.ModuleType("__main__")
        sys.argv = [*words]
        main = importlib.import_module(PROGRAMS[words[0]]).main
        before()
        status = _status_of(main)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _status_of(main: Callable[[], object]) -> int:
    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, int):
            return end.code
        if end.code is not None:
            return 1
    return 0
