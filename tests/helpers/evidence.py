"""Handmade input for the quality checks.

Labels and an image of 1 mm, in a scheme with two sides.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trinat.segmentation.grid import Grid
from trinat.segmentation.inference.checks.evidence import Evidence
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.label import Label
from trinat.segmentation.labels.scheme import LabelScheme


def _label(
    index: int, name: str, group: str, side: str | None, partner: int | None
) -> Label:
    return Label(index, name, index, partner, (0, 0, 0), name, group, side)  # type: ignore[arg-type]


BACKGROUND, WHITE, CORTEX, LEFT_VENTRICLE, RIGHT_VENTRICLE, LEFT, RIGHT = range(7)
SCHEME = LabelScheme(
    "by hand",
    (
        _label(BACKGROUND, "background", "background", None, None),
        _label(WHITE, "white", "white-matter", None, None),
        _label(CORTEX, "cortex", "cortical", None, None),
        _label(LEFT_VENTRICLE, "left ventricle", "ventricles", "left", RIGHT_VENTRICLE),
        _label(
            RIGHT_VENTRICLE, "right ventricle", "ventricles", "right", LEFT_VENTRICLE
        ),
        _label(LEFT, "left nucleus", "subcortical", "left", RIGHT),
        _label(RIGHT, "right nucleus", "subcortical", "right", LEFT),
    ),
)


def evidence(
    labels: NDArray[np.uint8],
    image: ArrayLike | None = None,
    *,
    scan: Grid | None = None,
    volumes_mm3: Mapping[str, float] | None = None,
) -> Evidence:
    """Return the evidence of labels (X, Y, Z), as if they had been predicted.

    Without an image, white matter is at 1 and cortex at 0.7.
    """
    if image is None:
        image = np.array([0.0, 1.0, 0.7, 0.2, 0.2, 0.8, 0.8])[labels]
    if volumes_mm3 is None:
        counts = np.bincount(labels.ravel(), minlength=len(SCHEME))
        volumes_mm3 = {
            name: float(counts[k]) for k, name in enumerate(SCHEME.names) if k
        }
    affine = np.eye(4)
    return Evidence(
        Volume(np.asarray(image, np.float32), affine),
        Volume(labels, affine),
        scan or Grid(labels.shape, affine),
        SCHEME,
        volumes_mm3,
        None,
    )


def ball(shape: tuple[int, int, int], radius: float) -> NDArray[np.bool_]:
    """Return the voxels within a radius of the middle."""
    axes = np.ogrid[tuple(slice(n) for n in shape)]
    squares = sum(
        (axis - (n - 1) / 2) ** 2 for axis, n in zip(axes, shape, strict=True)
    )
    return np.asarray(squares <= radius**2)
