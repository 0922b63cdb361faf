"""A result in a notebook: its font, its width and readable numbers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.browser import Browser, find_chromium

from trinat.segmentation.rendering.pictures import encoded
from trinat.segmentation.result import notebook_html

WIDTH = 390
# JupyterLab's styles for the output of a cell.
JUPYTER = """
body { margin: 8px; color: #234; font: 15px/1.5 monospace; }
table { border-collapse: collapse; font-size: 12px; table-layout: fixed; margin: 0 auto 1em; }
td, th { padding: .5em; text-align: right; white-space: normal; max-width: none; }
"""


def shown(*, share: float = 0.229) -> str:
    volumes = pd.DataFrame(
        {
            "structure": ["Left-Cerebellum-White-Matter", "<b>"],
            "freesurfer": [7, 8],
            "side": ["left", ""],
            "mm3": [123456.7, 41.2],
            "share": [share, 0.001],
            "grade": ["pass", "look"],
        }
    )
    picture = encoded(np.zeros((90, 900, 3), np.uint8), "PNG")
    return notebook_html("Result(<i>)", ["brain of 41 ml only"], picture, volumes)


def test_volumes_are_written_out_and_names_are_escaped() -> None:
    text = shown()
    cells = re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", text)
    assert cells[:4] == ["structure", "mm³", "% of brain", "grade"]
    assert cells[4:8] == ["Left-Cerebellum-White-Matter", "123,457", "22.90", "pass"]
    assert cells[8:] == ["&lt;b&gt;", "41", "0.10", "look"]
    assert "<p>Result(&lt;i&gt;)</p>" in text


def test_a_share_of_nothing_is_blank() -> None:
    assert "nan" not in re.sub(r"base64,[^\"]*", "", shown(share=np.nan))


@pytest.mark.browser
def test_it_has_the_font_of_the_notebook_and_fits_it(tmp_path: Path) -> None:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    page = tmp_path / "notebook.html"
    text = shown().replace("<details>", "<details open>")
    page.write_text(f"<meta charset=utf-8><style>{JUPYTER}</style>{text}", "utf-8")
    browser = Browser(chromium)
    try:
        browser.resize(WIDTH)
        browser.open(page)
        overflow = (
            "((d) => d.scrollWidth - d.clientWidth)(document.querySelector('div'))"
        )
        assert browser.evaluate(overflow) == 0
        styles = browser.evaluate(
            "[...document.querySelectorAll('p, li, td, th')].map((e) => {"
            " const s = getComputedStyle(e); return [s.fontFamily, s.fontSize, s.color]; })"
        )
        assert {tuple(style) for style in styles} == {
            ("monospace", "15px", "rgb(34, 51, 68)")
        }
        assert browser.problems == []
    finally:
        browser.close()
