"""The training loop: batches in, weights out."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trinat.segmentation import timing
from trinat.segmentation.errors import DeviceError, TrainingError, TrinatError
from trinat.segmentation.models.base import Network
from trinat.segmentation.models.hardware import (
    computing_in,
    half_precision,
    training_layout,
    widest_float,
)
from trinat.segmentation.models.losses import build_loss
from trinat.segmentation.training.batches import Batch, BatchSource
from trinat.segmentation.training.config import Recipe, StageConfig
from trinat.segmentation.training.memory import smaller_batch
from trinat.segmentation.training.network import (
    build_optimiser,
    load_optimiser,
    optimiser_tensors,
    update_average,
)
from trinat.segmentation.training.state import (
    Counters,
    Position,
    State,
    learning_rate,
    progress,
    seeded,
)

# Number of batches announced to the source in advance, since a disk may be slow at times.
AHEAD = 4


@dataclass(frozen=True)
class StepReport:
    """Outcome of a training step.

    `rate` is the learning rate, `gradient_norm` the norm before clipping, `seconds` the duration.
    The step was skipped if `loss` or `gradient_norm` is NaN or infinite. `slices` counts the slices
    of all batches of the step.
    """

    step: int
    epoch: int
    loss: float
    rate: float
    gradient_norm: float
    seconds: float
    slices: int


@dataclass(frozen=True, eq=False)
class _DoneBatch:
    """A batch after its backward pass; `loss` is a scalar."""

    loss: Tensor
    batch: Batch


class Trainer:
    """Training of one stage: the network of a view, its optimiser and counters.

    A running average of the network's weights is updated in each step.
    """

    def __init__(
        self,
        recipe: Recipe,
        stage: StageConfig,
        network: Network,
        source: BatchSource,
        device: torch.device,
    ) -> None:
        """Move the network to the device and prepare step 0.

        `stage` is a stage of the recipe. `source` has batches of the view of the network.
        """
        self.recipe = recipe
        self.stage = stage
        self.source = source
        self.device = device
        self.network = network.to(device)
        self.network.arrange(training_layout(device))
        self.average = copy.deepcopy(self.network).eval().requires_grad_(False)
        self.optimiser = build_optimiser(self.network, stage.optimiser)
        self.loss = build_loss(stage.loss, source.counts()).to(device)
        self.precision = precision_of(stage, device)
        # Small gradients would underflow to 0 in float16.
        self.scaler = torch.amp.GradScaler(
            device.type, enabled=self.precision == torch.float16
        )
        self.counters = Counters()
        slices_of_epoch = stage.data.epoch_slices or source.slices()
        slices_of_step = stage.batch * stage.accumulate
        self.epoch_steps = max(1, slices_of_epoch // slices_of_step)
        # Reason why the network is not compiled although the stage asks for it; the job clears it
        # once it is logged.
        self.not_compiled = ""
        # Excludes the classifier, so that all views share one compiled graph.
        self._compiled: Callable[[Tensor], Tensor] | None = None
        if stage.compile:
            self._compiled = torch.compile(self.network.features)
        # The next batch is drawn during a step: on a GPU while the loss is computed, on CPUs in a
        # thread.
        self._thread: ThreadPoolExecutor | None = None
        if device.type == "cpu" and source.may_draw_in_thread:
            self._thread = ThreadPoolExecutor(1)
        self.draws_ahead = device.type != "cpu" or source.may_draw_in_thread
        # At most one batch that was drawn ahead, by its number.
        self._drawn: dict[int, Future[Batch]] = {}

    @property
    def position(self) -> Position:
        """Number of steps made in this stage and of steps in an epoch, for the learning rate."""
        return Position(self.counters.step, self.epoch_steps, self.counters.share)

    @property
    def progress(self) -> float:
        """Progress of the stage, from 0 at the start to 1 at the end."""
        return progress(self.stage.schedule, self.position)

    @property
    def best_weights(self) -> Network:
        """Weights for validation and shipping: the running average, if there is one."""
        return self.average if self.stage.ema else self.network

    def state(self, identity: Mapping[str, Any]) -> State:
        """Return everything from which the training can be resumed: weights, optimiser, counters.

        The tensors are shared with the trainer: write the state before the next step, which changes
        them. `identity` has the settings of the stage and the hash of its data.
        """
        return State(
            counters=copy.copy(self.counters),
            identity=identity,
            network=self.network.state_dict(),
            average=self.average.state_dict(),
            optimiser=optimiser_tensors(self.network, self.optimiser),
            scaler={
                name: torch.tensor(value)
                for name, value in self.scaler.state_dict().items()
            },
        )

    def load(self, state: State) -> None:
        """Resume from `state`."""
        self.network.load_state_dict(state.network)
        self.average.load_state_dict(state.average)
        load_optimiser(self.network, self.optimiser, state.optimiser)
        if state.scaler:
            scaler = {name: value.item() for name, value in state.scaler.items()}
            self.scaler.load_state_dict(scaler)
        self.counters = copy.copy(state.counters)

    @timing.stage("optimiser")
    def step(self) -> StepReport:
        """Make one training step and report it.

        The step is skipped if the loss or the gradient is NaN or infinite: the weights do not
        change. Raises TrainingError after too many skipped steps in a row, DeviceError if the
        device is out of memory, and the errors of the source.
        """
        began = time.perf_counter()
        # The rate of the whole network; each part has its own multiple of it.
        rate = learning_rate(
            self.stage.schedule, self.stage.optimiser.rate, self.position
        )
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["multiple"]
        self.network.train()
        for part, multiple in self.stage.optimiser.parts.items():
            # Frozen parts keep the statistics of their norms, too.
            if multiple == 0 and part != "classifier":
                getattr(self.network, part).eval()
        # A bad batch would otherwise persist in the running statistics of the norms.
        statistics = [buffer.clone() for buffer in self.network.buffers()]
        parts = self._all_gradients(statistics)
        loss, norm = self._clip_gradients(parts)
        if math.isfinite(loss) and math.isfinite(norm):
            self.optimiser.step()
            update_average(
                self.average, self.network, self.stage.ema, self.counters.step
            )
            self.counters.bad_in_a_row = 0
        else:
            self._skip(statistics, parts)
        self.scaler.update()
        self.counters.step += 1
        seconds = time.perf_counter() - began
        self.counters.seconds += seconds
        return StepReport(
            step=self.counters.step,
            epoch=self.position.epoch,
            loss=loss,
            rate=rate,
            gradient_norm=norm,
            seconds=seconds,
            slices=self.stage.batch * self.stage.accumulate,
        )

    def _all_gradients(self, statistics: list[Tensor]) -> list[_DoneBatch]:
        """Compute the gradients of a step, summed over its batches; return slices and loss of each.

        `statistics` are copies of the network's buffers, which are restored after an error.
        """
        self.optimiser.zero_grad(set_to_none=True)
        first = self.counters.step * self.stage.accumulate
        after = first + self.stage.accumulate
        try:
            return [self._backward(number) for number in range(first, after)]
        except TrinatError:
            # After a read error or out of memory the state is still the state of the last step.
            self._restore(statistics)
            raise

    def _clip_gradients(self, parts: Sequence[_DoneBatch]) -> tuple[float, float]:
        """Clip the gradients; return the mean loss of the step and the norm before clipping.

        `parts` has the loss of each batch of the step.
        """
        parameters = [p for p in self.network.parameters() if p.requires_grad]
        for parameter in parameters:
            # The gate of a dense bottleneck is never applied; its weights only decay.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        wide = widest_float(self.device)
        loss = torch.stack([part.loss for part in parts]).to(wide).mean()
        self.scaler.unscale_(self.optimiser)
        norm = nn.utils.clip_grad_norm_(parameters, self.stage.optimiser.clip)
        # Both numbers are read in a single synchronisation.
        both = torch.stack((loss.to(wide), norm.to(wide)))
        loss_value, norm_value = both.tolist()
        return loss_value, norm_value

    def _draw(self, number: int) -> Batch:
        """Return batch `number`; its random numbers are computed from this number."""
        generator = self._generator(number)
        slices = self.stage.batch
        with self._within_memory():
            return self.source.draw(number * slices, slices, generator)

    def _draw_ahead(self, number: int) -> None:
        """Draw batch `number` before it is needed: in the thread, if there is one."""
        if self._thread:
            drawn = self._thread.submit(self._draw, number)
        else:
            drawn = Future()
            with timing.stage("batches"):
                drawn.set_result(self._draw(number))
        self._drawn = {number: drawn}

    def _backward(self, number: int) -> _DoneBatch:
        """Draw batch `number`, compute its loss, and add its gradients to those of the step."""
        # A batch that was or is being drawn ahead is not announced to the source again.
        is_drawn = number in self._drawn
        slices = self.stage.batch
        for later in range(number + is_drawn, number + AHEAD + 1):
            self.source.expect(later * slices, slices)
        with timing.stage("batches"):
            # The batch may have been drawn ahead.
            ahead = self._drawn.pop(number, None)
            batch = self._draw(number) if ahead is None else ahead.result()
        if self.draws_ahead and self._thread:
            self._draw_ahead(number + 1)
        # Dropout uses torch's global generator, which nothing else depends on.
        torch.manual_seed(self._generator(number).initial_seed())
        with self._within_memory():
            loss = self._loss(batch)
            with timing.stage("backward"):
                self.scaler.scale(loss / self.stage.accumulate).backward()  # type: ignore[no-untyped-call]
        if self.draws_ahead and not self._thread:
            self._draw_ahead(number + 1)
        return _DoneBatch(loss.detach(), batch)

    def _loss(self, batch: Batch) -> Tensor:
        """Return the mean loss over the slices of a batch."""
        with timing.stage("transfer"):
            images = batch.images.to(self.device, non_blocking=True)
            labels = batch.labels.to(self.device, non_blocking=True)
        with timing.stage("forward"), computing_in(self.precision, self.device):
            logits = self._forward(images)
        with timing.stage("loss"):
            loss: Tensor = self.loss(logits, labels)
            return loss

    def _generator(self, number: int) -> torch.Generator:
        """Return the random number generator of batch `number`."""
        # With other constants, an earlier run would be resumed with other numbers.
        return seeded(self.device, self.recipe.seed, 1, number, 0)

    @contextmanager
    def _within_memory(self) -> Iterator[None]:
        """Raise DeviceError with a smaller batch as its remedy if the device runs out of memory."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            data = self.stage.data
            size = (self.recipe.network.channels, data.rows, data.columns)
            slices = self.stage.batch
            # With a divisor of the batch, a step can have as many slices as before.
            divisors = [n for n in range(1, slices) if slices % n == 0]
            smaller = max(divisors, default=0)
            raise DeviceError(
                f"out of memory with a batch of {slices} slices of {size}",
                where=str(self.device),
                remedy=smaller_batch(slices, self.stage.accumulate, smaller),
            ) from error

    def _forward(self, images: Tensor) -> Tensor:
        """Return the logits of slices; continue without the compiler if compilation fails."""
        if self._compiled is None:
            logits: Tensor = self.network(images)
            return logits
        try:
            return self.network.classify(self._compiled(images), images)
        except Exception as error:
            # Imported here because it takes seconds.
            from torch._dynamo.exc import TorchDynamoException

            if not isinstance(error, TorchDynamoException):
                raise
            self._compiled = None
            # The first two lines name the cause; pages of advice follow.
            self.not_compiled = " ".join(str(error).split("\n")[:2])
            return self._forward(images)

    def _restore(self, statistics: list[Tensor]) -> None:
        """Set the network's buffers to the values in `statistics`."""
        for buffer, before in zip(self.network.buffers(), statistics, strict=True):
            buffer.copy_(before)

    def _skip(self, statistics: list[Tensor], parts: list[_DoneBatch]) -> None:
        """Restore the buffers and count a skipped step.

        `parts` are the batches of the step. Raises TrainingError after too many skipped steps in a
        row.
        """
        self._restore(statistics)
        self.counters.bad += 1
        self.counters.bad_in_a_row += 1
        if self.counters.bad_in_a_row < self.stage.max_bad_steps:
            return
        suspects = [part for part in parts if not math.isfinite(float(part.loss))]
        if not suspects:
            # All losses are finite but the gradient is not, so any slice may be the cause.
            suspects = parts
        slices = "; ".join(part.batch.what for part in suspects)
        raise TrainingError(
            f"the loss was not a number in {self.counters.bad_in_a_row} steps in a row, the last "
            f"at step {self.counters.step} with {slices}",
            remedy="lower optimiser.rate, or check those slices",
        )


def precision_of(stage: StageConfig, device: torch.device) -> torch.dtype:
    """Return the precision of a stage's forward pass; "auto" means the device's fastest."""
    if stage.precision == "auto":
        return half_precision(device) or torch.float32
    precision: torch.dtype = getattr(torch, stage.precision)
    return precision
