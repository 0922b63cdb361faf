"""A site in a browser: it finds what `trinat predict` finds, and sends nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.browser import Browser, find_chromium
from helpers.overfitted import SMALL, miniature, miniature_on, overfitted_model
from helpers.viewer import answered

from trinat.pipelines.models.other_formats import export_model
from trinat.pipelines.view.guard import SITE_POLICY
from trinat.pipelines.view.start import make_site_app
from trinat.segmentation.inference.measuring import measure
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.inference.quality import grade, limits_of
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.models.checkpoint import load_model, save_model
from trinat.segmentation.models.model_info import Description, Prior, Template
from trinat.segmentation.models.quicknat import QuickNat
from trinat.segmentation.space.views import View

pytestmark = [pytest.mark.slow, pytest.mark.browser]

_LIMIT_S = 240
_ENDED = "['done', 'failed'].includes(trinatSite.jobs[0]?.state)"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a model overfitted to the miniature head with all steps of a model for any contrast."""
    known = load_model(overfitted_model())
    folder = tmp_path_factory.mktemp("model") / "own"
    classes = len(known.scheme)
    template = Template(
        np.full((4, 4, 4, classes), 7, np.uint8),
        np.diag([20, 20, 20, 1.0]),
        np.arange(3.0 * classes).reshape(classes, 3),
    )
    description = Description(
        name="own",
        contrast="any",
        reverse_contrast=True,
        not_predicted=known.info.not_predicted,
        prior=Prior(),
    )
    save_model(folder, description, known.networks, template=template)
    return folder


