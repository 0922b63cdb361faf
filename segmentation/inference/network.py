"""Networks on a device: batches of slices to probabilities, within the available memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trinat.segmentation.errors import DeviceError
from trinat.segmentation.models.architectures import Ensemble
from trinat.segmentation.models.base import Network
from trinat.segmentation.models.checkpoint import Model
from trinat.segmentation.models.hardware import (
    GPU,
    bfloat16_hardware,
    free_gpu_memory,
    refuse_forked_gpu,
)
from trinat.segmentation.space.views import SliceAxes, View, to_slices

_T = TypeVar("_T")

ComputePrecision = Literal["auto", "float32", "bfloat16", "float16"]

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
# Keeps a class that the model was never trained on from winning by chance.
_NEVER = -1e4
# Batch size for slices of the working grid. Larger ones are not faster on a processor, and fill its
# caches and memory: networks with more filters than these get fewer.
_BATCH = {"cpu": 4, GPU: 32}
_FILTERS = {"cpu": 32, GPU: 64}


def choose_precision(name: ComputePrecision, device: torch.device) -> torch.dtype:
    """Return the number type to compute in.

    "auto" is bfloat16 if the device computes in it, else float32; float16 is for GPUs only.
    """
    if name == "float16" and device.type == "cpu":
        raise DeviceError(
            "processors do not compute in float16", remedy="use bfloat16 or float32"
        )
    if name == "auto":
        if bfloat16_hardware(device):
            return torch.bfloat16
        return torch.float32
    if name not in _DTYPES:
        raise DeviceError(
            f"{name!r} is no precision", remedy=f"use auto, {', '.join(_DTYPES)}"
        )
    return _DTYPES[name]


class SliceProbabilities(NamedTuple):
    """Probabilities (N, H, W, K) float32 of some slices of a view, within rows and columns.

    The slices are `first`, `first + every`, `first + 2 every`, ...
    """

    first: int
    rows: slice
    columns: slice
    probabilities: Tensor
    every: int = 1

    @property
    def slices(self) -> slice:
        """Indices of these slices in the view."""
        end = self.first + self.every * len(self.probabilities)
        return slice(self.first, end, self.every)


class ViewNetwork:
    """The network of a view, optimised for inference: norms folded, channels last, best precision.

    `never` are classes that must not win; `batch` is the number of slices in a batch, by default
    what suits the device. The given network is not changed.
    """

    def __init__(
        self,
        network: Network,
        device: torch.device,
        dtype: torch.dtype,
        *,
        never: NDArray[np.int64] | None = None,
        batch: int | None = None,
    ) -> None:
        self.channels = network.config.channels
        self.classes = network.config.classes
        self._multiple = network.config.multiple
        self.device = device
        self.batch = batch or suitable_batch(network, device)
        folded = network.fold()
        if never is not None and len(never):
            bias = folded.classifier.by_class()["bias"]
            bias[torch.from_numpy(never)] = _NEVER
        for module in folded.modules():
            # Norms that are not folded keep their statistics in full precision.
            if isinstance(module, nn.Conv2d | nn.PReLU):
                module.to(dtype)
        self.dtype = dtype
        self.network = folded.to(device)

    def probabilities(
        self,
        volume: Tensor,
        axes: SliceAxes,
        *,
        mirror: tuple[int, Tensor] | None = None,
        every: int = 1,
        within: Tensor | None = None,
    ) -> Iterator[SliceProbabilities]:
        """Yield the probabilities of a volume (X, Y, Z), batch by batch.

        With `mirror`, the axis from side to side and the classes' partners, the mean with the
        mirrored slice. With `every`, only every n-th slice, on a processor one at a time. With
        `within`, a mask (X, Y, Z) in host memory, only the rows and columns around its voxels in
        each batch.

        Nothing here waits for a GPU: one copy of the volume, and no value is read back.
        """
        slices = thick(to_slices(volume.to(self.device), axes), self.channels)
        mask = None
        if within is not None:
            mask = to_slices(within, axes)
        size = self.batch
        if every > 1 and self.device.type == "cpu":
            size = 1
        for start in range(every // 2, len(slices), every * size):
            some = slice(start, start + every * size, every)
            rows = slice(0, slices.shape[2])
            columns = slice(0, slices.shape[3])
            if mask is not None:
                shown = mask[some].any(0)
                rows = slice(0, 0)
                columns = slice(0, 0)
                if shown.any():
                    # Extended, where possible, to the sizes that networks would pad to.
                    rows = _grown(shown.any(1), self._multiple)
                    columns = _grown(shown.any(0), self._multiple)
            batch = slices[some, :, rows, columns].to(self.dtype)
            found = self._of_batch(batch, axes, mirror)
            yield SliceProbabilities(start, rows, columns, found, every)

    def _of_batch(
        self,
        batch: Tensor,
        axes: SliceAxes,
        mirror: tuple[int, Tensor] | None,
    ) -> Tensor:
        """Return probabilities (N, H, W, K) of slices (N, C, H, W), which may be empty.

        `mirror` has the axis of the volume from side to side, and the classes' partners.
        """
        if not batch.numel():
            return torch.zeros(len(batch), 0, 0, self.classes, device=self.device)
        found = self._run(batch)
        if mirror is None:
            return found
        # The same for the mirrored slices, flipped back, with the classes' sides exchanged.
        side_axis, partners = mirror
        # Axes of a batch: neighbours as channels, rows, columns. In the mirrored view, the
        # neighbours of a thick slice are exchanged like its rows or columns.
        axis = (axes.along, axes.rows, axes.columns).index(side_axis) + 1
        mirrored = self._run(batch.flip(axis))[..., partners]
        if axis > 1:
            mirrored = mirrored.flip(axis - 1)
        return (found + mirrored) / 2

    def vary(self, sample: int | None) -> None:
        """Prepare the next sample: another member of an ensemble, else dropout as in training.

        None restores all members without dropout.
        """
        if isinstance(self.network, Ensemble):
            if sample is None:
                self.network.only = None
            else:
                self.network.only = sample % len(self.network.networks)
            return
        for module in self.network.modules():
            if isinstance(module, nn.Dropout2d):
                module.train(sample is not None)

    def _run(self, batch: Tensor) -> Tensor:
        """Convert slices (N, C, H, W) to probabilities (N, H, W, K) float32."""
        with torch.inference_mode():
            logits: Tensor = self.network(batch)
            # Classes are innermost in channels-last logits, so this does not copy.
            logits = logits.permute(0, 2, 3, 1).float()
            if logits.device.type != "cpu":
                return logits.softmax(-1)
            # torch's softmax takes three times as long for rows of 33 numbers on a processor.
            logits = logits.sub_(logits.amax(-1, keepdim=True)).exp_()
            return logits.div_(logits.sum(-1, keepdim=True))


def suitable_batch(network: Network, device: torch.device) -> int:
    """Return the number of slices in a batch for a network on a device, at least one."""
    kind = "cpu" if device.type == "cpu" else GPU
    most_filters = _BATCH[kind] * _FILTERS[kind] * network.config.pixels
    slices = max(most_filters // network.config.filters, 1)
    return min(slices, _BATCH[kind])


def _grown(is_set: Tensor, multiple: int) -> slice:
    """Return the range of set elements, extended on both sides to a multiple.

    `is_set` is a line of booleans of which one is True; if it is too short, all of it.
    """
    length = len(is_set)
    places = is_set.nonzero().flatten()
    first = int(places[0])
    end = int(places[-1]) + 1
    needed = end - first
    rounded_up = math.ceil(needed / multiple) * multiple
    wanted = min(length, rounded_up)
    before = (wanted - needed) // 2
    start = max(0, first - before)
    start = min(start, length - wanted)
    return slice(start, start + wanted)


def thick(slices: Tensor, channels: int) -> Tensor:
    """Stack slices (N, H, W) with their neighbours as channels, (N, C, H, W); zeros at the ends."""
    if channels == 1:
        return slices[:, None]
    reach = channels // 2
    empty = slices.new_zeros((reach, *slices.shape[1:]))
    padded = torch.cat((empty, slices, empty))
    return padded.unfold(0, channels, 1).permute(0, 3, 1, 2)


class DeviceNetworks:
    """A model's networks of some views, on one device.

    `of_view` has the network of each view. `batch` is the number of slices in a batch. With
    `allow_cpu` the processor takes over if a GPU is out of memory even for single slices.
    """

    def __init__(
        self,
        model: Model,
        views: Sequence[View],
        device: torch.device,
        *,
        precision: ComputePrecision = "auto",
        batch: int | None = None,
        allow_cpu: bool = False,
    ) -> None:
        self._model = model
        self._views = tuple(views)
        self._precision = precision
        self._batch = batch
        self._allow_cpu = allow_cpu
        self.device = device
        self.of_view = self._build(device)

    def vary(self, sample: int | None) -> None:
        """Prepare all networks for this sample; None for no sampling."""
        for network in self.of_view.values():
            network.vary(sample)

    def with_less_memory(self, work: Callable[[], _T]) -> _T:
        """Run GPU work; if out of memory, retry in smaller batches, finally on the processor."""
        while True:
            try:
                return work()
            except torch.OutOfMemoryError as error:
                free_gpu_memory()
                batch = max(network.batch for network in self.of_view.values())
                if batch > 1:
                    for network in self.of_view.values():
                        network.batch = batch // 2
                elif self._allow_cpu:
                    self.device = torch.device("cpu")
                    self.of_view = self._build(self.device)
                else:
                    raise DeviceError(
                        f"{self.device} has too little memory for one slice at a time",
                        remedy="free some of it, or use --device cpu",
                    ) from error

    def _build(self, device: torch.device) -> dict[View, ViewNetwork]:
        """Build the networks of all views on a device."""
        refuse_forked_gpu(device)
        dtype = choose_precision(self._precision, device)
        networks = {}
        for view in self._views:
            networks[view] = ViewNetwork(
                self._model.networks[view],
                device,
                dtype,
                never=self._model.not_predicted_in(view),
                batch=self._batch,
            )
        return networks
