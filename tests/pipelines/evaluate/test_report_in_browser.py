"""The report in a browser, opened from disk without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.browser import Browser, find_chromium, print_to_pdf

from trinat.pipelines.evaluate.evaluation import (
    EvaluationSettings,
    evaluate_predictions,
    named_models,
)
from trinat.segmentation.io.volume import Volume

pytestmark = [pytest.mark.slow, pytest.mark.important, pytest.mark.browser]

EVIL = "<script>document.title='broken'"  # as a file name
LONG = "plain-" + 40 * "long"
EVIL_MODEL = "</script><script>document.title='broken'</script>"
AFFINE = np.diag([2.0, 2.0, 2.0, 1.0])


@pytest.fixture(scope="module")
def chromium() -> str:
    executable = find_chromium()
    if executable is None:
        pytest.skip("no Chromium is installed")
    return executable


def head(shift: int) -> np.ndarray:
    labels = np.zeros((32, 32, 28), np.int16)
    labels[6:14, 8:22, 8:20] = 2
    labels[18:26, 8:22, 8:20] = 41
    labels[14:18, 10 + shift : 16 + shift, 6:16] = 16
    labels[8:12, 12 + shift : 16 + shift, 10:14] = 17
    labels[20:24, 12:16, 10 + shift : 14 + shift] = 53
    return labels


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evaluate two participants, named by a script and by a long name; two equal models."""
    root = tmp_path_factory.mktemp("browser")
    for n, name in enumerate((EVIL, LONG)):
        for folder, shift in (("truth", 0), ("one", 1 + n), ("two", 2)):
            (root / folder).mkdir(exist_ok=True)
            Volume(head(shift), AFFINE).write(
                root / folder / f"{name}.nii.gz", labels=True
            )
        (root / "images").mkdir(exist_ok=True)
        Volume((head(0) * 9 + 50).astype(np.int16), AFFINE).write(
            root / "images" / f"{name}.nii.gz"
        )
    models = named_models([root / "one", root / "two"], [30 * "one", EVIL_MODEL])
    evaluate_predictions(
        EvaluationSettings(
            root / "truth", models, root / "out", images=root / "images", jobs=1
        )
    )
    return root / "out" / "report.html"


@pytest.fixture(scope="module")
def browser(chromium: str, report: Path) -> Iterator[Browser]:
    browser = Browser(chromium)
    browser.open(report)
    # Every viewer has unpacked its pictures.
    browser.wait("[...document.querySelectorAll('.viewer')].every((v) => !v.hidden)")
    yield browser
    browser.close()


def test_the_console_is_silent_and_nothing_is_fetched(
    browser: Browser, report: Path
) -> None:
    assert browser.problems == []
    outside = [url for url in browser.requests if not url.startswith("data:")]
    assert set(outside) == {report.as_uri()}


def test_a_name_that_is_a_script_stays_text(browser: Browser) -> None:
    assert browser.evaluate("document.title") == "Segmentation evaluation"
    texts = browser.evaluate(
        "[...document.querySelectorAll('.case h3')].map((h) => h.textContent)"
    )
    assert any(EVIL in text for text in texts)
    assert EVIL_MODEL in browser.evaluate(
        "document.querySelector('#headline').textContent"
    )
    assert browser.evaluate("document.querySelectorAll('script').length") == 2


def column(browser: Browser, table: str, number: int) -> list[float | None]:
    """Return the numbers of a column in order, None for undefined ones."""
    return browser.evaluate(
        f"[...document.querySelectorAll('#{table} tbody tr:not([hidden])')]"
        f".map((row) => Number(row.cells[{number}].dataset.order))"
    )


def test_a_click_sorts_and_another_turns_it_round(browser: Browser) -> None:
    button = "document.querySelectorAll('#structure-table thead button')[5]"
    # The text for a value that does not exist; here all structures have one.
    shown = "document.querySelectorAll('#structure-table tbody tr:not([hidden])')"
    browser.evaluate(f"{shown}[1].cells[5].dataset.order = 'none'")
    browser.evaluate(f"{button}.click()")
    falling = column(browser, "structure-table", 5)
    undefined = falling.count(None)
    assert undefined == 1
    assert falling[-undefined:] == [None] * undefined
    falling = falling[:-undefined]
    assert len(set(falling)) > 2
    assert falling == sorted(falling, reverse=True)
    assert browser.evaluate(f"{button}.closest('th').ariaSort") == "descending"
    browser.evaluate(f"{button}.click()")
    rising = column(browser, "structure-table", 5)
    assert rising == [*falling[::-1], *[None] * undefined]


