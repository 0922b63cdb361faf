"""Regular files for input, atomic writes for output.

Files from users are read, and results that users keep are written, by these functions.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from trinat.segmentation.errors import (
    ConfigError,
    DatasetError,
    DiskFullError,
    InputError,
    OutputError,
    is_disk_full,
    one_line,
    summarise,
)
from trinat.segmentation.io.cells import MISSING, NO_NAME
from trinat.segmentation.timing import stage

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
# The package that pandas needs to read files with each suffix.
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
    errno.EXDEV: "a folder in the output folder is on another disk: put it on the same",
}


def open_regular(path: str | Path) -> io.BufferedReader:
    """Open a regular file for reading, following links; never block on a pipe or read a device.

    Raises an OSError, as `open` does, for a file that is missing or not readable, and an InputError
    for a folder or any other file that is not regular.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ENXIO:  # raised for a socket
            raise
        raise _not_regular(path) from None
    # Check the open file, not its name: the name could be exchanged between two checks.
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise InputError("is a folder", where=path, remedy="name a file in it")
    raise _not_regular(path)


def _not_regular(path: str | Path) -> InputError:
    """Return the error to raise for a pipe, a socket or a device."""
    return InputError(
        "not a regular file", where=path, remedy="copy it to a file first"
    )


def read_bytes(path: str | Path) -> bytes:
    """Return the bytes of a regular file; raise the errors of `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def read_text(path: str | Path, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Return the text of a regular file, with every line ending converted to a newline character.

    Raises the errors of `open_regular`, and UnicodeDecodeError.
    """
    with io.TextIOWrapper(open_regular(path), encoding, errors) as file:
        return file.read()


def absolute(path: str | Path) -> Path:
    """Return the path as absolute, without `..`; links are kept."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links


def is_broken_link(path: Path) -> bool:
    """Return True for a symbolic link to a missing file, such as a dropped file of git-annex."""
    # Unlike `Path.exists`, these return False instead of raising if the path cannot be checked.
    return os.path.islink(path) and not os.path.exists(path)  # noqa: PTH110, PTH114


def given_path(path: str | os.PathLike[str]) -> Path:
    """Return a path that a user gave; raise ConfigError for "", which is the current folder."""
    if not os.fspath(path):
        raise ConfigError("a path is empty", remedy="name a file or folder")
    return Path(path)


def files_of_scan(path: Path) -> tuple[Path, ...]:
    """Return the files of a scan, which need not exist: the file itself, or header and image.

    `path` may be either file of a pair. The other one's suffix is in upper case if its own is.
    """
    suffix = path.suffix.lower()
    if suffix not in (".hdr", ".img"):
        return (path,)
    other = ".img" if suffix == ".hdr" else ".hdr"
    partner = path.with_suffix(other.upper() if path.suffix.isupper() else other)
    return (path, partner) if suffix == ".hdr" else (partner, path)


def sha256_of(*paths: Path) -> str:
    """Return the SHA-256 of one or more regular files, in hexadecimal.

    Files are read in blocks of 1 MiB. Several paths give one digest of their concatenated bytes, so
    that an Analyze pair has one digest. Raises an InputError for anything but a regular file.
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
    """Yield the path of an empty temporary file, and rename it to `path` if the block succeeds.

    For libraries that need a path (h5py, safetensors). The temporary file is in the same folder and
    is removed after a failure. A process that is killed may leave a file `.trinat-*.tmp`. Raises an
    OutputError if the file cannot be written.
    """
    final = Path(path)
    # The temporary name does not contain the final one, so that names of any legal length work.
    temporary = final.parent / f".trinat-{secrets.token_hex(8)}.tmp"
    try:
        # Not tempfile: it creates files with mode 0600, whatever the umask is.
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
        # Without this, a power cut can undo the renaming.
        sync(final.parent)
    except OSError as error:
        # An OSError about another file, raised in the block, is passed on unchanged.
        ours = (None, str(temporary), str(final.parent))
        if error.errno is None or error.filename not in ours:
            raise
        raise not_written(final, error) from error


