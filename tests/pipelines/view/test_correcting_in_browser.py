"""The brush in a browser, at two sizes: paint, undo, a draft that outlives the page, save."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from helpers.browser import Browser, find_chromium
from helpers.service import Service, tiny_scan
from helpers.studies import add_lesions, write_study
from helpers.viewer import served

from trinat.pipelines.study.corrections import (
    Saving,
    corrected_path,
    correction_of,
    save_correction,
)
from trinat.pipelines.study.ratings import read_ratings
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme

pytestmark = [pytest.mark.slow, pytest.mark.important, pytest.mark.browser]

RIGHT_THALAMUS = load_scheme("quicknat33").names.index("Right-Thalamus")
STATE = "document.getElementById('correct-state').textContent"
SHOWN = "window.trinatShown?.step === 0"
BRUSH = "window.trinatPicture.nv.brush"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return write_study(tmp_path / "out", ["a"])


@contextmanager
def opened(width: int, height: int) -> Iterator[Browser]:
    """Open a browser of this size, and assert that it has no problems at the end."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    page = Browser(chromium, webgl=True)
    try:
        page.resize(width, height)
        yield page
        assert not page.problems
    finally:
        page.close()


def load(page: Browser, address: str) -> None:
    page.open(address)
    page.wait(SHOWN, 240)


def choose(page: Browser, field: str, value: object) -> None:
    page.evaluate(
        f"(() => {{ const field = document.getElementById({field!r});"
        f" field.value = {str(value)!r}; field.dispatchEvent(new Event('change'));"
        " field.dispatchEvent(new Event('input')); })()"
    )


def middle(page: Browser) -> tuple[float, float]:
    """Return the middle of the planes, which is in the head if one plane is shown."""
    x, y = page.evaluate(
        "(() => { const { left, top, width, height } ="
        " document.getElementById('planes').getBoundingClientRect();"
        " return [left + width / 2, top + height / 2]; })()"
    )
    return x, y


def begin(page: Browser) -> None:
    """Correct the first scan, on the axial plane, with the right thalamus."""
    page.press("a")
    page.press("x")
    page.wait("document.getElementById('correct').checkVisibility()")
    choose(page, "pen", RIGHT_THALAMUS)


def stroke(page: Browser) -> int:
    """Paint from left to right through the middle; return the number of changed voxels."""
    x, y = middle(page)
    page.drag((x - 30, y), (x - 10, y), (x + 10, y), (x + 30, y))
    page.wait(f"{STATE}.includes('draft kept')")
    return changed(page)


def changed(page: Browser) -> int:
    return int(page.evaluate(STATE).split()[0].replace(",", ""))


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_painted_undone_saved_and_there_again(
    out: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, width: int, height: int
) -> None:
    pictures = Path(os.environ.get("TRINAT_PICTURES", tmp_path))
    result = out / "a_dseg.nii.gz"
    before = result.read_bytes()
    with served(out, monkeypatch) as address, opened(width, height) as page:
        load(page, address)
        begin(page)
        first = stroke(page)
        assert first > 3
        (pictures / f"correct-{width}.png").write_bytes(page.picture())
        page.press("z")
        page.wait(f"{STATE}.startsWith('0 voxels')")
        # On the keyboards of Germany, Z and Y have each other's places.
        page.press("Z", "KeyY", shift=True)
        page.wait(f"{STATE}.startsWith('{first} voxels changed, draft kept')")

        # The page is closed halfway, and the kept draft reappears.
        load(page, address.partition("?")[0])
        page.wait(f"{STATE}.startsWith('{first} voxels')")
        assert page.evaluate("document.getElementById('correct').checkVisibility()")
        assert not list(out.rglob("*_desc-corrected_dseg.nii.gz"))

        page.evaluate("document.getElementById('save').click()")
        page.wait(f"{STATE}.startsWith('Saved as a_desc-corrected_dseg.nii.gz')")
        load(page, address.partition("?")[0])
        assert not page.evaluate("document.getElementById('correct').checkVisibility()")
        shown = page.evaluate(
            f"window.trinatPicture.labels.filter((l) => l === {RIGHT_THALAMUS}).length"
        )
    assert result.read_bytes() == before
    correction = correction_of(result)
    assert correction
    assert correction.sidecar
    assert correction.sidecar.changed_voxels == first
    corrected = Volume.read(corrected_path(result), labels=True)
    assert int((corrected.data == 49).sum()) == shown
    assert np.unique(corrected.data[correction.changed()]) == [49]
    # One slice of the axial plane.
    assert len(np.unique(np.argwhere(correction.changed())[:, 2])) == 1


