"""Stability of volumes under changes of the acquisition, for docs/notes/fast.md.

`scripts/bench steadiness MODEL SUBJECTS_DIR` shifts FreeSurfer's heads in their array, reorders
their axes, resamples them to other voxels, rotates them, or adds noise. It prints the mean Dice
without CSF against the labels of the unchanged head, and the changes in volume in per cent of
structures of at least 1 ml: their mean, that of the hippocampi, and the largest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial.transform import Rotation

from trinat.segmentation.data.sources.freesurfer import find_image
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import without_side
from trinat.segmentation.metrics.common_grid import on_grid_of
from trinat.segmentation.metrics.pair import evaluate
from trinat.segmentation.segmenter import Segmenter
from trinat.segmentation.space.views import reoriented

MOVED_VOXELS = (1, 2, 3)
VOXELS_MM = (0.8, 1.2, 2.0)
_TURN_DEG = (7.0, -5.0, 3.5)
_NOISE = 0.05
# White matter has this value in mri/T1.mgz.
_WHITE_MATTER = 110.0
_SEED = 1
_LEAST_MM3 = 1000.0
_HIPPOCAMPI = ("Left-Hippocampus", "Right-Hippocampus")
# FreeSurfer's numbers of deep grey matter, left and right.
_NUMBERS = {
    "Thalamus": (10, 49),
    "Caudate": (11, 50),
    "Putamen": (12, 51),
    "Pallidum": (13, 52),
    "Accumbens-area": (26, 58),
}
# Brightness added to deep grey matter, as a share of that of white matter. In FreeSurfer's T1.mgz
# of young adults putamen has 0.91 to 0.94 of it, caudate 0.79 to 0.82, pallidum 1.01 to 1.05.
_DEEP_GREY: dict[str, dict[str, float]] = {
    "deep grey brighter": {
        "Thalamus": 0.05,
        "Caudate": 0.05,
        "Putamen": 0.08,
        "Pallidum": 0.05,
        "Accumbens-area": 0.05,
    },
    "deep grey darker": {
        "Thalamus": -0.05,
        "Caudate": -0.05,
        "Putamen": -0.08,
        "Pallidum": -0.10,
        "Accumbens-area": -0.05,
    },
    "putamen brighter": {"Caudate": 0.04, "Putamen": 0.08, "Pallidum": -0.06},
}
# Standard deviation, in voxels, by which the borders of these changes are smoothed.
_SMOOTHING = 0.6
# Full width at half maximum of a Gaussian, in standard deviations.
_WIDTH = 2.355


def run(model: str, subjects_dir: str) -> None:
    """Print one line for each subject and change."""
    segmenter = Segmenter(model)
    for folder in sorted(Path(subjects_dir).iterdir()):
        place = find_image(folder, "T1") or find_image(folder, "brainmask")
        if place is None:
            continue
        scan = Volume.read(place)
        before = segmenter.segment(scan)
        aseg = Volume.read(folder / "mri" / "aseg.mgz")
        for name, changed in chain(changed_scans(scan), with_iron(scan, aseg)):
            after = segmenter.segment(changed)
            labels, _ = on_grid_of(before.labels, changed, resample=True)
            dice = float(evaluate(labels, after)["dice"].drop("CSF").mean())
            by_name = changes(before.volumes_mm3, after.volumes_mm3)
            mean = np.mean([abs(change) for change in by_name.values()])
            hippocampi = np.mean([by_name.get(side, np.nan) for side in _HIPPOCAMPI])
            deep = [
                abs(change)
                for structure, change in by_name.items()
                if without_side(structure) in _NUMBERS
            ]
            mean_of_deep = np.mean(deep) if deep else np.nan
            largest = max(by_name, key=lambda structure: abs(by_name[structure]))
            print(
                f"{folder.name}  {name:26s} Dice {dice:.4f}  mean {mean:5.2f}  "
                f"hippocampi {hippocampi:+5.2f}  deep grey {mean_of_deep:5.2f}  "
                f"largest {by_name[largest]:+6.2f} {largest}",
                flush=True,
            )


def changes(
    before: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, float]:
    """Return the change in per cent of each structure that was large enough before."""
    found = {}
    for name, mm3 in before.items():
        if mm3 >= _LEAST_MM3 and name != "CSF":
            found[name] = 100 * (after[name] / mm3 - 1)
    return found


def changed_scans(scan: Volume) -> Iterator[tuple[str, Volume]]:
    """Yield a head of 1 mm shifted in its array, resampled, rotated and with noise."""
    for voxels in MOVED_VOXELS:
        yield f"moved by {voxels}", moved_by(scan, voxels)
    yield "axes in order PSL", reoriented(scan, "PSL")
    for spacing_mm in VOXELS_MM:
        yield f"voxels of {spacing_mm:g} mm", acquired_anew(scan, spacing_mm, np.eye(3))
    turn = Rotation.from_euler("xyz", _TURN_DEG, degrees=True).as_matrix()
    yield "turned", acquired_anew(scan, 1.0, turn)
    drawn = np.random.default_rng(_SEED).normal(size=scan.shape)
    noisy = np.abs(scan.data + _NOISE * _WHITE_MATTER * drawn)
    yield f"noise of {_NOISE:.0%}", Volume(noisy.astype(np.float32), scan.affine)


def with_iron(scan: Volume, aseg: Volume) -> Iterator[tuple[str, Volume]]:
    """Yield a head of 1 mm with each change of its deep grey matter, at 1 mm and at 2 mm."""
    white_matter = np.median(scan.data[np.isin(aseg.data, (2, 41))])
    for name, shifts in _DEEP_GREY.items():
        image = scan.data.astype(np.float32)
        for structure, shift in shifts.items():
            mask = np.isin(aseg.data, _NUMBERS[structure]).astype(np.float32)
            image += shift * white_matter * ndimage.gaussian_filter(mask, _SMOOTHING)
        changed = Volume(image, scan.affine)
        yield name, changed
        yield f"{name}, 2 mm", acquired_anew(changed, 2.0, np.eye(3))


def moved_by(scan: Volume, voxels: int) -> Volume:
    """Return the head moved by this many voxels along each axis of an array that begins earlier.

    Its world coordinates stay the same. Voxels that leave the array are lost, and air fills the
    gap.
    """
    data = np.zeros_like(scan.data)
    data[voxels:, voxels:, voxels:] = scan.data[:-voxels, :-voxels, :-voxels]
    shift = np.eye(4)
    shift[:3, 3] = -voxels
    return Volume(data, scan.affine @ shift)


def acquired_anew(scan: Volume, spacing_mm: float, turn: NDArray[np.float64]) -> Volume:
    """Return a head of 1 mm on a grid turned (3, 3) about its centre, by cubic splines.

    For larger voxels the point spread is widened to the voxel size.
    """
    image = scan.data.astype(np.float32)
    if spacing_mm > 1:
        width_mm = np.sqrt(spacing_mm**2 - 1)
        image = ndimage.gaussian_filter(image, width_mm / _WIDTH)
    shape = tuple(int(length / spacing_mm) for length in scan.shape)
    middle = scan.affine @ [*(np.array(scan.shape) - 1) / 2, 1]
    affine = np.eye(4)
    affine[:3, :3] = turn @ scan.affine[:3, :3] * spacing_mm
    affine[:3, 3] = middle[:3] - affine[:3, :3] @ ((np.array(shape) - 1) / 2)
    to_scan = np.linalg.solve(scan.affine, affine)
    values = ndimage.affine_transform(image, to_scan, output_shape=shape)
    return Volume(np.clip(values, 0, None), affine)
