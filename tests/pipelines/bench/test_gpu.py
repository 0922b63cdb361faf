"""scripts/bench gpu, rehearsed on a processor: every part gives figures, and none stops another."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from pipelines.bench import gpu
from pipelines.bench.gpu import PARTS, Figures, Setting, named, part, run

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = Setting(device="cpu", batch=2, size=32, tiny=True)


def all_of(name: str) -> Figures:
    return {key: value for found in PARTS[name](TINY) for key, value in found.items()}


def told(code: str, seconds: float = 60) -> Figures:
    """What is kept of a process that runs `code`."""
    return gpu._told([sys.executable, "-c", code], seconds)


@pytest.mark.parametrize("name", PARTS)
def test_every_part_gives_finite_figures(name: str) -> None:
    figures = all_of(name)
    assert not [key for key in figures if key.endswith("not measured")]
    numbers = [value for value in figures.values() if isinstance(value, float)]
    assert all(math.isfinite(number) for number in numbers)
    assert numbers


def test_a_part_that_hangs_or_fails_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = {"device": {"failed": "took too long"}, "network": {"slices/s": 3.0}}
    monkeypatch.setattr(gpu, "_in_process", lambda name, setting: outcomes[name])
    with pytest.raises(SystemExit):
        run("device", "network", "--device", "cpu", "--tiny", "--out", str(tmp_path))
    parts = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert parts["device"]["failed"] == "took too long"
    assert parts["network"]["slices/s"] == 3
    assert "slices/s" in capsys.readouterr().out


def test_what_was_found_before_the_time_was_out_is_kept() -> None:
    found = told("print('{\"a\": 1}', flush=True); import time; time.sleep(60)", seconds=3)
    assert found == {"a": 1, "failed": "took more than 3 s"}


def test_what_was_found_before_a_failure_is_kept_and_why_it_failed() -> None:
    code = 'print(\'{"a": 1}\\nfrom a compiler\\n7\\n{"b": 2}\\n{"torn\'); 1 / 0'
    found = told(code)
    assert "ZeroDivisionError" in str(found.pop("failed"))
    assert found == {"a": 1, "b": 2}
    assert told("import os; os._exit(3)") == {"failed": "ended with 3"}


def test_a_part_tells_each_figure_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    part("device", asdict(TINY))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [next(iter(line)) for line in lines] == [
        "name",
        "copy, GB/s (read and written)",
        "bfloat16 matrix product, TFLOP/s",
    ]


def test_figures_before_a_failure_are_named_and_the_failure_too() -> None:
    def figures() -> Iterator[Figures]:
        yield {"slices/s": 3.0}
        raise RuntimeError("no compiler")

    first, second = named("eager", figures())
    assert first == {"eager: slices/s": 3}
    assert second == {"eager: not measured": "RuntimeError: no compiler"}


def test_a_part_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    run("device", "--device", "cpu", "--tiny", "--out", str(tmp_path))
    found = json.loads((tmp_path / "gpu.json").read_text())["parts"]["device"]
    assert found["torch"] == torch.__version__
    assert found["bfloat16 matrix product, TFLOP/s"] > 0


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("stepp")
    assert "no such part: stepp" in capsys.readouterr().err
