"""DICOM series, classic and enhanced, are read exactly."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

import numpy as np
import pytest
from helpers.dicom import (
    SLICES,
    classic,
    enhanced,
    moved,
    packed,
    same,
    save,
    small,
    write_classic,
)
from pydicom import Dataset
from pydicom.fileset import FileSet
from pydicom.uid import (
    UID,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEGLSLossless,
    RLELossless,
)

from trinat.pipelines.study.discovery import find_cases
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.io.volume import Volume

# DICOM's three slice orientations, as the axes of columns, rows and slices.
CUTS = {"axial": "LPS", "sagittal": "PIR", "coronal": "LIP"}


def oblique() -> Volume:
    volume = small()
    a, b = np.radians(17), np.radians(-8)
    turn = np.array(
        [[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]]
    ) @ np.array([[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]])
    affine = volume.affine.copy()
    affine[:3, :3] = turn @ affine[:3, :3]
    return Volume(volume.data, affine)


@pytest.mark.parametrize("axes", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("kind", ["classic", "enhanced"])
def test_a_series_is_the_volume_it_was_made_of(
    tmp_path: Path, axes: str, kind: str
) -> None:
    if kind == "classic":
        write_classic(tmp_path, small(axes))
    else:
        save(enhanced(small(axes)), tmp_path / "a.dcm")
    found = Volume.read(tmp_path)
    assert found.axcodes == axes
    assert found.data.dtype == np.int16
    same(found, small(axes))


def test_an_oblique_series_keeps_its_place(tmp_path: Path) -> None:
    write_classic(tmp_path, oblique())
    same(Volume.read(tmp_path), oblique())


@pytest.mark.parametrize("make", [small, oblique])
def test_simpleitk_reads_the_same_voxels_at_the_same_places(
    tmp_path: Path, make
) -> None:
    import SimpleITK as sitk  # noqa: N813 - as its documents do

    write_classic(tmp_path, make())
    found = Volume.read(tmp_path)
    reader = sitk.ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(tmp_path)))
    image = reader.Execute()
    for voxel in np.random.default_rng(3).integers(0, 17, (50, 3)):
        lps = (np.diag([-1, -1, 1, 1]) @ found.affine @ [*voxel, 1])[:3]
        at = image.TransformPhysicalPointToIndex(lps)
        assert image.GetPixel(*at) == found.data[tuple(voxel)]


def test_a_disc_with_its_table_of_contents_is_read(tmp_path: Path) -> None:
    """DICOMDIR, PT000000/ST000000/SE000000/IM000000 and so on, as pydicom lays out a disc."""
    disc = FileSet()
    for number in range(SLICES):
        image = classic(small(), number)
        save(image, tmp_path / "source" / str(number))
        disc.add(image)
    with warnings.catch_warnings():
        # pydicom leaves the folder of a file that is to be written open.
        warnings.simplefilter("ignore")
        disc.write(tmp_path / "disc")
        del disc
        gc.collect()
    assert (tmp_path / "disc/DICOMDIR").is_file()
    found = find_cases([tmp_path / "disc"])
    assert [(r.reason, r.harmless) for r in found.refusals] == []
    (case,) = found.cases
    same(Volume.read(case.path, series=case.series), small())


@pytest.mark.parametrize(
    "syntax",
    [ImplicitVRLittleEndian, ExplicitVRLittleEndian, ExplicitVRBigEndian, RLELossless],
)
@pytest.mark.parametrize("kind", [np.uint8, np.int16])
def test_frames_in_any_order_are_placed_by_their_positions(
    tmp_path: Path, syntax: UID, kind: type
) -> None:
    """Neither the order in the file nor the dimension index matters."""
    volume = small(kind=kind)
    image = enhanced(volume)
    order = np.random.default_rng(3).permutation(SLICES)
    frames = list(image.PerFrameFunctionalGroupsSequence)
    image.PerFrameFunctionalGroupsSequence = [frames[place] for place in order]
    for frame, place in zip(image.PerFrameFunctionalGroupsSequence, order, strict=True):
        content = Dataset()
        content.DimensionIndexValues = [1, int(place) + 1]
        content.StackID, content.InStackPositionNumber = "1", int(place) + 1
        frame.FrameContentSequence = [content]
    pixels = np.frombuffer(image.PixelData, kind).reshape(SLICES, 20, 18)[order]
    if syntax == ExplicitVRBigEndian:
        pixels = pixels.astype(pixels.dtype.newbyteorder(">"))
    image.PixelData = pixels.tobytes()
    image["PixelData"].VR = "OB" if kind is np.uint8 else "OW"
    path = tmp_path / "IM0001"
    save(image, path, ExplicitVRLittleEndian if syntax == RLELossless else syntax)
    if syntax == RLELossless:
        image.compress(syntax)
        image.save_as(path, enforce_file_format=True)
    same(Volume.read(tmp_path), volume)


def test_names_and_folders_of_files_do_not_matter(tmp_path: Path) -> None:
    paths = write_classic(tmp_path / "a", small())
    (tmp_path / "b").mkdir()
    for number, path in enumerate(paths[::2]):
        path.rename(tmp_path / "b" / f"{number}.ima")
    same(Volume.read(tmp_path), small())


def test_an_enhanced_file_is_a_scan_by_itself(tmp_path: Path) -> None:
    same(Volume.read(save(enhanced(small()), tmp_path / "MR.1.2.3")), small())


@pytest.mark.parametrize(
    "syntax", [ImplicitVRLittleEndian, ExplicitVRLittleEndian, ExplicitVRBigEndian]
)
@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.uint16, np.int32])
def test_every_byte_order_and_type_is_read(
    tmp_path: Path, syntax: str, kind: type
) -> None:
    volume = small(kind=kind)
    for number in range(SLICES):
        image = classic(volume, number)
        if syntax == ExplicitVRBigEndian:
            pixels = np.frombuffer(image.PixelData, kind)
            image.PixelData = pixels.astype(pixels.dtype.newbyteorder(">")).tobytes()
            image["PixelData"].VR = "OB" if kind is np.uint8 else "OW"
        save(image, tmp_path / f"{number}.dcm", syntax)
    same(Volume.read(tmp_path), volume)


@pytest.mark.parametrize("syntax", [RLELossless, JPEGLSLossless])
def test_compressed_pixels_are_decoded_where_a_decoder_is_there(
    tmp_path: Path, syntax: UID
) -> None:
    volume = small()
    for number in range(SLICES):
        image = classic(volume, number)
        save(image, tmp_path / str(number))
        image.compress(syntax)
        image.save_as(tmp_path / str(number), enforce_file_format=True)
    same(Volume.read(tmp_path), volume)


def test_one_slope_and_intercept_scale_as_in_nifti(tmp_path: Path) -> None:
    write_classic(tmp_path, small(), RescaleSlope=0.5, RescaleIntercept=-3)
    found = Volume.read(tmp_path)
    assert found.data.dtype == np.float32
    np.testing.assert_array_equal(found.data, small().data * 0.5 - 3)


def test_each_slice_may_have_a_slope_of_its_own(tmp_path: Path) -> None:
    for number in range(SLICES):
        image = classic(
            small(), number, RescaleSlope=number + 1, RescaleIntercept=number
        )
        save(image, tmp_path / str(number))
    slopes = np.arange(SLICES)
    np.testing.assert_array_equal(
        Volume.read(tmp_path).data, small().data * (slopes + 1.0) + slopes
    )


def test_files_that_are_there_twice_count_once(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_classic(tmp_path / folder, small())
    found = Volume.read(tmp_path)
    same(found, small())
    assert found.notes == ("17 files of the series were there twice",)


def test_a_zip_is_read_without_unpacking(tmp_path: Path) -> None:
    write_classic(tmp_path / "in", small())
    path = packed(tmp_path / "in", tmp_path / "a.zip")
    found = Volume.read(path)
    same(found, small())
    assert found.source_sha256 == sha256_of(path)


def test_slices_that_lie_a_little_off_in_turn_are_read_with_a_note(
    tmp_path: Path,
) -> None:
    affine = small().affine.copy()
    affine[2, 2] = 4
    volume = Volume(small().data, affine)
    images = [classic(volume, number) for number in range(SLICES)]
    for number in range(1, SLICES, 2):
        moved(images, number, [0, 0, 0.03])
    for number, image in enumerate(images):
        save(image, tmp_path / f"{number}.dcm")
    found = Volume.read(tmp_path)
    np.testing.assert_allclose(found.affine, volume.affine, atol=0.03)
    assert found.notes == ("slices lie up to 0.016 mm off an even spacing of 4 mm",)


def test_padding_becomes_background(tmp_path: Path) -> None:
    data = small().data.copy()
    data[:4] = -2000
    data[4] = -1990
    data[5] = -1989
    volume = Volume(data, small().affine)
    given = {"RescaleSlope": 2, "RescaleIntercept": 100}
    write_classic(
        tmp_path, volume, PixelPaddingValue=-2000, PixelPaddingRangeLimit=-1990, **given
    )
    found = Volume.read(tmp_path)
    truth = volume.data.astype(np.float32) * 2 + 100
    truth[:5] = 0
    np.testing.assert_array_equal(found.data, truth)
    assert found.notes == (f"{5 * 20 * SLICES} voxels of padding are set to 0",)


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, ImplicitVRLittleEndian])
def test_padding_is_known_in_each_syntax_and_whole_numbers_stay(
    tmp_path: Path, syntax
) -> None:
    data = small().data.copy()
    data[:4] = -2000
    volume = Volume(data, small().affine)
    for number in range(SLICES):
        image = classic(volume, number, PixelPaddingValue=-2000)
        save(image, tmp_path / f"{number}.dcm", syntax)
    found = Volume.read(tmp_path)
    assert found.data.dtype == np.int16
    assert not found.data[:4].any()
    np.testing.assert_array_equal(found.data[4:], volume.data[4:])
