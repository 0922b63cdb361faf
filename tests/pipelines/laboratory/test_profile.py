"""trinat profile: operations, shares that add up, and the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers.overfitted import random_model
from helpers.small_store import all_train, small_store
from helpers.tiny_training import write_recipe

from trinat.pipelines.laboratory import profile
from trinat.pipelines.laboratory.profile import (
    count_flops,
    profile_network,
    write_profile,
)
from trinat.pipelines.train.run import read_recipe
from trinat.segmentation.errors import ConfigError, DeviceError
from trinat.segmentation.models.architectures import PUBLISHED, build
from trinat.segmentation.models.quicknat import QuickNat, QuickNatConfig
from trinat.segmentation.training.memory import StepMemory


def test_the_published_network_takes_121_gflop_for_a_slice() -> None:
    # On the processor, because other devices pad channels. A slice of 256 has 16 times the
    # positions.
    flops, shapes = count_flops(build(PUBLISHED).eval(), torch.rand(1, 1, 64, 64))
    assert 16 * sum(flops.values()) / 1e9 == pytest.approx(121.1, abs=0.05)
    assert shapes["classifier"] == "33 x 64 x 64"
    # A multiply-add is two operations: 64 filters, 33 classes, 64 x 64 positions.
    assert flops["classifier"] == 2 * 64 * 33 * 64 * 64


def test_shares_of_modules_add_up() -> None:
    network = QuickNat(QuickNatConfig(classes=4, filters=4, kernel=3, depth=2)).eval()
    slices = torch.rand(2, 1, 32, 32)
    found = profile_network(network, slices, 2)
    assert sum(row.share for row in found.modules) == pytest.approx(1)
    assert sum(row.seconds for row in found.modules) == pytest.approx(found.seconds)
    assert min(row.share for row in found.modules) > -1e-4
    once, _ = count_flops(network, slices[:1])
    assert found.flops == 2 * sum(once.values())
    assert not any(module._forward_hooks for module in network.modules())


def test_a_model_has_tables_and_a_trace(tmp_path: Path) -> None:
    write_profile(str(random_model()), tmp_path / "b", steps=1, device="cpu")
    rows = json.loads((tmp_path / "b/profile.json").read_text())
    names = {row["name"] for row in rows["modules"]}
    assert {"encoders.0.layers.0", "classifier"} <= names
    assert rows["what"].endswith("on cpu")
    assert "aten::convolution" in (tmp_path / "b/operators.txt").read_text()
    trace = json.loads((tmp_path / "b/trace.json").read_text())
    assert any(
        event.get("name") == "module classifier" for event in trace["traceEvents"]
    )


@pytest.mark.slow
@pytest.mark.important
def test_a_recipe_is_profiled_as_it_trains(tmp_path: Path) -> None:
    """On a store: with its data, its loss and its optimiser, and the part that takes most."""
    store = small_store(tmp_path / "store", dict.fromkeys("ab", (40, 44, 48)))
    all_train(store)
    recipe = write_recipe(tmp_path, accumulate=2)
    found = write_profile(
        str(recipe), tmp_path / "out", steps=2, device="cpu", store=store
    )
    assert sum(row.share for row in found.modules) == pytest.approx(1)
    rows = {row.name: row for row in found.modules}
    assert rows["(loss)"].seconds > 0
    assert rows["(backward and all else)"].seconds > 0
    # Two batches of four slices, 4 classes of 4 filters, 32 x 32 positions, 2 per multiply-add.
    assert rows["classifier"].flops == 8 * 2 * 4 * 4 * 32 * 32
    assert set(found.parts) == {"data", "network", "loss", "optimiser"}
    assert sum(found.parts.values()) == pytest.approx(found.seconds, rel=0.2)
    slowest = max(found.parts, key=found.parts.__getitem__)
    assert found.bound.startswith(f"The {slowest} bounds the training")
    with pytest.raises(ConfigError, match="fast is a model, which has no store"):
        write_profile("fast", tmp_path / "model", store=store)


def test_a_batch_without_memory_is_made_smaller_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(tmp_path)
    read = read_recipe(str(recipe))
    stage = read.stages[0]
    step = StepMemory.of(read.network, (stage.data.rows, stage.data.columns))
    monkeypatch.setattr(profile, "free_memory", lambda: step.needed(1))
    found = write_profile(str(recipe), tmp_path / "out", steps=1, device="cpu")
    assert found.what.endswith(f"batch of {stage.batch}")
    monkeypatch.setattr(profile, "free_memory", lambda: step.fixed)
    with pytest.raises(DeviceError, match=r"a slice of \d+x\d+ needs about"):
        write_profile(str(recipe), tmp_path / "none", steps=1, device="cpu")
