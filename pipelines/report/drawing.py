"""Drawing tools for the figures of reports: canvas, marks, and output as SVG, PNG and PDF.

A figure can be an SVG file, or be inline in a page whose style sheet sets its colours. matplotlib
writes colours into style attributes, which the content policy of the page refuses and which would
fix the colours of ink and paper. For a page, styles therefore become plain attributes, the colours
of ink and grid lines become classes of the style sheet, and marks get titles that a pointer or a
screen reader finds.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd

from trinat.pipelines.report.page import short_name
from trinat.segmentation.io.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Distinguishable with any colour vision, on light and on dark ground (after Okabe and Ito).
MODEL_COLORS = ("#2f7fc1", "#e0851b", "#12a07a", "#c2609a", "#8a8d1e", "#d1502f")
WARNING_COLOR = MODEL_COLORS[5]
_MOST_PANELS_ABREAST = 4
_NAMES_IN_A_ROW = 4  # of a legend
_BETWEEN_PANELS = 0.12  # of a panel's height
# Lines and letters in these colours get the colours of the page.
INK = "#1f2730"
GRID = "#d5dae1"
_CLASSES = {INK: "ink", GRID: "grid"}

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_DEFS = f"{{{_SVG}}}defs"
_METADATA = f"{{{_SVG}}}metadata"
_PATH = f"{{{_SVG}}}path"
_STYLE_TAG = f"{{{_SVG}}}style"
_TEXT = f"{{{_SVG}}}text"
_TITLE = f"{{{_SVG}}}title"
_USE = f"{{{_SVG}}}use"
_HREF = f"{{{_XLINK}}}href"
_ID = re.compile(r"#([A-Za-z0-9_.:-]+)")
# Longest name of a model in a figure, in characters.
_LONGEST_NAME = 32


@dataclass(frozen=True)
class Drawing:
    """A matplotlib figure for a report, with texts for readers and names for its dots.

    - `name` is the name of its files without an ending.
    - `label` describes it for readers who cannot see it.
    - `marks` maps the gid of a matplotlib artist, such as a scatter plot, to a name for each of its
      marks (dots), in the order of drawing. The page shows the name at the pointer.
    - `title` and `caption` are shown on the page.
    - With `for_print` it is also saved as PDF.
    """

    name: str
    figure: Figure
    label: str
    marks: dict[str, list[str]] = field(default_factory=dict)
    title: str = ""
    caption: str = ""
    for_print: bool = False

    def save(self, folder: Path) -> None:
        """Write PNG and SVG files to a folder, and a PDF file if the figure is for print.

        The folder is created if needed.
        """
        folder.mkdir(exist_ok=True)
        write_whole(folder / f"{self.name}.png", self.png)
        write_whole(folder / f"{self.name}.svg", self.svg)
        if self.for_print:
            write_whole(folder / f"{self.name}.pdf", self.pdf)

    @cached_property
    def svg(self) -> bytes:
        """The bytes of the figure as an SVG file, computed once.

        The same figure gives the same bytes: no date is written. Text is not converted to curves,
        so it is shown in the fonts of the reader's machine.
        """
        import matplotlib as mpl
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        buffer = io.BytesIO()
        # Text stays text: it can be read aloud, searched and copied, and takes a tenth of the
        # bytes.
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "trinat"}):
            # The resolution of embedded pictures; lines and letters have none.
            self.figure.set_dpi(100)
            # `savefig` would draw the figure twice, first to look at its layout.
            with _any_letters():
                FigureCanvasSVG(self.figure).print_svg(buffer, metadata={"Date": None})
        return buffer.getvalue()

    @property
    def png(self) -> bytes:
        """The bytes of a PNG file that shows the figure on white, at 150 dpi.

        The figure is transparent again afterwards, as its SVG needs it.
        """
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        buffer = io.BytesIO()
        self.figure.set(dpi=150, facecolor="white")
        # `savefig` would draw the figure twice, first to look at its layout.
        with _any_letters():
            FigureCanvasAgg(self.figure).print_png(buffer)
        self.figure.set(facecolor="none")
        return buffer.getvalue()

    @property
    def pdf(self) -> bytes:
        """The bytes of the figure as a PDF file, the same every time."""
        import matplotlib as mpl
        from matplotlib.backends.backend_pdf import FigureCanvasPdf

        buffer = io.BytesIO()
        metadata = {"CreationDate": None, "Producer": None, "Creator": None}
        # Type 42 fonts keep text as text, which journals ask for.
        with mpl.rc_context({"pdf.fonttype": 42}), _any_letters():
            FigureCanvasPdf(self.figure).print_pdf(buffer, metadata=metadata)
        return buffer.getvalue()

    def inline(self) -> str:
        """Return the figure as an SVG element for a page, in the page's colours.

        Its dots have names (`marks`), which the page shows at the pointer. Its ids begin with its
        name, and so are unique in the page.
        """
        root = ElementTree.fromstring(self.svg)
        root.attrib.pop("width", None)
        root.attrib.pop("height", None)
        root.set("role", "img")
        root.set("aria-label", self.label)
        for parent in list(root.iter()):
            for child in list(parent):
                if child.tag in (_METADATA, _STYLE_TAG):
                    parent.remove(child)
        by_id = {element.get("id"): element for element in root.iter()}
        for gid, names in self.marks.items():
            if gid in by_id:
                _name_marks(by_id[gid], names)
        for element in root.iter():
            _restyle(element)
            # Rename the element's id and the ids that it refers to.
            if "id" in element.attrib:
                element.set("id", f"{self.name}-{element.attrib['id']}")
            for key, value in element.attrib.items():
                if key == _HREF or value.startswith("url(#"):
                    renamed = _ID.sub(lambda found: f"#{self.name}-{found[1]}", value)
                    element.set(key, renamed)
        ElementTree.register_namespace("", _SVG)
        ElementTree.register_namespace("xlink", _XLINK)
        return ElementTree.tostring(root, encoding="unicode")


@contextmanager
def _any_letters() -> Iterator[None]:
    """Suppress warnings about letters that the font lacks.

    Such letters are boxes in a PNG file, but correct on a page.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from font")
        yield


