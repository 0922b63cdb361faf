"""One whole head of 256³ voxels at 1 mm, three views, from file to file, against the baseline.

The baseline is the published network run slice by slice, eager, float32, 256x256: a few slices are
timed in the same run and multiplied. Processor seconds are told beside those of the clock: on a
machine that does other work too, they are what can be compared.

`fast` is run as `trinat predict`. `quicknat` has random weights, which take the time of trained
ones but find no brain: it works where `fast` sees one, and writes labels alone.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pipelines.bench._steps import in_process

_SLICES = 3 * 256
_BASELINE = """
import json, torch
from pipelines.bench._steps import timing
from segmentation.models.architectures import PUBLISHED, build
torch.set_num_threads({threads})
network = build(PUBLISHED).eval().to(memory_format=torch.contiguous_format)
slice_ = torch.randn(1, 1, 256, 256)
with torch.inference_mode():
    clock, processor = timing(lambda: network(slice_).argmax(1))
print(json.dumps({{"clock": clock, "processor": processor}}))
"""


def run(threads: str = "2", repetitions: str = "1", models: str = "fast,quicknat") -> None:
    """Print seconds, ratio and peak memory of `fast` and of `quicknat` with random weights."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        scan = _head(root)
        baseline = in_process(_BASELINE.format(threads=int(threads)))
        clock, processor = (_SLICES * baseline[key] for key in ("clock", "processor"))
        print(f"one head of 256x256x256, {threads} threads, load {os.getloadavg()[0]:.1f}")
        print(f"{'baseline':10} {clock:8.1f} s   processor {processor:8.1f} s   (3 x 256 slices)")
        for name in models.split(","):
            prepare = _random_command if name == "quicknat" else _predict_command
            # A folder for each round: `predict` does not do again what it has done.
            rounds = [
                _measure(prepare(scan, root / f"{name}-{i}", name, threads))
                for i in range(int(repetitions))
            ]
            seconds, work, peak = (
                statistics.median(values) for values in zip(*rounds, strict=True)
            )
            print(
                f"{name:10} {seconds:8.1f} s   processor {work:8.1f} s   peak {peak:5.2f} GiB   "
                f"{clock / seconds:.0f} times faster ({processor / work:.0f} by processor)"
            )


def _head(root: Path) -> Path:
    """A phantom in a field of 256³, as scanners and FreeSurfer give it."""
    from segmentation.space.conform import conform
    from segmentation.synthetic.phantom import phantom

    path = root / "head.nii.gz"
    conform(phantom(0)[0]).volume.write(path)
    return path


def _random_quicknat(folder: Path) -> Path:
    import torch

    from segmentation.models.architectures import PUBLISHED, build
    from segmentation.models.checkpoint import save_model
    from segmentation.models.model_info import Description
    from segmentation.space.views import View

    torch.manual_seed(0)
    networks = {
        view: build(PUBLISHED.model_copy(update={"classes": 19 if view is View.SAGITTAL else 33}))
        for view in View
    }
    save_model(folder, Description(name="random"), networks)
    return folder


def _predict_command(scan: Path, out: Path, model: str, threads: str) -> list[str]:
    arguments = (str(scan), "--out", str(out), "--model", model, "--threads", threads, "--quiet")
    return ["-c", "from pipelines.cli import main; main()", "predict", *arguments]


def _random_command(scan: Path, folder: Path, _: str, threads: str) -> list[str]:
    from pipelines.bench._predict_random import write_room

    model, room, out = _random_quicknat(folder), folder / "room.npz", folder / "labels.nii.gz"
    write_room(scan, room, "fast")
    places = (str(path) for path in (scan, out, model))
    return ["-m", "pipelines.bench._predict_random", *places, threads, str(room)]


def _measure(command: list[str]) -> tuple[float, float, float]:
    """Seconds from start to end of a command, processor seconds, and the largest process' GiB."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, *command])
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[1]} ended with {process.returncode}")
    # Children that were waited for are counted in, and the peak is the largest process's.
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20
