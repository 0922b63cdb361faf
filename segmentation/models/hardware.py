"""Devices: available GPUs, precision and memory layout.

All calls of `torch.cuda` are here, except for the choice of the default model (`models/zoo`).
"""

from __future__ import annotations

import platform
from typing import Any

import torch

from trinat.segmentation.errors import DeviceError

# torch's other kinds of GPU, such as xpu, have the same functions in modules of other names.
GPU = "cuda"


def _gpus() -> Any:
    """Return torch's module of functions for GPUs."""
    return torch.get_device_module(GPU)


def count_gpus() -> int:
    """Return the number of GPUs that this process sees."""
    return int(_gpus().device_count())


def choose_device(name: str) -> torch.device:
    """Return a device by its name; "auto" means the first GPU, or the CPU if there is none.

    Raises DeviceError if the name is no device, or if the device is not available.
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
            remedy="use cpu; trinat doctor lists the devices",
        )
    return device


def refuse_forked_gpu(device: torch.device) -> None:
    """Raise DeviceError for a GPU in a forked process whose parent has used it.

    torch cannot use the GPU there.
    """
    if device.type == GPU and _gpus()._is_in_bad_fork():
        raise DeviceError(
            "a forked process cannot use the GPU of its parent",
            where=str(device),
            remedy='start processes with multiprocessing.get_context("spawn")',
        )


def describe_gpu(index: int) -> tuple[str, int, int]:
    """Return the name of a GPU, and its free and its total memory in bytes."""
    free, total = _gpus().mem_get_info(index)
    return _gpus().get_device_name(index), free, total


def free_gpu_memory() -> None:
    """Release the memory that torch has cached."""
    _gpus().empty_cache()


def bfloat16_hardware(device: torch.device) -> str:
    """Return the name of the hardware that computes in bfloat16; "" if the device has none.

    Without such hardware bfloat16 is many times slower.
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
    """Return the 16-bit type that is several times faster than float32; None if there is none.

    It is float16 on GPUs without bfloat16 (V100, T4, RTX 20); gradients must then be scaled.
    """
    if bfloat16_hardware(device):
        return torch.bfloat16
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (7, 0):
        return torch.float16
    return None


def computing_in(precision: torch.dtype, device: torch.device) -> torch.autocast:
    """Return a context in which torch computes in `precision` wherever it considers this safe."""
    if precision == torch.float32:
        return torch.autocast(device.type, torch.bfloat16, enabled=False)
    return torch.autocast(device.type, precision)


def widest_float(device: torch.device) -> torch.dtype:
    """Return the widest floating-point type: float64, or float32 on MPS, which lacks float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def training_layout(device: torch.device) -> torch.memory_format:
    """Return the memory format for training: channels last, except on CPUs without AVX-512.

    On these CPUs oneDNN is slow at the gradient of the weights of a channels-last convolution, and
    a step takes less time with contiguous tensors (both measured with `scripts/bench train`, at
    commit f8e9679).
    """
    if device.type != "cpu":
        return torch.channels_last
    if torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2"):
        return torch.contiguous_format
    return torch.channels_last
