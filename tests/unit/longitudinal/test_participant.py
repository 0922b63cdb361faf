"""Several scans of one participant, made equally bright and segmented together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.overfitted import random_model
from helpers.sessions import head_of, pose_of, session_of

from trinat.segmentation.inference import preparation
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.inference.preparation import REVERSED
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.longitudinal.participant import (
    TimePoint,
    equalise_brightness,
    image_to_align,
    in_order,
    segment_participant,
)
from trinat.segmentation.longitudinal.space import heads_of


def points_of(scans: list[Volume]) -> list[TimePoint]:
    """Return the time points of scans in the given order."""
    order = in_order(scans)
    ordered = [scans[number] for number in order]
    images = [image_to_align(scan) for scan in ordered]
    (head,) = heads_of(images)
    predictor = Predictor(str(random_model()), device="cpu")
    together = segment_participant(predictor, ordered, images, head.alignments)
    return [together.time_point(order.index(number)) for number in range(len(scans))]


@pytest.mark.slow
@pytest.mark.important
def test_the_order_of_scans_changes_no_byte() -> None:
    scans = [
        session_of(head_of(), np.eye(4)),
        session_of(head_of(), pose_of(5, 2), seed=1),
        session_of(head_of(), pose_of(-4, 1), seed=2),
    ]
    found = points_of(scans)
    backwards = points_of(scans[::-1])[::-1]
    for one, other in zip(found, backwards, strict=True):
        assert torch.equal(one.prediction.fused, other.prediction.fused)
        labels, labels_backwards = one.prediction.labels, other.prediction.labels
        assert labels.data.tobytes() == labels_backwards.data.tobytes()
        assert one.volumes_mm3 == other.volumes_mm3


@pytest.fixture(scope="module")
def two_sessions() -> list[Volume]:
    return [
        session_of(head_of(), np.eye(4)),
        session_of(head_of(), pose_of(5, 2), seed=1),
    ]


@pytest.fixture(scope="module")
def points(two_sessions: list[Volume]) -> list[TimePoint]:
    return points_of(two_sessions)


def test_labels_lie_in_each_scans_own_space(
    two_sessions: list[Volume], points: list[TimePoint]
) -> None:
    for scan, point in zip(two_sessions, points, strict=True):
        labels = point.prediction.labels
        assert labels.shape == scan.shape
        np.testing.assert_array_equal(labels.affine, scan.affine)


def test_volumes_are_sums_of_probabilities(points: list[TimePoint]) -> None:
    (first, _) = points
    found = first.prediction
    assert found.plan.working.voxel_mm3 == pytest.approx(1)
    assert {"Left-Hippocampus", "Right-Hippocampus"} <= set(first.volumes_mm3)
    for name, mm3 in first.volumes_mm3.items():
        of_class = found.fused[..., found.scheme.find(name).index]
        assert mm3 == pytest.approx(float(of_class.double().sum()))


@pytest.mark.slow
@pytest.mark.important
def test_odds_of_structures_reach_what_each_scan_keeps_of_its_own(
    two_sessions: list[Volume], monkeypatch: pytest.MonkeyPatch
) -> None:
    dimensions = []

    def multiply(predictor: Predictor, probabilities: torch.Tensor) -> None:
        dimensions.append(probabilities.dim())

    monkeypatch.setattr(Predictor, "multiply_odds", multiply)
    points_of(two_sessions)
    # The mean of both, and for each scan the voxels in which it differs.
    assert dimensions == [4, 2, 2]


@pytest.mark.slow
@pytest.mark.important
def test_the_template_says_for_all_scans_whether_networks_see_them_reversed(
    two_sessions: list[Volume], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    seen = []
    fuse = Predictor.fuse

    def find(predictor: Predictor, image: torch.Tensor) -> float:
        asked.append(image)
        return 0.4

    def look(predictor: Predictor, image: torch.Tensor, *rest: Any, **more: Any) -> Any:
        seen.append(image)
        return fuse(predictor, image, *rest, **more)

    monkeypatch.setattr(Predictor, "find_reversed_white_matter", find)
    monkeypatch.setattr(
        preparation, "reverse_contrast", lambda image, white_matter: 1 - image
    )
    monkeypatch.setattr(Predictor, "fuse", look)
    points = points_of(two_sessions)
    (template,) = asked
    of_template, first, second = seen
    assert torch.equal(of_template, 1 - template)
    # The template is the mean of both scans.
    torch.testing.assert_close((first + second) / 2, 1 - template)
    assert all(REVERSED in point.prediction.notes for point in points)


def test_images_get_the_geometric_mean_of_their_brightness() -> None:
    tissue = np.full((40, 36, 33), 0.8, np.float32)
    tissue[20:24, 20:24, 20:24] = 0.4
    for image in equalise_brightness([tissue * 1.25, tissue / 1.25]):
        assert image == pytest.approx(tissue, abs=1e-3)


def test_shading_that_rises_over_a_short_field_is_halved_at_least() -> None:
    tissue = np.full((80, 72, 66), 0.8, np.float32)
    gain = np.exp(np.linspace(-0.1, 0.1, 80, dtype=np.float32))[:, None, None]
    first, second = equalise_brightness([tissue * gain, tissue / gain])
    before = np.abs(np.log(gain**2)).mean()
    assert np.abs(np.log(first / second)).mean() < 0.5 * before


def test_a_structure_that_changed_is_no_shading() -> None:
    first = np.full((64, 64, 64), 0.8, np.float32)
    second = first.copy()
    second[30:36, 30:36, 30:36] = 0.4
    before = float(second[32, 32, 32] / first[32, 32, 32])
    found, other = equalise_brightness([first, second])
    assert other[32, 32, 32] / found[32, 32, 32] == pytest.approx(before, rel=0.02)


def test_empty_images_stay_empty() -> None:
    nothing = np.zeros((8, 8, 8), np.float32)
    assert all(not image.any() for image in equalise_brightness([nothing, nothing]))
