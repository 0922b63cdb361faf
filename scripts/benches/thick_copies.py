"""Copies of training participants with scans in thick slices, for docs/notes/any.md.

`scripts/bench thick_copies SUBJECTS_DIR LABELS OUT` copies each subject, and adds another one,
`NAME-thick`, whose scan is averaged to slices of 4.5 to 8 mm, half of them with the contrast of
FLAIR, and resampled to its own grid as `trinat predict` resamples scans. LABELS is the folder
`labels` of a store that was made with `--csf-with`: its CSF becomes part of the labels.
"""

from __future__ import annotations

import shutil
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.folding import GENERATION_SURROUNDINGS
from trinat.segmentation.space.grid_map import GridMap
from trinat.segmentation.space.interpolation import interpolate, sharpened

_SCANS = ("T1.mgz", "brain.mgz", "norm.mgz", "brainmask.mgz")
_WHITE_MATTER = (2, 41)
# Scans before FreeSurfer's correction of intensities have no thick copy.
_UNCORRECTED = "-orig"
# World axes across the slices: most clinical scans have axial ones.
_ACROSS = "SSSASSRSSASSRS"
_THICKNESS_MM = (4.5, 8.0)
# Share of a slice that is measured; the rest is a gap.
_COVERED = (0.8, 1.0)
_SEED = 5


def run(subjects_dir: str, labels: str, out: str) -> None:
    """Write the copies to the SUBJECTS_DIR `out`, with a line for each thick one."""
    rng = np.random.default_rng(_SEED)
    across = cycle(_ACROSS)
    is_flair = cycle((False, True))
    for folder in sorted(Path(subjects_dir).iterdir()):
        scan_path = next(
            path for name in _SCANS if (path := folder / "mri" / name).exists()
        )
        aseg = Volume.read(folder / "mri/aseg.mgz", labels=True)
        csf = Volume.read(Path(labels) / f"{folder.name}_dseg.nii.gz", labels=True)
        is_csf = (aseg.data == 0) & (csf.data == GENERATION_SURROUNDINGS)
        numbers = np.where(is_csf, GENERATION_SURROUNDINGS, aseg.data)
        truth = Volume(numbers.astype(np.int16), aseg.affine)
        mri = Path(out) / folder.name / "mri"
        mri.mkdir(parents=True)
        truth.write(mri / "aseg.mgz", labels=True)
        shutil.copy(scan_path.resolve(), mri / scan_path.name)
        if folder.name.endswith(_UNCORRECTED):
            continue

        scan = Volume.read(scan_path)
        values = scan.data.astype(np.float32)
        values /= np.median(values[np.isin(aseg.data, _WHITE_MATTER)])
        direction = next(across)
        if next(is_flair):
            values = as_flair(values, rng)
        thick = averaged(Volume(values, scan.affine), direction, rng)
        to_scan = GridMap.between(thick.grid, scan.grid)
        sharp = sharpened(torch.from_numpy(thick.data), to_scan)
        again = interpolate(sharp, to_scan).numpy().clip(0) * 100
        mri = Path(out) / f"{folder.name}-thick" / "mri"
        mri.mkdir(parents=True)
        truth.write(mri / "aseg.mgz", labels=True)
        Volume(again, scan.affine).write(mri / "T1.mgz")
        print(f"{folder.name}  {direction}  {max(thick.spacing_mm):.1f} mm", flush=True)


def as_flair(
    values: NDArray[np.float32], rng: np.random.Generator
) -> NDArray[np.float32]:
    """Return the values of a T1 scan with the contrast of FLAIR; white matter has 1 before."""
    before = (0, 0.2, 0.35, 0.65, 0.8, 1, 1.2, 3)
    # Fluid is dark, and grey matter brighter than white matter.
    after = (
        *(0, 0.1 + 0.1 * rng.random(), 0.3 + 0.2 * rng.random()),
        *(0.95 + 0.1 * rng.random(), 0.9 + 0.1 * rng.random()),
        *(0.72 + 0.12 * rng.random(), 0.7, 0.9),
    )
    return np.interp(values, before, after).astype(np.float32)


def averaged(scan: Volume, across: str, rng: np.random.Generator) -> Volume:
    """Average a scan of 1 mm to thick slices with gaps, at a random place and thickness.

    `across` is the world axis, "R", "A" or "S", that the slices are stacked along.
    """
    opposite = {"R": "L", "A": "P", "S": "I"}
    axis = next(
        number
        for number, code in enumerate(scan.axcodes)
        if code in (across, opposite[across])
    )
    step = rng.uniform(*_THICKNESS_MM)
    covered = rng.uniform(*_COVERED) * step
    length = scan.shape[axis]
    start = rng.uniform(0, step)
    centres = np.arange(start, length - 1, step)
    distance = np.abs(np.arange(length) - centres[:, None])
    weights = np.clip(covered / 2 + 0.5 - distance, 0, 1)
    weights /= weights.sum(1, keepdims=True)
    slices = np.tensordot(weights.astype(np.float32), scan.data, (1, axis))
    affine = scan.affine.copy()
    affine[:3, 3] += affine[:3, axis] * start
    affine[:3, axis] *= step
    data = np.ascontiguousarray(np.moveaxis(slices, 0, axis))
    return Volume(data, affine)
