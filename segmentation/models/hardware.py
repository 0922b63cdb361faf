"""Devices: available GPUs, precision and memory layout.

Nothing else calls `torch.cuda`, except the choice of the default model (`models/zoo`).
"""

from __future__ import annotations

import platform
from typing import Any

import torch

from trinat.segmentation.errors import DeviceError

# torch's other kinds of GPU, such as xpu, have the same functions under another name.
GPU = "cuda"


def _gpus() -> Any:
    """Return the module that has torch's functions for GPUs."""
    return torch.get_device_module(GPU)


def count_gpus() -> int:
    """Return the number of GPUs that this process sees."""
    return int(_gpus().device_count())


def choose_device(name: str) -> torch.device:
    """Return a device by name; "auto" is the first GPU, or the CPU.

    A name that is no device, or a device that is not available, is refused.
    """
    if name == "auto":
        return torch.device(GPU if count_gpus() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(
            f"{name!r} is no device", remedy="use cpu, cuda or cuda:1"
        ) from error
    if device.type not in ("cpu", GPU):
        raise DeviceError(f"{device.type} is not supported", remedy="use cpu or cuda")
    if device.type == GPU and (device.index or 0) >= count_gpus():
        raise DeviceError(
            f"{name} does not exist on this machine",
            remedy="trinat doctor lists the devices",
        )
    return device


def refuse_forked_gpu(device: torch.device) -> None:
    """Refuse a GPU in a process forked from a process that used it: it would not work there."""
    if device.type == GPU and _gpus()._is_in_bad_fork():
        raise DeviceError(
            "a forked process cannot use the GPU of its parent",
            where=str(device),
            remedy='start processes with multiprocessing.get_context("spawn")',
        )


def describe_gpu(index: int) -> tuple[str, int, int]:
    """Return the name, free memory and total memory of a GPU, in bytes."""
    free, total = _gpus().mem_get_info(index)
    return _gpus().get_device_name(index), free, total


def use_gpu(device: str) -> None:
    """Make a GPU the default of this process."""
    _gpus().set_device(device)


def free_gpu_memory() -> None:
    """Release the memory that torch has cached."""
    _gpus().empty_cache()


def bfloat16_hardware(device: torch.device) -> str:
    """Return the name of the hardware that computes in bfloat16; "" if there is none.

    Without it bfloat16 is many times slower.
    """
    if device.type == "cuda":
        if torch.cuda.get_device_capability(device) >= (8, 0):
            return "CUDA"
        return ""
    if not torch.backends.mkldnn.enabled:
        return ""
    # On x86 oneDNN supports bfloat16 on every CPU with AVX-512. CPUs without the instructions
    # (Skylake to Ice Lake) emulate it, 2.4 to 2.9 times slower than float32.
    if platform.machine().lower() in ("x86_64", "amd64", "i686"):
        if torch.cpu._is_amx_tile_supported():
            return "AMX"
        if torch.cpu._is_avx512_bf16_supported():
            return "AVX512-BF16"
        return ""
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "ARM bf16"
    return ""


def half_precision(device: torch.device) -> torch.dtype | None:
    """Return the 16-bit type that is several times faster on the device; None if there is none.

    float16 on GPUs that have no bfloat16 (V100, T4, RTX 20): its gradients have to be scaled.
    """
    if bfloat16_hardware(device):
        return torch.bfloat16
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (7, 0):
        return torch.float16
    return None


def computing_in(precision: torch.dtype, device: torch.device) -> torch.autocast:
    """Return a context that computes in a precision as far as torch considers it safe."""
    if precision == torch.float32:
        return torch.autocast(device.type, torch.bfloat16, enabled=False)
    return torch.autocast(device.type, precision)


def widest_float(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on MPS, which does not have float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def training_layout(device: torch.device) -> torch.memory_format:
    """Return the memory format for training: channels last, except on CPUs without AVX-512.

    There oneDNN is slow at the gradient of a channels-last convolution's weights, and plain layout
    makes the faster step (`scripts/bench train`, at commit f8e9679, measured both).
    """
    if device.type != "cpu":
        return torch.channels_last
    if torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2"):
        return torch.contiguous_format
    return torch.channels_last
