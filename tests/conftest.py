"""Fixtures that the whole suite shares."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests that run beside each other share the cores, as do the processes that they start.
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    os.environ.setdefault(
        "OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers))
    )


@pytest.fixture(scope="session")
def dev_data() -> Path:
    """The folder of development data; the project's tests also pass without it."""
    folder = os.environ.get("TRINAT_DATA", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("no development data: TRINAT_DATA is not set to a folder")
    return Path(folder).resolve()


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """torch as in the processes that tests start: sums in another order have other last bits."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests for a GPU are skipped, and say so, where there is none."""
    if not any("gpu" in item.keywords for item in items):
        return
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
