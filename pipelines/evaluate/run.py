"""trinat evaluate: predictions against truths, as tables and as a report."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from trinat.pipelines.common.exits import Exit, batch_exit
from trinat.pipelines.common.lock import claimed, refuse_foreign
from trinat.pipelines.common.process import cpu_count
from trinat.pipelines.evaluate.gather import (
    EvaluationSettings,
    Inputs,
    gather,
    named_models,
    plan_tasks,
)
from trinat.pipelines.evaluate.measuring import Done, measure_all
from trinat.pipelines.evaluate.publish import OUTPUTS, publish
from trinat.segmentation.errors import ConfigError

__all__ = ["EvaluationSettings", "evaluate_predictions", "named_models"]

Progress = Callable[[Done, int, int], object]


def evaluate_predictions(
    settings: EvaluationSettings,
    *,
    progress: Progress = lambda result, done, total: None,
    say: Callable[[str], None] = lambda line: None,
) -> Exit:
    """Measure every pair, write the tables and the report; failures are in both.

    `progress(result, done, total)` is called after each pair, `say` with a line for each file
    that was not measured. A truth without a prediction counts as a failure in the exit status.
    """
    started = datetime.now(UTC)
    if settings.jobs is not None and settings.jobs < 1:
        raise ConfigError(f"{settings.jobs} jobs: use at least 1")
    refuse_foreign(settings.out, OUTPUTS)
    inputs = gather(settings, say)
    done = _measure(inputs, progress)
    with claimed(settings.out, OUTPUTS, within=["figures"]):
        publish(inputs, done, started, say)
    unpaired = sum(len(pairing.truths_alone) for pairing in inputs.pairings.values())
    failed = sum(bool(result.failure) for result in done)
    return batch_exit(done=len(done) - failed, failed=failed + unpaired)


def _measure(inputs: Inputs, progress: Progress) -> list[Done]:
    """Each pair's result: first those with an unfit prediction, then those that are measured."""
    unfit = []
    fit = []
    for task in plan_tasks(inputs):
        reason = inputs.unfit.get(task.pair.prediction.path)
        if reason is None:
            fit.append(task)
        else:
            unfit.append(Done(task, failure=reason))
    jobs = inputs.settings.jobs or cpu_count()
    return unfit + measure_all(fit, jobs, progress)
