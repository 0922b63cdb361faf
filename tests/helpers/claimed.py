"""Tensors that claim to be on a GPU, on a machine without one; their values are in its memory.

torch's own FakeTensorMode has fake devices too, but no values, so a training step that reads
its loss fails there. Here each storage records the device that it claims. All operations
compute on the processor, and results claim the device of their inputs. Three kinds of mistakes
show:

- tensors of two devices in one operation raise RuntimeError, as on a GPU;
- transfers that would make the program wait for a GPU are recorded in `Claims.reads` and
  `Claims.uploads`, with the function that caused them;
- on "mps", which has no float64, such a tensor raises TypeError.

Kernels of a GPU, its streams, torch.compile and NCCL cannot be tested in this way.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch._dynamo  # imported here, else the first operation imports it while a device is claimed
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

CPU = torch.device("cpu")
# Operations whose result depends on values: its size, or a Python number.
_READING = {
    "aten::_local_scalar_dense",
    "aten::_unique2",
    "aten::bincount",
    "aten::equal",
    "aten::is_nonzero",
    "aten::masked_select",
    "aten::nonzero",
}
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_"}
_COPYING = {"aten::copy_", "aten::_to_copy", "aten::set_"}


def device_of(tensor: Tensor) -> torch.device:
    """Return the device that a tensor claims."""
    return getattr(tensor.untyped_storage(), "claims", CPU)


class _Generator(torch.Generator):
    """Replacement of torch.Generator: random numbers of any device come from the processor."""

    def __new__(cls, device: str | torch.device = "cpu") -> _Generator:
        made = super().__new__(cls, "cpu")
        made.claims = torch.device(device)
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.claims


_GROUPED = torch._C._group_tensors_by_device_and_dtype


class Claims:
    """Claimed device, with a record of every wait for it."""

    def __init__(self, name: str) -> None:
        self.device = torch.device(name)
        self.reads: list[str] = []
        self.uploads: list[str] = []

    def claim(self, tensor: Tensor, device: torch.device) -> None:
        """Place a tensor, and everything that shares its memory, on the claimed device."""
        if device.type == "mps" and tensor.dtype == torch.float64:
            raise TypeError("MPS has no float64")
        tensor.untyped_storage().claims = device  # type: ignore[attr-defined]

    def grouped(self, lists: Any, with_indices: bool = False) -> Any:
        """Group tensors by claimed device; replaces a C++ function that sees the true devices."""
        groups = _GROUPED(lists, with_indices)
        return {
            (device_of(members[0][0]), dtype): (members, indices)
            for (_, dtype), (members, indices) in groups.items()
        }

    def named(self, device: Any) -> torch.device:
        """Return the device for an argument of a call; "cuda" is "cuda:0"."""
        found = torch.device(device)
        return self.device if found.type == self.device.type else found


def _caller() -> str:
    """Return the module and function of our code that is running."""
    frame = sys._getframe()
    while frame is not None:
        path = frame.f_code.co_filename
        if "/segmentation/" in path or "/pipelines/" in path:
            name = path.rpartition("/")[2].removesuffix(".py")
            return f"{name}.{frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "a test"


class _Functions(TorchFunctionMode):
    """Intercepts calls of torch: devices by name, copies to them, and reads of values."""

    def __init__(self, claims: Claims) -> None:
        super().__init__()
        self.claims = claims

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        of = getattr(func, "__self__", None)
        if of is Tensor.device:
            return device_of(args[0])
        if of is Tensor.is_cuda:
            return device_of(args[0]).type == "cuda"
        if func is Tensor.to:
            return self._to(args[0], args[1:], given)
        if func is Tensor.cpu:
            return self._to(args[0], (CPU,), given)
        if func is Tensor.pin_memory:
            assert device_of(args[0]) == CPU
            pinned = args[0].clone()
            pinned.is_claimed_pinned = True
            return pinned
        if name in ("tolist", "numpy", "__array__") and device_of(args[0]) != CPU:
            if name != "tolist":
                raise TypeError(f"can't convert {device_of(args[0])} tensor to numpy")
            self.claims.reads.append(_caller())
        return self._make(func, args, given)

    def _to(self, tensor: Tensor, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """Replace Tensor.to: copy if the device or the type differs."""
        here = device_of(tensor)
        there = here
        for one in (*args, given.pop("device", None)):
            if isinstance(one, Tensor):
                there = device_of(one)
                given["dtype"] = one.dtype
            elif isinstance(one, torch.device | str):
                there = self.claims.named(one)
            elif isinstance(one, torch.dtype):
                given["dtype"] = one
            elif isinstance(one, bool):
                given["non_blocking"] = one
        waits = not given.pop("non_blocking", False)
        if there == here:
            return tensor.to(**given) if given else tensor
        waits = waits or not getattr(tensor, "is_claimed_pinned", False)
        if there == CPU:
            self.claims.reads.append(_caller())
        elif waits:
            self.claims.uploads.append(_caller())
        copied = tensor.to(**{"dtype": tensor.dtype, **given, "copy": True})
        self.claims.claim(copied, there)
        return copied

    def _make(self, func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """Make any other call; its result may be requested on a device, or pinned."""
        wanted = None
        if given.get("device") is not None:
            wanted = self.claims.named(given.pop("device"))
        pinned = given.pop("pin_memory", False)
        generator = given.get("generator")
        if generator is not None:
            target = wanted
            if target is None:
                given_to = args[0] if args else None
                target = device_of(given_to) if isinstance(given_to, Tensor) else CPU
            if generator.device.type != target.type:
                raise RuntimeError(
                    f"Expected a {target.type!r} device type for generator but found "
                    f"{generator.device.type!r}"
                )
        made = func(*args, **given)
        if isinstance(made, Tensor):
            if func is Tensor.__deepcopy__:
                wanted = device_of(args[0])
            if wanted is not None:
                values = given.get("data", args[0] if args else None)
                is_written_here = func in (torch.tensor, torch.as_tensor)
                if is_written_here and wanted != CPU and not _is_number(values):
                    self.claims.uploads.append(_caller())
                self.claims.claim(made, wanted)
            if pinned:
                made.is_claimed_pinned = True
        return made


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


class _Operations(TorchDispatchMode):
    """Intercepts operations: inputs must be on one device, which the result then claims."""

    def __init__(self, claims: Claims) -> None:
        super().__init__()
        self.claims = claims

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        operation = func.name().partition(".")[0]
        tensors = [one for one in tree_iter((args, given)) if isinstance(one, Tensor)]
        if operation in _INDEXING:
            tensors = self._without_indices(tensors, args)
        # Scalars on the processor may be combined with tensors of any device.
        places = {device_of(one) for one in tensors if one.ndim}
        for one in tensors:
            if device_of(one) != CPU:
                places.add(device_of(one))
        if len(places) > 1:
            if operation not in _COPYING:
                names = " and ".join(sorted(map(str, places)))
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but found {names} in "
                    f"{operation}, called by {_caller()}"
                )
            self._note_copy(args[0])
            return func(*args, **given)
        place = places.pop() if places else CPU
        if place != CPU and operation in _READING:
            self.claims.reads.append(_caller())
        made = func(*args, **given)
        if place != CPU:
            for one in tree_iter(made):
                if isinstance(one, Tensor):
                    self.claims.claim(one, place)
        return made

    def _note_copy(self, target: Tensor) -> None:
        """Record an in-place copy from the other device."""
        if device_of(target) == CPU:
            self.claims.reads.append(_caller())
        else:
            self.claims.uploads.append(_caller())

    def _without_indices(
        self, tensors: list[Tensor], args: tuple[Any, ...]
    ) -> list[Tensor]:
        """Return all tensors but the indices, which may be on the processor and are then copied."""
        indices = [one for one in args[1] if one is not None]
        indexed = device_of(args[0])
        if indexed != CPU:
            for one in indices:
                if one.dtype == torch.bool:
                    self.claims.reads.append(_caller())
                elif device_of(one) == CPU and one.ndim:
                    self.claims.uploads.append(_caller())
        return [one for one in tensors if not any(one is index for index in indices)]


@contextmanager
def claimed(
    name: str = "cuda:0", capability: tuple[int, int] = (8, 0)
) -> Iterator[Claims]:
    """Claim a machine with one device of this name; a CUDA device has this compute capability.

    Autocast is that of the processor: it uses the types of the recipe, but its list of
    operations differs from that of a GPU.
    """
    claims = Claims(name)
    autocast = torch.autocast
    scaler = torch.amp.GradScaler

    def of_processor(device: str, *args: Any, **given: Any) -> Any:
        return autocast("cpu", *args, **given)

    with pytest.MonkeyPatch.context() as patch, _Functions(claims), _Operations(claims):
        patch.setattr(torch, "Generator", _Generator)
        grouping = "_group_tensors_by_device_and_dtype"
        patch.setattr(torch._C, grouping, claims.grouped)
        patch.setattr(torch, "autocast", of_processor)
        for asked in ("is_autocast_enabled", "get_autocast_dtype"):
            real = getattr(torch, asked)
            patch.setattr(torch, asked, lambda device, real=real: real("cpu"))
        patch.setattr(
            torch.amp,
            "GradScaler",
            lambda device, enabled: scaler("cpu", enabled=enabled),
        )
        patch.setattr(torch.cuda, "device_count", lambda: 1)
        patch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        patch.setattr(torch.cuda, "get_device_name", lambda device: "claimed")
        patch.setattr(torch.cuda, "mem_get_info", lambda device: (2**30, 2**30))
        # Claimed devices have no generator of their own.
        patch.setattr(torch.cuda, "get_rng_state", lambda device: None)
        patch.setattr(torch.cuda, "set_rng_state", lambda state, device: None)
        patch.setattr(torch.backends.mps, "is_available", lambda: name == "mps:0")
        patch.setattr(torch.accelerator, "synchronize", lambda device: None)
        yield claims
