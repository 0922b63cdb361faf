"""Pages escape text, allow only their own scripts, and mark undefined values."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import markupsafe
import pytest

from trinat.pipelines.report.page import (
    UNDEFINED,
    Cell,
    Column,
    number,
    render,
    short_name,
    table,
)

EVIL = "<script>alert(1)</script>"


def page(**changes: object) -> str:
    context: dict[str, object] = {
        "title": EVIL,
        "lead": EVIL,
        "provenance": {EVIL: EVIL},
        "notices": [EVIL],
        "cards": [],
        "limit": 3.5,
        "adjusted": None,
        "adjustment": None,
        "harmonisation": None,
        "has_norms": False,
        "sections": (),
        "participant_plots": [],
        "residual_plots": [],
        "methods": "",
        "groups": [],
        "uncertainty": None,
        "pictures": [],
        "volume_definition": EVIL,
    }
    shown = table(
        "t",
        EVIL,
        [Column(EVIL, hint=EVIL, pick=True)],
        [[Cell(EVIL, EVIL, 3, EVIL)]] * 2,
    )
    volumes = {
        **dict.fromkeys(("outliers", "measured", "asymmetry"), shown),
        **dict.fromkeys(("effects", "slopes", "forest", "z_scores"), ()),
        "is_tested": True,
        "model": None,
        "changes": None,
    }
    tables = dict.fromkeys(("scans", "left_out", "failures", "remarks"), shown)
    return render("cohort.html", volumes=volumes, **context | tables | changes)


def test_everything_is_escaped() -> None:
    text = page()
    assert EVIL not in text
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 20


def test_choices_are_compared_with_their_spaces() -> None:
    models = [[Cell("one  model")], [Cell("other")]]
    shown = table("t", "Models", [Column("Model", pick=True)], models)
    assert '<option value="one  model" selected>' in page(scans=shown)


def test_what_no_one_sees_in_a_name_is_shown() -> None:
    """An invisible character in the name reverses the text.

    The number behind it would read 67.0.
    """
    name, joined = "\u202ea\u200b\x1b", "می\u200cخواهم\n"
    text = page(
        title=f"{name}: 0.76",
        lead=markupsafe.Markup(f"<b>{name}</b>"),
        volume_definition=joined,
    )
    assert r"<h1>\u202ea\u200b\u001b: 0.76</h1>" in text
    assert r"<b>\u202ea\u200b\u001b</b>" in text
    assert joined in text


def test_the_policy_names_the_style_and_the_script_of_the_page() -> None:
    text = page()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    for tag in ("style", "script"):
        bodies = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert len(bodies) == 1
        digest = base64.b64encode(hashlib.sha256(bodies[0].encode()).digest()).decode()
        assert f"{tag}-src &#39;sha256-{digest}&#39;" in policy[1]
    assert "default-src &#39;none&#39;" in policy[1]
    assert "unsafe" not in policy[1]


def test_no_markup_carries_a_style_or_a_handler() -> None:
    """The content security policy would drop them silently."""
    markup = re.sub(r"<(style|script)>.*?</\1>", "", page(), flags=re.DOTALL)
    assert not re.search(r"<[^>]*\s(style|on\w+)=", markup)


def test_data_cannot_end_its_block() -> None:
    from trinat.pipelines.report.page import _environment

    text = (
        _environment()
        .from_string("{{ value|data }}")
        .render(value={"a": "</script><b>"})
    )
    assert "<" not in text
    assert json.loads(text) == {"a": "</script><b>"}


@pytest.mark.parametrize(
    ("value", "options", "text"),
    [
        (1234.5678, {"digits": 1}, "1,234.6"),
        (-0.25, {"digits": 2}, "−0.25"),
        (0.25, {"digits": 2, "sign": True}, "+0.25"),
        (-0.001, {"digits": 2}, "0.00"),
        (-0.001, {"digits": 2, "sign": True}, "+0.00"),
        (12.0, {"digits": 0, "unit": " mm³"}, "12 mm³"),
        (float("nan"), {}, "–"),
        (None, {}, "–"),
    ],
)
def test_numbers_read_well(value: float | None, options: dict, text: str) -> None:
    assert number(value, **options).text == text


def test_a_column_formats_its_numbers_and_takes_cells_as_they_are() -> None:
    columns = ["Name", Column("Change", 1, sign=True)]
    shown = table("t", "caption", columns, [["a", 2], [Cell("b"), None]])
    assert [[cell.text for cell in row] for row in shown.rows] == [
        ["a", "+2.0"],
        ["b", "–"],
    ]
    assert [column.numeric for column in shown.columns] == [False, True]


def test_the_contents_are_the_sections() -> None:
    contents = re.findall(r'<li><a href="#(.*?)">(.*?)</a>', page())
    assert contents[0] == ("glance", "At a glance")
    assert ("definitions", "Definitions") in contents
    assert [id for id, _ in contents] == re.findall(r'<section id="(.*?)"', page())


def test_undefined_numbers_sort_last_and_say_so() -> None:
    cell = number(float("nan"))
    assert (cell.order, cell.hint) == (UNDEFINED, "undefined")


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("Left-Cerebral-Cortex", "L Cerebral Cortex"),
        ("ctx-rh-insula", "R insula"),
        ("lh_insula_thickness", "L insula"),
        ("rh_MeanThickness_thickness", "R mean thickness"),
        ("CC_Mid_Anterior_mm3", "CC Mid Anterior (mm³)"),
        ("CC_length_mm", "CC length (mm)"),
    ],
)
def test_names_of_structures_and_measures_are_short(name: str, short: str) -> None:
    assert short_name(name) == short
