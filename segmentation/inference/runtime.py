"""Protocol of a runtime, which computes networks, and the runtime of torch.

`int8.py` has that of OpenVINO.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trinat.segmentation.errors import ConfigError, DeviceError
from trinat.segmentation.models.base import Network
from trinat.segmentation.models.hardware import bfloat16_hardware

ComputePrecision = Literal["auto", "float32", "bfloat16", "float16", "int8"]

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
# Logit of classes that the model was never trained on, so that they do not win by chance.
NEVER = -1e4


def choose_precision(name: ComputePrecision, device: torch.device) -> torch.dtype:
    """Return the number type to compute in.

    "auto" is bfloat16 if the device has hardware for it, else float32. Raises DeviceError for
    "float16" on a CPU, and ConfigError for names that are no number type of torch.
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
        raise ConfigError(
            f"{name!r} is no precision", remedy=f"use auto, {', '.join(_DTYPES)}"
        )
    return _DTYPES[name]


class Runtime(Protocol):
    """Protocol of the object that computes a network's probabilities on a device."""

    device: torch.device

    def __call__(self, slices: Tensor) -> Tensor:
        """Map slices (N, C, H, W) float32 to probabilities (N, H, W, K) float32.

        The result is not changed by later calls.
        """

    def set_dropout(self, is_on: bool) -> None:
        """Turn dropout on, as in training, or off.

        Several predictions of one scan with dropout show how uncertain a network is.
        """

    def release(self) -> None:
        """Free the memory that the network keeps between calls."""


class TorchRuntime:
    """Runtime that computes a network with torch, optimised for inference.

    Norms are folded into convolutions where possible, memory is channels-last, and convolutions
    compute in `dtype`. `never` has the indices of classes that must not win. `network` itself is
    not changed.
    """

    def __init__(
        self,
        network: Network,
        device: torch.device,
        dtype: torch.dtype,
        *,
        never: NDArray[np.int64] | None = None,
    ) -> None:
        folded = network.fold()
        if never is not None and len(never):
            bias = folded.classifier.by_class()["bias"]
            bias[torch.from_numpy(never)] = NEVER
        for module in folded.modules():
            # Norms that are not folded keep their statistics in full precision.
            if isinstance(module, nn.Conv2d | nn.PReLU):
                module.to(dtype)
        self.device = device
        self.dtype = dtype
        self.network = folded.to(device)

    def __call__(self, slices: Tensor) -> Tensor:
        """Map slices (N, C, H, W) float32 to probabilities (N, H, W, K) float32."""
        with torch.inference_mode():
            logits: Tensor = self.network(slices.to(self.dtype))
            # Classes are innermost in channels-last logits, so this does not copy.
            logits = logits.permute(0, 2, 3, 1).float()
            if logits.device.type != "cpu":
                return logits.softmax(-1)
            # torch's softmax takes three times as long for rows of 33 numbers on a processor.
            logits = logits.sub_(logits.amax(-1, keepdim=True)).exp_()
            return logits.div_(logits.sum(-1, keepdim=True))

    def set_dropout(self, is_on: bool) -> None:
        """Turn dropout on, as in training, or off.

        Several predictions of one scan with dropout show how uncertain a network is.
        """
        for module in self.network.modules():
            if isinstance(module, nn.Dropout2d):
                module.train(is_on)

    def release(self) -> None:
        """Do nothing: all networks of torch share one memory."""
