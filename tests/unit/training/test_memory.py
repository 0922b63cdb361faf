"""Memory of a step, from shapes alone, and the largest batch that fits."""

from __future__ import annotations

from trinat.segmentation.models.quicknat import QuickNatConfig
from trinat.segmentation.training.memory import StepMemory, smaller_batch

SMALL = QuickNatConfig(filters=8, kernel=3, depth=2)


def test_what_a_step_takes_grows_with_its_slices_and_their_area() -> None:
    small, large = StepMemory.of(SMALL, (32, 32)), StepMemory.of(SMALL, (64, 64))
    assert small.fixed == large.fixed > 0
    # Memory per channel, rather than per pixel, is small.
    assert 3.9 < large.each / small.each < 4
    assert large.needed(3) == large.fixed + 3 * large.each


def test_bfloat16_takes_half() -> None:
    whole = StepMemory.of(SMALL, (32, 32))
    half = StepMemory.of(SMALL, (32, 32), bfloat16=True)
    assert abs(half.each - whole.each / 2) <= 1


def test_the_largest_batch_divides_the_wanted_one() -> None:
    step = StepMemory(fixed=100, each=10)
    assert step.largest_batch(12, 220) == 12
    assert step.largest_batch(12, 219) == 6
    assert step.largest_batch(12, 110) == 1
    assert step.largest_batch(12, 109) == 0


def test_a_smaller_batch_steps_over_as_many_slices() -> None:
    said = smaller_batch(32, 2, 8)
    assert said.startswith("set batch to 8 and accumulate to 8:")
    assert "batch norms see 8 at a time" in said
