"""Written volumes: headers, types, and the same bytes each time."""

from __future__ import annotations

import math
import resource
import struct
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers.odd_scans import SUFFIXES, VOXELS, image_of, with_voxel
from oracle.fuzz import odd_scan

from trinat.segmentation.errors import FormatError, OutputError
from trinat.segmentation.io.volume import Volume


def test_written_headers_hold_geometry_and_nothing_else(tmp_path: Path) -> None:
    source = image_of(
        VOXELS, descrip=b"a patient", db_name=b"a patient", aux_file=b"a patient"
    )
    source.header.extensions.append(nib.nifti1.Nifti1Extension("comment", b"a patient"))
    source.set_sform(source.affine, 4)
    source.set_qform(source.affine, 1)
    nib.save(source, tmp_path / "in.nii")
    assert b"a patient" in (tmp_path / "in.nii").read_bytes()
    Volume.read(tmp_path / "in.nii").write(tmp_path / "out.nii")
    written = (tmp_path / "out.nii").read_bytes()
    assert b"patient" not in written
    header = nib.load(tmp_path / "out.nii").header
    assert (int(header["qform_code"]), int(header["sform_code"])) == (1, 4)
    assert header.get_xyzt_units()[0] == "mm"
    np.testing.assert_allclose(header.get_qform(), source.affine, atol=1e-5)
    np.testing.assert_allclose(header.get_sform(), source.affine, atol=1e-5)
    # Slope 1 and intercept 0 in plain numbers, for readers that do not know NaN.
    assert struct.unpack_from("<2f", written, 112) == (1, 0)


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_label_maps_say_so_in_a_small_type(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"labels{suffix}"
    for largest, dtype in ((255, "u1"), (2035, "i2")):
        Volume(with_voxel(largest, "i8"), odd_scan().affine).write(path, labels=True)
        header = nib.load(path).header
        assert header.get_intent()[0] == "label"
        assert header.get_data_dtype() == np.dtype(dtype)
    Volume(VOXELS, odd_scan().affine).write(path)
    assert nib.load(path).header.get_intent()[0] == "none"


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("?", "u1"),
        ("u1", "u1"),
        ("i2", "i2"),
        ("i4", "i4"),
        ("u2", "f4"),
        ("i8", "f4"),
        ("f8", "f4"),
    ],
)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_scans_are_written_in_types_that_all_readers_know(
    tmp_path: Path, given: str, stored: str, suffix: str
) -> None:
    voxels = (VOXELS > 90).astype(given)
    Volume(voxels, odd_scan().affine).write(tmp_path / f"scan{suffix}")
    image = nib.load(tmp_path / f"scan{suffix}")
    assert image.header.get_data_dtype().newbyteorder("=") == np.dtype(stored)
    np.testing.assert_array_equal(np.asarray(image.dataobj), voxels)


@pytest.mark.parametrize("value", [2.5, 32768, -32769, math.nan])
def test_what_is_no_label_map_is_not_written_as_one(
    tmp_path: Path, value: float
) -> None:
    with pytest.raises(FormatError):
        Volume(with_voxel(value), odd_scan().affine).write(
            tmp_path / "a.nii", labels=True
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_volume_gives_the_same_bytes_under_any_name(
    tmp_path: Path, suffix: str
) -> None:
    volume = Volume(VOXELS, odd_scan().affine)
    volume.write(tmp_path / f"a{suffix}")
    volume.write(tmp_path / f"b{suffix}")
    content = (tmp_path / f"a{suffix}").read_bytes()
    assert content == (tmp_path / f"b{suffix}").read_bytes()
    if suffix != ".nii":
        # No flags, hence no name; no time.
        assert content[3:8] == bytes(5)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "scan.nii"
    path.write_bytes(b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OutputError, match="cannot be written"):
            Volume(VOXELS, odd_scan().affine).write(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [
        ("scan.nii", b"old")
    ]
