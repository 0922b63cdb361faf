"""What a device computes fastest in."""

from __future__ import annotations

import platform

import torch

__all__ = ["bfloat16_hardware", "computes_bfloat16", "training_layout"]


def computes_bfloat16(device: torch.device) -> bool:
    """True where bfloat16 is done in hardware; elsewhere it is emulated, many times slower."""
    return bool(bfloat16_hardware(device))


def bfloat16_hardware(device: torch.device) -> str:
    """The hardware that computes in bfloat16, by name; empty where there is none."""
    if device.type == "cuda":
        return "CUDA" if torch.cuda.get_device_capability(device) >= (8, 0) else ""
    if not torch.backends.mkldnn.enabled:
        return ""
    # On x86 oneDNN supports bfloat16 wherever there is AVX-512. Processors without the instructions
    # (Skylake to Ice Lake) emulate it, 2.4 to 2.9 times slower than float32.
    if platform.machine().lower() in ("x86_64", "amd64", "i686"):
        if torch.cpu._is_amx_tile_supported():
            return "AMX"
        return "AVX512-BF16" if torch.cpu._is_avx512_bf16_supported() else ""
    return "ARM bf16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else ""


def training_layout(device: torch.device) -> torch.memory_format:
    """Channels last, except on processors without AVX-512.

    There oneDNN is slow at the gradient of a channels-last convolution's weights, and plain layout
    makes the quicker step (`scripts/bench train`, at commit f8e9679, measured both).
    """
    if device.type == "cpu" and torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2"):
        return torch.contiguous_format
    return torch.channels_last
