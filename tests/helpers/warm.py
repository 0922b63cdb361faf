"""`trinat` for shells in tests, without its start: commands are forks of one warm process.

    python -m helpers.warm FOLDER

The process says a line when FOLDER/bin has the commands, and serves until its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from pathlib import Path

from helpers.forked import PROGRAMS, become, import_libraries

# Hands a command over with its streams, and ends as it ends. A server is to be killed by its
# number: it starts as usual.
_SHIM = """#!{python} -IS
import json, os, socket, sys
words = ["{name}", *sys.argv[1:]]
if words[1:2] in (["serve"], ["view"]):
    os.execv("{installed}", words)
request = {{"words": words, "home": os.getcwd(), "environment": dict(os.environ)}}
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect("{address}")
    socket.send_fds(connection, [b"+"], [0, 1, 2])
    connection.sendall(json.dumps(request).encode())
    connection.shutdown(socket.SHUT_WR)
    status = int(connection.recv(16) or 70)
sys.exit(status)
"""


def main(folder: Path) -> None:
    (folder / "bin").mkdir()
    address = folder / "socket"
    for name in PROGRAMS:
        installed = Path(sys.executable).with_name(name)
        shim = folder / "bin" / name
        shim.write_text(
            _SHIM.format(
                python=sys.executable, name=name, installed=installed, address=address
            )
        )
        shim.chmod(0o755)
    import_libraries()
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
            # Those that have ended: what they took counts as taken by this process.
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _serve(connection: socket.socket) -> None:
    """Run one command, and say how it ended: minus the signal that ended it."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as file:
        request = json.load(file)
    pid = os.fork()
    if not pid:
        connection.close()
        os.environ.clear()
        os.environ |= request["environment"]
        become(request["words"], Path(request["home"]), streams)
    _, code = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        connection.sendall(str(os.waitstatus_to_exitcode(code)).encode())
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
