"""Fixtures of the tests of pipelines."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Return the log of trinat from level INFO."""
    caplog.set_level(logging.INFO, "trinat")
    return caplog
