"""Conform and restore against a copy of the same volume, in turn, so that drift favours neither."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from segmentation.conform import conform, restore, restore_probabilities
from segmentation.volume import Volume

_SIDE = 256
_CLASSES = 33


def run(repetitions: str = "5") -> None:
    """Medians of seconds, and of their ratios to a float32 copy timed right before."""
    for name, affine in _grids().items():
        scan, labels = _head(affine)
        print(f"{name}: {_SIDE}x{_SIDE}x{_SIDE}, {len(np.unique(labels.data))} labels")
        for step, work in _steps(scan, labels).items():
            _report(step, work, scan.data, int(repetitions))


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
    shares = np.empty((_CLASSES, *plan.shape), np.float16)
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


def _report(name: str, work: Callable[[], Any], data: np.ndarray, repetitions: int) -> None:
    values = data.astype(np.float32)
    work()
    seconds, ratios = [], []
    for _ in range(repetitions):
        copied, worked = _seconds(values.copy), _seconds(work)
        seconds.append(worked)
        ratios.append(worked / copied)
    print(
        f"  {name:42} {statistics.median(seconds):6.2f} s"
        f"  {statistics.median(ratios):6.1f} times a copy"
    )


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
