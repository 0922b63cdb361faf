"""What a scan's header says, checked field by field before any voxel is read.

nibabel decodes the fields. Its own checks are left off: they mend what is wrong (a negative voxel
size, an unknown code) where we refuse, and they look at half of what is checked here.
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

from trinat.segmentation.errors import FormatError, GeometryError, IntegrityError
from trinat.segmentation.io.memory import free_memory
from trinat.segmentation.io.streams import Source

_Shape = tuple[int, int, int]
_Zooms = tuple[float, float, float]

MAX_SIDE = 1500
MIN_SIDE = 16
MAX_BYTES = 2 * 2**30
# A voxel is not smaller than a cell nor larger than a head.
SPACING_RANGE_MM = (0.01, 100.0)
# What bringing a scan to the working grid takes, measured: bytes for each voxel beside the voxels
# themselves, and for each cell of 4 mm in which the head is looked for. Less than the last is
# taken for granted.
_WORK_BYTES = 14
_CELL_BYTES = 50
_CELL_MM3 = 64.0
_GRANTED_BYTES = 2**30
# NIfTI header extensions may hold a whole DICOM header, but not more than this.
_MAX_OFFSET = 64 * 2**20
_MGH_VOXELS_AT = 284
_REMAKE = "its header is wrong; convert the scan again from its source"


@dataclass(frozen=True)
class Form:
    """One statement on where the voxels are; `affine` is None where the fields make none."""

    code: int
    affine: NDArray[np.float64] | None


@dataclass(frozen=True)
class Header:
    """All that reading needs; `bare` is the affine that nibabel takes where no form is coded."""

    shape: _Shape
    dtype: np.dtype[Any]
    offset: int
    slope: float
    inter: float
    zooms: _Zooms
    qform: Form
    sform: Form
    bare: NDArray[np.float64]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def scaled(self) -> bool:
        return (self.slope, self.inter) != (1.0, 0.0)


def read_nifti(source: Source) -> Header:
    """The header of a .nii file, NIfTI-1 or NIfTI-2, leaving `source` at its first voxel."""
    fields, start = _struct(source)
    where = source.path
    if fields["magic"].tobytes()[:4] != (b"n+1\0" if start == 348 else b"n+2\0"):
        raise FormatError(
            "not a single-file NIfTI image, though named .nii",
            where=where,
            remedy="if it is half of a pair, name the .hdr file",
        )
    header = from_nifti(fields, where)
    if header.offset < start + 4:
        raise _wrong(
            f"voxels are said to start at byte {header.offset}, inside the header",
            where,
        )
    announce(source, header)
    _check_extensions(source.take(header.offset - start), fields.endianness, where)
    return header


def read_pair(source: Source) -> Header:
    """The header of a .hdr file: a NIfTI pair, or Analyze 7.5 where its magic is not there."""
    fields, _ = _struct(source)
    magic = fields["magic"].tobytes()[:3]
    if magic in (b"n+1", b"n+2"):
        raise FormatError(
            "a single-file NIfTI header in a pair",
            where=source.path,
            remedy="rename it to .nii",
        )
    if magic in (b"ni1", b"ni2"):
        return from_nifti(fields, source.path)
    return _from_analyze(fields.binaryblock, fields.endianness, source.path)


def read_mgh(source: Source) -> Header:
    """The header of an .mgh or .mgz file, leaving `source` at its first voxel."""
    where = source.path
    block = source.take(_MGH_VOXELS_AT)
    fields = nib.freesurfer.MGHImage.header_class(block, check=False)
    if int(fields["version"]) != 1:
        raise FormatError(
            f"MGH version {int(fields['version'])}, not 1", where=where, remedy=_REMAKE
        )
    flag = int.from_bytes(block[28:30], "big", signed=True)
    if flag not in (0, 1):
        raise _wrong(f"goodRASFlag is {flag}, not 0 or 1", where)
    if flag == 0:
        # nibabel has put defaults in place of the fields: 1 mm, and LSP where FreeSurfer has LIA.
        fields["Mdc"] = ((-1, 0, 0), (0, 0, -1), (0, 1, 0))
    dims = [int(n) for n in fields["dims"]]
    shape = check_sides(dims, where)
    zooms = check_zooms(fields["delta"], where)
    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(fields["Mdc"].astype(np.float64), axis=1)
        affine = np.asarray(fields.get_affine(), np.float64)
    if not np.all(np.abs(lengths - 1) <= 1e-3):
        raise GeometryError(
            "direction cosines are not unit vectors", where=where, remedy=_REMAKE
        )
    try:
        dtype = np.dtype(fields.get_data_dtype()).newbyteorder(">")
    except KeyError:
        raise _type_refused(f"MGH voxel type {int(fields['type'])}", where) from None
    # One statement stands for both forms: they cannot disagree.
    form = Form(flag, affine)
    header = Header(shape, dtype, _MGH_VOXELS_AT, 1.0, 0.0, zooms, form, form, affine)
    announce(source, header)
    return header


def announce(source: Source, header: Header) -> None:
    """Refuse sizes beyond the limits, or beyond what the file can hold, before allocating."""
    check_size(header, source.path)
    source.announce(header.offset + header.nbytes)


def check_size(header: Header, where: Path) -> None:
    """Refuse sizes beyond the limits, or beyond the memory that is free."""
    # Scaled voxels become 4-byte floats.
    size = math.prod(header.shape) * max(
        header.dtype.itemsize, 4 if header.scaled else 1
    )
    if size > MAX_BYTES:
        raise FormatError(
            f"{size / 2**30:.1f} GiB of voxels, more than {MAX_BYTES >> 30}",
            where=where,
            remedy="resample it to a coarser grid",
        )
    _require_memory(header, where)


def _require_memory(header: Header, where: Path) -> None:
    cells = min(1.0, math.prod(header.zooms) / _CELL_MM3)
    work = math.prod(header.shape) * (_WORK_BYTES + _CELL_BYTES * cells)
    needed = header.nbytes + work
    if needed > _GRANTED_BYTES and needed > (there := free_memory()):
        raise FormatError(
            f"{_by(header.shape)} voxels take {needed / 2**30:.1f} GiB of memory to prepare, and "
            f"{there / 2**30:.1f} are free",
            where=where,
            remedy="resample it to a coarser grid, or use a larger machine",
        )


def _struct(source: Source) -> tuple[Any, int]:
    """nibabel's view of the fields of a NIfTI or Analyze header, and its length."""
    start = source.take(4)
    for kind, size in ((nib.Nifti1Header, 348), (nib.Nifti2Header, 540)):
        for endianness in ("<", ">"):
            if int.from_bytes(start, "little" if endianness == "<" else "big") == size:
                return kind(
                    start + source.take(size - 4), endianness, check=False
                ), size
    raise FormatError(
        "not a NIfTI or Analyze header",
        where=source.path,
        remedy="convert the scan to .nii.gz",
    )


