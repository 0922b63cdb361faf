"""Scan headers, checked field by field before any voxel is read.

nibabel decodes the fields. Its own checks are off: they repair errors (a negative voxel size, an
unknown code) that trinat refuses, and they cover only half of the fields.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import nibabel as nib
import numpy as np
from nibabel.spatialimages import HeaderDataError
from numpy.typing import NDArray

from trinat.segmentation.errors import FormatError, GeometryError
from trinat.segmentation.io.limits import (
    MAX_BYTES,
    REMAKE,
    Sides,
    Zooms,
    check_memory,
    check_sides,
    check_zooms,
    wrong,
)
from trinat.segmentation.io.streams import ScanStream

_NIFTI1_LENGTH = 348
_NIFTI2_LENGTH = 540
# Extensions of a NIfTI header may hold a whole DICOM header, but no more than this.
_MAX_OFFSET = 64 * 2**20
_MGH_VOXELS_AT = 284
# Position of goodRASFlag, the MGH field that says whether the header has an orientation.
MGH_FLAG = slice(28, 30)
_UNIT_LENGTH_TOLERANCE = 1e-3
# NIfTI's codes of spatial units.
_UNKNOWN_UNITS = 0
_MILLIMETRES = 2
_MOST_DIMENSIONS = 7
_LARGEST_FORM_CODE = 5


@dataclass(frozen=True)
class Form:
    """The q-form or the s-form of a header: one of its two statements on orientation.

    `affine` (4, 4) maps voxel indices to RAS mm; it is None if the fields do not define an affine.
    `code` is NIfTI's number of the target space; 0 means unknown.
    """

    code: int
    affine: NDArray[np.float64] | None


@dataclass(frozen=True)
class Header:
    """All header fields that reading needs.

    `shape` and `zooms` (mm) have the three axes; `dtype` is the voxel type in the file, with its
    byte order. The voxels begin at byte `offset`. A value is `slope` times the stored value plus
    `inter`. `bare` is the affine (4, 4) that nibabel assumes if the codes of both forms are 0,
    unknown.
    """

    shape: Sides
    dtype: np.dtype[Any]
    offset: int
    slope: float
    inter: float
    zooms: Zooms
    qform: Form
    sform: Form
    bare: NDArray[np.float64]

    @property
    def nbytes(self) -> int:
        """Number of bytes of all voxels in the file, after decompression."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def scaled(self) -> bool:
        """True if the values differ from the stored values: slope and intercept are not 1 and 0."""
        return (self.slope, self.inter) != (1.0, 0.0)


def read_nifti(stream: ScanStream) -> Header:
    """Read the header of a .nii file, NIfTI-1 or NIfTI-2.

    The stream is then at the first voxel. Raises an InputError for anything but a sound header of
    one 3D scan.
    """
    fields, length = _read_fields(stream)
    where = stream.path
    magic = b"n+1\0" if length == _NIFTI1_LENGTH else b"n+2\0"
    if fields["magic"].tobytes()[:4] != magic:
        raise FormatError(
            "not a single-file NIfTI image, though named .nii",
            where=where,
            remedy="if it is half of a pair, name the .hdr file",
        )
    header = from_nifti(fields, where)
    # Four bytes after the header say whether extensions follow, so the voxels start after them.
    if header.offset < length + 4:
        raise wrong(
            f"voxels are said to start at byte {header.offset}, inside the header",
            where,
        )
    check_size(header, where, stream)
    extensions = stream.take(header.offset - length)
    _check_extensions(extensions, fields.endianness, where)
    return header


def read_pair(stream: ScanStream) -> Header:
    """Read a .hdr file: the header of a NIfTI pair, or of Analyze 7.5 if it lacks NIfTI's magic.

    Raises a FormatError for impossible fields, and for the header of a single file (.nii) that is
    named .hdr.
    """
    fields, _ = _read_fields(stream)
    magic = fields["magic"].tobytes()[:3]
    if magic in (b"n+1", b"n+2"):
        raise FormatError(
            "a single-file NIfTI header in a pair",
            where=stream.path,
            remedy="rename it to .nii",
        )
    if magic in (b"ni1", b"ni2"):
        return from_nifti(fields, stream.path)
    return _from_analyze(fields.binaryblock, fields.endianness, stream.path)


