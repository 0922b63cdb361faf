"""Fast `trinat` and `python` commands: forks of one process that has the libraries imported.

    python -m helpers.warm FOLDER

The process prints a line when the commands are in FOLDER/bin, and serves until it is
terminated. Shells find the commands in FOLDER/bin; `Warm.start` starts a command that a test
may kill.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import util
from pathlib import Path
from typing import IO

import psutil

from helpers.forked import (
    PROGRAMS,
    become,
    fork_for_multiprocessing,
    import_libraries,
)

# Passes a command and its streams to the warm process, and exits with its status. Servers are
# started normally, because tests kill them by their process id; so is Python, unless it runs a
# program, a file or the module trinat.
_SHIM = """#!{python} -IS
import json, os, socket, sys
words = ["{name}", *sys.argv[1:]]
if words[:3] == ["python", "-m", "trinat"]:
    words = words[2:]
if words[0] == "python":
    usual = not "".join(words[1:2]).endswith((".py", "-c"))
else:
    usual = words[1:2] in (["serve"], ["view"])
if usual:
    os.execv("{installed}", ["{installed}", *sys.argv[1:]])
request = {{"words": words, "home": os.getcwd(), "environment": dict(os.environ)}}
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect("{address}")
    socket.send_fds(connection, [b"+"], [0, 1, 2])
    connection.sendall(json.dumps(request).encode())
    connection.shutdown(socket.SHUT_WR)
    answers = connection.makefile().read().split()
sys.exit(int(answers[1]) if len(answers) == 2 else 70)
"""


class Warm:
    """Client of the warm process, which ends with the `with` block."""

    def __init__(self, folder: Path) -> None:
        self.bin, self._socket = folder / "bin", folder / "socket"
        root = Path(__file__).parents[2]
        environment = {
            **os.environ,
            "PYTHONPATH": f"{root}:{root / 'tests'}",
            "OMP_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "helpers.warm", folder],
            env=environment,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def start(
        self,
        *words: object,
        environment: Mapping[str, str],
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
    ) -> Started:
        """Start `trinat ...` in the current folder, in a process group of its own.

        Output is discarded unless a file is given.
        """
        request = {
            "words": [str(word) for word in words],
            "home": str(Path.cwd()),
            "environment": dict(environment),
        }
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self._socket))
        with Path(os.devnull).open("r+b") as nothing:
            streams = [stream or nothing for stream in (None, stdout, stderr)]
            descriptors = [stream.fileno() for stream in streams]
            socket.send_fds(connection, [b"+"], descriptors)
        connection.sendall(json.dumps(request).encode())
        connection.shutdown(socket.SHUT_WR)
        return Started(connection)

    def processor_s(self) -> float:
        """Return the processor seconds of the finished commands and of the process itself."""
        return sum(psutil.Process(self._process.pid).cpu_times()[:4])

    def end(self) -> None:
        self._process.terminate()
        with self._process:
            pass


class Started:
    """A running command, with the interface of Popen."""

    def __init__(self, connection: socket.socket) -> None:
        self._answers = connection.makefile()
        self._connection = connection
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if psutil.pid_exists(self.pid):
            return None
        return self.wait()

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._connection.settimeout(timeout)
            with self._connection, self._answers:
                self.returncode = int(self._answers.readline())
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.send_signal(signal.SIGKILL)


def main(folder: Path) -> None:
    (folder / "bin").mkdir()
    address = folder / "socket"
    for name in ("python", *PROGRAMS):
        installed = Path(sys.executable).with_name(name)
        shim = folder / "bin" / name
        shim.write_text(
            _SHIM.format(
                python=sys.executable, name=name, installed=installed, address=address
            )
        )
        shim.chmod(0o755)
    import_libraries()
    signal.signal(signal.SIGCHLD, _reap)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                if not os.fork():
                    listener.close()
                    _serve(connection)


def _reap(*_: object) -> None:
    """Wait for finished children, so that their processor time is added to this process."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _serve(connection: socket.socket) -> None:
    """Run one command, and send its process id and exit status (minus the signal, if killed)."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as file:
        request = json.load(file)
    pid = os.fork()
    if not pid:
        connection.close()
        os.setpgid(0, 0)
        os.environ.clear()
        os.environ |= request["environment"]
        # A server has many threads, and a fork of it would inherit locked locks.
        if request["words"][1:2] not in (["serve"], ["view"]):
            util.spawnv_passfds = fork_for_multiprocessing
        become(request["words"], Path(request["home"]), streams)
    # Only the command keeps the streams, so that their reader sees the end of its output.
    for stream in streams:
        os.close(stream)
    with contextlib.suppress(OSError):
        connection.sendall(f"{pid}\n".encode())
    _, code = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        connection.sendall(f"{os.waitstatus_to_exitcode(code)}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
