"""Fixtures of the tests of prediction."""

from __future__ import annotations

from typing import Any

import pytest

from trinat.pipelines.predict.engine import SerialEngine
from trinat.pipelines.predict.settings import RunSettings


@pytest.fixture
def without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segment in the test process: a worker takes longer to start than a scan."""

    def engine(settings: RunSettings, devices: object, **given: Any) -> SerialEngine:
        return SerialEngine(settings, on_stage=given["on_stage"])

    monkeypatch.setattr("trinat.pipelines.predict.run.local_engine", engine)
