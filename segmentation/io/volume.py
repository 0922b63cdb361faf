"""A 3D image with its affine, and the checked reading and writing of scan files.

Supported: .nii and .nii.gz (NIfTI-1 and -2), .mgh and .mgz, pairs of .hdr and .img (NIfTI or
Analyze 7.5), series of DICOM files. Each check is documented where it is made: bytes of the file
in streams.py, header fields in headers.py, the affine in orientation.py, voxels in voxels.py.
Maps of values from 0 to 1, such as probabilities, are written as one 4D file.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import nibabel as nib
import numpy as np
from nibabel.openers import ImageOpener
from nibabel.spatialimages import SpatialImage
from numpy.typing import ArrayLike, NDArray

from trinat.segmentation.errors import FormatError, GeometryError
from trinat.segmentation.grid import Grid, Shape
from trinat.segmentation.io.dicom.scan import read_series
from trinat.segmentation.io.dicom.series import holds_dicom
from trinat.segmentation.io.files import atomic_write, given_path
from trinat.segmentation.io.foreign_images import (
    image_of_subject,
    is_bare_array,
    is_subject,
    reader_of,
)
from trinat.segmentation.io.headers import MGH_FLAG, from_nifti
from trinat.segmentation.io.orientation import (
    TrustAffine,
    check_trust,
    place,
    why_impossible,
)
from trinat.segmentation.io.streams import (
    SCAN_SUFFIXES,
    damage_explained,
    remedy_for_format,
)
from trinat.segmentation.io.voxels import (
    as_labels,
    filled_with_zeros,
    for_disk,
    read_pair_of_files,
    read_single_file,
    usable_values,
)

if TYPE_CHECKING:
    import SimpleITK
    import torchio
    from monai.data import MetaTensor

# Label maps are at most a tenth larger than at level 6, and take two thirds of its time.
_GZIP_LEVEL = 4
_PAIR_SUFFIXES = (".hdr", ".img")
_WRITTEN_SUFFIXES = (".nii", ".nii.gz", ".mgz")
# Steps of 3e-5: finer than float16, half the bytes of float32, and a type that all tools read.
_MAP_STEPS = 32767
# Length of the header, and of four bytes that say that no extension follows.
_MAP_OFFSET = 352


@dataclass(frozen=True, eq=False)
class Volume:
    """Voxels (X, Y, Z) in the order of the file, and their affine: voxel index -> RAS mm.

    Attributes
    ----------
    data : array
        Voxels (X, Y, Z).
    affine : array
        Matrix (4, 4) from voxel indices to RAS mm.
    codes : tuple of int
        (q-form, s-form) codes to write, at least 1.
    notes : tuple of str
        Remarks on the file, for quality control.
    source_sha256 : str, optional
        SHA-256 of the file; for a pair of files, of header and image concatenated.

    Raises
    ------
    GeometryError
        If the array is not 3D or has no voxels along an axis, if no scan can have the affine, or if
        a code is below 1.
    FormatError
        If the voxels are not numbers or booleans.
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
        """Return the voxels, for NumPy's functions."""
        return np.array(self.data, dtype, copy=copy)

    def __post_init__(self) -> None:
        if not isinstance(self.data, np.ndarray):
            kind = type(self.data).__name__
            raise TypeError(f"the voxels are a {kind}: give a 3D NumPy array")
        if self.data.ndim != 3 or np.shape(self.affine) != (4, 4):
            raise GeometryError(
                f"not 3D: data {self.data.shape}, affine {np.shape(self.affine)}"
            )
        if 0 in self.data.shape:
            raise GeometryError(f"an axis has no voxels: data {self.data.shape}")
        if self.data.dtype.kind not in "biuf":
            raise FormatError(
                f"voxels of type {self.data.dtype}", remedy="give real numbers"
            )
        _check_affine(self.grid.affine)
        if min(self.codes) < 1:
            raise GeometryError(
                f"codes {self.codes} would write a file without orientation"
            )
        object.__setattr__(self, "affine", self.grid.affine)

    @property
    def grid(self) -> Grid:
        """Shape and affine of the voxels."""
        return Grid(self.shape, self.affine)

    @property
    def shape(self) -> Shape:
        """Number of voxels along each array axis."""
        x, y, z = self.data.shape
        return x, y, z

    @property
    def spacing_mm(self) -> tuple[float, float, float]:
        """Distance between neighbouring voxels along each array axis, in mm."""
        return self.grid.spacing_mm

    @property
    def axcodes(self) -> str:
        """Orientation code of the voxel axes, such as "RAS" or "LIA"."""
        return self.grid.axcodes

    @classmethod
    def of(
        cls,
        scan: ScanLike,
        *,
        labels: bool = False,
        image: str | None = None,
        trust_affine: TrustAffine | None = None,
        fill_nonfinite: bool = False,
        any_contrast: bool = False,
    ) -> Volume:
        """Return a scan or label map given in any form of `ScanLike`.

        Parameters
        ----------
        scan : path, (array, affine), Volume, or image of nibabel, torchio, MONAI or SimpleITK
            A Volume is returned as it is, without a copy; with `labels`, its voxels become
            integers. Paths are read and checked with `read`, images and arrays with `of_image`
            and `of_array`.
        labels : bool
            Require whole numbers, as in a label map.
        image : str, optional
            Name of the image in a torchio.Subject that has several.
        trust_affine, fill_nonfinite, any_contrast
            As in `read`. `trust_affine` decides between the two affines of a NIfTI header,
            `any_contrast` between DICOM series.

        Returns
        -------
        Volume
            The voxels and their affine.

        Raises
        ------
        TypeError
            If `scan` is none of these.
        InputError
            If the file, the image or the array cannot be used.
        ConfigError
            If `trust_affine` is unknown.
        """
        check_trust(trust_affine)
        if image is not None or is_subject(scan):
            scan = image_of_subject(scan, image, labels=labels)
        if isinstance(scan, Volume):
            if fill_nonfinite:
                data, notes = filled_with_zeros(scan.data)
                scan = replace(scan, data=data, notes=(*scan.notes, *notes))
            if labels:
                scan = replace(scan, data=as_labels(scan.data, Path("volume")))
            return scan
        if isinstance(scan, str | os.PathLike):
            return cls.read(
                os.fspath(scan),
                labels=labels,
                trust_affine=trust_affine,
                fill_nonfinite=fill_nonfinite,
                any_contrast=any_contrast,
            )
        if isinstance(scan, tuple) and len(scan) == 2:
            array, affine = scan
            return cls.of_array(
                array, affine, labels=labels, fill_nonfinite=fill_nonfinite
            )
        reader = reader_of(scan)
        if reader is not None:
            array, affine = reader(scan)
            return cls.of_array(
                array, affine, labels=labels, fill_nonfinite=fill_nonfinite
            )
        if hasattr(scan, "dataobj") and hasattr(scan, "affine"):
            return cls.of_image(
                scan,
                labels=labels,
                trust_affine=trust_affine,
                fill_nonfinite=fill_nonfinite,
            )
        raise TypeError(f"cannot use {type(scan).__name__}: {_remedy(scan)}")

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
        any_contrast: bool = False,
    ) -> Volume:
        """Read one 3D scan, or with `labels` one label map.

        A scan keeps its integers of up to 32 bits if they are unscaled; other values become
        float32. Label maps become the smallest of uint8, int16 and int32. A map of background
        alone is allowed.

        Parameters
        ----------
        path : str or path
            NIfTI, MGH or Analyze file; DICOM file, or folder or zip of DICOM files.
        labels : bool
            Require whole numbers, as in a label map.
        trust_affine : str, optional
            Affine to use if the header does not decide: "sform", "qform" or "header".
        axes : str, optional
            Axes of the voxels, such as "LAS", if the header lacks an orientation.
        fill_nonfinite : bool
            Replace NaN and infinite voxels by 0.
        series : sequence of str
            DICOM files of one series in the folder or zip `path`. By default, a folder, a zip or a
            DICOM file must hold one T1-weighted series.
        any_contrast : bool
            Take the one anatomical series instead, whatever its contrast.

        Returns
        -------
        Volume
            The voxels in the order of the file.

        Raises
        ------
        IntegrityError
            If the file is damaged.
        FormatError
            If it is not a supported kind of image.
        GeometryError
            If its orientation is missing, impossible or contradictory.
        ConfigError
            If `trust_affine` is unknown, or the path empty.
        """
        where = given_path(path)
        name = where.name.lower()
        series_notes: tuple[str, ...] = ()
        is_image = name.endswith(SCAN_SUFFIXES)
        if series or (not is_image and holds_dicom(where)):
            header, voxels, digest, series_notes = read_series(
                where, series, any_contrast=any_contrast
            )
        elif not is_image:
            raise FormatError(
                "not a known kind of scan",
                where=where,
                remedy=remedy_for_format(where),
            )
        elif name.endswith(_PAIR_SUFFIXES):
            header, voxels, digest = read_pair_of_files(where)
        else:
            header, voxels, digest = read_single_file(where)
        affine, codes, notes = place(header, trust_affine, axes, where)
        data, fill_notes = usable_values(
            voxels, header, where, labels=labels, fill=fill_nonfinite
        )
        notes = (*notes, *series_notes, *fill_notes)
        return cls(data, affine, codes, notes, digest)

    @classmethod
    def of_image(
        cls,
        image: Any,
        *,
        labels: bool = False,
        trust_affine: TrustAffine | None = None,
        fill_nonfinite: bool = False,
    ) -> Volume:
        """Return a nibabel image (NIfTI or MGH) in memory as a volume, with the checks for files.

        The voxels are not copied if their type stays the same, and are then shared with the image.

        Parameters
        ----------
        image : nibabel image
            NIfTI or MGH image, 3D.
        labels : bool
            Require whole numbers, as in a label map.
        trust_affine, fill_nonfinite
            As in `read`.

        Returns
        -------
        Volume
            The voxels and their affine.

        Raises
        ------
        FormatError
            If it is another kind of image.
        IntegrityError
            If its voxels are still on disk, and the file is damaged.
        GeometryError
            If its orientation is missing, impossible or contradictory.
        """
        where = Path("image")
        if not isinstance(image, nib.Nifti1Pair | nib.freesurfer.MGHImage):
            raise FormatError(
                f"cannot use {type(image).__name__}",
                where=where,
                remedy="give a nibabel NIfTI or MGH image",
            )
        with damage_explained(Path(image.get_filename() or where)):
            voxels = np.asanyarray(image.dataobj)
        if not isinstance(image, nib.Nifti1Pair):
            _refuse_assumed_orientation(image, where)
            return cls.of_array(
                voxels, image.affine, labels=labels, fill_nonfinite=fill_nonfinite
            )
        fields = image.header
        to_ras = image.affine
        # nibabel copies an affine that was changed in place to the header only when it saves it.
        if to_ras is not None and not np.allclose(
            to_ras, fields.get_best_affine(), equal_nan=True
        ):
            _check_affine(to_ras, where)
            fields = fields.copy()
            _set_affine(fields, to_ras)
        # nibabel has scaled the voxels already, so the header must not scale them again.
        header = replace(from_nifti(fields, where), slope=1.0, inter=0.0)
        affine, codes, notes = place(header, trust_affine, None, where)
        native = voxels.astype(voxels.dtype.newbyteorder("="), copy=False)
        # Drop axes of length 1 after the third.
        three_axes = native.reshape(header.shape)
        data, fill_notes = usable_values(
            three_axes, header, where, labels=labels, fill=fill_nonfinite
        )
        return cls(data, affine, codes, (*notes, *fill_notes))

    @classmethod
    def of_array(
        cls,
        array: ArrayLike,
        affine: ArrayLike,
        *,
        labels: bool = False,
        fill_nonfinite: bool = False,
    ) -> Volume:
        """Return a volume of voxels and their affine; the array itself is never changed.

        Parameters
        ----------
        array : array
            Voxels (X, Y, Z). Integers of 8, 16 or (signed) 32 bits keep their type, other
            numbers become float32.
        affine : array
            Matrix (4, 4) from voxel indices to RAS mm.
        labels : bool
            Require whole numbers, as in a label map.
        fill_nonfinite : bool
            Replace NaN and infinite voxels by 0.

        Returns
        -------
        Volume
            The voxels and their affine, checked as in `of_image`.

        Raises
        ------
        FormatError
            If the array is not 3D, complex or boolean, or the affine is not (4, 4).
        GeometryError
            If no scan can have this affine.
        """
        voxels = np.asarray(array)
        to_ras = np.asarray(affine)
        are_numbers = voxels.dtype.kind in "iuf"
        if not are_numbers or voxels.ndim != 3 or to_ras.shape != (4, 4):
            raise FormatError(
                f"{voxels.dtype} {voxels.shape} with an affine {to_ras.shape}",
                where=Path("array"),
                remedy="give numbers (X, Y, Z) and an affine (4, 4)",
            )
        if voxels.dtype not in (np.uint8, np.int16, np.uint16, np.int32):
            voxels = voxels.astype(np.float32, copy=False)
        image = nib.Nifti1Image(voxels, None)
        # Set the affine in the header: the constructor of the image fails on affines that are
        # refused below with a better message.
        _set_affine(image.header, to_ras)
        checked = cls.of_image(image, labels=labels, fill_nonfinite=fill_nonfinite)
        # The header rounds the affine to float32. With that affine ITK would refuse the labels,
        # because they would not be at the position of the scan.
        return replace(checked, affine=to_ras)

    def write(self, path: str | Path, *, labels: bool = False) -> None:
        """Write .nii.gz, .nii or .mgz atomically; the same volume gives the same bytes.

        The header is new: geometry, and nothing about the patient. Label maps become uint8 or
        int16; scans stay uint8, int16 or int32, or become float32.

        Parameters
        ----------
        path : str or path
            File to write; its suffix chooses the format.
        labels : bool
            Write a label map, with NIfTI's intent for labels.

        Raises
        ------
        FormatError
            If the suffix is none of these.
        OutputError
            If the file cannot be written.
        """
        where = Path(path)
        name = where.name.lower()
        if not name.endswith(_WRITTEN_SUFFIXES):
            raise FormatError(
                "not a kind of image that is written",
                where=where,
                remedy="use .nii.gz or .mgz",
            )
        data = for_disk(self.data, where, labels=labels)
        if name.endswith(".mgz"):
            image = nib.MGHImage(data, self.affine)
        else:
            image = self._nifti(data, labels)
        with atomic_write(where) as file:
            if name.endswith(".nii"):
                image.to_stream(file)
            else:
                # Without a file name and a time in the gzip header, equal volumes give equal bytes.
                with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed:
                    image.to_stream(packed)

    def to_nibabel(self, *, labels: bool = False) -> nib.Nifti1Image:
        """Return the NIfTI image that `write` would write; `labels` as in `write`."""
        data = for_disk(self.data, Path("image"), labels=labels)
        return self._nifti(data, labels)

    def _nifti(self, data: NDArray[Any], labels: bool) -> Any:
        """Return a NIfTI image of these voxels with this volume's affine in both forms.

        With `labels` it has NIfTI's intent for labels.
        """
        image = nib.Nifti1Image(data, self.affine)
        image.set_qform(self.affine, self.codes[0])
        image.set_sform(self.affine, self.codes[1])
        image.header.set_xyzt_units("mm")
        if labels:
            image.header.set_intent("label")
        return image


