"""Accuracy and test-retest figures of the corpus callosum for docs/callosum.md.

`scripts/bench callosum SUBJECTS_DIR [SCAN SCAN ...]` segments the subjects and compares their
callosum with 251 to 255 of FreeSurfer's `aseg.mgz`. Optional SCANs are pairs, each of one
person. The environment variable MODEL names the model.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from trinat.segmentation.inference.callosum import Callosum
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme

# In order of preference: whole heads before stripped ones.
_IMAGES = ("T1.mgz", "norm.mgz", "brain.mgz")


def run(folder: str, *pairs: str) -> None:
    """Print a line for each subject and pair, then the means over subjects."""
    predictor = Predictor(os.environ.get("MODEL", "fast"))
    numbers = load_scheme("callosum").fs_ids[1:]
    rows = []
    for truth_path in sorted(Path(folder).glob("*/mri/aseg.mgz")):
        images = (truth_path.parent / name for name in _IMAGES)
        found = _find(predictor, next(path for path in images if path.exists()))
        truth = np.asarray(Volume.read(truth_path).data)
        labels = found.labels.data
        of_parts = [_dice(labels == number, truth == number) for number in numbers]
        is_truth = np.isin(truth, numbers)
        of_whole = _dice(labels > 0, is_truth)
        true_mm3 = is_truth.sum() * found.labels.grid.voxel_mm3
        rows.append((of_whole, np.mean(of_parts), found.volume_mm3, true_mm3))
        name = truth_path.parent.parent.name
        print(
            f"{name}: Dice {of_whole:.3f}, of parts {rows[-1][1]:.3f}, "
            f"{found.volume_mm3:.0f} mm3, FreeSurfer {true_mm3:.0f}, {found.grade}"
        )
    whole, parts, volumes, true_volumes = np.transpose(rows)
    r = np.corrcoef(volumes, true_volumes)[0, 1]
    print(f"mean: Dice {whole.mean():.3f}, of parts {parts.mean():.3f}, r {r:.2f}")
    for one, other in zip(pairs[::2], pairs[1::2], strict=True):
        first, second = (_find(predictor, Path(path)) for path in (one, other))
        volumes = np.array([first.volume_mm3, second.volume_mm3])
        percent = 100 * abs(np.diff(volumes)[0]) / volumes.mean()
        print(f"{one} and {other}: {percent:.2f} % of the volume")


def _find(predictor: Predictor, path: Path) -> Callosum:
    return predictor.segment(Volume.read(path)).callosum


def _dice(one: np.ndarray, other: np.ndarray) -> float:
    return float(2 * (one & other).sum() / max(one.sum() + other.sum(), 1))
