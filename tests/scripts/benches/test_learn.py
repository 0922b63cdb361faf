"""scripts/bench learn: goes on where it was stopped; protocols that draw a structure otherwise."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from benches import learn
from benches._protocol import PROTOCOLS, redrawn
from benches.learn import Curve, segmented
from helpers.overfitted import random_model

from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.training.odds_fit import DoubtfulVoxels


def scan(seed: int) -> DoubtfulVoxels:
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.rand((4, 5, 6, 33), generator=generator)
    truth = np.random.default_rng(seed).integers(0, 33, (4, 5, 6)).astype(np.uint8)
    return DoubtfulVoxels.of(probabilities, truth, [0])


def test_a_scan_is_segmented_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def once(*_: object, **__: object) -> tuple[list, list[DoubtfulVoxels], list]:
        calls.append(1)
        return [], [scan(0)], []

    monkeypatch.setattr(learn, "segment_all", once)
    asked = SimpleNamespace(item=SimpleNamespace(name="1000"), pair=None)
    first = segmented(asked, None, tmp_path)  # type: ignore[arg-type]
    again = segmented(asked, None, tmp_path)  # type: ignore[arg-type]
    assert len(calls) == 1
    np.testing.assert_array_equal(again.joint(np.zeros(33)), first.joint(np.zeros(33)))
    assert len(again.classes) == len(first.classes)


def test_a_fit_is_done_once_whatever_the_order_of_its_scans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fitted(scans: list, *_: object) -> dict[str, float]:
        calls.append(len(scans))
        return {}

    monkeypatch.setattr(learn, "fit_odds", fitted)
    scans = {name: scan(seed) for seed, name in enumerate("abc")}
    model = load_model(random_model())
    curve = Curve(model, scans, ["c"], tmp_path)
    value = curve.dice(["a", "b"])
    assert curve.dice(["b", "a"]) == value
    assert Curve(model, scans, ["c"], tmp_path).dice(["b", "a"]) == value
    assert calls == [2]
    # Without a fit it is the model's own.
    assert curve.dice([]) == pytest.approx(
        scans["c"].mean_dice(np.zeros(33), learn.without_odds(model))
    )
    assert calls == [2]


def test_a_hippocampus_is_drawn_otherwise() -> None:
    # Columns of five voxels, the last axis up: white matter (2) below, amygdala (18) above.
    column = np.array([2, 17, 17, 17, 18], np.int16)
    numbers = np.broadcast_to(column, (5, 5, 5)).copy()
    middle = (2, 2)
    larger = redrawn(numbers, PROTOCOLS["larger"])
    np.testing.assert_array_equal(larger[middle], [17, 17, 17, 17, 17])
    # One voxel alone is deep enough; the others become what is nearer.
    smaller = redrawn(numbers, PROTOCOLS["smaller"])
    np.testing.assert_array_equal(smaller[middle], [2, 2, 17, 18, 18])
    higher = redrawn(numbers, PROTOCOLS["higher"])
    np.testing.assert_array_equal(higher[middle], [2, 2, 17, 17, 17])
    # The other side has its own number, and what was there stays.
    numbers[numbers == 17] = 53
    np.testing.assert_array_equal(
        redrawn(numbers, PROTOCOLS["larger"])[middle], [53, 53, 53, 53, 53]
    )
