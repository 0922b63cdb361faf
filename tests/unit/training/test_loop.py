"""The training loop: exact resumption, NaN, parts at their own rates."""

from __future__ import annotations

import pytest
import torch

from trinat.segmentation.errors import DeviceError, TrainingError
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.heads import HeadMaps
from trinat.segmentation.training.batches import Batch, BatchSource, SyntheticSource
from trinat.segmentation.training.config import Recipe
from trinat.segmentation.training.loop import AHEAD, Trainer
from trinat.segmentation.training.network import new_network
from trinat.segmentation.training.state import State, read_state, write_state

SCHEME = load_scheme("quicknat33")
VIEW = View.SAGITTAL


def changed(recipe: Recipe, **stage: object) -> Recipe:
    content = recipe.model_dump(mode="json")
    content["stages"][0] |= stage
    return Recipe.model_validate(content)


def trainer_of(
    recipe: Recipe, maps: HeadMaps, view: View = VIEW, source: object = None
) -> Trainer:
    torch.manual_seed(recipe.seed)
    stage = recipe.stages[0]
    data = stage.data
    assert data.synthetic is not None
    size, synthesis = (data.rows, data.columns), data.synthetic.synthesis
    network = new_network(recipe.network, len(SCHEME.seen_in(view)))
    channels = recipe.network.channels
    drawn = SyntheticSource(maps, view, SCHEME, synthesis, size, channels)
    return Trainer(
        recipe,
        stage,
        network,
        source or drawn,  # type: ignore[arg-type]
        torch.device("cpu"),
    )


def all_tensors(state: State) -> dict[str, torch.Tensor]:
    return {
        f"{group}/{key}": value.clone()
        for group in ("network", "average", "optimiser")
        for key, value in getattr(state, group).items()
    }


@pytest.mark.parametrize(
    "stage",
    [
        {},
        {"precision": "float32", "accumulate": 2},
        {"optimiser": {"kind": "sgd", "rate": 0.1}, "ema": 0},
    ],
    ids=["adamw-bf16", "accumulated", "sgd"],
)
def test_a_resumed_run_ends_with_the_bits_of_an_undisturbed_one(
    recipe: Recipe, maps: HeadMaps, tmp_path, stage: dict[str, object]
) -> None:
    recipe = changed(recipe, **stage)
    straight = trainer_of(recipe, maps)
    for _ in range(7):
        straight.step()

    broken = trainer_of(recipe, maps)
    for _ in range(4):
        broken.step()
    path = write_state(tmp_path, broken.state({}))
    # Other draws of the process must not matter.
    torch.manual_seed(12345)
    resumed = trainer_of(recipe, maps)
    resumed.load(read_state(path))
    for _ in range(3):
        resumed.step()

    expected, found = all_tensors(straight.state({})), all_tensors(resumed.state({}))
    assert expected.keys() == found.keys()
    assert [key for key in expected if not torch.equal(expected[key], found[key])] == []


def test_batches_drawn_ahead_are_taken_and_change_no_bit(
    recipe: Recipe, maps: HeadMaps, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = changed(recipe, accumulate=2)
    straight, ahead = trainer_of(recipe, maps), trainer_of(recipe, maps)
    straight.draws_ahead = False
    assert ahead.draws_ahead
    drawn: list[int] = []

    def draw(number: int, real=ahead._draw) -> list[Batch]:
        drawn.append(number)
        return real(number)

    monkeypatch.setattr(ahead, "_draw", draw)
    losses = [(straight.step().loss, ahead.step().loss) for _ in range(3)]
    assert all(one == other for one, other in losses)
    # Two per step, each once, and the first of the next step.
    assert sorted(drawn) == list(range(7))
    # A batch that was drawn for one step is not used for another.
    straight.counters.step = ahead.counters.step = 7
    assert straight.step().loss == ahead.step().loss


def test_training_lowers_the_loss(recipe: Recipe, maps: HeadMaps) -> None:
    trainer = trainer_of(
        changed(recipe, optimiser={"rate": 0.02}, schedule={"steps": 60}), maps
    )
    losses = [trainer.step().loss for _ in range(60)]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


class Poisoned(BatchSource):
    """A source whose batches hold NaN from a step on."""

    fingerprint = ""

    def __init__(self, good: SyntheticSource, bad: range) -> None:
        self.good, self.bad = good, bad

    def draw(self, first: int, count: int, generator: torch.Generator) -> Batch:
        batch = self.good.draw(first, count, generator)
        if first in self.bad:
            batch.images[0, 0, 0, 0] = torch.nan
        return batch

    def counts(self) -> torch.Tensor:
        return self.good.counts()


def poisoned(recipe: Recipe, maps: HeadMaps, bad: range) -> Trainer:
    good = trainer_of(recipe, maps, View.CORONAL).source
    assert isinstance(good, SyntheticSource)
    return trainer_of(recipe, maps, View.CORONAL, Poisoned(good, bad))


def test_a_loss_that_is_no_number_leaves_no_trace(
    recipe: Recipe, maps: HeadMaps
) -> None:
    trainer = poisoned(recipe, maps, range(8, 12))  # the third batch of four
    trainer.step(), trainer.step()
    before = all_tensors(trainer.state({}))
    report = trainer.step()
    after = all_tensors(trainer.state({}))
    assert report.loss != report.loss
    assert [key for key in before if not torch.equal(before[key], after[key])] == []
    assert (trainer.counters.bad, trainer.counters.step) == (1, 3)
    assert trainer.step().loss == pytest.approx(4, abs=3)
    assert trainer.counters.bad_in_a_row == 0


def test_too_many_bad_steps_end_the_run_and_name_the_slices(
    recipe: Recipe, maps: HeadMaps
) -> None:
    trainer = poisoned(changed(recipe, max_bad_steps=2), maps, range(0, 99))
    trainer.step()
    with pytest.raises(TrainingError, match=r"2 steps in a row.*coronal slices 4-7"):
        trainer.step()


@pytest.mark.parametrize(
    ("batch", "remedy"),
    [
        (
            4,
            "set batch to 2 and accumulate to 2: as many slices to a step, but batch norms see 2",
        ),
        (
            3,
            "set batch to 1 and accumulate to 3: as many slices to a step, but batch norms see 1",
        ),
        (1, "set data.rows and data.columns, or network.filters, lower"),
    ],
)
def test_out_of_memory_says_what_would_fit(
    recipe: Recipe, maps: HeadMaps, batch: int, remedy: str
) -> None:
    trainer = trainer_of(changed(recipe, batch=batch), maps)

    def exhausted(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    trainer.network.forward = exhausted  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match=remedy):
        trainer.step()
    # Drawing needs memory, too.
    trainer.source.draw = exhausted  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match=remedy):
        trainer.step()


