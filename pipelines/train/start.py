"""Where a training job starts from: its first weights, or the state that it was stopped in."""

from __future__ import annotations

from typing import Any

import torch

from trinat.pipelines.train.job import JobRun
from trinat.pipelines.train.result import first_weights
from trinat.segmentation.errors import TrainingError
from trinat.segmentation.models.zoo import find_model, licence_notice
from trinat.segmentation.space.views import View
from trinat.segmentation.training import state as states
from trinat.segmentation.training.loop import Trainer
from trinat.segmentation.training.network import ViewsNet, copy_matching


def first_network(run: JobRun) -> ViewsNet:
    """A network for the job's views with its first weights.

    They are those of the stage before, of a model, or random by the recipe's seed.

    Only the leader's has them; the others get the leader's state before their first step.
    """
    torch.manual_seed(run.recipe.seed)
    classes = {view: len(run.scheme.seen_in(view)) for view in run.job.views}
    network = ViewsNet(run.recipe.network, classes)
    if run.workers.leads:
        for view in run.job.views:
            _copy_first_weights(run, network, view)
    return network


def _copy_first_weights(run: JobRun, network: ViewsNet, view: View) -> None:
    """Copy what the stage before, or a model, has for a view; the rest stays random."""
    stage = run.job.stage
    first = first_weights(run.recipe, stage, view, run.out, run.watcher.say)
    if first is None:
        return
    source, source_scheme = first
    scheme = run.scheme.seen_in(view)
    kept, random = copy_matching(network, view, source, source_scheme, scheme)
    if stage.start is None:
        return
    line = (
        f"{run.job.name}: {view.value} starts with the model's weights for "
        f"{kept} of {len(scheme)} classes"
    )
    if random:
        line += f"; random weights: {', '.join(random)}"
    run.watcher.say(line)
    if notice := licence_notice(find_model(stage.start)):
        run.watcher.say(notice)


def resume(
    run: JobRun,
    trainer: Trainer,
    identity: dict[str, Any],
    *,
    by_time: bool,
) -> None:
    """Load the newest sound state of the job's folder into the trainer, if there is one.

    Raises TrainingError where the state is of another job, or where it was trained by time and
    the rest is not (`by_time`).
    """
    state, problems = states.read_latest(run.folder)
    instead = "the state before it is used"
    if state is None:
        instead = "no sound one is left, the job starts again"
    for problem in problems:
        run.watcher.say(f"{problem}: {instead}")
    if state is None:
        return
    states.check_identity(state.identity, identity, run.folder)
    share = state.counters.share
    if not by_time and share is not None and share < 1:
        what = f"{share:.0%} of its schedule are done, by time and not by steps"
        remedy = "--resume --seconds N does the rest in N seconds"
        raise TrainingError(what, where=run.folder, remedy=remedy)
    trainer.load(state)
    run.watcher.say(f"{run.job.name}: goes on at step {state.counters.step}")
