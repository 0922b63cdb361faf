"""Several maps of values from 0 to 1 in one 4D NIfTI file, with one of them in memory at a time."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path

import nibabel as nib
import numpy as np

from segmentation.io.files import atomic_write
from segmentation.io.volume import Volume

__all__ = ["write_maps"]

# Steps of 3e-5, finer than float16, in half the bytes of float32 and a type that all tools read.
_STEPS = 32767
_GZIP_LEVEL = 4
# The header, and four bytes that say that no extension follows.
_OFFSET = 352


def write_maps(path: str | Path, maps: Iterable[Volume], count: int) -> None:
    """Write `count` maps of one grid as .nii.gz, whole or not at all; equal maps, equal bytes."""
    with (
        atomic_write(path) as file,
        gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed,
    ):
        for number, volume in enumerate(maps):
            if number == 0:
                _header(volume, count).write_to(packed)
            values = np.rint(np.clip(volume.data, 0, 1) * np.float32(_STEPS))
            packed.write(values.astype("<i2").tobytes(order="F"))


def _header(volume: Volume, count: int) -> nib.Nifti1Header:
    header = nib.Nifti1Header(endianness="<")
    header.set_data_dtype(np.int16)
    header.set_data_shape((*volume.shape, count))
    header.set_qform(volume.affine, volume.codes[0])
    header.set_sform(volume.affine, volume.codes[1])
    header.set_xyzt_units("mm")
    header.set_slope_inter(1 / _STEPS, 0)
    header["vox_offset"] = _OFFSET
    return header
