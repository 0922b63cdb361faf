"""Figures for docs/notes/any.md: how well a model does when the contrast is not that of T1.

`scripts/bench contrast MODEL SUBJECTS_DIR`. The T1 scans of FreeSurfer's subjects get another
contrast by a curve over their values, so that the truth stays what it was. That is easier than a
scan of that contrast: what T1 does not show does not appear. Thick slices are means of five, and
the truth is brought to their grid.
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
    """The scan in each contrast, and in some in thick axial slices too."""
    for name, curve in CURVES.items():
        yield name, replace(scan, data=with_contrast(scan.data, curve))
    for name in IN_THICK_SLICES:
        turned = replace(scan, data=with_contrast(scan.data, CURVES[name]))
        slices = in_thick_slices(reoriented(turned, "RAS"), _SLICE_VOXELS)
        yield f"{name}, slices of {slices.spacing_mm[2]:g} mm", slices


def _scan_of(folder: Path) -> Volume | None:
    """A subject's T1 scan, whole or stripped; None where there is no subject."""
    for name in _SCANS:
        if (folder / name).is_file() and (folder / _TRUTH).is_file():
            return Volume.read(folder / name)
    return None


def with_contrast(values: NDArray[Any], curve: tuple[int, ...]) -> NDArray[np.float32]:
    """What a curve over the values of T1 makes of them."""
    return np.asarray(np.interp(values, _VALUES, curve), np.float32)
