"""A 3D image and where it lies in space; reading, checking and writing it."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from segmentation.errors import FormatError
from segmentation.files import atomic_path

__all__ = ["TrustAffine", "Volume"]

TrustAffine = Literal["sform", "qform", "header"]


@dataclass(frozen=True, eq=False)
class Volume:
    """Voxels (X, Y, Z) in the order of the file, and their place: voxel index -> RAS mm."""

    data: NDArray[np.generic]
    affine: NDArray[np.float64]
    codes: tuple[int, int] = (1, 1)
    notes: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int, int]:
        x, y, z = self.data.shape
        return x, y, z

    @property
    def spacing_mm(self) -> tuple[float, float, float]:
        x, y, z = np.sqrt((self.affine[:3, :3] ** 2).sum(axis=0)).tolist()
        return x, y, z

    @property
    def axcodes(self) -> str:
        """Where each axis grows to, as "RAS" or "LIA"."""
        return "".join(nib.aff2axcodes(self.affine))

    @classmethod
    def read(
        cls,
        path: str | Path,
        *,
        labels: bool = False,
        trust_affine: TrustAffine | None = None,
        axes: str | None = None,
        fill_nonfinite: bool = False,
    ) -> Volume:
        image = nib.load(path)
        data = np.asanyarray(image.dataobj)
        if labels:
            data = data.astype(np.int16)
        elif data.dtype == np.float64:
            data = data.astype(np.float32)
        return cls(data, np.asarray(image.affine, np.float64))

    def write(self, path: str | Path, *, labels: bool = False) -> None:
        """Write .nii.gz, .nii or .mgz, whole or not at all."""
        data = np.asarray(self.data, np.int16) if labels else self.data
        name = Path(path).name.lower()
        for suffix, kind in ((".nii.gz", nib.Nifti1Image), (".nii", nib.Nifti1Image)):
            if name.endswith(suffix):
                break
        else:
            if not name.endswith(".mgz"):
                raise FormatError("unknown file type", where=path, remedy="use .nii.gz or .mgz")
            suffix, kind = ".mgz", nib.MGHImage
        image = kind(data, self.affine)
        with atomic_path(path) as temporary:
            with temporary.open("wb") as file:
                if suffix == ".nii":
                    image.to_stream(file)
                else:
                    with gzip.GzipFile("", "wb", 1, file, mtime=0) as packed:
                        image.to_stream(packed)
