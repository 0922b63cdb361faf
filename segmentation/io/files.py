"""Inputs are regular files, outputs appear whole or not at all: all files go through here."""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from trinat.segmentation.errors import (
    DatasetError,
    DiskFullError,
    InputError,
    OutputError,
    is_disk_full,
    one_line,
)
from trinat.segmentation.timing import stage

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_UNKNOWN = frozenset({"", "n/a", "nan", "na", "unknown"})
_NO_NAME = frozenset({"", "n/a"})
# The package that pandas reads each with.
_EXCEL = {".xls": "xlrd", ".xlsx": "openpyxl"}
_NOT_WRITABLE = "choose a folder that you may write to"
_NO_FOLDER = "create the folder first"
_REMEDIES = {
    errno.ENOSPC: "free some space on that disk and run again",
    errno.EDQUOT: "free some of your quota on that disk and run again",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f) or write elsewhere",
    errno.EACCES: _NOT_WRITABLE,
    errno.EPERM: _NOT_WRITABLE,
    errno.EROFS: _NOT_WRITABLE,
    errno.ENOENT: _NO_FOLDER,
    errno.ENOTDIR: _NO_FOLDER,
    errno.EISDIR: "choose a name that is not a folder's",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def open_regular(path: str | Path) -> io.BufferedReader:
    """Open a regular file to read, also through links; never wait for a pipe, never read a device.

    A file that is missing or not readable raises an OSError, as `open` does; a folder and whatever
    else is no file raises an InputError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ENXIO:  # of a socket
            raise
        raise _not_regular(path) from None
    # The open file is asked, not its name: between two looks at a name it may be exchanged.
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise InputError("is a folder", where=path, remedy="name a file in it")
    raise _not_regular(path)


def _not_regular(path: str | Path) -> InputError:
    """What to raise for a pipe, a socket or a device."""
    return InputError(
        "not a regular file", where=path, remedy="copy it to a file first"
    )


def read_bytes(path: str | Path) -> bytes:
    """The bytes of a regular file; raises what `open_regular` does."""
    with open_regular(path) as file:
        return file.read()


def read_text(path: str | Path, encoding: str = "utf-8", errors: str = "strict") -> str:
    """The text of a regular file; every line ends with a newline character alone."""
    with io.TextIOWrapper(open_regular(path), encoding, errors) as file:
        return file.read()


def sha256_of(*paths: Path) -> str:
    """SHA-256 over the bytes of regular files, one after the other, in hexadecimal digits.

    Files are read in pieces of 1 MiB. InputError for what is not a regular file. The digest of two
    paths is that of their bytes in this order, so that an Analyze pair has one digest.
    """
    digest = hashlib.sha256()
    with stage("checksum"):
        for path in paths:
            with open_regular(path) as file:
                while block := file.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield the path of an empty temporary file that becomes `path` if the block succeeds.

    For libraries that insist on a path (h5py, safetensors). The temporary file is in the
    same folder and is gone after a failure; a killed process may leave a `.trinat-*.tmp`.
    """
    final = Path(path)
    # The name's own length does not count, so any legal name can be written.
    temporary = final.parent / f".trinat-{secrets.token_hex(8)}.tmp"
    try:
        # Not tempfile: its files are 0600 whatever the umask says.
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        descriptor = os.open(temporary, flags, 0o666)
        os.close(descriptor)
        try:
            yield temporary
            sync(temporary)
            temporary.replace(final)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        # Without this a power cut can undo the renaming.
        sync(final.parent)
    except OSError as error:
        # An error about another file, raised in the block, is not ours to explain.
        ours = (None, str(temporary), str(final.parent))
        if error.errno is None or error.filename not in ours:
            raise
        raise not_written(final, error) from error


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder that becomes `path` if the block succeeds.

    OutputError for a file of this name, and for a folder that holds anything.
    """
    is_empty_folder = path.is_dir() and not any(path.iterdir())
    if os.path.lexists(path) and not is_empty_folder:
        raise OutputError("is there already", where=path, remedy="choose another name")
    temporary = path.parent / f".trinat-{secrets.token_hex(8)}.tmp"
    try:
        temporary.mkdir(parents=True)
        try:
            yield temporary
            temporary.replace(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise not_written(path, error) from error


def not_written(path: Path, error: OSError) -> OutputError:
    """What to raise where a file or folder could not be written, for this reason.

    A DiskFullError where room or a quota is used up; with what to do, where the reason says it.
    """
    kind = DiskFullError if is_disk_full(error) else OutputError
    remedy = "see that its folder is there and sound"
    if error.errno is not None:
        remedy = _REMEDIES.get(error.errno, remedy)
    return kind(f"cannot be written ({error.strerror})", where=path, remedy=remedy)


def open_to_append(path: Path) -> io.FileIO:
    """A file for `append_whole`, made if it is not there.

    Without a buffer: what a failure leaves in one would be written later.
    """
    return path.open("a+b", buffering=0)


def append_whole(file: io.FileIO, content: bytes, path: Path) -> None:
    """Append to the file at `path`; after a failure it is as it was.

    The bytes are on the disk when this returns. No other may write to the file meanwhile.
    """
    end = file.seek(0, os.SEEK_END)
    try:
        left = memoryview(content)
        while left:
            left = left[file.write(left) :]
        os.fsync(file.fileno())
    except OSError as error:
        with contextlib.suppress(OSError):
            file.truncate(end)
        raise not_written(path, error) from error


def remove_leftovers(*folders: Path) -> None:
    """Remove what killed processes were writing there, files or folders; none may be at work.

    Only names as `atomic_write` gives them (`.trinat-*.tmp`) are removed. A folder that does not
    exist is as an empty one.
    """
    for folder in folders:
        for left in folder.glob(".trinat-*.tmp"):
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


@contextmanager
def atomic_write(path: str | Path) -> Iterator[BinaryIO]:
    """Yield a binary file that becomes `path` if the block succeeds, and else never existed."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        yield file


