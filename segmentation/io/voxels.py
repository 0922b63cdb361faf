"""Voxels of a scan: reading, scaling and checking them, and preparing them for writing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import FormatError, InputError, IntegrityError
from trinat.segmentation.io.headers import (
    Header,
    announce,
    read_mgh,
    read_nifti,
    read_pair,
)
from trinat.segmentation.io.streams import ScanStream, has_checksum

_MGH_SUFFIXES = (".mgh", ".mgh.gz", ".mgz")
# Bytes that may follow the voxels: zeros in a NIfTI file, scan parameters and history in MGH.
_NIFTI_PADDING = 4096
_MGH_TAGS = 16 * 2**20
# Integers of up to 32 bits stay as they are, unless int32 cannot hold them.
_WIDEST_KEPT = 4
_READ_LABELS = (np.uint8, np.int16, np.int32)
_WRITTEN_LABELS = (np.uint8, np.int16)
_WRITTEN_INTEGERS = (np.uint8, np.int16, np.int32)


def read_single_file(where: Path) -> tuple[Header, NDArray[Any], str]:
    """Read header, voxels (X, Y, Z) as on disk, and digest of a file that holds both.

    The file is read to its end, where the checksums are. Raises an InputError for any fault.
    """
    is_mgh = where.name.lower().endswith(_MGH_SUFFIXES)
    with ScanStream(where, packed=has_checksum(where)) as stream:
        if is_mgh:
            header = read_mgh(stream)
            voxels = _voxels(stream, header)
            stream.drain(limit=_MGH_TAGS, zeros=False)
        else:
            header = read_nifti(stream)
            voxels = _voxels(stream, header)
            stream.drain(limit=_NIFTI_PADDING, zeros=True)
        return header, voxels, stream.digest.hexdigest()


def read_pair_of_files(where: Path) -> tuple[Header, NDArray[Any], str]:
    """Read a header and the image file beside it; `where` may be either.

    Returns the header, the voxels, and the SHA-256 over the .hdr and then the .img file. Errors are
    those of `read_single_file`, and an InputError if one of the two files is missing.
    """
    with ScanStream(_partner(where, ".hdr"), packed=False) as stream:
        header = read_pair(stream)
        stream.drain(limit=_MGH_TAGS, zeros=False)
        digest = stream.digest
    with ScanStream(_partner(where, ".img"), packed=False, digest=digest) as stream:
        announce(stream, header)
        stream.take(header.offset)
        voxels = _voxels(stream, header)
        stream.drain(limit=_NIFTI_PADDING, zeros=True)
        return header, voxels, stream.digest.hexdigest()


def _partner(where: Path, suffix: str) -> Path:
    """Return the other file of a pair, with this suffix in the same case.

    `where` is either of the two; raises an InputError if the other one is missing.
    """
    given = where.suffix
    if given.lower() == suffix:
        return where
    if given.isupper():
        suffix = suffix.upper()
    partner = where.with_suffix(suffix)
    if not partner.exists():
        raise InputError(
            f"its other half {partner.name} is missing",
            where=where,
            remedy="put it beside it",
        )
    return partner


def _voxels(stream: ScanStream, header: Header) -> NDArray[Any]:
    """Read voxels (X, Y, Z), first index fastest, in the byte order of this machine."""
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
) -> tuple[NDArray[Any], int]:
    """Return the voxels scaled and checked, and the number of non-finite ones replaced by 0.

    Unscaled integers of up to 32 bits stay as they are, all else becomes float32; labels must be
    whole and get the smallest type that holds them. Without `fill`, NaN and infinite voxels raise
    an IntegrityError. The result may be the given array.
    """
    data = voxels
    stays = data.dtype.itemsize <= _WIDEST_KEPT and data.dtype != np.uint32
    # Label numbers in floats or wide integers keep all their digits until they are checked.
    if header.scaled or not (stays or labels):
        # In place if the voxels are float32 already.
        with np.errstate(over="ignore", invalid="ignore"):
            data = data.astype(np.float32, copy=False)
            if header.scaled:
                data *= np.float32(header.slope)
                data += np.float32(header.inter)
    # NaN and infinities propagate to the extremes, so no mask is needed to find them.
    low = data.min()
    high = data.max()
    filled = 0
    if not (np.isfinite(low) and np.isfinite(high)):
        bad = ~np.isfinite(data)
        filled = int(bad.sum())
        if not fill:
            raise IntegrityError(
                f"{filled} voxels are NaN or infinite",
                where=where,
                remedy="set them to 0 (on the command line: --fill-nonfinite)",
            )
        data[bad] = 0
        low = data.min()
        high = data.max()
    if labels:
        return _whole_numbers(data, where, _READ_LABELS), filled
    if low == high:
        raise FormatError(
            f"all voxels are {low:g}", where=where, remedy="give a scan of a head"
        )
    return data, filled


def _whole_numbers(
    data: NDArray[Any],
    where: Path,
    kinds: tuple[type[np.integer[Any]], ...],
) -> NDArray[Any]:
    """Return the labels in the first of these types that holds them; raise FormatError if none."""
    # Converted to Python numbers, because 2**31 - 1 becomes 2**31 in float32, and a label of
    # 2**31 would pass.
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
    """Convert the voxels to a type that every reader of the written formats knows.

    Labels become uint8 or int16; other values stay uint8, int16 or int32, or become float32. Raises
    a FormatError for voxels without such a type; `where` names the file in it.
    """
    if data.dtype == np.bool_:
        data = data.view(np.uint8)
    if data.dtype.kind not in "iuf":
        raise FormatError(
            f"cannot write {data.dtype} voxels", where=where, remedy="use numbers"
        )
    if labels:
        return _whole_numbers(data, where, _WRITTEN_LABELS)
    if data.dtype in _WRITTEN_INTEGERS:
        return data
    return data.astype(np.float32)
