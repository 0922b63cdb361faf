"""HTML pages of one file each: nothing is loaded, values are escaped, the policy is strict."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from importlib import resources
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from trinat.pipelines.study.record import unit_of
from trinat.segmentation.rendering.pictures import data_uri

if TYPE_CHECKING:
    import jinja2


# Characters that are invisible or change the direction of text: control characters except tab and
# line break, direction marks, characters of zero width, and byte order marks. Joiners are not
# included, because some scripts need them.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)
# Prefixes of names of one side, and how they are shown.
_SIDES = (("Left-", "L "), ("Right-", "R "), ("ctx-lh-", "L "), ("ctx-rh-", "R "))
# Sort key of undefined values: the script of the page sorts them last in either direction.
UNDEFINED = "none"


@dataclass(frozen=True)
class Cell:
    """One cell of a table on a page.

    - `order` is the sort key, if it is not the text. `hint` is shown at the pointer.
    - `shade` is the strength of the background, 0 to 20. `kind` is a class of the style sheet.
    - `link` is the target of a link.
    - `place` draws the value as a dot on a strip, next to a range: the positions of the range's
      lower limit, middle and upper limit (such as quartiles), then of the value, in percent of the
      strip.
    """

    text: str
    order: float | str | None = None
    shade: int | None = None
    hint: str = ""
    kind: str = ""
    link: str = ""
    place: tuple[float, float, float, float] | None = None


@dataclass(frozen=True)
class Column:
    """Column of a table, with the format of its values.

    `digits` is the number of decimals; None for a column of text. `hint` explains the title. With
    `pick` readers can choose one of the column's values to filter rows by. With `sign` positive
    numbers have a plus sign.
    """

    title: str
    digits: int | None = None
    hint: str = ""
    pick: bool = False
    sign: bool = False

    @property
    def numeric(self) -> bool:
        """True if the values are numbers, which are right-aligned."""
        return self.digits is not None

    def cell(self, value: Cell | str | float | None) -> Cell:
        """Return a value as a cell of this column; None is an undefined number.

        Cells and texts are not formatted; numbers get the decimals and the sign of the column.
        """
        if isinstance(value, Cell):
            return value
        if isinstance(value, str):
            return Cell(value)
        return number(value, self.digits or 0, sign=self.sign)


# Columns of a table; a plain text is the title of a text column.
Columns = list[Column | str]
# Columns of a table of records, by the key of their values.
NamedColumns = dict[str, Column | str]


@dataclass(frozen=True)
class Table:
    """Table of a page, with its cells already formatted.

    `id` is the id of the element in the page, and `note` is shown below the table. `kind` is a
    class of the style sheet: "heat" has narrow cells and vertical titles, "intervals" shows
    intervals on a separate line.
    """

    id: str
    caption: str
    columns: list[Column]
    rows: list[list[Cell]]
    note: str = ""
    kind: str = ""

    @property
    def long(self) -> bool:
        """True if the page lets readers filter the rows."""
        return len(self.rows) > 12

    def choices(self, column: int) -> list[str]:
        """Return the distinct texts of a column, given by its index, in order of appearance."""
        texts = [row[column].text for row in self.rows]
        return list(dict.fromkeys(texts))


def table(
    id: str,
    caption: str,
    columns: Columns,
    rows: Iterable[Sequence[Any]],
    *,
    note: str = "",
    kind: str = "",
) -> Table:
    """Return a page table of plain values, which are formatted by their columns.

    `id` is the id of the element in the page. A row has a value for each column, in order: a
    number, a text, None or a `Cell`. `note` is shown below the table. `kind` is a class of the
    style sheet: "heat" or "intervals".
    """
    known = [
        Column(column) if isinstance(column, str) else column for column in columns
    ]
    formatted = []
    for row in rows:
        pairs = zip(known, row, strict=True)
        formatted.append([column.cell(value) for column, value in pairs])
    return Table(id, caption, known, formatted, note, kind)


def record_table(
    id: str,
    caption: str,
    columns: NamedColumns,
    records: Iterable[Mapping[Any, Any]],
    *,
    in_order: bool = False,
    note: str = "",
    kind: str = "",
) -> Table:
    """Return a page table with a row for each record; `columns` maps its keys to the columns.

    Keys that `columns` lacks are not shown. The key `structure` has the name of a structure, which
    is shown by its short name; with `in_order`, structures sort by their present order instead of
    by name. The other parameters are those of `table`.
    """
    rows = []
    for place, record in enumerate(records):
        values = {key: record[key] for key in columns}
        name = values.get("structure")
        if isinstance(name, str):
            values["structure"] = Cell(short_name(name), place if in_order else None)
        rows.append(list(values.values()))
    return table(id, caption, list(columns.values()), rows, note=note, kind=kind)


def number(
    value: float | None,
    digits: int = 3,
    *,
    unit: str = "",
    sign: bool = False,
    hint: str = "",
) -> Cell:
    """Return a number as a cell with `digits` decimals, sorted by its full value.

    `unit` is appended to the text. With `sign` a positive number has a plus sign. None and NaN are
    shown as a dash. `hint` is shown at the pointer.
    """
    if value is None or math.isnan(value):
        return Cell("–", UNDEFINED, hint=hint or "undefined")
    # No minus sign on a number that is rounded to zero.
    text = f"{value:z,.{digits}f}"
    if sign:
        text = f"{value:+z,.{digits}f}"
    text = text.replace("-", "−")
    return Cell(text + unit, float(value), hint=hint)


def p_value(value: float) -> Cell:
    """Return a p value as a cell; very small ones are shown as "< 0.001"."""
    if math.isnan(value):
        return number(None, hint="no test")
    text = f"{value:.3f}"
    if value < 0.001:
        text = "< 0.001"
    return Cell(text, float(value))


def interval(low: float, high: float, digits: int) -> Cell:
    """Return an interval as a cell, such as "+1.2 to +3.4", sorted by its lower limit."""
    lower = number(low, digits, sign=True)
    if math.isnan(low) or math.isnan(high):
        return lower
    return Cell(f"{lower.text} to {number(high, digits, sign=True).text}", low)


def short_name(structure: str) -> str:
    """Return the short name of a structure, group, parcel or measure, such as CC_area_mm2.

    | name | short name |
    |---|---|
    | Left-Cerebral-White-Matter | L Cerebral White Matter |
    | group:cortical | Cortical, all |
    | ctx-lh-insula | L insula |
    | lh_insula_thickness | L insula |
    | CC_area_mm2 | CC area (mm²) |

    Other names keep their words, with spaces in place of hyphens.
    """
    if structure.startswith("group:"):
        group = structure.removeprefix("group:").replace("-", " ")
        if group == "all":
            return "All structures"
        return f"{group.capitalize()}, all"
    for side, letter in _SIDES:
        if structure.startswith(side):
            return letter + structure.removeprefix(side).replace("-", " ")
    if unit_of(structure):
        return _short_column(structure)
    return structure.replace("-", " ")


def _short_column(column: str) -> str:
    """Return the short name of a measure of thickness, callosum or lesions, such as CC area (mm²).

    `column` is the name of its column in tables, such as CC_area_mm2.
    """
    for hemisphere, letter in (("lh_", "L "), ("rh_", "R ")):
        if column.startswith(hemisphere):
            parcel = column.removeprefix(hemisphere).removesuffix("_thickness")
            return letter + parcel.replace("MeanThickness", "mean thickness")
    unit = unit_of(column)
    name = column.removesuffix(f"_{unit}").replace("_", " ")
    return f"{name} ({shown_unit(unit)})"


def shown_unit(unit: str) -> str:
    """Return a unit as it is shown: mm³ for mm3 and mm² for mm2."""
    return unit.replace("mm3", "mm³").replace("mm2", "mm²")


def provenance(started: datetime, command: str, labels: str) -> dict[str, str]:
    """Return the texts on how a page was made, by title, which it shows at its end.

    Keys are trinat (its version), date, command and labels. `started` is the time of the run, shown
    to the second; `command` is the command line, `labels` the name of the label scheme.
    """
    return {
        "trinat": version("trinat"),
        "date": started.isoformat(timespec="seconds"),
        "command": command,
        "labels": labels,
    }


def render(
    template: str,
    *,
    style: str = "page.css",
    script: str = "page.js",
    images: str = "data:",
    **context: Any,
) -> str:
    """Render a template to an HTML page whose content policy allows only its own style and script.

    `template`, `style` and `script` are file names in `templates`; "" as `script` is no script.
    `images` are the sources of pictures that the policy allows. `context` has the variables of the
    template.
    """
    style_text = asset(style)
    script_text = ""
    if script:
        script_text = asset(script)
    sources = [
        "default-src 'none'",
        f"img-src {images}",
        f"style-src {_source_hash(style_text)}",
    ]
    if script:
        sources.append(f"script-src {_source_hash(script_text)}")
    sources += ["base-uri 'none'", "form-action 'none'"]
    found = _environment().get_template(template)
    return found.render(
        **context,
        style=style_text,
        script=script_text,
        policy="; ".join(sources),
        version=version("trinat"),
    )


@cache
def _environment() -> jinja2.Environment:
    """Return the jinja2 environment, which escapes all values and refuses undefined ones."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("trinat.pipelines.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_escape_invisible,
    )
    environment.filters["data"] = _json_data
    environment.filters["contents"] = _table_of_contents
    environment.filters["png"] = partial(data_uri, "png")
    return environment


