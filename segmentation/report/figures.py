"""Figures of a report, drawn once: as files for a paper and inline in the page.

matplotlib writes colours into style attributes, which a page's strict policy refuses, and fixes
ink and paper. Inline, styles become plain attributes, ink and grid lines become classes that the
page's style sheet colours, and marks get titles that a pointer or a screen reader finds.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd

from trinat.segmentation.io.files import write_whole
from trinat.segmentation.metrics.definitions import METRICS
from trinat.segmentation.report.page import short_name
from trinat.segmentation.report.summary import (
    by_person,
    by_scan,
    confusion,
    models_of,
    structures_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Told apart by people with any colour vision, on light and on dark ground (after Okabe and Ito).
MODEL_COLORS = ("#2f7fc1", "#e0851b", "#12a07a", "#c2609a", "#8a8d1e", "#d1502f")
WARNING_COLOR = MODEL_COLORS[5]

_FARTHEST_Z = 12.0


@dataclass(frozen=True)
class Drawing:
    """A figure, what it shows in words, and the names of its marks by artist."""

    name: str
    figure: Figure
    label: str
    marks: dict[str, list[str]] = field(default_factory=dict)
    title: str = ""
    caption: str = ""

    def save(self, folder: Path) -> None:
        """As PNG and as SVG, in a folder that is made for it."""
        folder.mkdir(exist_ok=True)
        write_whole(folder / f"{self.name}.png", self.png)
        write_whole(folder / f"{self.name}.svg", self.svg)

    @cached_property
    def svg(self) -> bytes:
        return plain_svg(self.figure)

    @property
    def png(self) -> bytes:
        """On white, 150 dpi."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        buffer = io.BytesIO()
        self.figure.set(dpi=150, facecolor="white")
        # `savefig` would draw all of it twice, first to look at its layout.
        FigureCanvasAgg(self.figure).print_png(buffer)
        self.figure.set(facecolor="none")
        return buffer.getvalue()

    def inline(self) -> str:
        """For a page: in the page's colours, with names that a pointer finds."""
        return inline_svg(self.svg, self.name, self.label, self.marks)


def box_plot(frame: pd.DataFrame, metric: str) -> Drawing:
    """Boxes over persons, a row a structure, every person a dot."""
    what, models = METRICS[metric], models_of(frame)
    tables = {model: by_person(frame, model, metric) for model in models}
    structures = [s for s in structures_of(frame) if any(s in t.columns for t in tables.values())]
    marks: dict[str, list[str]] = {}
    band = 0.8 / len(models)
    height = len(structures) * max(0.24, 0.17 * len(models)) + 0.9
    with canvas(8.6, height) as (figure, axis):
        for m, (model, table) in enumerate(tables.items()):
            places = np.arange(len(structures)) + (m - (len(models) - 1) / 2) * band
            persons = [table.get(s, pd.Series(dtype=float)).dropna() for s in structures]
            rows = [(y, values.to_numpy()) for y, values in zip(places, persons, strict=True)]
            color = MODEL_COLORS[m % len(MODEL_COLORS)]
            # Of fewer, the dots say more than a box.
            draw_boxes(axis, [row for row in rows if len(row[1]) > 4], band, color)
            draw_dots(axis, rows, band, color, f"dots-{m}")
            marks[f"dots-{m}"] = [
                f"{person}, {short_name(structure)}, {model}: {value:.3g}"
                for structure, values in zip(structures, persons, strict=True)
                for person, value in values.items()
            ]
        name_rows(axis, structures)
        axis.set_xlabel(what.title_with_unit)
        _legend(figure, models)
    label = f"{what.title} of {len(structures)} structures, a box over persons and a dot a person"
    return Drawing(f"boxes-{metric}", figure, label, marks, what.title, what.definition)


