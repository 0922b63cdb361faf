"""Simulated sessions of one head: structures grow or shrink, and each scan is acquired anew.

A deformation is an array (3, X, Y, Z) in voxels of 1 mm: the point x of the session comes from x
+ deformation(x) in the head.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft, linalg, ndimage

from trinat.pipelines.models.fit_limits import bias, noise
from trinat.segmentation.grid import Grid, moved, to_shape
from trinat.segmentation.io.volume import Volume

Array = NDArray[np.float64]

# Voxels this close to a structure change with it. The shell around that absorbs the change.
_RIM_MM = 2
_SHELL_MM = 8
_SMOOTH_MM = 1.0
_ROUNDS = 6


@dataclass(frozen=True)
class Protocol:
    """Acquisition parameters: voxel size, pose, shading from corner to corner, noise.

    Rotations and shifts are drawn with these standard deviations, about each axis. Noise is a
    share of the bright end of the head.
    """

    spacing_mm: tuple[float, float, float] = (1.0, 1.0, 1.0)
    turned_deg: float = 3.0
    shifted_mm: float = 3.0
    shading: float = 0.3
    noise: float = 0.02


def deformation(structure: NDArray[np.bool_], share: float) -> Array:
    """Return a smooth deformation that grows a structure (X, Y, Z) by a share, or shrinks it (< 0).

    It is the gradient of a potential whose Laplacian is constant in the structure and its rim,
    so that another segmentation of the structure changes by as much, and constant in a shell
    around that, so that tissue further away stays in place. It is scaled until `change_of`
    equals the share.
    """
    distance = ndimage.distance_transform_edt(~structure)
    changing = distance <= _RIM_MM
    shell = (distance <= _RIM_MM + _SHELL_MM) & ~changing
    wanted = np.zeros(structure.shape)
    wanted[changing] = -share
    wanted[shell] = share * changing.sum() / shell.sum()
    field = flow_of(ndimage.gaussian_filter(wanted, _SMOOTH_MM))
    scale = 1.0
    for _ in range(_ROUNDS):
        reached = change_of(structure, scale * field)
        if abs(reached) < 1e-9:
            break
        scale *= share / reached
    return scale * field


def change_of(structure: NDArray[np.bool_], field: Array) -> float:
    """Return the relative change in volume of a structure (X, Y, Z) under a deformation."""
    slopes = [np.gradient(part) for part in field]
    jacobian = np.empty((*structure.shape, 3, 3))
    for row in range(3):
        for column in range(3):
            jacobian[..., row, column] = slopes[row][column] + (row == column)
    inside = np.linalg.det(jacobian[structure])
    return float((1 / inside).mean() - 1)


def flow_of(divergence: Array) -> Array:
    """Return the irrotational field (3, X, Y, Z) with this divergence, by Fourier's method.

    The precision is that of the divergence.
    """
    spectrum = fft.rfftn(divergence - divergence.mean())
    lengths = divergence.shape
    waves = [
        2j * np.pi * fft.fftfreq(lengths[0])[:, None, None],
        2j * np.pi * fft.fftfreq(lengths[1])[None, :, None],
        2j * np.pi * fft.rfftfreq(lengths[2])[None, None, :],
    ]
    waves = [wave.astype(spectrum.dtype) for wave in waves]
    square = sum(wave**2 for wave in waves)
    square[0, 0, 0] = 1
    potential = spectrum / square
    return np.stack([fft.irfftn(potential * wave, s=lengths) for wave in waves])


def session(
    head: Volume, field: Array | None, protocol: Protocol, draw: np.random.Generator
) -> Volume:
    """Return a scan of a head, deformed and acquired anew.

    The head has voxels of 1 mm and is about 1 at its bright end. Pose and deformation are one
    interpolation, by cubic splines.
    """
    pose = _pose(head, protocol, draw)
    placed = Grid(to_shape(head.shape), pose @ head.affine)
    low, high = placed.extent_mm(placed.box)
    spacing = np.array(protocol.spacing_mm)
    shape = to_shape(np.ceil((high - low) / spacing))
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = low + spacing / 2
    indices = np.moveaxis(np.indices(shape), 0, -1)
    voxels = moved(indices, np.linalg.solve(placed.affine, affine))
    places = np.moveaxis(voxels, -1, 0)
    if field is not None:
        shifts = [ndimage.map_coordinates(part, places, order=1) for part in field]
        places = places + np.stack(shifts)
    image = ndimage.map_coordinates(head.data, places, order=3, output=np.float32)
    image = np.clip(image, 0, None)
    shading = draw.normal(0, protocol.shading)
    image = noise(bias(image, draw, shading), draw, protocol.noise)
    return Volume(np.rint(image * 500).astype(np.int16), affine)


def _pose(head: Volume, protocol: Protocol, draw: np.random.Generator) -> Array:
    """Return a random rigid matrix about the middle of the head, in RAS mm."""
    x, y, z = np.radians(draw.normal(0, protocol.turned_deg, 3))
    turn = linalg.expm(np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]))
    middle = np.mean(head.grid.extent_mm(head.grid.box), axis=0)
    pose = np.eye(4)
    pose[:3, :3] = turn
    shift = draw.normal(0, protocol.shifted_mm, 3)
    pose[:3, 3] = middle - turn @ middle + shift
    return pose
