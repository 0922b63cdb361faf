"""Web server on loopback whose every response is scripted by a test."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Behaviour = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Plays the next behaviour of the server's script; the last one repeats."""

    def do_GET(self) -> None:
        script: list[Behaviour] = self.server.script  # type: ignore[attr-defined]
        self.server.ranges.append(self.headers.get("Range"))  # type: ignore[attr-defined]
        (script.pop(0) if len(script) > 1 else script[0])(self)

    def start(self) -> int:
        text = self.headers.get("Range")
        return int(text.removeprefix("bytes=").rstrip("-")) if text else 0

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        fields = {"Content-Length": str(len(body))}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the client may have been killed
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def serve(h: Handler, content: bytes) -> None:
    """Respond as an honest server, with support for ranges."""
    start = h.start()
    if start == 0:
        h.reply(200, content, ETag='"v1"')
    elif start >= len(content):
        h.reply(416, b"", Content_Range=f"bytes */{len(content)}")
    else:
        span = f"bytes {start}-{len(content) - 1}/{len(content)}"
        h.reply(206, content[start:], Content_Range=span, ETag='"v1"')


def cut(h: Handler, content: bytes, count: int) -> None:
    """Announce the remaining length, send `count` bytes of it and hang up."""
    start = h.start()
    h.reply(
        206 if start else 200,
        content[start : start + count],
        Content_Length=str(len(content) - start),
        Content_Range=f"bytes {start}-{len(content) - 1}/{len(content)}",
        ETag='"v1"',
    )


class Server:
    def __init__(self) -> None:
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.ranges = []  # type: ignore[attr-defined]
        threading.Thread(
            target=self.http.serve_forever, args=(0.01,), daemon=True
        ).start()

    def plays(self, *script: Behaviour) -> str:
        self.http.script = list(script)  # type: ignore[attr-defined]
        return f"http://127.0.0.1:{self.http.server_port}/file"

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    @property
    def ranges(self) -> list[str | None]:
        return self.http.ranges  # type: ignore[attr-defined, no-any-return]
