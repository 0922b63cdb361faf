"""Simulated atrophy: scans and their labels, deformed together as if decades older.

`scripts/bench aged SOURCE ROOT OUT [VENTRICLES [SULCI]]` writes each labelled scan of a dataset
(`trinat prepare` has the names of sources) to OUT with the lateral ventricles enlarged by the
factor VENTRICLES (4) and the sulcal fluid by SULCI (2). It also writes a table of these scans
and the original ones for `trinat prepare --source pairs --root OUT/pairs.csv`. The cerebrum
loses the volume that fluid gains. Voxels must be about 1 mm. Results are in
docs/notes/manual.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import ndimage

from benches._visits import flow_of
from trinat.segmentation.data.preparing import classes_of
from trinat.segmentation.data.sources.base import SourceOptions, Subject
from trinat.segmentation.data.sources.registry import list_subjects
from trinat.segmentation.grid import grown
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.resample import occupied_box

Floats = NDArray[np.float32]

_SCHEME = "quicknat33"
# FreeSurfer numbers of the lateral ventricles with their inferior horns, the other fluid, and
# the cerebrum: white matter, cortex, hippocampi, amygdalae, thalami and basal ganglia.
_VENTRICLES = (4, 5, 43, 44)
_OTHER_FLUID = (14, 15, 24)
_CEREBRUM = (2, 3, 10, 11, 12, 13, 17, 18, 26, 41, 42, 49, 50, 51, 52, 53, 54, 58)
_PRINTED = (_VENTRICLES, _CEREBRUM)
# Gaps in the brain of up to twice this are fluid between gyri.
_GYRI_VOXELS = 5
# A volume grows by at most this share per step, so that no step folds space.
_GROWTH_OF_STEP = 0.12
_MARGIN_VOXELS = 24


def run(
    source: str, root: str, out: str, ventricles: str = "4", sulci: str = "2"
) -> None:
    """Write the aged scans and the table, and print the changes in volume."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[tuple[Path, Path, str, str]] = []
    for subject in list_subjects(source, Path(root), SourceOptions()).subjects:
        if subject.image is None or subject.labels is None:
            continue
        numbers = Volume.read(subject.labels, labels=True, axes=subject.labels_axes)
        young = freesurfer_numbers(numbers, subject)
        origins = ageing(young, float(ventricles), float(sulci))
        name = f"{subject.id}-aged"
        image, labels = folder / f"{name}.nii.gz", folder / f"{name}-labels.nii.gz"
        scan = Volume.read(subject.image, axes=subject.image_axes)
        replace(scan, data=deformed(scan.data, origins)).write(image)
        after = replace(numbers, data=deformed(numbers.data, origins, labels=True))
        after.write(labels, labels=True)
        before = (subject.image.resolve(), subject.labels.resolve())
        rows.append((*before, subject.id, subject.person))
        rows.append((image.resolve(), labels.resolve(), name, subject.person))
        old = deformed(young, origins, labels=True)
        gained, lost = (
            np.isin(old, part).sum() / np.isin(young, part).sum() for part in _PRINTED
        )
        print(f"{subject.id}  ventricles {gained:.2f}  cerebrum {lost:.2f}", flush=True)
    columns = ["image", "labels", "subject", "person"]
    pd.DataFrame(rows, columns=columns).to_csv(folder / "pairs.csv", index=False)


def freesurfer_numbers(labels: Volume, subject: Subject) -> NDArray[np.int16]:
    """Return the label map in FreeSurfer numbers, whatever numbering it has."""
    scheme = load_scheme(_SCHEME)
    return scheme.to_freesurfer(classes_of(subject, labels, scheme))


@dataclass(frozen=True, eq=False)
class Origins:
    """Source coordinates of each voxel in a part of the array."""

    part: tuple[slice, ...]
    places: Floats  # (3, X, Y, Z), voxels of the part


def ageing(numbers: NDArray[np.int16], ventricles: float, sulci: float) -> Origins:
    """Return the deformation that enlarges fluid by these factors, composed of many small steps."""
    part = grown(occupied_box(numbers > 0), numbers.shape, _MARGIN_VOXELS)
    young = numbers[part]
    grid = np.indices(young.shape, dtype=np.float32)
    places = grid
    now = young
    steps = math.ceil(math.log(max(ventricles, sulci)) / _GROWTH_OF_STEP)
    for _ in range(steps):
        growth = growth_of(now, math.log(ventricles) / steps, math.log(sulci) / steps)
        before = grid - flow_of(growth)
        places = np.stack([_sampled(axis, before, order=1) for axis in places])
        now = _sampled(young, places, order=0)
    return Origins(part, places)


def deformed(
    values: NDArray[Any], origins: Origins, *, labels: bool = False
) -> NDArray[Any]:
    """Return an image or a label map after ageing; outside of the deformed part it is unchanged."""
    after = values.copy()
    inside = values[origins.part]
    if labels:
        after[origins.part] = _sampled(inside, origins.places, order=0)
        return after
    smooth = _sampled(inside.astype(np.float32), origins.places, order=3)
    kept = np.clip(smooth, inside.min(), inside.max())
    after[origins.part] = (
        np.rint(kept) if np.issubdtype(values.dtype, np.integer) else kept
    )
    return after


def growth_of(numbers: NDArray[np.int16], ventricles: float, sulci: float) -> Floats:
    """Return the growth rate of each voxel.

    Fluid grows, and the cerebrum shrinks by the same total.
    """
    cerebrum = np.isin(numbers, _CEREBRUM)
    tissue = (numbers > 0) & ~np.isin(numbers, _OTHER_FLUID)
    gaps = _closed(tissue) & np.isin(numbers, (0, 24))
    growth = (
        np.float32(ventricles) * np.isin(numbers, _VENTRICLES)
        + np.float32(sulci) * gaps
    )
    return growth - cerebrum * np.float32(growth.sum() / cerebrum.sum())


def _closed(brain: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the brain with its sulci filled."""
    near = ndimage.distance_transform_edt(~brain) <= _GYRI_VOXELS
    closed: NDArray[np.bool_] = ndimage.distance_transform_edt(near) > _GYRI_VOXELS
    return closed


def _sampled(values: NDArray[Any], places: Floats, order: int) -> NDArray[Any]:
    sampled: NDArray[Any] = ndimage.map_coordinates(
        values, places, order=order, mode="nearest"
    )
    return sampled
