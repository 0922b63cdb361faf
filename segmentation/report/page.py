"""Pages as one HTML file each: no network, all escaped, a policy that names style and script."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import resources
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2


# Controls but for tab and line break; marks of direction, of no width, and of the order of bytes.
# Joiners are letters' own in some scripts.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)
# What the page's script sorts last in either direction.
UNDEFINED = "none"


@dataclass(frozen=True)
class Cell:
    """`order` sorts where the text does not; `shade` is a background from 0 (low) to 20.

    `kind` is a class of the style sheet. `place` draws where a value is among others: the
    quartiles of these and the value, in percent of their range.
    """

    text: str
    order: float | str | None = None
    shade: int | None = None
    hint: str = ""
    kind: str = ""
    place: tuple[float, float, float, float] | None = None


@dataclass(frozen=True)
class Column:
    """Numbers have `digits`; `pick` offers the values as a choice; `hint` explains the title."""

    title: str
    digits: int | None = None
    hint: str = ""
    pick: bool = False
    sign: bool = False

    @property
    def numeric(self) -> bool:
        return self.digits is not None

    def cell(self, value: Cell | str | float | None) -> Cell:
        if isinstance(value, Cell):
            return value
        if isinstance(value, str):
            return Cell(value)
        return number(value, self.digits or 0, sign=self.sign)


# Columns of a table; one of plain text is its title.
Columns = list[Column | str]


@dataclass(frozen=True)
class Table:
    id: str
    caption: str
    columns: list[Column]
    rows: list[list[Cell]]
    note: str = ""
    kind: str = (
        ""  # "heat": narrow cells, upright titles; "intervals": on a line of their own
    )

    @property
    def long(self) -> bool:
        return len(self.rows) > 12

    def choices(self, column: int) -> list[str]:
        return list(dict.fromkeys(row[column].text for row in self.rows))


def table(
    id: str,
    caption: str,
    columns: Columns,
    rows: Iterable[Sequence[Any]],
    *,
    note: str = "",
    kind: str = "",
) -> Table:
    """A table of plain values, formatted by their columns."""
    known = [
        Column(column) if isinstance(column, str) else column for column in columns
    ]
    cells = [
        [c.cell(value) for c, value in zip(known, row, strict=True)] for row in rows
    ]
    return Table(id, caption, known, cells, note, kind)


def number(
    value: float | None,
    digits: int = 3,
    *,
    unit: str = "",
    sign: bool = False,
    hint: str = "",
) -> Cell:
    """A number for people, and its full value for sorting; undefined ones say so."""
    if value is None or math.isnan(value):
        return Cell("–", UNDEFINED, hint=hint or "undefined")
    text = f"{value:+,.{digits}f}" if sign else f"{value:,.{digits}f}"
    return Cell(f"{text.replace('-', '−')}{unit}", float(value), hint=hint)


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short_name(structure: str) -> str:
    """Left-Cerebral-White-Matter to L Cerebral White Matter; group:cortical to Cortical, all."""
    if structure.startswith("group:"):
        group = structure.removeprefix("group:").replace("-", " ")
        return "All structures" if group == "all" else f"{group.capitalize()}, all"
    for side, letter in (("Left-", "L "), ("Right-", "R ")):
        if structure.startswith(side):
            return letter + structure.removeprefix(side).replace("-", " ")
    return structure.replace("-", " ")


def provenance(started: datetime, command: str, labels: str) -> dict[str, str]:
    """How a page was made, to be shown at its end."""
    return {
        "trinat": version("trinat"),
        "date": started.isoformat(timespec="seconds"),
        "command": command,
        "labels": labels,
    }


def data_uri(kind: str, picture: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode('ascii')}"


def render(
    template: str,
    *,
    style: str = "page.css",
    script: str = "page.js",
    images: str = "data:",
    **context: Any,
) -> str:
    """The page as text; its policy allows this style sheet, this script and these images only."""
    style, script = asset(style), asset(script) if script else ""
    sources = {
        "default-src": "'none'",
        "img-src": images,
        "style-src": _digest(style),
        **({"script-src": _digest(script)} if script else {}),
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    policy = "; ".join(f"{what} {source}" for what, source in sources.items())
    found = _environment().get_template(template)
    return found.render(
        **context, style=style, script=script, policy=policy, version=version("trinat")
    )


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("trinat.segmentation.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters.update(
        data=_data, contents=_contents, png=lambda p: data_uri("png", p)
    )
    return environment


def _visible(value: Any) -> Any:
    """Text whose characters that no one sees, or that turn what follows around, are escaped.

    A file name may have them: the numbers behind it would be shown backwards.
    """
    if not isinstance(value, str) or not _UNSEEN.search(value):
        return value
    # Markup stays markup.
    return type(value)(_UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", value))


def _data(value: Any) -> Any:
    """JSON for a data block: no sequence of it can end the block."""
    import markupsafe

    text = json.dumps(value, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")
    return markupsafe.Markup(text)


def _contents(sections: str) -> list[tuple[str, str]]:
    """Id and title of each section of a page; `data-contents` is a shorter title."""
    found = re.findall(
        r'<section id="([^"]+)"(?: data-contents="([^"]+)")?>\s*<h2>(.*?)</h2>',
        sections,
    )
    return [(id, short or title) for id, short, title in found]


def asset(name: str) -> str:
    """A file of `templates`, as it is."""
    return (
        resources.files("trinat.segmentation.report") / "templates" / name
    ).read_text("utf-8")


def _digest(text: str) -> str:
    """How a content policy names this style sheet or script."""
    found = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(found).decode('ascii')}'"