def from_nifti(fields: Any, where: Path) -> Header:
    """The fields of a NIfTI-1 or NIfTI-2 header, checked."""
    spatial = int(fields["xyzt_units"]) & 7
    if spatial not in (0, 2):  # unknown, millimetres; the bits for time do not matter
        raise _units_refused(where)
    shape, zooms, dtype = _grid(fields, where)
    slope, inter = _scaling(fields, where)
    with np.errstate(all="ignore"):
        offset, qform = _offset(fields, where), _qform(fields, where)
        code = _code(fields, "sform_code", where)
        sform = Form(code, np.asarray(fields.get_sform(), np.float64))
        bare = np.asarray(fields.get_base_affine(), np.float64)
    return Header(shape, dtype, offset, slope, inter, zooms, qform, sform, bare)


def _from_analyze(block: bytes, endianness: str, where: Path) -> Header:
    """An Analyze 7.5 header: no forms, no scaling (its grey values are relative anyway)."""
    if len(block) != nib.AnalyzeHeader.template_dtype.itemsize:
        raise FormatError("neither NIfTI nor Analyze", where=where, remedy=_REMAKE)
    fields = nib.AnalyzeHeader(block, endianness, check=False)
    units = fields["vox_units"].tobytes().split(b"\0")[0].strip().lower()
    if units not in (b"", b"mm"):
        raise _units_refused(where)
    shape, zooms, dtype = _grid(fields, where)
    offset, nothing = _offset(fields, where), Form(0, None)
    bare = np.asarray(fields.get_base_affine(), np.float64)
    return Header(shape, dtype, offset, 1.0, 0.0, zooms, nothing, nothing, bare)


