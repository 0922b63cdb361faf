"""The arithmetic chosen for a processor; the flags are faked, the choice is real."""

from __future__ import annotations

import ast
import platform
from pathlib import Path

import pytest
import torch
from helpers.refusals import refusal

from trinat.segmentation.errors import ConfigError, DeviceError
from trinat.segmentation.inference.runtime import choose_precision
from trinat.segmentation.models.hardware import bfloat16_hardware, refuse_forked_gpu

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("machine", "amx", "avx512_bf16", "onednn", "expected"),
    [
        ("x86_64", True, True, True, "AMX"),  # Sapphire Rapids
        ("AMD64", False, True, True, "AVX512-BF16"),  # Cooper Lake, Zen 4
        (
            "x86_64",
            False,
            False,
            True,
            "",
        ),  # Skylake to Ice Lake: oneDNN would emulate it
        ("x86_64", False, False, False, ""),  # no AVX-512
        ("aarch64", False, False, True, "ARM bf16"),
        ("aarch64", False, False, False, ""),
    ],
)
def test_bfloat16_is_chosen_where_the_processor_has_it(
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    amx: bool,
    avx512_bf16: bool,
    onednn: bool,
    expected: str,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: onednn)
    assert bfloat16_hardware(CPU) == expected
    assert choose_precision("auto", CPU) is (
        torch.bfloat16 if expected else torch.float32
    )
    # The precision that the user requests is used, whatever the hardware.
    assert choose_precision("float32", CPU) is torch.float32


def test_without_onednn_nothing_computes_in_bfloat16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert bfloat16_hardware(CPU) == ""


def test_float16_is_for_gpus() -> None:
    assert choose_precision("float16", torch.device("cuda")) is torch.float16
    with pytest.raises(DeviceError, match="do not compute in float16"):
        choose_precision("float16", CPU)


def test_an_unknown_precision_is_told_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match="'bf16' is no precision: use auto, float32, bfloat16"
    ):
        choose_precision("bf16", CPU)  # type: ignore[arg-type]


def test_one_module_alone_calls_what_only_cuda_has() -> None:
    root = Path(__file__).parents[3]
    files = [
        *(root / "segmentation").rglob("*.py"),
        *(root / "pipelines").rglob("*.py"),
    ]
    found = {
        str(path.relative_to(root))
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if (
            isinstance(node, ast.Attribute)
            and ast.unparse(node).startswith("torch.cuda")
        )
        or (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith("torch.cuda")
        )
    }
    # The list of shipped models asks whether there is a GPU at all.
    assert found == {
        "segmentation/models/hardware.py",
        "segmentation/models/zoo/__init__.py",
    }


def test_a_forked_process_is_told_that_it_has_no_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    refuse_forked_gpu(CPU)
    with refusal(DeviceError, "cuda"):
        refuse_forked_gpu(torch.device("cuda"))
