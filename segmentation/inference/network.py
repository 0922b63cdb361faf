"""Networks on a device: batches of slices to probabilities, within the available memory."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from trinat.segmentation.errors import ConfigError, DeviceError
from trinat.segmentation.inference.int8 import Int8Runtime
from trinat.segmentation.inference.runtime import (
    ComputePrecision,
    Runtime,
    TorchRuntime,
    choose_precision,
)
from trinat.segmentation.models.base import NetworkConfig
from trinat.segmentation.models.checkpoint import Model
from trinat.segmentation.models.hardware import GPU, free_gpu_memory, refuse_forked_gpu
from trinat.segmentation.space.views import SliceAxes, View, to_slices

_T = TypeVar("_T")

# Number of slices of the working grid in a batch, by device. Larger batches are not faster on a
# CPU, and fill its caches and memory. Networks with more filters than `_FILTERS` get fewer slices.
_BATCH = {"cpu": 4, GPU: 32}
_FILTERS = {"cpu": 32, GPU: 64}

# Networks compute in one thread at a time: dropout uses torch's global generator and changes the
# networks, and a network of OpenVINO has one request. It is reentrant because networks are nested.
_ONE_THREAD = threading.RLock()
if hasattr(os, "register_at_fork"):
    # A fork waits too: otherwise the child would inherit a locked lock, and dropout that is on.
    os.register_at_fork(
        before=_ONE_THREAD.acquire,
        after_in_parent=_ONE_THREAD.release,
        after_in_child=_ONE_THREAD.release,
    )


class SliceProbabilities(NamedTuple):
    """Class probabilities of some slices of a view, (N, H, W, K) float32.

    `slices` selects them in the view; its end may lie beyond the last slice. Of each slice, only
    `rows` and `columns` were computed.
    """

    slices: slice
    rows: slice
    columns: slice
    probabilities: Tensor


class ViewNetwork:
    """The network of a view, run on batches of slices of a volume.

    `runtime` computes the network that `config` describes. `batch` is the number of slices in a
    batch; the default suits the device.
    """

    def __init__(
        self, config: NetworkConfig, runtime: Runtime, *, batch: int | None = None
    ) -> None:
        self.channels = config.channels
        self.classes = config.classes
        self._multiple = config.multiple
        self.device = runtime.device
        if batch is None:
            batch = suitable_batch(config, runtime.device)
        if batch < 1:
            raise ConfigError(f"a batch of {batch} slices", remedy="give at least 1")
        self.batch = batch
        self.runtime = runtime

    def probabilities(
        self,
        volume: Tensor,
        axes: SliceAxes,
        *,
        mirror: tuple[int, Tensor] | None = None,
        every: int = 1,
        within: Tensor | None = None,
    ) -> Iterator[SliceProbabilities]:
        """Yield the class probabilities of a volume (X, Y, Z), batch by batch.

        With `mirror`, each result is the mean of the predictions for the slice and for its mirror
        image. `mirror` has the axis of the volume from left to right, and the index of each class's
        partner on the other side, (K,). With `every`, only every n-th slice is computed. `within`
        is a mask (X, Y, Z) in host memory: only rows and columns around its set voxels are
        computed.
        """
        for slices, rows, columns, batch in self.batches(volume, axes, every, within):
            found = self._batch_probabilities(batch, axes, mirror)
            yield SliceProbabilities(slices, rows, columns, found)
        self.runtime.release()

    def batches(
        self,
        volume: Tensor,
        axes: SliceAxes,
        every: int = 1,
        within: Tensor | None = None,
    ) -> Iterator[tuple[slice, slice, slice, Tensor]]:
        """Yield the slices of a volume (X, Y, Z) in batches: indices, rows, columns, batch.

        A batch is (N, C, H, W). With `every`, only every n-th slice is taken; on a CPU these come
        one at a time. `within` is a mask (X, Y, Z) in host memory: each batch is cropped to the
        rows and columns around its set voxels.

        Nothing here waits for a GPU: the volume is copied to it once, and no value is read back.
        """
        slices = thick(to_slices(volume.to(self.device), axes), self.channels)
        mask = None
        if within is not None:
            mask = to_slices(within, axes)
        size = self.batch
        if every > 1 and self.device.type == "cpu":
            size = 1
        found = []
        for start in range(every // 2, len(slices), every * size):
            some = slice(start, start + every * size, every)
            rows = slice(0, slices.shape[2])
            columns = slice(0, slices.shape[3])
            if mask is not None:
                shown = mask[some].any(0)
                rows = slice(0, 0)
                columns = slice(0, 0)
                if shown.any():
                    # Networks pad their input to a multiple; extend the range to that size instead.
                    rows = _grown(shown.any(1), self._multiple)
                    columns = _grown(shown.any(0), self._multiple)
            found.append((some, rows, columns))
        # Buffers that grow from batch to batch leave gaps in memory. The largest batch comes first.
        found.sort(key=lambda part: -_length(part[1]) * _length(part[2]))
        for some, rows, columns in found:
            yield some, rows, columns, slices[some, :, rows, columns]

    def _batch_probabilities(
        self,
        batch: Tensor,
        axes: SliceAxes,
        mirror: tuple[int, Tensor] | None,
    ) -> Tensor:
        """Return the probabilities (N, H, W, K) of slices (N, C, H, W), which may have no pixel.

        With `mirror`, predictions for the slices and for their mirror images are averaged. It has
        the axis of the volume from left to right, and the index of each class's partner on the
        other side, (K,).
        """
        if not batch.numel():
            return torch.zeros(len(batch), 0, 0, self.classes, device=self.device)
        found = self.runtime(batch)
        if mirror is None:
            return found
        # The same for the mirrored slices, flipped back, with the classes' sides exchanged.
        side_axis, partners = mirror
        # Axes of a batch: neighbours as channels, rows, columns. In the mirrored view, the
        # neighbours of a thick slice are exchanged like its rows or columns.
        axis = (axes.along, axes.rows, axes.columns).index(side_axis) + 1
        mirrored = self.runtime(batch.flip(axis))[..., partners]
        if axis > 1:
            mirrored = mirrored.flip(axis - 1)
        return (found + mirrored) / 2


def suitable_batch(config: NetworkConfig, device: torch.device) -> int:
    """Return the number of slices in a batch for a network on a device, at least one."""
    kind = "cpu" if device.type == "cpu" else GPU
    most_filters = _BATCH[kind] * _FILTERS[kind] * config.pixels
    slices = max(most_filters // config.filters, 1)
    return min(slices, _BATCH[kind])


def _length(part: slice) -> int:
    """Return the number of indices of a slice with steps of 1."""
    return int(part.stop - part.start)


def _grown(is_set: Tensor, multiple: int) -> slice:
    """Return the range from the first to the last True, extended on both sides to a multiple.

    `is_set` is a line of booleans of which at least one is True. Its whole length is returned if it
    is shorter than that.
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
    """Stack each of slices (N, H, W) with its neighbours as channels, giving (N, C, H, W).

    Beyond the first and the last slice, channels are 0.
    """
    if channels == 1:
        return slices[:, None]
    reach = channels // 2
    empty = slices.new_zeros((reach, *slices.shape[1:]))
    padded = torch.cat((empty, slices, empty))
    return padded.unfold(0, channels, 1).permute(0, 3, 1, 2)


