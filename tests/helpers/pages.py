"""Tables of an HTML page as a reader sees them."""

from __future__ import annotations

import re


def rows_of(page: str, table: str = "") -> list[list[str]]:
    """Return the cells of the first table's body, or of the table with this id."""
    start = page.index(f'id="{table}"') if table else 0
    body = page[start:].partition("<tbody>")[2].partition("</tbody>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [[re.sub(r"<[^>]+>", "", cell).strip() for cell in row] for row in cells]
