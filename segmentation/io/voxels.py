"""Voxels of a scan: reading, scaling and checking them, and preparing them for writing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import FormatError, InputError, IntegrityError
from trinat.segmentation.io.files import files_of_scan
from trinat.segmentation.io.headers import (
    Header,
    check_size,
    read_mgh,
    read_nifti,
    read_pair,
)
from trinat.segmentation.io.streams import ScanStream, has_checksum

_MGH_SUFFIXES = (".mgh", ".mgh.gz", ".mgz")
# Number of bytes that may follow the voxels: zeros in a NIfTI file, scan parameters and history in
# MGH.
_NIFTI_PADDING = 4096
_MGH_TAGS = 16 * 2**20
# Integers of up to 4 bytes keep their type, except uint32, which int32 cannot hold.
_WIDEST_KEPT = 4
_READ_LABELS = (np.uint8, np.int16, np.int32)
_WRITTEN_LABELS = (np.uint8, np.int16)
_WRITTEN_INTEGERS = (np.uint8, np.int16, np.int32)


def read_single_file(where: Path) -> tuple[Header, NDArray[Any], str]:
    """Read header, voxels and SHA-256 of a scan in a single file (NIfTI or MGH).

    The voxels (X, Y, Z) are as stored, not scaled. The file is read to its end, where the checksums
    are. Raises an InputError for any fault.
    """
    is_mgh = where.name.lower().endswith(_MGH_SUFFIXES)
    with ScanStream(where, packed=has_checksum(where)) as stream:
        if is_mgh:
            header = read_mgh(stream)
            voxels = _read_voxels(stream, header)
            stream.drain(limit=_MGH_TAGS, zeros=False)
        else:
            header = read_nifti(stream)
            voxels = _read_voxels(stream, header)
            stream.drain(limit=_NIFTI_PADDING, zeros=True)
        return header, voxels, stream.digest.hexdigest()


def read_pair_of_files(where: Path) -> tuple[Header, NDArray[Any], str]:
    """Read header, voxels and SHA-256 of a scan in a pair of files; `where` is either of the two.

    The voxels (X, Y, Z) are as stored, not scaled. The SHA-256 is over the .hdr and then the .img
    file. Raises an InputError for any fault, or if one of the two files is missing.
    """
    header_file, image_file = files_of_scan(where)
    for half in (header_file, image_file):
        if half != where and not half.exists():
            raise InputError(
                f"its other half {half.name} is missing",
                where=where,
                remedy="put it beside it",
            )
    with ScanStream(header_file, packed=False) as stream:
        header = read_pair(stream)
        stream.drain(limit=_MGH_TAGS, zeros=False)
        digest = stream.digest
    with ScanStream(image_file, packed=False, digest=digest) as stream:
        check_size(header, stream.path, stream)
        stream.take(header.offset)
        voxels = _read_voxels(stream, header)
        stream.drain(limit=_NIFTI_PADDING, zeros=True)
        return header, voxels, stream.digest.hexdigest()


def _read_voxels(stream: ScanStream, header: Header) -> NDArray[Any]:
    """Read the stored voxels (X, Y, Z), first index fastest, in the byte order of this machine."""
    flat = np.empty(header.nbytes // header.dtype.itemsize, header.dtype)
    stream.fill(flat.view(np.uint8).data)
    if not flat.dtype.isnative:
        flat = flat.byteswap(inplace=True).view(flat.dtype.newbyteorder())
    return flat.reshape(header.shape, order="F")


def usable_values(
    voxels: NDArray[Any],
    header: Header,
    where: Path,
    *,
    labels: bool,
    fill: bool,
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Scale and check voxels; return them, with a note if non-finite voxels are replaced by 0.

    `voxels` are as stored, and `where` names the file in messages. Unscaled integers of up to 32
    bits keep their type, other values become float32. With `labels`, values must be whole numbers
    and get the smallest type that holds them. Without `fill`, NaN and infinite voxels raise an
    IntegrityError. The result may be the given array.
    """
    data = voxels
    stays = data.dtype.itemsize <= _WIDEST_KEPT and data.dtype != np.uint32
    # Labels in floating point or wide integers are not converted yet, so that they are checked with
    # all their digits.
    if header.scaled or not (stays or labels):
        # This scales in place if the voxels are float32 already.
        with np.errstate(over="ignore", invalid="ignore"):
            data = data.astype(np.float32, copy=False)
            if header.scaled:
                data *= np.float32(header.slope)
                data += np.float32(header.inter)
    # If there is a NaN or an infinity, the minimum or the maximum is not finite, so no mask is
    # needed.
    low = data.min()
    high = data.max()
    notes: tuple[str, ...] = ()
    if not (np.isfinite(low) and np.isfinite(high)):
        if not fill:
            count = int((~np.isfinite(data)).sum())
            raise IntegrityError(
                f"{count} voxels are NaN or infinite",
                where=where,
                remedy="set them to 0 (trinat predict, prepare: --fill-nonfinite)",
            )
        data, notes = filled_with_zeros(data)
        low = data.min()
        high = data.max()
    if labels:
        return as_labels(data, where), notes
    if low == high:
        raise FormatError(
            f"all voxels are {low:g}", where=where, remedy="give a scan of a head"
        )
    return data, notes


def filled_with_zeros(data: NDArray[Any]) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return voxels with 0 for NaN and infinity, and a note on their number if there are any.

    The array itself is never changed, because it may belong to the caller of trinat.
    """
    bad = ~np.isfinite(data)
    if not bad.any():
        return data, ()
    note = f"{bad.sum()} voxels that were NaN or infinite are set to 0"
    return np.where(bad, data.dtype.type(0), data), (note,)


def as_labels(data: NDArray[Any], where: Path) -> NDArray[Any]:
    """Return the labels of a map as uint8, int16 or int32; True is 1.

    Raises FormatError, which names `where`, if a value is not a whole number or is too large.
    """
    return _whole_numbers(data, where, _READ_LABELS)


def _whole_numbers(
    data: NDArray[Any],
    where: Path,
    kinds: tuple[type[np.integer[Any]], ...],
) -> NDArray[Any]:
    """Return the labels in the first of the types `kinds` that holds them.

    Raises FormatError if a value is not a whole number, or if no type holds all values.
    """
    # Compare Python numbers: in float32, the limit 2**31 - 1 becomes 2**31, and a label of 2**31
    # would be accepted.
    low = data.min().item()
    high = data.max().item()
    if data.dtype.kind == "f" and not (np.rint(data) == data).all():
        raise FormatError(
            "not a label map: fractions in it", where=where, remedy="name a label map"
        )
    for kind in kinds:
        limits = np.iinfo(kind)
        if limits.min <= low and high <= limits.max:
            return data.astype(kind, copy=False)
    raise FormatError(
        f"label numbers from {low} to {high}, beyond {np.iinfo(kinds[-1]).bits} bits",
        where=where,
        remedy="use smaller numbers",
    )


def for_disk(data: NDArray[Any], where: Path, *, labels: bool) -> NDArray[Any]:
    """Convert voxels to a type that every reader of the written formats supports.

    With `labels`, they become uint8 or int16. Other values stay uint8, int16 or int32, or become
    float32. Raises a FormatError if there is no such type; `where` names the file in the message.
    """
    if data.dtype == np.bool_:
        data = data.view(np.uint8)
    if labels:
        return _whole_numbers(data, where, _WRITTEN_LABELS)
    if data.dtype in _WRITTEN_INTEGERS:
        return data
    return data.astype(np.float32)
