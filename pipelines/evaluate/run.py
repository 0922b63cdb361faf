"""trinat evaluate: predictions against truths, as tables and as a report."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from trinat.pipelines.common.exits import Exit, batch_exit
from trinat.pipelines.common.lock import claimed, refuse_foreign
from trinat.pipelines.common.process import cpu_count
from trinat.pipelines.evaluate.gather import Settings, gather, named_models, plan_tasks
from trinat.pipelines.evaluate.pairing import (
    Done,
    measure_all,
)
from trinat.pipelines.evaluate.publish import OUTPUTS, publish
from trinat.segmentation.errors import ConfigError

__all__ = ["Settings", "evaluate", "named_models"]


def evaluate(
    settings: Settings,
    *,
    progress: Callable[[Done, int, int], object] = lambda result, done, total: None,
    say: Callable[[str], None] = lambda line: None,
) -> Exit:
    """Measure every pair, write the tables and the report; failures are in both.

    `progress(result, done, total)` is called after each pair, `say` with a line for each file
    that was not measured.
    """
    started = datetime.now(UTC)
    if settings.jobs is not None and settings.jobs < 1:
        raise ConfigError(f"{settings.jobs} jobs: use at least 1")
    refuse_foreign(settings.out, OUTPUTS)
    inputs = gather(settings, say)
    settings = inputs.settings
    tasks = plan_tasks(inputs)
    done = [
        Done(task, failure=inputs.unfit[task.pair.prediction.path])
        for task in tasks
        if task.pair.prediction.path in inputs.unfit
    ]
    fit = [task for task in tasks if task.pair.prediction.path not in inputs.unfit]
    done += measure_all(fit, settings.jobs or cpu_count(), progress)
    with claimed(settings.out, OUTPUTS, within=["figures"]):
        publish(inputs, done, started, say)
    unpaired = sum(len(pairing.truths_alone) for pairing in inputs.pairings.values())
    failed = sum(bool(result.failure) for result in done)
    return batch_exit(done=len(done) - failed, failed=failed + unpaired)
