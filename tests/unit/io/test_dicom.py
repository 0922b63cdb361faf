"""DICOM series, classic and enhanced: read exactly, or refused in one line."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import os
import struct
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.dicom import MARK, classic, enhanced, fill, save, uid, write_classic
from pydicom import Dataset
from pydicom.fileset import FileSet
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
)

from trinat.pipelines.common.discovery import find_cases
from trinat.segmentation.errors import InputError, reason_of
from trinat.segmentation.io.dicom.series import find_series
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.io.volume import Volume

SLICES = 17
# DICOM's three ways to cut, as axes to which columns, rows and slices grow.
CUTS = {"axial": "LPS", "sagittal": "PIR", "coronal": "LIP"}
PLACES = {"LPS": [0, 1, 2], "PIR": [1, 2, 0], "LIP": [0, 2, 1]}
SIGNS = {"LPS": [-1, -1, 1], "PIR": [-1, -1, 1], "LIP": [-1, -1, -1]}


def small(axes: str = "LPS", kind: type = np.int16) -> Volume:
    """(18, 20, 17) voxels that differ everywhere, of 0.9 x 1.1 x 1.5 mm."""
    data = np.random.default_rng(0).integers(0, 4000, (18, 20, SLICES)).astype(kind)
    affine = np.zeros((4, 4))
    for axis, (world, sign, mm) in enumerate(
        zip(PLACES[axes], SIGNS[axes], (0.9, 1.1, 1.5), strict=True)
    ):
        affine[world, axis] = sign * mm
    affine[:, 3] = 12.5, -30.25, 7, 1
    return Volume(data, affine)


def oblique() -> Volume:
    volume = small()
    a, b = np.radians(17), np.radians(-8)
    turn = np.array(
        [[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]]
    ) @ np.array([[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]])
    affine = volume.affine.copy()
    affine[:3, :3] = turn @ affine[:3, :3]
    return Volume(volume.data, affine)


def same(found: Volume, truth: Volume) -> None:
    np.testing.assert_array_equal(found.data, truth.data)
    np.testing.assert_allclose(found.affine, truth.affine, atol=1e-6)


# What is read -------------------------------------------------------------------------------


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
        # Of the folder for what waits to be written, which pydicom does not close.
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
    """Neither the order in the file nor what is said of dimensions counts."""
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


def packed(folder: Path, path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, f"CANARY^NAME/{file.name}")
    return path


# What is found ------------------------------------------------------------------------------


def test_series_are_told_apart_by_uid_and_named_without_the_patient(
    tmp_path: Path,
) -> None:
    write_classic(tmp_path / "p", small())
    for number in range(SLICES):
        image = classic(small(), number, "second", SeriesNumber=12)
        save(image, tmp_path / "p" / f"second{number}")
    save(enhanced(small(), "third", SeriesNumber=None), tmp_path / "q" / "x")
    write_classic(
        tmp_path / "q", small(), "loc", ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"]
    )
    (tmp_path / "q" / "notes.txt").write_text("no DICOM")
    found = find_cases([tmp_path])
    names = [case.id for case in found.cases]
    assert [name.rpartition("-")[0] for name in names] == [
        "p/series-5",
        "p/series-12",
        "q/series",
    ]
    reasons = {
        r.shown.rpartition("-")[0]: (r.reason, r.harmless) for r in found.refusals
    }
    assert reasons == {
        "q/series-5": ("left out: a localiser", True),
        "": ("left out: files that are neither DICOM nor scans: 1", True),
    }
    for case in found.cases:
        volume = Volume.read(case.path, series=case.series)
        same(volume, small())
        assert volume.source_sha256 == sha256_of(*case.files)


@pytest.mark.parametrize(
    "words", ["Sag T1 FLAIR", "3D headcoil", "MPRAGE after BOLD", None]
)
def test_a_description_that_names_no_other_contrast_is_no_reason(
    tmp_path: Path, words
) -> None:
    write_classic(tmp_path, small(), SeriesDescription=words)
    assert len(find_cases([tmp_path]).cases) == 1


def test_scans_beside_dicom_are_found_as_before(tmp_path: Path) -> None:
    write_classic(tmp_path / "d", small())
    small().write(tmp_path / "a.nii.gz")
    assert [case.id.partition("-")[0] for case in find_cases([tmp_path]).cases] == [
        "a",
        "d/series",
    ]


def test_files_of_a_series_may_be_named_by_a_pattern_or_one_by_one(
    tmp_path: Path,
) -> None:
    paths = write_classic(tmp_path, small())
    (by_pattern,) = find_cases([f"{tmp_path}/IM*"]).cases
    (one_by_one,) = find_cases(paths).cases
    assert by_pattern.series == one_by_one.series
    assert len(by_pattern.series) == SLICES


def test_one_zip_is_named_after_itself_and_not_after_what_is_in_it(
    tmp_path: Path,
) -> None:
    write_classic(tmp_path / "in", small())
    (case,) = find_cases([packed(tmp_path / "in", tmp_path / "upload.zip")]).cases
    assert case.id.startswith("upload/series-5-")
    assert case.files == (tmp_path / "upload.zip",)


def test_without_the_extra_one_line_says_how_to_install_it(
    tmp_path: Path, monkeypatch
) -> None:
    write_classic(tmp_path, small())
    monkeypatch.setitem(sys.modules, "pydicom", None)
    (refusal,) = find_cases([tmp_path]).refusals
    assert refusal.reason == "DICOM needs more packages: pip install 'trinat[dicom]'"


# What is refused ----------------------------------------------------------------------------

Images = list[Dataset]


def each(**fields: Any) -> Callable[[Images], None]:
    """The same change to every image; None takes an element away."""

    def change(images: Images) -> None:
        for image in images:
            for keyword, value in fields.items():
                if value is None:
                    delattr(image, keyword)
                else:
                    setattr(image, keyword, value)

    return change


def one(**fields: Any) -> Callable[[Images], None]:
    return lambda images: each(**fields)(images[3:4])


def moved(images: Images, number: int, by: list[float]) -> None:
    at = images[number].ImagePositionPatient
    images[number].ImagePositionPatient = [a + b for a, b in zip(at, by, strict=True)]


def tilted(images: Images) -> None:
    for number in range(SLICES):
        moved(images, number, [0, 0.3 * number, 0])


def sideways(images: Images) -> None:
    moved(images, 5, [0.5, 0, 0])


def uneven(images: Images) -> None:
    for number in range(9, SLICES):
        moved(images, number, [0, 0, 0.4])


def twice(images: Images) -> None:
    for image in copy.deepcopy(images):
        image.SOPInstanceUID = uid("echo", image.InstanceNumber)
        image.EchoTime = 6
        images.append(image)


def other_sides(images: Images) -> None:
    fill(images[3], np.zeros((10, 18), np.int16))


def colours(images: Images) -> None:
    each(PhotometricInterpretation="RGB", SamplesPerPixel=3, PlanarConfiguration=0)(
        images
    )
    each(PixelData=bytes(18 * 20 * 2 * 3))(images)


def several_frames(images: Images) -> None:
    each(NumberOfFrames=2, PixelData=bytes(18 * 20 * 2 * 2))(images)


def nowhere(images: Images) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        each(ImagePositionPatient=["nan", "0", "0"])(images)


def empty(images: Images) -> None:
    each(PixelData=bytes(18 * 20 * 2))(images)


T2 = ["ORIGINAL", "PRIMARY", "M"]
CHANGED = {
    "a localiser": (
        each(ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"]),
        "a localiser",
    ),
    "a scout by its name": (each(SeriesDescription="AAHead_Scout"), "a localiser"),
    "a reformat": (each(ImageType=["DERIVED", "SECONDARY", "MPR"]), "derived"),
    "a phase image": (
        each(ImageType=["ORIGINAL", "PRIMARY", "P", "ND"]),
        "no magnitude",
    ),
    "a mosaic": (each(ImageType=["ORIGINAL", "PRIMARY", "M", "MOSAIC"]), "a mosaic"),
    "2D": (each(MRAcquisitionType="2D"), "a 2D acquisition"),
    "echo-planar": (each(ScanningSequence=["EP", "GR"]), "echo-planar"),
    "an angiogram": (each(AngioFlag="Y"), "an angiogram"),
    "a long echo time": (each(EchoTime=388), "its echo time is above 25 ms"),
    "T2 by its name": (each(SeriesDescription="t2_space"), "another contrast"),
    "another contrast": (each(AcquisitionContrast="T2"), "its contrast is not T1"),
    "CT": (
        each(Modality="CT", SOPClassUID="1.2.840.10008.5.1.4.1.1.2"),
        "no MR image (CT)",
    ),
    "another kind that says MR": (
        each(SOPClassUID="1.2.840.10008.5.1.4.1.1.7"),
        "no MR image",
    ),
    "a name for a modality": (each(Modality="CANARY"), "no MR image"),
    "few slices": (
        lambda images: images.__delitem__(slice(0, 5)),
        "12 images, fewer than 16",
    ),
    "slices missing": (
        lambda images: images.__delitem__(slice(7, 8)),
        "slices are missing within it: 1",
    ),
    "uneven spacing": (uneven, "unequal spacing of slices, 1.5 to 1.9 mm"),
    "two echoes": (twice, "17 slices where another is"),
    "two orientations": (
        one(ImageOrientationPatient=[0, 1, 0, 0, 0, -1]),
        "several orientations",
    ),
    "a slice to the side": (sideways, "not in a line"),
    "a tilted gantry": (tilted, "shifted sideways"),
    "two pixel sizes": (one(PixelSpacing=[1, 1]), "several pixel sizes"),
    "other rows": (other_sides, "Rows differs"),
    "two frames of reference": (
        one(FrameOfReferenceUID="1.2.3"),
        "FrameOfReferenceUID differs",
    ),
    "no position": (
        one(ImagePositionPatient=None),
        "its place, orientation or spacing is missing",
    ),
    "no orientation": (one(ImageOrientationPatient=None), "its place, orientation"),
    "no pixel size": (each(PixelSpacing=None), "its place, orientation or spacing"),
    "a pixel size of 0": (each(PixelSpacing=[0, 0]), "impossible voxel size"),
    "far away": (nowhere, "its place, orientation"),
    "sheared axes": (
        each(ImageOrientationPatient=[1, 0, 0, 0.6, 0.8, 0]),
        "right angles",
    ),
    "no unit vectors": (
        each(ImageOrientationPatient=[2, 0, 0, 0, 2, 0]),
        "right angles",
    ),
    "colours": (colours, "not grey values"),
    "several frames of no place": (several_frames, "not a place for each frame"),
    "64 bits": (
        each(BitsAllocated=64, PixelData=bytes(18 * 20 * 8)),
        "voxels of 64 bits",
    ),
    "huge": (each(Rows=60000, Columns=60000), "its pixels end early"),
    "too large a side": (
        each(Rows=1, Columns=2000, PixelData=bytes(4000)),
        "more than 1500",
    ),
    "short pixels": (one(PixelData=b"\0" * 40), "its pixels end early"),
    "no pixels": (one(PixelData=None), "no pixels"),
    "nothing in it": (empty, "all voxels are 0"),
    "values at high bits": (
        each(BitsStored=12, HighBit=15),
        "do not end at the lowest bit",
    ),
    "values by a table": (each(ModalityLUTSequence=[Dataset()]), "places in a table"),
    "no series": (each(SeriesInstanceUID=None), "damaged DICOM file"),
    "words for numbers": (one(Rows=None), "damaged DICOM file"),
}


def reason(folder: Path) -> str:
    """Why a folder gives no scan: what finding says, else what reading says."""
    found = find_cases([folder])
    reasons = {refusal.reason for refusal in found.refusals}
    for case in found.cases:
        with pytest.raises(InputError) as caught:
            Volume.read(case.path, series=case.series)
        reasons.add(reason_of(caught.value, where=False))
    said = " + ".join(sorted(reasons))
    assert "CANARY" not in said
    assert "\n" not in said
    return said


@pytest.mark.parametrize(("change", "why"), CHANGED.values(), ids=CHANGED)
def test_a_broken_series_is_refused_with_its_reason(
    tmp_path: Path, change, why: str
) -> None:
    images = [classic(small(), number) for number in range(SLICES)]
    change(images)
    for number, image in enumerate(images):
        save(image, tmp_path / f"{number}.dcm")
    assert why in reason(tmp_path)


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


@pytest.mark.parametrize(
    ("facts", "taken"),
    [
        ({"MRAcquisitionType": "2D"}, True),
        ({"EchoTime": 388}, True),
        ({"SeriesDescription": "t2_flair_tra"}, True),
        ({"SeriesDescription": "ep2d_diff_3scan"}, False),
        ({"ScanningSequence": ["EP", "GR"]}, False),
        ({"ImageType": ["DERIVED", "SECONDARY", "MPR"]}, False),
    ],
)
def test_for_any_contrast_each_anatomical_series_is_a_scan(
    tmp_path: Path, facts: dict[str, Any], taken: bool
) -> None:
    write_classic(tmp_path, small(), **facts)
    names = [path.name for path in tmp_path.iterdir()]
    (for_t1,) = find_series(tmp_path, names)
    assert for_t1.reason
    (found,) = find_series(tmp_path, names, any_contrast=True)
    assert (not found.reason) == taken


def test_a_folder_without_a_scan_is_refused_by_the_names_of_its_files(
    tmp_path: Path,
) -> None:
    write_classic(tmp_path, small(), MRAcquisitionType="2D")
    (tmp_path / "torn.dcm").write_bytes(bytes(128) + b"DICM" + bytes(20))
    with pytest.raises(InputError) as caught:
        Volume.read(tmp_path)
    assert "torn.dcm: damaged DICOM file" in str(caught.value)
    assert "series-5-" in str(caught.value)
    assert ": a 2D acquisition" in str(caught.value)


def no_frames(image: Dataset) -> None:
    image.PerFrameFunctionalGroupsSequence = image.PerFrameFunctionalGroupsSequence[:-1]


def no_positions(image: Dataset) -> None:
    del image.PerFrameFunctionalGroupsSequence[3].PlanePositionSequence


def long_echo(image: Dataset) -> None:
    image.SharedFunctionalGroupsSequence[0].MREchoSequence[0].EffectiveEchoTime = 120


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (no_frames, "not a place for each frame"),
        (no_positions, "its place, orientation"),
        (long_echo, "its echo time"),
    ],
)
def test_a_broken_enhanced_file_is_refused_with_its_reason(
    tmp_path, change, why: str
) -> None:
    image = enhanced(small())
    change(image)
    save(image, tmp_path / "a.dcm")
    assert why in reason(tmp_path)


def _truncated(folder: Path) -> None:
    path = write_classic(folder, small())[4]
    path.write_bytes(path.read_bytes()[:700])


def _lossless_jpeg(folder: Path) -> None:
    for path in write_classic(folder, small()):
        raw = path.read_bytes()
        old, new = (struct.pack("<H", n) for n in (20, 22))
        at = raw.index(b"\x02\0\x10\0UI")
        size = struct.unpack_from("<I", raw, 140)[0]
        syntax = JPEGLosslessSV1.encode()
        syntax += b"\0" * (len(syntax) % 2)
        length = struct.unpack_from("<H", raw, at + 6)[0]
        meta = raw[144:at] + b"\x02\0\x10\0UI" + struct.pack("<H", len(syntax)) + syntax
        meta += raw[at + 8 + length : 144 + size]
        path.write_bytes(
            raw[:140] + struct.pack("<I", len(meta)) + meta + raw[144 + size :]
        )
        assert old != new


def _deflated(folder: Path) -> None:
    for number in range(SLICES):
        save(
            classic(small(), number),
            folder / str(number),
            DeflatedExplicitVRLittleEndian,
        )


def _items(folder: Path) -> None:
    """Two million empty items in a sequence that nobody asks for."""
    path = write_classic(folder, small())[8]
    raw = path.read_bytes()
    start = raw.index(b"\x08\0\x16\0UI")
    bomb = (
        b"\x08\0\x15\x11SQ\0\0" + b"\xff" * 4 + b"\xfe\xff\x00\xe0\0\0\0\0" * 2_000_000
    )
    path.write_bytes(raw[:start] + bomb + b"\xfe\xff\xdd\xe0\0\0\0\0" + raw[start:])


def _nested(folder: Path) -> None:
    """Sequences in sequences, deeper than Python goes."""
    path = write_classic(folder, small())[8]
    raw = path.read_bytes()
    start = raw.index(b"\x08\0\x16\0UI")
    deep = (
        b"\x08\0\x15\x11SQ\0\0" + b"\xff" * 4 + b"\xfe\xff\x00\xe0" + b"\xff" * 4
    ) * 5000
    path.write_bytes(raw[:start] + deep + raw[start:])


def _pipes(folder: Path) -> None:
    os.mkfifo(folder / "IM0001")


def _directory(folder: Path) -> None:
    image = classic(small(), 0, SOPClassUID="1.2.840.10008.1.3.10")
    save(image, folder / "DICOMDIR")


def _junk(folder: Path) -> None:
    (folder / "a.dcm").write_bytes(bytes(128) + b"DICM" + b"\xff" * 4000)


FOLDERS = {
    "nothing": (lambda folder: None, "no scan in this folder"),
    "texts": (
        lambda folder: (folder / "a.txt").write_text("x"),
        "no scan in this folder",
    ),
    "a pipe": (_pipes, "no scan in this folder"),
    "junk after the magic": (_junk, "damaged DICOM file"),
    "a cut header": (_truncated, "damaged DICOM file"),
    "a syntax without a decoder": (_lossless_jpeg, "compressed (JPEG Lossless"),
    "deflated": (_deflated, "deflated"),
    "too many items": (_items, "too large"),
    "sequences without end": (_nested, "damaged DICOM file"),
}


@pytest.mark.parametrize(("make", "why"), FOLDERS.values(), ids=FOLDERS)
def test_a_broken_folder_is_refused_with_its_reason(
    tmp_path: Path, make, why: str
) -> None:
    make(tmp_path)
    assert why in reason(tmp_path)


def test_a_table_of_contents_alone_is_no_scan(tmp_path: Path) -> None:
    _directory(tmp_path)
    assert not find_cases([tmp_path]).cases
    (refusal,) = find_cases([tmp_path / "DICOMDIR"]).refusals
    assert "of a DICOMDIR give the folder" in refusal.reason
    with pytest.raises(InputError, match=r"\(DICOMDIR\), no image: give the folder"):
        Volume.read(tmp_path / "DICOMDIR")


def zipped(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


ZIPS = {
    "no zip": (b"no zip", "a damaged or encrypted zip"),
    "no DICOM": (zipped(a=b"text"), "no DICOM image in it"),
    "cut": (zipped(a=bytes(9999))[:-30], "a damaged or encrypted zip"),
    "a bomb": (zipped(a=bytes(300 * 2**20)), "as no scan does"),
    "64-bit contents": (zipped(a=b"x") + b"PK\6\7" + zipped()[-22:], "too many files"),
    "large contents": (
        zipped(a=b"x")[:-10] + struct.pack("<I", 2**30) + bytes(6),
        "too many files",
    ),
}


@pytest.mark.parametrize(("content", "why"), ZIPS.values(), ids=ZIPS)
def test_a_broken_zip_is_refused_with_its_reason(
    tmp_path: Path, content: bytes, why: str
) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(content)
    assert why in reason(path)


def test_a_damaged_file_of_a_zip_is_not_named_as_the_hospital_names_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(zipped(**{MARK: bytes(128) + b"DICM" + b"\xff" * 4000}))
    (refusal,) = find_cases([path]).refusals
    assert refusal.shown == "a/file-1"


def test_a_damaged_file_beside_a_scan_may_be_a_part_of_it_and_has_failed(
    tmp_path: Path,
) -> None:
    write_classic(tmp_path, small())
    _junk(tmp_path)
    found = find_cases([tmp_path])
    assert len(found.cases) == 1
    (refusal,) = found.refusals
    assert (refusal.shown, refusal.reason) == ("a.dcm", "damaged DICOM file")
    assert not refusal.harmless


@pytest.mark.parametrize("make", ["classic", "enhanced"])
def test_damage_anywhere_in_a_header_is_read_over_or_refused_in_one_line(
    tmp_path: Path, make: str, capfd
) -> None:
    """Bytes changed, taken away or doubled, at random but the same each time."""
    if make == "classic":
        path = write_classic(tmp_path, small())[8]
    else:
        path = save(enhanced(small()), tmp_path / "a.dcm")
    sound = path.read_bytes()
    header = sound.index(b"\xe0\x7f\x10\0")
    chance = np.random.default_rng(5)
    for _ in range(60):
        raw = bytearray(sound)
        for at in chance.integers(132, header, chance.integers(1, 6)):
            kind = chance.integers(3)
            end = at + int(chance.integers(1, 9))
            raw[at:end] = (chance.bytes(end - at), b"", raw[at:end] * 2)[kind]
        path.write_bytes(raw)
        for case in find_cases([tmp_path]).cases:
            with contextlib.suppress(InputError):
                Volume.read(case.path, series=case.series)
    assert "CANARY" not in "".join(capfd.readouterr())
