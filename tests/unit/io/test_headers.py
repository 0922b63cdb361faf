"""Each false value in a header is refused by its own check, before voxels are allocated."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from oracle.careful import MGH, NIFTI1, NIFTI2, Fields
from oracle.fuzz import odd_scan

from trinat.segmentation.errors import (
    FormatError,
    GeometryError,
    InputError,
    IntegrityError,
)
from trinat.segmentation.io.volume import Volume

NAN, INF = math.nan, math.inf


def changed(content: bytes, fields: Fields, *changes: tuple[str, int, float]) -> bytes:
    """Return the file with these (field, index, value) changes in its header."""
    order = ">" if fields is MGH else "<"
    for name, index, value in changes:
        content = fields.put(content, name, index, value, order=order)
    return content


def read(folder: Path, content: bytes, suffix: str = ".nii") -> Volume:
    path = folder / f"scan{suffix}"
    path.write_bytes(content)
    return Volume.read(path)


def refused(folder: Path, content: bytes, suffix: str = ".nii") -> InputError:
    """Return the error of the file, which must be one line with its name and a remedy."""
    with pytest.raises(InputError) as caught:
        read(folder, content, suffix)
    assert caught.value.where == str(folder / f"scan{suffix}")
    assert caught.value.remedy
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("changes", "kind", "problem"),
    [
        ([("sizeof_hdr", 0, 347)], FormatError, "not a NIfTI or Analyze header"),
        ([("magic", 1, ord("i"))], FormatError, "not a single-file NIfTI image"),
        ([("dim", 0, 0)], IntegrityError, "0 dimensions, not 3"),
        ([("dim", 0, 8)], IntegrityError, "8 dimensions, not 3"),
        ([("dim", 0, -3)], IntegrityError, "-3 dimensions, not 3"),
        ([("dim", 0, 1)], FormatError, "18 x 1 x 1 voxels, fewer than 16 slices"),
        ([("dim", 0, 2)], FormatError, "18 x 17 x 1 voxels, fewer than 16 slices"),
        ([("dim", 2, 0)], IntegrityError, "impossible dimensions 18 x 0 x 16"),
        ([("dim", 3, -16)], IntegrityError, "impossible dimensions 18 x 17 x -16"),
        (
            [("dim", 0, 4), ("dim", 4, 0)],
            IntegrityError,
            "impossible dimensions 18 x 17 x 16 x 0",
        ),
        ([("dim", 0, 4), ("dim", 4, 2)], FormatError, "2 volumes in one file"),
        ([("dim", 0, 6), ("dim", 6, 3)], FormatError, "3 volumes in one file"),
        (
            [("dim", 1, 1501)],
            FormatError,
            "1501 x 17 x 16 voxels, more than 1500 a side",
        ),
        ([("dim", 3, 15)], FormatError, "18 x 17 x 15 voxels, fewer than 16 slices"),
        ([("pixdim", 1, 0)], GeometryError, "impossible voxel size 0 x 1.1 x 1.3 mm"),
        ([("pixdim", 2, -1)], GeometryError, "impossible voxel size 0.9 x -1 x 1.3 mm"),
        (
            [("pixdim", 3, NAN)],
            GeometryError,
            "impossible voxel size 0.9 x 1.1 x nan mm",
        ),
        (
            [("pixdim", 3, INF)],
            GeometryError,
            "impossible voxel size 0.9 x 1.1 x inf mm",
        ),
        (
            [("pixdim", 1, 101)],
            GeometryError,
            "impossible voxel size 101 x 1.1 x 1.3 mm",
        ),
        (
            [("pixdim", 1, 0.009)],
            GeometryError,
            "impossible voxel size 0.009 x 1.1 x 1.3 mm",
        ),
        ([("datatype", 0, 3)], FormatError, "voxel type 3, not one number a voxel"),
        ([("datatype", 0, 1)], FormatError, "voxels of type void, not one number"),
        ([("datatype", 0, 128), ("bitpix", 0, 24)], FormatError, "an RGB picture"),
        ([("datatype", 0, 2304), ("bitpix", 0, 32)], FormatError, "an RGB picture"),
        ([("datatype", 0, 32), ("bitpix", 0, 64)], FormatError, "complex voxels"),
        ([("datatype", 0, 1792), ("bitpix", 0, 128)], FormatError, "complex voxels"),
        (
            [("datatype", 0, 1536), ("bitpix", 0, 128)],
            FormatError,
            "not one number a voxel",
        ),
        (
            [("bitpix", 0, 8)],
            IntegrityError,
            "voxels of 8 bits and of type int16 at once",
        ),
        ([("vox_offset", 0, 0)], IntegrityError, "start at byte 0, inside the header"),
        (
            [("vox_offset", 0, 348)],
            IntegrityError,
            "start at byte 348, inside the header",
        ),
        ([("vox_offset", 0, 352.5)], IntegrityError, "start at byte 352.5"),
        ([("vox_offset", 0, -16)], IntegrityError, "start at byte -16"),
        ([("vox_offset", 0, NAN)], IntegrityError, "start at byte nan"),
        ([("vox_offset", 0, INF)], IntegrityError, "start at byte inf"),
        ([("vox_offset", 0, 2**26 + 16)], IntegrityError, "start at byte 6.71089e+07"),
        (
            [("vox_offset", 0, 368)],
            IntegrityError,
            "truncated: 10144 bytes cannot hold the 10160",
        ),
        ([("scl", 0, INF)], IntegrityError, "voxels scaled by inf"),
        ([("scl", 0, -INF)], IntegrityError, "voxels scaled by -inf"),
        (
            [("scl", 0, 2), ("scl", 1, NAN)],
            IntegrityError,
            "scaled by 2 and shifted by nan",
        ),
        ([("xyzt_units", 0, 1)], GeometryError, "units are not millimetres"),
        ([("xyzt_units", 0, 3)], GeometryError, "units are not millimetres"),
        ([("codes", 0, 6)], IntegrityError, "unknown qform_code 6"),
        ([("codes", 0, -1)], IntegrityError, "unknown qform_code -1"),
        ([("codes", 1, 6)], IntegrityError, "unknown sform_code 6"),
    ],
)
def test_a_nifti_header_that_lies_is_refused(
    tmp_path: Path,
    changes: list[tuple[str, int, float]],
    kind: type[InputError],
    problem: str,
) -> None:
    error = refused(tmp_path, changed(odd_scan().to_bytes(), NIFTI1, *changes))
    assert type(error) is kind
    assert problem in error.what


@pytest.mark.parametrize(
    ("changes", "kind", "problem"),
    [
        ([("version", 0, 2)], FormatError, "MGH version 2, not 1"),
        ([("good", 0, 2)], IntegrityError, "goodRASFlag is 2, not 0 or 1"),
        ([("good", 0, 0)], GeometryError, "no orientation in its header"),
        ([("dims", 0, 0)], IntegrityError, "impossible dimensions 0 x 17 x 16 x 1"),
        ([("dims", 3, 2)], FormatError, "2 volumes in one file"),
        ([("type", 0, 2)], FormatError, "MGH voxel type 2, not one number a voxel"),
        ([("delta", 0, 0)], GeometryError, "impossible voxel size 0 x 1.1 x 1.3 mm"),
        ([("delta", 1, -1)], GeometryError, "impossible voxel size 0.9 x -1 x 1.3 mm"),
        ([("cosines", 0, 2)], GeometryError, "direction cosines are not unit vectors"),
        (
            [("cosines", 0, 1.5)],
            GeometryError,
            "direction cosines are not unit vectors",
        ),
        (
            [("cosines", 0, NAN)],
            GeometryError,
            "direction cosines are not unit vectors",
        ),
        ([("centre", 0, INF)], GeometryError, "is not finite"),
        ([("dims", 0, 1500)], IntegrityError, "truncated"),
    ],
)
def test_an_mgh_header_that_lies_is_refused(
    tmp_path: Path,
    changes: list[tuple[str, int, float]],
    kind: type[InputError],
    problem: str,
) -> None:
    image = odd_scan()
    content = nib.MGHImage(np.asarray(image.dataobj), image.affine).to_bytes()
    error = refused(tmp_path, changed(content, MGH, *changes), ".mgh")
    assert type(error) is kind
    assert problem in error.what


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_more_than_2_gib_of_voxels_are_refused_before_allocating(
    tmp_path: Path, suffix: str
) -> None:
    # 1100³ voxels of 2 bytes are 2.5 GiB.
    huge = changed(
        odd_scan().to_bytes(), NIFTI1, *(("dim", axis, 1100) for axis in (1, 2, 3))
    )
    error = refused(
        tmp_path, gzip.compress(huge) if suffix == ".nii.gz" else huge, suffix
    )
    assert error.what == "2.5 GiB of voxels, more than 2"


def test_scaled_voxels_count_as_the_floats_that_they_become(tmp_path: Path) -> None:
    # 900³ single bytes are 0.7 GiB, as floats 2.7.
    content = odd_scan(dtype="u1").to_bytes()
    sides = [("dim", axis, 900) for axis in (1, 2, 3)]
    plain, scaled = (
        changed(content, NIFTI1, *sides, ("scl", 0, slope)) for slope in (1.0, 0.5)
    )
    assert "truncated" in refused(tmp_path, plain).what
    assert refused(tmp_path, scaled).what == "2.7 GiB of voxels, more than 2"


def test_sides_of_16_and_of_1500_are_within_the_limits(tmp_path: Path) -> None:
    volume = read(tmp_path, odd_scan((1500, 16, 16)).to_bytes())
    assert volume.shape == (1500, 16, 16)


@pytest.mark.parametrize("slope", [0.0, NAN])
def test_a_slope_of_0_or_nan_means_unscaled_whatever_the_intercept(
    tmp_path: Path, slope: float
) -> None:
    content = odd_scan().to_bytes()
    volume = read(tmp_path, changed(content, NIFTI1, ("scl", 0, slope), ("scl", 1, 5)))
    np.testing.assert_array_equal(volume.data, np.asarray(odd_scan().dataobj))
    assert volume.data.dtype == np.int16


def test_slope_and_intercept_are_applied_in_float32(tmp_path: Path) -> None:
    content = changed(odd_scan().to_bytes(), NIFTI1, ("scl", 0, 0.5), ("scl", 1, -3))
    volume = read(tmp_path, content)
    assert volume.data.dtype == np.float32
    np.testing.assert_array_equal(volume.data, np.asarray(odd_scan().dataobj) * 0.5 - 3)


def test_units_of_time_and_unknown_units_do_not_matter(tmp_path: Path) -> None:
    for units in (0, 2, 8, 10, 24):
        read(tmp_path, changed(odd_scan().to_bytes(), NIFTI1, ("xyzt_units", 0, units)))


def test_trailing_dimensions_of_1_are_squeezed(tmp_path: Path) -> None:
    content = changed(odd_scan().to_bytes(), NIFTI1, ("dim", 0, 7))
    assert read(tmp_path, content).shape == (18, 17, 16)


def test_fields_that_say_nothing_on_the_image_may_say_anything(tmp_path: Path) -> None:
    content = bytearray(odd_scan().to_bytes())
    for start, end in (
        (4, 40),
        (56, 70),
        (92, 108),
        (120, 123),
        (124, 148),
        (148, 252),
        (328, 344),
    ):
        content[start:end] = bytes([0xA5]) * (end - start)
    np.testing.assert_array_equal(
        read(tmp_path, bytes(content)).data, np.asarray(odd_scan().dataobj)
    )


def test_big_endian_and_nifti_2_are_read_alike(tmp_path: Path) -> None:
    image = odd_scan()
    swapped = nib.Nifti1Image(
        image.dataobj, image.affine, image.header.as_byteswapped(">")
    )
    second = nib.Nifti2Image(np.asarray(image.dataobj), image.affine)
    for other in (swapped, second):
        volume = read(tmp_path, other.to_bytes())
        assert volume.data.dtype == np.dtype("=i2")
        np.testing.assert_array_equal(volume.data, np.asarray(image.dataobj))
        np.testing.assert_allclose(volume.affine, image.affine, atol=1e-6)


def test_a_nifti_2_header_that_lies_is_refused(tmp_path: Path) -> None:
    image = odd_scan()
    content = nib.Nifti2Image(np.asarray(image.dataobj), image.affine).to_bytes()
    assert (
        "inside the header"
        in refused(tmp_path, changed(content, NIFTI2, ("vox_offset", 0, 540))).what
    )
    assert (
        "1099511627776 x 17 x 16 voxels, more than"
        in refused(tmp_path, changed(content, NIFTI2, ("dim", 1, 2**40))).what
    )


def test_an_extension_is_skipped_and_none_may_reach_into_the_voxels(
    tmp_path: Path,
) -> None:
    image = odd_scan()
    image.header.extensions.append(
        nib.nifti1.Nifti1Extension("comment", b"name of a patient")
    )
    content = image.to_bytes()
    np.testing.assert_array_equal(
        read(tmp_path, content).data, np.asarray(image.dataobj)
    )
    longer = content[:352] + (48).to_bytes(4, "little") + content[356:]
    endless = content[:352] + bytes(4) + content[356:]
    for broken in (longer, endless):
        assert "extension reaches into the voxels" in refused(tmp_path, broken).what


def test_an_extension_may_be_empty_and_end_where_the_voxels_begin(
    tmp_path: Path,
) -> None:
    image = odd_scan()
    content = changed(image.to_bytes(), NIFTI1, ("vox_offset", 0, 360))
    empty, longer = (
        content[:348] + bytes([1, 0, 0, 0, size, 0, 0, 0, 0, 0, 0, 0]) + content[352:]
        for size in (8, 9)
    )
    np.testing.assert_array_equal(read(tmp_path, empty).data, np.asarray(image.dataobj))
    assert "extension reaches into the voxels" in refused(tmp_path, longer).what


def test_zeros_behind_the_voxels_are_padding_and_other_data_are_not(
    tmp_path: Path,
) -> None:
    content = odd_scan().to_bytes()
    read(tmp_path, content + bytes(4096))
    for rest in (bytes(4097), b"\1"):
        assert (
            "more data than its header announces"
            in refused(tmp_path, content + rest).what
        )


def test_parameters_behind_the_voxels_of_an_mgh_file_are_skipped(
    tmp_path: Path,
) -> None:
    image = odd_scan()
    content = nib.MGHImage(np.asarray(image.dataobj), image.affine).to_bytes()
    read(tmp_path, content + b"history" * 1000, ".mgh")
    error = refused(tmp_path, content + bytes(2**24), ".mgh")
    assert "more data than its header announces" in error.what
