"""Learning rates by step, epoch and time."""

from __future__ import annotations

import pytest

from trinat.segmentation.training.config import ScheduleConfig
from trinat.segmentation.training.state import Position, learning_rate, progress


def at(step: int = 0, epoch_steps: int = 10, share: float | None = None) -> Position:
    return Position(step, epoch_steps, share)


def test_cosine_falls_from_the_rate_over_half_of_it_to_nothing() -> None:
    cosine = ScheduleConfig(kind="cosine", steps=100)
    rates = [learning_rate(cosine, 2.0, at(step)) for step in (0, 50, 100)]
    assert rates == pytest.approx([2.0, 1.0, 0.0])


def test_steps_drop_once_per_so_many_epochs_and_not_per_batch() -> None:
    steps = ScheduleConfig(kind="steps", epochs=30, factor=0.1, every_epochs=10)
    rates = [learning_rate(steps, 0.1, at(step)) for step in (0, 99, 100, 199, 200)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001])


@pytest.mark.parametrize("length", [{"epochs": 30}, {"steps": 300}])
def test_steps_drop_at_the_same_shares_of_a_given_time(length: dict[str, int]) -> None:
    steps = ScheduleConfig(kind="steps", factor=0.1, every_epochs=10, **length)
    rates = [
        learning_rate(steps, 1.0, at(step=3, share=share))
        for share in (0.3, 0.35, 0.65, 0.7, 1)
    ]
    assert rates == pytest.approx([1, 0.1, 0.1, 0.01, 0.001])


def test_constant_stays() -> None:
    constant = ScheduleConfig(kind="constant", steps=5)
    assert learning_rate(constant, 0.3, at(4)) == 0.3


def test_warm_up_rises_evenly_and_ends() -> None:
    warm = ScheduleConfig(kind="constant", steps=100, warmup_steps=3)
    rates = [learning_rate(warm, 1.0, at(step)) for step in range(5)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


def test_warm_up_of_a_slow_device_ends_with_a_twentieth_of_its_time() -> None:
    slow = ScheduleConfig(kind="constant", steps=5000, warmup_steps=999)
    rates = [
        learning_rate(slow, 1.0, at(step=9, share=s)) for s in (0, 0.025, 0.05, 0.5)
    ]
    assert rates == pytest.approx([0.01, 0.5, 1.0, 1.0])


def test_progress_by_steps_epochs_and_time() -> None:
    assert progress(ScheduleConfig(steps=40), at(step=10)) == 0.25
    assert progress(ScheduleConfig(epochs=4), at(step=10)) == 0.25
    assert progress(ScheduleConfig(steps=40), at(step=999, share=0.25)) == 0.25


def test_progress_ends_at_one() -> None:
    assert progress(ScheduleConfig(steps=8), at(step=9)) == 1


@pytest.mark.parametrize("lengths", [{}, {"steps": 1, "epochs": 1}])
def test_a_schedule_has_exactly_one_length(lengths: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="exactly one"):
        ScheduleConfig.model_validate(lengths)
