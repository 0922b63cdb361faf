"""Robust rigid registration of two scans of one head.

Both scans are resampled to a space halfway between them, so that both are interpolated
alike, and each step moves both by half: the result does not depend on the order of the
scans, except for rounding. Differences between the scans (a turned neck, a lesion, an
artefact) have little weight: residuals are weighted by Tukey's function, following Reuter,
Rosas and Fischl (NeuroImage 53, 2010, p. 1181).

Matrices are 4×4 and rigid. They map RAS millimetres of one scan to RAS millimetres of
another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, ndimage

from trinat.segmentation.grid import Grid, Shape, moved, to_shape
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.grid_map import GridMap
from trinat.segmentation.space.resample import resample_image

Matrix = NDArray[np.float64]
Image = NDArray[np.float32]

# Voxel size of each level of the image pyramid, and the largest number of steps in it.
_LEVELS_MM = (8.0, 4.0, 2.0)
_MOST_STEPS = (20, 10, 10)
# Voxel size for comparing sides and sizes of two heads.
_ROUGHLY_MM = 4.0
# A scan counts as mirrored if its mirror image fits better by more than this. In measurements,
# mirror images of mirrored scans fit better by 0.06 and more, and those of correct scans fit worse
# by 0.06 and more, also with noise (docs/notes/longitudinal.md).
_MORE_ALIKE = 0.02
# A voxel is background if the mean over about this distance is darker than `_TISSUE`, also in a
# scan with noise of 10 %.
_NOISE_MM = 1.5
_TISSUE = 0.25
# Initial rotations about each axis, because heads may be turned against each other.
_STARTS_DEG = (-25.0, 25.0)
_STEPS_OF_START = 4
# The search ends when a step moves the voxels of the head by less than this on average.
_STILL_MM = 0.003
# Decimals to which steps are rounded, in radians and millimetres. Smaller digits depend on memory
# alignment, because steps are sums of many numbers, and the same scans must give the same bytes.
_DECIMALS = 6
# Brightness is divided by its mean over about this distance, because shading differs between scans.
_SHADING_MM = 20.0
# Added to the mean before the division, so that empty regions are not amplified.
_FLOOR = 0.1
# Tukey's constant, in standard deviations of normally distributed residuals.
_TUKEY = 4.685
_NORMAL_MAD = 1.4826
# Voxels in which both images are darker than this are not in the head.
_HEAD = 0.2


@dataclass(frozen=True, eq=False)
class Alignment:
    """Rigid alignment of two scans.

    `matrix` (4, 4) maps RAS millimetres of the first scan to those of the second. `likeness` is the
    correlation of the aligned images after their shading was removed: near 1 for two scans of one
    head.
    """

    matrix: Matrix
    likeness: float


def align(
    first: Volume, second: Volume, *, finest_mm: float = _LEVELS_MM[-1]
) -> Alignment:
    """Align the head of the first scan with that of the second.

    Both scans have intensities of 0 in the background and about 1 in the brightest tissue, and
    voxels of about 1 mm. If one of them shows no head, the likeness is 0. `finest_mm` is the voxel
    size of the finest level of the search; larger voxels give a larger likeness.
    """
    coarse = _LEVELS_MM[0]
    pair = (_pyramid_level(first, coarse), _pyramid_level(second, coarse))
    if not all((image.data > _HEAD).any() for image in pair):
        return Alignment(np.eye(4), 0.0)
    middles = []
    for image in pair:
        centre_of_mass = ndimage.center_of_mass(image.data > _HEAD)
        middles.append(moved(centre_of_mass, image.affine))
    best: Alignment | None = None
    for turn in _initial_rotations():
        # Rotate about the centre of the first head, and move it to the centre of the second.
        start = np.eye(4)
        start[:3, :3] = turn
        start[:3, 3] = middles[1] - turn @ middles[0]
        found = _refine(pair, start, coarse, _STEPS_OF_START)
        if best is None or found.likeness > best.likeness:
            best = found
    assert best is not None
    for spacing_mm, steps in zip(_LEVELS_MM, _MOST_STEPS, strict=True):
        if spacing_mm < finest_mm:
            break
        pair = (_pyramid_level(first, spacing_mm), _pyramid_level(second, spacing_mm))
        best = _refine(pair, best.matrix, spacing_mm, steps)
    return best


def is_mirrored(first: Volume, second: Volume, matrix: Matrix) -> bool:
    """Return True if the second scan fits the first better with left and right exchanged.

    `matrix` (4, 4) aligns the first scan with the second without an exchange. Although the two
    sides of a head are alike, the correct orientation fits far better (docs/longitudinal.md).
    """
    first = _without_noise(first)
    second = _without_noise(second)
    pair = (_pyramid_level(first, _ROUGHLY_MM), _pyramid_level(second, _ROUGHLY_MM))
    root = _square_root(matrix)
    halfway = _resample_halfway(pair, root, _halfway_grid(pair, root, _ROUGHLY_MM))
    exchanged = Volume(np.ascontiguousarray(second.data[::-1]), second.affine)
    mirrored = align(first, exchanged, finest_mm=_ROUGHLY_MM)
    return mirrored.likeness > _likeness(*halfway) + _MORE_ALIKE


def _without_noise(volume: Volume) -> Volume:
    """Set the background of a scan to 0.

    Its noise would be as large in both orientations and hide their difference.
    """
    width = _NOISE_MM / np.array(volume.spacing_mm)
    around = ndimage.gaussian_filter(volume.data, width)
    return Volume(np.where(around > _TISSUE, volume.data, 0), volume.affine)


def stretches(first: Volume, second: Volume, matrix: Matrix) -> NDArray[np.float64]:
    """Return the size of the second head relative to the first along three axes, (3,).

    Factors are 1 for equal sizes, and the largest comes first. They are the singular values of an
    affine registration with twelve degrees of freedom, which starts from the rigid `matrix` (4, 4).
    """
    image = _pyramid_level(first, _ROUGHLY_MM)
    other = _pyramid_level(second, _ROUGHLY_MM)
    places = _voxel_positions(image.grid)
    centre = places.mean(axis=0)
    for _ in range(_MOST_STEPS[-1]):
        seen = GridMap.between(other.grid, image.grid.moved_by(matrix))
        images = (image.data, resample_image(other.data, seen))
        is_head = np.maximum(*images).ravel() > _HEAD
        if not is_head.any():
            break
        slope, residual = _slopes_and_residual(images, is_head, _ROUGHLY_MM)
        # Products of slope and position: the effect of each of nine components of a stretch on a
        # voxel.
        from_centre = places[is_head] - centre
        stretched = slope[:, :, None] * from_centre[:, None, :]
        columns = np.concatenate([stretched.reshape(-1, 9), slope], axis=1)
        solution = _robust_solution(columns, residual)
        step = np.eye(4)
        step[:3, :3] += solution[:9].reshape(3, 3)
        step[:3, 3] = solution[9:]
        step = _relative_to_centre(step, centre)
        matrix = matrix @ step
        if _mean_shift_mm(places[is_head], step) < _STILL_MM:
            break
    return np.asarray(np.linalg.svd(matrix[:3, :3], compute_uv=False), np.float64)


def mean_pose(poses: Sequence[Matrix]) -> Matrix:
    """Return the rigid movement (4, 4) in the middle of several: a mean of their matrices.

    The logarithms of the matrices relative to it sum to 0.
    """
    middle = poses[0]
    for _ in range(10):
        inverse = np.linalg.inv(middle)
        ways = [_logarithm(inverse @ pose) for pose in poses]
        middle = middle @ linalg.expm(np.mean(ways, axis=0))
    return np.asarray(middle, np.float64)


def _logarithm(rigid: Matrix) -> Matrix:
    """Return the matrix logarithm of a rigid matrix that rotates by less than half a turn."""
    return np.asarray(np.real(linalg.logm(rigid)), np.float64)


def _initial_rotations() -> list[Matrix]:
    """Return the rotations (3, 3) from which the search starts, the identity first."""
    starts = [np.eye(3)]
    for axis in range(3):
        for degrees in _STARTS_DEG:
            twist = np.zeros(3)
            twist[axis] = np.radians(degrees)
            starts.append(np.asarray(linalg.expm(_cross_product_matrix(twist))))
    return starts


def _cross_product_matrix(vector: NDArray[np.float64]) -> Matrix:
    """Return the matrix (3, 3) of the cross product of a vector (3,) with another one."""
    x, y, z = vector
    return np.array(
        [
            [0.0, -z, y],
            [z, 0.0, -x],
            [-y, x, 0.0],
        ]
    )


def _pyramid_level(volume: Volume, spacing_mm: float) -> Volume:
    """Resample an image to a RAS grid of this spacing, smooth it and remove slow shading."""
    low, high = volume.grid.extent_mm(volume.grid.box)
    voxels = np.ceil((high - low) / spacing_mm)
    # A margin of background on all sides, so that voxels that leave the grid are as dark as those
    # beyond.
    grid = grid_around((low + high) / 2, to_shape(voxels + 2), spacing_mm)
    to_level = GridMap.between(volume.grid, grid)
    image = resample_image(volume.data, to_level)
    image = ndimage.gaussian_filter(image, 0.5)
    around = ndimage.gaussian_filter(image, _SHADING_MM / spacing_mm)
    without_shading = image / (around + np.float32(_FLOOR))
    return Volume(without_shading, grid.affine)


def grid_around(centre: NDArray[np.float64], shape: Shape, spacing_mm: float) -> Grid:
    """Return the grid of this shape and spacing, with RAS axes, around a position (3,)."""
    # Distance from the centre of the first voxel to the centre of the last one.
    length_mm = spacing_mm * (np.array(shape) - 1)
    affine = np.diag([spacing_mm] * 3 + [1.0])
    affine[:3, 3] = centre - length_mm / 2
    return Grid(shape, affine)


def extents_mm(
    images: Sequence[Volume], poses: Iterable[NDArray[np.floating]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lowest and the highest coordinates of N moved images, (N, 3) each, in RAS mm.

    `poses` (4, 4) are the movements of the images.
    """
    lows = []
    highs = []
    for image, pose in zip(images, poses, strict=True):
        placed = image.grid.moved_by(pose)
        low, high = placed.extent_mm(placed.box)
        lows.append(low)
        highs.append(high)
    return np.array(lows), np.array(highs)


