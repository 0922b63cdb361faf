"""Files of an oblique, anisotropic scan whose voxels all differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from oracle.fuzz import odd_scan

SUFFIXES = (".nii", ".nii.gz", ".mgz")
VOXELS = np.asarray(odd_scan().dataobj)


def image_of(voxels: NDArray[Any], **header: Any) -> nib.Nifti1Image:
    image = nib.Nifti1Image(voxels, odd_scan().affine)
    for name, value in header.items():
        image.header[name] = value
    return image


def saved(folder: Path, voxels: NDArray[Any]) -> Path:
    path = folder / "scan.nii"
    nib.save(image_of(voxels), path)
    return path


def with_voxel(value: float, dtype: str = "f4") -> NDArray[Any]:
    voxels = VOXELS.astype(dtype)
    voxels[3, 4, 5] = value
    return voxels
