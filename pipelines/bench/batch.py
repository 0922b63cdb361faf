"""Many tiny scans through `trinat predict`: memory as they go by, and the worth of two workers.

    scripts/bench batch [SCANS] [COMPARED] [ROUNDS] [MODEL]

SCANS go through one worker of one thread, with pictures, and the memory of its process is printed
on the way. COMPARED go through one and through two workers of one thread, without pictures, in
turn. A scan is a part of a phantom of 24³ voxels.
"""

from __future__ import annotations

import re
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from pipelines.common.process import cpu_count
from pipelines.predict.ledger import Entry
from pipelines.predict.outputs import OutputSettings
from pipelines.predict.run import Plan, predict
from segmentation.io.volume import Volume

__all__ = ["memory_mib", "run"]

_SIDE = 24
_REPORTS = 10
_WORKERS = (1, 2)


def run(scans: str = "1000", compared: str = "200", rounds: str = "3", model: str = "fast") -> None:
    with tempfile.TemporaryDirectory(prefix="trinat-") as folder:
        root = Path(folder)
        _write_scans(root / "scans", max(int(scans), int(compared)))
        _watch_memory(root, int(scans), model)
        rates: dict[int, list[float]] = {workers: [] for workers in _WORKERS}
        for turn in range(int(rounds)):
            for workers in _WORKERS:
                out = root / f"out-{workers}-{turn}"
                rates[workers].append(_rate(root / "scans", out, int(compared), workers, model))
        one, two = (statistics.median(rates[workers]) for workers in _WORKERS)
        print(
            f"scans a minute, medians of {rounds}, one thread a worker on {cpu_count()} processors:"
            f" one worker {60 * one:.1f}, two {60 * two:.1f}: {two / one:.2f} times"
        )


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident memory of a process, now and at its peak, as Linux tells it."""
    status = Path(f"/proc/{pid}/status").read_text()
    now, peak = (
        int(re.findall(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)[0]) / 1024
        for name in ("VmRSS", "VmHWM")
    )
    return now, peak


def _watch_memory(root: Path, count: int, model: str) -> None:
    step, seen = max(1, count // _REPORTS), Counter[str]()
    print(f"{count} scans of {_SIDE}³, one worker, one thread, with pictures")
    start = time.perf_counter()

    def tell(entry: Entry) -> None:
        seen[entry.status] += 1
        if seen.total() % step == 0 and entry.worker:
            now, peak = memory_mib(int(entry.worker.split(":")[1]))
            print(
                f"  after {seen.total():5d} scans, {time.perf_counter() - start:6.0f} s: "
                f"worker {now:6.0f} MiB, peak {peak:6.0f} MiB",
                flush=True,
            )

    inputs = _inputs(root / "scans", count)
    predict(Plan(inputs, root / "out", model, devices=("cpu",), threads=1), on_entry=tell)
    if seen["done"] != count:
        raise SystemExit(f"of {count} scans {dict(seen)}")


def _rate(scans: Path, out: Path, count: int, workers: int, model: str) -> float:
    """Scans a second, from when the first is done: the processes' start is left out."""
    ends: list[float] = []
    outcome = predict(
        Plan(
            _inputs(scans, count),
            out,
            model,
            output=OutputSettings(picture=False),
            devices=("cpu",),
            workers=workers,
            threads=1,
        ),
        on_entry=lambda _: ends.append(time.perf_counter()),
    )
    if outcome.done != count:
        raise SystemExit(f"of {count} scans {outcome}")
    return (count - 1) / (ends[-1] - ends[0])


def _inputs(folder: Path, count: int) -> list[str]:
    return [str(path) for path in sorted(folder.iterdir())[:count]]


def _write_scans(folder: Path, count: int) -> None:
    """Parts of one phantom, each from another place, so that none is like another."""
    from pipelines.models.calibrate import middle

    folder.mkdir()
    data = (middle(1)[0].data * 500).astype(np.int16)
    draw = np.random.default_rng(0)
    for number in range(count):
        box = tuple(
            slice(start, start + _SIDE)
            for start in (int(draw.integers(0, n - _SIDE)) for n in data.shape)
        )
        Volume(data[box], np.eye(4)).write(folder / f"{number:05}.nii.gz")
