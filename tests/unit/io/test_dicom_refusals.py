"""DICOM files that are no scan, or broken, are refused in one line."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.dicom import (
    MARK,
    SLICES,
    classic,
    enhanced,
    fill,
    moved,
    packed,
    save,
    small,
    uid,
    write_classic,
)
from helpers.refusals import refusal
from pydicom import Dataset
from pydicom.uid import (
    MPEG2MPML,
    UID,
    DeflatedExplicitVRLittleEndian,
    JPEGLosslessSV1,
)

from trinat.pipelines.study.discovery import find_cases
from trinat.segmentation.errors import (
    FormatError,
    InputError,
    IntegrityError,
    reason_of,
)
from trinat.segmentation.io.volume import Volume

Images = list[Dataset]


def each(**fields: Any) -> Callable[[Images], None]:
    """Return a function that changes each image alike; None removes an element."""

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
        "only 12 images, and at least 16 are needed",
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
        "do not use the lowest bit",
    ),
    "values by a table": (
        each(ModalityLUTSequence=[Dataset()]),
        "indices into a lookup table",
    ),
    "two series without identifiers": (
        lambda images: (twice(images), each(SeriesInstanceUID=None)(images)),
        "17 slices where another is",
    ),
    "words for numbers": (one(Rows=None), "damaged DICOM file"),
}


def reason(folder: Path) -> str:
    """Return the error of a folder without a valid scan, from finding or else from reading."""
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


def test_a_folder_without_a_scan_is_refused_by_the_names_of_its_series(
    tmp_path: Path,
) -> None:
    write_classic(tmp_path, small(), MRAcquisitionType="2D")
    with pytest.raises(FormatError) as caught:
        Volume.read(tmp_path)
    assert "series-5-" in str(caught.value)
    assert ": a 2D acquisition" in str(caught.value)


def test_a_scan_whose_last_slices_are_damaged_is_not_read_without_them(
    tmp_path: Path,
) -> None:
    last = write_classic(tmp_path / "in", small())[-1]
    last.write_bytes(last.read_bytes()[:300])
    for place in (tmp_path / "in", packed(tmp_path / "in", tmp_path / "a.zip")):
        with refusal(IntegrityError, place):
            Volume.read(place)


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
    _claim_syntax(folder, JPEGLosslessSV1)


def _film(folder: Path) -> None:
    """Write a transfer syntax for which pydicom has no decoders."""
    _claim_syntax(folder, MPEG2MPML)


def _claim_syntax(folder: Path, claimed: UID) -> None:
    """Write files whose headers name a transfer syntax that their pixels do not have."""
    for path in write_classic(folder, small()):
        raw = path.read_bytes()
        old, new = (struct.pack("<H", n) for n in (20, 22))
        at = raw.index(b"\x02\0\x10\0UI")
        size = struct.unpack_from("<I", raw, 140)[0]
        syntax = claimed.encode()
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
    """Write two million empty items in a sequence that is not read."""
    path = write_classic(folder, small())[8]
    raw = path.read_bytes()
    start = raw.index(b"\x08\0\x16\0UI")
    bomb = (
        b"\x08\0\x15\x11SQ\0\0" + b"\xff" * 4 + b"\xfe\xff\x00\xe0\0\0\0\0" * 2_000_000
    )
    path.write_bytes(raw[:start] + bomb + b"\xfe\xff\xdd\xe0\0\0\0\0" + raw[start:])


def _nested(folder: Path) -> None:
    """Write nested sequences deeper than Python's recursion limit."""
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
    "a syntax of films": (_film, "compressed (MPEG2 Main Profile"),
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
    "NIfTI": (zipped(**{"a.nii": b"text"}), "unpack a zip of NIfTI files"),
    "cut": (zipped(a=bytes(9999))[:-30], "a damaged or encrypted zip"),
    # Its headers say that it unpacks to 300 MiB.
    "a bomb": (
        zipped(a=bytes(9999)).replace(
            struct.pack("<I", 9999), struct.pack("<I", 300 * 2**20)
        ),
        "which no scan does",
    ),
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
    (failure,) = found.refusals
    assert failure.reason == "damaged DICOM file"
    assert not failure.harmless


def test_a_damaged_file_of_a_folder_is_not_named_as_the_hospital_names_it(
    tmp_path: Path,
) -> None:
    paths = write_classic(tmp_path / "p", small())
    paths[0].write_bytes(paths[0].read_bytes()[:300])
    paths[0].rename(paths[0].with_name(f"{MARK}.MR.HEAD.0005.IMA"))
    found = find_cases([tmp_path])
    assert [failure.shown for failure in found.refusals] == ["p/file-1"]


@pytest.mark.parametrize("make", ["classic", "enhanced"])
def test_damage_anywhere_in_a_header_is_read_over_or_refused_in_one_line(
    tmp_path: Path, make: str, capfd
) -> None:
    """Bytes changed, removed or doubled at random, but the same each time."""
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
