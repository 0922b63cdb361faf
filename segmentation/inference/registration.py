"""Where one head's structures are in another: transforms found from pairs of centroids.

Centroids are arrays (K, 3) in millimetres, a row a class, NaN where a class is missing. Transforms
are 4×4 matrices that take the first head's millimetres to the second's. Distances are in
millimetres throughout.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.grid import moved

__all__ = ["affine_between", "robust_affine", "similarity_between"]

Points = NDArray[np.float64]
Matrix = NDArray[np.float64]

_FEWEST_STRUCTURES = 8
# How far from its place a structure may be and still count, round by round.
_TOLERANCES_MM = (60.0, 40.0, 30.0, 20.0, 15.0, 12.0, 12.0)
# Around where an affine brings them, centroids of healthy heads scatter by about this; heads differ
# from each other in shape, scale apart, by this share.
_SCATTER_MM = 3.0
_SHAPES = 0.08
_SCALES = (0.7, 1.4)
_MOST_TURNED_DEG = 60.0


def similarity_between(start: Points, end: Points) -> Matrix:
    """Rotation, one scale and a shift that take centroids to others; missing ones are ignored."""
    known = _known_in_both(start, end)
    return _fit_similarity(start[known], end[known], _equal_weights(known))


def affine_between(start: Points, end: Points) -> Matrix:
    """The affine that takes centroids of one head to those of another; missing ones are ignored."""
    similarity = similarity_between(start, end)
    aligned = moved(start, similarity)
    known = _known_in_both(aligned, end)
    weights = _equal_weights(known)
    remaining = _fit_affine_near_identity(aligned[known], end[known], weights)
    return remaining @ similarity


def robust_affine(found: Points, template: Points) -> Matrix | str:
    """An affine from a scan's millimetres to a template's, or the reason why there is none.

    Centroids of structures that were found in the wrong place, or only in part, must not bend it.
    So the head is turned, moved and scaled as a whole first, and structures far from their place
    count less and less. A full affine then goes no further from that than they support.
    """
    known = _known_in_both(found, template)
    if known.sum() < _FEWEST_STRUCTURES:
        return f"only {int(known.sum())} structures to place it by"
    start = found[known]
    end = template[known]

    weights = np.ones(len(start))
    for tolerance_mm in _TOLERANCES_MM:
        similarity = _fit_similarity(start, end, weights)
        weights = _tukey_weights(moved(start, similarity) - end, tolerance_mm)
        if weights.sum() < _FEWEST_STRUCTURES / 2:
            return (
                f"structures lie {tolerance_mm:.0f} mm and more from where they should"
            )
    turned_deg = _rotation_angle_deg(similarity)
    if turned_deg > _MOST_TURNED_DEG:
        # Sides that are exchanged in the header fit best by a head upside down.
        return f"the head would be turned by {turned_deg:.0f} degrees"

    aligned = moved(start, similarity)
    matrix = _fit_affine_near_identity(aligned, end, weights) @ similarity
    scales = np.linalg.svd(matrix[:3, :3], compute_uv=False)
    if scales.min() < _SCALES[0] or scales.max() > _SCALES[1]:
        return f"the head would be scaled by {scales.min():.2f} to {scales.max():.2f}"
    return matrix


def _known_in_both(start: Points, end: Points) -> NDArray[np.bool_]:
    """Which classes have a centroid in both heads, (K,)."""
    in_start = np.isfinite(start).all(1)
    in_end = np.isfinite(end).all(1)
    return np.asarray(in_start & in_end)


def _equal_weights(known: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.ones(int(known.sum()))


def _rotation_angle_deg(similarity: Matrix) -> float:
    """The angle of a similarity's rotation."""
    linear = similarity[:3, :3]
    scale = np.cbrt(np.linalg.det(linear))
    rotation = linear / scale
    cosine = (np.trace(rotation) - 1) / 2
    angle = np.arccos(np.clip(cosine, -1, 1))
    return float(np.degrees(angle))


def _tukey_weights(off_mm: Points, tolerance_mm: float) -> NDArray[np.float64]:
    """Tukey's weights of residuals (K, 3): 1 for none, 0 from the tolerance on."""
    part = np.linalg.norm(off_mm, axis=1) / tolerance_mm
    weights = np.where(part < 1, (1 - part**2) ** 2, 0.0)
    return np.asarray(weights, np.float64)


def _fit_similarity(start: Points, end: Points, weights: NDArray[np.float64]) -> Matrix:
    """Rotation, one scale and a shift that take points (K, 3) to others (Umeyama 1991)."""
    shares = weights / weights.sum()
    start_middle = shares @ start
    end_middle = shares @ end
    start_off = start - start_middle
    end_off = end - end_middle
    weighted_end_off = end_off * shares[:, None]
    covariance = weighted_end_off.T @ start_off
    left, spread, right = np.linalg.svd(covariance)
    # Never a reflection: the last axis, along which points spread least, turns if it must.
    handedness = np.sign(np.linalg.det(left @ right))
    signs = np.array([1.0, 1.0, handedness])
    rotation = left @ np.diag(signs) @ right
    variance = shares @ (start_off**2).sum(1)
    scale = (spread * signs).sum() / variance
    matrix = np.eye(4)
    matrix[:3, :3] = scale * rotation
    matrix[:3, 3] = end_middle - matrix[:3, :3] @ start_middle
    return matrix


def _fit_affine_near_identity(
    start: Points, end: Points, weights: NDArray[np.float64]
) -> Matrix:
    """The likeliest affine that takes points (K, 3) to others: ridge regression of the change.

    Points scatter by `_SCATTER_MM` around their place, and heads differ in shape by `_SHAPES`: with
    few points or near ones the second outweighs the first.
    """
    middle = weights @ start / weights.sum()
    root_weights = np.sqrt(weights)[:, None]
    with_constant = np.c_[start - middle, np.ones(len(start))]
    rows = with_constant * root_weights
    wanted = (end - start) * root_weights
    # Three more equations draw the linear part to no change; the shift is free.
    strength = _SCATTER_MM / _SHAPES
    penalty = np.diag([strength, strength, strength, 0.0])[:3]
    all_rows = np.r_[rows, penalty]
    all_wanted = np.r_[wanted, np.zeros((3, 3))]
    change, *_ = np.linalg.lstsq(all_rows, all_wanted, rcond=None)
    linear = change[:3].T
    shift = change[3]
    matrix = np.eye(4)
    matrix[:3, :3] += linear
    matrix[:3, 3] = shift - linear @ middle
    return matrix
