"""Time to segment one whole head of 256³ voxels at 1 mm, against the baseline.

Three views, from file to file. The baseline is the published network run slice by slice, eager,
float32, 256x256: a few slices are timed in the same run and multiplied. Processor seconds are
printed beside wall-clock seconds, because only they can be compared on a machine that does
other work too.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benches._processes import in_process
from trinat.segmentation.space.conform import conform
from trinat.segmentation.synthetic.phantom import phantom

_SLICES = 3 * 256
_BASELINE = """
import json, torch
from benches._processes import timing
from trinat.segmentation.models.architectures import PUBLISHED, build
torch.set_num_threads({threads})
network = build(PUBLISHED).eval().to(memory_format=torch.contiguous_format)
slice_ = torch.randn(1, 1, 256, 256)
with torch.inference_mode():
    clock, processor = timing(lambda: network(slice_).argmax(1))
print(json.dumps({{"clock": clock, "processor": processor}}))
"""


def run(
    threads: str = "2",
    repetitions: str = "1",
    models: str = "fast",
    precision: str = "auto",
) -> None:
    """Print seconds, ratio and peak memory of these models (names or folders)."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        scan = root / "head.nii.gz"
        # In a field of view of 256³, as scanners and FreeSurfer give it.
        conform(phantom(0)[0]).volume.write(scan)
        baseline = in_process(_BASELINE.format(threads=int(threads)))
        clock, processor = (_SLICES * baseline[key] for key in ("clock", "processor"))
        print(
            f"one head of 256x256x256, {threads} threads, load {os.getloadavg()[0]:.1f}"
        )
        print(
            f"{'baseline':10} {clock:8.1f} s   processor {processor:8.1f} s   (3 x 256 slices)"
        )
        for number, model in enumerate(models.split(",")):
            given = (str(scan), "--model", model, "--threads", threads, "--quiet")
            wanted = ("--precision", precision)
            # A folder for each round, because `predict` skips scans that it has done.
            rounds = [
                _measure(
                    "predict", *given, *wanted, "--out", str(root / f"{number}-{i}")
                )
                for i in range(int(repetitions))
            ]
            seconds, work, peak = (
                statistics.median(values) for values in zip(*rounds, strict=True)
            )
            print(
                f"{model:10} {seconds:8.1f} s   processor {work:8.1f} s   peak {peak:5.2f} GiB   "
                f"{clock / seconds:.0f} times faster ({processor / work:.0f} by processor)"
            )


def _measure(*command: str) -> tuple[float, float, float]:
    """Run a command; return wall-clock seconds, processor seconds and peak GiB.

    The peak is that of the largest process.
    """
    start = time.perf_counter()
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from trinat.pipelines.cli import main; main()",
            *command,
        ]
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[0]} ended with {process.returncode}")
    # The usage includes children that were waited for; the peak is that of the largest process.
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20
