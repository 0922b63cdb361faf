"""Label maps of two scans of one participant, aligned and compared."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.miniatures import head_labels
from helpers.sessions import head_of, pose_of, session_of

from trinat.segmentation.errors import EvaluationError
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.metrics.repeat import LaidMap, agreement, lay, two_scans

SCHEME = load_scheme("quicknat33")


def laid(classes: list[int], volumes_mm3: list[float]) -> LaidMap:
    return LaidMap(np.array(classes, np.uint8).reshape(1, 1, -1), np.array(volumes_mm3))


def test_two_maps_compared_by_hand() -> None:
    # Class 1 has 3 voxels in one map and 2 in the other, 2 in common; class 2 has 1 and 2, 1 in
    # common; class 3 is absent.
    found = agreement(
        laid([0, 1, 1, 1, 2], [0, 90, 20, 0]), laid([0, 1, 1, 2, 2], [0, 110, 60, 0])
    )
    np.testing.assert_allclose(found.dice, [1, 4 / 5, 2 / 3, np.nan])
    # Relative to the whole maps, not to the common space: 20 of 100, 40 of 40.
    np.testing.assert_allclose(found.difference_percent, [np.nan, 20, 100, np.nan])


def test_maps_of_a_moved_head_lie_on_one_another() -> None:
    head = head_of()
    pose = pose_of(5.0, 6.0)
    both = two_scans(head, session_of(head, pose))
    assert both.likeness > 0.9
    cosine = (np.trace(pose[:3, :3]) - 1) / 2
    assert both.turned_deg == pytest.approx(np.degrees(np.arccos(cosine)), abs=0.5)
    # The head is at the world's origin, about which the pose turns: 6, 3 and -6 mm.
    assert both.shifted_mm == pytest.approx(9, abs=0.2)
    assert both.stretch_percent == 0
    # The labels of the second scan are those of the first, at another place in the world.
    classes = SCHEME.from_freesurfer(head_labels())
    first = lay(Volume(classes, head.affine), SCHEME, both.space, 0)
    second = lay(Volume(classes, pose @ head.affine), SCHEME, both.space, 1)
    found = agreement(first, second)
    there = np.unique(classes)[1:]
    assert found.dice[there].min() > 0.9
    np.testing.assert_allclose(found.difference_percent[there], 0, atol=1e-6)
    # Without alignment, a twentieth of a turn apart, they agree far less.
    unmoved = lay(Volume(classes, head.affine), SCHEME, both.space, 1)
    assert agreement(first, unmoved).dice[there].mean() < 0.8


def test_volumes_are_those_before_resampling() -> None:
    head = head_of()
    both = two_scans(head, session_of(head, pose_of(4.0, 3.0)))
    classes = SCHEME.from_freesurfer(head_labels())
    coarse = head.affine @ np.diag([1, 1, 2, 1])
    found = lay(Volume(classes[..., ::2].copy(), coarse), SCHEME, both.space, 0)
    white = (classes[..., ::2] == 1).sum()
    assert found.volumes_mm3[1] == pytest.approx(2 * white)


def test_two_heads_are_refused() -> None:
    with pytest.raises(EvaluationError, match="do not show one head"):
        two_scans(head_of(0), head_of(1))
