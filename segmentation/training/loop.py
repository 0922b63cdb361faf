"""The training loop: batches in, weights out."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from trinat.segmentation import timing
from trinat.segmentation.errors import DeviceError, TrainingError, TrinatError
from trinat.segmentation.models.hardware import bfloat16_hardware, training_layout
from trinat.segmentation.models.losses import build_loss
from trinat.segmentation.space.views import View
from trinat.segmentation.training.batches import Batch, Source, SyntheticSource
from trinat.segmentation.training.config import Recipe, StageConfig
from trinat.segmentation.training.memory import smaller_batch
from trinat.segmentation.training.network import ViewsNet, update_average
from trinat.segmentation.training.state import (
    Counters,
    Position,
    State,
    learning_rate,
    progress,
    seeded,
)
from trinat.segmentation.training.workers import ALONE, Workers

# Batches announced to the source beside the present one, since a disk may be slow at times.
AHEAD = 4


@dataclass(frozen=True)
class StepReport:
    """What one step did; `loss` is NaN where the step was skipped."""

    step: int
    epoch: int
    loss: float
    rate: float
    gradient_norm: float
    seconds: float
    slices: int


class Trainer:
    """One stage of training for some views: a network, its average, its optimiser, its counters."""

    def __init__(
        self,
        recipe: Recipe,
        stage: StageConfig,
        views: Sequence[View],
        network: ViewsNet,
        source: Source,
        device: torch.device,
        workers: Workers = ALONE,
    ) -> None:
        if stage.batch % workers.count:
            raise TrainingError(
                f"a batch of {stage.batch} cannot be divided among {workers.count} processes"
            )
        self.recipe, self.stage, self.views = recipe, stage, tuple(views)
        self.source, self.device, self.workers = source, device, workers
        self.network = network.to(device)
        self.network.trunk.arrange(training_layout(device))
        self.average = copy.deepcopy(self.network).eval().requires_grad_(False)
        if workers.count > 1 and device.type == "cuda":
            # Norms see the whole batch; for tensors on a CPU torch has no such norm.
            self.network = nn.SyncBatchNorm.convert_sync_batchnorm(self.network)  # type: ignore[no-untyped-call]
        self.optimiser = _build_optimiser(self.network, stage)
        self.losses = {
            v: build_loss(stage.loss, source.counts(v)).to(device) for v in self.views
        }
        auto = stage.precision == "auto" and bool(bfloat16_hardware(device))
        self.bf16 = auto or stage.precision == "bfloat16"
        self.counters = Counters()
        self.epoch_steps = max(
            1,
            stage.data.epoch_slices
            * len(self.views)
            // (stage.batch * stage.accumulate),
        )
        self.not_compiled = ""  # why, where it should be
        # Without the classifiers, so that all views have one graph, and find it compiled.
        self._trunk: Callable[[Tensor], Tensor] | None = (
            torch.compile(self.network.trunk.features) if stage.compile else None
        )
        # The next synthetic slices are made during a step: by a GPU while the step's loss is waited
        # for, on processors in a thread of their own.
        self.synthesises_ahead = isinstance(source, SyntheticSource)
        self._thread = ThreadPoolExecutor(1) if device.type == "cpu" else None
        self._drawn: dict[int, Future[list[Batch]]] = {}

    @property
    def position(self) -> Position:
        return Position(self.counters.step, self.epoch_steps, self.counters.share)

    @property
    def progress(self) -> float:
        return progress(self.stage.schedule, self.position)

    @property
    def best_weights(self) -> ViewsNet:
        """What is validated and shipped: the average, where there is one."""
        return self.average if self.stage.ema else self.network

    def state(self, identity: Mapping[str, Any]) -> State:
        """Where the stage stands, tensors shared with it."""
        weights = self.network.state_dict(), self.average.state_dict()
        optimiser = _optimiser_tensors(self.network, self.optimiser)
        return State(copy.copy(self.counters), identity, *weights, optimiser)

    def load(self, state: State) -> None:
        """Go on where `state` stands."""
        self.network.load_state_dict(state.network)
        self.average.load_state_dict(state.average)
        _load_optimiser(self.network, self.optimiser, state.optimiser)
        self.counters = copy.copy(state.counters)

    @timing.stage("optimiser")
    def step(self) -> StepReport:
        """Get a batch, go forward and backward, update; a NaN or infinite loss changes nothing."""
        began = time.perf_counter()
        rate = learning_rate(
            self.stage.schedule, self.stage.optimiser.rate, self.position
        )
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["multiple"]
        self._train_mode()
        # A bad batch would stay in the running statistics of the norms.
        statistics = [buffer.clone() for buffer in self.network.buffers()]
        self.optimiser.zero_grad(set_to_none=True)
        first = self.counters.step * self.stage.accumulate
        after = first + self.stage.accumulate
        try:
            parts = [self._backward(number) for number in range(first, after)]
        except TrinatError:
            # After a read error or out of memory the state is still that of the last step.
            self._restore(statistics)
            raise
        parameters = [p for p in self.network.parameters() if p.requires_grad]
        for parameter in parameters:
            # A view that this batch had no slice of; other processes may have had one.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        mean = torch.stack([loss for loss, _ in parts]).double().mean()
        mean = self.workers.average(parameters, mean)
        norms = nn.utils.clip_grad_norm_(parameters, self.stage.optimiser.clip)
        # One synchronisation: both numbers are read at once.
        total, norm = torch.stack((mean.double(), norms.double())).tolist()
        if math.isfinite(total) and math.isfinite(norm):
            self.optimiser.step()
            update_average(
                self.average, self.network, self.stage.ema, self.counters.step
            )
            self.counters.bad_in_a_row = 0
        else:
            self._skip(statistics, parts)
        self.counters.step += 1
        seconds = time.perf_counter() - began
        self.counters.seconds += self.workers.largest(seconds)
        step, epoch = self.counters.step, self.position.epoch
        slices = self.stage.batch * self.stage.accumulate
        return StepReport(step, epoch, total, rate, norm, seconds, slices)

    def _train_mode(self) -> None:
        """Frozen parts keep the statistics of their norms, too."""
        self.network.train()
        for part, multiple in self.stage.optimiser.parts.items():
            if multiple == 0 and part != "classifier":
                getattr(self.network.trunk, part).eval()

    def _draw(self, number: int) -> list[Batch]:
        """Batch `number`, for each view that is in it; its random numbers are its own."""
        generator = self._generator(number)
        with self._within_memory():
            return [
                self.source.draw(*group, generator) for group in self._groups(number)
            ]

    def _draw_ahead(self, number: int) -> None:
        if self._thread:
            self._drawn = {number: self._thread.submit(self._draw, number)}
        else:
            self._drawn = {number: Future()}
            with timing.stage("batches"):
                self._drawn[number].set_result(self._draw(number))

    def _generator(self, number: int) -> torch.Generator:
        return seeded(self.device, self.recipe.seed, 1, number, self.workers.rank)

    def _backward(self, number: int) -> tuple[Tensor, list[Batch]]:
        """Add one batch's gradients; returns its loss and what it was made of."""
        for later in range(number, number + AHEAD + 1):
            for group in self._groups(later):
                self.source.expect(*group)
        share, groups = self.stage.batch // self.workers.count, self._groups(number)
        with timing.stage("batches"):
            ahead = self._drawn.pop(number, None)
            batches = ahead.result() if ahead else self._draw(number)
        if self.synthesises_ahead and self._thread:
            self._draw_ahead(number + 1)
        # Dropout uses torch's global generator, which nothing else depends on.
        torch.manual_seed(self._generator(number).initial_seed())
        counts = [(view, count) for view, _, count in groups]
        with self._within_memory():
            with timing.stage("transfer"):
                images = torch.cat([batch.images for batch in batches])
                images = images.to(self.device, non_blocking=True)
                labels = [batch.labels.to(self.device) for batch in batches]
            with timing.stage("forward"):
                with torch.autocast(
                    self.device.type, torch.bfloat16, enabled=self.bf16
                ):
                    logits = self._forward(images, counts)
                losses = [
                    self.losses[view](z, y) * (count / share)
                    for (view, count), z, y in zip(counts, logits, labels, strict=True)
                ]
                loss = torch.stack(losses).sum()
            with timing.stage("backward"):
                (loss / self.stage.accumulate).backward()  # type: ignore[no-untyped-call]
        if self.synthesises_ahead and not self._thread:
            self._draw_ahead(number + 1)
        return loss.detach(), batches

    @contextmanager
    def _within_memory(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError as error:
            share = self.stage.batch // self.workers.count
            size = (
                self.recipe.network.channels,
                self.stage.data.rows,
                self.stage.data.columns,
            )
            raise DeviceError(
                f"out of memory with a batch of {share} slices of {size}",
                where=str(self.device),
                remedy=self._smaller(share),
            ) from error

    def _smaller(self, share: int) -> str:
        """The settings for the next smaller batch, with as many slices to a step."""
        if share == 1:
            return "set data.rows and data.columns, or network.filters, lower"
        fits = max(n for n in range(1, share) if share % n == 0)
        return smaller_batch(
            self.stage.batch, self.stage.accumulate, fits * self.workers.count
        )

    def _groups(self, number: int) -> list[tuple[View, int, int]]:
        """This process's slices of a batch: for each view the first and how many."""
        share = self.stage.batch // self.workers.count
        return _divide(
            number * self.stage.batch + self.workers.rank * share, share, self.views
        )

    def _forward(self, images: Tensor, counts: list[tuple[View, int]]) -> list[Tensor]:
        """Logits of each view's slices; uncompiled if the compiler fails."""
        try:
            return cast("list[Tensor]", self.network(images, counts, self._trunk))
        except Exception as error:
            if not self.stage.compile:
                raise
            # It takes seconds to import.
            from torch._dynamo.exc import TorchDynamoException

            if not isinstance(error, TorchDynamoException):
                raise
            self._trunk = None
            # The first two lines name the cause; pages of advice follow.
            self.not_compiled = " ".join(str(error).split("\n")[:2])
            return cast("list[Tensor]", self.network(images, counts))

    def _restore(self, statistics: list[Tensor]) -> None:
        for buffer, before in zip(self.network.buffers(), statistics, strict=True):
            buffer.copy_(before)

    def _skip(
        self, statistics: list[Tensor], parts: list[tuple[Tensor, list[Batch]]]
    ) -> None:
        self._restore(statistics)
        self.counters.bad += 1
        self.counters.bad_in_a_row += 1
        if self.counters.bad_in_a_row < self.stage.max_bad_steps:
            return
        # All processes come here together, since they use the mean of their losses.
        own = [
            (float(loss), "; ".join(batch.what for batch in batches))
            for loss, batches in parts
        ]
        of_all = [part for theirs in self.workers.gather(own) for part in theirs]
        # If all losses are finite and a gradient is not, it may have been any slice.
        suspects = [what for loss, what in of_all if not math.isfinite(loss)]
        raise TrainingError(
            f"the loss was not a number in {self.counters.bad_in_a_row} steps in a row, the last "
            f"at step {self.counters.step} with {'; '.join(suspects or [w for _, w in of_all])}",
            remedy="lower optimiser.rate, or check those slices",
        )


def _divide(
    first: int, count: int, views: Sequence[View]
) -> list[tuple[View, int, int]]:
    """Slices first..first+count-1 of a run, dealt to the views in turn.

    -> for each view that gets any: the number of its first slice, counted in that view, and how
    many. Over a few steps all views get the same, whatever the batch.
    """
    groups = []
    for place, view in enumerate(views):
        # Of the run's slices before n, the view has had those that leave `place` divided by V.
        before, after = (
            (n - place + len(views) - 1) // len(views) for n in (first, first + count)
        )
        if after > before:
            groups.append((view, before, after - before))
    return groups


def _build_optimiser(network: ViewsNet, stage: StageConfig) -> torch.optim.Optimizer:
    config = stage.optimiser
    groups = []
    for part in ("encoders", "bottleneck", "decoders", "classifier"):
        multiple = config.parts.get(part, 1.0)
        members = [p for owner, _, p in network.part_parameters() if owner == part]
        if multiple == 0:
            for parameter in members:
                parameter.requires_grad_(False)
        else:
            groups.append({"params": members, "multiple": multiple})
    if config.kind == "sgd":
        return torch.optim.SGD(
            groups,
            config.rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
    # On a GPU all of it in one kernel, or each small one would be waited for.
    fused = all(p.is_cuda for p in network.parameters()) or None
    return torch.optim.AdamW(
        groups, config.rate, weight_decay=config.weight_decay, fused=fused
    )


def _optimiser_tensors(
    network: ViewsNet, optimiser: torch.optim.Optimizer
) -> dict[str, Tensor]:
    """What the optimiser remembers of each parameter, by the parameter's name."""
    return {
        f"{name}/{key}": torch.as_tensor(value)
        for name, parameter in network.named_parameters()
        for key, value in optimiser.state.get(parameter, {}).items()
        if value is not None
    }


def _load_optimiser(
    network: ViewsNet, optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    parameters = dict(network.named_parameters())
    optimiser.state.clear()
    for path, value in tensors.items():
        name, key = path.rsplit("/", 1)
        parameter = parameters[name]
        # Tensors of the parameter's shape get its memory format; Adam's step its device, if fused.
        where = parameter.device if optimiser.defaults.get("fused") else value.device
        empty = (
            torch.empty_like(parameter)
            if value.ndim
            else torch.empty_like(value, device=where)
        )
        optimiser.state[parameter][key] = empty.copy_(value)
