"""Unpacking refuses what could leave the folder, fill the disk or pass off damage as data."""

from __future__ import annotations

import gzip
import io
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from helpers.refusals import refusal

from trinat.pipelines.prepare.catalogue import ArchiveLimits
from trinat.pipelines.prepare.unpack import extract
from trinat.segmentation.errors import DatasetError, IntegrityError

ROOMY = ArchiveLimits(members=100, bytes=10**6)


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def build(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    mode = "w:gz" if path.name.endswith("gz") else "w"
    with tarfile.open(path, mode) as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz"])
def test_files_come_out_with_their_bytes(tmp_path: Path, name: str) -> None:
    archive = build(
        tmp_path / name, (member("d/x.txt"), b"one"), (member("d/y.txt"), b"two")
    )
    extract(archive, tmp_path / "out", limits=ROOMY)
    assert (tmp_path / "out/d/x.txt").read_bytes() == b"one"
    assert (tmp_path / "out/d/y.txt").read_bytes() == b"two"
    assert names_in(tmp_path) == [name, "out"]
    assert names_in(tmp_path / "out") == ["d"]


def test_only_wanted_files_are_written(tmp_path: Path) -> None:
    archive = build(
        tmp_path / "a.tar", (member("x.img"), b"1"), (member("x.gif"), b"2")
    )
    extract(archive, tmp_path / "o", limits=ROOMY, wanted=lambda n: n.endswith(".img"))
    assert names_in(tmp_path / "o") == ["x.img"]
    with pytest.raises(DatasetError, match="holds nothing"):
        extract(archive, tmp_path / "p", limits=ROOMY, wanted=lambda n: False)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        (member("/etc/x"), "absolute name"),
        (member("\\\\host\\x"), "absolute name"),
        (member("a/../../x"), "leads out"),
        (member("a\\..\\..\\x"), "leads out"),
        (member("s", tarfile.SYMTYPE, "/etc/passwd"), "is a link"),
        (member("h", tarfile.LNKTYPE, "other"), "is a link"),
        (member("p", tarfile.FIFOTYPE), "neither a file nor a folder"),
        (member("c", tarfile.CHRTYPE), "neither a file nor a folder"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_a_member_that_could_do_harm_refuses_the_archive(
    tmp_path: Path, info: tarfile.TarInfo, reason: str
) -> None:
    archive = build(tmp_path / "a.tar", (info, b""))
    # Even if that member was not requested.
    with pytest.raises(DatasetError, match=reason):
        extract(archive, tmp_path / "o", limits=ROOMY, wanted=lambda name: False)
    assert names_in(tmp_path) == ["a.tar"]


def test_more_members_than_declared_are_refused(tmp_path: Path) -> None:
    archive = build(tmp_path / "a.tar", *[(member(f"f{i}"), b"") for i in range(4)])
    with pytest.raises(DatasetError, match="more than the 3 members"):
        extract(archive, tmp_path / "o", limits=ArchiveLimits(3, 10**6))


def test_more_bytes_than_declared_are_refused_before_they_are_written(
    tmp_path: Path,
) -> None:
    archive = build(tmp_path / "a.tar.gz", (member("bomb"), bytes(5000)))
    with pytest.raises(DatasetError, match="more than the 4999 bytes"):
        extract(archive, tmp_path / "o", limits=ArchiveLimits(10, 4999))
    assert names_in(tmp_path) == ["a.tar.gz"]


def test_a_name_that_comes_twice_is_refused(tmp_path: Path) -> None:
    archive = build(tmp_path / "a.tar", (member("x"), b"1"), (member("x"), b"2"))
    with refusal(DatasetError, archive):
        extract(archive, tmp_path / "o", limits=ROOMY)


def test_links_that_a_killed_process_left_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".o.unpacking").mkdir()
    (tmp_path / ".o.unpacking" / "d").symlink_to(tmp_path / "elsewhere")
    archive = build(tmp_path / "a.tar", (member("d/x"), b"1"))
    extract(archive, tmp_path / "o", limits=ROOMY)
    assert (tmp_path / "o/d/x").read_bytes() == b"1"
    assert names_in(tmp_path / "elsewhere") == []
    (tmp_path / ".p.unpacking").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        extract(archive, tmp_path / "p", limits=ROOMY)
    assert names_in(tmp_path / "elsewhere") == []


def test_a_truncated_archive_is_damage(tmp_path: Path) -> None:
    archive = build(tmp_path / "a.tar.gz", (member("x"), bytes(range(256)) * 40))
    archive.write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(IntegrityError, match="damaged"):
        extract(archive, tmp_path / "o", limits=ROOMY)


def test_a_wrong_checksum_behind_the_last_member_is_damage(tmp_path: Path) -> None:
    archive = build(tmp_path / "a.tar.gz", (member("x"), b"content"))
    raw = bytearray(archive.read_bytes())
    raw[-6] ^= 1  # the stored CRC-32 is in the last eight bytes
    archive.write_bytes(raw)
    with pytest.raises(IntegrityError, match="CRC"):
        extract(archive, tmp_path / "o", limits=ROOMY)
    assert names_in(tmp_path) == ["a.tar.gz"], "nothing of a damaged archive may stay"


def test_what_is_no_archive_is_damage(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(b"<html>not a tar</html>" * 100))
    with pytest.raises(IntegrityError):
        extract(tmp_path / "a.tar.gz", tmp_path / "o", limits=ROOMY)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, OSError])
