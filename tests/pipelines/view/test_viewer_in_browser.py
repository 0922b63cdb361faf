"""The page in a browser: twenty scans, keys, a rating that persists, no outside requests."""

from __future__ import annotations

import os
import re
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers.browser import Browser, find_chromium
from helpers.service import tiny_scan
from helpers.studies import replace_scan, write_study
from helpers.viewer import answered, served

from trinat.pipelines.predict.settings import PredictRequest
from trinat.pipelines.serve.queue import EngineThread, Queue
from trinat.pipelines.serve.service import make_app
from trinat.pipelines.study.ratings import read_ratings, save_rating
from trinat.pipelines.study.study import Study
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.zoo import find_model

ROOT = Path(__file__).parents[3]
EVIL = "sub-<script>document.title='hit'<"


@pytest.fixture
def address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[str]:
    count = getattr(request, "param", 20)
    names = [EVIL, *(f"sub-{n:02d}" for n in range(1, count))]
    out = write_study(tmp_path / "out", names)
    for path in (tmp_path / "scans").iterdir():
        scan = Volume.read(path)
        faint = scan.data * np.float32(1e-6)
        replace_scan(out, path, nib.Nifti1Image(faint, scan.affine))
    with served(out, monkeypatch) as address:
        yield address


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.browser
def test_a_study_is_looked_at_and_judged(address: str, tmp_path: Path) -> None:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    page = Browser(chromium, webgl=True)
    try:
        page.resize(1440)
        page.open(address)
        page.wait("window.trinatShown?.step === 0", 240)
        assert page.evaluate("document.querySelectorAll('.scan').length") == 20
        shown_name = "document.getElementById('name').firstChild.textContent"
        first = page.evaluate(shown_name)
        page.press("n")
        page.wait(
            "window.trinatShown.number === 1 && window.trinatShown.step === 0", 240
        )
        second = page.evaluate(shown_name)
        assert second != first
        # Search for a structure by name; the cross-hair moves to it.
        page.evaluate(
            "(() => { const i = document.getElementById('structure-search'); i.value = 'thal r';"
            " i.dispatchEvent(new Event('input')); })()"
        )
        shown = (
            "[...document.querySelectorAll('#structure-list li:not([hidden]) .name')]"
        )
        assert page.evaluate(f"{shown}.map((x) => x.textContent)") == ["R Thalamus"]
        page.evaluate(
            "document.querySelector('#structure-list li:not([hidden]) .structure').click()"
        )
        # Its 3 x 3 x 3 voxels of 4 mm are around voxel 13, 9, 7. Voxels count from 1, and the
        # scan's own value is a millionth of 200 and four times the label.
        page.wait("document.getElementById('here').textContent.includes('value')")
        assert page.evaluate("document.getElementById('here').textContent") == (
            "R Thalamus · 52, 36, 28 mm · slices 14/20, 10/24, 8/18 · value 0.000396"
        )
        page.press("]")
        assert page.evaluate("document.getElementById('opacity').value") == "0.6"
        # The digit is typed with Shift on a French keyboard.
        page.press("3", "Digit3", shift=True)
        page.wait(
            "!!document.querySelector('#judge [data-grade=reject][aria-pressed=true]')"
        )
        page.press("@", "Digit2", shift=True)
        look = "#structure-card [data-grade=look][aria-pressed=true]"
        page.wait(f"!!document.querySelector({look!r})")
        found = {
            (r.scan, r.structure, r.rating)
            for r in read_ratings(tmp_path / "out/ratings.tsv")
        }
        assert found == {(second, "", "reject"), (second, "Right-Thalamus", "look")}
        page.open(address.partition("?")[0])
        page.wait("window.trinatShown?.step === 0", 240)
        assert page.evaluate("document.getElementById('raters-open').hidden")
        theirs = [
            replace(r, rater="berta")
            for r in read_ratings(tmp_path / "out/ratings.tsv")
        ]
        for rating in theirs:
            save_rating(tmp_path / "out/ratings.tsv", rating, lock=tmp_path / "lock")
        page.open(address.partition("?")[0])
        page.wait("window.trinatShown?.step === 0", 240)
        page.evaluate("document.getElementById('raters-open').click()")
        page.wait("document.getElementById('raters').open")
        assert page.evaluate(
            "document.getElementById('raters-rows').innerText"
        ).split() == [
            *("scans", "anna,", "berta", "1", "100", "%", "not", "defined"),
            *("structures", "anna,", "berta", "1", "100", "%", "not", "defined"),
        ]
        page.evaluate("document.querySelector('#raters button').click()")
        assert (
            page.evaluate(
                "document.querySelectorAll('.said[data-grade=reject]').length"
            )
            == 1
        )
        assert page.evaluate("document.querySelector('script:not([src])')") is None
        assert page.evaluate(f"document.body.textContent.includes({EVIL!r})")
        assert "hit" not in page.evaluate("document.title")
        assert not page.problems
        host = address.partition("?")[0]
        assert all(url.startswith((host, "data:", "blob:")) for url in page.requests)
    finally:
        page.close()