@pytest.mark.slow  # the compiler's import
def test_where_the_compiler_fails_training_goes_on_without(
    recipe: Recipe, maps: HeadMaps
) -> None:
    def backend(*_: object) -> None:
        raise RuntimeError("no compiler here")

    plain, trainer = trainer_of(recipe, maps), trainer_of(recipe, maps)
    # torch's own compiler warns when it is imported.
    trainer._compiled = torch.compile(trainer.network.features, backend=backend)
    assert trainer.step().loss == plain.step().loss
    assert "no compiler here" in trainer.not_compiled


def test_frozen_parts_stay_and_others_move_at_their_own_rates(
    recipe: Recipe, maps: HeadMaps
) -> None:
    parts = {"encoders": 0, "bottleneck": 0.1}
    trainer = trainer_of(
        changed(recipe, optimiser={"rate": 0.01, "parts": parts}), maps
    )
    before = {key: value.clone() for key, value in trainer.network.state_dict().items()}
    trainer.step()
    after = trainer.network.state_dict()
    moved = {key for key in before if not torch.equal(before[key], after[key])}
    # Neither weights nor statistics of frozen norms.
    assert not [key for key in moved if key.startswith("encoders")]
    assert any(key.startswith("decoders") for key in moved)
    rates = {group["multiple"]: group["lr"] for group in trainer.optimiser.param_groups}
    assert rates[0.1] == pytest.approx(0.1 * rates[1.0])


class Recorded(BatchSource):
    """A source that records the numbers of the requested slices."""

    fingerprint = ""

    def __init__(self, good: SyntheticSource) -> None:
        self.good = good
        self.numbers: list[int] = []
        self.expected: set[int] = set()

    def expect(self, first: int, count: int) -> None:
        self.expected |= set(range(first, first + count))

    def draw(self, first: int, count: int, generator: torch.Generator) -> Batch:
        self.numbers += range(first, first + count)
        return self.good.draw(first, count, generator)

    def counts(self) -> torch.Tensor:
        return self.good.counts()


def test_every_slice_is_drawn_once_and_announced_before(
    recipe: Recipe, maps: HeadMaps
) -> None:
    good = trainer_of(recipe, maps)
    assert isinstance(good.source, SyntheticSource)
    source = Recorded(good.source)
    trainer = trainer_of(recipe, maps, source=source)
    trainer.draws_ahead = False
    for number in range(3):
        trainer._backward(number)
    # Three batches of four; the next batches are announced too.
    assert source.numbers == list(range(12))
    assert source.expected == set(range(12 + 4 * AHEAD))


class Ordering(Recorded):
    """A source that records the orders which have not been taken."""

    def expect(self, first: int, count: int) -> None:
        self.expected.add(first)

    def draw(self, first: int, count: int, generator: torch.Generator) -> Batch:
        self.expected.discard(first)
        return super().draw(first, count, generator)


@pytest.mark.parametrize("in_thread", [True, False])
def test_what_was_drawn_ahead_is_not_ordered_again(
    recipe: Recipe, maps: HeadMaps, in_thread: bool
) -> None:
    good = trainer_of(recipe, maps)
    assert isinstance(good.source, SyntheticSource)
    source = Ordering(good.source)
    trainer = trainer_of(recipe, maps, source=source)
    if not in_thread:  # as on a GPU
        trainer._thread = None
    for number in range(20):
        trainer._backward(number)
    for drawn in trainer._drawn.values():
        drawn.result()
    # Batch 20 was drawn ahead; only later batches are still ordered.
    assert len(source.expected) == AHEAD - 1
