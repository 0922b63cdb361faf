"""Fetching a large file whole: under its own name it is complete and checked, or not there.

A transfer goes on where it broke off, from the first mirror with a good copy. Checksums of files
whose publishers state none are remembered beside them, for later runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from trinat.pipelines.prepare.catalogue import RemoteFile
from trinat.segmentation.errors import DownloadError, LockedError
from trinat.segmentation.io.files import open_regular, read_text, write_whole

CHECKSUMS = "checksums.json"
# Called with the bytes that are there, and all that there will be, where that is known.
Progress = Callable[[int, int | None], None]

_CHUNK = 1 << 20
_HTML_STARTS = (b"<!doctype html", b"<html", b"<?xml")
# Statuses after which the same request may well succeed.
_TEMPORARY = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Policy:
    """How patient a download is. An attempt that was fast enough starts the count again.

    `least_bytes_s` is the mean over `timeout_s` below which an attempt counts as too slow.
    """

    attempts: int = 6
    timeout_s: float = 60.0
    least_bytes_s: float = 1000.0
    first_wait_s: float = 1.0
    longest_wait_s: float = 60.0
    pause: Callable[[float], None] = time.sleep

    def wait_s(self, failures: int, asked_s: float) -> float:
        """How long to wait after this number of failures, or longer if the server asks for it."""
        doubled_s = self.first_wait_s * 2.0 ** (failures - 1)
        return min(max(doubled_s, asked_s), self.longest_wait_s)


_USUAL = Policy()


@dataclass(frozen=True)
class Fetched:
    """A file that is there; `checksum` is "md5 ..." or "sha256 ...".

    `published` says whether the checksum had been known beforehand, `was_there` whether nothing
    had to be fetched.
    """

    path: Path
    checksum: str
    published: bool
    was_there: bool


def fetch(
    remote: RemoteFile,
    folder: Path,
    *,
    policy: Policy = _USUAL,
    progress: Progress = lambda done, total: None,
) -> Fetched:
    """Bring `remote` to `folder` under its own name, complete and checked, or raise.

    What has come of it stays in a hidden file, from which the next call goes on.
    `progress(done, total)` is called with bytes, and None for a total that is not known.

    LockedError where another process fetches it; DownloadError for all that is wrong with
    servers, the network, the disk, or a file that is there already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / remote.name
    if remote.md5:
        expected: str | None = f"md5 {remote.md5}"
    else:
        expected = _recorded(folder).get(remote.name)
    if target.exists():
        return _found(target, remote, expected)
    # One name per source and folder, so that the next run finds it; the lock keeps it ours.
    addresses = "\n".join(remote.urls)
    digest = hashlib.sha256(addresses.encode()).hexdigest()
    key = digest[:12]
    part = folder / f".{remote.name}.{key}.part"
    with part.open("ab") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = "another process is downloading this file"
            raise LockedError(what, where=folder) from None
        if target.exists():  # another process finished between the look and the lock
            part.unlink()
            return _found(target, remote, expected)
        transfer = _Transfer(remote, part, stream, expected, policy, progress)
        checksum = transfer.from_any_mirror()
        os.fsync(stream.fileno())
        part.replace(target)
        transfer.validator.unlink(missing_ok=True)
    if remote.md5 is None:
        known = _recorded(folder)
        known[remote.name] = checksum
        text = json.dumps(known, indent=2, sort_keys=True)
        write_whole(folder / CHECKSUMS, text + "\n")
    return Fetched(target, checksum, remote.md5 is not None, was_there=False)


def _found(target: Path, remote: RemoteFile, expected: str | None) -> Fetched:
    """A file that was there already, once it is checked."""
    remedy = "move it away and run this again"
    checksum = _verified(target, remote, expected, remedy=remedy)
    return Fetched(target, checksum, remote.md5 is not None, was_there=True)


def _recorded(folder: Path) -> dict[str, str]:
    """The checksums of earlier downloads to a folder, by the names of the files."""
    path = folder / CHECKSUMS
    try:
        content = json.loads(read_text(path))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise DownloadError(
            "is no list of checksums", where=path, remedy="move it away"
        )
    return content


