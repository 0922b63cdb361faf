"""Messages of errors."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from trinat.segmentation import errors
from trinat.segmentation.errors import extra_remedy, reason_of


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("can't start new thread"),
        RuntimeError("can't allocate read lock"),
        RuntimeError("could not create a primitive"),
        RuntimeError("std::bad_alloc"),
        OSError(errno.ENOMEM, "Cannot allocate memory", "/data/scan.nii"),
        OSError(
            "Unable to synchronously create file (unable to allocate memory block)"
        ),
        ValueError("Unable to create dataset (memory allocation failed for chunk)"),
        SystemError("<function f> returned NULL without setting an exception"),
        SystemError("error return without exception set"),
        ImportError("libwebp.so.7: failed to map segment from shared object"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:1] . DefaultCPUAllocator: can't allocate memory"
        ),
    ],
)
def test_want_of_memory_is_told_as_such_whoever_notices_it(error: Exception) -> None:
    assert reason_of(error).startswith("out of memory: ")


def test_a_name_of_a_file_is_not_taken_for_want_of_memory() -> None:
    error = FileNotFoundError(
        errno.ENOENT, "No such file or directory", "std::bad_alloc"
    )
    assert reason_of(error).startswith("std::bad_alloc: No such file or directory: ")


def test_missing_packages_are_installed_by_a_command_that_works_where_it_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert extra_remedy("export") == "scripts/install export"
    # Without a clone the packages are named, because trinat is not on PyPI.
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "segmentation/errors.py"))
    command = extra_remedy("export")
    assert command.startswith("pip install 'onnx>=")
    assert "'onnxruntime>=" in command
    assert "trinat" not in command


def test_another_error_is_a_fault_of_ours() -> None:
    assert reason_of(RuntimeError("no")) == "RuntimeError: no: a fault of trinat"
