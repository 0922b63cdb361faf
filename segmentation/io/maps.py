"""Maps of values from 0 to 1, such as probabilities, written as one 4D file."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path

import nibabel as nib
import numpy as np

from trinat.segmentation.io.files import atomic_write
from trinat.segmentation.io.volume import GZIP_LEVEL, Volume

# Steps of 3e-5, finer than float16, in half the bytes of float32 and a type that all tools read.
_MAP_STEPS = 32767
# The header, and four bytes that say that no extension follows.
_MAP_OFFSET = 352


def write_maps(path: str | Path, maps: Iterable[Volume], count: int) -> None:
    """Write `count` maps of values from 0 to 1, of one grid, as 4D .nii.gz: whole or not at all.

    Values are rounded to 1/32767 and kept as int16 with that slope. One map at a time is in
    memory. The same maps give the same bytes.
    """
    with (
        atomic_write(path) as file,
        gzip.GzipFile("", "wb", GZIP_LEVEL, file, mtime=0) as packed,
    ):
        for number, volume in enumerate(maps):
            if number == 0:
                _maps_header(volume, count).write_to(packed)
            in_range = np.clip(volume.data, 0, 1)
            steps = np.rint(in_range * np.float32(_MAP_STEPS)).astype("<i2")
            packed.write(steps.tobytes(order="F"))


def _maps_header(volume: Volume, count: int) -> nib.Nifti1Header:
    """The header of `count` maps on the grid of this one."""
    header = nib.Nifti1Header(endianness="<")
    header.set_data_dtype(np.int16)
    header.set_data_shape((*volume.shape, count))
    header.set_qform(volume.affine, volume.codes[0])
    header.set_sform(volume.affine, volume.codes[1])
    header.set_xyzt_units("mm")
    header.set_slope_inter(1 / _MAP_STEPS, 0)
    header["vox_offset"] = _MAP_OFFSET
    return header
