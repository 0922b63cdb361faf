"""Raw scanner images simulated from conformed heads: shaded, noisy, in LPS.

    scripts/bench raw SUBJECTS_DIR OUT

OUT is again a SUBJECTS_DIR, with T1.mgz (or brainmask.mgz) and aseg.mgz of each head on one
grid. `trinat predict` and `trinat evaluate` score a model on it; its Dice must not fall by more
than 0.02.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trinat.pipelines.models.fit_limits import bias, noise
from trinat.segmentation.data.sources.freesurfer import find_image, find_labels
from trinat.segmentation.grid import Grid
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.metrics.common_grid import on_grid_of
from trinat.segmentation.space.grid_map import GridMap
from trinat.segmentation.space.resample import resample_image, resample_labels

__all__ = ["made_raw", "run"]

# Voxels of a usual T1 scan; a few fewer than the field of view holds, so that the whole head
# fits.
_MM = (0.94, 0.94, 1.2)
_AXES = (-1.0, -1.0, 1.0)  # LPS
# Corner to corner of the field of view; over the brain about e^±0.2, 40 % from end to end.
_BIAS = 0.6
_NOISE = 0.03  # as a share of the brightness of white matter
_WHITE = 500.0
_WHITE_MATTER = (2, 41)


def run(subjects_dir: str, out: str) -> None:
    folders = sorted(
        path.parent.parent for path in Path(subjects_dir).glob("*/mri/aseg.mgz")
    )
    if not folders:
        raise SystemExit(f"{subjects_dir}: no subject with mri/aseg.mgz here")
    for folder in folders:
        image = find_image(folder, "T1") or find_image(folder, "brainmask")
        labels = find_labels(folder, "aseg")
        if image is None or labels is None:
            raise SystemExit(f"{folder}: wants mri/T1.mgz or mri/brainmask.mgz")
        scan = Volume.read(image)
        truth = on_grid_of(Volume.read(labels, labels=True), scan)[0]
        target = Path(out) / folder.name / "mri"
        target.mkdir(parents=True)
        new, new_truth = made_raw(scan, truth)
        new.write(target / image.name)
        new_truth.write(target / labels.name, labels=True)
        print(target.parent)


def made_raw(scan: Volume, truth: Volume) -> tuple[Volume, Volume]:
    """Return a conformed head as a scanner would record it, and its labels on that grid."""
    low, high = scan.grid.extent_mm(scan.grid.box)
    x, y, z = (
        int((b - a) / mm + 1e-6) for a, b, mm in zip(low, high, _MM, strict=True)
    )
    affine = np.diag([*np.multiply(_AXES, _MM), 1.0])
    affine[:3, 3] = (low + high) / 2 - affine[:3, :3] @ (np.array([x, y, z]) - 1) / 2
    to = GridMap.between(scan.grid, Grid((x, y, z), affine))
    white = np.median(scan.data[np.isin(truth.data, _WHITE_MATTER)])
    image = resample_image(scan.data, to) / np.float32(white)
    draw = np.random.default_rng(0)
    image = noise(bias(image, draw, _BIAS), draw, _NOISE)
    return (
        Volume(np.rint(image * _WHITE).astype(np.int16), affine),
        Volume(resample_labels(truth.data, to), affine),
    )
