"""Fixtures of the tests of downloads: a server on loopback, and a policy with short waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.loopback import Server

from trinat.pipelines.prepare.download import Policy


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def policy(pauses: list[float]) -> Policy:
    return Policy(attempts=3, timeout_s=0.3, pause=pauses.append)
