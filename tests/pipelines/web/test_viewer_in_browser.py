"""The page in a real browser: twenty scans, keys, a rating that stays; nothing from elsewhere."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Queue

import nibabel as nib
import numpy as np
import pytest
from helpers.browser import Browser, find_chromium
from helpers.service import tiny_scan
from helpers.studies import write_study
from numpy.typing import NDArray
from PIL import Image

from trinat.pipelines.common.ratings import read_ratings, save_rating
from trinat.pipelines.web import start
from trinat.pipelines.web.queue import Queue as ServiceQueue
from trinat.pipelines.web.queue_study import study_of
from trinat.pipelines.web.study import Study
from trinat.pipelines.web.viewer import make_app
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme

EVIL = "sub-<script>document.title='hit'<"


@pytest.fixture
def address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[str]:
    count = getattr(request, "param", 20)
    out = write_study(
        tmp_path / "out", [EVIL, *(f"sub-{n:02d}" for n in range(1, count))]
    )
    with served(out, monkeypatch) as address:
        yield address


@contextmanager
def served(
    out: Path, monkeypatch: pytest.MonkeyPatch, study: Study | None = None
) -> Iterator[str]:
    """The address at which the page of a folder of results answers, while the block runs."""
    servers, said = [], Queue[str]()
    server = start.uvicorn.Server
    monkeypatch.setattr(
        start.uvicorn,
        "Server",
        lambda config: servers.append(server(config)) or servers[-1],
    )
    app = make_app(study or Study(out, "anna"))
    thread = threading.Thread(
        target=start.answer, args=(app, "secret"), kwargs={"say": said.put}
    )
    thread.start()
    try:
        yield said.get(timeout=60)
    finally:
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
        shown_name = "document.getElementById('name').firstChild.textContent"
        first = page.evaluate(shown_name)
        page.press("n")
        page.wait(
            "window.trinatShown.number === 1 && window.trinatShown.step === 0", 240
        )
        second = page.evaluate(shown_name)
        assert second != first
        # A structure by its name; the cross-hair goes there.
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
        # Its 3 x 3 x 3 voxels of 4 mm are around voxel 13, 9, 7.
        # Voxels count from 1, and the scan's own value is 200 and four times the label.
        page.wait("document.getElementById('here').textContent.includes('value')")
        assert page.evaluate("document.getElementById('here').textContent") == (
            "R Thalamus · 52, 36, 28 mm · slices 14/20, 10/24, 8/18 · value 396"
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
# Main fills what is left of the window, and nothing reaches beyond it.
FILLS = """(() => {
  const { bottom, right } = document.querySelector("main").getBoundingClientRect();
  return Math.abs(bottom - innerHeight) < 2 && Math.abs(right - innerWidth) < 2
    && document.documentElement.scrollWidth <= innerWidth;
})()"""
# A picture is saved by a click on a link to its bytes.
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
        # Of two scans a rank is told, and what the model does not predict is said.
        rows = page.evaluate("document.getElementById('structure-list').innerText")
        assert "CSFnot predicted" in "".join(rows.splitlines())
        page.evaluate("document.querySelector('[data-place=\"7\"] .structure').click()")
        assert "of 2, 1 the smallest" in page.evaluate(
            "document.getElementById('structure-card').innerText"
        )
        # From row to row by the arrows, and one sees where one is.
        page.evaluate("document.querySelector('nav [data-tab=structures]').click()")
        page.evaluate("document.querySelector('[data-place=\"7\"] .structure').focus()")
        page.press("ArrowDown")
        at = "document.activeElement"
        assert page.evaluate(f"{at}.closest('li').dataset.place") == "8"
        assert page.evaluate(f"getComputedStyle({at}).outlineStyle") == "solid"
        # What is seen is saved as a picture by the name of its scan.
        page.evaluate(NOTE_WHAT_IS_SAVED)
        page.press("p")
        page.wait("window.saved.name")
        shown_name = page.evaluate(
            "document.getElementById('name').firstChild.textContent"
        )
        assert page.evaluate("window.saved.name") == f"{shown_name}.png"
        assert page.evaluate("window.saved.type") == "image/png"
        assert page.evaluate("window.saved.size") > 1000
        # Of two scans this one has the smallest or the largest volume.
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
    queue = ServiceQueue(tmp_path / "queue")
    study = study_of(queue, load_scheme("quicknat33"))
    page = Browser(chromium, webgl=True)
    try:
        with served(tmp_path / "queue", monkeypatch, study) as address:
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
            # A scan that waits for its turn is seen already.
            with queue.upload("a") as folder:
                queue.accept(tiny_scan(folder / "scan.nii.gz"), [], "a")
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


ADD_A_TAB = """(async () => {
  const { addTab } = await import("/tabs.js");
  const { make, page } = await import("/page.js");
  addTab({
    id: "facts",
    title: "Facts",
    column: "right",
    build: (section) => section.append(make("p", {}, page.study.title)),
    fill: (section) => {
      const grade = page.detail ? page.detail.grade : "loading";
      section.replaceChildren(make("p", {}, `grade: ${grade}`));
    },
  });
})()"""


def seen(page: Browser, ids: list[str]) -> list[str]:
    """Those of some elements that are visible."""
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
        page.evaluate(ADD_A_TAB)
        facts = "document.getElementById('facts').textContent"
        assert page.evaluate(facts) == "out"
        page.press("n")
        page.wait(f"{facts} === 'grade: pass'")
        # Beside one another, and by turns with the structures.
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


def write_marked(out: Path, codes: str) -> None:
    """A grey head with a white marker on the person's left, labelled as the left thalamus.

    The arrays have axes that run as `codes`; in the world both files are the same.
    """
    write_study(out, ["marked"])
    head = np.zeros((30, 24, 18), np.int16)
    head[2:28, 2:22, 2:16] = 200
    marker = np.s_[5:11, 9:15, 6:12]  # i grows to the right: low is left
    labels = np.zeros(head.shape, np.uint8)
    head[marker] = 1000
    labels[marker] = 10
    affine = np.diag([4.0, 4.0, 4.0, 1.0])
    affine[:3, 3] = [-58, -46, -34]  # 0 mm in the middle
    if codes == "LAS":
        head = head[::-1].copy()
        labels = labels[::-1].copy()
        affine[0] = [-4, 0, 0, 58]
    assert "".join(nib.aff2axcodes(affine)) == codes
    Volume(head, affine).write(out.parent / "scans/scan0.nii.gz")
    Volume(labels, affine).write(out / "marked_dseg.nii.gz", labels=True)


def columns_of(page: Browser, grey: tuple[int, int]) -> NDArray[np.intp]:
    """Columns of the pixels on the canvas that are grey, at a brightness within these bounds."""
    box = page.evaluate(
        "(() => { const b = document.getElementById('planes').getBoundingClientRect();"
        " return [b.left, b.top, b.right, b.bottom].map(Math.round); })()"
    )
    with Image.open(io.BytesIO(page.picture())) as shot:
        pixels = np.asarray(shot.convert("RGB").crop(box), int)
    spread = pixels.max(axis=2) - pixels.min(axis=2)
    level = pixels.mean(axis=2)
    found = (spread <= 3) & (grey[0] <= level) & (level <= grey[1])
    return np.nonzero(found)[1]


def assert_marker_is_on(page: Browser, side: str) -> None:
    """The white marker is on this side of the picture's head, in both planes that have sides."""
    for key, layout in (("a", "axial"), ("c", "coronal")):
        page.press(key)
        page.wait(f"document.getElementById('stage').dataset.layout === {layout!r}")
        page.evaluate("new Promise((done) => setTimeout(done, 500))")
        marker = columns_of(page, (240, 255))
        head = columns_of(page, (35, 70))
        assert len(marker) > 100
        assert len(head) > 10 * len(marker)
        middle = (head.min() + head.max()) / 2
        if side == "left":
            assert marker.max() < middle
        else:
            assert marker.min() > middle


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.browser
@pytest.mark.parametrize("codes", ["RAS", "LAS"])
def test_what_is_on_the_persons_left_is_shown_on_the_side_that_the_page_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codes: str
) -> None:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    write_marked(tmp_path / "out", codes)
    page = Browser(chromium, webgl=True)
    try:
        page.resize(1440)
        with served(tmp_path / "out", monkeypatch) as address:
            page.open(address)
            page.wait("window.trinatShown?.step === 0", 240)
            # The cross-hair is in the marker, and the page says on which side of the person it is.
            here = page.evaluate("document.getElementById('here').textContent")
            assert here.startswith("L Thalamus · -")
            page.press("h")  # without the labels the marker is white
            for side in ("left", "right"):
                words = page.evaluate("document.getElementById('sides').textContent")
                assert f"the person's left is on the {side}" in words
                assert_marker_is_on(page, side)
                page.press("r")
    finally:
        page.close()


