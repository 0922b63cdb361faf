"""Fetching a large file whole: resumed where it broke off, checked before it gets its name."""

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from trinat.pipelines.data.catalogue import RemoteFile
from trinat.segmentation.errors import DownloadError, LockedError
from trinat.segmentation.io.files import open_regular, read_text, write_whole

CHECKSUMS = "checksums.json"

Progress = Callable[[int, int | None], None]

_CHUNK = 1 << 20
_HTML_STARTS = (b"<!doctype html", b"<html", b"<?xml")
# Statuses after which the same request may well succeed.
_TEMPORARY = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Policy:
    """How patient a download is. An attempt that was fast enough starts the count again."""

    attempts: int = 6
    timeout_s: float = 60.0
    least_bytes_s: float = 1000.0  # over `timeout_s`
    first_wait_s: float = 1.0
    longest_wait_s: float = 60.0
    pause: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Fetched:
    path: Path
    checksum: str  # "md5 ..." or "sha256 ..."
    published: bool  # whether the checksum had been known beforehand
    was_there: bool


class _RetryError(Exception):
    """This attempt failed in a way that another may not."""

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


def fetch(
    remote: RemoteFile,
    folder: Path,
    *,
    policy: Policy = Policy(),
    progress: Progress = lambda done, total: None,
) -> Fetched:
    """Bring `remote` to `folder` under its own name, complete and checked, or raise."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / remote.name
    if remote.md5:
        expected: str | None = f"md5 {remote.md5}"
    else:
        expected = _recorded(folder).get(remote.name)

    def found() -> Fetched:
        checksum = _check(
            target, remote, expected, remedy="move it away and run this again"
        )
        return Fetched(target, checksum, remote.md5 is not None, was_there=True)

    if target.exists():
        return found()
    # One name per source and folder, so that the next run finds it; the lock keeps it ours.
    key = hashlib.sha256("\n".join(remote.urls).encode()).hexdigest()[:12]
    part = folder / f".{remote.name}.{key}.part"
    with part.open("ab") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = "another process is downloading this file"
            raise LockedError(what, where=folder) from None
        if target.exists():  # another process finished between the look and the lock
            part.unlink()
            return found()
        download = _Download(remote, part, stream, expected, policy, progress)
        checksum = download.from_any_mirror()
        os.fsync(stream.fileno())
        part.replace(target)
        download.validator.unlink(missing_ok=True)
    if remote.md5 is None:
        known = {**_recorded(folder), remote.name: checksum}
        write_whole(
            folder / CHECKSUMS, json.dumps(known, indent=2, sort_keys=True) + "\n"
        )
    return Fetched(target, checksum, remote.md5 is not None, was_there=False)


class _WrongContentError(DownloadError):
    """The bytes arrived, but they are not the file's."""