def test_what_is_painted_while_it_is_saved_is_not_lost(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = out / "a_dseg.nii.gz"
    with served(out, monkeypatch) as address, opened(1280, 900) as page:
        load(page, address)
        begin(page)
        first = stroke(page)
        # Simulates a large map on a slow disk. New strokes may be kept with the draft that is
        # being saved; only a draft sent after that has the second stroke alone.
        page.evaluate(
            "(() => { const real = window.fetch; window.fetch = async (...words) => {"
            " const isSave = String(words[0]).includes('/correction?');"
            " if (isSave) await new Promise((done) => setTimeout(done, 1500));"
            " const wasSaved = window.isSaved;"
            " const answer = await real(...words);"
            " if (isSave) window.isSaved = true;"
            " if (String(words[0]).includes('/drafts/')) window.isKept = wasSaved;"
            " return answer; }; })()"
        )
        page.evaluate("document.getElementById('save').click()")
        x, y = middle(page)
        page.drag((x - 30, y + 40), (x - 10, y + 40), (x + 10, y + 40))
        page.wait(f"window.isKept && {STATE}.includes('draft kept')")
        second = changed(page)
        assert second > 0
        load(page, address.partition("?")[0])
        page.wait(f"{STATE}.startsWith('{second} voxels')")
        page.evaluate("document.getElementById('save').click()")
        page.wait(f"{STATE}.startsWith('Saved')")
    correction = correction_of(result)
    assert correction
    assert correction.sidecar
    assert correction.sidecar.changed_voxels == first + second


def test_a_finger_paints_as_the_mouse_does(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(out, monkeypatch) as address, opened(390, 844) as page:
        load(page, address)
        begin(page)
        by_mouse = stroke(page)
        page.press("z")
        page.wait(f"{STATE}.startsWith('0 voxels')")
        x, y = middle(page)
        page.touch((x - 30, y), (x - 10, y), (x + 10, y), (x + 30, y))
        page.wait(f"{STATE}.startsWith('{by_mouse} voxels changed, draft kept')")
        # One stroke, which is undone at once.
        page.press("z")
        page.wait(f"{STATE}.startsWith('0 voxels')")


def test_a_stroke_that_ends_outside_the_picture_is_one_of_the_correction(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(out, monkeypatch) as address, opened(1280, 900) as page:
        load(page, address)
        begin(page)
        x, y = middle(page)
        # The list of scans is left of the picture.
        page.drag((x - 30, y), (x - 10, y), (x + 10, y), (x + 30, y), (20, y))
        page.wait(f"/^[1-9]\\d* voxels changed, draft kept/.test({STATE})")
        # One stroke, which is undone at once.
        page.press("z")
        page.wait(f"{STATE}.startsWith('0 voxels')")


def test_a_killed_server_loses_no_stroke(out: Path) -> None:
    line = [sys.executable, "-m", "trinat", "view", str(out), "--no-browser"]

    def start(*options: str) -> tuple[subprocess.Popen[str], str]:
        server = subprocess.Popen([*line, *options], stdout=subprocess.PIPE, text=True)
        assert server.stdout
        return server, server.stdout.readline().split()[-1]

    def kill(server: subprocess.Popen[str]) -> None:
        server.kill()
        server.communicate()

    server, address = start()
    try:
        with opened(1280, 900) as page:
            load(page, address)
            begin(page)
            first = stroke(page)
            kill(server)
            x, y = middle(page)
            page.drag((x, y - 30), (x, y + 30))
            page.wait(f"{STATE}.startsWith('The draft is not kept: the server does')")

            # A restarted server has another token, which the browser gets by another tab.
            port = urlsplit(address).port
            server, again = start("--port", str(port))
            page.evaluate(f"fetch({again!r}).then((answer) => answer.ok)")
            page.wait(f"{STATE}.includes('draft kept')")
            both = changed(page)
            assert both > first
            # The browser logs refused connections and tokens.
            assert all(
                "ERR_CONNECTION_REFUSED" in problem or "401" in problem
                for problem in page.problems
            )
            page.problems.clear()
            load(page, again)
            page.wait(f"{STATE}.startsWith('{both} voxels')")
    finally:
        kill(server)


def test_each_tool_changes_what_it_says(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(out, monkeypatch) as address, opened(1280, 900) as page:
        load(page, address)
        begin(page)
        page.evaluate("window.trinatPicture.move([20, 36, 28])")
        x, y = middle(page)
        # In 3D several slices are painted.
        choose(page, "brush-size", 16)
        page.press("t")
        page.drag((x, y))
        page.wait(f"{STATE}.includes('draft kept')")
        ball = changed(page)
        # All voxels of 4 mm whose centres are within 8 mm.
        assert ball == 33
        page.press("t")
        # Painting over background only, which arrows choose, changes nothing else.
        page.evaluate("document.getElementById('within').focus()")
        page.press("ArrowDown")
        assert page.evaluate(f"{BRUSH}.within") == 0
        choose(page, "pen", RIGHT_THALAMUS - 1)
        page.drag((x, y))
        assert changed(page) == ball
        choose(page, "within", -1)
        # The painted part on one slice becomes another structure.
        page.press("g")
        page.drag((x, y))
        page.wait(f"{BRUSH}.done.length === 2")
        assert page.evaluate(f"{BRUSH}.done[1].indices.length") == 13
        assert changed(page) == ball
        # All of it is erased on the slice.
        page.press("w")
        page.drag((x, y))
        page.wait(f"{STATE}.startsWith('20 voxels')")
        # An outline is filled: it changes more than its own line.
        page.press("l")
        choose(page, "pen", RIGHT_THALAMUS)
        corners = [(-60, -60), (60, -60), (60, 60), (-60, 60)]
        page.drag(*((x + right, y + down) for right, down in corners))
        page.wait(f"{BRUSH}.done.length === 4")
        inside = page.evaluate("window.trinatPicture.under()")
        assert inside == RIGHT_THALAMUS
        # Moving the picture does not paint.
        page.press("y")
        page.drag((x + 90, y + 90))
        assert page.evaluate(f"{BRUSH}.done.length") == 4
        page.evaluate("document.getElementById('discard').click()")
        page.wait(f"{STATE}.startsWith('0 voxels')")
    assert not list(out.glob(".trinat-work/drafts/*"))


def test_who_is_overtaken_is_told_and_puts_the_changes_on_what_was_saved(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = out / "a_dseg.nii.gz"
    with served(out, monkeypatch) as address, opened(1280, 900) as page:
        load(page, address)
        begin(page)
        first = stroke(page)
        # Another rater saves in the meantime.
        other = Volume.read(result, labels=True)
        other.data[0, 0, 0] = 10
        save_as(out, result, other, "berta")
        theirs = corrected_path(result).read_bytes()
        page.evaluate("document.getElementById('save').click()")
        page.wait(f"{STATE}.startsWith('Not saved')")
        assert "by berta at" in page.evaluate(STATE)
        assert corrected_path(result).read_bytes() == theirs
        # The browser logs the refusal.
        assert all("409" in problem for problem in page.problems)
        page.problems.clear()
        page.evaluate("document.querySelector('#correct-state button').click()")
        page.wait(f"{STATE}.startsWith('{first} voxels')", 120)
        page.evaluate("document.getElementById('save').click()")
        page.wait(f"{STATE}.startsWith('Saved')")
    correction = correction_of(result)
    assert correction
    assert correction.sidecar
    assert [saving.by for saving in correction.sidecar.savings] == ["berta", "anna"]
    assert correction.sidecar.changed_voxels == first + 1


def test_a_corrected_volume_is_held_against_what_was_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both have a right thalamus of 27 voxels.
    out = write_study(tmp_path / "out", ["a", "b"])
    card = "document.getElementById('structure-card').textContent"
    with served(out, monkeypatch) as address, opened(1280, 900) as page:
        load(page, address)
        begin(page)
        assert "Of brain" in page.evaluate(card)
        stroke(page)
        corrected = page.evaluate(card)
    assert "corrected; 2 of 2 results are smaller" in corrected
    # The volume of the brain is that before the correction.
    assert "Of brain" not in corrected


def verdict(page: Browser, name: str) -> tuple[float, float]:
    """Return the middle of the button that gives the scan a verdict."""
    x, y = page.evaluate(
        "(() => { const { left, top, width, height } ="
        f" document.querySelector('#judge [data-grade={name}]').getBoundingClientRect();"
        " return [left + width / 2, top + height / 2]; })()"
    )
    return x, y


def test_a_verdict_after_a_remark_counts_at_the_first_click(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(out, monkeypatch) as address, opened(1280, 900) as page:
        load(page, address)
        page.press("1", "Digit1")
        page.wait("document.querySelector('.said')?.dataset.grade === 'pass'")
        page.press("m")
        for letter in "edge":
            page.press(letter)
        # The remark is saved as soon as the button is pressed.
        saved = "document.querySelector('.said').title === 'edge'"
        page.hold(*verdict(page, "reject"), until=saved)
        page.wait("document.querySelector('.said').dataset.grade === 'reject'")
    (rating,) = read_ratings(out / "ratings.tsv")
    assert (rating.rating, rating.remark) == ("reject", "edge")


def test_a_rating_is_of_the_scans_own_map_and_a_stale_one_is_confirmed(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = "document.querySelector('#judge .stale')"
    with served(out, monkeypatch) as address, opened(1280, 900) as page:
        load(page, address)
        page.press("1", "Digit1")
        page.wait("document.querySelector('.said')?.dataset.grade === 'pass'")
        begin(page)
        stroke(page)
        page.evaluate("document.getElementById('save').click()")
        page.wait(f"{STATE}.startsWith('Saved') && {stale} !== null")
        page.press("f")
        page.wait("window.trinatPicture.state.flipped")
        page.press("3", "Digit3")
        assert "Press F" in page.evaluate(
            "document.getElementById('message').textContent"
        )
        page.press("f")
        page.wait("!window.trinatPicture.state.flipped")
        page.click(*verdict(page, "pass"))
        page.wait(f"{stale} === null")
    (rating,) = read_ratings(out / "ratings.tsv")
    assert rating.rating == "pass"
    assert rating.sha256 == sha256_of(corrected_path(out / "a_dseg.nii.gz"))


def test_a_result_of_a_service_is_corrected(tmp_path: Path) -> None:
    scan = tiny_scan(tmp_path / "scan.nii.gz")
    with Service(tmp_path / "queue") as service, opened(1280, 900) as page:
        id = service.ready().send(scan).json()["id"]
        assert service.wait(id)["state"] == "done"
        load(page, service.address)
        begin(page)
        stroke(page)
        files = "document.getElementById('files').innerText"
        assert "corrected.nii.gz" not in page.evaluate(files)
        page.evaluate("document.getElementById('save').click()")
        page.wait(f"{STATE}.startsWith('Saved as')")
        page.wait(f"{files}.includes('corrected.nii.gz')")
        # The page shows the progress of the learning.
        page.evaluate("document.getElementById('learn').click()")
        page.wait("document.getElementById('learning-state').textContent.length > 0")
        assert page.evaluate("document.getElementById('learn').disabled")
        assert service.client.get("/v1/learning").json()["scans"] == 1
    corrections = (tmp_path / "queue").rglob("*corrected_dseg.nii.gz")
    assert len(list(corrections)) == 1


def save_as(out: Path, result: Path, corrected: Volume, rater: str) -> None:
    """Save a correction as the page of another rater does."""
    save_correction(
        result,
        corrected,
        Saving(by=rater, at="2026-01-01T00:00:00+00:00", minutes=1),
        builds_on=sha256_of(result),
        names={10: "Left-Thalamus"},
        lock=out / ".trinat-work/lock.corrections",
    )


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_a_lesion_is_painted_beside_the_structures(
    out: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, width: int, height: int
) -> None:
    pictures = Path(os.environ.get("TRINAT_PICTURES", tmp_path))
    add_lesions(out, "a")
    with served(out, monkeypatch) as address, opened(width, height) as page:
        load(page, address)
        page.evaluate("window.trinatShown = null")
        page.evaluate("document.getElementById('lesions').click()")
        page.wait(SHOWN, 240)
        page.press("a")
        page.press("x")
        page.wait("document.getElementById('correct').checkVisibility()")
        pens = "document.getElementById('pen').textContent"
        assert page.evaluate(pens) == "White matter lesions"
        first = stroke(page)
        card = "document.getElementById('structure-card').textContent"
        assert "Lesions before these changes2" in page.evaluate(card)
        page.evaluate("document.getElementById('save').click()")
        page.wait(f"{STATE}.startsWith('Saved as a_desc-corrected_lesions.nii.gz')")
        assert "Lesions3" in page.evaluate(card)
        listed = "document.querySelectorAll('#structure-card .lesions button').length"
        # Two were found, one was painted.
        assert page.evaluate(listed) == 3
        (pictures / f"lesions-{width}.png").write_bytes(page.picture())
        # The mask before the correction, and back to the structures with their own brush.
        page.press("f")
        page.wait("window.trinatPicture.state.flipped")
        page.evaluate("window.trinatShown = null")
        page.evaluate("document.getElementById('lesions').click()")
        page.wait(SHOWN, 240)
        begin(page)
        assert stroke(page) > 3
    correction = correction_of(out / "a_lesions.nii.gz")
    assert correction
    assert correction.sidecar
    assert correction.sidecar.changed_voxels == first
    assert correction_of(out / "a_dseg.nii.gz") is None
