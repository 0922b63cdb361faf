"""Request guard for the HTTP servers: authentication, allowed hosts and size limits.

A page of another site can make a browser send requests here, also under a name that it resolves
to this machine (DNS rebinding), but it cannot choose their Host, Origin and Sec-Fetch-Site
headers. Other programs and other users of this machine can, but they do not know the token.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import logging
import re
import secrets
import socket
import time
import traceback
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trinat.segmentation.errors import one_line

# Scripts, styles and data from this server only; pictures and workers may also be created by the
# page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; font-src 'self'; "
    "img-src 'self' data: blob:; worker-src 'self' blob:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
# Content policy of a site: `wasm-unsafe-eval` lets ONNX Runtime compile WebAssembly.
SITE_POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data: blob:; worker-src 'self' blob:; "
    "form-action 'none'; base-uri 'none'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# Maximum size in bytes of a request's head, and of its body if the server takes no uploads.
MAX_HEAD = 1 << 14
MAX_BODY = 1 << 16
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
# A body has this long to arrive, plus one second for each `_BYTES_PER_S` bytes received.
_PATIENCE_S = 20.0
_BYTES_PER_S = 10_000
# Time for reading the rest of a refused request: a client that is still sending would otherwise
# miss the answer.
_DRAIN_S = 2.0

_log = logging.getLogger("trinat.web")


def new_token() -> str:
    """Return a random secret of characters that are safe in a URL."""
    return secrets.token_urlsafe(32)


def is_loopback(host: str) -> bool:
    """Return True if an address can be reached from this machine only."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


@dataclass(frozen=True)
class Names:
    """Host names under which a server may be addressed.

    The server listens on `host` and `port`; `public` are host names of its proxies, which may use
    any port. `value in names` is True if the Host header `value` is allowed.
    """

    host: str
    port: int
    public: Collection[str] = ()

    def __contains__(self, value: str) -> bool:
        """Return True if a Host header is allowed."""
        found = _HOST.fullmatch(value)
        if not found:
            return False
        name = found[1].lower()
        port = int(found[2] or 80)
        public = [proxy.lower() for proxy in self.public]
        if name in public:
            return True
        if port != self.port:
            return False
        host = self.host.lower()
        if name in _LOOPBACK or name in (host, f"[{host}]"):
            return True
        if host not in ("0.0.0.0", "::"):
            return False
        # DNS rebinding needs a name, so any IP address is safe.
        is_address = name.startswith("[") or name.replace(".", "").isdecimal()
        return is_address or name == socket.gethostname().lower()