@dataclass(frozen=True)
class _Download:
    """One file on its way: what has come of it is in `stream`, which is the file `part`."""

    remote: RemoteFile
    part: Path
    stream: IO[bytes]
    expected: str | None  # its checksum
    policy: Policy
    progress: Progress

    @property
    def validator(self) -> Path:
        """Remembers which state of the remote file the bytes belong to, for If-Range."""
        return self.part.with_suffix(".validator")

    def have(self) -> int:
        return self.stream.seek(0, os.SEEK_END)

    def start_over(self) -> int:
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
                    return _check(
                        self.part, self.remote, self.expected, remedy="try again later"
                    )
                except DownloadError as error:
                    reasons.append(f"{urlsplit(url).hostname}: {error.what}")
                    if not isinstance(error, _WrongContentError):
                        break  # this server will not do better
                    # Damaged bytes look like good ones: none is kept.
                    self.start_over()
        what = "; ".join(dict.fromkeys(reasons))
        remedy = "the same command resumes it" if self.have() else ""
        raise DownloadError(what, where=self.remote.name, remedy=remedy)

    def fill(self, url: str) -> None:
        """Append to the part until it is as long as the server says the file is."""
        policy = self.policy
        failures, since = 0, time.monotonic()
        while True:
            before = self.have()
            try:
                self.attempt(url)
                return
            except (
                _RetryError,
                OSError,
                HTTPException,
                ValueError,
            ) as error:  # numbers, hosts
                reason, asked_wait_s = _reason(error), getattr(error, "wait_s", 0.0)
            now = time.monotonic()
            is_slow = self.have() - before <= policy.least_bytes_s * (now - since)
            failures, since = failures + 1 if is_slow else 1, now
            if failures >= policy.attempts:
                what = f"gave up after {failures} attempts ({reason})"
                raise DownloadError(what, where=self.remote.name)
            wait_s = max(policy.first_wait_s * 2 ** (failures - 1), asked_wait_s)
            policy.pause(min(wait_s, policy.longest_wait_s))

    def attempt(self, url: str) -> None:
        """One request: from the end of what we have, or from the start if the server insists."""
        have, remote = self.have(), self.remote
        if remote.size is not None and have > remote.size:
            have = self.start_over()
        if remote.size is not None and have == remote.size:
            return
        with self.request(url, have) as response:
            if response.status == 416:
                if _range_total(response) == have > 0:
                    return
                self.start_over()
                raise _RetryError("the server does not have the range asked for")
            if response.status == 200 and have:
                have = self.start_over()
            start, total = _announced(response, have)
            if start != have:
                self.start_over()
                raise _RetryError(
                    f"the server sent bytes from {start} where {have} was asked for"
                )
            if response.headers.get_content_type() == "text/html":
                raise self.web_page()
            if total is not None and (problem := remote.problem_of(total)):
                what = f"the server offers {total} bytes, {problem}"
                raise DownloadError(what, where=remote.name)
            total = remote.size if total is None else total
            # Of a reply in chunks the last one is marked; any other may have been cut.
            is_marked = response.status == 200 and response.chunked
            if total is None and remote.md5 is None and not is_marked:
                what = "neither server nor catalogue gives the length of the file"
                raise DownloadError(what, where=remote.name)
            missing, free = (
                (total or have) - have,
                shutil.disk_usage(self.part.parent).free,
            )
            if missing > free:
                what = f"{missing / 1e9:.4g} GB are to come and {free / 1e9:.4g} GB are free"
                raise DownloadError(what, where=self.part.parent)
            etag = response.headers.get("ETag", "")
            validator = (
                etag if etag.startswith('"') else response.headers.get("Last-Modified")
            )
            if validator:
                self.validator.write_text(validator)
            self.receive(response, have, total)

    def receive(self, response: HTTPResponse, have: int, total: int | None) -> None:
        """Append the body; `total` is the length of the whole file, where it is known."""
        policy = self.policy
        most = self.remote.plausible_bytes[1] if total is None else total
        since, mark = time.monotonic(), have
        while True:
            with _at_most(policy.timeout_s):
                block = response.read1(_CHUNK)
            if not block:
                break
            if have == 0 and block.lstrip()[:20].lower().startswith(_HTML_STARTS):
                raise self.web_page()
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
                if have - mark < policy.least_bytes_s * (now - since):
                    raise _RetryError(
                        f"fewer than {policy.least_bytes_s:g} bytes a second came"
                    )
                since, mark = now, have
        self.stream.flush()
        if total is not None and have < total:
            raise _RetryError(f"the connection broke at {have} of {total} bytes")

    @contextmanager
    def request(self, url: str, have: int) -> Iterator[HTTPResponse]:
        _require_http(url)
        # Compressed on the way would make lengths and ranges mean something else.
        headers = {"User-Agent": "trinat", "Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
            if self.validator.exists():
                headers["If-Range"] = self.validator.read_text()
        opener = urllib.request.build_opener(SafeRedirects)
        request = urllib.request.Request(url, headers=headers)
        try:
            with _at_most(2 * self.policy.timeout_s):
                reply = opener.open(request, timeout=self.policy.timeout_s)
            with reply:
                yield reply
        except urllib.error.HTTPError as error:
            if error.code == 416:
                yield error  # type: ignore[misc]  # it is the response, with status and headers
                return
            if error.code in _TEMPORARY:
                after = error.headers.get("Retry-After", "")
                wait_s = float(after) if after.isdigit() else 0.0
                raise _RetryError(f"status {error.code}", wait_s) from None
            what = f"the server answers {error.code} {error.reason}"
            raise DownloadError(what, where=url) from None

    def web_page(self) -> DownloadError:
        what = "the server sent a web page in place of the file (a log-in or a notice?)"
        return DownloadError(what, where=self.remote.name)


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """TimeoutError after so long: the timeout of a socket begins again with each byte.

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
        _require_http(newurl)
        if req.type == "https" and urlsplit(newurl).scheme != "https":
            raise DownloadError(
                "the server redirects from https to http", where=req.full_url
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _require_http(url: str) -> None:
    if urlsplit(url).scheme not in {"http", "https"}:
        raise DownloadError("only http and https are fetched", where=url)


def _announced(response: HTTPResponse, have: int) -> tuple[int, int | None]:
    """First byte of the reply and length of the whole file, as the server states them."""
    if response.status != 206:
        length = response.headers.get("Content-Length")
        return 0, int(length) if length and length.isdigit() else None
    stated = response.headers.get("Content-Range", "")
    unit, _, rest = stated.partition(" ")
    first = rest.partition("-")[0]
    if unit != "bytes" or not first.isdigit():
        return have, None
    return int(first), _range_total(response)


def _range_total(response: HTTPResponse) -> int | None:
    total = response.headers.get("Content-Range", "").rpartition("/")[2]
    return int(total) if total.isdigit() else None


def _check(path: Path, remote: RemoteFile, expected: str | None, *, remedy: str) -> str:
    """The file's checksum, where size and checksum are as they should be."""
    size = path.stat().st_size
    if problem := remote.problem_of(size):
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


def _recorded(folder: Path) -> dict[str, str]:
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


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no data came in time"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__
