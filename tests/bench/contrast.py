"""Figures for docs/notes/any.md: how well a model does when the contrast is not that of T1.

`scripts/bench contrast MODEL SUBJECTS_DIR`. The T1 scans of FreeSurfer's subjects get another
contrast by a curve over their values, so that the truth stays what it was. That is easier than a
scan of that contrast: what T1 does not show does not appear.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.io.volume import Volume
from trinat.segmentation.metrics.pair import evaluate
from trinat.segmentation.segmenter import Segmenter

_SCANS = ("mri/T1.mgz", "mri/brainmask.mgz")
_TRUTH = "mri/aparc+aseg.mgz"
# In mri/T1.mgz white matter has the value 110; cortex has about 70, fluid about 25.
_VALUES = (0, 10, 25, 70, 110, 255)
CURVES = {
    "T1": (0, 10, 25, 70, 110, 255),
    "T2-like": (0, 5, 250, 140, 75, 90),
    "T2-like, flat": (0, 10, 125, 80, 40, 0),
    "PD-like": (0, 12, 200, 190, 150, 180),
}


def run(model: str, subjects_dir: str) -> None:
    """Print the mean Dice without CSF of each subject and contrast, and the grade."""
    segmenter = Segmenter(model)
    scores: dict[str, list[float]] = {name: [] for name in CURVES}
    for folder in sorted(Path(subjects_dir).iterdir()):
        scan = _scan_of(folder)
        if scan is None:
            continue
        for name, curve in CURVES.items():
            turned = replace(scan, data=with_contrast(scan.data, curve))
            result = segmenter.segment(turned)
            table = evaluate(folder / _TRUTH, result)
            dice = float(table["dice"].drop("CSF").mean())
            scores[name].append(dice)
            print(f"{folder.name}  {name:14s} {dice:.3f}  {result.quality.name}")
    for name, values in scores.items():
        if values:
            print(f"mean    {name:14s} {np.mean(values):.3f}")


def _scan_of(folder: Path) -> Volume | None:
    """A subject's T1 scan, whole or stripped; None where there is no subject."""
    for name in _SCANS:
        if (folder / name).is_file() and (folder / _TRUTH).is_file():
            return Volume.read(folder / name)
    return None


def with_contrast(values: NDArray[Any], curve: tuple[int, ...]) -> NDArray[np.float32]:
    """What a curve over the values of T1 makes of them."""
    return np.asarray(np.interp(values, _VALUES, curve), np.float32)
