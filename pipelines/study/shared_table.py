"""Tables that several people add to: a row is replaced while a lock is held."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from trinat.pipelines.jobs.lock import run_lock
from trinat.segmentation.io.files import (
    cell_text,
    read_rows,
    spreadsheet_safe,
    write_tsv,
)

_PATIENCE_S = 5.0


def replace_row(
    table: Path,
    row: Mapping[str, object],
    *,
    key: Collection[str],
    lock: Path,
    is_kept: bool = True,
) -> None:
    """Write a row to a table, in place of the earlier row with the same cells in the columns `key`.

    `row` maps titles of columns to cells. Other columns, which the user has added, stay. Without
    `is_kept`, the earlier row is only deleted. The whole file is written while the file `lock` is
    locked; if another process holds it, this waits up to five seconds.
    """
    identity = [spreadsheet_safe(cell_text(str(row[title]))) for title in key]
    with run_lock(lock, patience_s=_PATIENCE_S):
        rows: list[dict[str, str]] = []
        if table.exists():
            rows = read_rows(table, required=tuple(key), names=tuple(row))
        earlier: Mapping[str, str] = {}
        kept: list[Mapping[str, object]] = []
        for other in rows:
            if [other[title] for title in key] == identity:
                earlier = other
            else:
                kept.append(other)
        if is_kept:
            kept.append({**earlier, **row})
        titles = dict.fromkeys([*row, *(title for other in rows for title in other)])
        cells = [[other.get(title, "") for title in titles] for other in kept]
        # Empty cells become n/a in the table.
        written = [[None if cell == "" else cell for cell in line] for line in cells]
        write_tsv(table, list(titles), written)
