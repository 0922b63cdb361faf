"""A GPU gets its work without waits: tested on `meta`, where reading a value is an error."""

from __future__ import annotations

import pytest
import torch
from benches.computed import Counted, count, on_meta

from trinat.segmentation.inference.localisation import BrainRegion
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.space.views import View, slice_axes

SIDE = 96


@pytest.fixture(scope="module")
def segmenter() -> Predictor:
    return on_meta(Predictor("fast", device="cpu"))


def region() -> BrainRegion:
    mask = torch.zeros(SIDE, SIDE, SIDE, dtype=torch.bool)
    mask[20:70, 10:80, 30:60] = True
    whole = BrainRegion.whole(mask.shape)
    return BrainRegion(whole.box, mask)


@pytest.mark.parametrize("mirror", [False, True])
def test_views_and_fusion_read_no_value_and_copy_nothing_batch_by_batch(
    segmenter, mirror
) -> None:
    copies, done = [], []
    for batch in (32, 8):
        for network in segmenter._networks.of_view.values():
            network.batch = batch
        found = count(segmenter, torch.zeros(SIDE, SIDE, SIDE), region(), mirror=mirror)
        done.append(len(found.operations))
        copies.append(sum(operation.from_host for operation in found.operations))
    assert done[1] > 2 * done[0]
    # The scheme's tables for fusion, and the partner classes of each view.
    assert copies[0] == copies[1] <= 10


def test_the_check_finds_values_read_and_copies_made() -> None:
    with Counted() as counted:
        there = torch.ones(3, 3).to("meta")
        with pytest.raises(RuntimeError):
            (there > 0).any().item()
        with pytest.raises(RuntimeError):
            there[there > 0]
        there @ there
    assert counted.operations[0].from_host
    assert not counted.operations[-1].from_host
    assert counted.operations[-1].flops == 2 * 3**3


def test_a_first_look_takes_slices_together(segmenter) -> None:
    network = segmenter._networks.of_view[View.CORONAL]
    network.batch = 4
    axes = slice_axes(View.CORONAL)
    image = torch.zeros(SIDE, SIDE, SIDE, device="meta")
    parts = list(network.probabilities(image, axes, every=8))
    assert [len(part.probabilities) for part in parts] == [4, 4, 4]
    assert [k for part in parts for k in range(SIDE)[part.slices]] == list(
        range(4, SIDE, 8)
    )
