"""Figures for docs/notes/any.md: real scans of other contrasts beside T1 of the same person.

`scripts/bench same_person MODEL FOLDER [REFERENCE]`, where FOLDER has a folder for each person with
T1.nii.gz and other scans on the grid of that one (T2.nii.gz, flair.nii.gz and so on). No labels
were drawn on such scans: what counts as true is what the model REFERENCE (`fast`) finds in T1. So
the figures say how far a model finds in another contrast what is found in T1, its errors included.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benches._damage_kinds import in_thick_slices
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.metrics.common_grid import on_grid_of
from trinat.segmentation.metrics.pair import evaluate
from trinat.segmentation.segmenter import Segmenter
from trinat.segmentation.space.views import reoriented

_ENDING = ".nii.gz"
_T1 = "t1"
_T2 = "t2"  # in thick slices, too
_SLICE_VOXELS = 5


def run(model: str, folder: str, reference: str = "fast") -> None:
    """Print the mean Dice without CSF of each scan against the reference in T1, and the grade."""
    of_t1 = Segmenter(reference)
    segmenter = Segmenter(model)
    scores: dict[str, list[float]] = {}
    for person in sorted(Path(folder).iterdir()):
        scans = dict(_scans_of(person))
        if _T1 not in scans:
            continue
        truth = of_t1.segment(scans[_T1]).labels
        for name, scan in scans.items():
            result = segmenter.segment(scan)
            true, _ = on_grid_of(truth, scan, resample=True)
            dice = float(evaluate(true, result)["dice"].drop("CSF").mean())
            scores.setdefault(name, []).append(dice)
            grade = result.quality.name
            print(f"{person.name}  {name:22s} {dice:.3f}  {grade}", flush=True)
    for name, values in scores.items():
        print(f"mean    {name:22s} {np.mean(values):.3f}")


def _scans_of(person: Path) -> Iterator[tuple[str, Volume]]:
    """A person's scans by contrast, and T2 in thick axial slices too."""
    for path in sorted(person.glob(f"*{_ENDING}")):
        name = path.name.removesuffix(_ENDING).lower()
        scan = Volume.read(path)
        yield name, scan
        if name == _T2:
            thick = in_thick_slices(reoriented(scan, "RAS"), _SLICE_VOXELS)
            yield f"{name}, slices of {_SLICE_VOXELS} mm", thick
