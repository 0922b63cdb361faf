"""The picture in a browser: sides are right, and nothing of the previous scan remains."""

from __future__ import annotations

import io
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers.browser import Browser, find_chromium
from helpers.studies import replace_scan, write_study
from helpers.viewer import served
from numpy.typing import NDArray
from PIL import Image

from trinat.segmentation.io.volume import Volume


def write_marked(out: Path, codes: str, *, oblique: bool = False) -> None:
    """Write a grey head with a white marker on the person's left, labelled as the left thalamus.

    The axes of the arrays run as `codes`; in world space both files are the same. If `oblique`, the
    head is turned by 40 degrees about the vertical axis.
    """
    write_study(out, ["marked"])
    head = np.zeros((30, 24, 18), np.int16)
    head[2:28, 2:22, 2:16] = 200
    marker = np.s_[5:11, 9:15, 6:12]  # i increases to the right, so low is left
    labels = np.zeros(head.shape, np.uint8)
    head[marker] = 1000
    labels[marker] = 10
    affine = np.diag([4.0, 4.0, 4.0, 1.0])
    affine[:3, 3] = [-58, -46, -34]  # 0 mm in the middle
    if codes == "LAS":
        head = head[::-1].copy()
        labels = labels[::-1].copy()
        affine[0] = [-4, 0, 0, 58]
    if oblique:
        cosine, sine = np.cos(np.radians(40)), np.sin(np.radians(40))
        turn = np.eye(4)
        turn[:2, :2] = [[cosine, -sine], [sine, cosine]]
        affine = turn @ affine
    assert "".join(nib.aff2axcodes(affine)) == codes
    scan = out.parent / "scans/scan0.nii.gz"
    replace_scan(out, scan, nib.Nifti1Image(head, affine))
    Volume(labels, affine).write(out / "marked_dseg.nii.gz", labels=True)


def columns_of(page: Browser, grey: tuple[int, int]) -> NDArray[np.intp]:
    """Return the columns of grey pixels on the canvas whose brightness is within these bounds."""
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
    """Assert that the marker is on this side of the head, in both planes that show sides."""
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
            # The cross-hair is in the marker, and the page names that side of the participant.
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


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.browser
def test_the_cross_hair_of_an_oblique_scan_is_in_the_structure_and_moves_along_its_axes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    write_marked(tmp_path / "out", "RAS", oblique=True)
    page = Browser(chromium, webgl=True)
    here = "document.getElementById('here').textContent"
    try:
        page.resize(1440)
        with served(tmp_path / "out", monkeypatch) as address:
            page.open(address)
            page.wait("window.trinatShown?.step === 0", 240)
            # The centre of the marker is between slices 8 and 9, 12 and 13, 9 and 10.
            found = page.evaluate(here)
            assert found.startswith("L Thalamus")
            assert "slices 9/30, 13/24, 9/18" in found
            for _ in range(4):  # a voxel of 4 mm
                page.press("ArrowRight")
            assert "slices 10/30, 13/24, 9/18" in page.evaluate(here)
    finally:
        page.close()


# Data of the previous scan that may remain on the page: voxels, surfaces and values.
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
    # The values of this scan: 65 and 27 voxels of 64 mm³. The previous scan has 64 and 27.
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
    """Also if the previous scan is still loading when the next one is chosen."""
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
            # Nor later, when pending requests have arrived.
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


# Records the size and unit of every volume texture that is created from now on.
SIZES = """(() => {
  const { gl } = window.trinatPicture.nv;
  const make = gl.texStorage3D.bind(gl);
  window.sizes = {};
  gl.texStorage3D = (target, levels, format, ...size) => {
    window.sizes[gl.getParameter(gl.ACTIVE_TEXTURE) - gl.TEXTURE0] = size;
    make(target, levels, format, ...size);
  };
})()"""


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.browser
def test_gradients_that_nothing_shows_are_not_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    out = write_study(tmp_path / "out", ["one", "two"])
    page = Browser(chromium, webgl=True)
    try:
        with served(out, monkeypatch) as address:
            page.open(address)
            page.wait("window.trinatShown?.step === 0", 240)
            page.evaluate(SIZES)
            page.press("n")
            page.wait("window.trinatShown.number === 1", 240)
            page.wait("window.trinatShown.step === 0", 240)
            sizes = page.evaluate("window.sizes")
        assert sizes["0"] == [20, 24, 18]
        # NiiVue's texture units for gradients, and for the blurred scan that they are computed
        # from.
        assert sizes["6"] == sizes["8"] == [1, 1, 18]
    finally:
        page.close()


# Two surfaces: number 1 has four points 100 mm apart, number 2 has 13,000 within 10 mm.
SURFACES = """(() => {
  const surface = (place, points, side) => {
    const buffer = new ArrayBuffer(12 + 12 * points + 12);
    new Uint32Array(buffer, 0, 3).set([place, points, 1]);
    const vertices = new Float32Array(buffer, 12, 3 * points);
    vertices.set([0, 0, 0, side, 0, 0, 0, side, 0, 0, 0, side]);
    new Uint32Array(buffer, 12 + 12 * points, 3).set([0, 1, 2]);
    return new Uint8Array(buffer);
  };
  const both = [surface(1, 4, 100), surface(2, 13000, 10)];
  return new Blob(both).arrayBuffer().then((buffer) =>
    window.trinatPicture.setSurfaces(buffer)).then(() =>
    Object.fromEntries(window.trinatPicture.solid.meshes.map((m) => [m.place, m.opacity])));
})()"""


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.browser
def test_a_surface_is_seen_through_for_its_extent_and_not_for_its_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    out = write_study(tmp_path / "out", ["one"])
    page = Browser(chromium, webgl=True)
    try:
        with served(out, monkeypatch) as address:
            page.open(address)
            page.wait("window.trinatShown?.step === 0", 240)
            opacity = page.evaluate(SURFACES)
        assert opacity == {"1": 0.1, "2": 1}
        assert not page.problems
    finally:
        page.close()
