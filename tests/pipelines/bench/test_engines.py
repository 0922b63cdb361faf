"""The bench of ways to run a network: each gives the same labels, and its figures are told."""

from __future__ import annotations

import pytest
from helpers.overfitted import random_model

from pipelines.bench.engines import run


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_ways_are_held_against_the_one_that_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    run(str(random_model()), "sagittal", "1", "1", "trained plain,onnx")
    told = capsys.readouterr().out
    rows = {
        line.split("|")[1].strip(): line.split("|")
        for line in told.splitlines()
        if line.startswith("| ") and "%" in line
    }
    assert set(rows) == {"folded channels-last", "trained plain", "onnx"}
    for cells in rows.values():
        assert float(cells[5].strip(" %")) > 99.9
    assert "bottleneck" in told