SIZES = [(1440, 900), (390, 844)]
# The main area fills the rest of the window, and nothing extends beyond it.
FILLS = """(() => {
  const { bottom, right } = document.querySelector("main").getBoundingClientRect();
  return Math.abs(bottom - innerHeight) < 2 && Math.abs(right - innerWidth) < 2
    && document.documentElement.scrollWidth <= innerWidth;
})()"""
# Saving a picture clicks a link to its bytes.
NOTE_WHAT_IS_SAVED = """(() => {
  window.saved = {};
  const addressOf = URL.createObjectURL;
  URL.createObjectURL = (blob) => {
    Object.assign(window.saved, { type: blob.type, size: blob.size });
    return addressOf(blob);
  };
  HTMLAnchorElement.prototype.click = function () { window.saved.name = this.download; };
})()"""
STAGE_HEIGHT = "document.getElementById('stage').getBoundingClientRect().height"


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.browser
@pytest.mark.parametrize("address", [2], indirect=True)
def test_the_page_fills_the_window_however_few_rows_are_listed(
    address: str, tmp_path: Path
) -> None:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    pictures = Path(os.environ.get("TRINAT_PICTURES", tmp_path))
    page = Browser(chromium, webgl=True)
    try:
        for width, height in SIZES:
            page.resize(width, height)
            page.open(address)
            page.wait("window.trinatShown?.step === 0", 240)
            for words in ("thal", "no such structure", ""):
                page.evaluate(
                    "(() => { const i = document.getElementById('structure-search');"
                    f" i.value = {words!r}; i.dispatchEvent(new Event('input')); }})()"
                )
                assert page.evaluate(FILLS), (width, words)
                assert page.evaluate(STAGE_HEIGHT) > height / 3
            for tab in ("picture", "structures", "scans"):
                page.evaluate(f"document.querySelector('nav [data-tab={tab}]').click()")
                assert page.evaluate(FILLS), (width, tab)
                (pictures / f"view-{width}-{tab}.png").write_bytes(page.picture())
        # The rank among two scans is shown, and structures that the model does not predict are
        # marked.
        rows = page.evaluate("document.getElementById('structure-list').innerText")
        assert "CSFnot predicted" in "".join(rows.splitlines())
        page.evaluate("document.querySelector('[data-place=\"7\"] .structure').click()")
        assert "of 2, 1 the smallest" in page.evaluate(
            "document.getElementById('structure-card').innerText"
        )
        # Arrow keys move from row to row, and the current row is visible.
        page.evaluate("document.querySelector('nav [data-tab=structures]').click()")
        page.evaluate("document.querySelector('[data-place=\"7\"] .structure').focus()")
        page.press("ArrowDown")
        at = "document.activeElement"
        assert page.evaluate(f"{at}.closest('li').dataset.place") == "8"
        assert page.evaluate(f"getComputedStyle({at}).outlineStyle") == "solid"
        # The view is saved as a picture with the name of its scan.
        page.evaluate(NOTE_WHAT_IS_SAVED)
        page.press("p")
        page.wait("window.saved.name")
        shown_name = page.evaluate(
            "document.getElementById('name').firstChild.textContent"
        )
        assert page.evaluate("window.saved.name") == f"{shown_name}.png"
        assert page.evaluate("window.saved.type") == "image/png"
        assert page.evaluate("window.saved.size") > 1000
        # Among two scans this one has the smallest or the largest volume.
        page.evaluate("document.getElementById('volumes-open').click()")
        volumes = page.evaluate(
            "[...document.querySelectorAll('#volumes-rows tr')]"
            ".map((row) => [...row.cells].map((cell) => cell.textContent))"
        )
        assert volumes
        for _, scans, smallest, *_, largest, own in volumes:
            assert scans == "2"
            assert own in (smallest, largest)
        (pictures / "view-volumes.png").write_bytes(page.picture())
        assert not page.problems
    finally:
        page.close()


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.browser
def test_the_first_page_of_a_service_says_what_to_do_and_shows_nothing_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    pictures = Path(os.environ.get("TRINAT_PICTURES", tmp_path))
    (tmp_path / "queue").mkdir()
    queue = Queue(tmp_path / "queue")
    # The engine is not started, so a scan waits for its turn.
    engine = EngineThread(queue, PredictRequest([], tmp_path), find_model("fast"))
    app = make_app(queue, engine, "fast", load_scheme("quicknat33"))
    page = Browser(chromium, webgl=True)
    try:
        with answered(app, monkeypatch) as address:
            for scheme in ("light", "dark"):
                page.emulate(color_scheme=scheme)
                for width, height in SIZES:
                    page.resize(width, height)
                    page.open(address)
                    page.wait("document.body.classList.contains('nothing')")
                    page.wait("!document.getElementById('drop').hidden")
                    (pictures / f"serve-{width}-{scheme}.png").write_bytes(
                        page.picture()
                    )
                    assert page.evaluate(FILLS), width
                    text = page.evaluate("document.body.innerText")
                    assert "choose" in text
                    for empty in ("No scan matches", "Entropy", "Other"):
                        assert empty not in text
                    visible = "(e) => e.checkVisibility()"
                    for rows in (".swatch", ".controls button", "#filters .chip"):
                        assert not page.evaluate(
                            f"[...document.querySelectorAll({rows!r})].some({visible})"
                        )
            # A scan that is being uploaded is already listed.
            with queue.upload("a") as folder:
                queue.accept(tiny_scan(folder / "scan.nii.gz"), [])
            page.open(address)
            page.wait("document.querySelectorAll('.scan').length === 1")
            page.evaluate("document.querySelector('.scan').click()")
            page.wait("window.trinatShown?.step === 'scan'", 120)
            (pictures / "serve-waiting.png").write_bytes(page.picture())
            message = "document.getElementById('message').textContent"
            assert page.evaluate(message) == "waiting"
            names = "document.getElementById('structure-list').textContent"
            assert "L Hippocampus" in page.evaluate(names)
        assert not page.problems
    finally:
        page.close()


