"""Bytes from a server on loopback that cuts, stalls, drips and lies about what it sends."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import pytest
from helpers.downloads import CONTENT, cut_after, honest, remote, unmeasured
from helpers.loopback import Behaviour, Handler, Server

from trinat.pipelines.prepare.download import fetch
from trinat.pipelines.prepare.transfer import Policy
from trinat.segmentation.errors import DownloadError


def test_a_broken_connection_is_resumed_where_it_broke(
    server: Server, policy: Policy, pauses: list[float], tmp_path: Path
) -> None:
    url = server.plays(cut_after(1000), cut_after(500), honest)
    assert fetch(remote(url), tmp_path, policy=policy).path.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1000-", "bytes=1500-"]
    assert pauses == [1.0, 1.0], "an attempt that brought bytes starts the count anew"


def test_a_later_run_resumes_what_an_earlier_one_left(
    server: Server, policy: Policy, tmp_path: Path
) -> None:
    url = server.plays(cut_after(4000), lambda h: h.reply(503, b""))
    with pytest.raises(
        DownloadError, match=r"gave up after 3 attempts \(status 503\).*resumes it"
    ):
        fetch(remote(url), tmp_path, policy=policy)
    server.plays(honest)
    assert fetch(remote(url), tmp_path, policy=policy).path.read_bytes() == CONTENT
    assert server.ranges[-1] == "bytes=4000-"


def test_a_server_that_stalls_is_asked_again(
    server: Server, policy: Policy, tmp_path: Path
) -> None:
    released = threading.Event()

    def stall(h: Handler) -> None:
        cut_after(2000)(h)
        h.wfile.flush()
        released.wait(5)

    url = server.plays(stall, honest)
    assert fetch(remote(url), tmp_path, policy=policy).path.read_bytes() == CONTENT
    released.set()
    assert server.ranges[-1] == "bytes=2000-"


def test_waits_double_and_what_the_server_asks_is_granted(
    server: Server, policy: Policy, pauses: list[float], tmp_path: Path
) -> None:
    url = server.plays(
        lambda h: h.reply(503, b""),
        lambda h: h.reply(429, b"", Retry_After="7"),
        honest,
    )
    fetch(remote(url), tmp_path, policy=policy)
    assert pauses == [1.0, 7.0]


def test_a_server_that_ignores_ranges_starts_over(
    server: Server, policy: Policy, tmp_path: Path
) -> None:
    url = server.plays(cut_after(1000), lambda h: h.reply(200, CONTENT))
    assert fetch(remote(url), tmp_path, policy=policy).path.read_bytes() == CONTENT


def test_a_range_that_starts_elsewhere_is_not_appended(
    server: Server, policy: Policy, tmp_path: Path
) -> None:
    def elsewhere(h: Handler) -> None:
        # What follows is missing a part; as a whole it would have the right length in the end.
        span = f"bytes 1500-{len(CONTENT) - 1}/{len(CONTENT)}"
        h.reply(206, CONTENT[1500:], Content_Range=span)

    url = server.plays(cut_after(1000), elsewhere, honest)
    assert (
        fetch(remote(url, md5=None), tmp_path, policy=policy).path.read_bytes()
        == CONTENT
    )
    assert server.ranges == [None, "bytes=1000-", None]


def test_more_than_was_announced_is_fetched_afresh(
    server: Server, policy: Policy, tmp_path: Path
) -> None:
    def too_much(h: Handler) -> None:
        span = f"bytes 1000-{len(CONTENT) - 1}/{len(CONTENT)}"
        h.reply(206, CONTENT[1000:] + b"and more", Content_Range=span)

    url = server.plays(cut_after(1000), too_much, honest)
    assert (
        fetch(remote(url, md5=None), tmp_path, policy=policy).path.read_bytes()
        == CONTENT
    )
    assert server.ranges == [None, "bytes=1000-", None]


def test_what_was_complete_already_is_not_fetched_again(
    server: Server, policy: Policy, tmp_path: Path
) -> None:
    def promises_more(h: Handler) -> None:
        h.reply(200, CONTENT, Content_Length=str(len(CONTENT) + 1))

    url = server.plays(promises_more, honest)
    assert fetch(remote(url), tmp_path, policy=policy).path.read_bytes() == CONTENT
    assert server.ranges == [None, f"bytes={len(CONTENT)}-"]


def test_a_range_with_the_right_label_and_wrong_bytes_is_fetched_afresh(
    server: Server, policy: Policy, tmp_path: Path
) -> None:
    def lie(h: Handler) -> None:
        span = f"bytes 1000-{len(CONTENT) - 1}/{len(CONTENT)}"
        h.reply(206, CONTENT[: len(CONTENT) - 1000], Content_Range=span)

    url = server.plays(cut_after(1000), lie, honest)
    assert fetch(remote(url), tmp_path, policy=policy).path.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1000-", None]


def test_a_file_that_changed_on_the_server_is_not_mixed_with_its_old_start(
    server: Server, policy: Policy, tmp_path: Path
) -> None:
    newer = CONTENT[::-1]
    asked: list[str | None] = []

    def changed(h: Handler) -> None:
        asked.append(h.headers.get("If-Range"))
        h.reply(200, newer, ETag='"v2"')

    url = server.plays(cut_after(1000), changed)
    assert (
        fetch(remote(url, md5=None), tmp_path, policy=policy).path.read_bytes() == newer
    )
    assert asked == ['"v1"']


def test_a_body_without_a_length_is_held_to_the_known_size(
    server: Server, policy: Policy, tmp_path: Path
) -> None:
    url = server.plays(lambda h: unmeasured(h, CONTENT[:3000]), honest)
    got = fetch(remote(url, md5=None, size=len(CONTENT)), tmp_path, policy=policy)
    assert got.path.read_bytes() == CONTENT


def in_chunks(h: Handler, content: bytes) -> None:
    h.protocol_version = "HTTP/1.1"
    h.close_connection = True
    h.send_response(200)
    h.send_header("Transfer-Encoding", "chunked")
    h.end_headers()
    for start in range(0, len(content), 1000):
        block = content[start : start + 1000]
        h.wfile.write(b"%x\r\n%b\r\n" % (len(block), block))


def test_a_reply_in_chunks_is_whole_when_its_last_one_came(
    server: Server, policy: Policy, tmp_path: Path
) -> None:
    def whole(h: Handler) -> None:
        in_chunks(h, CONTENT)
        h.wfile.write(b"0\r\n\r\n")

    url = server.plays(lambda h: in_chunks(h, CONTENT[:5000]), whole)
    assert (
        fetch(remote(url, md5=None), tmp_path, policy=policy).path.read_bytes()
        == CONTENT
    )


def test_a_body_without_end_does_not_fill_the_disk(
    server: Server, policy: Policy, tmp_path: Path
) -> None:
    def endless(h: Handler) -> None:
        h.send_response(200)
        h.end_headers()
        with contextlib.suppress(OSError):
            while True:
                h.wfile.write(CONTENT)

    file = remote(server.plays(endless)).model_copy(
        update={"plausible_bytes": (1, 20_000)}
    )
    with pytest.raises(
        DownloadError, match=r"gave up after 3 attempts .*more than the 20000 bytes"
    ):
        fetch(file, tmp_path, policy=policy)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 0


def dripping(start: bytes, drop: bytes) -> Behaviour:
    """Send the start at once, and a drop every 50 ms: each within the timeout of a socket."""

    def answer(h: Handler) -> None:
        with contextlib.suppress(OSError):
            h.wfile.write(start)
            for _ in range(200):
                h.wfile.write(drop)
                time.sleep(0.05)

    return answer


@pytest.mark.parametrize(
    ("start", "drop", "reason"),
    [
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 10240\r\n\r\n",
            b"ab",
            "fewer than 1000 bytes a sec",
        ),
        (b"HTTP/1.1 200 OK\r\nX-Name: ", b"ab", "timed out|no data came in time"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;",
            b"ab",
            "no data came in time",
        ),
    ],
    ids=["body", "header", "size of a chunk"],
)
def test_a_server_that_drips_is_given_up(
    server: Server,
    policy: Policy,
    tmp_path: Path,
    start: bytes,
    drop: bytes,
    reason: str,
) -> None:
    url = server.plays(dripping(start, drop))
    begun = time.monotonic()
    with pytest.raises(DownloadError, match=rf"gave up after 3 attempts .*({reason})"):
        fetch(remote(url), tmp_path, policy=policy)
    assert time.monotonic() - begun < 5


def test_a_server_that_hangs_up_after_each_byte_is_given_up(
    server: Server, tmp_path: Path
) -> None:
    url = server.plays(cut_after(1))
    policy = Policy(attempts=3, pause=lambda wait_s: time.sleep(0.05))
    with pytest.raises(
        DownloadError, match=r"gave up after 3 attempts .*broke at 3 of"
    ):
        fetch(remote(url), tmp_path, policy=policy)


@pytest.mark.parametrize(
    "headers",
    [
        {"Content_Length": "\xb2"},
        {"Content_Length": "9" * 5000},
        {"Location": "http://[/"},
        {"Location": "http://" + 64 * "a" + ".example/"},
    ],
    ids=["digit", "digits", "address", "name"],
)
def test_headers_that_say_nothing_are_told_in_one_line(
    server: Server, policy: Policy, tmp_path: Path, headers: dict[str, str]
) -> None:
    status = 302 if "Location" in headers else 200
    url = server.plays(lambda h: h.reply(status, CONTENT, **headers))
    with pytest.raises(DownloadError, match="gave up after 3 attempts"):
        fetch(remote(url), tmp_path, policy=policy)
