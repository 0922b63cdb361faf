"""What starts a server: listening on a port until a signal ends it, and the files of a site.

uvicorn does the work, with its own logging off and with a protocol that waits for no client for
ever.
"""

from __future__ import annotations

import errno
import json
import logging
import socket
from asyncio import Transport
from collections.abc import Callable, Collection
from http import HTTPStatus
from pathlib import Path
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from trinat.pipelines.jobs.process import stop_signals
from trinat.pipelines.view.guard import MAX_BODY, MAX_HEAD, POLICY, Guard, Names
from trinat.segmentation.errors import ConfigError

# How long the head of a request may take.
_HEAD_S = 10.0
_MAX_CONNECTIONS = 512
# How long answers that have begun may take after the signal.
_LAST_ANSWERS_S = 3
# With the guard's Cross-Origin-Opener-Policy, what a browser wants before threads share memory.
_ISOLATION = {"Cross-Origin-Embedder-Policy": "require-corp"}


def answer(
    app: ASGIApp,
    token: str,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    names: Collection[str] = (),
    max_body: int = MAX_BODY,
    policy: str = POLICY,
    say: Callable[[str], object],
) -> None:
    """Answer requests until a signal; `say` gets the address with the token once it is listened at.

    Port 0 is any free one. `names` are those of proxies before this server. `token`, `max_body`
    (bytes) and `policy` are those of `Guard`. Raises ConfigError where it cannot listen.
    """
    with _listen(host, port) as listening:
        port = listening.getsockname()[1]
        called = Names(host, port, names)
        guard = Guard(app, token, called, max_body=max_body, policy=policy)
        # Less is said than by default, and what is kept has limits.
        configuration = uvicorn.Config(
            guard,
            http=_Protocol,
            ws="none",
            # Its lines hold addresses and tracebacks; ours come from the guard.
            log_config=None,
            log_level=logging.CRITICAL,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=MAX_HEAD,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_graceful_shutdown=_LAST_ANSWERS_S,
        )
        server = uvicorn.Server(configuration)

        # An address that stands for every one is shown as this machine's name.
        shown = host
        if host in ("0.0.0.0", "::"):
            shown = socket.gethostname()
        if ":" in shown:
            shown = f"[{shown}]"

        def stop() -> None:
            server.should_exit = True

        # uvicorn repeats the signal that ended it, which would end this process as well.
        with stop_signals(stop):
            say(f"http://{shown}:{port}/?token={token}")
            server.run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens, or ConfigError with what to change."""
    family = socket.AF_INET
    if ":" in host:
        family = socket.AF_INET6
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        remedy = "give an address of this machine, as 127.0.0.1"
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            remedy = "give another --port, or --port 0 for a free one"
        raise ConfigError(
            f"--host {host} --port {port}: cannot listen there ({error.strerror or error})",
            remedy=remedy,
        ) from None


class _Protocol(H11Protocol):
    """HTTP/1.1 that does not wait for a head without an end, and refuses a broken one in JSON.

    The timer runs while a head may come: from the connection, or the end of the request before,
    to the end of the head.
    """

    _slow: Any = None  # the timer of a head that has begun

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the timer, or stop it if the head is over."""
        if self.conn.their_state is not h11.IDLE:
            self._unwatch()
        elif self._slow is None:
            self._slow = self.loop.call_later(_HEAD_S, self._too_slow)

    def _unwatch(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _too_slow(self) -> None:
        if not self.transport.is_closing() and self.conn.their_state is h11.IDLE:
            self._end(HTTPStatus.REQUEST_TIMEOUT, "the request came too slowly")

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls for what is no request."""
        reason = "not a request in HTTP/1.1, or its head is too long"
        self._end(HTTPStatus.BAD_REQUEST, reason)

    def _end(self, status: HTTPStatus, reason: str) -> None:
        """Say why, and close the connection."""
        # Where an answer has begun already, this one cannot be given.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"reason": reason}).encode() + b"\n"
            headers = [
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(body))),
                ("Connection", "close"),
            ]
            head = h11.Response(
                status_code=status,
                headers=headers,
                reason=status.phrase,
            )
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class _IsolatedFiles(StaticFiles):
    """Files with the headers that threads in a browser need."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The file, or the page itself for the folder."""
        response = await super().get_response(path, scope)
        response.headers.update(_ISOLATION)
        return response


def make_site_app(folder: Path) -> Starlette:
    """The files of a site, as an application that knows nothing of who may ask.

    ConfigError for a folder that is no such site.
    """
    if not (folder / "models.json").is_file():
        raise ConfigError(
            "no site of trinat",
            where=folder,
            remedy="write one: trinat export fast --format web --out FOLDER",
        )
    files = _IsolatedFiles(directory=folder, html=True)
    return Starlette(routes=[Mount("/", files)])
