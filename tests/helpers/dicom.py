"""Small DICOM series written by pydicom alone: classic and enhanced, in any order."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from pydicom import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

from trinat.segmentation.io.volume import Volume

CLASSIC = "1.2.840.10008.5.1.4.1.1.4"
ENHANCED = "1.2.840.10008.5.1.4.1.1.4.1"
MARK = "CANARY^PATIENT"


SLICES = 17
# World axis along which columns, rows and slices increase, and its sign, for each orientation.
PLACES = {"LPS": [0, 1, 2], "PIR": [1, 2, 0], "LIP": [0, 2, 1]}
SIGNS = {"LPS": [-1, -1, 1], "PIR": [-1, -1, 1], "LIP": [-1, -1, -1]}


def small(axes: str = "LPS", kind: type = np.int16) -> Volume:
    """Return a volume (18, 20, 17) of random voxels, 0.9 x 1.1 x 1.5 mm."""
    data = np.random.default_rng(0).integers(0, 4000, (18, 20, SLICES)).astype(kind)
    affine = np.zeros((4, 4))
    for axis, (world, sign, mm) in enumerate(
        zip(PLACES[axes], SIGNS[axes], (0.9, 1.1, 1.5), strict=True)
    ):
        affine[world, axis] = sign * mm
    affine[:, 3] = 12.5, -30.25, 7, 1
    return Volume(data, affine)


def uid(*words: object) -> str:
    return generate_uid(entropy_srcs=[str(word) for word in words])


def header(series: str = "t1", **changes: Any) -> Dataset:
    """Return the common header of a series, with a patient's name; None removes an element."""
    dataset = Dataset()
    fields: dict[str, Any] = {
        "SOPClassUID": CLASSIC,
        "Modality": "MR",
        "PatientName": MARK,
        "PatientID": "CANARYID1",
        "PatientBirthDate": "19331122",
        "PatientSex": "F",
        "AccessionNumber": "CANARYNUMBER",
        "StudyID": "CANARYSTUDY",
        "StudyDate": "20190713",
        "StudyTime": "101112",
        "ReferringPhysicianName": "CANARY^DOCTOR",
        "InstitutionName": "CANARY HOSPITAL",
        "StudyDescription": "CANARY study",
        "SeriesDescription": "T1 MPRAGE CANARY",
        "StudyInstanceUID": uid("study"),
        "SeriesInstanceUID": uid(series),
        "FrameOfReferenceUID": uid("frame"),
        "SeriesNumber": 5,
        "ImageType": ["ORIGINAL", "PRIMARY", "M", "ND"],
        "MRAcquisitionType": "3D",
        "ScanningSequence": "GR",
        "EchoTime": 3.1,
        "SamplesPerPixel": 1,
        "PhotometricInterpretation": "MONOCHROME2",
        "Manufacturer": "none",
    }
    for keyword, value in (fields | changes).items():
        if value is not None:
            setattr(dataset, keyword, value)
    dataset.private_block(0x0011, "CANARYPRIVATE", create=True).add_new(
        1, "LO", "CANARY private"
    )
    return dataset


def write_classic(
    folder: Path, volume: Volume, series: str = "t1", **changes: Any
) -> list[Path]:
    """Write one file per slice, along the third axis of `volume`."""
    paths = []
    for number in range(volume.shape[2]):
        image = classic(volume, number, series, **changes)
        # The order of names differs from the order of slices.
        path = folder / f"IM{(number * 7) % volume.shape[2]:04d}"
        paths.append(save(image, path))
    return paths


def classic(volume: Volume, number: int, series: str = "t1", **changes: Any) -> Dataset:
    """Return the dataset of one slice of a classic series; `changes` replace header elements."""
    image = header(series, **changes)
    image.SOPInstanceUID = uid(series, number)
    image.InstanceNumber = number + 1
    position, cosines, spacing, thickness = geometry(volume, number)
    image.ImagePositionPatient, image.ImageOrientationPatient = position, cosines
    image.PixelSpacing, image.SliceThickness = spacing, thickness
    fill(image, volume.data[:, :, number].T)
    return image


def enhanced(volume: Volume, series: str = "t1", **changes: Any) -> Dataset:
    """Return all slices in one dataset, the last first."""
    image = header(series, **({"SOPClassUID": ENHANCED, "EchoTime": None} | changes))
    image.SOPInstanceUID = uid(series, "enhanced")
    image.InstanceNumber = 1
    order = list(reversed(range(volume.shape[2])))
    _, cosines, spacing, thickness = geometry(volume, 0)
    shared, orientation, measures, echo = Dataset(), Dataset(), Dataset(), Dataset()
    orientation.ImageOrientationPatient = cosines
    measures.PixelSpacing, measures.SliceThickness = spacing, thickness
    echo.EffectiveEchoTime = 3.1
    shared.PlaneOrientationSequence = [orientation]
    shared.PixelMeasuresSequence = [measures]
    shared.MREchoSequence = [echo]
    image.SharedFunctionalGroupsSequence = [shared]
    frames = []
    for number in order:
        frame, place = Dataset(), Dataset()
        place.ImagePositionPatient = geometry(volume, number)[0]
        frame.PlanePositionSequence = [place]
        frames.append(frame)
    image.PerFrameFunctionalGroupsSequence = frames
    fill(image, np.stack([volume.data[:, :, number].T for number in order]))
    image.NumberOfFrames = len(order)
    return image


def geometry(
    volume: Volume, number: int
) -> tuple[list[str], list[str], list[str], str]:
    """Return position, direction cosines, pixel spacing and slice distance as DICOM states them."""
    lps = np.diag([-1.0, -1, 1, 1]) @ volume.affine
    lengths = np.linalg.norm(lps[:3, :3], axis=0)
    unit = lps[:3, :3] / lengths
    position = lps[:3, 3] + lps[:3, 2] * number
    cosines = [*unit[:, 0], *unit[:, 1]]
    return (
        [f"{value:.9g}" for value in position],
        [f"{value:.9g}" for value in cosines],
        [f"{value:.9g}" for value in (lengths[1], lengths[0])],
        f"{lengths[2]:.9g}",
    )


def fill(image: Dataset, pixels: np.ndarray) -> None:
    """Set the pixels (row, column) or (frame, row, column) of 8, 16 or 32 bits."""
    image.Rows, image.Columns = pixels.shape[-2:]
    image.BitsAllocated = image.BitsStored = pixels.itemsize * 8
    image.HighBit = image.BitsStored - 1
    image.PixelRepresentation = int(pixels.dtype.kind == "i")
    image.PixelData = np.ascontiguousarray(pixels).tobytes()


def save(image: Dataset, path: Path, syntax: str = ExplicitVRLittleEndian) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.file_meta = FileMetaDataset()
    image.file_meta.TransferSyntaxUID = syntax
    image.file_meta.MediaStorageSOPClassUID = image.SOPClassUID
    image.file_meta.MediaStorageSOPInstanceUID = image.SOPInstanceUID
    image.save_as(path, enforce_file_format=True)
    return path


def packed(folder: Path, path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, f"CANARY^NAME/{file.name}")
    return path


def moved(images: list[Dataset], number: int, by: list[float]) -> None:
    at = images[number].ImagePositionPatient
    images[number].ImagePositionPatient = [a + b for a, b in zip(at, by, strict=True)]


def same(found: Volume, truth: Volume) -> None:
    np.testing.assert_array_equal(found.data, truth.data)
    np.testing.assert_allclose(found.affine, truth.affine, atol=1e-6)