def _escape_invisible(value: Any) -> Any:
    """Replace invisible characters, and those that reverse the text after them, by their codes.

    A file name may have them: the numbers behind it would be shown backwards. Values other than
    text are returned as they are.
    """
    if not isinstance(value, str) or not _UNSEEN.search(value):
        return value
    # Keep the type, so that markup stays markup.
    return type(value)(_UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", value))


def _json_data(value: Any) -> Any:
    """Encode a value as JSON for a data block of the page; no text in it can end the block."""
    import markupsafe

    text = json.dumps(value, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")
    return markupsafe.Markup(text)


def _table_of_contents(sections: str) -> list[tuple[str, str]]:
    """Return the id and the title of each section of a page, for the table of contents.

    `sections` is the HTML of the sections. A section's attribute `data-contents` is a shorter
    title.
    """
    found = re.findall(
        r'<section id="([^"]+)"(?: data-contents="([^"]+)")?>\s*<h2>(.*?)</h2>',
        sections,
    )
    return [(id, short or title) for id, short, title in found]


def asset(name: str) -> str:
    """Return the text of a file in `templates`."""
    folder = resources.files("trinat.pipelines.report") / "templates"
    return (folder / name).read_text("utf-8")


def _source_hash(text: str) -> str:
    """Return the hash of a style sheet or script as a source for the content policy."""
    found = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(found).decode('ascii')}'"
