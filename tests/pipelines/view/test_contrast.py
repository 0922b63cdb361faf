"""Colours of the page: text is legible in both themes (WCAG AA, 4.5 to 1)."""

from __future__ import annotations

import re
from importlib import resources

import pytest

CSS = (resources.files("trinat.pipelines.view") / "page/view.css").read_text()
LIGHT, DARK = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)[:2]
# Text colours and their backgrounds.
PAIRS = [
    *(("ink", ground) for ground in ("paper", "ground", "accent-soft")),
    *(("soft", ground) for ground in ("paper", "ground", "accent-soft")),
    *(("accent", ground) for ground in ("paper", "ground", "accent-soft")),
    *((grade, "paper") for grade in ("pass", "look", "reject")),
    *((grade, "ground") for grade in ("pass", "look", "reject")),
    # A grade that was given has text in the colour of paper on the colour of the grade.
    *(("paper", grade) for grade in ("pass", "look", "reject")),
]


def luminance(color: str) -> float:
    values = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values
    ]
    return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_is_legible(theme: str, text: str, ground: str) -> None:
    colors = dict(re.findall(r"--([\w-]+): (#\w{6});", theme))
    levels = sorted(luminance(colors[name]) + 0.05 for name in (text, ground))
    assert levels[1] / levels[0] >= 4.5
