"""Request guard over a real socket: access, response headers, and size limits."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from queue import Queue
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from trinat.pipelines.view import guard, start
from trinat.pipelines.view.guard import Names, is_loopback, new_token
from trinat.segmentation.errors import ConfigError

TOKEN = new_token()
BEARER = {"Authorization": f"Bearer {TOKEN}"}


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with the length of the request; /fault fails."""
    length, more = 0, True
    while more:
        message = await receive()
        length += len(message.get("body", b""))
        more = message.get("more_body", False)
    if scope["path"] == "/fault":
        raise ValueError("sub-secret.nii.gz")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(length).encode()})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    said: Queue[str] = Queue()
    patched = pytest.MonkeyPatch()
    patched.setattr(start, "_HEAD_S", 0.3)
    patched.setattr(guard, "_PATIENCE_S", 0.3)
    servers = []
    patched.setattr(
        start.uvicorn.Server,
        "__init__",
        _remember(servers, start.uvicorn.Server.__init__),
    )
    thread = threading.Thread(
        target=start.answer,
        args=(app, TOKEN),
        kwargs={"max_body": 1000, "on_listening": said.put},
    )
    thread.start()
    parts = urlsplit(said.get(timeout=10))
    assert parts.query == f"token={TOKEN}"
    yield f"http://{parts.netloc}"
    servers[0].should_exit = True
    thread.join(10)
    patched.undo()


def _remember(servers, init):  # type: ignore[no-untyped-def]
    def remembering(self, config):  # type: ignore[no-untyped-def]
        servers.append(self)
        init(self, config)

    return remembering


def talk(url: str, data: bytes) -> bytes:
    parts = urlsplit(url)
    with socket.create_connection(
        (parts.hostname, parts.port), timeout=10
    ) as connection:
        connection.sendall(data)
        answer = b""
        while block := connection.recv(4096):
            answer += block
    return answer


def reason(answer: httpx.Response) -> str:
    assert answer.text.count("\n") == 1
    return json.loads(answer.text)["reason"]


def test_the_token_lets_in(url: str) -> None:
    answer = httpx.post(url, headers=BEARER, content=b"abc")
    assert (answer.status_code, answer.text) == (200, "3")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "server" not in answer.headers


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer \xff"},
        {"Cookie": f"trinat-1={TOKEN}"},
    ],
)
def test_without_the_token_nothing_is_told(url: str, headers: dict[str, str]) -> None:
    raw = {name: value.encode("latin-1") for name, value in headers.items()}
    answer = httpx.post(f"{url}/x", headers=raw, content=b"abc")
    assert answer.status_code == 401
    assert "token" in reason(answer)


def test_health_needs_no_token_but_the_right_host(url: str) -> None:
    assert httpx.get(f"{url}/healthz").status_code == 200
    assert (
        httpx.get(f"{url}/healthz", headers={"Host": "evil.example"}).status_code == 421
    )


def test_the_page_exchanges_the_token_for_a_cookie(url: str) -> None:
    with httpx.Client(base_url=url) as client:
        assert client.get("/").status_code == 401
        answer = client.get("/", params={"case": "a b", "token": TOKEN})
        assert (answer.status_code, answer.headers["location"]) == (303, "/?case=a+b")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert TOKEN not in cookie + answer.text
        assert client.get(answer.headers["location"]).status_code == 200
        # For cookies, a page on another port of this machine is the same site.
        sites = {"same-origin": 200, "none": 200, "same-site": 403, "cross-site": 403}
        for site, status in sites.items():
            assert (
                client.get("/", headers={"Sec-Fetch-Site": site}).status_code == status
            )


def test_the_token_in_an_address_is_taken_on_pages_alone(url: str) -> None:
    assert httpx.get(f"{url}/v1/models?token={TOKEN}").status_code == 401
    assert httpx.post(f"{url}/?token={TOKEN}").status_code == 401
    assert httpx.get(f"{url}/?token=wrong").status_code == 401
    foreign = {"Host": "evil.example"}
    assert httpx.get(f"{url}/?token={TOKEN}", headers=foreign).status_code == 421


def test_a_foreign_origin_is_refused(url: str) -> None:
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        answer = httpx.get(url, headers=BEARER | {"Origin": origin})
        assert (answer.status_code, reason(answer)) == (
            403,
            "requested by a page of another site",
        )
    assert httpx.get(url, headers=BEARER | {"Origin": url}).status_code == 200


def test_hosts_by_hand() -> None:
    here = Names("127.0.0.1", 80, ["seg.example.org"])
    for host in (
        "127.0.0.1",
        "localhost:80",
        "[::1]:80",
        "LOCALHOST",
        "seg.example.org:443",
    ):
        assert host in here
    for host in (
        "",
        "127.0.0.1:81",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "a@localhost",
        "[::1",
    ):
        assert host not in here
    everywhere = Names("0.0.0.0", 8)
    assert "10.1.2.3:8" in everywhere
    assert f"{socket.gethostname()}:8" in everywhere
    assert "evil.example:8" not in everywhere
    assert [is_loopback(host) for host in ("::1", "localhost", "0.0.0.0")] == [
        True,
        True,
        False,
    ]


def test_a_large_body_is_refused_before_and_while_it_comes(url: str) -> None:
    known = httpx.post(url, headers=BEARER, content=bytes(1001))
    unknown = httpx.post(url, headers=BEARER, content=iter([bytes(600), bytes(600)]))
    assert [known.status_code, unknown.status_code] == [413, 413]
    assert reason(known) == reason(unknown) == "more than 1000 bytes"
    waiting = f"POST / HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n"
    waiting += f"Authorization: Bearer {TOKEN}\r\n"
    waiting += "Content-Length: 9999\r\nExpect: 100-continue\r\n\r\n"
    assert talk(url, waiting.encode()).startswith(b"HTTP/1.1 413")


def test_a_slow_client_is_not_waited_for(url: str) -> None:
    begun = time.monotonic()
    host = f"Host: {urlsplit(url).netloc}\r\n"
    assert talk(url, f"GET / HTTP/1.1\r\n{host}".encode()).startswith(b"HTTP/1.1 408")
    body = f"POST / HTTP/1.1\r\n{host}Authorization: Bearer {TOKEN}\r\nContent-Length: 9\r\n\r\na"
    assert talk(url, body.encode()).startswith(b"HTTP/1.1 408")
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 20000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.0\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_request_gets_one_line(
    url: str, data: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    head, _, body = talk(url, data).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 4")
    assert json.loads(body)["reason"]
    assert body.count(b"\n") == 1
    assert httpx.get(f"{url}/healthz").status_code == 200
    assert "Traceback" not in "".join(capfd.readouterr())


def test_a_fault_is_told_by_its_place_alone(
    url: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = httpx.get(f"{url}/fault", headers=BEARER)
    assert answer.status_code == 500
    assert reason(answer).startswith("a fault of trinat at test_guard.py:")
    assert "secret" not in caplog.text + "".join(capfd.readouterr())
    assert "ValueError at test_guard.py:" in caplog.text


def test_a_taken_port_is_told_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=r"in use.*--port 0 for a free one"):
            start.answer(app, TOKEN, port=port, on_listening=print)
