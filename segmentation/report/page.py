"""Reports as one HTML file each: no network, all escaped, a policy that names its scripts."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2

__all__ = ["UNDEFINED", "Cell", "Column", "Table", "digest", "number", "render"]

# What the page's script sorts last, whichever way.
UNDEFINED = "none"


@dataclass(frozen=True)
class Column:
    """`pick` offers the column's values as a choice above the table; `hint` explains its title."""

    title: str
    numeric: bool = False
    hint: str = ""
    pick: bool = False


@dataclass(frozen=True)
class Cell:
    """`order` sorts where the text does not; `shade` is a background from 0 (low) to 20."""

    text: str
    order: float | str | None = None
    shade: int | None = None
    hint: str = ""


@dataclass(frozen=True)
class Table:
    id: str
    caption: str
    columns: tuple[Column, ...]
    rows: list[list[Cell]] = field(default_factory=list)
    note: str = ""
    kind: str = ""  # "heat": narrow cells, upright titles

    @property
    def long(self) -> bool:
        return len(self.rows) > 12

    def choices(self, column: int) -> list[str]:
        return list(dict.fromkeys(row[column].text for row in self.rows))


def number(value: float | None, digits: int = 3, *, unit: str = "", sign: bool = False) -> Cell:
    """A number for people, and its full value for sorting; undefined ones say so."""
    if value is None or math.isnan(value):
        return Cell("–", UNDEFINED, hint="undefined")
    text = f"{value:+,.{digits}f}" if sign else f"{value:,.{digits}f}"
    return Cell(f"{text.replace('-', '−')}{unit}", float(value))


def render(template: str, **context: Any) -> str:
    """The page as text; its policy allows this style sheet, these scripts, embedded images only."""
    style, script = _text("page.css"), _text("page.js")
    policy = "; ".join(
        (
            "default-src 'none'",
            "img-src data:",
            f"style-src '{digest(style)}'",
            f"script-src '{digest(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    page: str = (
        _environment()
        .get_template(template)
        .render(**context, style=style, script=script, policy=policy)
    )
    return page


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("segmentation.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data"] = _data
    return environment


def _data(value: Any) -> Any:
    """JSON for a data block: no sequence of it can end the block."""
    import markupsafe

    text = json.dumps(value, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")
    return markupsafe.Markup(text)


def _text(name: str) -> str:
    return (resources.files("segmentation.report") / "templates" / name).read_text("utf-8")


def digest(text: str) -> str:
    """How a content policy names this style sheet or script."""
    found = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(found).decode('ascii')}"
