"""Downloaded files are complete and right, even from a server that cuts, stalls and lies."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import threading
import urllib.request
from pathlib import Path

import pytest
from helpers.downloads import CONTENT, MD5, cut_after, honest, remote, unmeasured
from helpers.loopback import Behaviour, Handler, Server, cut
from helpers.refusals import refusal

from trinat.pipelines.prepare import download
from trinat.pipelines.prepare.catalogue import archives_of, load_catalogue
from trinat.pipelines.prepare.download import CHECKSUMS, SafeRedirects, fetch
from trinat.segmentation.errors import ConfigError, DownloadError, LockedError


@pytest.fixture(autouse=True)
def impatient(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up after three attempts and short waits."""
    monkeypatch.setattr(download, "_ATTEMPTS", 3)
    monkeypatch.setattr(download, "_TIMEOUT_S", 0.3)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_whole_and_nothing_else_stays(
    server: Server, tmp_path: Path
) -> None:
    seen: list[tuple[int, int | None]] = []
    fetched = fetch(
        remote(server.plays(honest)),
        tmp_path,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert fetched.path.read_bytes() == CONTENT
    assert (fetched.checksum, fetched.published, fetched.was_there) == (
        f"md5 {MD5}",
        True,
        False,
    )
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert names(tmp_path) == ["data.tar"]


def test_wrong_bytes_never_get_the_name(server: Server, tmp_path: Path) -> None:
    url = server.plays(lambda h: honest(h, CONTENT[:-1] + b"?"))
    with pytest.raises(DownloadError, match=f"md5 {MD5} is known"):
        fetch(remote(url), tmp_path)
    assert not (tmp_path / "data.tar").exists()
    assert len(server.ranges) == 2, "one fresh try, then the truth"


def test_a_wrong_size_is_told_before_the_bytes_come(
    server: Server, tmp_path: Path
) -> None:
    url = server.plays(honest)
    with pytest.raises(DownloadError, match="offers 10240 bytes, the file has 10239"):
        fetch(remote(url, size=len(CONTENT) - 1), tmp_path)


@pytest.mark.parametrize(
    ("kind", "page"),
    [
        ("text/html; charset=utf-8", b"Please log in"),
        ("application/octet-stream", b"\n<!DOCTYPE html><title>Please log in</title>"),
    ],
)
def test_a_web_page_in_place_of_the_file_is_refused(
    server: Server, tmp_path: Path, kind: str, page: bytes
) -> None:
    url = server.plays(lambda h: h.reply(200, page, Content_Type=kind))
    with refusal(DownloadError, "data.tar"):
        fetch(remote(url, md5=None), tmp_path)
    assert len(server.ranges) == 1
    assert not (tmp_path / "data.tar").exists()


def test_a_missing_file_is_not_asked_for_again(
    server: Server, pauses: list[float], tmp_path: Path
) -> None:
    with pytest.raises(DownloadError, match="answers 404"):
        fetch(remote(server.plays(lambda h: h.reply(404, b""))), tmp_path)
    assert pauses == []


def test_the_next_mirror_is_used_when_one_is_gone(
    server: Server, tmp_path: Path
) -> None:
    url = server.plays(lambda h: h.reply(404, b""), honest)
    got = fetch(remote(f"{url}?gone", url), tmp_path)
    assert got.path.read_bytes() == CONTENT


def test_redirects_are_followed(server: Server, tmp_path: Path) -> None:
    url = server.plays(lambda h: h.reply(302, b"", Location="/elsewhere.tar"), honest)
    assert fetch(remote(url), tmp_path).path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("url", "new", "reason"),
    [
        ("https://a.example/x", "http://a.example/x", "from https to http"),
        ("https://a.example/x", "ftp://a.example/x", "only http and https"),
        ("http://a.example/x", "file:///etc/passwd", "only http and https"),
    ],
)
def test_a_redirect_to_a_weaker_place_is_refused(
    url: str, new: str, reason: str
) -> None:
    request = urllib.request.Request(url)
    with pytest.raises(DownloadError, match=reason):
        SafeRedirects().redirect_request(request, None, 302, "", {}, new)


def test_other_schemes_are_not_fetched(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENT)
    with pytest.raises(DownloadError, match="only http and https"):
        fetch(remote(secret.as_uri()), tmp_path / "out")


def test_a_file_that_is_there_is_checked_and_not_fetched(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "data.tar").write_bytes(CONTENT)
    fetched = fetch(remote(server.plays(honest)), tmp_path)
    assert fetched.was_there
    assert server.ranges == []
    # Damage is found from now on.
    (tmp_path / "data.tar").write_bytes(CONTENT[::-1])
    with pytest.raises(DownloadError):
        fetch(remote(server.plays(honest)), tmp_path)


