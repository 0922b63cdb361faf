"""Lesions of several scans of one participant, matched in the participant's space."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.grid import Grid
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.lesions import number_lesions

Numbers = NDArray[np.int32]


def on_grid(numbers: Volume, grid: Grid) -> Numbers:
    """Return a map of numbered lesions on another grid: the number at the nearest voxel.

    `grid` lies in the world of the scan, so the participant's space may be oblique in it.
    """
    to_scan = np.linalg.inv(numbers.affine) @ grid.affine
    found = ndimage.affine_transform(
        numbers.data,
        to_scan[:3, :3],
        offset=to_scan[:3, 3],
        output_shape=grid.shape,
        order=0,
    )
    return np.asarray(found, np.int32)


def sites_of(
    scans: Sequence[Numbers], counts: Sequence[int], rejected: Collection[int] = ()
) -> list[list[int]]:
    """Match the lesions of several scans: return the site of each lesion, by scan and number.

    `scans` are maps of numbered lesions (X, Y, Z) on one grid, and `counts` has the number of
    lesions of each scan. A site is a set of lesions, of one or several scans, that overlap or touch
    each other. Sites are numbered from 1, the largest first. `rejected` are the indices of scans
    whose lesions make no site, unless all are rejected: false lesions would join the sites of the
    other scans. Each of their lesions has the site that it overlaps most. A lesion that overlaps
    none has a site of its own, and so has one without a voxel on the grid.
    """
    sound = [numbers for index, numbers in enumerate(scans) if index not in rejected]
    is_lesion = np.any([numbers > 0 for numbers in sound or scans], axis=0)
    sites = number_lesions(is_lesion, 1.0, smallest_mm3=0)
    last = sites.count
    found = []
    for numbers, count in zip(scans, counts, strict=True):
        of_scan = []
        for lesion in range(1, count + 1):
            places = sites.numbers[numbers == lesion]
            places = places[places > 0]
            if len(places):
                of_scan.append(int(np.bincount(places).argmax()))
            else:
                last += 1
                of_scan.append(last)
        found.append(of_scan)
    return found


def noise_mm3(volume_mm3: float, side_mm: float) -> float:
    """Return by how much the volume of a lesion changes if its surface moves by half a voxel.

    `side_mm` is the side of a voxel. The lesion is taken for a ball, so a lesion that is new is
    beyond this if its diameter is more than three voxels.
    """
    surface_mm2 = np.cbrt(36 * np.pi * volume_mm3**2)
    return float(surface_mm2 * side_mm / 2)