def _grid(fields: Any, where: Path) -> tuple[_Shape, _Zooms, np.dtype[Any]]:
    """Size, spacing and voxel type of a NIfTI or Analyze header."""
    count = int(fields["dim"][0])
    if not 1 <= count <= 7:
        raise _wrong(f"{count} dimensions, not 3", where)
    shape = check_sides([int(n) for n in fields["dim"][1 : 1 + count]], where)
    zooms = check_zooms(fields["pixdim"][1:4], where)
    dtype = _voxel_type(fields, where)
    if int(fields["bitpix"]) != dtype.itemsize * 8:
        bits = int(fields["bitpix"])
        raise _wrong(f"voxels of {bits} bits and of type {dtype.name} at once", where)
    return shape, zooms, dtype


def check_sides(dims: list[int], where: Path) -> _Shape:
    """Three sides within the limits, once trailing ones are squeezed."""
    if min(dims) <= 0:
        raise _wrong(f"impossible dimensions {_by(dims)}", where)
    extra = math.prod(dims[3:])
    if extra > 1:
        raise FormatError(
            f"{extra} volumes in one file",
            where=where,
            remedy="split it and name one volume",
        )
    sides = (*dims, 1, 1, 1)[:3]
    if max(sides) > MAX_SIDE:
        raise FormatError(
            f"{_by(sides)} voxels, more than {MAX_SIDE} a side",
            where=where,
            remedy="resample it to a coarser grid",
        )
    if min(sides) < MIN_SIDE:
        raise FormatError(
            f"{_by(sides)} voxels, fewer than {MIN_SIDE} slices along an axis",
            where=where,
            remedy="give a whole-head 3D scan",
        )
    return sides[0], sides[1], sides[2]


def check_zooms(zooms: Any, where: Path) -> _Zooms:
    x, y, z = (float(zoom) for zoom in zooms)
    low, high = SPACING_RANGE_MM
    if not all(low <= zoom <= high for zoom in (x, y, z)):
        raise GeometryError(
            f"impossible voxel size {x:g} x {y:g} x {z:g} mm",
            where=where,
            remedy=_REMAKE,
        )
    return x, y, z


def _voxel_type(fields: Any, where: Path) -> np.dtype[Any]:
    """The type on disk, byte order and all; one number a voxel, at most 8 bytes of it."""
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
    offset = float(fields["vox_offset"])
    if not (0 <= offset <= _MAX_OFFSET and offset.is_integer()):
        raise _wrong(f"voxels are said to start at byte {offset:g}", where)
    return int(offset)


def _scaling(fields: Any, where: Path) -> tuple[float, float]:
    """Slope and intercept; a slope of 0 or NaN means none, as the standard and custom have it."""
    slope, inter = float(fields["scl_slope"]), float(fields["scl_inter"])
    if slope == 0 or math.isnan(slope):
        return 1.0, 0.0
    if not (math.isfinite(slope) and math.isfinite(inter)):
        raise _wrong(f"voxels scaled by {slope:g} and shifted by {inter:g}", where)
    return slope, inter


def _code(fields: Any, name: str, where: Path) -> int:
    code = int(fields[name])
    if not 0 <= code <= 5:
        raise _wrong(f"unknown {name} {code}", where)
    return code


def _qform(fields: Any, where: Path) -> Form:
    """The q-form; its affine is None where the quaternion or its sign is none."""
    code = _code(fields, "qform_code", where)
    # The standard reads a sign of 0 as 1; nibabel, without its mending, refuses it.
    if fields["pixdim"][0] == 0:
        fields = fields.copy()
        fields["pixdim"][0] = 1
    try:
        return Form(code, np.asarray(fields.get_qform(), np.float64))
    except (HeaderDataError, ValueError):
        return Form(code, None)


def _check_extensions(block: bytes, endianness: str, where: Path) -> None:
    """Walk the extensions between header and voxels: none may reach into the voxels."""
    if not block[0]:
        return
    order: Literal["little", "big"] = "little" if endianness == "<" else "big"
    at = 4
    while at + 8 <= len(block):
        size = int.from_bytes(block[at : at + 4], order, signed=True)
        if size < 8 or at + size > len(block):
            raise _wrong("a header extension reaches into the voxels", where)
        at += size


def _wrong(what: str, where: Path) -> IntegrityError:
    return IntegrityError(what, where=where, remedy=_REMAKE)


def _type_refused(what: str, where: Path) -> FormatError:
    return FormatError(
        f"{what}, not one number a voxel", where=where, remedy="give a T1-weighted scan"
    )


def _units_refused(where: Path) -> GeometryError:
    return GeometryError(
        "units are not millimetres",
        where=where,
        remedy="convert the header to millimetres",
    )


def _by(sides: Any) -> str:
    return " x ".join(str(side) for side in sides)
