"""Requests for files over HTTP: what a server is asked, what its reply says, and time limits."""

from __future__ import annotations

import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPResponse
from typing import Any
from urllib.parse import urlsplit

from trinat.segmentation.errors import DownloadError

# Statuses after which the same request may well succeed.
_TEMPORARY = frozenset({408, 425, 429, 500, 502, 503, 504})


class RetryError(Exception):
    """This attempt failed in a way that another may not; `wait_s` is what the server asks for."""

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


@contextmanager
def open_url(
    url: str, headers: Mapping[str, str], timeout_s: float
) -> Iterator[HTTPResponse]:
    """The server's reply; also one that says that the range asked for does not exist.

    Raises RetryError for a status that may pass, and DownloadError for any other that is no
    success, and for an address that is neither http nor https.
    """
    _require_http(url)
    opener = urllib.request.build_opener(SafeRedirects)
    request = urllib.request.Request(url, headers=dict(headers))
    try:
        with at_most(2 * timeout_s):
            reply = opener.open(request, timeout=timeout_s)
        with reply:
            yield reply
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            yield error  # type: ignore[misc]  # it is the response, with status and headers
            return
        if error.code in _TEMPORARY:
            after = error.headers.get("Retry-After", "")
            wait_s = 0.0
            if after.isdigit():
                wait_s = float(after)
            raise RetryError(f"status {error.code}", wait_s) from None
        what = f"the server answers {error.code} {error.reason}"
        raise DownloadError(what, where=url) from None


class SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from https to anything else."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: Any,
        code: int,
        msg: str,
        headers: Any,
        newurl: str,
    ) -> urllib.request.Request | None:
        """The request for the new address; DownloadError where it is not to be followed."""
        _require_http(newurl)
        if req.type == "https" and urlsplit(newurl).scheme != "https":
            raise DownloadError(
                "the server redirects from https to http", where=req.full_url
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _require_http(url: str) -> None:
    """Refuse files of this machine, and all else that is no web address."""
    if urlsplit(url).scheme not in {"http", "https"}:
        raise DownloadError("only http and https are fetched", where=url)


def announced(response: HTTPResponse, have: int) -> tuple[int, int | None]:
    """First byte of the reply and length of the whole file, as the server states them.

    `have` is the byte asked for. It counts as the first where the server does not name one.
    """
    if response.status != HTTPStatus.PARTIAL_CONTENT:
        return 0, _number(response.headers.get("Content-Length", ""))
    stated = response.headers.get("Content-Range", "")
    unit, _, rest = stated.partition(" ")
    first = rest.partition("-")[0]
    if unit != "bytes" or not first.isdigit():
        return have, None
    return int(first), range_total(response)


def range_total(response: HTTPResponse) -> int | None:
    """The length of the whole file by a reply with a part of it; None where it is not stated."""
    stated = response.headers.get("Content-Range", "")
    return _number(stated.rpartition("/")[2])


def _number(text: str) -> int | None:
    """The number that a header states; None where it states none."""
    if text.isdigit():
        return int(text)
    return None


def state_of(response: HTTPResponse) -> str | None:
    """What identifies this state of the file, for If-Range; None where the server says nothing.

    A weak ETag is not for ranges.
    """
    etag: str = response.headers.get("ETag", "")
    if etag.startswith('"'):
        return etag
    modified: str | None = response.headers.get("Last-Modified")
    return modified


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """TimeoutError after that time: the timeout of a socket begins again with each byte.

    Signals reach the main thread; in others there is no such limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def expire(*_: object) -> None:
        raise TimeoutError("timed out")

    before = signal.signal(signal.SIGALRM, expire)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def cause_of(error: Exception) -> str:
    """Why a request failed, for a message."""
    if isinstance(error, TimeoutError):
        return "no data came in time"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__
