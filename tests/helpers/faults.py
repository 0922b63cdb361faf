"""Eight kinds of faults in label maps of classes, as real datasets have them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.ndimage import binary_dilation

from trinat.segmentation.labels.scheme import load_scheme

SCHEME = load_scheme("quicknat33")
# Structures that are swapped, and one that is lost or grows.
_NEIGHBOURS = (
    ("Left-Putamen", "Left-Caudate"),
    ("Right-Hippocampus", "Right-Thalamus"),
)
_ONES = (
    "Left-Thalamus",
    "Right-Putamen",
    "Left-Hippocampus",
    "Brain-Stem",
    "Right-Caudate",
)

Fault = Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]


def _missing(labels: np.ndarray, _: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.where(labels == _number(rng.choice(_ONES)), 0, labels)


def _sides(labels: np.ndarray, _: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return SCHEME.partner_permutation[labels]


def _mirrored(
    labels: np.ndarray, _: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    return labels[::-1]


def _shifted(labels: np.ndarray, _: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.roll(labels, rng.choice((-2, 2)), rng.integers(3))


def _truncated(
    labels: np.ndarray, _: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    heights = np.flatnonzero(labels.any((0, 1)))
    cut = labels.copy()
    cut[:, :, heights[3 * len(heights) // 4] :] = 0
    return cut


def _exchanged(
    labels: np.ndarray, _: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    order = np.arange(len(SCHEME))
    one, other = (_number(name) for name in _NEIGHBOURS[rng.integers(2)])
    order[[one, other]] = other, one
    return order[labels]


def _of_another(
    _: np.ndarray, other: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    return other


def _swollen(labels: np.ndarray, _: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    number = _number(rng.choice(_ONES))
    return np.where(binary_dilation(labels == number, iterations=2), number, labels)


def _number(name: str) -> int:
    return SCHEME.names.index(name)


# Each function takes a subject's labels (X, Y, Z), those of another subject, and a generator.
FAULTS: dict[str, Fault] = {
    "missing structure": _missing,
    "sides exchanged": _sides,
    "mirrored map": _mirrored,
    "shifted map": _shifted,
    "truncated map": _truncated,
    "two structures exchanged": _exchanged,
    "map of another subject": _of_another,
    "swollen structure": _swollen,
}


def spoil(
    kind: str, labels: np.ndarray, other: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    return np.ascontiguousarray(FAULTS[kind](labels, other, rng)).astype(np.uint8)
