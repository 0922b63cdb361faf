"""An anatomical template as it lies in a model folder."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segmentation.errors import ModelError

__all__ = ["Template"]

_LARGEST_BYTES = 256 << 20


@dataclass(frozen=True, eq=False)
class Template:
    """Shares of K classes on a grid, (X, Y, Z, K) uint8 of 255, and where structures are in it."""

    shares: NDArray[np.uint8]
    affine: NDArray[np.float64]  # voxels to template millimetres
    centroids: NDArray[np.float64]  # (K, 3) template millimetres; NaN where a class has none

    def to_bytes(self) -> bytes:
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer, shares=self.shares, affine=self.affine, centroids=self.centroids
        )
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, classes: int, where: Path) -> Template:
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > _LARGEST_BYTES:
                    raise ModelError("is too large for a prior", where=where)
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                found = cls(arrays["shares"], arrays["affine"], arrays["centroids"])
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise ModelError("is no prior", where=where) from error
        if (
            found.shares.ndim != 4
            or found.shares.dtype != np.uint8
            or found.shares.shape[3] != classes
            or found.affine.shape != (4, 4)
            or found.centroids.shape != (classes, 3)
        ):
            raise ModelError("is a prior of other classes", where=where)
        return found