@contextmanager
def atomic_text(path: str | Path) -> Iterator[TextIO]:
    """As `atomic_write`, for UTF-8 text; line ends are written as given (fit for csv).

    What a file name has that is no UTF-8 is escaped.
    """
    with (
        atomic_path(path) as temporary,
        temporary.open(
            "w",
            encoding="utf-8",
            errors="backslashreplace",
            newline="",
        ) as file,
    ):
        yield file


def write_whole(path: str | Path, content: str | bytes) -> None:
    """A file of these bytes, or of this text as `atomic_text` writes it.

    The file is replaced if it is there; until the new one is complete the old one stays.
    """
    if isinstance(content, str):
        content = content.encode("utf-8", "backslashreplace")
    with atomic_write(path) as file:
        file.write(content)


def write_tsv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table of tab-separated values, whole or not at all.

    What is None is written as n/a; no cell is a formula to a spreadsheet.
    """
    with atomic_text(path) as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(header)
        writer.writerows([_tsv_cell(value) for value in row] for row in rows)


def _tsv_cell(value: Any) -> str:
    """A value as a cell: n/a for None, and text without what would end a cell."""
    if value is None:
        return "n/a"
    if not isinstance(value, str):
        return str(value)
    printable = "".join(ch if ch.isprintable() else " " for ch in value)
    return spreadsheet_safe(printable)


def spreadsheet_safe(text: str) -> str:
    """Text that a spreadsheet would run as a formula, made plain text by a leading quote.

    A number is none, whatever its sign.
    """
    if _NUMBER.fullmatch(text):
        return text
    if text.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{text}"
    return text


@dataclass(frozen=True)
class TableRow:
    """A row of a table: its number, where the titles are row 1, and its cells as they stand."""

    number: int
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table as text: no cell is taken for a number, a date or a missing value."""

    titles: tuple[str, ...]
    rows: tuple[TableRow, ...]


def read_table(path: Path) -> Table:
    """A .csv, .tsv or Excel table with a row of titles; each row has a cell for each title.

    Tabs separate cells if there are any among the titles, else commas or semicolons. Quotes mean
    nothing between tabs, as BIDS has it. Empty rows, and empty cells beyond the titles, are left
    out. DatasetError for what is no table, and for a row with too few or too many cells.
    """
    table = _read_ragged(path)
    width = len(table.titles)
    rows = []
    for row in table.rows:
        if not any(row.cells):
            continue
        if len(row.cells) < width or any(row.cells[width:]):
            raise _wrong_width(path, row, width)
        for title, cell in zip(table.titles, row.cells, strict=False):
            if "\n" in cell or "\r" in cell:
                raise DatasetError(
                    f"row {row.number}, {title}: a cell of several lines",
                    where=path,
                    remedy="close its quotes, and put it on one line",
                )
        rows.append(TableRow(row.number, row.cells[:width]))
    return Table(table.titles, tuple(rows))


