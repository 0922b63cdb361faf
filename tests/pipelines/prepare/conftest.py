"""Fixtures of the tests of downloads: a server on loopback, and short waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.loopback import Server

from trinat.pipelines.prepare import download


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the waits between attempts, which are recorded instead of waited for."""
    recorded: list[float] = []
    monkeypatch.setattr(download, "sleep", recorded.append)
    return recorded
