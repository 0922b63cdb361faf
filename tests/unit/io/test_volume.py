"""Volumes go to disk and come back; what voxels may hold is checked."""

from __future__ import annotations

import gzip
import itertools
import math
import os
import resource
import shutil
import struct
import tracemalloc
from hashlib import sha256
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from numpy.typing import NDArray
from oracle.careful import NIFTI1
from oracle.fuzz import odd_scan

from trinat.segmentation.errors import (
    FormatError,
    GeometryError,
    InputError,
    IntegrityError,
    OutputError,
)
from trinat.segmentation.io.maps import write_maps
from trinat.segmentation.io.volume import Volume

SUFFIXES = (".nii", ".nii.gz", ".mgz")
ORIENTATIONS = [
    "".join(letters)
    for order in itertools.permutations(("RL", "AP", "SI"))
    for letters in itertools.product(*order)
]
VOXELS = np.asarray(odd_scan().dataobj)


def image_of(voxels: NDArray[Any], **header: Any) -> nib.Nifti1Image:
    image = nib.Nifti1Image(voxels, odd_scan().affine)
    for name, value in header.items():
        image.header[name] = value
    return image


def saved(folder: Path, voxels: NDArray[Any]) -> Path:
    path = folder / "scan.nii"
    nib.save(image_of(voxels), path)
    return path


def with_voxel(value: float, dtype: str = "f4") -> NDArray[Any]:
    voxels = VOXELS.astype(dtype)
    voxels[3, 4, 5] = value
    return voxels


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


def test_complex_voxels_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot write complex64 voxels"):
        Volume(VOXELS.astype("c8"), odd_scan().affine).write(tmp_path / "a.nii")


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


@pytest.fixture
def analyze(tmp_path: Path) -> Path:
    """A pair as OASIS-1 has them: big-endian int16, a trailing dimension of 1, no orientation."""
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


def test_a_volume_is_three_dimensional_with_an_affine_and_codes() -> None:
    with pytest.raises(ValueError, match="not 3D"):
        Volume(VOXELS[0], np.eye(4))
    with pytest.raises(ValueError, match="not 3D"):
        Volume(VOXELS, np.eye(3))
    with pytest.raises(ValueError, match="without orientation"):
        Volume(VOXELS, np.eye(4), codes=(0, 1))


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


def test_images_in_memory_go_through_the_checks_of_files() -> None:
    nifti = Volume.of_image(image_of(VOXELS))
    mgh = Volume.of_image(nib.MGHImage(VOXELS.astype(np.float32), odd_scan().affine))
    np.testing.assert_array_equal(nifti.data, VOXELS)
    np.testing.assert_array_equal(mgh.data, VOXELS)
    np.testing.assert_allclose(mgh.affine, nifti.affine, atol=1e-4)
    with pytest.raises(FormatError, match="cannot use ndarray"):
        Volume.of_image(VOXELS)
    holes = np.where(VOXELS.max() == VOXELS, np.nan, VOXELS).astype(np.float32)
    with pytest.raises(IntegrityError, match="NaN or infinite"):
        Volume.of_image(image_of(holes))


def test_an_array_in_memory_is_taken_as_it_is_whatever_its_header_says() -> None:
    """As nibabel does; and the array is the caller's."""
    voxels = VOXELS.astype(np.float32)
    image = nib.Nifti1Image(voxels, odd_scan().affine)
    image.header.set_slope_inter(2, 1)
    np.testing.assert_array_equal(Volume.of_image(image).data, VOXELS)
    np.testing.assert_array_equal(voxels, VOXELS)


def test_maps_come_back_as_values_from_0_to_1(tmp_path: Path) -> None:
    shares = np.linspace(0, 1, VOXELS.size, dtype=np.float32).reshape(VOXELS.shape)
    both = [Volume(part, odd_scan().affine) for part in (shares, 1 - shares)]
    write_maps(tmp_path / "maps.nii.gz", both, 2)
    image = nib.load(tmp_path / "maps.nii.gz")
    np.testing.assert_allclose(image.affine, odd_scan().affine, atol=1e-4)
    for number, part in enumerate(both):
        np.testing.assert_allclose(image.dataobj[..., number], part.data, atol=1e-4)


def test_maps_stay_within_0_and_1_and_hold_no_time(tmp_path: Path) -> None:
    beyond = Volume(np.array([[[-0.5, 0.25, 1.5]]], np.float32), np.eye(4))
    write_maps(tmp_path / "maps.nii.gz", [beyond], 1)
    found = nib.load(tmp_path / "maps.nii.gz").get_fdata()[0, 0, :, 0]
    np.testing.assert_allclose(found, [0, 0.25, 1], atol=1e-4)
    assert (tmp_path / "maps.nii.gz").read_bytes()[4:8] == bytes(4)


def test_an_image_of_a_scan_is_no_label_map() -> None:
    volume = Volume.of_image(image_of(VOXELS))
    assert volume.to_nibabel().header.get_intent()[0] == "none"
    assert volume.to_nibabel(labels=True).header.get_intent()[0] == "label"


def test_a_scan_is_taken_in_each_form_that_users_have(tmp_path: Path) -> None:
    image, path = image_of(VOXELS), saved(tmp_path, VOXELS)
    volume = Volume.of(image)
    for scan in (path, str(path), image, (VOXELS, image.affine), volume):
        for labels in (False, True):
            np.testing.assert_array_equal(Volume.of(scan, labels=labels).data, VOXELS)
    assert Volume.of(volume) is volume
    fractions = VOXELS + np.float32(0.5)
    np.testing.assert_array_equal(Volume.of((fractions, image.affine)).data, fractions)
    with pytest.raises(
        TypeError, match=r"cannot use list.*segment_many takes several scans"
    ):
        Volume.of([path])  # type: ignore[arg-type]


def test_arrays_are_numbers_of_three_axes_with_an_affine() -> None:
    affine = odd_scan().affine
    for kind, kept in (("u1", "u1"), ("i4", "i4"), ("i8", "f4"), ("f8", "f4")):
        found = Volume.of_array(VOXELS.astype(kind), affine)
        assert found.data.dtype == kept
        np.testing.assert_array_equal(found.data, VOXELS.astype(kind))
        np.testing.assert_allclose(found.affine, affine, atol=1e-5)
    for array, place in (
        (VOXELS[0], affine),
        (VOXELS > 0, affine),
        (VOXELS, affine[:3]),
    ):
        with pytest.raises(FormatError, match="give numbers"):
            Volume.of_array(array, place)


@pytest.mark.parametrize(("origin_mm", "is_taken"), [(1e5, True), (1.001e5, False)])
def test_a_scan_lies_within_100_m(origin_mm: float, is_taken: bool) -> None:
    affine = np.diag([1.0, 1, 1, 1])
    affine[1, 3] = -origin_mm
    if is_taken:
        assert Volume.of_array(VOXELS, affine).affine[1, 3] == -origin_mm
    else:
        with pytest.raises(GeometryError, match="more than 100 m away"):
            Volume.of_array(VOXELS, affine)