def _refine(
    pair: tuple[Volume, Volume],
    matrix: Matrix,
    spacing_mm: float,
    most_steps: int,
) -> Alignment:
    """Improve an alignment by Gauss-Newton steps, in the space halfway between two images.

    `pair` has both images, resampled to voxels of `spacing_mm`. `matrix` is the alignment to start
    from. There are at most `most_steps` steps.
    """
    root = _square_root(matrix)
    grid = _halfway_grid(pair, root, spacing_mm)
    places = _voxel_positions(grid)
    centre = places.mean(axis=0)
    for _ in range(most_steps):
        images = _resample_halfway(pair, root, grid)
        is_head = np.maximum(*images).ravel() > _HEAD
        if not is_head.any():
            break
        twist = _step(images, is_head, places - centre, spacing_mm)
        # Logarithm of the rigid matrix of half the twist.
        logarithm = np.zeros((4, 4))
        logarithm[:3, :3] = _cross_product_matrix(twist[:3] / 2)
        logarithm[:3, 3] = twist[3:] / 2
        half_turn = linalg.expm(logarithm)
        half = _relative_to_centre(half_turn, centre)
        # Halfway = root · first, and second = root · halfway: both roots get half of the step.
        matrix = root @ half @ half @ root
        root = _square_root(matrix)
        if _mean_shift_mm(places[is_head], half @ half) < _STILL_MM:
            break
    first, second = _resample_halfway(pair, root, grid)
    return Alignment(matrix, _likeness(first, second))


