"""Download of large files: a file has its own name only once it is complete and checked.

A transfer resumes where it broke off, from the first mirror with a good copy. pooch, the usual
library for this, starts a broken transfer again from the beginning, which is not acceptable for
archives of gigabytes (docs/notes/data.md). If no checksum of a file is published, the checksum of
its first download is kept in the same folder, for later runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from time import sleep
from typing import IO, Any
from urllib.parse import urlsplit

from trinat.pipelines.prepare.catalogue import RemoteFile
from trinat.segmentation.errors import DownloadError, LockedError
from trinat.segmentation.io.files import open_regular, read_text, write_json

CHECKSUMS = "checksums.json"
# Called with the bytes received so far, and the bytes of the whole file if they are known.
Progress = Callable[[int, int | None], None]

_CHUNK = 1 << 20
_HTML_STARTS = (b"<!doctype html", b"<html", b"<?xml")
# HTTP status codes after which the same request may succeed later.
_TEMPORARY = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT_S = 60.0
# A download is given up after this many failures in a row. If a failed attempt has received a
# megabyte, the count starts again at 1.
_ATTEMPTS = 6
# Limit of the wait for data.
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Fetched:
    """A complete file.

    `checksum` is "md5 ..." or "sha256 ...". `published` is True if the catalogue has the checksum.
    `was_there` is True if the file existed already and nothing was downloaded.
    """

    path: Path
    checksum: str
    published: bool
    was_there: bool


def fetch(
    remote: RemoteFile,
    folder: Path,
    *,
    progress: Progress = lambda done, total: None,
) -> Fetched:
    """Download a file to `folder` under its own name, complete and checked.

    An incomplete transfer stays in a hidden file, from which the next call resumes. `progress` is
    called with the bytes received so far and the bytes of the whole file (None if unknown).

    Raises
    ------
    LockedError
        Another process downloads the same file.
    DownloadError
        The server, the network, the disk, or an existing file is at fault.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / remote.name
    if remote.md5:
        expected: str | None = f"md5 {remote.md5}"
    else:
        expected = _read_checksums(folder).get(remote.name)
    if target.exists():
        return _check_existing(target, remote, expected)
    # One name per source and folder, so that the next run finds the file; the lock keeps other
    # processes out.
    addresses = "\n".join(remote.urls)
    key = hashlib.sha256(addresses.encode()).hexdigest()[:12]
    part = folder / f".{remote.name}.{key}.part"
    with part.open("ab") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = "another process is downloading this file"
            raise LockedError(what, where=folder) from None
        if target.exists():  # another process finished before this one had the lock
            part.unlink()
            return _check_existing(target, remote, expected)
        transfer = _Transfer(remote, part, stream, expected, progress)
        checksum = transfer.from_any_mirror()
        os.fsync(stream.fileno())
        part.replace(target)
        transfer.validator.unlink(missing_ok=True)
    _keep_checksum(target, remote, checksum)
    return Fetched(target, checksum, remote.md5 is not None, was_there=False)


def _check_existing(target: Path, remote: RemoteFile, expected: str | None) -> Fetched:
    """Check a file that exists already, and return it.

    `expected` is its known checksum, None if there is none. DownloadError if its size or checksum
    is wrong.
    """
    remedy = "move it away and run this again"
    checksum = _checksum_of(target, remote, expected, remedy=remedy)
    if expected is None:
        _keep_checksum(target, remote, checksum)
    return Fetched(target, checksum, remote.md5 is not None, was_there=True)


def _keep_checksum(target: Path, remote: RemoteFile, checksum: str) -> None:
    """Save the checksum of a file beside it, unless it is published."""
    if remote.md5 is not None:
        return
    known = _read_checksums(target.parent)
    known[remote.name] = checksum
    write_json(target.parent / CHECKSUMS, dict(sorted(known.items())), indent=2)


def _read_checksums(folder: Path) -> dict[str, str]:
    """Return the checksums of earlier downloads to a folder by file name.

    They are "md5 ..." or "sha256 ...". DownloadError if the file of checksums is damaged.
    """
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


def _checksum_of(
    path: Path, remote: RemoteFile, expected: str | None, *, remedy: str
) -> str:
    """Return the checksum of a file, "md5 ..." or "sha256 ...".

    _WrongContentError, with this `remedy`, if the size or the checksum is wrong. If `expected` is
    None, any checksum is accepted.
    """
    size = path.stat().st_size
    problem = remote.problem_of(size)
    if problem:
        raise _WrongContentError(
            f"has {size} bytes, {problem}", where=path, remedy=remedy
        )
    kind = "md5" if remote.md5 else "sha256"
    with open_regular(path) as stream:
        # Publishers state MD5. It is good enough to detect damage, its only purpose here.
        found = f"{kind} {hashlib.file_digest(stream, kind).hexdigest()}"
    if expected and found != expected:
        what = f"has {found} where {expected} is known"
        raise _WrongContentError(what, where=path, remedy=remedy)
    return found