def add_a_tab() -> str:
    """Return a script that adds the tab from CONTRIBUTING.md."""
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    shown = re.search(r"^ {8}export const factsTab.+?^ {8}};", guide, re.S | re.M)
    assert shown
    tab = textwrap.dedent(shown[0]).removeprefix("export ")
    return (
        "(async () => {"
        'const { addTab } = await import("/tabs.js");'
        'const { make, page } = await import("/page.js");'
        f"{tab} addTab(factsTab);"
        "})()"
    )


def seen(page: Browser, ids: list[str]) -> list[str]:
    """Return the ids of the visible elements."""
    return [
        id
        for id in ids
        if page.evaluate(f"document.getElementById({id!r}).checkVisibility()")
    ]


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.browser
@pytest.mark.parametrize("address", [2], indirect=True)
def test_a_tab_is_added_by_what_it_says_of_itself(address: str) -> None:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    tabs = ["scans", "picture", "structures", "facts"]
    buttons = "[...document.querySelectorAll('nav button')]"
    page = Browser(chromium, webgl=True)
    try:
        page.resize(1440)
        page.open(address)
        page.wait("window.trinatShown?.step === 0", 240)
        # A column with one tab needs no button.
        assert not page.evaluate(f"{buttons}.some((b) => b.checkVisibility())")
        page.evaluate(add_a_tab())
        facts = "document.getElementById('facts').textContent"
        assert page.evaluate(facts) == "out"
        page.press("n")
        page.wait(f"{facts} === 'grade: pass'")
        # Side by side, and alternating with the structures.
        assert seen(page, tabs) == ["scans", "picture", "structures"]
        visible = f"{buttons}.filter((b) => b.checkVisibility())"
        assert page.evaluate(f"{visible}.map((b) => b.textContent)") == [
            "Structures",
            "Facts",
        ]
        page.evaluate("document.querySelector('[data-tab=facts]').click()")
        assert seen(page, tabs) == ["scans", "picture", "facts"]
        assert page.evaluate(FILLS)
        # One at a time.
        page.resize(390, 844)
        assert seen(page, tabs) == ["facts"]
        assert page.evaluate(f"{visible}.length") == 4
        page.evaluate("document.querySelector('[data-tab=structures]').click()")
        assert seen(page, tabs) == ["picture", "structures"]
        assert page.evaluate(FILLS)
        assert not page.problems
    finally:
        page.close()


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("address", [20, 1000], indirect=True)
def test_how_soon_the_first_picture_is_there(address: str, tmp_path: Path) -> None:
    """Prints the figures of docs/view.md."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    study = Study(tmp_path / "out")
    # The first scan of the list in the size of a head, with noise, since noise compresses
    # badly.
    first = study.scans[0]
    image, chance = study.image(first), np.random.default_rng(0)
    assert image
    assert first.labels
    for path, is_labels in ((image, False), (first.labels, True)):
        small = Volume.read(path, labels=is_labels)
        data = np.kron(small.data, np.ones((10, 10, 10), small.data.dtype))
        affine = small.affine @ np.diag([0.1, 0.1, 0.1, 1])
        if is_labels:
            Volume(data, affine).write(path, labels=True)
            continue
        data = data + chance.integers(0, 20, data.shape).astype(data.dtype)
        replace_scan(study.folder, path, nib.Nifti1Image(data, affine))
    page = Browser(chromium, webgl=True)
    try:
        page.resize(1440)
        started = time.monotonic()
        page.open(address)
        page.wait("!!window.trinatShown", 120)
        first_s = page.evaluate("window.trinatShown.time") / 1000
        page.wait("window.trinatShown.step === 0", 120)
        all_s = time.monotonic() - started
    finally:
        page.close()
    load, scans = os.getloadavg()[0], len(study.scans)
    print(
        f"{scans} scans: first picture {first_s:.1f} s, all {all_s:.1f} s, load {load:.1f}"
    )
    assert first_s < 20
