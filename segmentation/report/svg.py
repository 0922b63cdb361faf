"""A figure as SVG: plain as a file, or inline in a page whose style sheet colours it.

matplotlib writes colours into style attributes, which a page's strict policy refuses, and fixes
ink and paper. Inline, styles become plain attributes, ink and grid lines become classes that the
page's style sheet colours, and marks get titles that a pointer or a screen reader finds.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Drawn with these, a line or a letter takes the page's colour.
INK = "#1f2730"
GRID = "#d5dae1"
_CLASSES = {INK: "ink", GRID: "grid"}

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_DEFS = f"{{{_SVG}}}defs"
_METADATA = f"{{{_SVG}}}metadata"
_PATH = f"{{{_SVG}}}path"
_STYLE = f"{{{_SVG}}}style"
_TEXT = f"{{{_SVG}}}text"
_TITLE = f"{{{_SVG}}}title"
_USE = f"{{{_SVG}}}use"
_HREF = f"{{{_XLINK}}}href"
_ID = re.compile(r"#([A-Za-z0-9_.:-]+)")


def plain_svg(figure: Figure) -> bytes:
    """The figure as an SVG file, the same bytes every time.

    Fonts are those of the reader's machine. No date is written.
    """
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
    plain: bytes,
    prefix: str,
    label: str,
    titles: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """`plain_svg` for a page; `prefix` keeps its ids apart from other figures'.

    `titles[gid]` names, in order, the marks of the artist with that gid.
    """
    root = ElementTree.fromstring(plain)
    root.attrib.pop("width", None)
    root.attrib.pop("height", None)
    root.set("role", "img")
    root.set("aria-label", label)
    _remove(root, (_METADATA, _STYLE))
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


def _remove(root: ElementTree.Element, tags: Sequence[str]) -> None:
    """Take out the elements with one of these tags, wherever they are."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in tags:
                parent.remove(child)


def _name_marks(group: ElementTree.Element, names: Sequence[str]) -> None:
    """Give the marks of a group their titles, in order; shapes that are only defined are none."""
    defined: set[int] = set()
    for definitions in group.iter(_DEFS):
        defined.update(id(element) for element in definitions.iter())
    shapes = [element for element in group.iter() if element.tag in (_USE, _PATH)]
    marks = [shape for shape in shapes if id(shape) not in defined]
    for mark, name in zip(marks, names, strict=True):
        title = ElementTree.SubElement(mark, _TITLE)
        title.text = name


def _restyle(element: ElementTree.Element) -> None:
    """Style declarations to attributes; ink and grid colours to classes."""
    for declaration in element.attrib.pop("style", "").split(";"):
        key, _, value = declaration.partition(":")
        key = key.strip()
        value = value.strip()
        if key == "font":  # up to matplotlib 3.10, one shorthand for all of a font
            size = re.search(r"([\d.]+)px", value)
            if size:
                element.set("font-size", size[1])
            if re.match(r"(\w+ )*(bold|[6-9]00) ", value):
                element.set("font-weight", "bold")
        # The family is the page's; a length as an attribute has no unit.
        elif value and key != "font-family":
            element.set(key, value.removesuffix("px"))
    classes = []
    for key in ("fill", "stroke"):
        color = element.attrib.get(key, "")
        if color in _CLASSES:
            classes.append(f"{key}-{_CLASSES[color]}")
    if element.tag == _TEXT and "fill" not in element.attrib:
        classes.append("fill-ink")
    if classes:
        element.set("class", " ".join(classes))


def _prefix_ids(element: ElementTree.Element, prefix: str) -> None:
    """The element's id, and the ids that it refers to, begin with the prefix."""
    if "id" in element.attrib:
        element.set("id", f"{prefix}-{element.attrib['id']}")
    for key, value in element.attrib.items():
        if key == _HREF or value.startswith("url(#"):
            element.set(key, _ID.sub(lambda found: f"#{prefix}-{found[1]}", value))
