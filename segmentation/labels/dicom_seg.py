"""Export of a label map as DICOM SEG, in the frame of reference of its series."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Collection, Sequence
from functools import cache
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import (
    FormatError,
    GeometryError,
    IntegrityError,
    LabelError,
    OutputError,
)
from trinat.segmentation.grid import Grid
from trinat.segmentation.io.dicom.frames import Frame
from trinat.segmentation.io.dicom.parsing import quiet
from trinat.segmentation.io.dicom.scan import load
from trinat.segmentation.io.files import atomic_write, read_text

if TYPE_CHECKING:
    from pydicom import Dataset

    from trinat.segmentation.io.volume import Volume
    from trinat.segmentation.labels.label import Label
    from trinat.segmentation.labels.scheme import LabelScheme

_SAME_MM = 1e-3
# Attributes that the standard requires, possibly empty: anonymised files may lack them.
_REQUIRED_ATTRIBUTES = (
    "PatientID",
    "PatientName",
    "PatientBirthDate",
    "PatientSex",
    "AccessionNumber",
    "StudyID",
    "StudyDate",
    "StudyTime",
    "ReferringPhysicianName",
)
_SIDES = {
    "left": ("7771000", "SCT", "Left"),
    "right": ("24028007", "SCT", "Right"),
}
_MADE_BY = "trinat"
# Users of the command line and of the service name the option differently.
_WITHOUT = "segment it without a DICOM SEG"


class Code(NamedTuple):
    """Coded term of DICOM: from SNOMED CT (SCT) or the standard's own terms (DCM).

    The three parts are written as CodeValue, CodingSchemeDesignator and CodeMeaning.
    """

    value: str
    scheme: str
    meaning: str


@cache
def _read_codes() -> dict[int, tuple[Code, Code]]:
    """Read type and category of each structure, by FreeSurfer number, from dicom-codes.tsv."""
    table = Path(str(resources.files("trinat.configs") / "labels" / "dicom-codes.tsv"))
    codes = {}
    for row in csv.DictReader(read_text(table).splitlines(), delimiter="\t"):
        kind = Code(row["code"], row["scheme"], row["meaning"])
        category = Code(row["category_code"], "SCT", row["category"])
        for number in row["freesurfer"].split():
            codes[int(number)] = kind, category
    return codes


def code_of(label: Label) -> tuple[Code, Code]:
    """Return the DICOM codes of a structure's type and category.

    The side has a separate code and is not included. Raises a LabelError for a structure without a
    code.
    """
    codes = _read_codes()
    if label.fs_id not in codes:
        raise LabelError(f"no DICOM code for {label.name}", remedy=_WITHOUT)
    return codes[label.fs_id]


def write_seg(
    path: Path,
    indices: Volume,
    scheme: LabelScheme,
    place: Path,
    names: Sequence[str],
    *,
    digest: str,
    model: str,
    left_out: Collection[str] = (),
) -> None:
    """Write the class indices of a scan, on its own grid, as a DICOM SEG of binary segments.

    The scan is the series of the files `names` in `place`, a folder or a zip; without names, the
    only series in it. It was read by `Volume.read(place, series=names)`, and `digest` is its
    `source_sha256`. `left_out` are names of structures that the model does not predict. `model` is
    the model's name. The file has the patient and study of the series. The same labels get the same
    UIDs. Raises IntegrityError if the series has changed since it was read.
    """
    source = load(place, names, whole=True)
    if source.digest != digest:
        raise IntegrityError(
            "was changed since it was read", where=place, remedy="run again"
        )
    grid = Grid(source.header.shape, source.header.bare)
    if grid.apart_mm(indices.grid) > _SAME_MM:
        raise GeometryError("labels lie on another grid than the series", where=place)
    datasets = [file.dataset for file in source.files.values()]
    _add_required_attributes(datasets, place)
    labels = [label for label in scheme.labels[1:] if label.name not in left_out]
    # Segments are numbered from 1, without gaps; 0 marks background and left-out structures.
    segment_of = np.zeros(len(scheme), np.uint8)
    classes = [label.index for label in labels]
    segment_of[classes] = np.arange(1, len(labels) + 1)
    stack = _in_order_of_files(segment_of[indices.data], source.frames)
    with quiet():
        content = _encode_seg(datasets, stack, labels, digest, model)
    with atomic_write(path) as file:
        file.write(content)


def _add_required_attributes(datasets: list[Dataset], place: Path) -> None:
    """Add attributes that DICOM requires and the headers lack, with empty values.

    Raises FormatError if an identifier that must not be empty is missing.
    """
    for dataset in datasets:
        for keyword in _REQUIRED_ATTRIBUTES:
            if keyword not in dataset:
                setattr(dataset, keyword, None)
    for keyword in ("FrameOfReferenceUID", "StudyInstanceUID"):
        if not datasets[0].get(keyword):
            raise FormatError(
                f"no {keyword}, which a DICOM SEG needs", where=place, remedy=_WITHOUT
            )


def _in_order_of_files(
    segments: NDArray[np.uint8], frames: list[Frame]
) -> NDArray[np.uint8]:
    """Reorder segment numbers (column, row, slice) to (frame, row, column).

    `frames` has the file and the number in it of each slice, in the order of the slices; the result
    is in the order of files and their frames.
    """
    columns, rows, slices = segments.shape
    stack = np.empty((slices, rows, columns), np.uint8)
    places = [(frame.file, frame.number, at) for at, frame in enumerate(frames)]
    for number, (_, _, at) in enumerate(sorted(places)):
        stack[number] = segments[..., at].T
    return stack


def _describe_segments(labels: Sequence[Label], model: str) -> list[Any]:
    """Return the DICOM description of each segment: name, codes, side, colour and algorithm."""
    import highdicom as hd
    from pydicom.sr.codedict import codes

    algorithm = hd.AlgorithmIdentificationSequence(
        _MADE_BY,
        codes.DCM.ArtificialIntelligence,
        version("trinat"),
        parameters={"model": model},
    )
    segments = []
    for number, label in enumerate(labels, start=1):
        kind, category = code_of(label)
        segment = hd.seg.SegmentDescription(
            number,
            label.name,
            hd.sr.CodedConcept(*category),
            hd.sr.CodedConcept(*kind),
            hd.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
            algorithm,
            display_color=hd.color.CIELabColor.from_rgb(*label.color),
        )
        if label.side:
            side = hd.sr.CodedConcept(*_SIDES[label.side])
            (property_type,) = segment.SegmentedPropertyTypeCodeSequence
            property_type.SegmentedPropertyTypeModifierCodeSequence = [side]
        segments.append(segment)
    return segments


def _encode_seg(
    sources: list[Any],
    stack: Any,
    labels: Sequence[Label],
    digest: str,
    model: str,
) -> bytes:
    """Encode a label map as a DICOM SEG; return the bytes of the file.

    `stack` (frame, row, column) has the segment number of each voxel, 0 for none, and `labels` are
    the structures of the segments 1, 2, ... `sources` are the headers of the series, `digest` is
    its SHA-256, and `model` the model's name. Raises OutputError if the headers cannot be used.
    """
    import highdicom as hd
    from pydicom.uid import generate_uid

    made = hashlib.sha256(stack.tobytes()).hexdigest()
    segments = _describe_segments(labels, model)
    buffer = io.BytesIO()
    try:
        for source in sources:
            # highdicom does not know all character sets of scanners; UTF-8 has their characters.
            source.decode()
            source.SpecificCharacterSet = "ISO_IR 192"
        hd.seg.Segmentation(
            sources,
            stack,
            hd.seg.SegmentationTypeValues.BINARY,
            segments,
            generate_uid(entropy_srcs=["series", digest, made]),
            1000 + int(sources[0].get("SeriesNumber") or 0),
            generate_uid(entropy_srcs=["instance", digest, made]),
            1,
            _MADE_BY,
            model,
            version("trinat"),
            made[:16],
            content_label="TRINAT",
            series_description="trinat segmentation",
        ).save_as(buffer)
    except MemoryError:
        raise
    except (
        Exception
    ):  # pydicom raises many kinds of errors, and their messages may quote the header
        raise OutputError(
            "no DICOM SEG can be made of this series' header",
            remedy=_WITHOUT,
        ) from None
    return buffer.getvalue()
