"""Fixtures that the whole suite shares."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def dev_data() -> Path:
    """The folder of development data; the project's tests also pass without it."""
    folder = os.environ.get("TRINAT_DATA", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("no development data: TRINAT_DATA is not set to a folder")
    return Path(folder).resolve()


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
