"""Lesions of a scan as the numbers of its result: as predicted, and as corrected by hand."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from trinat.pipelines.study.corrections import Correction
from trinat.pipelines.study.record import LesionResult, LesionsResult
from trinat.segmentation.grid import occupied_box
from trinat.segmentation.inference.lesions import Lesions, find_lesions
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels import DEFAULT_SCHEME
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.metrics.common_grid import on_grid_of


def lesions_result(found: Lesions) -> LesionsResult:
    """Return grade, and volume, region and position of each lesion, for the ledger, rounded."""
    rows = []
    for lesion in found.lesions:
        x, y, z = (round(mm, 2) for mm in lesion.centroid_mm)
        rows.append(
            LesionResult(
                lesion=lesion.number,
                mm3=round(lesion.volume_mm3, 3),
                region=lesion.region,
                x_mm=x,
                y_mm=y,
                z_mm=z,
                probability=round(lesion.probability, 3),
            )
        )
    return LesionsResult(grade=found.grade, reasons=list(found.reasons), lesions=rows)


@lru_cache(maxsize=256)
def measure_corrected(
    path: Path, result: Path, structures: Path, *_: str
) -> LesionsResult:
    """Measure the lesions of a corrected mask; they have no grade and no probability.

    `path` is the corrected mask and `result` the predicted one. Every connected component counts,
    however small. `structures` is the label map of the scan, by which each lesion gets its region.
    The other arguments are hashes of the files, as a cache key.
    """
    mask = Correction(path, result, None).read()
    # Another program may have saved corrected labels in another order of axes.
    labels = on_grid_of(Volume.read(structures, labels=True), mask)[0]
    box = occupied_box((labels.data > 0) | (mask.data > 0))
    affine = mask.grid.cut(box).affine
    scheme = load_scheme(DEFAULT_SCHEME)
    classes = scheme.from_freesurfer(
        labels.data[box], spacing_mm=labels.spacing_mm, where=structures
    )
    found = find_lesions(
        Volume((mask.data[box] > 0).astype(np.float32), affine),
        Volume(classes, affine),
        scheme,
        is_flair=True,
        smallest_mm3=0,
    )
    measured = lesions_result(found)
    for lesion in measured.lesions:
        lesion.probability = None
    return LesionsResult(grade="", reasons=[], lesions=measured.lesions)
