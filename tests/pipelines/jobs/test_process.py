"""Allocation: large buffers are kept, so that a network's layers pay for their pages once."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from trinat.pipelines.jobs.process import tune_allocation

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
    """Minor page faults of a fresh process, counted by the kernel: the machine's load is nothing
    to them."""
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
