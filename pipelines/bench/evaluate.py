"""All metrics of one 256³ pair, against surface-distance and MONAI called label by label."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from pipelines.measuring import Mappings, Task, measure_all
from pipelines.pairing import Pair, ScanFile
from pipelines.process import cpu_count
from segmentation.labels import load_scheme
from segmentation.metrics import compare
from segmentation.phantom import phantom
from segmentation.volume import Volume

_SCHEME = load_scheme("quicknat33")
_SPACING_MM = (1.0, 1.0, 1.0)
_TOLERANCE_MM = 1.0
_PAIRS = 100

# Peak memory of a fresh process that compares one pair and does nothing else.
_PROBE = """
import sys
import numpy as np
from pathlib import Path
from segmentation.labels import load_scheme
from segmentation.metrics import compare
pair = np.load(sys.argv[1])
compare(pair["truth"], pair["prediction"], (1.0, 1.0, 1.0), load_scheme("quicknat33"))
# Not getrusage: its maximum begins with the parent's.
status = Path("/proc/self/status").read_text().split()
print(int(status[status.index("VmHWM:") + 1]) / 1024)
"""


def run(repetitions: str = "3") -> None:
    """Medians over repetitions, ours and theirs in turn, on one core each."""
    import torch

    torch.set_num_threads(1)
    truth, prediction = pair()
    voxels = np.count_nonzero(truth)
    print(f"a phantom of {truth.shape}, {voxels:,} voxels in 32 structures, against itself warped")
    contestants: dict[str, Callable[[NDArray[Any], NDArray[Any]], object]] = {
        "trinat, all metrics": lambda t, p: compare(t, p, _SPACING_MM, _SCHEME).rows(),
        "surface-distance, 3 metrics": surface_distance,
        "MONAI, 5 metrics": monai,
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(int(repetitions)):
        for name, measure in contestants.items():
            start = time.perf_counter()
            measure(truth, prediction)
            seconds[name].append(time.perf_counter() - start)
    ours = statistics.median(seconds["trinat, all metrics"])
    for name, times in seconds.items():
        median = statistics.median(times)
        print(f"{name:30s} {median:7.2f} s   {median / ours:6.1f} x")
    with tempfile.TemporaryDirectory() as folder:
        peak_mib = _memory(Path(folder), truth, prediction)
        print(f"peak memory of a process that compares: {peak_mib:.0f} MiB")
        _spread(Path(folder), truth, prediction)


def pair() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A phantom's truth in a 256³ grid, and the same moved by a smooth field of 1 mm SD."""
    _, labels = phantom(0, spacing_mm=_SPACING_MM)
    truth = np.zeros((256, 256, 256), np.uint8)
    indices = _SCHEME.from_freesurfer(labels.data)
    x, y, z = indices.shape
    truth[:x, :y, :z] = indices
    rng = np.random.default_rng(0)
    places = []
    for grid in np.meshgrid(*(np.arange(256.0),) * 3, indexing="ij", sparse=True):
        coarse = ndimage.gaussian_filter(rng.normal(size=(32, 32, 32)), 1)
        field = ndimage.zoom(coarse / coarse.std(), 8, order=1)
        places.append(grid + field)
    moved = ndimage.map_coordinates(truth, places, order=0)
    return truth, moved.astype(np.uint8)


def surface_distance(truth: NDArray[np.uint8], prediction: NDArray[np.uint8]) -> None:
    """HD95, average distance and surface Dice of each label, as its README calls it."""
    import surface_distance as theirs

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its scipy namespaces are old
        for k in range(1, len(_SCHEME)):
            found = theirs.compute_surface_distances(truth == k, prediction == k, _SPACING_MM)
            theirs.compute_robust_hausdorff(found, 95)
            theirs.compute_average_surface_distance(found)
            theirs.compute_surface_dice_at_tolerance(found, _TOLERANCE_MM)


def monai(truth: NDArray[np.uint8], prediction: NDArray[np.uint8]) -> None:
    """Dice, IoU, HD95, average distance and surface Dice of each label."""
    import torch
    from monai.metrics import (
        compute_average_surface_distance,
        compute_hausdorff_distance,
        compute_iou,
        compute_surface_dice,
    )
    from monai.metrics.meandice import compute_dice

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in range(1, len(_SCHEME)):
            maps: dict[str, Any] = {
                "y_pred": torch.from_numpy(prediction == k)[None, None],
                "y": torch.from_numpy(truth == k)[None, None],
            }
            compute_dice(**maps)
            compute_iou(**maps)
            maps |= {"spacing": _SPACING_MM, "include_background": True}
            compute_hausdorff_distance(**maps, percentile=95)
            compute_average_surface_distance(**maps, symmetric=True)
            compute_surface_dice(**maps, class_thresholds=[_TOLERANCE_MM], use_subvoxels=True)


def _memory(folder: Path, truth: Any, prediction: Any) -> float:
    file = folder / "pair.npz"
    np.savez(file, truth=truth, prediction=prediction)
    command = [sys.executable, "-c", _PROBE, str(file)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _spread(folder: Path, truth: Any, prediction: Any) -> None:
    """Pairs of half the resolution from files: one process, then all processors, and each one's
    share of the work. Both start from nothing, and the start counts."""
    files = {}
    for name, indices in (("truth", truth), ("prediction", prediction)):
        path = folder / f"{name}.nii.gz"
        small = np.ascontiguousarray(indices[::2, ::2, ::2])
        Volume(_SCHEME.to_freesurfer(small), np.diag([2.0, 2.0, 2.0, 1.0])).write(path, labels=True)
        files[name] = ScanFile(name, path, "sub-01")
    pair = Pair(files["truth"], files["prediction"], "")
    tasks = [Task("model", pair, _SCHEME.name, Mappings()) for _ in range(_PAIRS)]
    seconds = {}
    for jobs in dict.fromkeys((1, cpu_count())):
        start, busy = time.perf_counter(), time.process_time()
        used: dict[int, float] = {}
        for _ in measure_all(tasks, jobs):
            for worker in active_children():
                used[worker.pid or 0] = _processor_s(worker.pid)
        seconds[jobs] = time.perf_counter() - start
        total = time.process_time() - busy + sum(used.values())
        shares = ", ".join(f"{s / sum(used.values()):.0%}" for s in used.values())
        print(
            f"{_PAIRS} pairs of 128³, {jobs} process{'es' if jobs > 1 else ''}: "
            f"{seconds[jobs]:.1f} s by the clock, {total:.1f} s of processor time"
            + (f"; shares of the processes {shares}" if used else "")
        )
    if len(seconds) > 1:
        print(
            f"{cpu_count()} cores do {seconds[1] / seconds[cpu_count()]:.2f} times the work of one"
        )


def _processor_s(pid: int | None) -> float:
    """Used so far by a process, as Linux tells it; 0 elsewhere or where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) * 1e-9
    except OSError:
        return 0.0
