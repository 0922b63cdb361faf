"""A file's bytes: opened once, decompressed, limited, and verified to the last checksum."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
from pathlib import Path

import pytest

from trinat.segmentation.errors import FormatError, InputError, IntegrityError
from trinat.segmentation.io.streams import ScanStream, refuse_bomb

CONTENT = bytes(range(256)) * 40


def read_whole(
    path: Path, *, packed: bool, limit: int = 0, zeros: bool = True
) -> bytes:
    """Return the first 10,240 bytes after reading the whole file."""
    with ScanStream(path, packed=packed) as source:
        content = source.take(len(CONTENT))
        source.drain(limit=limit, zeros=zeros)
        return content


def written(folder: Path, content: bytes) -> Path:
    path = folder / "file"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("packed", [True, False])
def test_content_and_digest_are_those_of_the_file(tmp_path: Path, packed: bool) -> None:
    stored = gzip.compress(CONTENT) if packed else CONTENT
    with ScanStream(written(tmp_path, stored), packed=packed) as source:
        assert source.take(100) + source.take(len(CONTENT) - 100) == CONTENT
        source.drain(limit=0, zeros=True)
        assert source.digest.hexdigest() == hashlib.sha256(stored).hexdigest()


def test_gzip_in_several_members_is_one_stream(tmp_path: Path) -> None:
    halves = gzip.compress(CONTENT[:5000]) + gzip.compress(CONTENT[5000:])
    assert read_whole(written(tmp_path, halves), packed=True) == CONTENT


def test_zeros_after_gzip_are_padding(tmp_path: Path) -> None:
    padded = gzip.compress(CONTENT) + bytes(512)
    with ScanStream(written(tmp_path, padded), packed=True) as source:
        assert source.take(len(CONTENT)) == CONTENT
        source.drain(limit=0, zeros=True)
        assert source.digest.hexdigest() == hashlib.sha256(padded).hexdigest()
    with pytest.raises(IntegrityError, match="garbage after its gzip stream"):
        read_whole(written(tmp_path, padded + b"\x01"), packed=True)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty, 0 bytes"),
        (CONTENT, "not gzip, though its name says so"),
        (
            b"\x1f\x8b\x08\x20" + gzip.compress(CONTENT, mtime=0)[4:],
            "damaged gzip header",
        ),
        (b"\x1f\x8b\x08", "truncated: its gzip stream ends early"),
        (gzip.compress(CONTENT, mtime=0)[:-1], "truncated: its gzip stream ends early"),
        (gzip.compress(CONTENT, mtime=0)[:-9], "truncated: its gzip stream ends early"),
        (
            gzip.compress(CONTENT[:-1], mtime=0),
            "truncated: ends after 10239 bytes where 10240",
        ),
        (gzip.compress(CONTENT, mtime=0)[:-8] + bytes(8), "gzip checksum failed"),
        (gzip.compress(CONTENT, mtime=0) + b"garbage", "garbage after its gzip stream"),
        (gzip.compress(CONTENT, mtime=0)[:10] + b"\xff" * 50, "damaged gzip stream"),
        (
            gzip.compress(CONTENT, mtime=0)
            + gzip.compress(b"", mtime=0)[:-8]
            + b"12345678",
            "gzip checksum failed",
        ),
    ],
)
def test_damage_is_found_wherever_it_is(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    with pytest.raises(IntegrityError, match=problem):
        read_whole(written(tmp_path, content), packed=True)


def test_a_plain_file_that_ends_early_is_truncated(tmp_path: Path) -> None:
    with pytest.raises(
        IntegrityError, match="truncated: ends after 99 bytes where 10240"
    ):
        read_whole(written(tmp_path, CONTENT[:99]), packed=False)


def test_gzip_under_a_plain_name_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(
        FormatError, match="gzip inside, though its name does not say so"
    ):
        read_whole(written(tmp_path, gzip.compress(CONTENT)), packed=False)


@pytest.mark.parametrize(
    ("extra", "zeros"), [(b"\0" * 101, True), (b"\0" * 101, False)]
)
def test_more_than_the_padding_allowed_is_refused(
    tmp_path: Path, extra: bytes, zeros: bool
) -> None:
    allowed = written(tmp_path, CONTENT + extra[:100])
    assert read_whole(allowed, packed=False, limit=100, zeros=zeros) == CONTENT
    refused = written(tmp_path, CONTENT + extra)
    with pytest.raises(IntegrityError, match="more data than its header announces"):
        read_whole(refused, packed=False, limit=100, zeros=zeros)


def test_padding_other_than_zeros_is_refused_where_zeros_are_asked_for(
    tmp_path: Path,
) -> None:
    path = written(tmp_path, CONTENT + b"\0" * 99 + b"\x01")
    assert read_whole(path, packed=False, limit=100, zeros=False) == CONTENT
    with pytest.raises(IntegrityError, match="more data than its header announces"):
        read_whole(path, packed=False, limit=100, zeros=True)


@pytest.mark.parametrize(("packed", "most"), [(False, 10240), (True, None)])
def test_announcing_more_than_can_be_there_is_refused(
    tmp_path: Path, packed: bool, most: int | None
) -> None:
    path = written(tmp_path, gzip.compress(CONTENT) if packed else CONTENT)
    most = most or path.stat().st_size * 1032
    with ScanStream(path, packed=packed) as source:
        source.announce(most)
        with pytest.raises(IntegrityError, match=f"cannot hold the {most + 1}"):
            source.announce(most + 1)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    with gzip.open(path, "wb") as file:
        for _ in range(300):
            file.write(bytes(2**20))
    with ScanStream(path, packed=True) as source:
        source.announce(2**28)
        times = 2**28 // path.stat().st_size
        with pytest.raises(FormatError, match=f"unpacks to {times} times its size"):
            source.announce(2**28 + 1)


@pytest.mark.parametrize(("times", "is_refused"), [(500, False), (501, True)])
def test_a_large_scan_unpacks_to_500_times_its_size_at_most(
    times: int, is_refused: bool
) -> None:
    with pytest.raises(FormatError) if is_refused else contextlib.nullcontext():
        refuse_bomb(times * 2**20, 2**20, Path("scan.nii.gz"))


def test_a_path_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match="cannot be opened"):
        ScanStream(tmp_path / "loop", packed=False)


def test_a_disk_that_fails_while_reading_is_one_line() -> None:
    # Reading a process's own memory at address 0 is an I/O error, as at a bad sector.
    memory = Path("/proc/self/mem")
    if not memory.exists():
        pytest.skip("no /proc here")
    source = ScanStream.__new__(ScanStream)
    with memory.open("rb", buffering=0) as file:
        source.path, source.position, source._bytes = Path("scan.nii"), 0, file
        with pytest.raises(InputError, match=r"cannot be read \(Input/output error\)"):
            source.take(4)
