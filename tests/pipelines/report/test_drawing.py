"""Figures have a second, narrow form for a phone; the first one is left as it is."""

from __future__ import annotations

import re
import warnings

import pandas as pd
from matplotlib.figure import Figure

from trinat.pipelines.report.drawing import (
    Drawing,
    Narrow,
    add_legend,
    canvas,
    panels,
)
from trinat.pipelines.report.figures import confusion_plot, z_score_plot
from trinat.segmentation.labels.scheme import load_scheme

PHONE = 244.8  # points: 3.4 inches


def size(svg: str) -> tuple[float, float]:
    """Width and height in points."""
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert found is not None
    return float(found[1]), float(found[2])


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def panelled(narrow: Narrow | Figure) -> Drawing:
    names = [f"Left-Cerebellum-White-Matter-{number}" for number in range(5)]
    with panels(names, 2.0) as (figure, axes):
        for axis in axes:
            axis.plot([0, 1], [0, 1])
        figure.supxlabel(f"the first model {30 * 'word '}")
        add_legend(figure, [60 * "a", "second"])
    return Drawing("panels", figure, "five panels", narrow=narrow)


def test_the_title_of_a_panel_is_much_nearer_to_it_than_to_the_row_above() -> None:
    figure = panelled(Narrow()).figure
    above = figure.axes[0].get_tightbbox()
    lower = figure.axes[4]
    title = lower.title.get_window_extent()
    to_panel = title.y0 - lower.get_window_extent().y1
    assert above.y0 - title.y1 > 2 * to_panel > 0


def test_panels_of_a_phone_stand_as_many_abreast_as_they_should() -> None:
    for abreast, rows in ((2, 3), (1, 5)):
        svg = panelled(Narrow(abreast, 1.5)).inline_narrow()
        assert size(svg) == (PHONE, rows * 1.5 * 72)
        assert svg.count('id="panels-narrow-axes_') == 5


def test_long_texts_of_a_phone_are_in_lines() -> None:
    found = texts(panelled(Narrow()).inline_narrow())
    assert "second" in found
    assert max(len(text) for text in found) <= 40
    assert "".join(found).count("a" * 20) == 3  # 60 letters, in two lines of 38 and 22


def test_names_are_shown_as_they_are() -> None:
    names = ["$50% of$ x", "日本", "a_b^c"]
    with canvas(4, 2) as (figure, axis):
        axis.plot([0, 1])
        add_legend(figure, names)
    drawing = Drawing("names", figure, "names")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert set(names) <= set(texts(drawing.inline()))
        assert set(names) <= set(texts(drawing.inline_narrow()))
        assert drawing.png


def test_the_wide_form_stays_as_it_was() -> None:
    drawing = panelled(Narrow())
    untouched = panelled(Narrow()).inline()
    drawing.inline_narrow()
    assert drawing.inline() == untouched


def test_a_phone_may_have_a_figure_of_its_own() -> None:
    with canvas(2.0, 1.0) as (own, axis):
        axis.set_title("small")
    svg = panelled(own).inline_narrow()
    assert size(svg) == (144, 72)
    assert "small" in texts(svg)


def test_names_of_confusions_are_not_on_each_other_on_a_phone() -> None:
    scheme = load_scheme("quicknat33")
    of_all = [
        {"metric": "dice", "structure": name, "value": 1} for name in scheme.names
    ]
    every = [*of_all, {"metric": "labelled_as:CSF", "structure": "CSF", "value": 1}]
    frame = pd.DataFrame(every).assign(model="m")
    drawing = confusion_plot(frame, "m", scheme)
    assert {"L Caudate", "true"} <= set(texts(drawing.inline()))
    found = texts(drawing.inline_narrow())
    assert found.count("L-Ca") == 2  # a row and a column
    assert isinstance(drawing.narrow, Figure)
    assert size(drawing.inline_narrow())[0] == PHONE
    axis = drawing.narrow.axes[0]
    axis_in = axis.get_window_extent().transformed(
        drawing.narrow.dpi_scale_trans.inverted()
    )
    for names, length_in in (
        (axis.get_xticklabels(), axis_in.width),
        (axis.get_yticklabels(), axis_in.height),
    ):
        assert len(names) == 33
        points = 72 * length_in / len(names)
        capitals_and_gap = 0.9 * names[0].get_fontsize()
        assert points > capitals_and_gap


def test_a_single_axis_keeps_its_height() -> None:
    with canvas(8.6, 2.5) as (figure, axis):
        axis.plot([0, 1], [0, 1])
    svg = Drawing("one", figure, "one axis").inline_narrow()
    assert size(svg) == (PHONE, 180)


def test_what_z_scores_are_is_read_on_a_phone() -> None:
    row = {"metric": "volume", "unit": "mm3", "structure": "Brain-Stem", "session": ""}
    scans = [
        {**row, "subject": f"sub-{n}", "value": 9.0 + n, "z": n - 1.0} for n in range(3)
    ]
    drawing = z_score_plot(pd.DataFrame(scans), ["Brain-Stem"], 3.5)
    found = texts(drawing.inline_narrow())
    assert "robust z of the volume (shown up to" in found
    assert "±12)" in found
