"""The networks of a model on a device, as many slices at a time as its memory holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from trinat.segmentation.errors import DeviceError
from trinat.segmentation.inference.network import (
    ComputePrecision,
    ViewNetwork,
    choose_precision,
)
from trinat.segmentation.models.checkpoint import Model
from trinat.segmentation.models.hardware import free_gpu_memory, refuse_forked_gpu
from trinat.segmentation.space.views import View

_T = TypeVar("_T")


class DeviceNetworks:
    """A model's networks of some views, all on one device.

    `of_view` has the network of each view. `batch` slices are computed at a time. With `allow_cpu`
    the processor takes over when a GPU is out of memory even for single slices.
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
        """Let all networks give this sample of what they may predict; None for no sample."""
        for network in self.of_view.values():
            network.vary(sample)

    def with_less_memory(self, work: Callable[[], _T]) -> _T:
        """Do GPU work; out of memory, in smaller batches, and at last on the processor."""
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
        """The networks of all views on a device."""
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