def test_the_keyboard_reaches_the_titles(browser: Browser) -> None:
    button = "document.querySelector('#structure-table thead button')"
    browser.evaluate(f"{button}.focus()")
    assert browser.evaluate(f"document.activeElement === {button}")


def test_filter_and_choice_narrow_the_rows(browser: Browser) -> None:
    shown = (
        "document.querySelectorAll('#structure-table tbody tr:not([hidden])').length"
    )
    before = browser.evaluate(shown)
    browser.evaluate(
        "(() => { const s = document.querySelector('#structure-table input[type=search]');"
        " s.value = 'brain stem'; s.dispatchEvent(new Event('input')); })()"
    )
    assert browser.evaluate(shown) == 2 < before  # one row per model
    browser.evaluate(
        "(() => { const s = document.querySelector('#structure-table select');"
        " s.value = ''; s.dispatchEvent(new Event('change')); })()"
    )
    assert browser.evaluate(shown) > 2
    assert "of" in browser.evaluate(
        "document.querySelector('#structure-table .count').textContent"
    )


def moved(browser: Browser, position: int) -> tuple[str, str]:
    """Return the first sagittal slice and its name with its slider at this position."""
    picture, name = browser.evaluate(
        "(() => { const v = document.querySelector('.viewer');"
        " const c = v.querySelector('canvas'); const s = v.querySelector('input[data-axis]');"
        f" s.value = {position}; s.dispatchEvent(new Event('input'));"
        " return [c.toDataURL(), c.getAttribute('aria-label')]; })()"
    )
    return picture, name


def test_the_slider_moves_the_slice(browser: Browser) -> None:
    first, name = moved(browser, 2)
    second, other_name = moved(browser, 20)
    assert first != second
    assert name.startswith("Sagittal slice 3 of")
    assert other_name.startswith("Sagittal slice 21 of")


def test_each_mode_shows_something_else(browser: Browser) -> None:
    pictures = browser.evaluate(
        "(() => { const v = document.querySelector('.viewer');"
        " const c = v.querySelectorAll('canvas')[2];"
        " return [...v.querySelectorAll('input[type=radio]')].map((r) => { r.checked = true;"
        " r.dispatchEvent(new Event('change')); return c.toDataURL(); }); })()"
    )
    assert len(pictures) == 4
    assert len(set(pictures)) == 4


def test_the_colours_on_the_canvas_are_the_labels_colours(browser: Browser) -> None:
    """At full strength nothing is mixed in: white matter is #F5F5F5."""
    colors = browser.evaluate(
        "(() => { const v = document.querySelector('.viewer');"
        " const c = v.querySelectorAll('canvas')[2];"
        " v.querySelector('.strength').value = 100;"
        " v.querySelector('input[value=truth]').checked = true;"
        " v.querySelector('.strength').dispatchEvent(new Event('input'));"
        " const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " const s = new Set();"
        " for (let i = 0; i < d.length; i += 4) s.add(d.slice(i, i + 3).join());"
        " return [...s]; })()"
    )
    assert "245,245,245" in colors  # white matter


def test_the_switch_shows_one_plot_at_a_time(browser: Browser) -> None:
    # Two switches, for box plots and for heat maps, each with its plots next to it.
    shown = (
        "[...new Set([...document.querySelectorAll('.switched')].map((p) => p.parentElement))]"
        ".map((g) => [...g.querySelectorAll(':scope > .switched')].filter((p) => !p.hidden).length)"
    )
    assert browser.evaluate(shown) == [1, 1]
    assert browser.evaluate("document.querySelectorAll('.switched').length") > 6


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_either_theme(browser: Browser, scheme: str) -> None:
    """Contrast of at least 4.5 between text and ground, in cards, tables and plots."""
    browser.emulate(color_scheme=scheme)
    colors = browser.evaluate(
        "(() => { const of = (q, p) => getComputedStyle(document.querySelector(q))[p];"
        " return [of('section', 'backgroundColor'), of('section p', 'color'), of('td', 'color'),"
        " of('.note', 'color'),"
        " of('.plot svg text', 'fill'), of('a', 'color')]; })()"
    )
    ground, *inks = [luminance(color) for color in colors]
    assert (ground > 0.5) == (scheme == "light")
    for ink in inks:
        low, high = sorted((ground, ink))
        assert (high + 0.05) / (low + 0.05) >= 4.5
    browser.emulate()