class _WrongContentError(DownloadError):
    """Content of a complete file whose size or checksum is wrong."""


class _RetryError(Exception):
    """Failure after which another attempt may succeed.

    `wait_s` is the time for which the server asks to wait, in seconds.
    """

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


@dataclass(frozen=True)
class _Transfer:
    """Download of a file into `part`, a hidden file until it is complete.

    `stream` is this file, open for writing. `expected` is the checksum of the whole file, "md5 ..."
    or "sha256 ...", or None if it is unknown.
    """

    remote: RemoteFile
    part: Path
    stream: IO[bytes]
    expected: str | None
    progress: Progress

    @property
    def validator(self) -> Path:
        """File with the ETag or date of the version that the received bytes belong to.

        The request to resume states it in the header If-Range.
        """
        return self.part.with_suffix(".validator")

    def have(self) -> int:
        """Return the number of bytes received so far."""
        return self.stream.seek(0, os.SEEK_END)

    def start_over(self) -> int:
        """Delete the bytes received so far; return 0, the number of bytes that are left."""
        self.stream.seek(0)
        self.stream.truncate()
        self.validator.unlink(missing_ok=True)
        return 0

    def from_any_mirror(self) -> str:
        """Fill `part` from the first mirror that serves a good copy; return its checksum.

        If the content of a resumed transfer is wrong, the mirror is tried once more from the start.
        DownloadError, with the reason of each mirror, if none has a good copy.
        """
        reasons = []
        for url in self.remote.urls:
            for _ in ("resumed", "fresh"):
                try:
                    self.fill(url)
                    return _checksum_of(
                        self.part, self.remote, self.expected, remedy="try again later"
                    )
                except DownloadError as error:
                    reasons.append(f"{urlsplit(url).hostname}: {error.what}")
                    if not isinstance(error, _WrongContentError):
                        break  # another attempt would fail, too
                    # Damaged bytes cannot be told from good ones, so discard all.
                    self.start_over()
        # Each reason once, in order.
        what = "; ".join(dict.fromkeys(reasons))
        remedy = ""
        if self.have():
            remedy = "run the same command to resume"
        raise DownloadError(what, where=self.remote.name, remedy=remedy)

    def fill(self, url: str) -> None:
        """Receive the rest of the file from `url`, in several attempts.

        After temporary failures the attempt is repeated, with longer and longer waits.
        DownloadError is raised after the last one, and at once after any other failure.
        """
        failures = 0
        while True:
            before = self.have()
            wait_s = 0.0
            try:
                self.attempt(url)
                return
            except _RetryError as error:
                reason = str(error)
                wait_s = error.wait_s
            except TimeoutError:
                reason = "no data came in time"
            # http.client raises ValueError for invalid numbers and host names.
            except (OSError, HTTPException, ValueError) as error:
                reason = str(error) or type(error).__name__
            if self.have() - before >= _CHUNK:
                failures = 0
            failures += 1
            if failures >= _ATTEMPTS:
                what = f"gave up after {failures} attempts ({reason})"
                raise DownloadError(what, where=self.remote.name)
            wait_s = max(2.0 ** (failures - 1), wait_s)
            sleep(min(wait_s, _LONGEST_WAIT_S))

    def attempt(self, url: str) -> None:
        """Send one request for the bytes that are missing, and receive them.

        If the server cannot resume, the received bytes are deleted and the whole file is received.
        _RetryError if the received bytes cannot belong to the file that the server has now: they
        are deleted, too.
        """
        have = self.have()
        size = self.remote.size
        if size is not None and have > size:
            have = self.start_over()
        if size is not None and have == size:
            return
        # With compression, lengths and ranges would not be those of the file.
        headers = {"User-Agent": "trinat", "Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
            if self.validator.exists():
                headers["If-Range"] = self.validator.read_text()
        with _open_url(url, headers) as response:
            if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                if have > 0 and _range_total(response) == have:
                    return
                self.start_over()
                raise _RetryError("the server does not have the range asked for")
            if response.status == HTTPStatus.OK and have:
                have = self.start_over()
            start, total = _announced_range(response, have)
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
            if etag.startswith('"'):  # a weak ETag does not guarantee equal bytes
                self.validator.write_text(etag)
            elif modified := response.headers.get("Last-Modified"):
                self.validator.write_text(modified)
            self.receive(response, have, total)

    def _checked_total(self, response: HTTPResponse, stated: int | None) -> int | None:
        """Return the length of the whole file; None if neither server nor catalogue states it.

        `stated` is the length that the server states, None if it does not. DownloadError if the
        reply cannot be the file, or if its content could be checked neither by length nor by
        checksum.
        """
        remote = self.remote
        if response.headers.get_content_type() == "text/html":
            raise self._web_page_error()
        if stated is None:
            if remote.size is None and remote.md5 is None:
                what = "neither server nor catalogue gives the length of the file"
                raise DownloadError(what, where=remote.name)
            return remote.size
        problem = remote.problem_of(stated)
        if problem:
            what = f"the server offers {stated} bytes, {problem}"
            raise DownloadError(what, where=remote.name)
        return stated

    def receive(self, response: HTTPResponse, have: int, total: int | None) -> None:
        """Append the content of a reply to `part`.

        `have` is the number of bytes received before; `total` is the length of the whole file, None
        if unknown. _RetryError if the server sends too much, or if the connection breaks.
        """
        most = self.remote.plausible_bytes[1] if total is None else total
        while block := response.read1(_CHUNK):
            beginning = block.lstrip()[:20].lower()
            if have == 0 and beginning.startswith(_HTML_STARTS):
                raise self._web_page_error()
            self.stream.write(block)
            have += len(block)
            self.progress(have, total)
            if have > most:
                self.start_over()
                raise _RetryError(
                    f"the server sent more than the {most} bytes announced"
                )
        self.stream.flush()
        if total is not None and have < total:
            raise _RetryError(f"the connection broke at {have} of {total} bytes")

    def _web_page_error(self) -> DownloadError:
        """Return the error for a reply that is a web page instead of the file."""
        what = "the server sent a web page in place of the file (a log-in or a notice?)"
        return DownloadError(what, where=self.remote.name)


@contextmanager
def _open_url(url: str, headers: Mapping[str, str]) -> Iterator[HTTPResponse]:
    """Open the reply of a server, even if the reply says that the requested range does not exist.

    _RetryError for a temporary status. DownloadError for any other status that is not a success,
    and for an address that is neither http nor https.
    """
    _require_http(url)
    opener = urllib.request.build_opener(SafeRedirects)
    request = urllib.request.Request(url, headers=dict(headers))
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as reply:
            yield reply
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            yield error  # type: ignore[misc]  # it is the response, with status and headers
            return
        if error.code in _TEMPORARY:
            after = error.headers.get("Retry-After", "")
            wait_s = float(after) if after.isdigit() else 0.0
            raise _RetryError(f"status {error.code}", wait_s) from None
        what = f"the server answers {error.code} {error.reason}"
        raise DownloadError(what, where=url) from None
    except urllib.error.URLError as error:
        raise _RetryError(str(error.reason)) from error


class SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Redirect handler that refuses to go from https to anything else."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: Any,
        code: int,
        msg: str,
        headers: Any,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Return the request for the new address; DownloadError if it must not be followed."""
        _require_http(newurl)
        if req.type == "https" and urlsplit(newurl).scheme != "https":
            raise DownloadError(
                "the server redirects from https to http", where=req.full_url
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _require_http(url: str) -> None:
    """Raise DownloadError for any address that is neither http nor https, such as a local file."""
    if urlsplit(url).scheme not in {"http", "https"}:
        raise DownloadError("only http and https are fetched", where=url)


def _announced_range(response: HTTPResponse, have: int) -> tuple[int, int | None]:
    """Return the first byte of the reply and the length of the whole file, as its headers state.

    `have` is the first byte that was requested; it is returned if the server states none. The
    length is None if it is not stated.
    """
    if response.status != HTTPStatus.PARTIAL_CONTENT:
        return 0, _parse_number(response.headers.get("Content-Length", ""))
    stated = response.headers.get("Content-Range", "")
    unit, _, rest = stated.partition(" ")
    first = rest.partition("-")[0]
    if unit != "bytes" or not first.isdigit():
        return have, None
    return int(first), _range_total(response)


def _range_total(response: HTTPResponse) -> int | None:
    """Return the length of the whole file from the header of a partial reply.

    None if the header does not state it.
    """
    stated = response.headers.get("Content-Range", "")
    return _parse_number(stated.rpartition("/")[2])


def _parse_number(text: str) -> int | None:
    """Return the number in a header; None if the text is not a number."""
    if text.isdigit():
        return int(text)
    return None
