"""scripts/bench train: ratios of what its processes measured, and one of them for real."""

from __future__ import annotations

import json

import pytest

from pipelines.bench import train
from pipelines.bench.train import MONAI


def test_ratios_are_to_monai_in_float32_within_a_turn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = {MONAI: 6.0, "published": 3.0, "fast": 0.5}

    def measure(name: str, *_: object) -> dict[str, float]:
        clock = taken[name]
        return {
            "float32 clock": clock,
            "float32 processor": 2 * clock,
            "float32 rate": 1e9,
            "operations": 1e9,
        }

    monkeypatch.setattr(train, "measure", measure)
    train.run("2")
    lines = {line[:16].strip(): line.split() for line in capsys.readouterr().out.splitlines()}
    assert lines["published, float"][2:] == ["0.33", "6.000", "s", "2.0x", "2.0x", "17%"]
    assert lines["fast, float32"][2:] == ["2.00", "1.000", "s", "12.0x", "12.0x", "100%"]


def test_both_layouts_are_measured_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = {"float32 clock": 1.0, "float32 processor": 1.0, "float32 rate": 1.0}
    asked: list[object] = []

    def measure(*arguments: object) -> dict[str, float]:
        asked.append((arguments[0], arguments[-1]))
        return {**figures, "operations": 1.0}

    monkeypatch.setattr(train, "measure", measure)
    train.run("1", layouts="both")
    layouts = ("contiguous_format", "channels_last")
    assert asked == [(MONAI, "used"), *((n, x) for n in ("published", "fast") for x in layouts)]
    assert "fast, float32, channels_last" in capsys.readouterr().out


@pytest.mark.usefixtures("one_thread")
def test_a_process_measures_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    train.probe("fast", 32, 2, 1, 1)
    figures = json.loads(capsys.readouterr().out)
    assert figures["float32 clock"] > 0
    # 11.8 GFLOP at 256x256 forward; a step makes three times as many, less the first layer's.
    assert figures["operations"] == pytest.approx(3 * 11.8e9 / 64, rel=0.05)