def _lay_out(figure: Figure, rows: int) -> None:
    """Compute the layout of a figure once; otherwise each output file would compute it twice.

    The figure has the constrained layout, and panels in `rows`.
    """
    engine: Any = figure.get_layout_engine()
    if rows > 1:
        # Rows are so far apart that a panel's title is nearer to its panel than to the row above.
        engine.set(hspace=_BETWEEN_PANELS)
    with _any_letters():
        engine.execute(figure)
    figure.set_layout_engine("none")


_STYLE: dict[str, Any] = {
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "grid.linewidth": 0.7,
    "grid.color": GRID,
    "font.family": "sans-serif",
    "font.size": 8.5,
    "figure.labelsize": 9,
}


@contextmanager
def canvas(
    width: float,
    height: float,
    rows: int = 1,
    columns: int = 1,
) -> Iterator[Any]:
    """Provide a matplotlib figure in the report's style.

    Yields the figure with its axis, or, with several `rows` or `columns` of panels, with an array
    of axes as from matplotlib's `subplots`. `width` and `height` are in inches. The layout is
    computed when the context ends, so everything must be drawn within it. pyplot is not used.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(rows, columns)
        _lay_out(figure, rows)


@contextmanager
def panels(
    structures: Sequence[str], height_in: float, more_in: float = 0.0
) -> Iterator[tuple[Any, list[Any]]]:
    """Provide a figure with a small panel for each structure (small multiples).

    Yields the figure and a list of axes, one for each of `structures`, with titles. There are up to
    four panels in a row. A row is `height_in` inches high; `more_in` is the height of the figure
    beyond the rows. Without structures the figure is empty.
    """
    count = len(structures)
    columns = max(1, min(_MOST_PANELS_ABREAST, count))
    rows = max(1, math.ceil(count / columns))
    total_in = height_in * rows + more_in
    with canvas(8.6, total_in, rows, columns) as (figure, axes):
        every = list(np.ravel(axes))
        used = every[:count]
        for axis, structure in zip(used, structures, strict=True):
            axis.set_title(as_text(short_name(structure)), fontsize=8, color=INK)
        for axis in every[count:]:
            axis.set_visible(False)
        yield figure, used


def draw_boxes(
    axis: Any,
    rows: Sequence[tuple[float, Any]],
    band: float,
    color: str,
) -> None:
    """Draw horizontal boxes of the median and quartiles into a matplotlib Axes, one for each row.

    `rows` has a tuple for each box: its height on the vertical axis, and the values. `band` is the
    height available for a box, in the axis's units. Whiskers end at the last value within 1.5
    quartile ranges. All boxes together are a few Matplotlib artists, because each artist costs time
    in every layout.
    """
    from matplotlib.cbook import boxplot_stats
    from matplotlib.collections import PolyCollection

    if not rows:
        return
    half = band * 0.38
    places = np.array([height for height, _ in rows])
    values_of_rows = [values for _, values in rows]
    boxes = pd.DataFrame(boxplot_stats(values_of_rows))
    ends = boxes[["whislo", "q1", "med", "q3", "whishi"]]
    least, low, median, high, most = ends.to_numpy(float).T
    axis.hlines(places, least, low, color=color, lw=0.9)
    axis.hlines(places, high, most, color=color, lw=0.9)
    axis.vlines(median, places - half, places + half, color=color, lw=1.8)
    corners = [
        np.stack([low, places - half], axis=1),
        np.stack([high, places - half], axis=1),
        np.stack([high, places + half], axis=1),
        np.stack([low, places + half], axis=1),
    ]
    outlines = np.stack(corners, axis=1)  # (boxes, 4, x and y)
    filled = PolyCollection(list(outlines), fc=color, alpha=0.22, lw=0)
    axis.add_collection(filled)


def draw_dots(
    axis: Any,
    rows: Sequence[tuple[float, Any]],
    band: float,
    color: Any,
    gid: str,
) -> None:
    """Draw a dot for each value into a matplotlib Axes, in rows.

    `rows` has a tuple for each row: its height on the vertical axis, and the values. `band` is the
    height that the dots of one row may take, in the axis's units. All dots are one artist with the
    id `gid`, in the order of the rows. `rows` must not be empty, but the values of a row may be.
    """
    places = []
    for height, values in rows:
        # Offsets keep dots apart and are reproducible: the golden ratio's low-discrepancy sequence.
        steps = np.arange(len(values)) * 0.618034
        offsets = (steps + 0.5) % 1 - 0.5
        places.append(height + offsets * band * 0.7)
    x = np.concatenate([values for _, values in rows])
    y = np.concatenate(places)
    axis.scatter(x, y, s=9, color=color, lw=0, zorder=3, gid=gid)


def as_text(name: str) -> str:
    """Escape dollar signs in a name, since two of them would mark a formula in a figure."""
    return re.sub(r"(?<!\\)\$", r"\\$", name)


def brief(name: str) -> str:
    """Shorten the name of a model, so that it fits into a figure."""
    if len(name) <= _LONGEST_NAME:
        return name
    return name[: _LONGEST_NAME - 1] + "…"


def name_rows(axis: Any, structures: Iterable[str]) -> None:
    """Write the short names of structures along the vertical axis, the first at the top.

    Row n is at height n.
    """
    names = [as_text(short_name(structure)) for structure in structures]
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0, labelsize=8)
    axis.grid(axis="x")
    axis.set_axisbelow(True)
    axis.spines["left"].set_visible(False)


def name_cells(axis: Any, columns: Sequence[str], rows: Sequence[str]) -> None:
    """Write the names of columns and rows along the axes of a map, columns turned by 90°."""
    axis.set_xticks(range(len(columns)), map(as_text, columns), rotation=90)
    axis.set_yticks(range(len(rows)), map(as_text, rows))
    axis.tick_params(labelsize=6.5)


def model_color(number: int) -> str:
    """Return the colour of a model or group by its index in the figure.

    After the last colour, the colours repeat.
    """
    return MODEL_COLORS[number % len(MODEL_COLORS)]


def add_legend(figure: Figure, models: Sequence[str]) -> None:
    """Draw a legend of colours above the figure; nothing for a single name.

    `models` are the names of the models, groups or sites in the figure, in the order of their
    colours.
    """
    if len(models) < 2:
        return
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=model_color(number), lw=4, label=as_text(brief(model)))
        for number, model in enumerate(models)
    ]
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=_NAMES_IN_A_ROW,
        frameon=False,
    )


def _name_marks(group: ElementTree.Element, names: Sequence[str]) -> None:
    """Give each mark (dot) in an SVG group its name as a title, in the order of drawing."""
    # Shapes inside <defs> are templates, not marks.
    defined: set[int] = set()
    for definitions in group.iter(_DEFS):
        defined.update(id(element) for element in definitions.iter())
    shapes = [element for element in group.iter() if element.tag in (_USE, _PATH)]
    marks = [shape for shape in shapes if id(shape) not in defined]
    for mark, name in zip(marks, names, strict=True):
        title = ElementTree.SubElement(mark, _TITLE)
        title.text = name


def _restyle(element: ElementTree.Element) -> None:
    """Replace the `style` attribute of an SVG element by plain attributes.

    The colours of ink and grid become classes of the page's style sheet.
    """
    for declaration in element.attrib.pop("style", "").split(";"):
        key, _, value = declaration.partition(":")
        key = key.strip()
        value = value.strip()
        if key == "font":  # matplotlib up to 3.10 writes the whole font as one value
            size = re.search(r"([\d.]+)px", value)
            if size:
                element.set("font-size", size[1])
            if re.match(r"(\w+ )*(bold|[6-9]00) ", value):
                element.set("font-weight", "bold")
        # The page sets the font family. Lengths in attributes have no unit.
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
