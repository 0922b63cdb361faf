"""What the tests of pipelines share."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The log of trinat, from INFO on."""
    caplog.set_level(logging.INFO, "trinat")
    return caplog