def _voxel_positions(grid: Grid) -> NDArray[np.float64]:
    """Return the positions of all voxels of a grid in RAS mm, (N, 3)."""
    indices = np.moveaxis(np.indices(grid.shape), 0, -1)
    return grid.places(indices.reshape(-1, 3))


def _mean_shift_mm(places: NDArray[np.float64], matrix: Matrix) -> float:
    """Return the mean distance in mm by which a matrix (4, 4) moves places (N, 3)."""
    shifts = moved(places, matrix) - places
    return float(np.linalg.norm(shifts, axis=1).mean())


def _square_root(rigid: Matrix) -> Matrix:
    """Return the square root of a rigid matrix: applied twice, it gives the whole movement."""
    return np.asarray(linalg.expm(_logarithm(rigid) / 2), np.float64)


def _halfway_grid(pair: tuple[Volume, Volume], root: Matrix, spacing_mm: float) -> Grid:
    """Return a grid that covers the common part of both images in their halfway space.

    `root` is the square root of the images' alignment.
    """
    lows, highs = extents_mm(pair, (root, np.linalg.inv(root)))
    # Common part of both images.
    low = lows.max(axis=0)
    high = highs.min(axis=0)
    voxels = np.ceil((high - low) / spacing_mm)
    shape = to_shape(np.maximum(voxels, 1))
    affine = np.diag([spacing_mm] * 3 + [1.0])
    affine[:3, 3] = low + spacing_mm / 2
    return Grid(shape, affine)


