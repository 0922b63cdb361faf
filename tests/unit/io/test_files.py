"""Files appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from trinat.segmentation.errors import (
    DatasetError,
    DiskFullError,
    OutputError,
)
from trinat.segmentation.io.files import (
    TableRow,
    append_whole,
    atomic_path,
    atomic_text,
    atomic_write,
    new_folder,
    open_to_append,
    read_bytes,
    read_rows,
    read_table,
    read_text,
    remove_leftovers,
    sha256_of,
    sync,
    write_tsv,
    write_whole,
)


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.fixture
def small_files_only() -> Iterator[None]:
    """Limit files to 64 KiB in the kernel, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_nothing_stands_at_the_name_until_the_block_ends(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "a") as file:
        file.write(b"new")
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a").read_bytes() == b"new"
    assert names(tmp_path) == ["a"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def fail() -> None:
        with atomic_write(tmp_path / "a") as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_a_library_that_wants_a_path_gets_one_in_the_same_folder(
    tmp_path: Path,
) -> None:
    with atomic_path(tmp_path / "a") as temporary:
        assert temporary.parent == tmp_path
        temporary.write_bytes(b"1")
    assert (tmp_path / "a").read_bytes() == b"1"


def test_bytes_are_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\r\n2")
    assert read_bytes(tmp_path / "a") == b"1\r\n2"


def test_text_is_read_with_lines_that_end_in_one_way(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("ä\r\nb\rc".encode())
    assert read_text(tmp_path / "a") == "ä\nb\nc"


def test_text_is_utf8_with_its_own_line_ends(tmp_path: Path) -> None:
    with atomic_text(tmp_path / "a") as file:
        file.write("ä\r\n")
    assert (tmp_path / "a").read_bytes() == "ä\r\n".encode()


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "a") as file:
            file.write(b"1")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


@pytest.mark.usefixtures("small_files_only")
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    def overflow() -> None:
        with atomic_write(tmp_path / "a") as file:
            file.write(bytes(2**17))

    with pytest.raises(OutputError, match="cannot be written") as caught:
        overflow()
    assert str(caught.value).startswith(f"{tmp_path / 'a'}: ")
    assert names(tmp_path) == []


@pytest.mark.usefixtures("small_files_only")
def test_what_could_be_appended_only_in_part_is_cut_off_again(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(60_000))
    with open_to_append(path) as file:
        with pytest.raises(OutputError, match="cannot be written") as caught:
            append_whole(file, bytes(10_000), path)
        assert caught.value.where == str(path)
        append_whole(file, b"end", path)
    assert path.read_bytes() == bytes(60_000) + b"end"


def test_a_full_disk_has_an_error_of_its_own() -> None:
    path = Path("/dev/full")
    with (
        open_to_append(path) as file,
        pytest.raises(DiskFullError, match="/dev/full: cannot"),
    ):
        append_whole(file, b"line", path)


def test_a_missing_folder_is_named_as_such(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match=r"No such file.*") as caught,
        atomic_write(tmp_path / "no" / "a"),
    ):
        pass
    assert caught.value.remedy == "create the folder first"


def test_a_name_of_255_characters_can_be_written(tmp_path: Path) -> None:
    with atomic_write(tmp_path / ("n" * 255)) as file:
        file.write(b"1")
    assert (tmp_path / ("n" * 255)).read_bytes() == b"1"


def test_an_error_about_another_file_stays_itself(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError, match="elsewhere"),
        atomic_write(tmp_path / "a"),
    ):
        (tmp_path / "elsewhere").read_bytes()


