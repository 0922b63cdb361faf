"""Allocation: large buffers are kept, so that a network's layers pay for their pages once."""

from __future__ import annotations

import platform

import pytest

from pipelines.bench.allocation import measure
from pipelines.process import tune_allocation


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator only")
def test_tuned_allocation_saves_most_page_faults() -> None:
    assert tune_allocation()
    # Faults are counted by the kernel: unlike seconds they do not depend on the machine's load.
    assert measure("default", calls=3)["faults"] > 5 * measure("tuned", calls=3)["faults"]


def test_other_allocators_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert tune_allocation() is False