def _check_affine(affine: NDArray[Any], where: Path | None = None) -> None:
    """Raise GeometryError if no scan can have this affine; `where` names the image."""
    problem = why_impossible(affine)
    if problem:
        raise GeometryError(
            f"the affine {problem}",
            where=where,
            remedy="give the matrix from voxel indices to RAS mm",
        )


def _refuse_assumed_orientation(image: Any, where: Path) -> None:
    """Raise GeometryError for an MGH image whose affine was assumed, not read.

    nibabel assumes an affine if goodRASFlag in the stored header is 0, and then sets the flag to 1.
    An image that was built from voxels has the affine that its builder gave.
    """
    bare = type(image.header)()
    bare.set_data_shape(image.shape)
    is_assumed = image.affine is not None and np.allclose(
        image.affine, bare.get_affine()
    )
    if not is_assumed or not nib.is_proxy(image.dataobj):
        return
    with ImageOpener(image.dataobj.file_like) as file:
        file.seek(0)
        flag = file.read(MGH_FLAG.stop)[MGH_FLAG]
    if not any(flag):
        raise GeometryError(
            "no orientation in its header",
            where=where,
            remedy="convert it from DICOM again, or give its path and --trust-affine header, "
            "which takes its axes as LIA",
        )


def _set_affine(header: Any, affine: NDArray[Any]) -> None:
    """Set the affine of a nibabel NIfTI header as its only form, with the voxel sizes."""
    header.set_sform(affine, "aligned")
    header.set_qform(None, "unknown")
    spacing_mm = np.linalg.norm(affine[:3, :3], axis=0)
    header.set_zooms((*spacing_mm, *header.get_zooms()[3:]))