def read_rows(
    path: Path, *, required: tuple[str, ...], names: tuple[str, ...] = ()
) -> list[dict[str, str]]:
    """Rows of a .csv, .tsv or Excel table with a header; what is not known is an empty string.

    Cells that a row lacks are empty. In the columns `names` only n/a is not known: somebody may be
    called NA. Raises DatasetError for what is no table, for one without a required column, and for
    a row with more cells than titles, as a comma in a number makes it.
    """
    table = _read_ragged(path)
    for name in required:
        if name not in table.titles:
            raise DatasetError(f"has no column {name!r}", where=path)
    rows = []
    width = len(table.titles)
    for row in table.rows:
        if any(row.cells[width:]):
            raise _wrong_width(path, row, width)
        cells = dict.fromkeys(table.titles, "")
        for title, cell in zip(table.titles, row.cells, strict=False):
            unknown = _UNKNOWN
            if title in names:
                unknown = _NO_NAME
            cells[title] = "" if cell.lower() in unknown else cell
        rows.append(cells)
    return rows


def _wrong_width(path: Path, row: TableRow, width: int) -> DatasetError:
    return DatasetError(
        f"row {row.number}: {len(row.cells)} cells under {width} titles",
        where=path,
        remedy="complete the row, or put a cell with a separator in it in quotes",
    )


def _read_ragged(path: Path) -> Table:
    """The table in a file, whose rows may have more or fewer cells than titles."""
    read = _sheet if path.suffix.lower() in _EXCEL else _lines_of_text
    rows = []
    for number, line in read(path):
        rows.append(TableRow(number, tuple(cell.strip() for cell in line)))
    if not rows:
        return Table((), ())
    return Table(rows[0].cells, tuple(rows[1:]))


def _lines_of_text(path: Path) -> list[tuple[int, list[str]]]:
    """Numbers and cells of the lines of a file in UTF-8 that are not empty."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
        if "\0" in text:
            raise csv.Error("it has NUL bytes")
        header = text.partition("\n")[0]
        if "\t" in header:
            return _between_tabs(text)
        # csv, not pandas: that fills rows that are too short without a word.
        by_comma = list(csv.reader([header], delimiter=","))
        by_semicolon = list(csv.reader([header], delimiter=";"))
        delimiter = ","
        if by_semicolon and len(by_semicolon[0]) > len(by_comma[0]):
            delimiter = ";"
        reader = csv.reader(
            io.StringIO(text, newline=""), delimiter=delimiter, strict=True
        )
        lines = []
        number = 1
        for cells in reader:
            if cells:
                lines.append((number, cells))
            number = reader.line_num + 1
        return lines
    except (UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(
            f"not a table in UTF-8 ({error})",
            where=path,
            remedy="save it as text in UTF-8",
        ) from None


def _between_tabs(text: str) -> list[tuple[int, list[str]]]:
    """Numbers and cells of lines whose cells are between tabs.

    A quote is a character like others. Where it stands around a whole cell, as spreadsheets and
    `write_tsv` put it, the cell is what is inside.
    """
    lines = []
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text), start=1):
        if not line:
            continue
        cells = line.split("\t")
        if max(len(cell) for cell in cells) > csv.field_size_limit():
            raise csv.Error("a cell is too long")
        for place, cell in enumerate(cells):
            quoted = re.fullmatch(r'"((?:[^"]|"")*)"', cell.strip())
            if quoted is not None:
                cells[place] = quoted[1].replace('""', '"')
        lines.append((number, cells))
    return lines


def _sheet(path: Path) -> list[tuple[int, list[str]]]:
    """Numbers and cells of the rows of an Excel file's first sheet, as text."""
    import pandas as pd

    content = io.BytesIO(read_bytes(path))
    package = _EXCEL[path.suffix.lower()]
    try:
        table = pd.read_excel(content, dtype=str, na_filter=False, header=None)
    except ImportError:
        remedy = f"pip install {package}, or save the table as CSV"
        raise DatasetError(
            f"needs the package {package}", where=path, remedy=remedy
        ) from None
    except Exception as error:  # Each package has errors of its own.
        raise DatasetError(
            f"not an Excel table ({one_line(str(error))})", where=path
        ) from None
    lines = []
    for number, record in enumerate(table.itertuples(index=False), start=1):
        lines.append((number, [str(cell) for cell in record]))
    return lines


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on the disk.

    Without this a power failure may lose a file that was renamed already. File systems that cannot
    sync folders are accepted; every other OSError is raised.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder; the rename itself stands.
        cannot_sync = error.errno in (errno.EINVAL, errno.EBADF)
        if not (path.is_dir() and cannot_sync):
            raise
    finally:
        os.close(descriptor)
