"""The page in a real browser: twenty scans, keys, a rating that stays; nothing from elsewhere."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import Queue

import numpy as np
import pytest
from helpers.browser import Browser, find_chromium
from helpers.studies import write_study

from trinat.pipelines.common.ratings import read_ratings, save_rating
from trinat.pipelines.view.app import make_app
from trinat.pipelines.view.study import Study
from trinat.pipelines.web import start
from trinat.segmentation.io.volume import Volume

EVIL = "sub-<script>document.title='hit'<"


@pytest.fixture
def address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[str]:
    count = getattr(request, "param", 20)
    out = write_study(
        tmp_path / "out", [EVIL, *(f"sub-{n:02d}" for n in range(1, count))]
    )
    servers, said = [], Queue[str]()
    server = start.uvicorn.Server
    monkeypatch.setattr(
        start.uvicorn,
        "Server",
        lambda config: servers.append(server(config)) or servers[-1],
    )
    app = make_app(Study(out, "anna"))
    thread = threading.Thread(
        target=start.answer, args=(app, "secret"), kwargs={"say": said.put}
    )
    thread.start()
    yield said.get(timeout=60)
    servers[0].should_exit = True
    thread.join(60)


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
        first = page.evaluate("document.getElementById('name').firstChild.textContent")
        page.press("n")
        page.wait(
            "window.trinatShown.number === 1 && window.trinatShown.step === 0", 240
        )
        second = page.evaluate("document.getElementById('name').firstChild.textContent")
        assert second != first
        # A structure by its name; the cross-hair goes there.
        page.evaluate(
            "(() => { const i = document.getElementById('structure-search'); i.value = 'thal r';"
            " i.dispatchEvent(new Event('input')); })()"
        )
        shown = (
            "[...document.querySelectorAll('#structure-list li:not([hidden]) .name')]"
        )
        assert page.evaluate(f"{shown}.map((x) => x.textContent)") == ["Thalamus R"]
        page.evaluate(
            "document.querySelector('#structure-list li:not([hidden]) .structure').click()"
        )
        # Its 3 x 3 x 3 voxels of 4 mm are around voxel 13, 9, 7.
        assert page.evaluate("document.getElementById('here').textContent") == (
            "Thalamus R · 52, 36, 28 mm"
        )
        page.press("BracketRight")
        assert page.evaluate("document.getElementById('opacity').value") == "0.6"
        page.press("Digit3")
        page.wait(
            "!!document.querySelector('#judge [data-grade=reject][aria-pressed=true]')"
        )
        page.press("Digit2", shift=True)
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
        rows = page.evaluate("document.getElementById('raters-rows').innerText")
        assert rows.split() == [
            *("scans", "anna,", "berta", "1", "100", "%", "not", "defined"),
            *("structures", "anna,", "berta", "1", "100", "%", "not", "defined"),
        ]
        page.evaluate("document.querySelector('#raters button').click()")
        said = "document.querySelectorAll('.said[data-grade=reject]').length"
        assert page.evaluate(said) == 1
        assert page.evaluate("document.querySelector('script:not([src])')") is None
        assert page.evaluate(f"document.body.textContent.includes({EVIL!r})")
        assert "hit" not in page.evaluate("document.title")
        assert not page.problems
        host = address.partition("?")[0]
        assert all(url.startswith((host, "data:", "blob:")) for url in page.requests)
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
    study = Study(tmp_path / "out", "anna")
    # The first of the list in the size of a head, with noise, as it packs badly.
    item = study.items[0]
    image, chance = study.image(item), np.random.default_rng(0)
    assert image
    assert item.labels
    for path, is_labels in ((image, False), (item.labels, True)):
        small = Volume.read(path, labels=is_labels)
        data = np.kron(small.data, np.ones((10, 10, 10), small.data.dtype))
        if not is_labels:
            data = data + chance.integers(0, 20, data.shape, data.dtype)
        affine = small.affine @ np.diag([0.1, 0.1, 0.1, 1])
        Volume(data, affine).write(path, labels=is_labels)
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
    load, scans = os.getloadavg()[0], len(study.items)
    print(
        f"{scans} scans: first picture {first_s:.1f} s, all {all_s:.1f} s, load {load:.1f}"
    )
    assert first_s < 20
