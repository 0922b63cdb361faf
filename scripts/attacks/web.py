"""Attacks over HTTP: requests that are wrong in one way, and sound requests with damage."""

from __future__ import annotations

import gzip
import json
import logging
import random
import socket
import threading
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from queue import Queue as Said
from urllib.parse import urlsplit

from attacks.verdicts import Refused, raw, raw_in, wrong
from attacks.workshop import Try

AT = "/v1/segmentations"


def http_requests(attempt: Try) -> None:
    """Send requests.

    Wrong ones get 4xx and one line, sound ones are accepted, the server survives.
    """
    chance = attempt.chance
    # Starlette forgets the file of a part that has no end; it is closed when it is collected.
    warnings.filterwarnings("ignore", "Unclosed file", ResourceWarning)
    address = _server(attempt.sound)
    scan = (attempt.sound / "scans/a.nii.gz").read_bytes()
    if damaged := chance.random() < 0.5:
        request = bytearray(sound(address, scan))
        for _ in range(chance.randint(1, 4)):
            request[
                chance.randrange(len(request) if chance.random() < 0.3 else 300)
            ] = chance.randrange(256)
    else:
        request = bytearray(malformed(chance, address, scan))
    answer = exchange(address, bytes(request))
    head, _, body = answer.partition(b"\r\n\r\n")
    # If the length was damaged, the rest of the body is another request with its own answer.
    body = body.partition(b"HTTP/1.1 ")[0]
    what = f"{bytes(request[:200])!r}: {answer[:200]!r}"
    if found := raw_in(answer.decode("latin-1")):
        raise raw(found)
    if not exchange(address, b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n"):
        raise raw(f"the server is gone: {what}")
    if damaged and head.startswith(b"HTTP/1.1 202"):
        return
    if not head.startswith(b"HTTP/1.1 4"):
        raise wrong(what)
    if not json.loads(body)["reason"] or b"\n" in body.strip():
        raise wrong(f"no line: {what}")
    raise Refused


@cache
def _server(sound: Path) -> str:
    """Return the address of a server in this process; accepted scans stay in its queue."""
    from trinat.pipelines.predict.settings import PredictRequest
    from trinat.pipelines.serve.queue import EngineThread, Queue
    from trinat.pipelines.serve.service import make_app
    from trinat.pipelines.view import guard, start
    from trinat.segmentation.models.zoo import read_scheme

    logging.getLogger("python_multipart").disabled = True
    guard._PATIENCE_S = start._HEAD_S = 1.0
    folder = sound.with_name(f"queue-{threading.get_native_id()}")
    folder.mkdir()
    queue = Queue(folder, queued=10**6, per_client=10**6)
    engine = EngineThread(queue, PredictRequest((), folder), sound / "model")
    app, said = (
        make_app(queue, engine, "tiny", read_scheme(sound / "model")),
        Said[str](),
    )
    threading.Thread(
        target=start.answer,
        args=(app, "secret"),
        kwargs={"max_body": 10**6, "on_listening": said.put},
        daemon=True,
    ).start()
    return said.get(timeout=20)


def sound(address: str, scan: bytes) -> bytes:
    place = urlsplit(address)
    body = b'--xx\r\nContent-Disposition: form-data; name="file"; filename="a.nii.gz"\r\n\r\n'
    body += scan + b"\r\n--xx--\r\n"
    head = (
        f"POST {AT} HTTP/1.1",
        f"Host: {place.netloc}",
        f"Authorization: Bearer {place.query.removeprefix('token=')}",
        "Content-Type: multipart/form-data; boundary=xx",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join((*head, "", "")).encode() + body


def malformed(chance: random.Random, address: str, scan: bytes) -> bytes:
    """Return a request that is wrong in one way."""
    place = urlsplit(address)
    bearer = f"Authorization: Bearer {place.query.removeprefix('token=')}"
    host = f"Host: {place.netloc}"
    kind = "Content-Type: multipart/form-data; boundary=xx"
    bomb = gzip.compress((348).to_bytes(4, "little") + bytes(10_000_000))

    def post(body: bytes, *head: str, type_: str = kind) -> bytes:
        head = (
            host,
            bearer,
            type_,
            f"Content-Length: {len(body)}",
            "Connection: close",
            *head,
        )
        return "\r\n".join((f"POST {AT} HTTP/1.1", *head, "", "")).encode() + body

    def form(content: bytes, name: str = "a.nii.gz", field: str = "file") -> bytes:
        disposition = (
            f'Content-Disposition: form-data; name="{field}"; filename="{name}"'
        )
        return f"--xx\r\n{disposition}\r\n\r\n".encode() + content + b"\r\n--xx--\r\n"

    def get(path: str, *head: str) -> bytes:
        lines = (
            f"GET {path} HTTP/1.1",
            *(head or (host, bearer)),
            "Connection: close",
            "",
            "",
        )
        return "\r\n".join(lines).encode("latin-1")

    noise = chance.randbytes(chance.randrange(1, 2000))
    cut = chance.randrange(20)
    attacks: list[Callable[[], bytes]] = [
        lambda: post(form(noise)),
        lambda: post(
            form(
                noise, f"a{chance.choice(('.nii', '.mgz', '.mgh', '.txt', '', '.hdr'))}"
            )
        ),
        lambda: post(form(scan)[: -9 - cut]),
        lambda: post(form(scan[:cut])),
        lambda: post(form(bomb)),
        lambda: post(
            form(scan, field=chance.choice(("files", "", "outputs", "../file")))
        ),
        lambda: post(form(scan)[:-4] + form(scan)[4:]),
        lambda: post(noise),
        lambda: post(form(scan), type_="Content-Type: multipart/form-data"),
        lambda: post(form(scan), type_="Content-Type: application/octet-stream"),
        lambda: post(b"--xx\r\n" + b"X: y\r\n" * 3000 + b"\r\n--xx--\r\n"),
        lambda: post(b"--xx\r\nX: " + b"y" * 100_000 + b"\r\n\r\n--xx--\r\n"),
        lambda: post(form(bytes(2_000_000))),
        lambda: post(form(scan), "Host: other"),
        lambda: post(form(scan), "Transfer-Encoding: chunked"),
        lambda: post(form(scan)).replace(b"Content-Length: ", b"Content-Length: -"),
        lambda: post(form(scan)).replace(bearer.encode(), b"Authorization: Bearer x"),
        lambda: get("/metrics", host),
        lambda: get("/metrics", host, "Authorization: Bearer " + "x" * cut),
        lambda: get("/metrics", "Host: evil.example", bearer),
        lambda: get("/metrics", host, bearer, "Origin: http://evil.example"),
        lambda: get("/?token=" + "y" * cut, host),
        lambda: get(
            f"{AT}/{chance.choice(('..', '%2e%2e', '%00', 'x' * 5000, '%ff'))}/volumes.tsv"
        ),
        lambda: get(
            f"{AT}/{'0' * 32}/{chance.choice(('../../token', 'events', 'labels.mgz'))}"
        ),
        lambda: get("/../../etc/passwd"),
        lambda: get("//etc/passwd"),
        lambda: get("/%2e%2e/%2e%2e/queue.py"),
        lambda: get("/metrics", host, bearer, *["X: " + "x" * 900] * 20),
        lambda: get("/metrics", host, bearer, "X: \x00"),
        lambda: get("/metrics", host, bearer).replace(b"HTTP/1.1", b"HTTP/x"),
        lambda: get("/metrics", host, bearer).replace(b"GET", b"G\xffT"),
        lambda: get("/metrics", host, bearer).replace(b"GET", b"TRACE"),
        lambda: get("/metrics", host, bearer).replace(b"GET", b"DELETE"),
        lambda: noise + b"\r\n\r\n",
    ]
    return chance.choice(attacks)()


def exchange(address: str, request: bytes) -> bytes:
    """Send a request and return the whole response."""
    place = urlsplit(address)
    with socket.create_connection(
        (place.hostname, place.port or 0), timeout=30
    ) as connection:
        connection.sendall(request)
        answer = b""
        while block := connection.recv(1 << 16):
            answer += block
    return answer


ATTACKS = {"HTTP requests": http_requests}