class Guard:
    """ASGI middleware that admits only requests with the token and an allowed host name.

    `max_body` is the maximum size of a request's body in bytes, `policy` the
    Content-Security-Policy of responses. Refused requests get JSON on one line, {"reason": ...}.

    A browser that opens the page with `?token=` is given a cookie instead. The cookie is not the
    token, because browsers send it to every server on this machine, whatever its port.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        names: Names,
        *,
        max_body: int = MAX_BODY,
        policy: str = POLICY,
    ) -> None:
        self._app = app
        self._token = token
        self._names = names
        self._max_body = max_body
        self._policy = policy
        self._cookie_name = f"trinat-{names.port}"
        self._cookie = hashlib.sha256(f"cookie {token}".encode()).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request and pass it on; answer an exception of the application with status 500.

        The body of that response is one line, without the text of the exception.
        """
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        body = _Body(receive, self._max_body, Headers(scope=scope))
        answer = _Answer(send, self._policy, body)
        try:
            self._exchange(scope)
            self._check(scope)
            body.check()
            await self._app(scope, body.receive, answer.send)
        except HTTPException as error:
            await answer.refuse(error)
        except Exception as error:
            # Log only where the error was raised: its text may name a file or a person.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(frame.filename).name}:{frame.lineno}"
            _log.error("%s at %s", type(error).__name__, place)
            with suppress(Exception):
                await answer.refuse(HTTPException(500, f"a fault of trinat at {place}"))

    def _check(self, scope: Scope) -> None:
        """Raise HTTPException unless a request has an allowed host and origin, and the token.

        Requests whose headers are too long are refused, too. /healthz needs no token.
        """
        headers = Headers(scope=scope)
        # uvicorn's own limit only applies to heads that arrive in several pieces.
        if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEAD:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise HTTPException(status, "the request's head is too long")
        if not self._is_ours(scope):
            status = HTTPStatus.MISDIRECTED_REQUEST
            raise HTTPException(status, "unknown host name: add it with --name")
        host = headers.get("host", "")
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            raise _other_site()
        if scope["path"] != "/healthz":
            self._check_token(headers)

    def _check_token(self, headers: Headers) -> None:
        """Raise HTTPException unless a request has the token or the cookie."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(given.strip(), self._token):
            return
        if _same(_cookie(headers, self._cookie_name), self._cookie):
            # Cookies ignore the port: another server on this machine counts as the same site.
            if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
                return
            raise _other_site()
        raise HTTPException(
            HTTPStatus.UNAUTHORIZED,
            "no token, or a wrong one: open the address that was printed at the start, "
            "or send Authorization: Bearer TOKEN",
            {"WWW-Authenticate": "Bearer"},
        )

    def _exchange(self, scope: Scope) -> None:
        """Redirect a request for the page with `?token=` to the page without it; set the cookie.

        The redirect is raised as an HTTPException. Nothing happens for other requests.
        """
        is_page = scope["method"] == "GET" and scope["path"] == "/"
        if not is_page or not self._is_ours(scope):
            return
        pairs = parse_qsl(scope["query_string"].decode("latin-1"))
        given = [value for name, value in pairs if name == "token"]
        if not any(_same(value, self._token) for value in given):
            return
        to = "/"
        others = [(name, value) for name, value in pairs if name != "token"]
        if others:
            to = f"/?{urlencode(others)}"
        cookie = (
            f"{self._cookie_name}={self._cookie}; Path=/; HttpOnly; SameSite=Strict"
        )
        headers = {"Location": to, "Set-Cookie": cookie}
        raise HTTPException(HTTPStatus.SEE_OTHER, "redirecting to the page", headers)

    def _is_ours(self, scope: Scope) -> bool:
        return Headers(scope=scope).get("host", "") in self._names


class _Body:
    """Body of a request: limited to `limit` bytes, and in the time that it may take.

    `more` is True until the whole body has been received.
    """

    def __init__(self, receive: Receive, limit: int, headers: Headers) -> None:
        self._receive = receive
        self._limit = limit
        self._headers = headers
        self._started = time.monotonic()
        self._bytes = 0
        self.more = True

    def check(self) -> None:
        """Raise HTTPException if the declared length is too large, before reading the body."""
        length = self._headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._limit:
            raise self._too_large()

    async def receive(self) -> Message:
        """Return the next ASGI message of the body; raise HTTPException if late or too large."""
        if not self.more:
            return await self._receive()
        allowed_s = _PATIENCE_S + self._bytes / _BYTES_PER_S
        left_s = self._started + allowed_s - time.monotonic()
        try:
            message = await asyncio.wait_for(self._receive(), max(0, left_s))
        except TimeoutError:
            status = HTTPStatus.REQUEST_TIMEOUT
            raise HTTPException(status, "the request came too slowly") from None
        self._bytes += len(message.get("body", b""))
        self.more = message.get("more_body", False)
        if self._bytes > self._limit:
            raise self._too_large()
        return message

    async def drain(self) -> None:
        """Read and discard the rest of the body for two seconds at most.

        Nothing is read if the client waits for permission to send it (`Expect`).
        """
        if "expect" in self._headers:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                while self.more:
                    self.more = (await self._receive()).get("more_body", False)

    def _too_large(self) -> HTTPException:
        status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        return HTTPException(status, f"more than {self._limit} bytes")


class _Answer:
    """Response that always has the security headers; `body` is the body of the request."""

    def __init__(self, send: Send, policy: str, body: _Body) -> None:
        self._send = send
        self._policy = policy
        self._body = body
        self._begun = False

    async def send(self, message: Message) -> None:
        """Send an ASGI message of the response; before a refusal, drain the body of the request."""
        if message["type"] == "http.response.start":
            self._begun = True
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            headers["Content-Security-Policy"] = self._policy
            if message["status"] >= HTTPStatus.BAD_REQUEST:
                # The rest of the body would be parsed as the next request.
                await self._body.drain()
                if self._body.more:
                    headers["Connection"] = "close"
        await self._send(message)

    async def refuse(self, error: HTTPException) -> None:
        """Send the reason of a refusal as JSON, unless a response has already begun."""
        if self._begun:
            return
        body = json.dumps({"reason": one_line(error.detail)}).encode() + b"\n"
        headers = MutableHeaders(error.headers)
        headers["Content-Type"] = "application/json"
        headers["Content-Length"] = str(len(body))
        start = {
            "type": "http.response.start",
            "status": int(error.status_code),
            "headers": headers.raw,
        }
        await self.send(start)
        await self.send({"type": "http.response.body", "body": body})


def _same(given: str, known: str) -> bool:
    """Return True if two secrets are equal; the comparison takes constant time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), known.encode())


def _cookie(headers: Headers, name: str) -> str:
    """Return the value of a cookie of a request, or "" if it has none of this name."""
    for part in headers.get("cookie", "").split(";"):
        found, _, value = part.strip().partition("=")
        if found == name:
            return value
    return ""


def _other_site() -> HTTPException:
    return HTTPException(HTTPStatus.FORBIDDEN, "requested by a page of another site")
