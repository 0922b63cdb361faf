"""All metrics of one 256³ pair, against surface-distance and MONAI called label by label."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from pipelines.bench._steps import in_process, seconds
from segmentation.labels.scheme import load_scheme
from segmentation.metrics import compare
from segmentation.synthetic.phantom import phantom

_SCHEME = load_scheme("quicknat33")
_SPACING_MM = (1.0, 1.0, 1.0)
_TOLERANCE_MM = 1.0

# A fresh process that compares one pair and does nothing else.
_PROBE = """
import json
from pathlib import Path
import numpy as np
from segmentation.labels.scheme import load_scheme
from segmentation.metrics import compare
with np.load({file!r}) as pair:
    compare(pair["truth"], pair["prediction"], (1.0, 1.0, 1.0), load_scheme("quicknat33"))
# Not getrusage: its maximum begins with the parent's.
status = Path("/proc/self/status").read_text().split()
print(json.dumps({{"MiB": int(status[status.index("VmHWM:") + 1]) / 1024}}))
"""


def run(repetitions: str = "3") -> None:
    """Medians over repetitions, on one core."""
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
    taken = {
        name: seconds(partial(measure, truth, prediction), int(repetitions))
        for name, measure in contestants.items()
    }
    for name, median in taken.items():
        print(f"{name:30s} {median:7.2f} s   {median / taken['trinat, all metrics']:6.1f} x")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pair.npz"
        np.savez(file, truth=truth, prediction=prediction)
        peak = in_process(_PROBE.format(file=str(file)))["MiB"]
        print(f"peak memory of a process that compares: {peak:.0f} MiB")


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