def bland_altman_plot(frame: pd.DataFrame, model: str, structures: Sequence[str]) -> Drawing:
    """Small multiples: difference of volumes over their mean, with bias and limits."""
    from trinat.segmentation.metrics.statistics import bland_altman

    predicted, true = (by_person(frame, model, m) for m in ("volume", "truth_volume"))
    structures = [s for s in structures if s in predicted.columns]
    columns = min(4, len(structures))
    rows = -(-len(structures) // columns)
    marks = {}
    with canvas(8.6, 2.1 * rows, rows, columns) as (figure, axes):
        for n, axis in enumerate(np.ravel(axes)):
            if n >= len(structures):
                axis.set_visible(False)
                continue
            a, b = (table[structures[n]].to_numpy() / 1000 for table in (true, predicted))
            limits = bland_altman(a, b)
            gid = f"persons-{n}"
            axis.scatter((a + b) / 2, b - a, s=10, color=MODEL_COLORS[0], lw=0, zorder=3, gid=gid)
            marks[gid] = [
                f"{person}: {x:.3g} ml true, {y:.3g} ml predicted"
                for person, x, y in zip(true.index, a, b, strict=True)
                if np.isfinite(x + y)
            ]
            axis.axhline(0, color=GRID, lw=1)
            if np.isfinite(limits.bias):
                axis.axhline(limits.bias, color=MODEL_COLORS[0], lw=1.2)
            if np.isfinite(limits.sd):
                for level in (limits.lower, limits.upper):
                    axis.axhline(level, color=MODEL_COLORS[0], lw=0.9, ls=(0, (4, 3)))
            axis.set_title(short_name(structures[n]), fontsize=8, color=INK)
            axis.tick_params(labelsize=7)
            axis.margins(0.12)
        figure.supxlabel("mean of true and predicted volume (ml)", fontsize=9, color=INK)
        figure.supylabel("predicted − true (ml)", fontsize=9, color=INK)
    label = f"Bland-Altman plots of the volumes of {len(structures)} structures, model {model}"
    return Drawing("bland-altman", figure, label, marks, model)


def comparison_plot(table: pd.DataFrame, metric: str, first: str, second: str) -> Drawing:
    """Mean paired difference with its 95 % interval; filled where significant after Holm."""
    rows = table[
        (table["metric"] == metric) & (table["first"] == first) & (table["second"] == second)
    ].dropna(subset="mean_difference")
    color = MODEL_COLORS[1]
    with canvas(8.6, len(rows) * 0.24 + 0.9) as (figure, axis):
        axis.axvline(0, color=INK, lw=0.8)
        places = np.arange(len(rows))
        known = rows["low"].notna().to_numpy()
        ends = rows.loc[known, ["low", "high"]].T.to_numpy(float)
        axis.hlines(places[known], *ends, color=color, lw=1.6)
        faces = [color if p < 0.05 else "none" for p in rows["p_holm"]]
        means, gid = rows["mean_difference"], "differences"
        axis.scatter(means, places, s=26, fc=faces, ec=color, zorder=3, gid=gid)
        name_rows(axis, rows["structure"])
        axis.set_xlabel(f"{METRICS[metric].title}: {second} − {first}")
    p_values = ["no test" if np.isnan(p) else f"p = {p:.2g} after Holm" for p in rows["p_holm"]]
    names = [
        f"{short_name(structure)}: {mean:+.3g}, {p}"
        for structure, mean, p in zip(rows["structure"], means, p_values, strict=True)
    ]
    label = f"Difference in {METRICS[metric].title}, {second} minus {first}, by structure"
    return Drawing(f"comparison-{metric}", figure, label, {gid: names})


def heat_map(frame: pd.DataFrame, model: str, metric: str) -> Drawing:
    """Scans x structures, for a paper; the report has it as a table."""
    what, higher = METRICS[metric], METRICS[metric].better == "higher"
    table = by_scan(frame, model, metric).sort_values("group:all", ascending=higher).head(100)
    table = table[[s for s in structures_of(frame) if s in table.columns]]
    with canvas(9.5, 0.2 * len(table) + 2.2) as (figure, axis):
        colors: Any = {"cmap": "viridis", "vmax": 1} if higher else {"cmap": "viridis_r"}
        image = axis.imshow(table.to_numpy(float), vmin=0, aspect="auto", **colors)
        _name_cells(axis, table.columns, [" ".join(map(str, key)).strip() for key in table.index])
        figure.colorbar(image, ax=axis, shrink=0.7, label=f"{what.title_with_unit}, {model}")
    name = "heat-map" if metric == "dice" else f"heat-map-{metric}"
    return Drawing(name, figure, f"{what.title}, {model} of every scan and structure")


def confusion_plot(frame: pd.DataFrame, model: str) -> Drawing:
    """Share of each true structure by predicted structure, on a logarithmic scale."""
    from matplotlib.colors import LogNorm

    table = confusion(frame, model)
    shares = table.where(table > 0).to_numpy(float)
    with canvas(7.6, 6.8) as (figure, axis):
        image = axis.imshow(shares, cmap="viridis", norm=LogNorm(1e-4, 1))
        _name_cells(axis, table.columns, [short_name(s) for s in table.columns])
        axis.set_xlabel("predicted")
        axis.set_ylabel("true")
        figure.colorbar(image, ax=axis, shrink=0.7, label="share of the true structure")
    label = f"Confusion between structures, model {model}"
    return Drawing("confusion", figure, label, title=f"All confusions of {model}")


def z_score_plot(frame: pd.DataFrame, structures: Sequence[str], limit: float) -> Drawing:
    """Robust z of every volume, a row a structure, a dot a scan; far ones stand out."""
    volumes = frame[(frame["metric"] == "volume") & frame["z"].notna()]
    scans = [volumes[volumes["structure"] == structure] for structure in structures]
    with canvas(8.6, len(structures) * 0.24 + 0.9) as (figure, axis):
        for side in (-limit, limit):
            axis.axvline(side, color=WARNING_COLOR, lw=0.9, ls=(0, (4, 3)))
        z = [of["z"].to_numpy(float) for of in scans]
        colors = np.where(np.abs(np.concatenate(z)) > limit, WARNING_COLOR, MODEL_COLORS[0])
        shown = [np.clip(values, -_FARTHEST_Z, _FARTHEST_Z) for values in z]
        draw_dots(axis, list(enumerate(shown)), 0.8, colors, "scans")
        name_rows(axis, structures)
        axis.set_xlabel(f"robust z of the volume (shown up to ±{_FARTHEST_Z:g})")
    names = [
        f"{r['subject']} {r['session']}: {r['value']:,.0f} mm³, z {r['z']:+.1f}"
        for of in scans
        for r in of.to_dict("records")
    ]
    label = f"Robust z-scores of the volumes of {len(structures)} structures, a dot a scan"
    return Drawing("z-scores", figure, label, {"scans": names})


@contextmanager
def canvas(width: float, height: float, rows: int = 1, columns: int = 1) -> Iterator[Any]:
    """A figure without pyplot, in the report's style: (figure, axis or axes)."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    inks = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style = {
        **dict.fromkeys(inks, INK),
        **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none"),
        **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
        **dict.fromkeys(("axes.linewidth", "grid.linewidth"), 0.7),
        "grid.color": GRID,
        "font.family": "sans-serif",
        "font.size": 8.5,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(rows, columns)
        # Laid out once; otherwise every file that is written lays it out twice more.
        engine = figure.get_layout_engine()
        if engine is not None:
            engine.execute(figure)
            figure.set_layout_engine("none")


def draw_boxes(axis: Any, rows: Sequence[tuple[float, Any]], band: float, color: str) -> None:
    """Quartiles and median of each (height, values), whiskers to the last value within 1.5
    quartile ranges. All boxes in three artists: each one more costs time in every layout."""
    from matplotlib.cbook import boxplot_stats
    from matplotlib.collections import PolyCollection

    if not rows:
        return
    half = band * 0.38
    places = np.array([y for y, _ in rows])
    boxes = pd.DataFrame(boxplot_stats([values for _, values in rows]))
    ends = boxes[["whislo", "q1", "med", "q3", "whishi"]]
    least, low, median, high, most = ends.to_numpy(float).T
    for start, stop in ((least, low), (high, most)):
        axis.hlines(places, start, stop, color=color, lw=0.9)
    axis.vlines(median, places - half, places + half, color=color, lw=1.8)
    corners = ((low, -half), (high, -half), (high, half), (low, half))
    outlines = np.stack([np.stack([x, places + y], axis=1) for x, y in corners], axis=1)
    axis.add_collection(PolyCollection(list(outlines), fc=color, alpha=0.22, lw=0))


def draw_dots(
    axis: Any, rows: Sequence[tuple[float, Any]], band: float, color: Any, gid: str
) -> None:
    """A dot for each of the values of each (height, values)."""
    # Offsets keep dots apart, the same every time: the golden ratio's low discrepancy.
    places = [
        y + ((np.arange(len(values)) * 0.618034 + 0.5) % 1 - 0.5) * band * 0.7 for y, values in rows
    ]
    values = np.concatenate([values for _, values in rows])
    axis.scatter(values, np.concatenate(places), s=9, color=color, lw=0, zorder=3, gid=gid)


def name_rows(axis: Any, structures: Iterable[str]) -> None:
    """Structures down the axis, the first at the top."""
    names = [short_name(structure) for structure in structures]
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0, labelsize=8)
    axis.grid(axis="x")
    axis.set_axisbelow(True)
    axis.spines["left"].set_visible(False)


def _name_cells(axis: Any, structures: Iterable[str], rows: Sequence[str]) -> None:
    names = [short_name(structure) for structure in structures]
    axis.set_xticks(range(len(names)), names, rotation=90)
    axis.set_yticks(range(len(rows)), rows)
    axis.tick_params(labelsize=6.5)


def _legend(figure: Figure, models: Sequence[str]) -> None:
    if len(models) < 2:
        return
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=MODEL_COLORS[m % len(MODEL_COLORS)], lw=4, label=model)
        for m, model in enumerate(models)
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=4, frameon=False)


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
