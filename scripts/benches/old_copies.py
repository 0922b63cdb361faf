"""Copies of training participants as if they were old, for docs/notes/fast.md.

`scripts/bench old_copies SUBJECTS_DIR LABELS OUT` copies each subject, and adds another one,
`NAME-old`: every other head is deformed as by ageing, deep grey matter gets another brightness, and
three in four scans have voxels of 1.7 to 2.2 mm, resampled to their own grid as `trinat predict`
resamples scans. LABELS is the folder `labels` of a store that was made with `--csf-with`: its CSF
becomes part of the labels.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch
from scipy import ndimage

from benches.aged import ageing, deformed
from benches.steadiness import acquired_anew
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.folding import GENERATION_SURROUNDINGS
from trinat.segmentation.space.grid_map import GridMap
from trinat.segmentation.space.interpolation import interpolate, sharpened

_SCANS = ("T1.mgz", "brain.mgz", "norm.mgz", "brainmask.mgz")
_WHITE_MATTER = (2, 41)
# FreeSurfer's numbers of a structure, and the range of what is added to its brightness, as a share
# of that of white matter.
_DEEP_GREY = (
    ((10, 49), (-0.05, 0.05)),  # thalamus
    ((11, 50), (-0.05, 0.05)),  # caudate
    ((12, 51), (-0.08, 0.09)),  # putamen
    ((13, 52), (-0.14, 0.05)),  # pallidum
    ((26, 58), (-0.04, 0.04)),  # accumbens
)
# Standard deviation, in voxels, by which the borders of these changes are smoothed.
_SMOOTHING = 0.6
_VOXELS_MM = (1.7, 2.2)
# Factors by which ageing enlarges the lateral ventricles and the fluid between gyri.
_VENTRICLES = (2.5, 5.0)
_SULCI = (1.5, 2.2)
# Participants of 75 and 59 years.
_OLD = ("ds002422-01", "ds002422-02")
_SEED = 100


def run(subjects_dir: str, labels: str, out: str) -> None:
    """Write the copies to the SUBJECTS_DIR `out`, with a line for each old one."""
    for number, folder in enumerate(sorted(Path(subjects_dir).iterdir())):
        draw = np.random.default_rng(_SEED + number)
        scan_path = next(
            path for name in _SCANS if (path := folder / "mri" / name).exists()
        )
        aseg = Volume.read(folder / "mri/aseg.mgz", labels=True)
        csf = Volume.read(Path(labels) / f"{folder.name}_dseg.nii.gz", labels=True)
        is_csf = (aseg.data == 0) & (csf.data == GENERATION_SURROUNDINGS)
        numbers = np.where(is_csf, GENERATION_SURROUNDINGS, aseg.data).astype(np.int16)
        mri = Path(out) / folder.name / "mri"
        mri.mkdir(parents=True)
        Volume(numbers, aseg.affine).write(mri / "aseg.mgz", labels=True)
        shutil.copy(scan_path.resolve(), mri / scan_path.name)

        scan = Volume.read(scan_path)
        values = scan.data.astype(np.float32)
        values /= np.median(values[np.isin(numbers, _WHITE_MATTER)])
        if number % 2 == 0 and folder.name not in _OLD:
            origins = ageing(numbers, draw.uniform(*_VENTRICLES), draw.uniform(*_SULCI))
            values = deformed(values, origins)
            numbers = deformed(numbers, origins, labels=True)
        for of_structure, limits in _DEEP_GREY:
            mask = np.isin(numbers, of_structure).astype(np.float32)
            shift = np.float32(draw.uniform(*limits))
            values += shift * ndimage.gaussian_filter(mask, _SMOOTHING)
        spacing_mm = 1.0
        if number % 4 != 3:
            spacing_mm = draw.uniform(*_VOXELS_MM)
            coarse = acquired_anew(Volume(values, scan.affine), spacing_mm, np.eye(3))
            to_scan = GridMap.between(coarse.grid, scan.grid)
            sharp = sharpened(torch.from_numpy(coarse.data), to_scan)
            values = interpolate(sharp, to_scan).numpy()
        mri = Path(out) / f"{folder.name}-old" / "mri"
        mri.mkdir(parents=True)
        Volume(numbers, aseg.affine).write(mri / "aseg.mgz", labels=True)
        Volume(values.clip(0) * 100, scan.affine).write(mri / "T1.mgz")
        print(f"{folder.name}  {spacing_mm:.1f} mm", flush=True)
