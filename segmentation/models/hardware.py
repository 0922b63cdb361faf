"""What a device computes fastest in."""

from __future__ import annotations

import torch

__all__ = ["computes_bfloat16", "training_layout"]


def computes_bfloat16(device: torch.device) -> bool:
    """True where bfloat16 is done in hardware; elsewhere it is emulated, many times slower."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    mkldnn = torch.backends.mkldnn
    return bool(mkldnn.enabled and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def training_layout(device: torch.device) -> torch.memory_format:
    """Channels last, except on processors without AVX-512.

    There oneDNN is slow at the gradient of a channels-last convolution's weights, and plain layout
    makes the quicker step: `scripts/bench train 1 1 2 96 no 2 both` measures one beside the other.
    """
    if device.type == "cpu" and torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2"):
        return torch.contiguous_format
    return torch.channels_last
