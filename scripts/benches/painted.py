"""Figures for docs/notes/any.md: scans of other contrasts that are no curve over a T1 scan.

`scripts/bench painted MODEL SUBJECTS_DIR`. Brains are painted from the labels of FreeSurfer's
subjects: each structure has a brightness of its own, as that contrast shows it, with the partial
volume, mottle, bias field and noise of a scan. They are stripped, and borders are where the labels
have them, so scores are higher than those of real scans. What they say is whether a way to treat a
contrast helps: each is segmented as it is, and as the model does it by itself, which may reverse it
(segmentation/inference/preparation.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from benches._damage_kinds import in_thick_slices
from trinat.segmentation.inference.preparation import Reversal
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.metrics.common_grid import on_grid_of
from trinat.segmentation.metrics.pair import evaluate
from trinat.segmentation.segmenter import Segmenter
from trinat.segmentation.space.views import reoriented

Floats = NDArray[np.float32]

_TRUTH = "mri/aparc+aseg.mgz"
# What is painted alike, by FreeSurfer's numbers; all else of the brain is white matter.
TISSUES = {
    "fluid": (4, 5, 14, 15, 24, 31, 43, 44, 63, 72),
    "cortex": (3, 42),
    "cerebellar cortex": (8, 47),
    "thalamus": (10, 49),
    "caudate": (11, 50),
    "putamen": (12, 51),
    "pallidum": (13, 52),
    "brain stem": (16, 28, 60),
    "hippocampus, amygdala": (17, 18, 53, 54),
    "accumbens": (26, 58),
}
_FIRST_PARCEL = 1000  # from here on numbers are parts of the cortex
# Brightness of white matter, then of these tissues in their order. About as usual sequences show
# them: T2 and PD of one spin echo, PD also with fluid darker than cortex (a short repetition time).
BRIGHTNESS = {
    "T2": (70, 230, 100, 98, 85, 95, 84, 58, 78, 104, 95),
    "PD": (140, 176, 172, 170, 158, 172, 166, 145, 148, 174, 170),
    "PD, grey fluid": (140, 160, 172, 170, 158, 172, 166, 145, 148, 174, 170),
    "FLAIR": (110, 30, 138, 132, 124, 135, 125, 105, 115, 145, 138),
}
_IN_THICK_SLICES = "T2"
_SLICE_VOXELS = 5
_SEED = 1
# Of a brain's brightness: the bias field, the mottle, and the noise as a part of white matter.
_BIAS = 0.08
_MOTTLE = 0.04
_NOISE = 0.03
_MOTTLE_MM = 2
_POINT_SPREAD_MM = 0.6
_FLUID_AROUND_MM = 2


class _AsItIs(Segmenter):
    """A model whose networks see every scan as it is."""

    def find_reversal(self, image: torch.Tensor) -> Reversal | None:
        """None, whatever the image shows."""
        return None


def run(model: str, subjects_dir: str) -> None:
    """Print the mean Dice without CSF of each subject and contrast: as it is, and as by itself."""
    segmenters = (_AsItIs(model), Segmenter(model))
    scores: dict[str, list[list[float]]] = {}
    for folder in sorted(Path(subjects_dir).iterdir()):
        if not (folder / _TRUTH).is_file():
            continue
        truth = Volume.read(folder / _TRUTH)
        for name, scan in painted_scans(truth):
            true, _ = on_grid_of(truth, scan, resample=True)
            both = []
            for segmenter in segmenters:
                dice = evaluate(true, segmenter.segment(scan))["dice"].drop("CSF")
                both.append(float(dice.mean()))
            scores.setdefault(name, []).append(both)
            print(f"{folder.name}  {name:22s} {both[0]:.3f}  {both[1]:.3f}", flush=True)
    for name, pairs in scores.items():
        as_it_is, by_itself = np.mean(pairs, axis=0)
        print(f"mean    {name:22s} {as_it_is:.3f}  {by_itself:.3f}")


def painted_scans(truth: Volume) -> Iterator[tuple[str, Volume]]:
    """A brain in each contrast, and in thick axial slices too."""
    rng = np.random.default_rng(_SEED)
    for name in BRIGHTNESS:
        scan = replace(truth, data=paint(truth.data, name, rng))
        yield name, scan
        if name == _IN_THICK_SLICES:
            thick = in_thick_slices(reoriented(scan, "RAS"), _SLICE_VOXELS)
            yield f"{name}, slices of {_SLICE_VOXELS} mm", thick


def paint(numbers: NDArray[np.int32], name: str, rng: np.random.Generator) -> Floats:
    """A scan (X, Y, Z) of the brain whose labels have these FreeSurfer `numbers`."""
    white_matter, *others = BRIGHTNESS[name]
    of_tissue = dict(zip(TISSUES, others, strict=True))
    brain = numbers > 0
    # Fluid fills the sulci and surrounds the brain.
    filled = ndimage.binary_closing(brain, iterations=3)
    seen = ndimage.binary_dilation(filled, iterations=_FLUID_AROUND_MM)
    image = np.where(seen, of_tissue["fluid"], 0).astype(np.float32)
    image[brain] = white_matter
    for tissue, members in TISSUES.items():
        image[np.isin(numbers, members)] = of_tissue[tissue]
    image[numbers >= _FIRST_PARCEL] = of_tissue["cortex"]
    image = ndimage.gaussian_filter(image, _POINT_SPREAD_MM)
    image *= 1 + _smooth(image.shape, rng)
    patches = ndimage.gaussian_filter(_normal(image.shape, rng), _MOTTLE_MM)
    image *= 1 + _MOTTLE * patches / patches.std()
    noise = _NOISE * white_matter * _normal(image.shape, rng)
    return np.asarray(np.abs(image + noise) * seen, np.float32)


def _smooth(shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """A bias field over an image."""
    knots = _BIAS * _normal((4, 4, 4), rng)
    zoom = [length / 4 for length in shape]
    return np.asarray(ndimage.zoom(knots, zoom, order=3), np.float32)


def _normal(shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    return rng.standard_normal(shape).astype(np.float32)
