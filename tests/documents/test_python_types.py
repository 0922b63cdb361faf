"""Each image type in the table of docs/python.md works as a scan, and as the type of the labels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813 - as its documents do
import torch
import torchio
from helpers.overfitted import random_model
from helpers.serial import small_scan
from monai.data import MetaTensor
from oracle.fuzz import odd_scan

import trinat

ROOT = Path(__file__).parents[2]
INDEX = (11, 10, 4)


def table_rows() -> dict[str, str]:
    """Return by type the code in the table that gives labels of that type, or ""."""
    page = (ROOT / "docs/python.md").read_text()
    table = page.split("| type | as a scan |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `(.+?)` \|.*\|(.*)\|$", table, re.MULTILINE)
    return {name: re.sub(r"`(.+)`.*", r"\1", code).strip() for name, code in rows}


ROWS = table_rows()


@dataclass(frozen=True)
class Given:
    """A scan in each form, a segmenter, and the labels that it finds in the first form."""

    forms: dict[str, Any]
    segmenter: trinat.Segmenter
    labels: trinat.Volume


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    """Provide a head in oblique, anisotropic, left-handed voxels."""
    voxels = small_scan().data
    affine = odd_scan().affine
    scan = trinat.Volume(voxels, affine)
    path = tmp_path_factory.mktemp("given") / "scan.nii"
    scan.write(path)
    t1 = torchio.ScalarImage(path)
    t2 = torchio.ScalarImage(tensor=255 - voxels[None], affine=affine)
    forms = {
        "path": path,
        "trinat.Volume": scan,
        "(array, affine)": (voxels, affine),
        "nibabel.Nifti1Image": nib.load(path),
        "torchio.ScalarImage": t1,
        "torchio.Subject": torchio.Subject(t1=t1, t2=t2),
        "monai.data.MetaTensor": MetaTensor(voxels[None], affine=torch.tensor(affine)),
        "SimpleITK.Image": sitk.ReadImage(path),
    }
    segmenter = trinat.Segmenter(random_model(), device="cpu", views="axial")
    labels = segmenter.segment(path).labels
    # Another order of their voxels would show.
    for axis in range(3):
        assert (labels.data != np.flip(labels.data, axis)).any()
    return Given(forms, segmenter, labels)


def place_mm(image: Any) -> np.ndarray:
    """Return the position of the voxel INDEX in RAS mm, by the image's own library."""
    if isinstance(image, sitk.Image):
        return np.array(image.TransformIndexToPhysicalPoint(INDEX)) * (-1, -1, 1)
    affine = image[1] if isinstance(image, tuple) else image.affine
    return nib.affines.apply_affine(np.asarray(affine), INDEX)


def voxels_of(image: Any) -> np.ndarray:
    """Return the voxels (X, Y, Z) of an image of any type in the table."""
    if isinstance(image, sitk.Image):
        return sitk.GetArrayFromImage(image).transpose()
    if isinstance(image, tuple):
        return image[0]
    if isinstance(image, nib.Nifti1Image):
        return np.asarray(image.dataobj)
    if isinstance(image, trinat.Volume):
        return image.data
    return np.asarray(image.data[0])


def test_the_table_has_every_type_that_is_tried(given: Given) -> None:
    assert list(ROWS) == list(given.forms)


@pytest.mark.parametrize("name", ROWS)
def test_a_scan_of_each_type_gives_labels_of_its_type_at_its_place(
    name: str, given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = given.forms[name]
    image = "t1" if name == "torchio.Subject" else None
    result = given.segmenter.segment(scan, image=image)
    np.testing.assert_array_equal(result.labels.data, given.labels.data)
    np.testing.assert_allclose(result.labels.affine, given.labels.affine, atol=1e-4)
    if name == "torchio.Subject":
        assert ROWS[name] == ""
        return
    # The example writes a file to the current folder.
    monkeypatch.chdir(tmp_path)
    found = eval(ROWS[name], {"result": result})
    if name == "path":
        scan = nib.load(scan)
        found = nib.load("labels.nii.gz")
    np.testing.assert_array_equal(voxels_of(found), given.labels.data)
    np.testing.assert_allclose(place_mm(found), place_mm(scan), atol=1e-5)