# Accepted forms of a scan: a path, a Volume, voxels (X, Y, Z) with the affine (4, 4) that maps
# their indices to RAS mm, or an image of nibabel (NIfTI or MGH), torchio, MONAI or SimpleITK.
ScanLike: TypeAlias = (
    "str | os.PathLike[str] | Volume | tuple[ArrayLike, ArrayLike] | SpatialImage"
    " | torchio.Image | torchio.Subject | MetaTensor | SimpleITK.Image"
)


def _remedy(value: object) -> str:
    """Return the remedy to show for a value that is no `ScanLike`."""
    if is_bare_array(value):
        return (
            "it has no affine: give a tuple (array, affine), with the affine (4, 4) that takes"
            " voxel indices to RAS mm"
        )
    remedy = (
        "give a path, an image of nibabel, torchio, MONAI or SimpleITK, "
        "a tuple (array, affine) or a Volume"
    )
    if isinstance(value, list):
        remedy += "; segment_many takes several scans"
    return remedy


def write_maps(path: str | Path, maps: Iterable[Volume], count: int) -> None:
    """Write `count` maps of values from 0 to 1 on one grid as .nii.gz, atomically.

    Several maps make a 4D file, a single map a 3D file. Values are rounded to 1/32767 and stored as
    int16 with that slope. Only one map of `maps` is in memory at a time. The same maps give the
    same bytes.
    """
    with (
        atomic_write(path) as file,
        gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed,
    ):
        for number, volume in enumerate(maps):
            if number == 0:
                _maps_header(volume, count).write_to(packed)
            in_range = np.clip(volume.data, 0, 1)
            steps = np.rint(in_range * np.float32(_MAP_STEPS)).astype("<i2")
            packed.write(steps.tobytes(order="F"))


def _maps_header(volume: Volume, count: int) -> nib.Nifti1Header:
    """Return the header for `count` maps on the grid of this volume."""
    header = nib.Nifti1Header(endianness="<")
    header.set_data_dtype(np.int16)
    shape: tuple[int, ...] = volume.shape
    if count > 1:
        shape = (*shape, count)
    header.set_data_shape(shape)
    header.set_qform(volume.affine, volume.codes[0])
    header.set_sform(volume.affine, volume.codes[1])
    header.set_xyzt_units("mm")
    header.set_slope_inter(1 / _MAP_STEPS, 0)
    header["vox_offset"] = _MAP_OFFSET
    return header
