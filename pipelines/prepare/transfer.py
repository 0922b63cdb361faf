"""One file on its way: resumed where it broke off, from the first mirror with a good copy."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from trinat.pipelines.prepare.catalogue import RemoteFile
from trinat.pipelines.prepare.web import (
    RetryError,
    announced,
    at_most,
    cause_of,
    open_url,
    range_total,
    state_of,
)
from trinat.segmentation.errors import DownloadError
from trinat.segmentation.io.files import open_regular

# Called with the bytes that are there, and all that there will be, where that is known.
Progress = Callable[[int, int | None], None]

_CHUNK = 1 << 20
_HTML_STARTS = (b"<!doctype html", b"<html", b"<?xml")


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


class WrongContentError(DownloadError):
    """The bytes arrived, but they are not the file's."""


def verified(
    path: Path,
    remote: RemoteFile,
    expected: str | None,
    *,
    remedy: str,
) -> str:
    """The file's checksum, "md5 ..." or "sha256 ...".

    Raises WrongContentError where size or checksum are not as they should be. Without an
    `expected` checksum any is right.
    """
    size = path.stat().st_size
    problem = remote.problem_of(size)
    if problem:
        raise WrongContentError(
            f"has {size} bytes, {problem}", where=path, remedy=remedy
        )
    kind = "md5" if remote.md5 else "sha256"
    with open_regular(path) as stream:
        # MD5 is what the publishers state; it finds damage, which is what is asked of it.
        found = f"{kind} {hashlib.file_digest(stream, kind).hexdigest()}"
    if expected and found != expected:
        what = f"has {found} where {expected} is known"
        raise WrongContentError(what, where=path, remedy=remedy)
    return found


@dataclass(frozen=True)
class Transfer:
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
                    return verified(
                        self.part, self.remote, self.expected, remedy="try again later"
                    )
                except DownloadError as error:
                    reasons.append(f"{urlsplit(url).hostname}: {error.what}")
                    if not isinstance(error, WrongContentError):
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
            except RetryError as error:
                reason = cause_of(error)
                asked_wait_s = error.wait_s
            # ValueError: of numbers and hosts.
            except (OSError, HTTPException, ValueError) as error:
                reason = cause_of(error)
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
        headers = self._headers(have)
        with open_url(url, headers, self.policy.timeout_s) as response:
            if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                if have > 0 and range_total(response) == have:
                    return
                self.start_over()
                raise RetryError("the server does not have the range asked for")
            if response.status == HTTPStatus.OK and have:
                have = self.start_over()
            start, total = announced(response, have)
            if start != have:
                self.start_over()
                raise RetryError(
                    f"the server sent bytes from {start} where {have} was asked for"
                )
            total = self._checked_total(response, total)
            self._refuse_without_room(have, total)
            state = state_of(response)
            if state:
                self.validator.write_text(state)
            self.receive(response, have, total)

    def _headers(self, have: int) -> dict[str, str]:
        """Headers of a request for what is missing."""
        # Compressed on the way would make lengths and ranges mean something else.
        headers = {"User-Agent": "trinat", "Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
            if self.validator.exists():
                headers["If-Range"] = self.validator.read_text()
        return headers

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

    def _refuse_without_room(self, have: int, total: int | None) -> None:
        """Refuse to begin what the disk cannot hold."""
        if total is None:
            return
        missing = total - have
        free = shutil.disk_usage(self.part.parent).free
        if missing > free:
            what = (
                f"{missing / 1e9:.4g} GB are to come and {free / 1e9:.4g} GB are free"
            )
            raise DownloadError(what, where=self.part.parent)

    def receive(self, response: HTTPResponse, have: int, total: int | None) -> None:
        """Append the body; `total` is the length of the whole file, where it is known.

        Raises RetryError where the server is too slow, sends too much, or breaks off.
        """
        policy = self.policy
        most = total
        if most is None:
            most = self.remote.plausible_bytes[1]
        since = time.monotonic()
        have_then = have
        while True:
            with at_most(policy.timeout_s):
                block = response.read1(_CHUNK)
            if not block:
                break
            if have == 0 and _is_html(block):
                raise self._web_page()
            self.stream.write(block)
            have += len(block)
            self.progress(have, total)
            if have > most:
                self.start_over()
                raise RetryError(
                    f"the server sent more than the {most} bytes announced"
                )
            now = time.monotonic()
            if now - since > policy.timeout_s:
                if have - have_then < policy.least_bytes_s * (now - since):
                    raise RetryError(
                        f"fewer than {policy.least_bytes_s:g} bytes a second came"
                    )
                since = now
                have_then = have
        self.stream.flush()
        if total is not None and have < total:
            raise RetryError(f"the connection broke at {have} of {total} bytes")

    def _web_page(self) -> DownloadError:
        """The error for a reply that is a page for people."""
        what = "the server sent a web page in place of the file (a log-in or a notice?)"
        return DownloadError(what, where=self.remote.name)


def _is_html(block: bytes) -> bool:
    """Whether a file that begins so is a web page."""
    beginning = block.lstrip()[:20]
    return beginning.lower().startswith(_HTML_STARTS)