def _resample_halfway(
    pair: tuple[Volume, Volume], root: Matrix, grid: Grid
) -> tuple[Image, Image]:
    """Resample both images to a grid in their halfway space.

    `root` is the square root of their alignment.
    """
    poses = (root, np.linalg.inv(root))
    images = []
    for image, pose in zip(pair, poses, strict=True):
        placed = image.grid.moved_by(pose)
        to_grid = GridMap.between(placed, grid)
        images.append(resample_image(image.data, to_grid))
    return images[0], images[1]


def _step(
    images: tuple[Image, Image],
    is_head: NDArray[np.bool_],
    places: NDArray[np.float64],
    spacing_mm: float,
) -> NDArray[np.float64]:
    """Return the rigid step that brings the second image to the first, as a twist (6,).

    A twist is a rotation vector and a shift, in the space halfway between the images, relative to
    the origin of `places`. `images` are on the same grid of `spacing_mm`, `is_head` (N,) marks the
    voxels to use, and `places` (N, 3) are the positions of all voxels in mm.
    """
    slope, residual = _slopes_and_residual(images, is_head, spacing_mm)
    turned = np.cross(places[is_head], slope)
    columns = np.concatenate([turned, slope], axis=1)
    return _robust_solution(columns, residual).round(_DECIMALS)


def _slopes_and_residual(
    images: tuple[Image, Image], is_head: NDArray[np.bool_], spacing_mm: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the slopes (N, 3) of two images per mm, and their difference (N,), in N voxels.

    `images` are on the same grid of `spacing_mm`. The slopes are those of their mean. `is_head`
    marks the N voxels among all voxels of the grid.
    """
    first, second = images
    slopes = np.gradient((first + second) / 2, spacing_mm)
    slope = np.stack([part.ravel()[is_head] for part in slopes], axis=1)
    residual = (second - first).ravel()[is_head]
    return slope.astype(np.float64), residual.astype(np.float64)


def _robust_solution(
    columns: NDArray[np.float64], residual: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return parameters (P,) for which residual + columns @ parameters is smallest.

    `columns` is (N, P), `residual` (N,). Squares are summed with Tukey's weights, so that large
    residuals have little weight.
    """
    # An unweighted first estimate would follow the largest differences.
    parameters: NDArray[np.float64] = np.zeros(columns.shape[1])
    for _ in range(3):
        off = residual + columns @ parameters
        spread = _NORMAL_MAD * np.median(np.abs(off)) + 1e-6
        # Tukey's weights: 1 for no residual, 0 for the largest.
        relative = off / (_TUKEY * spread)
        weights = np.clip(1 - relative**2, 0, None) ** 2
        weighted = columns * weights[:, None]
        normal = columns.T @ weighted + 1e-6 * np.eye(columns.shape[1])
        solution = np.linalg.solve(normal, -weighted.T @ residual)
        parameters = np.asarray(solution, np.float64)
    return parameters


def _relative_to_centre(matrix: Matrix, centre: NDArray[np.float64]) -> Matrix:
    """Return the matrix (4, 4) of a movement that is given relative to `centre` (3,)."""
    to_centre = np.eye(4)
    to_centre[:3, 3] = centre
    back = np.eye(4)
    back[:3, 3] = -centre
    return np.asarray(to_centre @ matrix @ back)


def _likeness(first: Image, second: Image) -> float:
    """Return the correlation of two images over the voxels where either shows a head.

    It is 0 if neither shows a head.
    """
    is_head = np.maximum(first, second) > _HEAD
    if is_head.sum() < 2:
        return 0.0
    # The correlation of a constant image is 0 by 0, for which NumPy warns.
    with np.errstate(invalid="ignore"):
        values = np.corrcoef(first[is_head], second[is_head])[0, 1]
    return float(np.nan_to_num(values))
