"""Allocation: large buffers are kept, so that a network's layers pay for their pages once."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch

from trinat.pipelines.jobs.process import prepare_training, tune_allocation

PROBE = """
import resource, sys
from trinat.pipelines.jobs.process import tune_allocation
if sys.argv[1] == "tuned":
    tune_allocation()
import torch
layers = [torch.nn.Conv2d(1 if i == 0 else 32, 32, 3, padding=1) for i in range(8)]
network, slices = torch.nn.Sequential(*layers), torch.randn(6, 1, 256, 256)
with torch.inference_mode():
    for _ in range(3):
        network(slices)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def faults(mode: str) -> int:
    """Return the minor page faults of a fresh process, which other load does not affect."""
    command = [sys.executable, "-c", PROBE, mode]
    return int(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
    )


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator only")
def test_tuned_allocation_saves_most_page_faults() -> None:
    assert tune_allocation()
    assert faults("default") > 5 * faults("tuned")


def test_other_allocators_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert tune_allocation() is False


def test_a_recipe_may_want_the_same_bits_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    # Without a GPU, there is no generator of its random numbers.
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: nullcontext())
    gpu = torch.device("cuda")
    try:
        with prepare_training(gpu):
            assert torch.backends.cudnn.benchmark
            assert not torch.are_deterministic_algorithms_enabled()
            assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
        with prepare_training(gpu, deterministic=True):
            assert not torch.backends.cudnn.benchmark
            assert torch.are_deterministic_algorithms_enabled()
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def test_training_leaves_the_settings_and_random_numbers_of_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    before = torch.get_rng_state()
    with prepare_training(torch.device("cpu"), deterministic=True):
        torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.benchmark