@contextmanager
def new_folder(path: Path, *, replacing: bool = False) -> Iterator[Path]:
    """Yield an empty temporary folder, and rename it to `path` if the block succeeds.

    With `replacing`, a folder that exists is replaced as a whole; after a failure or an interrupt
    it is there as before. A process that is killed may leave folders `.trinat-*.tmp`. Raises an
    OutputError if `path` is a file or, without `replacing`, a folder that is not empty.
    """
    is_free = path.is_dir() and (replacing or not any(path.iterdir()))
    if os.path.lexists(path) and not is_free:
        raise OutputError("exists already", where=path, remedy="choose another name")
    new = path.parent / f".trinat-{secrets.token_hex(8)}.tmp"
    old = path.parent / f".trinat-{secrets.token_hex(8)}.tmp"
    try:
        new.mkdir(parents=True)
        try:
            yield new
            for written in new.rglob("*"):
                sync(written)
            if replacing and path.exists():
                path.replace(old)
            new.replace(path)
        finally:
            if old.exists() and not path.exists():
                old.replace(path)
            shutil.rmtree(new, ignore_errors=True)
        sync(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise not_written(path, error) from error


def not_written(path: Path, error: OSError) -> OutputError:
    """Return the error to raise after an OSError while a file or folder was written.

    It is a DiskFullError if the disk or a quota is full, else an OutputError. Its remedy depends on
    the reason.
    """
    kind = DiskFullError if is_disk_full(error) else OutputError
    remedy = "see that its folder is there and sound"
    if error.errno is not None:
        remedy = _REMEDIES.get(error.errno, remedy)
    return kind(f"cannot be written ({error.strerror})", where=path, remedy=remedy)


def open_to_append(path: Path) -> io.FileIO:
    """Open a file for `append_whole`, creating it if it does not exist.

    The file is unbuffered: bytes that a failure leaves in a buffer would be written later.
    """
    return path.open("a+b", buffering=0)


def append_whole(file: io.FileIO, content: bytes, path: Path) -> None:
    """Append bytes to an open file; after a failure the file is as it was before.

    `file` is the result of `open_to_append`; `path` is its path, for messages. The bytes are on the
    disk when this returns. No other process may write to the file at the same time. Raises an
    OutputError after a failure.
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


def remove_leftovers(*folders: Path, older_than_s: float = 0) -> None:
    """Remove temporary files and folders that killed processes left in `folders`.

    Only names that `atomic_path` and `new_folder` make (`.trinat-*.tmp`) are removed. Missing
    folders are ignored. No process may be writing there, unless `older_than_s` is given: then files
    that were modified in the last `older_than_s` seconds are not removed.
    """
    latest = time.time() - older_than_s
    for folder in folders:
        for left in folder.glob(".trinat-*.tmp"):
            with contextlib.suppress(FileNotFoundError):
                if older_than_s and left.lstat().st_mtime > latest:
                    continue
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


@contextmanager
def atomic_write(path: str | Path) -> Iterator[BinaryIO]:
    """Yield a binary file that becomes `path` if the block succeeds, and is removed otherwise."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        yield file


@contextmanager
def atomic_text(path: str | Path) -> Iterator[TextIO]:
    """Yield a text file in UTF-8 that becomes `path` if the block succeeds.

    After a failure it is removed. Line endings are written as given, as the csv module needs. Parts
    of file names that are not UTF-8 are escaped.
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
    """Write text (as `atomic_text` does) or bytes to a file, atomically.

    An existing file is replaced only when the new one is complete.
    """
    if isinstance(content, str):
        content = content.encode("utf-8", "backslashreplace")
    with atomic_write(path) as file:
        file.write(content)


def write_json(path: str | Path, content: Any, *, indent: int = 1) -> None:
    """Write data as JSON with a final line break to a file, atomically, as `write_whole` does."""
    write_whole(path, json.dumps(content, indent=indent) + "\n")


def write_tsv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a tab-separated table, atomically.

    None is written as n/a. A quote is put before text that a spreadsheet would run as a formula.
    """
    with atomic_text(path) as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(header)
        writer.writerows([_tsv_cell(value) for value in row] for row in rows)


def _tsv_cell(value: Any) -> str:
    """Format a value as a table cell: n/a for None, and text without tabs and line breaks."""
    if value is None:
        return "n/a"
    if not isinstance(value, str):
        return str(value)
    return spreadsheet_safe(cell_text(value))


def cell_text(text: str) -> str:
    """Return a text as `write_tsv` writes it: a space for each character that is not printable."""
    return "".join(ch if ch.isprintable() else " " for ch in text)


def spreadsheet_safe(text: str) -> str:
    """Put a quote before text that a spreadsheet would run as a formula.

    Numbers stay as they are, whatever their sign.
    """
    if _NUMBER.fullmatch(text):
        return text
    if text.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{text}"
    return text


@dataclass(frozen=True)
class TableRow:
    """A table row: its row number in the file, where the header is row 1, and its cells as text."""

    number: int
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table of text with the titles of its columns and its rows below the header.

    No cell is converted to a number, a date or a missing value.
    """

    titles: tuple[str, ...]
    rows: tuple[TableRow, ...]


def read_table(path: Path) -> Table:
    """Read a .csv, .tsv or Excel table with a header; each row has one cell per column.

    The separator is the tab if the header has one, else comma or semicolon. Between tabs, quotes
    are ordinary characters, as in BIDS. Empty rows, empty cells beyond the header, and Excel's line
    `sep=;` above it are dropped. Raises a DatasetError if the file is no table or a row has too few
    or too many cells.
    """
    table = _read_uneven_rows(path)
    width = len(table.titles)
    rows = []
    problems = []
    for row in table.rows:
        if not any(row.cells):
            continue
        if len(row.cells) < width or any(row.cells[width:]):
            problems.append(_wrong_width(row, width))
            continue
        for title, cell in zip(table.titles, row.cells, strict=False):
            if "\n" in cell or "\r" in cell:
                problems.append(f"row {row.number}, {title}: a cell of several lines")
        rows.append(TableRow(row.number, row.cells[:width]))
    _raise_for_problems(problems, path)
    return Table(table.titles, tuple(rows))


def read_rows(
    path: Path, *, required: tuple[str, ...], names: tuple[str, ...] = ()
) -> list[dict[str, str]]:
    """Read the rows of a .csv, .tsv or Excel table as dictionaries from column title to cell.

    `required` are titles that the table must have. Words for a missing value, and missing cells at
    the end of a row, become "". In the columns `names` only n/a means missing, because NA can be a
    name. Raises a DatasetError if the file is no table, if a required column is missing, or if a
    row has more cells than the header, as an unquoted decimal comma makes.
    """
    table = _read_uneven_rows(path)
    for name in required:
        if name not in table.titles:
            raise DatasetError(f"has no column {name!r}", where=path)
    rows = []
    problems = []
    width = len(table.titles)
    for row in table.rows:
        if any(row.cells[width:]):
            problems.append(_wrong_width(row, width))
        cells = dict.fromkeys(table.titles, "")
        for title, cell in zip(table.titles, row.cells, strict=False):
            missing = NO_NAME if title in names else MISSING
            cells[title] = "" if cell.lower() in missing else cell
        rows.append(cells)
    _raise_for_problems(problems, path)
    return rows


def _wrong_width(row: TableRow, width: int) -> str:
    """Return a sentence on a row with more or fewer cells than the `width` of the header."""
    return f"row {row.number}: {len(row.cells)} cells under {width} titles"


def _raise_for_problems(problems: Sequence[str], path: Path) -> None:
    """Raise a DatasetError with the first ones of `problems`, if there are any."""
    if problems:
        raise DatasetError(
            summarise(problems),
            where=path,
            remedy="put the titles in the first row, complete the other rows, close quotes, and "
            "put cells with a separator in quotes",
        )


def _read_uneven_rows(path: Path) -> Table:
    """Read a table whose rows may have more or fewer cells than the header.

    The header is the first row that is neither empty nor Excel's line `sep=;`.
    """
    read = _rows_of_sheet if path.suffix.lower() in _EXCEL else _rows_of_text
    rows: list[TableRow] = []
    for number, line in read(path):
        row = TableRow(number, tuple(cell.strip() for cell in line))
        if rows or _may_be_header("".join(row.cells)):
            rows.append(row)
    if not rows:
        return Table((), ())
    return Table(rows[0].cells, tuple(rows[1:]))


def _may_be_header(line: str) -> bool:
    """Return False for the text of a row that is empty, or Excel's line `sep=;`."""
    return bool(line.strip(" \t\r,;")) and not line.lower().startswith("sep=")


def _rows_of_text(path: Path) -> list[tuple[int, list[str]]]:
    """Return (line number, cells) for each non-empty line of a UTF-8 text file.

    Raises a DatasetError if the file is not a table in UTF-8.
    """
    try:
        text = read_bytes(path).decode("utf-8-sig")
        if "\0" in text:
            raise csv.Error("it has NUL bytes")
        header = next(filter(_may_be_header, text.split("\n")), "")
        if "\t" in header:
            return _rows_between_tabs(text)
        # The csv module rather than pandas, which fills short rows without a warning.
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


def _rows_between_tabs(text: str) -> list[tuple[int, list[str]]]:
    """Return (line number, cells) for each non-empty line of a tab-separated text.

    Quotes are ordinary characters. Quotes around a whole cell, as spreadsheets and `write_tsv`
    write them, are removed.
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


def _rows_of_sheet(path: Path) -> list[tuple[int, list[str]]]:
    """Return (row number, cells as text) for each row of the first sheet of an Excel file.

    Raises a DatasetError if the file is no Excel table, if cells below the titles are merged, or if
    a package is missing.
    """
    import pandas as pd

    content = io.BytesIO(read_bytes(path))
    package = _EXCEL[path.suffix.lower()]
    try:
        merged = []
        if package == "openpyxl":
            # openpyxl reports merged cells only if it reads the whole file.
            workbook = pd.ExcelFile(content, engine_kwargs={"read_only": False})
            merged = list(workbook.book.worksheets[0].merged_cells.ranges)
        else:
            workbook = pd.ExcelFile(content)
        table = pd.read_excel(workbook, dtype=str, na_filter=False, header=None)
    except ImportError:
        remedy = (
            f"pip install {package} (from a clone: scripts/install excel), or save the "
            "table as CSV"
        )
        raise DatasetError(
            f"needs the package {package}", where=path, remedy=remedy
        ) from None
    except Exception as error:  # Each package raises its own errors.
        raise DatasetError(
            f"not an Excel table ({one_line(str(error))})", where=path
        ) from None
    lines = []
    for number, record in enumerate(table.itertuples(index=False), start=1):
        lines.append((number, [str(cell) for cell in record]))
    header = next((number for number, cells in lines if any(cells)), 0)
    # Only the first of merged cells has their value.
    for area in merged:
        if area.max_row > header:
            raise DatasetError(
                f"the cells {area.coord} are merged",
                where=path,
                remedy="unmerge them, and fill in each cell",
            )
    return lines


def sync(path: Path) -> None:
    """Wait until the content of a file, or the list of names in a folder, is on the disk.

    Without this, a power failure may lose a file that has already been renamed. File systems that
    cannot sync folders are accepted; every other OSError is raised.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder; a renaming is safe there without it.
        cannot_sync = error.errno in (errno.EINVAL, errno.EBADF)
        if not (path.is_dir() and cannot_sync):
            raise
    finally:
        os.close(descriptor)
