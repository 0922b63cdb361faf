"""HTTP server: listens on a port until a signal stops it, and serves the files of a site.

uvicorn does the work, with its own logging disabled and with a protocol that times out slow
clients.
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

# Timeout for the head of a request, in seconds.
_HEAD_S = 10.0
_MAX_CONNECTIONS = 512
# Time to finish responses after the signal, in seconds.
_LAST_ANSWERS_S = 3
# Together with the guard's Cross-Origin-Opener-Policy, browsers require this header for threads
# with shared memory.
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
    on_listening: Callable[[str], object],
) -> None:
    """Serve an application until a signal stops it.

    `on_listening` is called with the address of the page, including the token, once the server
    listens. Port 0 means any free port. `names` are the host names of reverse proxies. `token`,
    `max_body` (bytes) and `policy` are passed to `Guard`. Raises ConfigError if it cannot listen on
    `host` and `port`.
    """
    with _listen(host, port) as listening:
        port = listening.getsockname()[1]
        called = Names(host, port, names)
        guard = Guard(app, token, called, max_body=max_body, policy=policy)
        # Less logging than by default, and limits for everything that is buffered.
        configuration = uvicorn.Config(
            guard,
            http=_Protocol,
            ws="none",
            # uvicorn logs addresses and tracebacks; the guard logs instead.
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

        # Show this machine's name instead of a wildcard address.
        shown = host
        if host in ("0.0.0.0", "::"):
            shown = socket.gethostname()
        if ":" in shown:
            shown = f"[{shown}]"

        def stop() -> None:
            server.should_exit = True

        # uvicorn raises the signal again when it has stopped, which would end this process as well.
        with stop_signals(stop):
            on_listening(f"http://{shown}:{port}/?token={token}")
            server.run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise ConfigError if the address or port cannot be used."""
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
    """HTTP/1.1 protocol with a timeout for request headers and JSON replies to malformed ones.

    The timer runs while headers are expected: from the connection, or the end of the previous
    request, to the last header.
    """

    _slow: Any = None  # timer of a head that has begun

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
        """Start the timer if request headers are expected; stop it if they are complete."""
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
        """Answer input that is not an HTTP request; uvicorn calls this method."""
        reason = "not a request in HTTP/1.1, or its head is too long"
        self._end(HTTPStatus.BAD_REQUEST, reason)

    def _end(self, status: HTTPStatus, reason: str) -> None:
        """Send an error response with the reason, and close the connection."""
        # If a response has already begun, no other can be sent.
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
    """Static files, with the headers that browsers require for threads with shared memory."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file, or the page itself for the folder."""
        response = await super().get_response(path, scope)
        response.headers.update(_ISOLATION)
        return response


def make_site_app(folder: Path) -> Starlette:
    """Return an application for the files of a site, without any access control.

    Raises ConfigError if the folder is not such a site.
    """
    if not (folder / "models.json").is_file():
        raise ConfigError(
            "no site of trinat",
            where=folder,
            remedy="write one: trinat export fast --format web --out FOLDER",
        )
    files = _IsolatedFiles(directory=folder, html=True)
    return Starlette(routes=[Mount("/", files)])
