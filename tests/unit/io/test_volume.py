"""Volumes are read as they were written; the values of voxels are checked."""

from __future__ import annotations

import gzip
import itertools
import math
import tracemalloc
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers.odd_scans import SUFFIXES, VOXELS, image_of, saved, with_voxel
from oracle.careful import NIFTI1
from oracle.fuzz import odd_scan

from trinat.segmentation.errors import FormatError, GeometryError, IntegrityError
from trinat.segmentation.io.volume import Volume

ORIENTATIONS = [
    "".join(letters)
    for order in itertools.permutations(("RL", "AP", "SI"))
    for letters in itertools.product(*order)
]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("axes", ORIENTATIONS)
def test_there_and_back_in_every_orientation(
    tmp_path: Path, axes: str, suffix: str
) -> None:
    oblique = odd_scan().affine
    turn = nib.orientations.inv_ornt_aff(
        nib.orientations.ornt_transform(
            nib.io_orientation(oblique), nib.orientations.axcodes2ornt(axes)
        ),
        VOXELS.shape,
    )
    volume = Volume(VOXELS, oblique @ turn)
    assert volume.axcodes == axes
    volume.write(tmp_path / f"scan{suffix}")
    back = Volume.read(tmp_path / f"scan{suffix}")
    np.testing.assert_array_equal(back.data, VOXELS)
    np.testing.assert_allclose(back.affine, volume.affine, atol=1e-5)
    np.testing.assert_allclose(back.spacing_mm, volume.spacing_mm, rtol=1e-6)
    assert (back.axcodes, back.codes, back.notes) == (axes, (1, 1), ())


def test_it_reads_as_nibabel_reads(tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        Volume(VOXELS, odd_scan().affine).write(tmp_path / f"scan{suffix}")
        image = nib.load(tmp_path / f"scan{suffix}")
        back = Volume.read(tmp_path / f"scan{suffix}")
        np.testing.assert_array_equal(back.data, np.asarray(image.dataobj))
        np.testing.assert_allclose(back.affine, image.affine, atol=1e-6)


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        ("u1", "u1"),
        ("i1", "i1"),
        ("u2", "u2"),
        ("i2", "i2"),
        ("i4", "i4"),
        ("u4", "f4"),
        ("i8", "f4"),
        ("u8", "f4"),
        ("f4", "f4"),
        ("f8", "f4"),
    ],
)
def test_scans_keep_small_integers_and_become_float32_else(
    tmp_path: Path, stored: str, read: str
) -> None:
    voxels = VOXELS.astype(stored) // 2
    path = tmp_path / "scan.nii"
    nib.Nifti1Image(voxels, odd_scan().affine, dtype=stored).to_filename(path)
    back = Volume.read(path)
    assert back.data.dtype == np.dtype(read)
    np.testing.assert_array_equal(back.data, voxels)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_voxels_that_are_no_numbers_are_refused_or_filled(
    tmp_path: Path, value: float
) -> None:
    path = saved(tmp_path, with_voxel(value))
    with pytest.raises(IntegrityError, match="1 voxels are NaN or infinite") as caught:
        Volume.read(path)
    assert "--fill-nonfinite" in caught.value.remedy
    filled = Volume.read(path, fill_nonfinite=True)
    np.testing.assert_array_equal(filled.data, with_voxel(0))
    assert filled.notes == ("1 voxels that were NaN or infinite are set to 0",)


def test_voxels_beyond_float32_are_infinite_here(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="1 voxels are NaN or infinite"):
        Volume.read(saved(tmp_path, with_voxel(1e300, "f8")))


@pytest.mark.parametrize("value", [0, 7])
def test_a_constant_scan_is_refused_and_a_constant_label_map_is_not(
    tmp_path: Path, value: int
) -> None:
    path = saved(tmp_path, np.full((16, 16, 16), value, np.int16))
    with pytest.raises(FormatError, match=f"all voxels are {value}"):
        Volume.read(path)
    assert (Volume.read(path, labels=True).data == value).all()


def test_a_scan_that_is_constant_once_filled_is_refused(tmp_path: Path) -> None:
    voxels = np.zeros((16, 16, 16), np.float32)
    voxels[1, 1, 1] = math.nan
    with pytest.raises(FormatError, match="all voxels are 0"):
        Volume.read(saved(tmp_path, voxels), fill_nonfinite=True)


@pytest.mark.parametrize(
    ("largest", "dtype"), [(255, "u1"), (256, "i2"), (32767, "i2"), (32768, "i4")]
)
@pytest.mark.parametrize("stored", ["i4", "f4", "f8", "u4"])
def test_labels_come_as_the_smallest_type_that_holds_them(
    tmp_path: Path, largest: int, dtype: str, stored: str
) -> None:
    voxels = with_voxel(largest, stored)
    labels = Volume.read(saved(tmp_path, voxels), labels=True)
    assert labels.data.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(labels.data, voxels)


def test_negative_labels_are_kept_for_the_scheme_to_judge(tmp_path: Path) -> None:
    assert Volume.read(saved(tmp_path, with_voxel(-1)), labels=True).data[3, 4, 5] == -1