@pytest.fixture(scope="module")
def site(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export the site of the model."""
    pytest.importorskip("onnxscript")
    folder = tmp_path_factory.mktemp("site") / "site"
    export_model([str(model)], folder, format_="web")
    return folder


@pytest.fixture
def page(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    """Open the page of the site, and wait until its model is loaded."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    browser = Browser(chromium, webgl=True)
    app = make_site_app(site)
    try:
        with answered(app, monkeypatch, policy=SITE_POLICY) as address:
            browser.open(address)
            browser.wait("globalThis.trinatSite?.threads > 0", _LIMIT_S)
            yield browser
    finally:
        browser.close()


def in_noise(scan: Volume) -> Volume:
    """Pad a scan by 16 mm of noisy air on each side.

    In a constant slice, the last digit decides which of four pixels is pooled, and there even
    two versions of torch differ.
    """
    margins = np.ceil(16 / np.array(scan.spacing_mm)).astype(int)
    shape = np.array(scan.shape) + 2 * margins
    data = np.random.default_rng(0).integers(0, 9, shape).astype(np.float32)
    inside = tuple(slice(m, m + n) for m, n in zip(margins, scan.shape, strict=True))
    data[inside] += scan.data
    affine = scan.affine.copy()
    affine[:3, 3] = scan.grid.places(-margins)
    return Volume(data, affine)


def scans() -> dict[str, Volume]:
    """Return the miniature head on three grids."""
    return {
        "plain": in_noise(miniature("LIA")[0]),
        "oblique": in_noise(miniature_on((0.95, 1.2, 1.0), angle=0.2)),
        "anisotropic": in_noise(miniature_on((0.9, 1.0, 1.7), angle=0.0)),
    }


@pytest.mark.important
def test_it_finds_what_predict_finds_and_sends_nothing(
    page: Browser, model: Path, tmp_path: Path
) -> None:
    assert page.evaluate("crossOriginIsolated")
    assert not page.evaluate("trinatSite.isOnGraphics")
    page.save_to(tmp_path)
    page.requests.clear()
    predictor = Predictor(model, device="cpu", precision="float32")
    limits = limits_of(predictor.model.info)
    for name, scan in scans().items():
        path = tmp_path / f"{name}.nii.gz"
        scan.write(path)
        page.choose("#file", path)
        page.wait(f"trinatSite.jobs[0]?.name === '{path.name}' && {_ENDED}", _LIMIT_S)
        assert page.evaluate("trinatSite.jobs[0].reason") == ""
        page.wait("document.querySelectorAll('#files a').length === 3", _LIMIT_S)
        for link in (1, 2, 3):
            page.evaluate(
                f"document.querySelector('#files a:nth-of-type({link})').click()"
            )
        labels = tmp_path / "labels.nii.gz"
        mask = tmp_path / "brainmask.nii.gz"
        table = tmp_path / "volumes.tsv"
        end = time.monotonic() + _LIMIT_S
        while not all(file.is_file() for file in (labels, mask, table)):
            assert time.monotonic() < end
            page.evaluate("0")
            time.sleep(0.1)

        expected = predictor.segment(Volume.read(path))
        found = Volume.read(labels, labels=True)
        np.testing.assert_allclose(found.affine, expected.labels.affine, atol=1e-5)
        brain = (found.data > 0) | (expected.labels.data > 0)
        same = found.data == expected.labels.data
        assert same[brain].mean() >= 0.999, name
        inside = Volume.read(mask, labels=True).data > 0
        np.testing.assert_allclose(inside.sum(), expected.brain.data.sum(), rtol=0.005)
        assert (inside == expected.brain.data)[inside].mean() >= 0.999, name
        volumes = pd.read_csv(table, sep="\t", index_col="case").loc[name]
        measured = measure(expected, limits)
        assert list(volumes.index[1:]) == [
            *(f"{each}_mm3" for each in (*measured.mm3, *expected.volumes_mm3)),
            *(f"{structure}_share" for structure in expected.volumes_mm3),
            *("grade", "reasons", "notes"),
        ]
        for structure, mm3 in expected.volumes_mm3.items():
            # The smallest structures have 160 voxels, so two voxels are a percent.
            most = max(0.005 * mm3, 2 * expected.voxel_mm3)
            assert volumes[f"{structure}_mm3"] == pytest.approx(mm3, abs=most), (
                structure
            )
        result = page.evaluate("trinatSite.jobs[0].result")
        graded = grade(expected.evidence, limits)
        assert result["grade"] == graded.name, name
        assert len(result["reasons"]) == len(graded.reasons), name
        assert result["notes"][-1] == measured.note
        assert "anatomical prior not used: only" in result["notes"][-2]
        for file in (labels, mask, table):
            file.unlink()

    asked = [url for url in page.requests if not url.startswith(("data:", "blob:"))]
    assert asked == []
    # Chromium logs this if the page looks for a graphics card and there is none.
    said = [what for what in page.problems if "No available adapters" not in what]
    assert said == []


def test_networks_on_a_graphics_card_find_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript")
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    # Built like the shipped models but much smaller; its labels have no meaning.
    small = {"channels": 3, "unshuffle": 2, "filters": 4, "depth": 1, "classes": 33}
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        network = QuickNat(SMALL.model_copy(update=small))
    model = tmp_path / "random"
    save_model(model, Description(name="random"), {View.CORONAL: network})
    site = tmp_path / "site"
    export_model([str(model)], site, format_="web")
    path = tmp_path / "plain.nii.gz"
    scans()["plain"].write(path)
    # A software adapter stands in for the card; it is only used on request.
    page = Browser(chromium, webgl=True, webgpu=True)
    try:
        with answered(make_site_app(site), monkeypatch, policy=SITE_POLICY) as address:
            page.open(f"{address}&device=webgpu")
            page.wait("globalThis.trinatSite?.threads > 0", _LIMIT_S)
            assert page.evaluate("trinatSite.isOnGraphics")
            where = "document.getElementById('where').textContent"
            assert "on the graphics card" in page.evaluate(where)
            page.choose("#file", path)
            page.wait(_ENDED, _LIMIT_S)
            assert page.evaluate("trinatSite.jobs[0].reason") == ""
            page.save_to(tmp_path)
            page.wait("document.querySelectorAll('#files a').length === 3", _LIMIT_S)
            page.evaluate("document.querySelector('#files a').click()")
            end = time.monotonic() + _LIMIT_S
            while not (tmp_path / "labels.nii.gz").is_file():
                assert time.monotonic() < end
                page.evaluate("0")
                time.sleep(0.1)
    finally:
        page.close()
    predictor = Predictor(model, device="cpu", precision="float32")
    expected = predictor.segment(Volume.read(path)).labels
    found = Volume.read(tmp_path / "labels.nii.gz", labels=True)
    brain = (found.data > 0) | (expected.data > 0)
    assert brain.any()
    assert (found.data == expected.data)[brain].mean() >= 0.999


def test_what_is_no_head_is_refused_in_a_sentence(
    page: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "small.nii"
    Volume(np.ones((8, 20, 20), np.uint8), np.eye(4)).write(path)
    page.choose("#file", path)
    page.wait(_ENDED)
    assert page.evaluate("trinatSite.jobs[0].reason") == (
        "8 x 20 x 20 voxels, fewer than 16 slices along an axis: give a whole-head 3D scan"
    )
    page.wait("document.getElementById('message').textContent.includes('8 x 20')")


def test_a_scan_is_given_up_and_the_next_one_is_done(
    page: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "scan.nii"
    scans()["plain"].write(path)
    page.choose("#file", path)
    page.wait("trinatSite.jobs[0]?.share > 0", _LIMIT_S)
    page.wait("!!document.getElementById('delete')")
    page.evaluate("globalThis.confirm = () => true")
    page.evaluate("document.getElementById('delete').click()")
    page.wait("trinatSite.jobs.length === 0 && !trinatSite.current", _LIMIT_S)
    page.choose("#file", path)
    page.wait(_ENDED, _LIMIT_S)
    assert page.evaluate("trinatSite.jobs[0].state") == "done"
