"""A 3D image and its place in space, read with every check that a file from anywhere needs.

What is taken: .nii and .nii.gz (NIfTI-1 and -2), .mgh and .mgz, pairs of .hdr and .img (NIfTI or
Analyze 7.5). What is refused, and why, stands where it is checked: the file's bytes in streams.py,
the header's fields in headers.py, the affine in orientation.py, the voxels here.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import nibabel as nib
import numpy as np
from nibabel.spatialimages import SpatialImage
from numpy.typing import ArrayLike, NDArray

from trinat.segmentation.errors import FormatError, InputError, IntegrityError
from trinat.segmentation.io.dicom import holds_dicom, read_series
from trinat.segmentation.io.files import atomic_write
from trinat.segmentation.io.headers import (
    Header,
    announce,
    from_nifti,
    read_mgh,
    read_nifti,
    read_pair,
)
from trinat.segmentation.io.orientation import TrustAffine, place
from trinat.segmentation.io.streams import SCAN_SUFFIXES, Source, has_checksum
from trinat.segmentation.space.grid import Grid, Shape

# Label maps come within a tenth of the size of level 6, in two thirds of its time.
_GZIP_LEVEL = 4
# Steps of 3e-5, finer than float16, in half the bytes of float32 and a type that all tools read.
_MAP_STEPS = 32767
# The header, and four bytes that say that no extension follows.
_MAP_OFFSET = 352
_NIFTI_PADDING = 4096
_MGH_TAGS = 16 * 2**20


@dataclass(frozen=True, eq=False)
class Volume:
    """Voxels (X, Y, Z) in the order of the file, and their place: voxel index -> RAS mm.

    `codes` are the (q-form, s-form) codes to write; `notes` are for quality control to show;
    `source_sha256` is the digest of the file read (of a pair: of header and image in a row).
    """

    data: NDArray[Any]
    affine: NDArray[np.float64]
    codes: tuple[int, int] = (1, 1)
    notes: tuple[str, ...] = ()
    source_sha256: str | None = None

    def __repr__(self) -> str:
        voxels = "×".join(map(str, self.shape))
        spacing = "×".join(f"{mm:.3g}" for mm in self.spacing_mm)
        return f"Volume({voxels} {self.data.dtype}, {spacing} mm, {self.axcodes})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.data, dtype, copy=copy)

    def __post_init__(self) -> None:
        if self.data.ndim != 3 or np.shape(self.affine) != (4, 4):
            raise ValueError(
                f"not 3D: data {self.data.shape}, affine {np.shape(self.affine)}"
            )
        if min(self.codes) < 1:
            raise ValueError(
                f"codes {self.codes} would write a file without orientation"
            )
        object.__setattr__(self, "affine", self.grid.affine)

    @property
    def grid(self) -> Grid:
        return Grid(self.shape, self.affine)

    @property
    def shape(self) -> Shape:
        x, y, z = self.data.shape
        return x, y, z

    @property
    def spacing_mm(self) -> tuple[float, float, float]:
        return self.grid.spacing_mm

    @property
    def axcodes(self) -> str:
        """Where each voxel axis grows to, as "RAS" or "LIA"."""
        return self.grid.axcodes

    @classmethod
    def of(cls, scan: Scan, *, labels: bool = False) -> Volume:
        """A scan (or label map) as users have it: see `Scan`."""
        if isinstance(scan, Volume):
            return scan
        if isinstance(scan, str | os.PathLike):
            return cls.read(Path(scan), labels=labels)
        if isinstance(scan, tuple) and len(scan) == 2:
            return cls.of_array(*scan, labels=labels)
        if hasattr(scan, "dataobj") and hasattr(scan, "affine"):
            return cls.of_image(scan, labels=labels)
        several = "; segment_many takes several paths" if isinstance(scan, list) else ""
        raise TypeError(
            f"cannot use {type(scan).__name__}: "
            f"give a path, a nibabel image, a tuple (array, affine) or a Volume{several}"
        )

    @classmethod
    def read(
        cls,
        path: str | Path,
        *,
        labels: bool = False,
        trust_affine: TrustAffine | None = None,
        axes: str | None = None,
        fill_nonfinite: bool = False,
        series: Sequence[str] = (),
    ) -> Volume:
        """Read one 3D scan, or with `labels` one label map, or say in one line why not.

        `series` names the DICOM files of one series in the folder or zip that `path` is. Without
        it, a folder, a zip or a DICOM file must hold one T1-weighted series.

        A scan keeps its integers of up to 32 bits if they are unscaled, all else becomes float32.
        A label map must hold whole numbers; they come as the smallest of uint8, int16 and int32,
        and may all be background, which is a legitimate truth. `trust_affine` and `axes` decide
        where the header does not: see `orientation.place`.
        """
        where = Path(path)
        name = where.name.lower()
        said: tuple[str, ...] = ()
        if series or (not name.endswith(SCAN_SUFFIXES) and holds_dicom(where)):
            header, voxels, digest, said = read_series(where, series)
        elif not name.endswith(SCAN_SUFFIXES):
            raise FormatError(
                "not a known kind of scan",
                where=where,
                remedy=f"give one of {', '.join(SCAN_SUFFIXES)}",
            )
        elif name.endswith((".hdr", ".img")):
            header, voxels, digest = _read_pair(where)
        else:
            header, voxels, digest = _read_single(where)
        affine, codes, notes = place(header, trust_affine, axes, where)
        data, filled = _values(
            voxels, header, where, labels=labels, fill=fill_nonfinite
        )
        notes = (*notes, *said)
        if filled:
            notes = (*notes, f"{filled} voxels that were NaN or infinite are set to 0")
        return cls(data, affine, codes, notes, digest)

    @classmethod
    def of_image(cls, image: Any, *, labels: bool = False) -> Volume:
        """A scan of a nibabel image (NIfTI or MGH) in memory, behind the same checks as a file."""
        where = Path("image")
        if not isinstance(image, nib.Nifti1Pair | nib.freesurfer.MGHImage):
            raise FormatError(
                f"cannot use {type(image).__name__}",
                where=where,
                remedy="give a nibabel NIfTI or MGH image",
            )
        voxels = np.asanyarray(image.dataobj)
        if not isinstance(image, nib.Nifti1Pair):
            return cls.of_array(voxels, image.affine, labels=labels)
        # nibabel has scaled what it read, and takes an array as it is.
        header = replace(from_nifti(image.header, where), slope=1.0, inter=0.0)
        affine, codes, notes = place(header, None, None, where)
        voxels = voxels.astype(voxels.dtype.newbyteorder("="), copy=False).reshape(
            header.shape
        )
        data, _ = _values(voxels, header, where, labels=labels, fill=False)
        return cls(data, affine, codes, notes)

    @classmethod
    def of_array(
        cls, array: ArrayLike, affine: ArrayLike, *, labels: bool = False
    ) -> Volume:
        """A scan of voxels (X, Y, Z) and their affine (voxel index -> RAS mm), as `of_image`."""
        voxels, place_mm = np.asarray(array), np.asarray(affine)
        if (
            voxels.dtype.kind not in "iuf"
            or voxels.ndim != 3
            or place_mm.shape != (4, 4)
        ):
            raise FormatError(
                f"{voxels.dtype} {voxels.shape} with an affine {place_mm.shape}",
                where=Path("array"),
                remedy="give numbers (X, Y, Z) and an affine (4, 4)",
            )
        if voxels.dtype not in (np.uint8, np.int16, np.uint16, np.int32):
            voxels = voxels.astype(np.float32, copy=False)
        image = nib.Nifti1Image(voxels, None)
        # Not by way of the constructor, which fails on what is refused here.
        image.header.set_sform(place_mm, "aligned")
        image.header.set_zooms(np.linalg.norm(place_mm[:3, :3], axis=0))
        return cls.of_image(image, labels=labels)

    def write(self, path: str | Path, *, labels: bool = False) -> None:
        """Write .nii.gz, .nii or .mgz whole or not at all; the same volume gives the same bytes.

        The header is fresh: geometry and nothing of the patient. Label maps become uint8 or int16,
        scans stay uint8, int16, int32 or become float32.
        """
        where = Path(path)
        name = where.name.lower()
        if not name.endswith((".nii", ".nii.gz", ".mgz")):
            raise FormatError(
                "not a kind of image that is written",
                where=where,
                remedy="use .nii.gz or .mgz",
            )
        data = _for_disk(self.data, where, labels=labels)
        image = (
            nib.MGHImage(data, self.affine)
            if name.endswith(".mgz")
            else self._nifti(data, labels)
        )
        with atomic_write(where) as file:
            if name.endswith(".nii"):
                image.to_stream(file)
            else:
                # No name and no time inside, so that equal volumes give equal bytes.
                with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed:
                    image.to_stream(packed)

    def to_nibabel(self, *, labels: bool = False) -> nib.Nifti1Image:
        """The image that `write` writes as NIfTI, in memory."""
        return self._nifti(_for_disk(self.data, Path("image"), labels=labels), labels)

    def _nifti(self, data: NDArray[Any], labels: bool) -> Any:
        image = nib.Nifti1Image(data, self.affine)
        image.set_qform(self.affine, self.codes[0])
        image.set_sform(self.affine, self.codes[1])
        image.header.set_xyzt_units("mm")
        if labels:
            image.header.set_intent("label")
        return image


# What a scan may be given as: a file, a nibabel image (NIfTI or MGH), voxels (X, Y, Z) with the
# affine (4, 4) that takes their indices to RAS mm, or a Volume.
Scan: TypeAlias = (
    "str | os.PathLike[str] | SpatialImage | tuple[ArrayLike, ArrayLike] | Volume"
)


def write_maps(path: str | Path, maps: Iterable[Volume], count: int) -> None:
    """Write `count` maps of values from 0 to 1, of one grid, as 4D .nii.gz: whole or not at all.

    One map at a time is in memory. The same maps give the same bytes.
    """
    with (
        atomic_write(path) as file,
        gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed,
    ):
        for number, volume in enumerate(maps):
            if number == 0:
                _maps_header(volume, count).write_to(packed)
            values = np.rint(np.clip(volume.data, 0, 1) * np.float32(_MAP_STEPS))
            packed.write(values.astype("<i2").tobytes(order="F"))


def _maps_header(volume: Volume, count: int) -> nib.Nifti1Header:
    header = nib.Nifti1Header(endianness="<")
    header.set_data_dtype(np.int16)
    header.set_data_shape((*volume.shape, count))
    header.set_qform(volume.affine, volume.codes[0])
    header.set_sform(volume.affine, volume.codes[1])
    header.set_xyzt_units("mm")
    header.set_slope_inter(1 / _MAP_STEPS, 0)
    header["vox_offset"] = _MAP_OFFSET
    return header


def _read_single(where: Path) -> tuple[Header, NDArray[Any], str]:
    """Header, voxels (X, Y, Z) as on disk, and digest, of a file that holds both."""
    name = where.name.lower()
    mgh = name.endswith((".mgh", ".mgh.gz", ".mgz"))
    with Source(where, packed=has_checksum(where)) as source:
        header = read_mgh(source) if mgh else read_nifti(source)
        voxels = _voxels(source, header)
        # FreeSurfer appends the scan's parameters and history.
        source.drain(limit=_MGH_TAGS if mgh else _NIFTI_PADDING, zeros=not mgh)
        return header, voxels, source.digest.hexdigest()


def _read_pair(where: Path) -> tuple[Header, NDArray[Any], str]:
    """As `_read_single`, for a header and an image file beside it; either may be named."""
    with Source(_partner(where, ".hdr"), packed=False) as source:
        header = read_pair(source)
        source.drain(limit=_MGH_TAGS, zeros=False)
        digest = source.digest
    with Source(_partner(where, ".img"), packed=False, digest=digest) as source:
        announce(source, header)
        source.take(header.offset)
        voxels = _voxels(source, header)
        source.drain(limit=_NIFTI_PADDING, zeros=True)
        return header, voxels, source.digest.hexdigest()


def _partner(where: Path, suffix: str) -> Path:
    """The file of a pair with this suffix, in the case in which the other half is named."""
    given = where.suffix
    if given.lower() == suffix:
        return where
    partner = where.with_suffix(suffix.upper() if given.isupper() else suffix)
    if not partner.exists():
        raise InputError(
            f"its other half {partner.name} is missing",
            where=where,
            remedy="put it beside it",
        )
    return partner


def _voxels(source: Source, header: Header) -> NDArray[Any]:
    """Voxels (X, Y, Z) as they lie in the file, first index fastest, in this machine's order."""
    flat = np.empty(header.nbytes // header.dtype.itemsize, header.dtype)
    source.fill(flat.view(np.uint8).data)
    if not flat.dtype.isnative:
        flat = flat.byteswap(inplace=True).view(flat.dtype.newbyteorder())
    return flat.reshape(header.shape, order="F")


def _values(
    voxels: NDArray[Any], header: Header, where: Path, *, labels: bool, fill: bool
) -> tuple[NDArray[Any], int]:
    """Scale and check the voxels; also how many non-finite ones were filled with 0."""
    data = voxels
    stays = data.dtype.itemsize <= 4 and data.dtype != np.uint32
    # Label numbers in floats or wide integers keep all their digits until they are checked.
    if header.scaled or not (stays or labels):
        with np.errstate(over="ignore", invalid="ignore"):
            data = data.astype(np.float32, copy=False)
            if header.scaled:
                data *= np.float32(header.slope)
                data += np.float32(header.inter)
    # NaN and infinities survive into the extremes, so that no mask is needed to find them.
    low, high = data.min(), data.max()
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
        low, high = data.min(), data.max()
    if labels:
        return _whole_numbers(data, where, (np.uint8, np.int16, np.int32)), filled
    if low == high:
        raise FormatError(
            f"all voxels are {low:g}", where=where, remedy="give a scan of a head"
        )
    return data, filled


def _whole_numbers(
    data: NDArray[Any], where: Path, kinds: tuple[type[np.integer[Any]], ...]
) -> NDArray[Any]:
    """The labels as the first of these types that holds them all."""
    # As Python's numbers: 2**31 - 1 as a float32 is 2**31, which would pass for it.
    low, high = data.min().item(), data.max().item()
    if data.dtype.kind == "f" and not (np.rint(data) == data).all():
        raise FormatError(
            "not a label map: fractions in it", where=where, remedy="name a label map"
        )
    for kind in kinds:
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return data.astype(kind, copy=False)
    raise FormatError(
        f"label numbers from {low} to {high}, beyond {np.iinfo(kinds[-1]).bits} bits",
        where=where,
        remedy="use smaller numbers",
    )


def _for_disk(data: NDArray[Any], where: Path, *, labels: bool) -> NDArray[Any]:
    """The voxels in a type that every reader of the written formats knows."""
    if data.dtype == np.bool_:
        data = data.view(np.uint8)
    if data.dtype.kind not in "iuf":
        raise FormatError(
            f"cannot write {data.dtype} voxels", where=where, remedy="use numbers"
        )
    if labels:
        return _whole_numbers(data, where, (np.uint8, np.int16))
    return (
        data
        if data.dtype in (np.uint8, np.int16, np.int32)
        else data.astype(np.float32)
    )
