"""scripts/bench gpu, rehearsed on a processor: every part gives figures, and none stops another."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from benches import gpu
from benches.gpu import PARTS, Figures, Setting, named, run

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = Setting(device="cpu", batch=2, size=32, tiny=True)


def all_of(name: str) -> Figures:
    return {key: value for found in PARTS[name](TINY) for key, value in found.items()}


@pytest.mark.parametrize("name", PARTS)
def test_every_part_gives_finite_figures(name: str) -> None:
    figures = all_of(name)
    assert not [key for key in figures if key.endswith("not measured")]
    numbers = [value for value in figures.values() if isinstance(value, float)]
    assert all(math.isfinite(number) for number in numbers)
    assert numbers


def test_a_part_that_fails_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(_: Setting) -> Iterator[Figures]:
        yield {"slices/s": 3.0}
        raise RuntimeError("no compiler")

    monkeypatch.setitem(gpu.PARTS, "synthesis", failing)
    with pytest.raises(SystemExit):
        run("synthesis", "device", "--device", "cpu", "--tiny", "--out", str(tmp_path))
    parts = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert parts["synthesis"] == {
        "slices/s": 3,
        "not measured": "RuntimeError: no compiler",
    }
    assert parts["device"]["torch"] == torch.__version__
    assert parts["device"]["bfloat16 matrix product, TFLOP/s"] > 0
    assert "slices/s" in capsys.readouterr().out


def test_figures_before_a_failure_are_named_and_the_failure_too() -> None:
    def figures() -> Iterator[Figures]:
        yield {"slices/s": 3.0}
        raise RuntimeError("no compiler")

    first, second = named("eager: ", figures())
    assert first == {"eager: slices/s": 3}
    assert second == {"eager: not measured": "RuntimeError: no compiler"}


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("stepp")
    assert "no such part: stepp" in capsys.readouterr().err
