"""Attacks by downloads: archives with arbitrary members, servers with arbitrary answers."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import random
import tarfile
import time
from pathlib import Path

from helpers.loopback import Behaviour, Server, cut, serve

from attacks.verdicts import executed, wrong
from attacks.workshop import Try, digests, happens, time_limit, unchanged
from trinat.pipelines.prepare.catalogue import ArchiveLimits, RemoteFile
from trinat.pipelines.prepare.download import Policy, fetch
from trinat.pipelines.prepare.unpack import extract
from trinat.segmentation.errors import TrinatError

_NAMES = (
    "../out", "a/../../out", "/tmp/torture-out", "a\\..\\..\\out", "//host/out", "./../out",
    "a" * 300, "a/" * 200 + "x", "\0x", "x\n\x1b[31m", "C:\\out", "~/.profile", "good", "d/good",
    ".", "..", "", "-rf", "good/../good2", "\udcff\udcfe",
)  # fmt: skip
_KINDS = (
    tarfile.REGTYPE, tarfile.REGTYPE, tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE,
    tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.CONTTYPE,
    tarfile.GNUTYPE_SPARSE, b"V", b"9",
)  # fmt: skip


def archives(attempt: Try) -> None:
    """Unpack members with any name, type, mode and target, then damaged.

    Nothing may appear outside.
    """
    chance = attempt.chance
    packed = chance.random() < 0.5
    archive = attempt.folder / ("disc.tar.gz" if packed else "disc.tar")
    outside = attempt.folder / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=chance.choice((0, 1, 2))) as tar:
        for _ in range(chance.randint(1, 5)):
            info = tarfile.TarInfo(chance.choice(_NAMES))
            info.type, info.mode = (
                chance.choice(_KINDS),
                chance.choice((0, 0o644, 0o7777)),
            )
            info.linkname = chance.choice(
                ("", "/etc/passwd", "../outside/mine", str(outside))
            )
            info.uid = chance.choice((0, 2**31 - 1))
            content = chance.randbytes(chance.choice((0, 1, 600)))
            info.size = len(content) if info.isreg() else 0
            with contextlib.suppress(ValueError, UnicodeError, tarfile.HeaderError):
                tar.addfile(info, io.BytesIO(content))
    raw_bytes = bytearray(whole.getvalue())
    if chance.random() < 0.5:
        for _ in range(chance.randint(1, 4)):
            raw_bytes[chance.randrange(min(len(raw_bytes), 3000))] = chance.randrange(
                256
            )
    content = gzip.compress(bytes(raw_bytes)) if packed else bytes(raw_bytes)
    if happens(chance, 0.2):
        content = content[: chance.randrange(len(content))]
    archive.write_bytes(content)
    before = digests(attempt.folder)
    target = attempt.folder / "out"
    try:
        with time_limit(20):
            extract(archive, target, limits=ArchiveLimits(members=100, bytes=10**6))
    finally:
        unchanged(before, attempt.folder, "unpacking")
        new = digests(attempt.folder).keys() - before.keys()
        if strange := [name for name in new if not name.startswith("out/")]:
            raise executed(f"{strange[0]} was written outside")
        if Path("/tmp/torture-out").exists():
            raise executed("/tmp/torture-out was written")
    for path in target.rglob("*"):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise executed(f"{path.name} is no plain file")
        if path.stat().st_mode & 0o6000:
            raise executed(f"{path.name} has a set-user-id bit")


def servers(attempt: Try) -> None:
    """Serve answers that cut, lie, stall and redirect; only the true file may be kept."""
    chance = attempt.chance
    content = random.Random(7).randbytes(20_000)
    other = content[:-1] + b"x"
    digest = hashlib.md5(content).hexdigest()
    known = happens(chance, 0.7)

    def answer() -> Behaviour:
        size = chance.randrange(len(content))
        status = chance.choice((204, 301, 400, 401, 403, 404, 416, 429, 500, 503, 999))
        field = chance.choice(("Content_Length", "Content_Range", "Location", "ETag"))
        value = chance.choice(
            (
                "-1",
                "x",
                "9" * 30,
                "bytes 5-4/3",
                "file:///etc/passwd",
                "ftp://x/y",
                "",
                "/file",
            )
        )
        choices: list[Behaviour] = [
            lambda h: serve(h, content),
            lambda h: cut(h, content, size),
            lambda h: serve(h, other),
            lambda h: serve(h, content + b"more"),
            lambda h: h.reply(status, b"<html>no</html>"),
            lambda h: h.reply(200, b"<!doctype html><p>sign in"),
            lambda h: h.reply(
                chance.choice((200, 206, 302)), content[:size], **{field: value}
            ),
            lambda h: h.wfile.write(chance.randbytes(300)),
            lambda h: h.close_connection is None,
            lambda h: time.sleep(0.4),
        ]
        return chance.choice(choices)

    server = Server()
    try:
        url = server.plays(
            *(answer() for _ in range(chance.randint(1, 6))),
            lambda h: serve(h, content),
        )
        remote = RemoteFile(
            name="data.bin",
            urls=(url,),
            md5=digest if known else None,
            size=len(content),
        )
        policy = Policy(attempts=3, timeout_s=0.2, pause=lambda _: None)
        with time_limit(60):
            try:
                fetched = fetch(remote, attempt.folder, policy=policy)
            except TrinatError:
                if (attempt.folder / "data.bin").exists():
                    raise wrong("refused, and the file is there") from None
                raise
    finally:
        server.close()
    got = fetched.path.read_bytes()
    # Without a checksum, another file of the same size cannot be detected.
    if got != content and (known or len(got) != len(content)):
        raise wrong(f"{len(got)} bytes that are not the file's are the good copy")


ATTACKS = {"archives": archives, "servers": servers}
