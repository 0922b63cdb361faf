"""A real SLURM of one node: a job array with a task that is requeued.

scripts/test-slurm starts SLURM; without it these tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from helpers.overfitted import random_model
from helpers.serial import write_heads

from trinat.pipelines.predict.run import merge
from trinat.pipelines.study.ledger import read_entries
from trinat.segmentation.io.files import sha256_of

ARRAY = Path(__file__).parents[2] / "scripts/slurm/array.sh"

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("SLURM_CONF") or shutil.which("sbatch") is None,
        reason="no SLURM: scripts/test-slurm starts one",
    ),
    pytest.mark.slow,
]


def call(*command: object) -> str:
    done = subprocess.run(
        [*map(str, command)], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def wait_for(condition, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    return write_heads(tmp_path / "in", *(f"s{i:02}.nii.gz" for i in range(16)))


def test_an_array_with_a_requeued_task_does_every_scan_once(
    scans: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    job = call(
        *("sbatch", "--parsable", "--array=1-2", "--cpus-per-task=1", "--mem=0"),
        *(f"--output={tmp_path}/%A_%a.log", ARRAY, scans, "--out", out),
        *("--model", random_model(), "--no-pictures"),
    )
    ledger = out / "run.shard-1-of-2.jsonl"
    wait_for(lambda: ledger.exists() and ledger.stat().st_size > 0)
    call("scontrol", "requeue", f"{job}_1")
    wait_for(lambda: call("squeue", "-h", "-j", job) == "")
    outcome = merge(out)
    assert (outcome.done, outcome.failed) == (16, 0)
    entries = read_entries([out / "run.jsonl"])
    assert set(entries) == {f"s{i:02}" for i in range(16)}
    for entry in entries.values():
        for path, digest in entry.outputs.items():
            assert sha256_of(out / path) == digest
    assert not list(out.rglob("*.tmp"))