class DeviceNetworks:
    """A model's networks for some views, on one device.

    `of_view` has the `ViewNetwork` of each view, and `device` is where they are. `batch` is the
    number of slices in a batch, by default one that suits the device. With `allow_cpu` the networks
    move to the CPU if a GPU is out of memory even for single slices.
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

    def set_dropout(self, is_on: bool) -> None:
        """Turn dropout in all networks on, as in training, or off."""
        for network in self.of_view.values():
            network.runtime.set_dropout(is_on)

    def with_less_memory(self, work: Callable[[], _T]) -> _T:
        """Return the result of `work`, which uses the GPU, even if memory is short.

        If it runs out of memory, it is repeated with batches of half the size, and finally on the
        CPU if this is allowed. Raises DeviceError if it is not. Calls in several threads run one
        after another.
        """
        with _ONE_THREAD:
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
        """Return a `ViewNetwork` for each view, on a device."""
        refuse_forked_gpu(device)
        networks = {}
        for view in self._views:
            networks[view] = ViewNetwork(
                self._model.networks[view].config,
                self._runtime(view, device),
                batch=self._batch,
            )
        return networks

    def _runtime(self, view: View, device: torch.device) -> Runtime:
        """Return the runtime of a view's network on a device, in the chosen precision."""
        if self._precision != "int8":
            return TorchRuntime(
                self._model.networks[view],
                device,
                choose_precision(self._precision, device),
                never=self._model.not_predicted_in(view),
            )
        if device.type != "cpu":
            raise DeviceError(
                "int8 networks run on processors only",
                remedy="use the device cpu or another precision",
            )
        return Int8Runtime(self._model, view)
