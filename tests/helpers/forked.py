"""Commands of trinat in forks of a process that has already imported the slow libraries."""

from __future__ import annotations

import contextlib
import importlib
import os
import runpy
import shutil
import signal
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import util
from pathlib import Path
from typing import NoReturn

# Slow imports. None of our modules, which each fork imports as a fresh process does.
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
    """Turn a forked process into a command, such as trinat predict, in the folder `home`.

    `streams` are descriptors for stdin, stdout and stderr. `before` runs right before the
    command. "python" runs a Python program; child processes use the Python found in PATH.
    """

    def main() -> None:
        for descriptor, stream in enumerate(streams):
            os.dup2(stream, descriptor)
            if stream > 2:
                os.close(stream)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        os.chdir(home)
        tempfile.tempdir = None
        warnings.resetwarnings()
        warnings.simplefilter("ignore", (DeprecationWarning, PendingDeprecationWarning))
        # Child processes must not import the main module of the process that was forked.
        sys.modules["__main__"] = types.ModuleType("__main__")
        sys.argv = [*words]
        if words[0] == "python":
            sys.executable = shutil.which("python") or sys.executable
            program: Callable[[], object] = partial(_run_python, words[1:])
        else:
            program = importlib.import_module(PROGRAMS[words[0]]).main
        before()
        program()

    _end_with(main)


def _run_python(words: Sequence[str]) -> None:
    """Run `python words`, with -c and a program or with a file."""
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path.insert(0, "")
        exec(words[1], vars(sys.modules["__main__"]))
    else:
        sys.argv = [*words]
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")


_start_anew = util.spawnv_passfds


def fork_for_multiprocessing(
    path: bytes, words: Sequence[str], kept: Sequence[int]
) -> int:
    """Fork instead of starting `python ... -c PROGRAM WORDS`, and return the process id.

    Replaces util.spawnv_passfds, which starts a Python that imports all libraries again. The
    fork keeps only the descriptors `kept`. The work is pickled for it as before. The resource
    tracker imports no libraries, so it is started normally.
    """
    if "resource_tracker" in words[-1]:
        return _start_anew(path, words, kept)

    def main() -> None:
        # Redirect rather than close them: closing a parent's file object later must not close a
        # number that has been reused.
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in [int(file.name) for file in Path("/dev/fd").iterdir()]:
            if descriptor > 2 and descriptor not in kept:
                os.dup2(nothing, descriptor)
        _run_python(words[words.index("-c") :])

    process = os.fork()
    if not process:
        _end_with(main)
    return process


def _end_with(main: Callable[[], object]) -> NoReturn:
    """Run a function in a fork with the signals of a fresh process, and exit."""
    status = 70
    try:
        signal.set_wakeup_fd(-1)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
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