# What of the scan before may still be on the page: its voxels, surfaces and values.
LEFT = """(() => {
  const { nv, solid, labels } = window.trinatPicture;
  const volumes = document.querySelectorAll("#structure-list .volume");
  return {
    volumes: nv.volumes.length, bitmap: Boolean(nv.drawBitmap), labels: Boolean(labels),
    meshes: solid ? solid.meshes.length : 0,
    here: document.getElementById("here").textContent,
    values: [...volumes].map((cell) => cell.textContent),
    visible: getComputedStyle(document.querySelector("#stage .planes")).visibility,
  };
})()"""
NOTHING_LEFT = {
    "volumes": 0,
    "bitmap": False,
    "labels": False,
    "meshes": 0,
    "here": "",
    # Of the scan itself: 65 and 27 voxels of 64 mm³. The one before has 64 and 27.
    "values": ["4,160", "1,728"],
    "visible": "hidden",
}


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.browser
@pytest.mark.parametrize("whole", [True, False])
def test_nothing_of_the_scan_before_is_shown_under_the_name_of_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """Also where the scan before is still loading when the next one is chosen."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    out = write_study(tmp_path / "out", ["good", "broken"])
    (out / "broken_dseg.nii.gz").write_bytes(b"no label map")
    page = Browser(chromium, webgl=True)
    try:
        page.resize(1440)
        with served(out, monkeypatch) as address:
            page.open(address)
            page.wait("!!document.querySelectorAll('.scan').length")
            # The grade look comes before pass.
            page.evaluate("document.querySelectorAll('.scan')[1].click()")
            step = "window.trinatShown?.number === 1"
            if whole:
                step += " && window.trinatShown.step === 0"
            page.wait(step, 240)
            page.evaluate("document.querySelectorAll('.scan')[0].click()")
            message = "document.getElementById('message').textContent"
            page.wait(f"{message}.includes('broken')", 60)
            name = page.evaluate("document.getElementById('name').textContent")
            assert name.startswith("broken")
            assert page.evaluate(LEFT) == NOTHING_LEFT
            # A moment later, too: what was on its way does not come.
            page.evaluate("new Promise((done) => setTimeout(done, 1500))")
            assert page.evaluate(LEFT) == NOTHING_LEFT
    finally:
        page.close()


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.browser
@pytest.mark.parametrize("voxels", [0, 1])
def test_a_map_with_tiny_or_no_structures_has_the_surfaces_that_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, voxels: int
) -> None:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    out = write_study(tmp_path / "out", ["tiny"])
    labels = np.zeros((20, 24, 18), np.uint8)
    labels[5, 5, 5] = 17 * voxels
    labels[9:14, 9:14, 9:14] = 10 * voxels
    Volume(labels, np.diag([4.0, 4.0, 4.0, 1.0])).write(
        out / "tiny_dseg.nii.gz", labels=True
    )
    page = Browser(chromium, webgl=True)
    try:
        with served(out, monkeypatch) as address:
            page.open(address)
            page.wait("window.trinatShown?.step === 0", 240)
            meshes = "window.trinatPicture.solid.meshes.map((mesh) => mesh.name).sort()"
            names = ["Left-Hippocampus", "Left-Thalamus"] if voxels else []
            assert page.evaluate(meshes) == names
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