@pytest.mark.skipif(
    sys.platform != "linux", reason="strace-like tracing by audit hooks of Linux"
)
def test_bytes_are_on_the_disk_before_the_name_and_the_name_before_the_end(
    tmp_path: Path,
) -> None:
    # A power cut tests the order of the calls; in a subprocess, because hooks cannot be
    # removed.
    probe = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "calls = []\n"
        "real = os.fsync\n"
        "def fsync(fd):\n"
        "    calls.append('folder' if os.path.isdir(f'/proc/self/fd/{fd}') else 'file')\n"
        "    real(fd)\n"
        "os.fsync = fsync\n"
        "sys.addaudithook(lambda e, a: calls.append('rename') if e == 'os.rename' else None)\n"
        "from trinat.segmentation.io.files import atomic_write\n"
        "with atomic_write(Path(sys.argv[1]) / 'a') as file: file.write(b'1')\n"
        "print(*calls)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["file", "rename", "folder"]


@pytest.mark.parametrize(
    ("name", "reason", "is_told"),
    [("", errno.EINVAL, False), ("", errno.EIO, True), ("file", errno.EINVAL, True)],
)
def test_only_a_folder_may_be_one_that_cannot_be_synced(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    reason: int,
    is_told: bool,
) -> None:
    (tmp_path / "file").touch()

    def refuse(descriptor: int) -> None:
        raise OSError(reason, "no fsync here")

    monkeypatch.setattr(os, "fsync", refuse)
    with (
        pytest.raises(OSError, match="no fsync")
        if is_told
        else contextlib.nullcontext()
    ):
        sync(tmp_path / name)


def test_what_is_written_whole_is_read_and_hashed(tmp_path: Path) -> None:
    large = bytes(range(256)) * 8192  # two pieces of what is hashed at once
    for name, content in (("bytes", large), ("text", "a\nü\udcff")):
        write_whole(tmp_path / name, content)
    assert read_bytes(tmp_path / "bytes") == large
    assert read_bytes(tmp_path / "text") == b"a\n\xc3\xbc\\udcff"
    both = hashlib.sha256(large + b"a\n\xc3\xbc\\udcff").hexdigest()
    assert sha256_of(tmp_path / "bytes", tmp_path / "text") == both


def test_an_excel_table_has_its_columns(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    pd.DataFrame({"id ": ["a", "b"], "age": [31, None]}).to_excel(
        tmp_path / "t.xlsx", index=False
    )
    rows = read_rows(tmp_path / "t.xlsx", required=("id", "age"))
    assert [row["id"] for row in rows] == ["a", "b"]
    with pytest.raises(DatasetError, match="no column 'sex'"):
        read_rows(tmp_path / "t.xlsx", required=("id", "sex"))


@pytest.mark.parametrize(("merged", "is_refused"), [("B2:B3", True), ("A1:B1", False)])
def test_merged_cells_below_the_titles_of_an_excel_table_are_refused(
    merged: str, is_refused: bool, tmp_path: Path
) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (("id", "group"), ("a", "control"), ("b", "patient")):
        book.active.append(row)
    book.active.merge_cells(merged)
    book.save(tmp_path / "t.xlsx")
    refusal = contextlib.nullcontext()
    if is_refused:
        refusal = pytest.raises(DatasetError, match=merged)
    with refusal:
        read_rows(tmp_path / "t.xlsx", required=("id",))


def test_what_was_being_written_is_removed_and_what_a_link_leads_to_stays(
    tmp_path: Path,
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "file").touch()
    (tmp_path / ".trinat-1.tmp").touch()
    (tmp_path / ".trinat-2.tmp").mkdir()
    (tmp_path / ".trinat-2.tmp" / "half").touch()
    (tmp_path / ".trinat-3.tmp").symlink_to(own)
    remove_leftovers(tmp_path, tmp_path / "none")
    assert [path.name for path in tmp_path.iterdir()] == ["own"]
    assert (own / "file").exists()


def test_leftovers_that_may_still_be_written_are_spared(tmp_path: Path) -> None:
    old = tmp_path / ".trinat-0.tmp"
    new = tmp_path / ".trinat-1.tmp"
    for file in (old, new):
        file.touch()
    os.utime(old, (0, 0))
    remove_leftovers(tmp_path, older_than_s=60)
    assert not old.exists()
    assert new.exists()


def test_a_table_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"id\n\xff\n")
    with pytest.raises(DatasetError, match="not a table in UTF-8"):
        read_rows(tmp_path / "t.csv", required=("id",))


