"""Conform and restore against a copy of the same volume, timed right before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from pipelines.bench._steps import seconds
from segmentation.io.volume import Volume
from segmentation.space.conform import conform, restore, restore_probabilities

_SIDE = 256
_CLASSES = 33


def run(repetitions: str = "5") -> None:
    """Medians of seconds, and how many float32 copies they are worth."""
    for name, affine in _grids().items():
        scan, labels = _head(affine)
        print(f"{name}: {_SIDE}x{_SIDE}x{_SIDE}, {len(np.unique(labels.data))} labels")
        for step, work in _steps(scan, labels).items():
            copied = seconds(scan.data.astype(np.float32).copy, int(repetitions))
            worked = seconds(work, int(repetitions))
            print(f"  {step:42} {worked:6.2f} s  {worked / copied:6.1f} times a copy")


def _grids() -> dict[str, np.ndarray]:
    order = np.array([[-1.0, 0, 0], [0, 0, 1], [0, -1, 0]])
    turn = Rotation.from_euler("xyz", [12, 7, -9], degrees=True).as_matrix()
    linear = {
        "1 mm, LIA": order,
        "0.94 x 0.94 x 1.2 mm, LIA": order * [0.94, 0.94, 1.2],
        "1 mm, LIA, oblique": turn @ order,
    }
    affines = {}
    for name, matrix in linear.items():
        affines[name] = np.eye(4)
        affines[name][:3, :3] = matrix
        affines[name][:3, 3] = -matrix @ np.full(3, (_SIDE - 1) / 2)
    return affines


def _head(affine: np.ndarray) -> tuple[Volume, Volume]:
    """A ball of 75 voxels' radius, parted among as many seeds as a brain has structures."""
    draw = np.random.default_rng(7)
    # Parted on a grid four times coarser: it is how much surface there is that matters.
    places = np.moveaxis(np.indices((_SIDE // 4,) * 3), 0, -1) * 4 + 1.5 - (_SIDE - 1) / 2
    seeds = draw.normal(size=(_CLASSES - 1, 3)) * 35
    nearest = 1 + cKDTree(seeds).query(places)[1]
    coarse = np.where((places**2).sum(axis=-1) < 75**2, nearest, 0).astype(np.uint8)
    labels = coarse.repeat(4, axis=0).repeat(4, axis=1).repeat(4, axis=2)
    scan = (labels * 6 + draw.integers(0, 4, labels.shape)).astype(np.int16)
    return Volume(scan, affine), Volume(labels, affine)


def _steps(scan: Volume, labels: Volume) -> dict[str, Callable[[], Any]]:
    conformed = conform(scan)
    grid = conform(labels, labels=True, plan=conformed.plan).volume
    box = (slice(32, 224),) * 3
    plan = conformed.plan.cropped(box)
    shares = np.empty((_CLASSES, *plan.working.shape), np.float16)
    for k in range(_CLASSES):
        np.equal(grid.data[box], k, out=shares[k], casting="unsafe")
    return {
        "conform a scan": lambda: conform(scan),
        "conform labels": lambda: conform(labels, labels=True, plan=conformed.plan),
        "restore labels": lambda: restore(grid, conformed.plan, labels=True),
        f"restore {_CLASSES} probabilities of 192x192x192": lambda: restore_probabilities(
            shares, plan
        ),
    }
