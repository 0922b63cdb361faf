"""Reader of files by torch.save, of any version, that runs none of their code.

A pickle is a program: it names functions and has them called. This reader lets it create tensors,
parameters and plain containers only, and only by functions in this file. Every other class that it
names becomes an empty stand-in that keeps the state it is given, and any other call is refused.
`torch.load(weights_only=True)` does the same for tensors, but cannot read whole modules, which is
what the authors of QuickNAT published.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NoReturn

import torch
from torch import Tensor

from trinat.segmentation.errors import InputError, ModelError
from trinat.segmentation.io.files import open_regular

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001
# Limit on a pickle without its tensors, which has only names and shapes: kilobytes.
_MAX_PICKLE_BYTES = 64 << 20
_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}

# Called with the key, the type and the number of values of a storage; returns it as a tensor
# (count,).
Storage = Callable[[str, torch.dtype, int], Tensor]


class Stub:
    """Stand-in for an object of a class that is not imported.

    `name` is the full name of that class; `state` is the state of the object, such as its
    attributes.
    """

    name = ""
    state: Any = None

    def __new__(cls, *_: Any) -> Stub:
        """Return a stub, whatever the arguments are."""
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        """Store the state of the object without running anything of it."""
        self.state = state


def read_torch_file(path: str | Path) -> Any:
    """Return the object in a file by torch.save, in the zip format or the older format.

    It consists of tensors, containers and stubs. Raises ModelError for a file that is damaged, or
    that requests anything else.
    """
    path = Path(path)
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(4)
            file.seek(0)
            if start.startswith(b"PK"):
                return _read_zip(file, size, path)
            return _read_legacy(file, size, path)
    except (InputError, ModelError):
        raise
    # A damaged pickle may raise any exception; the user needs only one message.
    except Exception as error:
        if isinstance(error, OSError) and error.filename:
            raise  # a disk error, not an error of zipfile
        raise ModelError(
            "is not a file of torch.save, or is damaged",
            where=path,
            remedy="download it again",
        ) from error


def _read_zip(file: BinaryIO, size: int, path: Path) -> Any:
    """Read a file in the zip format.

    data.pkl has the object, and data/0, data/1, ... are its storages.
    """
    with zipfile.ZipFile(file) as archive:
        storages = _ZipStorages(archive, path)
        # torch stores without compression, so an archive that expands when it is read is not from
        # torch.
        if storages.total_bytes() > size:
            raise ModelError(
                "expands to more data than a file of its size can have", where=path
            )
        if storages.has("byteorder") and storages.read("byteorder") != b"little":
            raise ModelError("was written on a big-endian machine", where=path)
        pickled = io.BytesIO(storages.read("data.pkl"))
        return _Unpickler(pickled, storages.get, path).load()


class _ZipStorages:
    """Storages (arrays of tensors' values) of an archive by key; each is read only once."""

    def __init__(self, archive: zipfile.ZipFile, path: Path) -> None:
        self._archive = archive
        self._path = path
        self._read: dict[tuple[str, torch.dtype, int], Tensor] = {}
        # Members of the archive by their path without the top folder.
        self._members = {}
        for member in archive.infolist():
            name = member.filename.partition("/")[2]
            self._members[name] = member

    def total_bytes(self) -> int:
        """Return the total size of all members after decompression, in bytes."""
        return sum(member.file_size for member in self._members.values())

    def has(self, name: str) -> bool:
        """Return True if there is a member of that name."""
        return name in self._members

    def read(self, name: str) -> bytes:
        """Read the bytes of a member."""
        return self._archive.read(self._members[name])

    def get(self, key: str, dtype: torch.dtype, count: int) -> Tensor:
        """Return the storage `key` as a tensor (count,); raise ModelError for another size."""
        described = (key, dtype, count)
        if described not in self._read:
            data = bytearray(self.read(f"data/{key}"))
            if len(data) != count * dtype.itemsize:
                raise ModelError(
                    "has storages of other sizes than it says", where=self._path
                )
            storage = torch.empty(0, dtype=dtype)
            if data:
                storage = torch.frombuffer(data, dtype=dtype)
            self._read[described] = storage
        return self._read[described]


def _read_legacy(file: BinaryIO, size: int, path: Path) -> Any:
    """Read a file in the older format.

    It consists of five pickles (magic, version, system, object, storage keys) and then the
    storages.
    """
    storages = _LegacyStorages(size, path)

    def load() -> Any:
        return _Unpickler(file, storages.get, path).load()

    if load() != _LEGACY_MAGIC or load() != _LEGACY_PROTOCOL:
        raise ModelError("is not a file of torch.save", where=path)
    if load().get("little_endian") is not True:
        raise ModelError("was written on a big-endian machine", where=path)
    content = load()
    keys = load()
    storages.fill(file, keys)
    return content


class _LegacyStorages:
    """Storages of an older file by their key: created while the object is read, filled afterwards.

    Together they must not be larger than the file, which has `size` bytes.
    """

    def __init__(self, size: int, path: Path) -> None:
        self._size = size
        self._path = path
        self._promised_bytes = 0
        self._storages: dict[str, Tensor] = {}

    def get(self, key: str, dtype: torch.dtype, count: int) -> Tensor:
        """Return the storage `key` as a tensor (count,), which is zeros until `fill` is called."""
        if key not in self._storages:
            self._promised_bytes += count * dtype.itemsize
            if count < 0 or self._promised_bytes > self._size:
                raise ModelError("promises more data than it has", where=self._path)
            self._storages[key] = torch.zeros(count, dtype=dtype)
        return self._storages[key]

    def fill(self, file: BinaryIO, keys: Any) -> None:
        """Read the values of all storages, which the file has in the order of `keys`.

        Raises ModelError if values are missing.
        """
        for key in keys:
            tensor = self._storages[key]
            wanted_bytes = tensor.numel() * tensor.element_size()
            (count,) = struct.unpack("<q", file.read(8))
            data = bytearray(file.read(wanted_bytes))
            if count != tensor.numel() or len(data) != wanted_bytes:
                raise ModelError(
                    "ends before its data does",
                    where=self._path,
                    remedy="download it again",
                )
            if count:
                tensor.copy_(torch.frombuffer(data, dtype=tensor.dtype))
        if self._storages.keys() != set(keys):
            raise ModelError("lacks data of some tensors", where=self._path)


# The unpickler in pure Python, because the one in C allocates tables as large as a pickle asks for.
class _Unpickler(pickle._Unpickler):
    """Unpickler that runs one pickle of a file and calls only the functions in `_ALLOWED`."""

    # The opcode BYTEARRAY8 is left out: it allocates as many bytes as the pickle says before it
    # reads them, and weights do not need it.
    dispatch: ClassVar = {
        code: load
        for code, load in pickle._Unpickler.dispatch.items()
        if code != pickle.BYTEARRAY8[0]
    }

    def __init__(self, file: BinaryIO, storage: Storage, path: Path) -> None:
        super().__init__(_Limited(file), encoding="utf-8")
        self._storage = storage
        self._path = path
        self._stubs: dict[str, type] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return the object for a name in the pickle: an allowed function, a dtype, or a stub."""
        full = f"{module}.{name}"
        if full in _ALLOWED:
            return _ALLOWED[full]
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        if full not in self._stubs:
            self._stubs[full] = self._stub(full)
        return self._stubs[full]

    def _stub(self, full: str) -> type:
        """Return a stub class for the class `full`, which cannot be called or changed.

        Its instances are made without calling it, as pickle makes modules.
        """
        path = self._path

        class Uncallable(type):
            def __call__(cls, *_: Any, **__: Any) -> NoReturn:
                raise ModelError(
                    f"wants {full} called, which no file of weights needs",
                    where=path,
                    remedy="it may be malicious; do not open it with torch.load",
                )

            def __setattr__(cls, *_: Any) -> NoReturn:
                raise ModelError(f"wants {full} changed", where=path)

        return Uncallable("Stub", (Stub,), {"name": full})

    def persistent_load(self, saved: Any) -> Any:
        """Return the object for a reference to outside of the pickle.

        It is a storage, or the class of a module.
        """
        kind, *rest = saved
        # A class with its source code; only the name of the class is used.
        if kind == "module":
            return rest[0]
        if kind != "storage" or not isinstance(rest[0], torch.dtype):
            raise ModelError(
                f"refers to something that is no tensor: {kind}", where=self._path
            )
        dtype, key, _device, count, *view = rest
        if any(part is not None for part in view):
            raise ModelError("has storages within storages", where=self._path)
        return self._storage(str(key), dtype, int(count))


class _Limited:
    """File that ends after `_MAX_PICKLE_BYTES`, more than any pickle without its tensors has."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = _MAX_PICKLE_BYTES

    def read(self, size: int) -> bytes:
        """Read the next `size` bytes, or fewer at the end."""
        return self._counted(self._file.read(min(size, self._left)))

    def readline(self) -> bytes:
        """Read the bytes up to the end of the line."""
        return self._counted(self._file.readline(self._left))

    def _counted(self, data: bytes) -> bytes:
        self._left -= len(data)
        return data


class _Maker:
    """Wrapper of a function that a pickle may call but not change."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *arguments: Any) -> Any:
        return self._make(*arguments)

    def __setstate__(self, state: Any) -> NoReturn:
        raise TypeError("cannot be changed")


def _build_tensor(
    storage: Tensor,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    *_: Any,
) -> Tensor:
    """Build a tensor from the arguments that torch writes; ignore further ones of newer versions.

    `shape`, `strides` and `offset` describe the tensor's values in the storage.
    """
    # torch checks the bounds, but it allows strides of 0, with which a small file could describe a
    # huge tensor.
    if prod(shape) > storage.numel():
        raise ValueError("a tensor that repeats itself")
    return storage.as_strided(tuple(shape), tuple(strides), offset)


def _tensor_of_parameter(tensor: Tensor, *_: Any) -> Tensor:
    """Return a parameter as a plain tensor."""
    if not isinstance(tensor, Tensor):
        raise TypeError("a parameter that is no tensor")
    return tensor


def _no_device(*_: Any) -> None:
    """Return None for any device: all tensors are on the CPU."""


_ALLOWED: dict[str, Any] = {
    "collections.OrderedDict": OrderedDict,
    "builtins.set": set,
    "__builtin__.set": set,
    "torch._utils._rebuild_tensor": _Maker(_build_tensor),
    "torch._utils._rebuild_tensor_v2": _Maker(_build_tensor),
    "torch._utils._rebuild_parameter": _Maker(_tensor_of_parameter),
    "torch.Size": _Maker(tuple),
    "torch.device": _Maker(_no_device),
}
