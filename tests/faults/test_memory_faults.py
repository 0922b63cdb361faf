"""A GPU that runs out of memory, simulated.

Fewer slices at a time, then the processor, or an error.
"""

from __future__ import annotations

import pytest
import torch
from helpers.overfitted import random_model
from helpers.refusals import refusal
from helpers.serial import small_scan

from trinat.segmentation.errors import DeviceError
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.inference.runtime import Runtime


class ShortOfMemory:
    """A runtime that runs out of memory with more than `most` slices; `tried` gets all sizes."""

    def __init__(self, real: Runtime, most: int, tried: list[int]) -> None:
        self._real = real
        self._most = most
        self._tried = tried

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        self._tried.append(len(batch))
        if len(batch) > self._most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self._real(batch)

    def release(self) -> None:
        self._real.release()


def short_of_memory(
    segmenter: Predictor, most: int, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """Make the networks fail with more than `most` slices; return the sizes that were tried."""
    tried: list[int] = []
    for network in segmenter._networks.of_view.values():
        short = ShortOfMemory(network.runtime, most, tried)
        monkeypatch.setattr(network, "runtime", short)
    return tried


def load(**options) -> Predictor:
    return Predictor(
        random_model(), device="cpu", precision="float32", batch=8, **options
    )


def test_batches_are_halved_until_they_fit_and_the_labels_are_the_same(
    monkeypatch,
) -> None:
    scan = small_scan()
    expected = load().segment(scan)
    segmenter = load()
    tried = short_of_memory(segmenter, 3, monkeypatch)
    found = segmenter.segment(scan)
    assert {8, 4, 2} <= set(tried)
    assert all(network.batch == 2 for network in segmenter._networks.of_view.values())
    torch.testing.assert_close(found.fused, expected.fused, atol=2e-3, rtol=0)
    # The next scan begins with the size that fitted.
    tried.clear()
    segmenter.segment(scan)
    assert max(tried) == 2


def test_what_does_not_fit_at_all_goes_to_the_processor_if_allowed(monkeypatch) -> None:
    scan = small_scan()
    expected = load().segment(scan)
    segmenter = load(allow_cpu=True)
    short_of_memory(segmenter, 0, monkeypatch)
    found = segmenter.segment(scan)
    assert segmenter.device.type == "cpu"
    torch.testing.assert_close(found.fused, expected.fused, atol=2e-3, rtol=0)


def test_what_does_not_fit_at_all_is_told_in_one_line(monkeypatch) -> None:
    segmenter = load()
    short_of_memory(segmenter, 0, monkeypatch)
    with refusal(DeviceError, remedy="--device") as told:
        segmenter.segment(small_scan())
    assert "\n" not in str(told.value)
