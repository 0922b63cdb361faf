"""Statements of docs/python.md about `import trinat`, on a demo head with a shipped model."""

from __future__ import annotations

import doctest
import inspect
import os
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from helpers.miniatures import head_image, head_labels, write_nifti
from helpers.overfitted import overfitted_model, with_parcels
from helpers.service import tiny_scan
from helpers.small_store import small_store
from helpers.warm import Warm
from matplotlib import pyplot

import trinat
from trinat.pipelines.demo import GEOMETRIES
from trinat.segmentation.synthetic.phantom import phantom

ROOT = Path(__file__).parents[2]
FUNCTIONS = [
    name for name in trinat.__all__ if inspect.isfunction(getattr(trinat, name))
]
METHODS = [
    f"{name}.{method}"
    for name in ("Result", "Segmenter", "Surface")
    for method, value in vars(getattr(trinat, name)).items()
    if inspect.isfunction(value) and not method.startswith("_")
]


@dataclass(frozen=True)
class Found:
    folder: Path
    scan: trinat.Volume
    truth: trinat.Volume
    result: trinat.Result


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Segment the demo's head of thick voxels, given as a nibabel image."""
    folder = tmp_path_factory.mktemp("found")
    geometry = GEOMETRIES[2]
    scan, truth = phantom(
        np.random.default_rng((0, 2)),
        spacing_mm=geometry.spacing_mm,
        orientation=geometry.orientation,
        oblique_deg=geometry.oblique_deg,
    )
    scan.write(folder / "scan.nii.gz")
    return Found(folder, scan, truth, trinat.segment(nib.load(folder / "scan.nii.gz")))


@pytest.mark.slow
@pytest.mark.important
def test_python_and_the_command_line_write_the_same_bytes(
    tmp_path: Path, warm: Warm
) -> None:
    scan, out = tiny_scan(tmp_path / "scan.nii.gz"), tmp_path / "out"
    model = overfitted_model()
    result = trinat.segment(nib.load(scan), model=model)
    result.save(tmp_path / "saved.nii.gz")
    words = ("trinat", "predict", scan, "--out", out, "--model", model)
    with (tmp_path / "said").open("wb") as said:
        assert warm.start(*words, environment=os.environ, stderr=said).wait() == 0
    written = (out / "scan_dseg.nii.gz").read_bytes()
    assert (tmp_path / "saved.nii.gz").read_bytes() == written
    counted = f"1 done: 1 {result.quality.name}; 0 failed"
    assert counted in (tmp_path / "said").read_text()


@pytest.mark.slow
@pytest.mark.important
def test_a_result_is_the_same_image_to_nibabel_and_on_disk(found: Found) -> None:
    found.result.save(found.folder / "saved.nii.gz")
    nib.save(found.result.to_nibabel(), found.folder / "nibabel.nii")
    images = [nib.load(found.folder / name) for name in ("nibabel.nii", "saved.nii.gz")]
    assert images[0].header == images[1].header
    np.testing.assert_array_equal(*(np.asarray(image.dataobj) for image in images))


@pytest.mark.slow
@pytest.mark.important
def test_every_line_of_a_result(found: Found) -> None:
    result, grid = found.result, found.scan.shape
    name = "Left-Hippocampus"
    mask = result.mask(name)
    assert (result.labels.shape, mask.shape, mask.data.dtype) == (grid, grid, bool)
    np.testing.assert_array_equal(mask, np.asarray(result.labels) == 17)
    table = result.volumes()
    assert [*table] == ["structure", "freesurfer", "side", "mm3", "share", "grade"]
    assert len(table) == 32
    row = table.set_index("structure").loc[name]
    assert (row.freesurfer, row.side) == (17, "left")
    assert row.mm3 == pytest.approx(mask.data.sum() * 1.5)
    assert row.grade == result.quality.structures[name]
    tissue = ~table.structure.str.contains("Vent$|Ventricle|CSF")
    tissue |= table.structure.str.contains("VentralDC")
    assert table.share[tissue].sum() == pytest.approx(1)
    probability = result.probability("L-Hi")
    assert (
        probability.data[mask.data].mean() > 0.5 > probability.data[~mask.data].mean()
    )
    assert result.entropy.data[mask.data].mean() > result.entropy.data.mean()
    surface = result.surface(17)
    assert surface.volume_mm3 == pytest.approx(row.mm3, rel=0.1)
    centre = result.labels.grid.places(np.argwhere(mask.data)).mean(0)
    np.testing.assert_allclose(surface.vertices.mean(0), centre, atol=1.5)
    assert len(repr(result)) < 200
    assert f"model fast: {result.quality.name}, 32 structures" in repr(result)
    page = result._repr_html_()
    assert page.count("<img src=") == 1
    assert "max-width: 100%" in page
    assert ">Left-Hippocampus</th>" in page
    shown = pyplot.get_fignums()
    figure = result.plot()
    assert len(pyplot.get_fignums()) == len(shown) + 1
    assert len(figure.axes) == 1
    pyplot.close(figure)
    # All fluid around the brain is inside the skull.
    fluid = result.mask("CSF").data
    assert result.brain_mask().data[fluid].mean() > 0.9


@pytest.mark.slow
@pytest.mark.important
def test_an_evaluation_takes_each_form_of_a_label_map(found: Found) -> None:
    first = trinat.evaluate(found.truth, found.result)
    assert first.dice["Left-Thalamus"] > 0.7
    assert first.note["CSF"] == "not compared: the truth's CSF is something else"
    found.truth.write(found.folder / "truth.nii.gz", labels=True)
    found.result.save(found.folder / "pred.nii.gz")
    data = found.result.labels.data.astype(np.int64)
    for truth, prediction in (
        (found.folder / "truth.nii.gz", str(found.folder / "pred.nii.gz")),
        (nib.load(found.folder / "truth.nii.gz"), data),
        (found.truth.data, (data, found.truth.affine)),
    ):
        other = trinat.evaluate(truth, prediction).drop("CSF")
        pd.testing.assert_frame_equal(other, first.drop("CSF"))
    alone = trinat.evaluate(
        found.truth.data, data
    )  # voxels of 1 mm, for lack of another grid
    assert alone.volume["Left-Thalamus"] == pytest.approx(
        first.volume["Left-Thalamus"] / 1.5
    )


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.parametrize("name", [*FUNCTIONS, *METHODS, "Segmenter"])
def test_the_example_of_each_docstring_runs(
    found: Found, name: str, tmp_path, monkeypatch
) -> None:
    # A small head under the name that the examples use; only speed matters, not the labels.
    write_nifti(tmp_path / "scan.nii.gz", head_image(head_labels()), "RAS")
    small_store(tmp_path / "store", {"sub-01": (14, 16, 18)})
    with_parcels(tmp_path / "own")
    monkeypatch.chdir(tmp_path)
    owner, _, method = name.partition(".")
    value = getattr(trinat, owner)
    value = getattr(value, method) if method else value
    (test,) = doctest.DocTestFinder(recurse=False, exclude_empty=False).find(
        value, name, globs={"trinat": trinat, "result": found.result}
    )
    # Methods that are shown in the examples of Segmenter and of Result.surface.
    assert test.examples or name in {"Segmenter.segment", "Surface.save"}
    assert doctest.DocTestRunner().run(test).failed == 0
    pyplot.close("all")
