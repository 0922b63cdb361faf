"""Parcels on the page in a browser: their map, their names, and details of a parcel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.browser import Browser, find_chromium
from helpers.studies import add_callosum, add_lesions, write_study
from helpers.viewer import served


@pytest.mark.slow
@pytest.mark.browser
def test_parcels_are_chosen_and_the_cross_hair_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second scan has none; "a" is shown last, as it passes.
    out = write_study(tmp_path / "out", ["a", "b"], with_parcels=["a"])
    _add_thickness(out)
    with _page_of(out, monkeypatch) as page:
        page.wait("window.trinatShown?.step === 0", 240)
        button = "document.getElementById('parcels')"
        assert page.evaluate(f"{button}.disabled")
        page.press("n")
        page.wait(_whole(1), 240)
        assert not page.evaluate(f"{button}.disabled")
        page.evaluate("trinatPicture.move([20, 68, 32])")
        at = page.evaluate("trinatPicture.at()")
        page.evaluate("window.trinatShown = null")
        page.press("u")
        page.wait(_whole(1), 240)
        assert page.evaluate(f"{button}.getAttribute('aria-pressed')") == "true"
        assert page.evaluate("trinatPicture.at()") == pytest.approx(at, abs=0.1)
        here = page.evaluate("document.getElementById('here').textContent")
        assert here.startswith("L insula")
        listed = "document.getElementById('structure-list').textContent"
        assert "L insula2,048" in page.evaluate(listed)
        _choose(page, "insula")
        card = page.evaluate("document.getElementById('structure-card').textContent")
        for fact in ("2,048 mm³", "66.7 %", "insula", "0.850", "look"):
            assert fact in card
        assert "2.50 mm (SD 0.40)" in card
        _color_by_thickness(page)
        # Structures can be rated, parcels cannot.
        judged = "document.querySelectorAll('#structure-card .judge button').length"
        assert page.evaluate(judged) == 0
        _choose(page, "thalamus r")
        assert page.evaluate(judged) > 0
        # The scan without parcels is shown with its structures, and the next one with
        # parcels again.
        page.press("b")
        page.wait(_whole(0), 240)
        names = "trinatPicture.structures.length"
        assert page.evaluate(names) == 32
        page.press("n")
        page.wait(_whole(1), 240)
        assert page.evaluate(names) > 90
        page.press("u")
        page.wait(_whole(1), 240)
        assert page.evaluate(names) == 32
        assert not page.problems


@pytest.mark.slow
@pytest.mark.browser
def test_the_callosum_is_a_layer_in_place_of_the_structures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = write_study(tmp_path / "out", ["a"])
    add_callosum(out, "a")
    with _page_of(out, monkeypatch) as page:
        page.wait(_whole(0), 240)
        assert page.evaluate("document.getElementById('parcels').hidden")
        page.evaluate("window.trinatShown = null")
        page.evaluate("document.getElementById('callosum').click()")
        page.wait(_whole(0), 240)
        names = "trinatPicture.structures.map(structure => structure.name)"
        assert page.evaluate(names)[0] == "CC_Posterior"
        # 8 voxels of 64 mm³.
        listed = "document.getElementById('structure-list').textContent"
        assert "512" in page.evaluate(listed)
        assert not page.problems


@pytest.mark.slow
@pytest.mark.browser
def test_a_list_of_lesions_moves_the_cross_hair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = write_study(tmp_path / "out", ["a"])
    add_lesions(out, "a")
    with _page_of(out, monkeypatch) as page:
        page.wait(_whole(0), 240)
        page.evaluate("window.trinatShown = null")
        page.evaluate("document.getElementById('lesions').click()")
        page.wait(_whole(0), 240)
        names = "trinatPicture.structures.map(structure => structure.name)"
        assert page.evaluate(names) == ["White-matter-lesions"]
        page.evaluate("document.querySelector('#structure-list .structure').click()")
        listed = "document.querySelectorAll('#structure-card .lesions button')"
        texts = page.evaluate(f"[...{listed}].map(each => each.textContent)")
        assert texts == ["1: 256 mm³, deep", "2: 64 mm³, deep"]
        page.evaluate(f"{listed}[1].click()")
        assert page.evaluate("trinatPicture.at()") == pytest.approx(
            _lesion_mm(out, 1), abs=0.1
        )
        assert not page.problems


def _lesion_mm(out: Path, number: int) -> list[float]:
    """Return the centre of a lesion of scan a, counted from 0, in RAS mm."""
    entry = json.loads((out / "run.jsonl").read_text().splitlines()[0])
    lesion = entry["result"]["lesions"]["lesions"][number]
    return [lesion[f"{axis}_mm"] for axis in "xyz"]


@contextmanager
def _page_of(out: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    """Open the viewer of a folder of results in a browser; skip the test if there is none."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    with served(out, monkeypatch) as address:
        page = Browser(chromium, webgl=True)
        try:
            page.resize(1280)
            page.open(address)
            yield page
        finally:
            page.close()


# The color of the insula's surface.
_COLOR = (
    "Array.from(trinatPicture.solid.meshes.find("
    "mesh => mesh.name.includes('insula')).rgba255)"
)


def _add_thickness(out: Path) -> None:
    """Add the thickness of an insula to the results with parcels."""
    insula = {"side": "left", "mm": 2.5, "std_mm": 0.4, "area_mm2": 80, "mm3": 200}
    lines = []
    for line in (out / "run.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if "parcels" in entry["result"]:
            sheets = {"ctx-lh-insula": insula}
            entry["result"]["thickness"] = {
                "grade": "pass",
                "reasons": [],
                "sheets": sheets,
            }
        lines.append(json.dumps(entry))
    (out / "run.jsonl").write_text("\n".join(lines) + "\n")


def _color_by_thickness(page: Browser) -> None:
    """Colour the surface by thickness, and switch back."""
    thickness = "document.getElementById('thickness')"
    assert not page.evaluate(f"{thickness}.hidden")
    before = page.evaluate(_COLOR)
    page.evaluate(f"{thickness}.click()")
    # Half-way between 1.5 and 3.5 mm.
    assert page.evaluate(_COLOR) == [33, 145, 140, 255]
    page.evaluate(f"{thickness}.click()")
    assert page.evaluate(_COLOR) == before


def _whole(number: int) -> str:
    """Return a condition that a scan is shown with its surfaces."""
    return f"window.trinatShown?.number === {number} && window.trinatShown.step === 0"


def _choose(page: Browser, words: str) -> None:
    """Choose the first structure that a search for these words finds."""
    page.evaluate(
        "(() => { const i = document.getElementById('structure-search');"
        f" i.value = '{words}'; i.dispatchEvent(new Event('input'));"
        " document.querySelector('#structure-list li:not([hidden]) .structure').click();"
        "})()"
    )
