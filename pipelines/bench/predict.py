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

import numpy as np
import torch
from torch import Tensor

from pipelines.bench._steps import in_process
from pipelines.common.process import prepare_process
from segmentation.inference.room import Room
from segmentation.inference.segmenter import Segmenter
from segmentation.io.volume import Volume
from segmentation.models.architectures import PUBLISHED, build
from segmentation.models.checkpoint import save_model
from segmentation.models.model_info import Description
from segmentation.space.conform import conform
from segmentation.space.views import View
from segmentation.synthetic.phantom import phantom

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
    path = root / "head.nii.gz"
    conform(phantom(0)[0]).volume.write(path)
    return path


def _random_quicknat(folder: Path) -> Path:
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
    model, room, out = _random_quicknat(folder), folder / "room.npz", folder / "labels.nii.gz"
    write_room(scan, room, "fast")
    places = (str(path) for path in (scan, out, model))
    return ["-m", "pipelines.bench.predict", *places, threads, str(room)]


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


class Informed(Segmenter):
    """Looks for the brain as any other, and then works where another model has seen one."""

    room: Room

    def find_brain(self, image: Tensor) -> Room:
        super().find_brain(image)
        return self.room


def write_room(scan: Path, path: Path, model: str) -> None:
    """Where a model sees the brain of a scan, without the rim: random labels there mean nothing."""
    segmenter = Segmenter.load(model, device="cpu")
    prepared = segmenter.prepare(Volume.read(scan))
    room = segmenter.find_brain(torch.from_numpy(prepared.volume.data))
    if room.mask is None:
        raise SystemExit(f"{model} sees no brain there")
    np.savez(path, box=[(side.start, side.stop) for side in room.box], mask=room.mask.numpy())


def _run_random(scan: str, out: str, model: str, threads: str, room: str) -> None:
    """From file to file with random weights, in a process of its own."""
    prepare_process(int(threads))
    segmenter = Informed.load(model, device="cpu")
    assert isinstance(segmenter, Informed)
    with np.load(room) as seen:
        x, y, z = (slice(int(start), int(stop)) for start, stop in seen["box"])
        segmenter.room = Room((x, y, z), torch.from_numpy(seen["mask"]))
    segmenter.segment(Volume.read(scan)).labels.write(Path(out), labels=True)


if __name__ == "__main__":
    _run_random(*sys.argv[1:])
