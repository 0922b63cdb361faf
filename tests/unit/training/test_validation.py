"""Whole-volume validation: scores worked out by hand, and norms that do not change."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from trinat.segmentation.errors import TrainingError
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.base import NetworkConfig
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.heads import HeadMaps
from trinat.segmentation.synthetic.settings import SynthesisConfig
from trinat.segmentation.training import validation
from trinat.segmentation.training.validation import (
    ValidationScan,
    foresee,
    predict_classes,
    synthetic_scans,
    validate,
)


class Threshold(nn.Module):
    """Class 1 where the middle channel is above one half.

    Its norm counts batches in training mode.
    """

    def __init__(self) -> None:
        super().__init__()
        self.config = NetworkConfig(classes=3)
        self.norm = nn.BatchNorm2d(1)

    def forward(self, slices: Tensor) -> Tensor:
        self.norm(slices[:, :1])
        middle = slices[:, slices.shape[1] // 2]
        return torch.stack([0.5 - middle, middle - 0.5, torch.full_like(middle, -9)], 1)


def test_scores_are_those_of_the_whole_scan() -> None:
    images = torch.zeros(20, 4, 4)
    images[3, :2, :2] = 1  # 4 predicted in one slice,
    images[19, 0, 0] = 1  # 1 in the last
    labels = torch.zeros(20, 4, 4, dtype=torch.uint8)
    labels[3, :2, 0] = 1  # 2 true, both found
    network = Threshold().train()
    scan = ValidationScan("a", images, labels)
    scores = validate(network, [scan], torch.device("cpu"))
    assert scores.dice[1] == pytest.approx(2 * 2 / (5 + 2))
    assert scores.iou[1] == pytest.approx(2 / 5)
    # Background is no structure; class 2 is neither present nor predicted, so it does not
    # count.
    assert math.isnan(scores.dice[0])
    assert math.isnan(scores.dice[2])
    assert scores.mean_dice == scores.dice[1]
    assert network.norm.num_batches_tracked == 0


def test_voxels_that_do_not_count_are_not_scored() -> None:
    images = torch.zeros(4, 4, 4)
    images[0, :2] = 1  # what the network finds: 4 voxels that count, and 4 that do not
    labels = torch.zeros(4, 4, 4, dtype=torch.uint8)
    labels[0, 0] = 1  # 4 true ones count,
    labels[3, 0] = 2  # a structure in another slice does not
    counted = torch.zeros(4, 4, 4, dtype=torch.bool)
    counted[0, 0] = True
    scan = ValidationScan("a", images, labels, counted)
    scores = validate(Threshold(), [scan], torch.device("cpu"))
    assert scores.dice[1] == 1
    assert math.isnan(scores.dice[2])


def test_the_time_of_a_validation_is_foreseen_from_a_batch_of_each_scan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(validation.time, "monotonic", lambda: now[0])

    class Slow(nn.Module):
        """Takes a second per batch."""

        config = NetworkConfig(classes=2)

        def forward(self, slices: Tensor) -> Tensor:
            now[0] += 1
            return torch.zeros(len(slices), 2, 4, 4)

    def scans() -> Iterator[ValidationScan]:
        """Yield scans of 24 and 16 slices in batches of eight, each of which takes ten seconds."""
        for count in (24, 16):
            now[0] += 10
            yield ValidationScan("scan", torch.zeros(count, 4, 4), torch.zeros(0))

    assert foresee(Slow(), scans(), torch.device("cpu")) == 10 + 3 + 10 + 2
    assert now[0] == 100 + 10 + 1 + 10 + 1


def test_validation_without_a_scan_is_refused() -> None:
    with pytest.raises(TrainingError, match="no scan"):
        validate(Threshold(), [], torch.device("cpu"))


def test_neighbours_are_channels_and_empty_beyond_the_ends() -> None:
    seen = []

    class Recorder(nn.Module):
        config = NetworkConfig(classes=2, channels=3)

        def forward(self, slices: Tensor) -> Tensor:
            seen.append(slices)
            return torch.zeros(len(slices), 2, 1, 1)

    images = torch.arange(1.0, 4.0).view(3, 1, 1)
    predict_classes(Recorder(), images, torch.device("cpu"))
    assert torch.cat(seen).flatten(1).tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 0]]


def test_held_out_heads_are_drawn_alike_every_time(maps: HeadMaps) -> None:
    scheme = load_scheme("quicknat33")
    one, again = (
        list(synthetic_scans(maps, [0, 1], scheme, SynthesisConfig(), View.AXIAL, 5))
        for _ in range(2)
    )
    assert [scan.name for scan in one] == ["head-1", "head-2"]
    assert one[0].images.shape == (20, 20, 24)
    assert all(torch.equal(a.images, b.images) for a, b in zip(one, again, strict=True))


def test_a_head_has_the_same_scan_whoever_else_is_chosen(maps: HeadMaps) -> None:
    scheme = load_scheme("quicknat33")
    both, alone = (
        list(synthetic_scans(maps, chosen, scheme, SynthesisConfig(), View.AXIAL, 5))
        for chosen in ([0, 1], [1])
    )
    assert [scan.name for scan in alone] == ["head-2"]
    assert torch.equal(both[1].images, alone[0].images)
    assert torch.equal(both[1].labels, alone[0].labels)
