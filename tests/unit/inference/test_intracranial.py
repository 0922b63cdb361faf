"""The space inside the skull, for label maps of a few voxels."""

from __future__ import annotations

import numpy as np

from trinat.segmentation.inference.prediction import find_inside
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.views import reoriented

SCHEME = load_scheme("quicknat33")
CORTEX = SCHEME.names.index("Left-Cerebral-Cortex")
CEREBELLUM = SCHEME.names.index("Left-Cerebellum-Cortex")
STEM = SCHEME.names.index("Brain-Stem")
CSF = SCHEME.names.index("CSF")


def head() -> np.ndarray:
    """Return 12 x 12 x 20.

    Cerebrum in 10 to 16, cerebellum in 6 to 9, brain stem and fluid from 2 on.
    """
    labels = np.zeros((12, 12, 20), np.uint8)
    labels[2:10, 2:10, 10:17] = CORTEX
    labels[2:10, 2:6, 6:10] = CEREBELLUM
    labels[4:8, 6:8, 2:10] = STEM
    labels[4:8, 8:10, 2:10] = CSF
    return labels


def test_below_the_cerebellum_brain_stem_and_fluid_are_of_the_neck() -> None:
    inside = find_inside(Volume(head(), np.eye(4)), SCHEME)
    assert np.flatnonzero(inside.any((0, 1))).tolist() == list(range(6, 17))
    assert inside[4:8, 6:10, 6].all()
    # 8 x 8 x 7 of cortex, 8 x 4 x 4 of cerebellum, 4 x 4 x 4 of brain stem and fluid.
    assert inside.sum() == 448 + 128 + 64


def test_other_structures_are_never_cut_by_height() -> None:
    labels = head()
    # A temporal lobe that hangs below the cerebellum, as in a head bent backwards.
    labels[2:4, 8:10, 4:10] = CORTEX
    assert find_inside(Volume(labels, np.eye(4)), SCHEME)[2, 9, 4]


def test_a_speck_of_cerebellum_in_the_neck_does_not_move_the_foramen() -> None:
    labels = head()
    labels[0, 0, 0] = CEREBELLUM
    inside = find_inside(Volume(labels, np.eye(4)), SCHEME)
    assert np.flatnonzero(inside.any((0, 1)))[0] == 6


def test_height_is_that_of_the_world_whatever_the_axes() -> None:
    volume = Volume(head(), np.eye(4))
    turned = reoriented(volume, "LIA")
    inside = find_inside(turned, SCHEME)
    back = reoriented(Volume(inside.astype(np.uint8), turned.affine), "RAS")
    assert (back.data == find_inside(volume, SCHEME)).all()


def test_specks_are_left_out_and_holes_are_inside() -> None:
    labels = head()
    labels[0, 0, 19] = CSF
    labels[5, 5, 13] = 0
    inside = find_inside(Volume(labels, np.eye(4)), SCHEME)
    assert not inside[0, 0, 19]
    assert inside[5, 5, 13]


def test_without_a_cerebellum_nothing_is_cut_and_nothing_is_inside_of_nothing() -> None:
    labels = head()
    labels[labels == CEREBELLUM] = 0
    assert find_inside(Volume(labels, np.eye(4)), SCHEME)[5, 7, 2]
    nothing = np.zeros((4, 4, 4), np.uint8)
    assert not find_inside(Volume(nothing, np.eye(4)), SCHEME).any()
