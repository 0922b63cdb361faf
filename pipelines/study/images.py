"""Images of results, read with the choices of the run that segmented them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import get_args

from trinat.segmentation.errors import GeometryError
from trinat.segmentation.grid import SAME_GRID_MM
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.io.volume import Volume


def read_image(
    path: Path,
    labels: Path | None,
    *,
    axes: str | None = None,
    trust_affine: TrustAffine | None = None,
) -> Volume:
    """Read the image that a label map was made from, as `trinat predict` read it.

    NaN and infinite voxels become 0. If the header does not decide on an affine, the image gets the
    one of its affines with which `trinat predict --trust-affine` wrote the label map. `axes` and
    `trust_affine` are those of `Volume.read`. Raises GeometryError if no affine of the header is
    that of the label map.
    """
    read = partial(Volume.read, path, axes=axes, fill_nonfinite=True)
    try:
        return read(trust_affine=trust_affine)
    except GeometryError:
        if labels is None:
            raise
        grid = Volume.read(labels, labels=True).grid
        for trust in get_args(TrustAffine):
            try:
                image = read(trust_affine=trust)
            except GeometryError:
                continue
            if image.grid.apart_mm(grid) <= SAME_GRID_MM:
                return image
        raise