def test_a_damaged_file_that_is_there_is_reported_not_replaced(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "data.tar").write_bytes(CONTENT[:-1])
    with refusal(DownloadError, tmp_path / "data.tar"):
        fetch(remote(server.plays(honest)), tmp_path)
    assert (tmp_path / "data.tar").read_bytes() == CONTENT[:-1]


def test_a_file_of_another_size_that_is_there_is_reported(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "data.tar").write_bytes(CONTENT[:-1])
    with pytest.raises(DownloadError, match="has 10239 bytes, the file has 10240"):
        fetch(remote(server.plays(honest), md5=None, size=10240), tmp_path)


def test_without_a_published_checksum_the_first_good_copy_becomes_the_measure(
    server: Server, tmp_path: Path
) -> None:
    url = server.plays(honest)
    first = fetch(remote(url, md5=None), tmp_path)
    sha256 = f"sha256 {hashlib.sha256(CONTENT).hexdigest()}"
    assert (first.checksum, first.published) == (sha256, False)
    assert json.loads((tmp_path / CHECKSUMS).read_text()) == {"data.tar": sha256}
    first.path.unlink()
    server.plays(lambda h: honest(h, CONTENT[::-1]))
    with refusal(DownloadError, "data.tar"):
        fetch(remote(url, md5=None), tmp_path)


def test_two_downloads_of_one_file_do_not_mix(server: Server, tmp_path: Path) -> None:
    url = server.plays(lambda h: h.reply(404, b""))
    with pytest.raises(DownloadError):
        fetch(remote(url), tmp_path)
    (part,) = tmp_path.glob(".data.tar.*.part")
    with part.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(LockedError):
            fetch(remote(url), tmp_path)


def test_a_full_disk_is_told_before_the_bytes_come(
    server: Server, tmp_path: Path
) -> None:
    huge = str(10**18)

    def vast(h: Handler) -> None:
        h.reply(200, b"x", Content_Length=huge)

    file = remote(server.plays(vast), size=10**18)
    with pytest.raises(DownloadError, match=r"1e\+09 GB are to come"):
        fetch(file, tmp_path)


def test_the_catalogue_names_every_disc() -> None:
    oasis = load_catalogue()["oasis1"]
    assert len(oasis.files(part="images", discs=())) == 12
    assert len(oasis.files(part="freesurfer", discs=())) == 11
    (first,) = oasis.files(part="images", discs=(1,))
    assert first.name == "oasis_cross-sectional_disc1.tar.gz"
    assert first.md5 == "c83e216ef8654a7cc9e2a30a4cdbe0cc"
    with pytest.raises(ConfigError, match="no disc 12"):
        oasis.files(part="freesurfer", discs=(12,))
    assert set(archives_of("oasis1")) >= {
        first.name,
        "oasis_cs_freesurfer_disc11.tar.gz",
    }
    assert archives_of("pairs") == {}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            lambda h: h.reply(200, b""),
            "offers 0 bytes, and 10000 to 20000 are plausible",
        ),
        (
            lambda h: h.reply(200, CONTENT[:-241]),
            "offers 9999 bytes, and 10000 to 20000",
        ),
        (lambda h: h.reply(200, 2 * CONTENT), "offers 20480 bytes, and 10000 to 20000"),
        (unmeasured, "neither server nor catalogue gives the length"),
    ],
)
def test_what_may_not_be_the_whole_file_never_becomes_the_measure(
    server: Server, tmp_path: Path, answer: Behaviour, reason: str
) -> None:
    file = remote(server.plays(answer), md5=None)
    file = file.model_copy(update={"plausible_bytes": (10_000, 20_000)})
    with pytest.raises(DownloadError, match=reason):
        fetch(file, tmp_path)
    assert not (tmp_path / "data.tar").exists()
    assert not (tmp_path / CHECKSUMS).exists()
    # The same file put there by other means is no better.
    (tmp_path / "data.tar").write_bytes(b"")
    with pytest.raises(
        DownloadError, match="has 0 bytes, and 10000 to 20000 are plausible"
    ):
        fetch(file, tmp_path)


@pytest.mark.parametrize("content", ["[]", "{", "[" * 100_000])
def test_a_list_of_checksums_that_is_none_is_named(
    server: Server, tmp_path: Path, content: str
) -> None:
    (tmp_path / CHECKSUMS).write_text(content)
    with refusal(DownloadError, tmp_path / "checksums.json"):
        fetch(remote(server.plays(honest), md5=None), tmp_path)


def test_a_broken_connection_is_resumed_where_it_broke(
    server: Server, pauses: list[float], tmp_path: Path
) -> None:
    url = server.plays(cut_after(1000), cut_after(500), honest)
    assert fetch(remote(url), tmp_path).path.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1000-", "bytes=1500-"]
    assert pauses == [1.0, 2.0]