def read_mgh(stream: ScanStream) -> Header:
    """Read the header of an .mgh or .mgz file.

    The stream is then at the first voxel. A header without orientation gets FreeSurfer's default: 1
    mm voxels along left, inferior and anterior. The code of both forms is the header's goodRASFlag
    (0 or 1). Raises an InputError for anything but a sound header of one 3D scan.
    """
    where = stream.path
    block = stream.take(_MGH_VOXELS_AT)
    fields = nib.freesurfer.MGHImage.header_class(block, check=False)
    version = int(fields["version"])
    if version != 1:
        raise FormatError(f"MGH version {version}, not 1", where=where, remedy=REMAKE)
    flag = int.from_bytes(block[MGH_FLAG], "big", signed=True)
    if flag not in (0, 1):
        raise wrong(f"goodRASFlag is {flag}, not 0 or 1", where)
    if flag == 0:
        # nibabel has replaced the fields by its defaults: 1 mm, and LSP axes where FreeSurfer has
        # LIA.
        fields["Mdc"] = ((-1, 0, 0), (0, 0, -1), (0, 1, 0))
    dims = [int(n) for n in fields["dims"]]
    shape = check_sides(dims, where)
    zooms = check_zooms(fields["delta"], where)
    with np.errstate(all="ignore"):
        directions = fields["Mdc"].astype(np.float64)
        lengths = np.linalg.norm(directions, axis=1)
        affine = np.asarray(fields.get_affine(), np.float64)
    if not np.all(np.abs(lengths - 1) <= _UNIT_LENGTH_TOLERANCE):
        raise GeometryError(
            "direction cosines are not unit vectors", where=where, remedy=REMAKE
        )
    try:
        dtype = np.dtype(fields.get_data_dtype()).newbyteorder(">")
    except KeyError:
        raise _type_refused(f"MGH voxel type {int(fields['type'])}", where) from None
    # MGH has a single affine, so the two forms cannot disagree.
    form = Form(flag, affine)
    header = Header(shape, dtype, _MGH_VOXELS_AT, 1.0, 0.0, zooms, form, form, affine)
    check_size(header, where, stream)
    return header


def check_size(header: Header, where: Path, stream: ScanStream | None = None) -> None:
    """Raise an InputError if the voxels exceed the limits, their file or the free memory.

    It is called before memory is allocated. `stream` is the file, if there is a single one. Its
    faults are reported first, because they do not depend on the machine.
    """
    voxel_bytes = header.dtype.itemsize
    if header.scaled:
        # Scaled voxels become 4-byte floats.
        voxel_bytes = max(voxel_bytes, 4)
    count = math.prod(header.shape) * voxel_bytes
    if count > MAX_BYTES:
        raise FormatError(
            f"{count / 2**30:.1f} GiB of voxels, more than {MAX_BYTES >> 30}",
            where=where,
            remedy="resample it to a coarser grid",
        )
    if stream is not None:
        stream.announce(header.offset + header.nbytes)
    check_memory(header.shape, header.zooms, header.nbytes, where)


def _read_fields(stream: ScanStream) -> tuple[Any, int]:
    """Read the fields of a NIfTI or Analyze header; return them and the length in bytes.

    The fields are a header of nibabel. A header begins with its own length, which reveals its kind
    and its byte order.
    """
    start = stream.take(4)
    kinds = (
        (nib.Nifti1Header, _NIFTI1_LENGTH),
        (nib.Nifti2Header, _NIFTI2_LENGTH),
    )
    for kind, length in kinds:
        for endianness in ("<", ">"):
            if int.from_bytes(start, _byte_order(endianness)) == length:
                block = start + stream.take(length - 4)
                return kind(block, endianness, check=False), length
    raise FormatError(
        "not a NIfTI or Analyze header",
        where=stream.path,
        remedy="convert the scan to .nii.gz",
    )


def _byte_order(endianness: str) -> Literal["little", "big"]:
    """Translate nibabel's "<" and ">" into Python's names."""
    return "little" if endianness == "<" else "big"


def from_nifti(fields: Any, where: Path) -> Header:
    """Check the fields of a NIfTI-1 or NIfTI-2 header and return them as a `Header`.

    `fields` is nibabel's header, in the byte order of the file or in memory. Raises an InputError
    for anything that contradicts the standard or is no 3D scan in millimetres.
    """
    # The lowest three bits are the spatial unit; the other bits are the unit of time.
    spatial_units = int(fields["xyzt_units"]) & 7
    if spatial_units not in (_UNKNOWN_UNITS, _MILLIMETRES):
        raise _units_refused(where)
    shape, zooms, dtype = _shape_zooms_and_type(fields, where)
    slope, inter = _scaling(fields, where)
    with np.errstate(all="ignore"):
        offset = _offset(fields, where)
        qform = _qform(fields, where)
        code = _form_code(fields, "sform_code", where)
        sform = Form(code, np.asarray(fields.get_sform(), np.float64))
        bare = np.asarray(fields.get_base_affine(), np.float64)
    return Header(shape, dtype, offset, slope, inter, zooms, qform, sform, bare)


