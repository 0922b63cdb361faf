"""The space inside the skull, from the labels of the brain and of the fluid around it.

What is inside: every structure, the ventricles among them, and CSF where the model finds all fluid
inside the skull. Three rules make one solid space of these labels:

- The foramen magnum, where the skull ends, is taken to be as high as the lowest voxel of the
  cerebellum. Brain stem and fluid below it belong to the neck. Label maps for synthesis are cut
  in the same way, so that networks learn it (`segmentation/synthetic/heads.py`).
- Of several parts the largest counts: specks in neck and face are left out.
- What the space encloses belongs to it: vessels, dura and holes between labels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.label import CSF_GROUP
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.space.morphology import largest_part, without_holes

Mask = NDArray[np.bool_]

# By group of a label scheme: what stands for the foramen magnum, and what goes on below it.
_ABOVE_FORAMEN = ("cerebellum",)
_THROUGH_FORAMEN = (CSF_GROUP, "brainstem")


def find_inside(indices: Volume, scheme: LabelScheme) -> Mask:
    """What is inside the skull, (X, Y, Z); `indices` are classes on the working grid.

    Empty where nothing is labelled. Without a cerebellum nothing is cut off.
    """
    inside = np.asarray(indices.data > 0)
    inside &= ~_below_foramen(indices, scheme)
    return without_holes(largest_part(inside))


def _below_foramen(indices: Volume, scheme: LabelScheme) -> Mask:
    """Where brain stem and fluid go on below the foramen magnum, (X, Y, Z)."""
    cerebellum = _of_groups(indices.data, scheme, _ABOVE_FORAMEN)
    if not cerebellum.any():
        return np.zeros(indices.shape, bool)
    heights_mm = _heights_mm(indices)
    lowest_mm = np.broadcast_to(heights_mm, indices.shape)[
        largest_part(cerebellum)
    ].min()
    through = _of_groups(indices.data, scheme, _THROUGH_FORAMEN)
    return np.asarray(through & (heights_mm < lowest_mm))


def _heights_mm(indices: Volume) -> NDArray[np.float64]:
    """How high in the world each voxel is, in mm, in a shape that spreads over (X, Y, Z)."""
    up_x, up_y, up_z = indices.affine[2, :3]
    x, y, z = indices.shape
    i, j, k = np.ogrid[:x, :y, :z]
    return np.asarray(up_x * i + up_y * j + up_z * k)


def _of_groups(
    classes: NDArray[np.uint8],
    scheme: LabelScheme,
    groups: tuple[str, ...],
) -> Mask:
    """Where structures of these groups are, (X, Y, Z)."""
    is_wanted = np.array([label.group in groups for label in scheme.labels])
    return np.asarray(is_wanted[classes])
