"""Overhead of the training loop: a step of ours against the same step in bare torch.

    scripts/bench train [--recipe manual] [--steps 20] [--rounds 3] [--threads 1]

The bare step is the minimum of any loop: forward and backward of the same network in the same
precision, with batch and gradient already in memory, and AdamW. A second variant adds torch's
own cross entropy. Our step is `Trainer.step` on a store of phantoms: slices read, cut and
augmented, the recipe's loss, its gradient clipping and its average. All take turns, step by
step, so that other work on the machine slows each alike. The time is broken down by the stages
of `trinat train --timings`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from trinat.pipelines.jobs.process import prepare_process
from trinat.pipelines.prepare.making import prepare_store
from trinat.pipelines.prepare.options import PrepareConfig
from trinat.pipelines.train.run import adapt_to_store, read_recipe
from trinat.segmentation import timing
from trinat.segmentation.data.splits import Split
from trinat.segmentation.data.store import SPLIT, Store
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.architectures import build
from trinat.segmentation.models.hardware import computing_in, training_layout
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.phantom import phantom
from trinat.segmentation.training.batches import StoreSource
from trinat.segmentation.training.config import Recipe
from trinat.segmentation.training.loop import Trainer
from trinat.segmentation.training.network import new_network

CPU = torch.device("cpu")


def make_store(root: Path) -> Path:
    """Write a store of two phantoms of 1 mm, as `trinat prepare` and `trinat split` write it."""
    for folder in ("images", "labels"):
        (root / folder).mkdir()
    for seed in range(2):
        scan, labels = phantom(seed)
        scan.write(root / "images" / f"phantom-{seed}.nii.gz")
        labels.write(root / "labels" / f"phantom-{seed}.nii.gz")
    store = root / "store"
    prepare_store(PrepareConfig(source="pairs", root=root, views=("coronal",)), store)
    opened = Store(store)
    Split(store=opened.fingerprint, seed=0, train=opened.subjects).write(store / SPLIT)
    return store


def our_step(recipe: Recipe) -> tuple[Trainer, Callable[[], object]]:
    """Return a trainer as `trinat train` makes it, and the function that runs one step of it."""
    stage = recipe.stages[0]
    scheme = load_scheme(recipe.scheme)
    assert stage.data.store is not None
    size = (stage.data.rows, stage.data.columns)
    source = StoreSource(
        stage.data.store, View.CORONAL, size, recipe.network.channels, 0, scheme
    )
    network = new_network(recipe.network, len(scheme))
    trainer = Trainer(recipe, stage, network, source, CPU)
    # Drawing in a thread would compete with the other loop while that is timed.
    trainer.draws_ahead = False
    return trainer, trainer.step


def bare_step(
    recipe: Recipe, precision: torch.dtype, *, with_loss: bool
) -> Callable[[], object]:
    """Return a step of the same network in a loop of three lines, on slices in memory.

    Without the loss, the gradient is in memory too.
    """
    stage = recipe.stages[0]
    scheme = load_scheme(recipe.scheme)
    torch.manual_seed(0)
    config = recipe.network.model_copy(update={"classes": len(scheme)})
    network = build(config).train()
    network.arrange(training_layout(CPU))
    optimiser = torch.optim.AdamW(network.parameters(), 1e-3)
    shape = (stage.batch, stage.data.rows, stage.data.columns)
    slices = torch.rand(shape)[:, None].expand(-1, config.channels, -1, -1)
    labels = torch.randint(0, len(scheme), shape)
    gradient = torch.rand(shape[0], len(scheme), *shape[1:]) / labels.numel()
    gradient = gradient.to(precision).contiguous(memory_format=training_layout(CPU))

    def step() -> None:
        with computing_in(precision, CPU):
            logits = network(slices)
        optimiser.zero_grad(set_to_none=True)
        if with_loss:
            cross_entropy(logits.float(), labels).backward()  # type: ignore[no-untyped-call]
        else:
            logits.backward(gradient)
        optimiser.step()

    return step


def run(*arguments: str) -> None:
    """Print the median of both steps, their ratio in each round, and the stages of our step."""
    parser = argparse.ArgumentParser(prog="scripts/bench train", description=__doc__)
    parser.add_argument("--recipe", default="manual")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--steps", type=int, default=20, help="of each, in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(arguments)
    prepare_process(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder))
        recipe = adapt_to_store(read_recipe(given.recipe, given.set, store), store)
        trainer, ours = our_step(recipe)
        steps = {
            "bare": bare_step(recipe, trainer.precision, with_loss=False),
            "with cross entropy": bare_step(recipe, trainer.precision, with_loss=True),
            "ours": ours,
        }
        for step in steps.values():
            step()
        clock = timing.Clock()
        ratios = []
        print(f"{given.recipe}, {trainer.precision}, load {os.getloadavg()[0]:.1f}")
        for _ in range(given.rounds):
            taken: dict[str, list[float]] = {name: [] for name in steps}
            for _ in range(given.steps):
                for name, step in steps.items():
                    with timing.timed(clock) if name == "ours" else nullcontext():
                        taken[name].append(processor_seconds(step))
            seconds = {name: statistics.median(times) for name, times in taken.items()}
            ratios.append(seconds["bare"] / seconds["ours"])
            shown = ", ".join(f"{name} {1e3 * s:.0f} ms" for name, s in seconds.items())
            print(f"{shown}: {ratios[-1]:.0%}", flush=True)
        print(f"median of {given.rounds} rounds: {statistics.median(ratios):.0%}")
        count = given.rounds * given.steps
        for name, (_, processor) in clock.take().items():
            if name:
                print(f"{name:10} {1e3 * processor / count:7.1f} ms a step")


def processor_seconds(step: Callable[[], object]) -> float:
    """Return the processor seconds of a step in this process with all its threads.

    Other work on the machine does not count.
    """
    began = time.process_time()
    step()
    return time.process_time() - began