def _from_analyze(block: bytes, endianness: str, where: Path) -> Header:
    """Check an Analyze 7.5 header and return it as a `Header`; `block` are its bytes.

    It has no q-form, no s-form and no scaling (its grey values are relative).
    """
    if len(block) != nib.AnalyzeHeader.template_dtype.itemsize:
        raise FormatError("neither NIfTI nor Analyze", where=where, remedy=REMAKE)
    fields = nib.AnalyzeHeader(block, endianness, check=False)
    # The text ends at the first zero byte.
    units, _, _ = fields["vox_units"].tobytes().partition(b"\0")
    if units.strip().lower() not in (b"", b"mm"):
        raise _units_refused(where)
    shape, zooms, dtype = _shape_zooms_and_type(fields, where)
    offset = _offset(fields, where)
    no_form = Form(0, None)
    bare = np.asarray(fields.get_base_affine(), np.float64)
    return Header(shape, dtype, offset, 1.0, 0.0, zooms, no_form, no_form, bare)


def _shape_zooms_and_type(
    fields: Any, where: Path
) -> tuple[Sides, Zooms, np.dtype[Any]]:
    """Return shape, spacing in mm and voxel type of a NIfTI or Analyze header.

    Axes of length 1 after the third are dropped.
    """
    count = int(fields["dim"][0])
    if not 1 <= count <= _MOST_DIMENSIONS:
        raise wrong(f"{count} dimensions, not 3", where)
    dims = [int(length) for length in fields["dim"][1 : 1 + count]]
    shape = check_sides(dims, where)
    zooms = check_zooms(fields["pixdim"][1:4], where)
    dtype = _voxel_type(fields, where)
    bits = int(fields["bitpix"])
    if bits != dtype.itemsize * 8:
        raise wrong(f"voxels of {bits} bits and of type {dtype.name} at once", where)
    return shape, zooms, dtype


def _voxel_type(fields: Any, where: Path) -> np.dtype[Any]:
    """Return the type of the stored voxels, with the byte order of the file.

    Only integers and floating-point numbers of at most 8 bytes are accepted. Raises a FormatError
    for colours, complex numbers and unknown types.
    """
    try:
        dtype: np.dtype[Any] = np.dtype(fields.get_data_dtype())
    except (HeaderDataError, KeyError):
        raise _type_refused(f"voxel type {int(fields['datatype'])}", where) from None
    if dtype.names:
        raise _type_refused("an RGB picture", where)
    if dtype.kind == "c":
        raise _type_refused("complex voxels", where)
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise _type_refused(f"voxels of type {dtype.name}", where)
    return dtype


def _offset(fields: Any, where: Path) -> int:
    """Return the byte at which the voxels begin; the header stores it as a float."""
    offset = float(fields["vox_offset"])
    if not (0 <= offset <= _MAX_OFFSET and offset.is_integer()):
        raise wrong(f"voxels are said to start at byte {offset:g}", where)
    return int(offset)


def _scaling(fields: Any, where: Path) -> tuple[float, float]:
    """Return slope and intercept of the values; 1 and 0 if the header has no scaling.

    A slope of 0 (by the standard) or NaN (by custom) means no scaling.
    """
    slope = float(fields["scl_slope"])
    inter = float(fields["scl_inter"])
    if slope == 0 or math.isnan(slope):
        return 1.0, 0.0
    if not (math.isfinite(slope) and math.isfinite(inter)):
        raise wrong(f"voxels scaled by {slope:g} and shifted by {inter:g}", where)
    return slope, inter


def _form_code(fields: Any, name: str, where: Path) -> int:
    """Return the code of the q-form or s-form, the header field `name`; 0 means no form."""
    code = int(fields[name])
    if not 0 <= code <= _LARGEST_FORM_CODE:
        raise wrong(f"unknown {name} {code}", where)
    return code


def _qform(fields: Any, where: Path) -> Form:
    """Read the q-form; its affine is None if the quaternion or its sign is invalid."""
    code = _form_code(fields, "qform_code", where)
    # The standard reads a sign of 0 as 1; nibabel refuses it when its repairs are off.
    if fields["pixdim"][0] == 0:
        fields = fields.copy()
        fields["pixdim"][0] = 1
    try:
        return Form(code, np.asarray(fields.get_qform(), np.float64))
    except (HeaderDataError, ValueError):
        return Form(code, None)


def _check_extensions(block: bytes, endianness: str, where: Path) -> None:
    """Check the extensions between header and voxels; refuse one that reaches into the voxels.

    `block` are the bytes between the header's fields and the voxels. The first byte says whether
    there are extensions. Each extension begins with its own size.
    """
    if not block[0]:
        return
    order = _byte_order(endianness)
    at = 4
    while at + 8 <= len(block):
        size = int.from_bytes(block[at : at + 4], order, signed=True)
        if size < 8 or at + size > len(block):
            raise wrong("a header extension reaches into the voxels", where)
        at += size


def _type_refused(what: str, where: Path) -> FormatError:
    """Return the error to raise for voxels that are not a single number; `what` describes them."""
    return FormatError(
        f"{what}, not one number a voxel", where=where, remedy="give a T1-weighted scan"
    )


def _units_refused(where: Path) -> GeometryError:
    """Return the error to raise for voxel sizes that are not in millimetres."""
    return GeometryError(
        "units are not millimetres",
        where=where,
        remedy="convert the header to millimetres",
    )
