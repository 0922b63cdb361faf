"""A file to download, and ways in which a server sends it."""

from __future__ import annotations

import hashlib

from helpers.loopback import Behaviour, Handler, cut, serve
from trinat.pipelines.prepare.catalogue import RemoteFile

CONTENT = bytes(range(256)) * 40  # 10,240 bytes
MD5 = hashlib.md5(CONTENT).hexdigest()


def honest(h: Handler, content: bytes = CONTENT) -> None:
    serve(h, content)


def cut_after(count: int) -> Behaviour:
    return lambda h: cut(h, CONTENT, count)


def remote(*urls: str, md5: str | None = MD5, size: int | None = None) -> RemoteFile:
    return RemoteFile(name="data.tar", urls=urls, md5=md5, size=size)


def unmeasured(h: Handler, content: bytes = CONTENT) -> None:
    """Send the content without a Content-Length header."""
    h.send_response(200)
    h.end_headers()
    h.wfile.write(content)
