"""Figures become inline SVG without styles, in the page's colours, with named marks."""

from __future__ import annotations

import re

from matplotlib.figure import Figure

from trinat.pipelines.report.drawing import GRID, INK, Drawing


def drawn(name: str = "x", **marks: list[str]) -> Drawing:
    figure = Figure(figsize=(3, 2))
    axis = figure.subplots()
    axis.plot([0, 1], [0, 1], color=INK)
    axis.grid(color=GRID)
    axis.scatter([0.2, 0.4], [0.1, 0.9], gid="dots")
    axis.set_title("a < b & c", color=INK, fontsize=8)
    return Drawing(name, figure, "a label", marks)


def test_no_style_is_left_for_the_policy_to_refuse() -> None:
    svg = drawn().inline()
    assert "style" not in svg
    assert "<?xml" not in svg


def test_ink_and_grid_follow_the_page() -> None:
    svg = drawn().inline()
    assert 'class="stroke-ink"' in svg
    assert 'class="stroke-grid"' in svg
    assert 'class="fill-ink"' in svg


def test_sizes_of_letters_survive() -> None:
    assert re.search(r'<text[^>]*font-size="8"', drawn().inline())


def test_marks_are_named_and_escaped() -> None:
    svg = drawn(dots=["<one>", "two"]).inline()
    assert "<title>&lt;one&gt;</title>" in svg
    assert svg.count("<title>") == 2
    assert 'aria-label="a label"' in svg


def test_ids_of_two_figures_on_a_page_differ() -> None:
    ids = [set(re.findall(r' id="([^"]*)"', drawn(p).inline())) for p in "xy"]
    assert ids[0]
    assert not ids[0] & ids[1]
    svg = drawn().inline()
    used = set(re.findall(r'(?:href="|url\()#([^")]*)', svg))
    assert used
    assert used <= ids[0]


def test_equal_figures_give_equal_bytes() -> None:
    assert drawn().svg == drawn().svg
