"""Images of torchio, MONAI and SimpleITK keep each voxel in its place, in both directions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813 - as its documents do
import torch
import torchio
from monai.data import MetaTensor
from monai.transforms import LoadImage
from numpy.typing import NDArray
from oracle.fuzz import odd_scan

from trinat.segmentation.errors import FormatError
from trinat.segmentation.io.foreign_images import (
    from_monai,
    from_simpleitk,
    from_torchio,
    reader_of,
    to_monai,
    to_simpleitk,
    to_torchio,
)
from trinat.segmentation.io.volume import Volume

# Oblique, anisotropic, left-handed, so that any swap or reversal of axes shows.
SCAN = odd_scan()
AFFINE = SCAN.affine
VOXELS = np.asarray(SCAN.dataobj)
MARKED = (3, 5, 7)
# AFFINE @ (3, 5, 7, 1), with a turn of 0.2 radians.
MARKED_MM = (
    12.5 - 2.7 * np.cos(0.2) - 5.5 * np.sin(0.2),
    -7.25 - 2.7 * np.sin(0.2) + 5.5 * np.cos(0.2),
    3.0 + 9.1,
)
PAIRS = {
    "torchio": (to_torchio, from_torchio),
    "monai": (to_monai, from_monai),
    "simpleitk": (to_simpleitk, from_simpleitk),
}
LPS = np.diag([-1.0, -1, 1, 1])


def marked() -> NDArray[np.int16]:
    """Return zeros except for one voxel."""
    voxels = np.zeros(VOXELS.shape, np.int16)
    voxels[MARKED] = 1017
    return voxels


@pytest.mark.parametrize("name", PAIRS)
def test_voxels_and_affine_come_back_as_they_were(name: str) -> None:
    there, back = PAIRS[name]
    voxels, affine = back(there(VOXELS, AFFINE))
    assert voxels.dtype == np.int16
    np.testing.assert_array_equal(voxels, VOXELS)
    np.testing.assert_allclose(affine, AFFINE, atol=1e-12)


def test_torchio_sees_a_marked_voxel_at_its_place(tmp_path: Path) -> None:
    labels = to_torchio(marked(), AFFINE)
    assert isinstance(labels, torchio.LabelMap)
    assert labels.data[0][MARKED] == 1017
    np.testing.assert_allclose(
        nib.affines.apply_affine(labels.affine, MARKED), MARKED_MM
    )
    # Also as torchio writes it.
    labels.save(tmp_path / "labels.nii")
    written = nib.load(tmp_path / "labels.nii")
    assert written.dataobj[MARKED] == 1017
    np.testing.assert_allclose(written.affine, AFFINE, atol=1e-5)


def test_monai_sees_a_marked_voxel_at_its_place() -> None:
    labels = to_monai(marked(), AFFINE)
    assert labels.shape == (1, *VOXELS.shape)
    assert labels[0][MARKED] == 1017
    assert labels.meta["space"] == "RAS"
    place = nib.affines.apply_affine(labels.affine.numpy(), MARKED)
    np.testing.assert_allclose(place, MARKED_MM)


def test_simpleitk_sees_a_marked_voxel_at_its_place_in_lps() -> None:
    labels = to_simpleitk(marked(), AFFINE)
    assert labels.GetPixelIDTypeAsString() == "16-bit signed integer"
    assert labels[MARKED] == 1017
    x, y, z = MARKED_MM
    place = labels.TransformIndexToPhysicalPoint(MARKED)
    np.testing.assert_allclose(place, (-x, -y, z))
    np.testing.assert_allclose(labels.GetSpacing(), (0.9, 1.1, 1.3))


def test_what_is_given_out_is_a_copy() -> None:
    voxels = marked()
    for there, _ in PAIRS.values():
        image = there(voxels, AFFINE)
        if isinstance(image, sitk.Image):
            image[MARKED] = 3
        else:
            tensor = image if isinstance(image, MetaTensor) else image.data
            tensor[:] = 3
    np.testing.assert_array_equal(voxels, marked())


# MONAI makes readers for all formats, and one warns.
@pytest.mark.filterwarnings("ignore:NvImgCodec")
def test_each_library_reads_a_file_as_we_do(tmp_path: Path) -> None:
    path = tmp_path / "scan.nii"
    nib.save(SCAN, path)
    ours = Volume.read(path)
    for image in (
        torchio.ScalarImage(path),
        LoadImage("NibabelReader", image_only=True)(path),
        LoadImage("NibabelReader", image_only=True, ensure_channel_first=True)(path),
        sitk.ReadImage(path),
    ):
        volume = Volume.of(image)
        np.testing.assert_array_equal(volume.data, ours.data)
        # ITK reads the q-form, whose quaternion is rounded to float32.
        np.testing.assert_allclose(volume.affine, ours.affine, atol=1e-4)


def test_a_metatensor_in_lps_is_turned_to_ras() -> None:
    image = MetaTensor(VOXELS[None], affine=torch.tensor(LPS @ AFFINE))
    image.meta["space"] = "LPS"
    voxels, affine = from_monai(image)
    np.testing.assert_array_equal(voxels, VOXELS)
    np.testing.assert_allclose(affine, AFFINE)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_floats_are_read(kind: torch.dtype) -> None:
    # Whole numbers up to 200 are exact in both.
    tensor = torch.tensor(VOXELS).to(kind)[None]
    for image in (
        MetaTensor(tensor, affine=torch.tensor(AFFINE)),
        torchio.ScalarImage(tensor=tensor, affine=AFFINE),
    ):
        np.testing.assert_array_equal(Volume.of(image).data, VOXELS)


def test_labels_of_a_scan_of_itk_are_at_its_very_place() -> None:
    """ITK compares origins to a millionth of a voxel, which is finer than float32."""
    image = sitk.GetImageFromArray(VOXELS)
    image.SetOrigin((-123.456789012, 98.7654321098, 77.7777777777))
    volume = Volume.of(image)
    labels = to_simpleitk(np.ones(volume.shape, np.int16), volume.affine)
    statistics = sitk.LabelStatisticsImageFilter()
    statistics.Execute(image, labels)
    assert statistics.GetCount(1) == VOXELS.size


def many_channels() -> dict[str, Any]:
    two = np.stack([VOXELS, VOXELS])
    affine = torch.tensor(AFFINE)
    return {
        "torchio": torchio.ScalarImage(tensor=two, affine=AFFINE),
        "monai": MetaTensor(two, affine=affine),
        "batch": MetaTensor(VOXELS[None, None], affine=affine),
        "planar affine": MetaTensor(VOXELS[None], affine=torch.eye(3)),
        "vectors": sitk.GetImageFromArray(np.moveaxis(two, 0, -1), isVector=True),
        "4D": sitk.GetImageFromArray(two, isVector=False),
        "slice": sitk.GetImageFromArray(VOXELS[0]),
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torchio", "ScalarImage: 2 channels: give an image with one channel"),
        ("monai", r"MetaTensor: shape \(2, 18, 17, 16\) with .* one channel"),
        ("batch", r"MetaTensor: shape \(1, 1, 18, 17, 16\)"),
        ("planar affine", r"with an affine \(3, 3\)"),
        ("vectors", "SimpleITK.Image: 3D with 2 components a voxel: give a 3D"),
        ("4D", "SimpleITK.Image: 4D with 1 components"),
        ("slice", "SimpleITK.Image: 2D with 1 components"),
    ],
)
def test_several_channels_and_other_axes_are_refused(name: str, message: str) -> None:
    with pytest.raises(FormatError, match=message) as error:
        Volume.of(many_channels()[name])
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("bare", [VOXELS, torch.tensor(VOXELS)])
def test_a_bare_array_lacks_an_affine(bare: Any) -> None:
    with pytest.raises(
        TypeError, match=r"has no affine: give a tuple \(array, affine\)"
    ):
        Volume.of(bare)


def scalar(offset: int = 0) -> torchio.ScalarImage:
    return torchio.ScalarImage(tensor=VOXELS[None] + offset, affine=AFFINE)


def test_the_only_scan_of_a_subject_is_taken() -> None:
    labels = torchio.LabelMap(tensor=marked()[None], affine=AFFINE)
    subject = torchio.Subject(t1=scalar(), seg=labels, age=45)
    np.testing.assert_array_equal(Volume.of(subject).data, VOXELS)
    np.testing.assert_array_equal(Volume.of(subject, labels=True).data, marked())


def test_of_several_scans_of_a_subject_one_is_named() -> None:
    subject = torchio.Subject(t1=scalar(), t2=scalar(1000))
    with pytest.raises(FormatError, match="name one with image=, of t1, t2"):
        Volume.of(subject)
    with pytest.raises(FormatError, match="no image 'flair': choose from t1, t2"):
        Volume.of(subject, image="flair")
    found = Volume.of(subject, image="t2")
    np.testing.assert_array_equal(found.data, VOXELS + 1000)


def test_a_name_is_refused_where_there_is_no_subject() -> None:
    with pytest.raises(TypeError, match="this is a ScalarImage: leave out image="):
        Volume.of(scalar(), image="t1")


def test_anything_else_is_no_foreign_image() -> None:
    assert reader_of([]) is None


def test_no_library_is_imported_to_recognise_an_image() -> None:
    probe = (
        "import sys, numpy as np\n"
        "from trinat.segmentation.io.volume import Volume\n"
        "Volume.of((np.ones((32, 32, 32), np.int16), np.eye(4)), labels=True)\n"
        "try: Volume.of(object())\n"
        "except TypeError: print({'torch', 'torchio', 'monai', 'SimpleITK'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
