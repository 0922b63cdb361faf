"""Accuracy of a model on contrasts other than T1, for docs/notes/any.md.

`scripts/bench contrast MODEL SUBJECTS_DIR` changes the contrast of the T1 scans of FreeSurfer's
subjects by a curve over their values, so that the true labels stay valid. This is easier than a
real scan of that contrast: tissue that T1 does not show does not appear. Thick slices are means
of five, and the truth is resampled to their grid.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benches._damage_kinds import in_thick_slices
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.metrics.common_grid import on_grid_of
from trinat.segmentation.metrics.pair import evaluate
from trinat.segmentation.segmenter import Segmenter
from trinat.segmentation.space.views import reoriented

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
IN_THICK_SLICES = ("T1", "T2-like")
_SLICE_VOXELS = 5


def run(model: str, subjects_dir: str) -> None:
    """Print the mean Dice without CSF of each subject and contrast, and the grade."""
    segmenter = Segmenter(model)
    scores: dict[str, list[float]] = {}
    for folder in sorted(Path(subjects_dir).iterdir()):
        scan = _scan_of(folder)
        if scan is None:
            continue
        truth = Volume.read(folder / _TRUTH)
        for name, turned in turned_scans(scan):
            result = segmenter.segment(turned)
            true, _ = on_grid_of(truth, turned, resample=True)
            dice = float(evaluate(true, result)["dice"].drop("CSF").mean())
            scores.setdefault(name, []).append(dice)
            print(f"{folder.name}  {name:23s} {dice:.3f}  {result.quality.name}")
    for name, values in scores.items():
        print(f"mean    {name:23s} {np.mean(values):.3f}")


def turned_scans(scan: Volume) -> Iterator[tuple[str, Volume]]:
    """Yield the scan in each contrast, and some contrasts in thick axial slices too."""
    for name, curve in CURVES.items():
        yield name, replace(scan, data=with_contrast(scan.data, curve))
    for name in IN_THICK_SLICES:
        turned = replace(scan, data=with_contrast(scan.data, CURVES[name]))
        slices = in_thick_slices(reoriented(turned, "RAS"), _SLICE_VOXELS)
        yield f"{name}, slices of {slices.spacing_mm[2]:g} mm", slices


def _scan_of(folder: Path) -> Volume | None:
    """Return a subject's T1 scan, whole or stripped, or None if there is no subject."""
    for name in _SCANS:
        if (folder / name).is_file() and (folder / _TRUTH).is_file():
            return Volume.read(folder / name)
    return None


def with_contrast(values: NDArray[Any], curve: tuple[int, ...]) -> NDArray[np.float32]:
    """Return the values of a T1 scan mapped by a curve."""
    return np.asarray(np.interp(values, _VALUES, curve), np.float32)