def test_fractions_are_no_labels(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="not a label map: fractions"):
        Volume.read(saved(tmp_path, with_voxel(2.5)), labels=True)


def test_labels_keep_all_their_digits_until_they_are_judged(tmp_path: Path) -> None:
    # float32 would round this number to 16777216.
    voxels = with_voxel(2**24 + 1, "f8")
    assert Volume.read(saved(tmp_path, voxels), labels=True).data[3, 4, 5] == 2**24 + 1


@pytest.mark.parametrize("stored", ["u4", "i8", "f4", "f8"])
def test_label_numbers_beyond_32_bits_are_refused(tmp_path: Path, stored: str) -> None:
    voxels = with_voxel(2**31, stored)
    nib.Nifti1Image(voxels, odd_scan().affine, dtype=stored).to_filename(
        tmp_path / "scan.nii"
    )
    with pytest.raises(FormatError, match="beyond 32 bits"):
        Volume.read(tmp_path / "scan.nii", labels=True)


def test_scaled_labels_are_whole_once_scaled(tmp_path: Path) -> None:
    content = NIFTI1.put(image_of(VOXELS).to_bytes(), "scl", 0, 2.0)
    (tmp_path / "scan.nii").write_bytes(content)
    labels = Volume.read(tmp_path / "scan.nii", labels=True)
    np.testing.assert_array_equal(labels.data, VOXELS * 2)
    assert labels.data.dtype.kind in "iu"


@pytest.mark.parametrize("name", ["scan.png", "scan", "scan.gz", "scan.nii.bz2"])
def test_other_kinds_of_files_are_refused_both_ways(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"content")
    with pytest.raises(FormatError, match="not a known kind of scan"):
        Volume.read(tmp_path / name)
    with pytest.raises(FormatError, match="not a kind of image that is written"):
        Volume(VOXELS, odd_scan().affine).write(tmp_path / name)


@pytest.mark.parametrize("name", ["Größe\n脳.nii.gz", "A SCAN.NII.GZ", "a.b.c.nii.gz"])
def test_odd_names_are_read_and_told_in_one_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    Volume(VOXELS, odd_scan().affine).write(path)
    np.testing.assert_array_equal(Volume.read(path).data, VOXELS)
    path.write_bytes(b"")
    with pytest.raises(IntegrityError) as caught:
        Volume.read(path)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("suffix", [".mgh", ".mgh.gz"])
def test_other_names_of_mgh_are_read(tmp_path: Path, suffix: str) -> None:
    content = nib.MGHImage(VOXELS, odd_scan().affine).to_bytes()
    path = tmp_path / f"scan{suffix}"
    path.write_bytes(gzip.compress(content) if suffix == ".mgh.gz" else content)
    np.testing.assert_array_equal(Volume.read(path).data, VOXELS)


def test_mgh_without_orientation_takes_freesurfer_s_default_only_if_told(
    tmp_path: Path,
) -> None:
    content = bytearray(nib.MGHImage(VOXELS, odd_scan().affine).to_bytes())
    content[28:30] = bytes(2)
    (tmp_path / "scan.mgh").write_bytes(content)
    with pytest.raises(GeometryError, match="no orientation"):
        Volume.read(tmp_path / "scan.mgh")
    volume = Volume.read(tmp_path / "scan.mgh", trust_affine="header")
    assert (volume.axcodes, volume.spacing_mm) == ("LIA", (1, 1, 1))


def test_a_volume_is_three_dimensional_with_an_affine_and_codes() -> None:
    with pytest.raises(GeometryError, match="not 3D"):
        Volume(VOXELS[0], np.eye(4))
    with pytest.raises(GeometryError, match="not 3D"):
        Volume(VOXELS, np.eye(3))
    with pytest.raises(GeometryError, match="without orientation"):
        Volume(VOXELS, np.eye(4), codes=(0, 1))
    with pytest.raises(TypeError):
        Volume([[[1]]], np.eye(4))  # type: ignore[arg-type]


def test_a_volume_s_affine_is_its_own() -> None:
    affine = np.eye(4)
    volume = Volume(VOXELS, affine)
    affine[0, 0] = 2
    assert volume.spacing_mm == (1, 1, 1)
    with pytest.raises(ValueError, match="read-only"):
        volume.affine[0, 0] = 2


@pytest.mark.parametrize(
    ("dtype", "most"), [("i2", 1.2), ("f4", 1.2), ("f8", 1.7), (">f4", 1.2)]
)
def test_reading_takes_little_more_memory_than_the_voxels(
    tmp_path: Path, dtype: str, most: float
) -> None:
    voxels = np.random.default_rng(1).integers(0, 999, (96, 96, 96)).astype(dtype)
    path = tmp_path / "scan.nii"
    nib.Nifti1Image(voxels, np.eye(4)).to_filename(path)
    tracemalloc.start()
    try:
        Volume.read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # One MiB is for the piece that is drained.
    assert peak < most * voxels.nbytes + 1.5 * 2**20