def luminance(color: str) -> float:
    channels = (
        np.array([float(c) for c in color[color.index("(") + 1 : -1].split(",")[:3]])
        / 255
    )
    linear = np.where(
        channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4
    )
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_on_a_phone_nothing_is_wider_than_the_page(browser: Browser) -> None:
    browser.resize(390)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    # A name that stays in place while its row scrolls must leave room for the values.
    widest = (
        "Math.max(...[...document.querySelectorAll('.scroll')].filter((s) => s.offsetWidth)"
        ".flatMap((s) => [...s.querySelectorAll('tbody th')]"
        ".map((th) => th.offsetWidth / s.offsetWidth)))"
    )
    assert 0 < browser.evaluate(widest) < 0.7
    browser.resize(1300)


def test_on_a_phone_a_long_value_stays_in_its_card(browser: Browser) -> None:
    browser.resize(390)
    values = "[...document.querySelectorAll('.card .value')]"
    browser.evaluate(f"{values}[0].textContent = '1086 GFLOP/s'")
    wide = f"{values}.filter((e) => e.scrollWidth > e.clientWidth).length"
    assert browser.evaluate(wide) == 0
    browser.resize(1300)


def test_on_a_phone_figures_are_read_and_scroll_in_their_frames(
    browser: Browser,
) -> None:
    browser.resize(390)
    browser.evaluate(
        "document.querySelectorAll('details').forEach((d) => d.open = true)"
    )
    wide = (
        "[...document.querySelectorAll('.heat .scroll')]"
        ".filter((e) => e.offsetWidth && e.scrollWidth > e.clientWidth)"
        ".map((e) => e.closest('section').id)"
    )
    assert browser.evaluate(wide) == []
    # Every mark and name must lie within its figure, and letters have at least 8 pixels.
    faults = (
        "[...document.querySelectorAll('.plot svg')]"
        ".filter((s) => s.getBoundingClientRect().width)"
        ".flatMap((s) => { const f = s.getBoundingClientRect();"
        " const scale = f.width / s.viewBox.baseVal.width;"
        " return [...s.querySelectorAll('text')].filter((t) => {"
        " const b = t.getBoundingClientRect();"
        " const size = parseFloat(getComputedStyle(t).fontSize) * scale;"
        " return size < 8 || b.left < f.left - 1 || b.right > f.right + 1; })"
        ".map((t) => t.textContent); })"
    )
    assert browser.evaluate(faults) == []
    # Without a row of titles, each value of a scan has its own.
    title = (
        "getComputedStyle(document.querySelector('.heat td:last-child'), '::before')"
        ".content"
    )
    assert browser.evaluate(title) == '"R-Hi"'
    browser.resize(1300)


def test_structures_of_no_label_map_have_no_row(browser: Browser) -> None:
    texts = browser.evaluate(
        "[...document.querySelectorAll('section:not(#glance, #definitions) :is(td, th, text)')]"
        ".map((e) => e.textContent)"
    )
    assert any("R Hippocampus" in text for text in texts)
    assert not any("Caudate" in text for text in texts)


def test_cards_show_both_models(browser: Browser) -> None:
    titles = browser.evaluate(
        "[...document.querySelectorAll('.card .what')].map((e) => e.textContent)"
    )
    for model in (30 * "one", EVIL_MODEL):
        assert f"Dice, {model}" in titles


def test_every_control_has_a_name(browser: Browser) -> None:
    nameless = browser.evaluate(
        "[...document.querySelectorAll('input, select, button, canvas, svg[role=img], img')]"
        ".filter((e) => !(e.labels?.length || e.getAttribute('aria-label')"
        " || e.textContent.trim() || e.alt))"
        ".map((e) => e.outerHTML.slice(0, 80))"
    )
    assert nameless == []


def test_paper_gets_stills_and_every_plot_and_no_controls(browser: Browser) -> None:
    browser.emulate(media="print", color_scheme="dark")
    shown = (
        "((q) => [...document.querySelectorAll(q)].map("
        "(e) => getComputedStyle(e).display !== 'none'))"
    )
    assert all(browser.evaluate(f"{shown}('.still, .switched')"))
    assert not any(browser.evaluate(f"{shown}('.viewer, .tools label, .switch, nav')"))
    ground = "getComputedStyle(document.querySelector('section')).backgroundColor"
    assert luminance(browser.evaluate(ground)) == pytest.approx(1)
    browser.emulate()


def test_the_report_prints(report: Path, chromium: str) -> None:
    pdf = print_to_pdf(report)
    assert pdf.read_bytes().startswith(b"%PDF")
    assert pdf.stat().st_size > 50_000
