"""scripts/gpu/train-quicknat, rehearsed on a CPU with a tiny network, from heads to a model."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from segmentation.heads import phantom_heads
from segmentation.models.checkpoint import load_model
from segmentation.training.state import read_state
from segmentation.views import View

SCRIPT = Path(__file__).parents[2] / "scripts/gpu/train-quicknat"
TINY = ("network.filters=4", "network.depth=2", "network.kernel=3", "batch=2", "compile=false")
SMALL = ("data.rows=32", "data.columns=32", "data.epoch_slices=1000")


@pytest.mark.slow
def test_a_view_is_trained_within_its_budget(tmp_path: Path) -> None:
    phantom_heads(4).save(tmp_path / "heads.npz")
    out = tmp_path / "out"
    settings = [word for setting in TINY + SMALL for word in ("--set", setting)]
    command = [sys.executable, SCRIPT, "axial", tmp_path / "heads.npz", out, "--seconds", "60"]
    began = time.monotonic()
    done = subprocess.run(
        [*command, *settings],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 60
    model = load_model(out / "model")
    assert set(model.networks) == {View.AXIAL}
    assert model.info.precision == "float16"
    pieces = sorted((out / "train/axial").glob("state-*.state.*"))
    assert all(path.stat().st_size < 16 << 20 for path in out.rglob("*") if path.is_file())
    joined = tmp_path / "joined.state"
    joined.write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    assert read_state(joined).counters.step > 0
