"""Volumes of two files, a header and its voxels: Analyze and NIfTI pairs."""

from __future__ import annotations

import os
import shutil
from hashlib import sha256
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers.odd_scans import VOXELS, saved
from oracle.fuzz import odd_scan

from trinat.segmentation.errors import (
    FormatError,
    GeometryError,
    InputError,
    IntegrityError,
)
from trinat.segmentation.io.volume import Volume


@pytest.fixture
def analyze(tmp_path: Path) -> Path:
    """Write a pair as in OASIS-1: big-endian int16, a trailing dimension of 1, no orientation."""
    header = nib.AnalyzeHeader(endianness=">")
    header.set_data_dtype(">i2")
    header.set_data_shape((18, 17, 16, 1))
    header.set_zooms((1, 1, 1.25, 0))
    (tmp_path / "scan.hdr").write_bytes(header.binaryblock)
    (tmp_path / "scan.img").write_bytes(VOXELS.astype(">i2").tobytes("F"))
    return tmp_path / "scan.hdr"


def test_analyze_is_read_where_someone_vouches_for_its_axes(analyze: Path) -> None:
    for path in (analyze, analyze.with_suffix(".img")):
        with pytest.raises(GeometryError, match="no orientation"):
            Volume.read(path)
        volume = Volume.read(path, axes="ASL")
        np.testing.assert_array_equal(volume.data, VOXELS)
        assert volume.data.dtype == np.dtype("=i2")
        assert (volume.axcodes, volume.spacing_mm) == ("ASL", (1, 1, 1.25))


def test_analyze_in_other_units_is_refused(analyze: Path) -> None:
    content = bytearray(analyze.read_bytes())
    content[56:60] = b"mm\0\0"
    analyze.write_bytes(content)
    Volume.read(analyze, axes="ASL")
    content[56:60] = b"cm\0\0"
    analyze.write_bytes(content)
    with pytest.raises(GeometryError, match="units are not millimetres"):
        Volume.read(analyze, axes="ASL")


def test_half_a_pair_says_which_half_is_missing(analyze: Path) -> None:
    analyze.with_suffix(".img").unlink()
    with pytest.raises(InputError, match=r"its other half scan\.img is missing"):
        Volume.read(analyze, axes="ASL")


def test_a_pair_in_capitals_finds_its_other_half(analyze: Path) -> None:
    for suffix in (".hdr", ".img"):
        analyze.with_suffix(suffix).rename(analyze.with_suffix(suffix.upper()))
    np.testing.assert_array_equal(
        Volume.read(analyze.with_suffix(".HDR"), axes="ASL").data, VOXELS
    )


def test_an_image_file_that_is_too_short_or_too_long_is_refused(analyze: Path) -> None:
    image = analyze.with_suffix(".img")
    sound = image.read_bytes()
    image.write_bytes(sound[:-1])
    with pytest.raises(IntegrityError, match="truncated") as caught:
        Volume.read(analyze, axes="ASL")
    assert caught.value.where == str(image)
    image.write_bytes(sound + b"more")
    with pytest.raises(IntegrityError, match="more data than its header announces"):
        Volume.read(analyze, axes="ASL")


def test_an_endless_header_file_is_refused(analyze: Path) -> None:
    os.truncate(analyze, 2**24 + 1000)
    with pytest.raises(IntegrityError, match="more data than its header announces"):
        Volume.read(analyze, axes="ASL")


def test_a_nifti_pair_is_read_with_its_own_geometry(tmp_path: Path) -> None:
    nib.save(nib.Nifti1Pair.from_image(odd_scan()), tmp_path / "scan.hdr")
    volume = Volume.read(tmp_path / "scan.img")
    np.testing.assert_array_equal(volume.data, VOXELS)
    np.testing.assert_allclose(volume.affine, odd_scan().affine, atol=1e-6)


def test_single_file_headers_do_not_pass_as_pairs(tmp_path: Path) -> None:
    nib.save(odd_scan(), tmp_path / "scan.nii")
    shutil.copy(tmp_path / "scan.nii", tmp_path / "scan.hdr")
    shutil.copy(tmp_path / "scan.nii", tmp_path / "scan.img")
    with pytest.raises(FormatError, match="single-file NIfTI header in a pair"):
        Volume.read(tmp_path / "scan.hdr")


def test_nifti_2_without_its_magic_is_not_analyze(tmp_path: Path) -> None:
    content = bytearray(nib.Nifti2Image(VOXELS, odd_scan().affine).to_bytes())
    content[4:8] = bytes(4)
    (tmp_path / "scan.hdr").write_bytes(content)
    (tmp_path / "scan.img").write_bytes(content)
    with pytest.raises(FormatError, match="neither NIfTI nor Analyze"):
        Volume.read(tmp_path / "scan.hdr", axes="ASL")


def test_the_digest_is_that_of_the_file_or_of_both_halves(
    tmp_path: Path, analyze: Path
) -> None:
    path = saved(tmp_path, VOXELS)
    assert Volume.read(path).source_sha256 == sha256(path.read_bytes()).hexdigest()
    both = analyze.read_bytes() + analyze.with_suffix(".img").read_bytes()
    assert Volume.read(analyze, axes="ASL").source_sha256 == sha256(both).hexdigest()