def test_a_table_has_no_formulas_and_one_line_a_row(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    write_tsv(path, ("id", "value"), [("=1+1", -1.5), ("a\tb\nc", None), ("ü", "2")])
    assert path.read_text("utf-8") == "id\tvalue\n'=1+1\t-1.5\na b c\tn/a\nü\t2\n"


@pytest.mark.parametrize(("name", "mark"), [("t.csv", ","), ("t.tsv", "\t")])
def test_rows_of_a_table_are_read_with_what_is_not_known_empty(
    tmp_path: Path, name: str, mark: str
) -> None:
    path = tmp_path / name
    path.write_text(f"\ufeffid{mark}age\na{mark} 31 \nb{mark}N/A\nc\n", "utf-8")
    expected = [
        {"id": "a", "age": "31"},
        {"id": "b", "age": ""},
        {"id": "c", "age": ""},
    ]
    assert read_rows(path, required=("id",)) == expected
    with pytest.raises(DatasetError, match="no column 'sex'"):
        read_rows(path, required=("id", "sex"))


@pytest.mark.parametrize("above", ["\n", "|\n|\n", "sep=|\n", "sep=|\r\n"])
@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_empty_rows_and_the_separator_above_the_titles_are_left_out(
    above: str, mark: str, tmp_path: Path
) -> None:
    text = f"{above}id|age\na|31\n"
    (tmp_path / "t.csv").write_text(text.replace("|", mark))
    table = read_table(tmp_path / "t.csv")
    assert table.titles == ("id", "age")
    assert table.rows == (TableRow(above.count("\n") + 2, ("a", "31")),)


def test_the_separator_above_a_single_title_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("sep=;\nid\na\n")
    assert read_table(tmp_path / "t.csv").titles == ("id",)


def test_an_empty_row_above_the_titles_of_an_excel_table_is_left_out(
    tmp_path: Path,
) -> None:
    pytest.importorskip("openpyxl")
    pd.DataFrame({"id": ["a"]}).to_excel(tmp_path / "t.xlsx", index=False, startrow=1)
    assert read_rows(tmp_path / "t.xlsx", required=("id",)) == [{"id": "a"}]


def test_an_empty_table_lacks_its_columns(tmp_path: Path) -> None:
    (tmp_path / "t.csv").touch()
    assert read_rows(tmp_path / "t.csv", required=()) == []
    with pytest.raises(DatasetError, match="no column 'id'"):
        read_rows(tmp_path / "t.csv", required=("id",))


def fill(folder: Path, *, until: str) -> None:
    with new_folder(folder) as new:
        for name in ("a", "b"):
            (new / name).touch()
            if name == until:
                raise ValueError("half done")


def test_a_new_folder_is_whole_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="half done"):
        fill(tmp_path / "new", until="a")
    assert names(tmp_path) == []
    fill(tmp_path / "new", until="")
    assert sorted(names(tmp_path / "new")) == ["a", "b"]


def test_a_folder_that_holds_anything_is_not_taken_for_a_new_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(OutputError, match="exists already"):
        fill(tmp_path, until="")


@pytest.mark.parametrize(("renamings", "left"), [(0, "old"), (1, "old"), (2, "new")])
def test_an_interrupt_leaves_the_old_folder_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renamings: int, left: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "old").touch()
    replace = Path.replace
    done = []

    def interrupted(self: Path, target: Path) -> Path:
        done.append(target)
        if len(done) == renamings + 1:
            raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    stopped = contextlib.suppress(KeyboardInterrupt)
    with stopped, new_folder(folder, replacing=True) as new:
        (new / "new").touch()
    assert names(tmp_path) == ["model"]
    assert names(folder) == [left]


def test_a_file_is_not_replaced_by_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with (
        pytest.raises(OutputError, match="exists already"),
        new_folder(tmp_path / "a", replacing=True),
    ):
        pass
    assert names(tmp_path) == ["a"]
