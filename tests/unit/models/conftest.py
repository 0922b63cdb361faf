"""Fixtures of the tests of model folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.small_model import save_small


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a small model of three views, for a test to damage."""
    return save_small(tmp_path / "model")