def test_what_stops_it_leaves_no_file_unchecked(
    tmp_path: Path, stop: type[BaseException]
) -> None:
    archive = build(tmp_path / "a.tar.gz", (member("x"), b"1"), (member("y"), b"2"))

    def received(path: Path) -> None:
        if path.name == "y":
            raise stop

    with pytest.raises(stop):
        extract(archive, tmp_path / "o", limits=ROOMY, received=received)
    assert names_in(tmp_path) == ["a.tar.gz"]


def header(name: str, kind: bytes, size: int) -> bytes:
    info = member(name, kind)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def blocks(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


def record(text: str) -> bytes:
    """Return a PAX record, which begins with its own length."""
    length = next(
        n for n in range(len(text), len(text) + 9) if n == len(f"{n} {text}\n")
    )
    return f"{length} {text}\n".encode()


def pax(content: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    return header("attributes", kind, len(content)) + blocks(content)


FILE = header("x", tarfile.REGTYPE, 3) + blocks(b"one")
END = bytes(1024)


@pytest.mark.parametrize(
    "kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE]
)
def test_a_header_that_unpacks_to_a_lot_is_not_read(
    tmp_path: Path, kind: bytes
) -> None:
    archive = tmp_path / "a.tar.gz"
    size = 16 << 20
    with gzip.open(archive, "wb", 1) as file:
        file.write(header("long", kind, size) + b"a" * size + FILE + END)
    tracemalloc.start()
    try:
        with refusal(DatasetError, archive):
            extract(archive, tmp_path / "o", limits=ArchiveLimits(10, 1 << 40))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_what_follows_the_end_is_bounded(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    # tar pads to whole records, which may be large.
    archive.write_bytes(gzip.compress(FILE + END + bytes(8 << 20)))
    extract(archive, tmp_path / "o", limits=ROOMY)
    assert names_in(tmp_path / "o") == ["x"]
    archive.write_bytes(gzip.compress(FILE + END + bytes(32 << 20)))
    with refusal(DatasetError, archive):
        extract(archive, tmp_path / "p", limits=ROOMY)
    assert names_in(tmp_path) == ["a.tar.gz", "o"]


def test_headers_count_among_the_bytes(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar"
    archive.write_bytes(pax(record("comment=" + 9000 * "a")) + FILE + END)
    with pytest.raises(DatasetError, match="more than the 9000 bytes"):
        extract(archive, tmp_path / "o", limits=ArchiveLimits(10, 9000))


def test_attributes_for_all_members_do_not_pile_up(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    with gzip.open(archive, "wb", 1) as file:
        for group in range(40):
            records = b"".join(record(f"key{group}.{n}=") for n in range(250))
            file.write(pax(records, tarfile.XGLTYPE))
            file.write(header(f"f{group}", tarfile.REGTYPE, 0))
        file.write(END)
    tracemalloc.start()
    try:
        extract(archive, tmp_path / "o", limits=ArchiveLimits(40, 10**7))
        assert len(names_in(tmp_path / "o")) == 40
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


def negative_size() -> bytes:
    """Return a header that leads back to its own position."""
    content = bytearray(header("x", tarfile.REGTYPE, 0))
    content[124:136] = b"\xff" * 10 + (0x10000 - 512).to_bytes(2, "big")
    content[148:156] = b"%06o\0 " % (
        sum(content[:148]) + sum(content[156:512]) + 8 * 32
    )
    return bytes(content)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(
            header("l", tarfile.GNUTYPE_LONGNAME, 0) * 1100 + FILE, id="chain"
        ),
        pytest.param(pax(b"9" * 5000 + b" path=x\n") + FILE, id="digits"),
        pytest.param(pax(b"18 hdrcharset=\xff\n") + FILE, id="charset"),
        pytest.param(pax(record("size=-1024")) + FILE, id="negative attribute"),
        pytest.param(pax(record("path=a\0b")) + FILE, id="nul"),
        pytest.param(pax(record("GNU.sparse.map=a,b")) + FILE, id="sparse"),
        pytest.param(negative_size() * 3, id="negative size"),
    ],
)
def test_headers_that_no_tar_writes_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar").write_bytes(content + END)
    with pytest.raises((DatasetError, IntegrityError), match=r"a\.tar"):
        extract(tmp_path / "a.tar", tmp_path / "o", limits=ROOMY)
    assert names_in(tmp_path) == ["a.tar"]
