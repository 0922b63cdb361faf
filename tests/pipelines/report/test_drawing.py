"""Figures: panels near their titles, and names as they are."""

from __future__ import annotations

import re
import warnings

from trinat.pipelines.report.drawing import Drawing, add_legend, canvas, panels


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_the_title_of_a_panel_is_much_nearer_to_it_than_to_the_row_above() -> None:
    names = [f"Left-Cerebellum-White-Matter-{number}" for number in range(5)]
    with panels(names, 2.0) as (figure, axes):
        for axis in axes:
            axis.plot([0, 1], [0, 1])
        figure.supxlabel(f"the first model {30 * 'word '}")
        add_legend(figure, [60 * "a", "second"])
    above = figure.axes[0].get_tightbbox()
    lower = figure.axes[4]
    title = lower.title.get_window_extent()
    to_panel = title.y0 - lower.get_window_extent().y1
    assert above.y0 - title.y1 > 2 * to_panel > 0


def test_names_are_shown_as_they_are() -> None:
    names = ["$50% of$ x", "日本", "a_b^c"]
    with canvas(4, 2) as (figure, axis):
        axis.plot([0, 1])
        add_legend(figure, names)
    drawing = Drawing("names", figure, "names")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert set(names) <= set(texts(drawing.inline()))
        assert drawing.png