def test_an_attempt_that_received_a_megabyte_resets_the_count(
    server: Server, pauses: list[float], tmp_path: Path
) -> None:
    content = CONTENT * 500
    md5 = hashlib.md5(content).hexdigest()
    parts = [lambda h, end=end: cut(h, content, end) for end in (2 << 20,) * 2]
    url = server.plays(*parts, lambda h: honest(h, content))
    assert fetch(remote(url, md5=md5), tmp_path).checksum == f"md5 {md5}"
    assert pauses == [1.0, 1.0]


def test_a_later_run_resumes_what_an_earlier_one_left(
    server: Server, tmp_path: Path
) -> None:
    url = server.plays(cut_after(4000), lambda h: h.reply(503, b""))
    with pytest.raises(
        DownloadError, match=r"gave up after 3 attempts \(status 503\).*resume"
    ):
        fetch(remote(url), tmp_path)
    server.plays(honest)
    assert fetch(remote(url), tmp_path).path.read_bytes() == CONTENT
    assert server.ranges[-1] == "bytes=4000-"


def test_a_server_that_stalls_is_asked_again(server: Server, tmp_path: Path) -> None:
    released = threading.Event()

    def stall(h: Handler) -> None:
        cut_after(2000)(h)
        h.wfile.flush()
        released.wait(5)

    url = server.plays(stall, honest)
    assert fetch(remote(url), tmp_path).path.read_bytes() == CONTENT
    released.set()
    assert server.ranges[-1] == "bytes=2000-"


def test_waits_double_and_what_the_server_asks_is_granted(
    server: Server, pauses: list[float], tmp_path: Path
) -> None:
    url = server.plays(
        lambda h: h.reply(503, b""),
        lambda h: h.reply(429, b"", Retry_After="7"),
        honest,
    )
    fetch(remote(url), tmp_path)
    assert pauses == [1.0, 7.0]


def test_a_server_that_ignores_ranges_starts_over(
    server: Server, tmp_path: Path
) -> None:
    url = server.plays(cut_after(1000), lambda h: h.reply(200, CONTENT))
    assert fetch(remote(url), tmp_path).path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("first", "sent", "md5"),
    [
        # A part in the middle is missing, so that the whole would have the right length in the
        # end.
        pytest.param(1500, CONTENT[1500:], None, id="starts elsewhere"),
        pytest.param(
            1000, CONTENT[1000:] + b"and more", None, id="more than announced"
        ),
        pytest.param(1000, CONTENT[:-1000], MD5, id="wrong bytes"),
    ],
)
def test_a_wrong_rest_is_not_appended_and_the_whole_is_fetched_afresh(
    server: Server,
    tmp_path: Path,
    first: int,
    sent: bytes,
    md5: str | None,
) -> None:
    def wrong(h: Handler) -> None:
        span = f"bytes {first}-{len(CONTENT) - 1}/{len(CONTENT)}"
        h.reply(206, sent, Content_Range=span)

    url = server.plays(cut_after(1000), wrong, honest)
    got = fetch(remote(url, md5=md5), tmp_path)
    assert got.path.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1000-", None]


def test_what_was_complete_already_is_not_fetched_again(
    server: Server, tmp_path: Path
) -> None:
    def promises_more(h: Handler) -> None:
        h.reply(200, CONTENT, Content_Length=str(len(CONTENT) + 1))

    url = server.plays(promises_more, honest)
    assert fetch(remote(url), tmp_path).path.read_bytes() == CONTENT
    assert server.ranges == [None, f"bytes={len(CONTENT)}-"]


def test_a_file_that_changed_on_the_server_is_not_mixed_with_its_old_start(
    server: Server, tmp_path: Path
) -> None:
    newer = CONTENT[::-1]
    asked: list[str | None] = []

    def changed(h: Handler) -> None:
        asked.append(h.headers.get("If-Range"))
        h.reply(200, newer, ETag='"v2"')

    url = server.plays(cut_after(1000), changed)
    assert fetch(remote(url, md5=None), tmp_path).path.read_bytes() == newer
    assert asked == ['"v1"']


def test_a_body_without_a_length_is_held_to_the_known_size(
    server: Server, tmp_path: Path
) -> None:
    url = server.plays(lambda h: unmeasured(h, CONTENT[:3000]), honest)
    got = fetch(remote(url, md5=None, size=len(CONTENT)), tmp_path)
    assert got.path.read_bytes() == CONTENT


def test_a_body_without_end_does_not_fill_the_disk(
    server: Server, tmp_path: Path
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
        DownloadError,
        match=r"gave up after 3 attempts .*more than the 20000 bytes announced",
    ):
        fetch(file, tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 0


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
    server: Server, tmp_path: Path, headers: dict[str, str]
) -> None:
    status = 302 if "Location" in headers else 200
    url = server.plays(lambda h: h.reply(status, CONTENT, **headers))
    with pytest.raises(DownloadError, match="gave up after 3 attempts"):
        fetch(remote(url), tmp_path)