def _verified(
    path: Path,
    remote: RemoteFile,
    expected: str | None,
    *,
    remedy: str,
) -> str:
    """The file's checksum, "md5 ..." or "sha256 ...".

    _WrongContentError where size or checksum are not as they should be. Without an
    `expected` checksum any is right.
    """
    size = path.stat().st_size
    problem = remote.problem_of(size)
    if problem:
        raise _WrongContentError(
            f"has {size} bytes, {problem}", where=path, remedy=remedy
        )
    kind = "md5" if remote.md5 else "sha256"
    with open_regular(path) as stream:
        # MD5 is what the publishers state; it finds damage, which is what is asked of it.
        found = f"{kind} {hashlib.file_digest(stream, kind).hexdigest()}"
    if expected and found != expected:
        what = f"has {found} where {expected} is known"
        raise _WrongContentError(what, where=path, remedy=remedy)
    return found


class _WrongContentError(DownloadError):
    """The bytes arrived, but they are not the file's."""


class _RetryError(Exception):
    """This attempt failed in a way that another may not; `wait_s` is what the server asks for."""

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


@dataclass(frozen=True)
class _Transfer:
    """What has come of a file is in `stream`, which is the file `part`.

    `expected` is the checksum of the whole, where it is known.
    """

    remote: RemoteFile
    part: Path
    stream: IO[bytes]
    expected: str | None
    policy: Policy
    progress: Progress

    @property
    def validator(self) -> Path:
        """Remembers which state of the remote file the bytes belong to, for If-Range."""
        return self.part.with_suffix(".validator")

    def have(self) -> int:
        """How many bytes have come."""
        return self.stream.seek(0, os.SEEK_END)

    def start_over(self) -> int:
        """Drop what has come; returns the number of bytes left, 0."""
        self.stream.seek(0)
        self.stream.truncate()
        self.validator.unlink(missing_ok=True)
        return 0

    def from_any_mirror(self) -> str:
        """Fill the part from the first mirror that serves a good copy; return its checksum."""
        reasons = []
        for url in self.remote.urls:
            for _ in ("resumed", "fresh"):
                try:
                    self.fill(url)
                    return _verified(
                        self.part, self.remote, self.expected, remedy="try again later"
                    )
                except DownloadError as error:
                    reasons.append(f"{urlsplit(url).hostname}: {error.what}")
                    if not isinstance(error, _WrongContentError):
                        break  # this server will not do better
                    # Damaged bytes look like good ones: none is kept.
                    self.start_over()
        # Each reason once, in order.
        what = "; ".join(dict.fromkeys(reasons))
        remedy = ""
        if self.have():
            remedy = "the same command resumes it"
        raise DownloadError(what, where=self.remote.name, remedy=remedy)

    def fill(self, url: str) -> None:
        """Append to the part until it is as long as the server says the file is.

        Attempts that fail for a time are repeated, with longer and longer waits, as often as the
        policy has it; then, and for all else that is wrong, DownloadError.
        """
        policy = self.policy
        failures = 0
        since = time.monotonic()
        while True:
            before = self.have()
            asked_wait_s = 0.0
            try:
                self.attempt(url)
                return
            except _RetryError as error:
                reason = _cause_of(error)
                asked_wait_s = error.wait_s
            # ValueError: of numbers and hosts.
            except (OSError, HTTPException, ValueError) as error:
                reason = _cause_of(error)
            now = time.monotonic()
            received = self.have() - before
            if received > policy.least_bytes_s * (now - since):
                failures = 0
            failures += 1
            since = now
            if failures >= policy.attempts:
                what = f"gave up after {failures} attempts ({reason})"
                raise DownloadError(what, where=self.remote.name)
            policy.pause(policy.wait_s(failures, asked_wait_s))

    def attempt(self, url: str) -> None:
        """One request: from the end of what we have, or from the start if the server insists.

        What has come is dropped where it cannot belong to what the server has now.
        """
        have = self.have()
        size = self.remote.size
        if size is not None and have > size:
            have = self.start_over()
        if size is not None and have == size:
            return
        # Compressed on the way would make lengths and ranges mean something else.
        headers = {"User-Agent": "trinat", "Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
            if self.validator.exists():
                headers["If-Range"] = self.validator.read_text()
        with _open_url(url, headers, self.policy.timeout_s) as response:
            if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                if have > 0 and _range_total(response) == have:
                    return
                self.start_over()
                raise _RetryError("the server does not have the range asked for")
            if response.status == HTTPStatus.OK and have:
                have = self.start_over()
            start, total = _announced(response, have)
            if start != have:
                self.start_over()
                raise _RetryError(
                    f"the server sent bytes from {start} where {have} was asked for"
                )
            total = self._checked_total(response, total)
            free = shutil.disk_usage(self.part.parent).free
            if total is not None and total - have > free:
                what = (
                    f"{(total - have) / 1e9:.4g} GB are to come "
                    f"and {free / 1e9:.4g} GB are free"
                )
                raise DownloadError(what, where=self.part.parent)
            etag = response.headers.get("ETag", "")
            if etag.startswith('"'):  # a weak one is not for ranges
                self.validator.write_text(etag)
            elif modified := response.headers.get("Last-Modified"):
                self.validator.write_text(modified)
            self.receive(response, have, total)

    def _checked_total(self, response: HTTPResponse, stated: int | None) -> int | None:
        """The length of the whole file, by the server or the catalogue.

        None where neither knows it and the end will be recognised otherwise. Refuses a reply that
        is not the file.
        """
        remote = self.remote
        if response.headers.get_content_type() == "text/html":
            raise self._web_page()
        if stated is not None:
            problem = remote.problem_of(stated)
            if problem:
                what = f"the server offers {stated} bytes, {problem}"
                raise DownloadError(what, where=remote.name)
            return stated
        # Of a reply in chunks the last one is marked; any other may have been cut.
        is_marked = response.status == HTTPStatus.OK and response.chunked
        if remote.size is None and remote.md5 is None and not is_marked:
            what = "neither server nor catalogue gives the length of the file"
            raise DownloadError(what, where=remote.name)
        return remote.size

    def receive(self, response: HTTPResponse, have: int, total: int | None) -> None:
        """Append the body; `total` is the length of the whole file, where it is known.

        Raises _RetryError where the server is too slow, sends too much, or breaks off.
        """
        policy = self.policy
        most = total
        if most is None:
            most = self.remote.plausible_bytes[1]
        since = time.monotonic()
        have_then = have
        while True:
            with _at_most(policy.timeout_s):
                block = response.read1(_CHUNK)
            if not block:
                break
            beginning = block.lstrip()[:20].lower()
            if have == 0 and beginning.startswith(_HTML_STARTS):
                raise self._web_page()
            self.stream.write(block)
            have += len(block)
            self.progress(have, total)
            if have > most:
                self.start_over()
                raise _RetryError(
                    f"the server sent more than the {most} bytes announced"
                )
            now = time.monotonic()
            if now - since > policy.timeout_s:
                if have - have_then < policy.least_bytes_s * (now - since):
                    raise _RetryError(
                        f"fewer than {policy.least_bytes_s:g} bytes a second came"
                    )
                since = now
                have_then = have
        self.stream.flush()
        if total is not None and have < total:
            raise _RetryError(f"the connection broke at {have} of {total} bytes")

    def _web_page(self) -> DownloadError:
        """The error for a reply that is a page for people."""
        what = "the server sent a web page in place of the file (a log-in or a notice?)"
        return DownloadError(what, where=self.remote.name)


@contextmanager
def _open_url(
    url: str, headers: Mapping[str, str], timeout_s: float
) -> Iterator[HTTPResponse]:
    """The server's reply; also one that says that the range asked for does not exist.

    Raises _RetryError for a status that may pass, and DownloadError for any other that is no
    success, and for an address that is neither http nor https.
    """
    _require_http(url)
    opener = urllib.request.build_opener(SafeRedirects)
    request = urllib.request.Request(url, headers=dict(headers))
    try:
        with _at_most(2 * timeout_s):
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
            raise _RetryError(f"status {error.code}", wait_s) from None
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


def _announced(response: HTTPResponse, have: int) -> tuple[int, int | None]:
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
    return int(first), _range_total(response)


def _range_total(response: HTTPResponse) -> int | None:
    """The length of the whole file by a reply with a part of it; None where it is not stated."""
    stated = response.headers.get("Content-Range", "")
    return _number(stated.rpartition("/")[2])


def _number(text: str) -> int | None:
    """The number that a header states; None where it states none."""
    if text.isdigit():
        return int(text)
    return None


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
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


def _cause_of(error: Exception) -> str:
    """Why a request failed, for a message."""
    if isinstance(error, TimeoutError):
        return "no data came in time"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__
