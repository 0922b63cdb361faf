"""scripts/bench gpu, rehearsed on a processor: every part gives figures, and none stops another."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pipelines.bench import gpu
from pipelines.bench.gpu import PARTS, Setting, run

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = Setting(device="cpu", batch=2, size=32, tiny=True)


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Parts set up their own process, which here is that of the tests."""
    benchmark = torch.backends.cudnn.benchmark
    tf32 = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = benchmark
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = tf32


@pytest.mark.parametrize("name", [name for name in PARTS if name != "scan"])
def test_every_part_gives_finite_figures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    figures = PARTS[name](TINY)
    assert not [key for key in figures if key.endswith("not measured")]
    numbers = [value for value in figures.values() if isinstance(value, float)]
    assert all(math.isfinite(number) for number in numbers)
    assert numbers or name == "determinism"


def test_numbers_are_right_and_the_same_twice() -> None:
    numerics = PARTS["numerics"](TINY)
    assert numerics["float32: logits"] < 1e-5 < numerics["bf16: logits"] < 0.1
    assert PARTS["determinism"](TINY)["deterministic algorithms: the same bits twice"]


@pytest.mark.slow
def test_a_scan_goes_from_file_to_file() -> None:
    assert PARTS["scan"](TINY)["published, random weights: second scan, s"] > 0


def test_a_scan_is_skipped_where_nibabel_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "nibabel", None)
    assert "a scan is not read without it" in PARTS["scan"](TINY)["skipped"]


def test_a_part_that_hangs_or_fails_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = {"device": {"failed": "took too long"}, "step": {"slices/s": 3.0}}
    monkeypatch.setattr(gpu, "_in_process", lambda name, setting: outcomes[name])
    with pytest.raises(SystemExit):
        run("device", "step", "--device", "cpu", "--tiny", "--out", str(tmp_path))
    parts = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert parts["device"]["failed"] == "took too long"
    assert parts["step"]["slices/s"] == 3
    assert "slices/s" in capsys.readouterr().out


def test_a_process_has_a_limit_of_time_and_its_error_is_kept() -> None:
    late = gpu._in_process("device", Setting(device="cpu", tiny=True, seconds=0.01))
    assert late == {"failed": "took more than 0 s"}


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("stepp")
    assert "no such part: stepp" in capsys.readouterr().err
