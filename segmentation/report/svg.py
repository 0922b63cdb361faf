"""A matplotlib figure as inline SVG that follows the page's theme and passes its content policy.

matplotlib writes colours into style attributes, which a strict policy refuses, and fixes ink and
paper. Here styles become plain attributes, ink and grid lines become classes that the page's
style sheet colours, and marks get titles that a pointer or a screen reader finds.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["GRID", "INK", "inline_svg", "plain_svg"]

# Drawn with these, a line or a letter takes the page's colour.
INK, GRID = "#1f2730", "#d5dae1"
_CLASSES = {INK: "ink", GRID: "grid"}

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_ID = re.compile(r"#([A-Za-z0-9_.:-]+)")


def plain_svg(figure: Figure) -> bytes:
    """The figure as an SVG file, the same bytes every time."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.BytesIO()
    # Text stays text: it can be read aloud, searched and copied, and takes a tenth of the bytes.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "trinat"}):
        figure.set_dpi(100)  # of pictures within; lines and letters have no resolution
        # `savefig` would draw all of it twice, first to look at its layout.
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    return buffer.getvalue()


def inline_svg(
    plain: bytes, prefix: str, label: str, titles: Mapping[str, Sequence[str]] | None = None
) -> str:
    """`plain_svg` for a page; `prefix` keeps its ids apart from other figures'.

    `titles[gid]` names, in order, the marks of the artist with that gid.
    """
    root = ElementTree.fromstring(plain)
    root.attrib.pop("width", None)
    root.attrib.pop("height", None)
    root.set("role", "img")
    root.set("aria-label", label)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    for gid, names in (titles or {}).items():
        group = root.find(f".//*[@id='{gid}']")
        if group is not None:
            _name_marks(group, names)
    for element in root.iter():
        _restyle(element)
        _prefix_ids(element, prefix)
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def _name_marks(group: ElementTree.Element, names: Sequence[str]) -> None:
    marks = [e for e in group.iter() if e.tag in (f"{{{_SVG}}}use", f"{{{_SVG}}}path")]
    inside_defs = {id(e) for d in group.iter(f"{{{_SVG}}}defs") for e in d.iter()}
    marks = [mark for mark in marks if id(mark) not in inside_defs]
    for mark, name in zip(marks, names, strict=True):
        ElementTree.SubElement(mark, f"{{{_SVG}}}title").text = name


def _restyle(element: ElementTree.Element) -> None:
    """Style declarations to attributes; ink and grid colours to classes."""
    for declaration in element.attrib.pop("style", "").split(";"):
        key, _, value = declaration.partition(":")
        key, value = key.strip(), value.strip()
        if key == "font":  # up to matplotlib 3.10, one shorthand for all of a font
            size = re.search(r"([\d.]+)px", value)
            if size:
                element.set("font-size", size[1])
            if re.match(r"(\w+ )*(bold|[6-9]00) ", value):
                element.set("font-weight", "bold")
        # The family is the page's; a length as an attribute has no unit.
        elif value and key != "font-family":
            element.set(key, value.removesuffix("px"))
    classes = [
        f"{key}-{_CLASSES[element.attrib[key]]}"
        for key in ("fill", "stroke")
        if element.attrib.get(key) in _CLASSES
    ]
    if element.tag == f"{{{_SVG}}}text" and "fill" not in element.attrib:
        classes.append("fill-ink")
    if classes:
        element.set("class", " ".join(classes))


def _prefix_ids(element: ElementTree.Element, prefix: str) -> None:
    if "id" in element.attrib:
        element.set("id", f"{prefix}-{element.attrib['id']}")
    for key, value in element.attrib.items():
        if key == f"{{{_XLINK}}}href" or value.startswith("url(#"):
            element.set(key, _ID.sub(lambda m: f"#{prefix}-{m[1]}", value))
