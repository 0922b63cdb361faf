"""Processes that train together compute what one does, and share their values."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from helpers.claimed import claimed
from helpers.ranks import exchange, in_both, losses
from torch import distributed

from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.heads import HeadMaps
from trinat.segmentation.training.batches import SyntheticSource
from trinat.segmentation.training.config import Recipe
from trinat.segmentation.training.loop import Trainer
from trinat.segmentation.training.network import ViewsNet
from trinat.segmentation.training.workers import ALONE, Workers

PIXELS_ALIKE = {"dice": 0, "boundary": 0, "balance": 0}


def recipe_of(recipe: Recipe, **stage: object) -> Recipe:
    content = recipe.model_dump(mode="json")
    content["network"] |= {"channels": 1, "dropout": 0}
    content["stages"][0] |= {"precision": "float32", **stage}
    return Recipe.model_validate(content)


@pytest.mark.slow
@pytest.mark.important
def test_two_processes_have_the_losses_of_one(recipe: Recipe) -> None:
    # If all pixels count alike, the mean of two halves is the mean of the batch ...
    mean = recipe_of(recipe, batch=8, loss=PIXELS_ALIKE)
    # ... and a loss of sums over a batch is that of the halves, accumulated.
    dice = recipe_of(recipe, batch=8)
    halves = recipe_of(recipe, batch=4, accumulate=2)
    leader, other = in_both(losses, (mean, dice))
    assert leader == other
    for found, expected in zip(leader, losses(ALONE, (mean, halves)), strict=True):
        assert found == pytest.approx(expected, abs=1e-4)
        # They learn: equal numbers without an update would prove little.
        assert found[-1] < found[0]


@pytest.mark.slow
@pytest.mark.important
def test_each_knows_what_the_leader_and_all_know() -> None:
    assert in_both(exchange, "of ") == [("of 0", ["of 0", "of 1"], 1.0)] * 2


def test_one_process_alone_asks_nobody() -> None:
    assert exchange(ALONE, "of ") == ("of 0", ["of 0"], 0.0)


@pytest.mark.slow
@pytest.mark.important
def test_two_processes_with_a_gpu_each_have_the_losses_of_one(recipe: Recipe) -> None:
    """The GPUs are only claimed, and gloo stands in for NCCL."""
    together = recipe_of(recipe, batch=8)
    halves = recipe_of(recipe, batch=4, accumulate=2)
    leader, other = in_both(losses, (together,), 2, "cuda:0")
    assert leader == other
    assert leader[0] == pytest.approx(losses(ALONE, (halves,), 2)[0], rel=1e-4)


def test_the_leader_is_waited_for_by_the_group_with_more_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step has its own time limit: a process that hangs in a step is given up in minutes."""
    waited_by: list[object] = []

    def broadcast(values: list[str], src: int, group: object) -> None:
        waited_by.append(group)

    monkeypatch.setattr(distributed, "broadcast_object_list", broadcast)
    patient = cast("distributed.ProcessGroup", object())
    assert Workers(0, 2, patient).share(lambda: "made") == "made"
    assert waited_by == [patient]


@pytest.mark.parametrize(("count", "wanted"), [(1, True), (2, True), (2, False)])
def test_norms_see_the_whole_batch_of_several_gpus_where_the_recipe_wants_it(
    recipe: Recipe, maps: HeadMaps, count: int, wanted: bool
) -> None:
    recipe = recipe_of(recipe, sync_norms=wanted)
    with claimed():
        trainer = _on_gpu(recipe, maps, count)
        norms = [
            module
            for module in trainer.network.modules()
            if isinstance(module, torch.nn.SyncBatchNorm)
        ]
        assert bool(norms) == (wanted and count > 1)
        # The averaged network for validation and export is not wrapped, and has the same names.
        names = trainer.average.state_dict().keys()
        assert names == trainer.network.state_dict().keys()
        assert not [
            module
            for module in trainer.average.modules()
            if isinstance(module, torch.nn.SyncBatchNorm)
        ]


def _on_gpu(recipe: Recipe, maps: HeadMaps, count: int) -> Trainer:
    from trinat.segmentation.labels.scheme import load_scheme

    data = recipe.stages[0].data
    assert data.synthetic is not None
    scheme = load_scheme("quicknat33")
    size, channels = (data.rows, data.columns), recipe.network.channels
    source = SyntheticSource(
        maps, scheme, data.synthetic.synthesis, size, channels, "cuda"
    )
    network = ViewsNet(recipe.network, {View.AXIAL: 33})
    return Trainer(
        recipe,
        recipe.stages[0],
        [View.AXIAL],
        network,
        source,
        torch.device("cuda"),
        Workers(0, count),
    )
