"""The phantom: a head of known anatomy in any geometry, and what a T1 scan of it looks like.

One anatomy (`anatomy.py`) is posed, resized and warped by a smooth invertible map, another for
each subject. Image and truth are two readings of the same warped tissue fractions: the image is
their mean brightness, the truth their largest, so the truth is exact whatever the voxels are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates, uniform_filter
from torch.nn import functional

from trinat.segmentation.errors import ConfigError
from trinat.segmentation.grid import Grid, world_axes
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.synthetic.anatomy import MIXED, Anatomy, load_anatomy

Floats = NDArray[np.float64]

FIELD_OF_VIEW_MM = (184.0, 248.0, 240.0)  # right-left, front-back, up-down
CROWN_MM = 16.0  # air above the head
SPACING_MM = (0.3, 10.0)
MAX_OBLIQUE_DEG = (
    45.0  # beyond it, another order of the axes would describe the grid better
)

# How subjects differ: standard deviations; every draw is kept within twice its own.
SIZE_SD, SHEAR_SD, TILT_SD_DEG, SHIFT_SD_MM = 0.03, 0.015, 3.0, 3.0
CENTRE_SD_MM = 15.0  # of the field of view, from the scanner's
WARP_SD_MM, WARP_KNOTS_MM = 2.0, 30.0
MIN_JACOBIAN = (
    0.3  # of the warp, everywhere: tissue is never folded, nor squeezed to less
)
BIAS_SD, BIAS_KNOTS_MM = 0.12, 80.0  # of the logarithm of the coil's gain
CONTRAST_SHARED = 0.7  # share of the tissues' brightness that scans vary together
TEXTURE = (
    0.3  # share of a tissue's spread that is texture, not noise, bias or partial volume
)
NOISE = (0.01, 0.03)  # of the brightness of white matter
WHITE_MATTER_VALUE = (250.0, 700.0)

_NODE_MM = 6.0  # the warp is evaluated on nodes this far apart, and linear between them
_SLAB_SAMPLES = 2**19
_AIR = 0  # its row of the contrasts
_WHITE_MATTER = 1  # its class, on the left


def phantom(
    seed: int | np.random.Generator = 0,
    *,
    spacing_mm: tuple[float, float, float] = (1.0, 1.0, 1.0),
    orientation: str = "RAS",
    oblique_deg: float = 0.0,
    anatomy: Anatomy | None = None,
) -> tuple[Volume, Volume]:
    """A synthetic head: a T1 scan and its exact label map, by `seed` alone.

    Parameters
    ----------
    seed : int
        Another seed is another head and another scanner.
    spacing_mm : (x, y, z)
        Size of the voxels along the array's axes, in mm, 0.3 to 10. From 2 mm on the anatomy is
        coarser too: quick heads, in which the smallest structures may be missing.
    orientation : str
        Where the array's axes grow to, as "RAS" or "LIA".
    oblique_deg : float
        Turns the grid about a diagonal, up to 45 degrees.
    anatomy : Anatomy, optional
        Another one than the shipped.

    Returns
    -------
    (Volume, Volume)
        The scan, int16 (X, Y, Z), and its FreeSurfer numbers, int16, on the same grid.

    Examples
    --------
    >>> scan, labels = trinat.phantom(seed=0, spacing_mm=(3, 3, 3))
    >>> scan.shape == labels.shape
    True
    """
    _check(spacing_mm, orientation, oblique_deg)
    rng = np.random.default_rng(seed)
    anatomy = anatomy or load_anatomy(int(np.clip(min(spacing_mm), 1, 3)))
    head = _draw_head(rng)
    grid = _draw_grid(rng, anatomy, spacing_mm, orientation, oblique_deg)
    image, classes = _render(rng, anatomy, _draw_brightness(rng, anatomy), head, grid)
    numbers = load_scheme("quicknat33").to_freesurfer(classes)
    return Volume(image, grid.affine), Volume(numbers, grid.affine)


@dataclass(frozen=True, eq=False)
class _Field:
    """A smooth random function of place: cubic B-splines on knots over the field of view."""

    knots: Floats  # (X, Y, Z)
    spacing_mm: float

    @classmethod
    def draw(cls, rng: np.random.Generator, sd: float, spacing_mm: float) -> _Field:
        # Oblique grids reach beyond the field of view: the outermost knots go on from there.
        shape = [int(np.ceil(1.4 * mm / spacing_mm)) + 3 for mm in FIELD_OF_VIEW_MM]
        # A sum of splines with weights (1, 4, 1) / 6 per axis has 0.5 ** 1.5 of the knots' spread.
        return cls(_draw(rng, sd / 0.5**1.5, shape), spacing_mm)

    def at(self, points_mm: Floats) -> Floats:
        """Values at points (3, ...), in mm from the centre."""
        centre = (np.array(self.knots.shape) - 1) / 2
        where = points_mm / self.spacing_mm + centre.reshape(
            3, *[1] * (points_mm.ndim - 1)
        )
        values: Floats = map_coordinates(
            self.knots, where, order=3, mode="nearest", prefilter=False
        )
        return values


@dataclass(frozen=True, eq=False)
class _Head:
    """Where the anatomy's tissue goes: mm from the centre of the field of view, both ways round."""

    matrix: Floats  # (3, 3), world to anatomy
    shift_mm: Floats  # (3,)
    warp: tuple[_Field, _Field, _Field]

    def to_anatomy_mm(self, points_mm: Floats) -> Floats:
        """(3, ...) to (3, ...)."""
        posed = np.tensordot(self.matrix, points_mm, 1)
        posed += self.shift_mm.reshape(3, *[1] * (points_mm.ndim - 1))
        return posed + np.stack([field.at(posed) for field in self.warp])


@dataclass(frozen=True, eq=False)
class _SampledGrid(Grid):
    """The scan's voxels, each the mean of `factors` samples along its axes."""

    factors: tuple[int, int, int]
    centre_mm: Floats  # of the field of view

    @property
    def samples(self) -> tuple[int, int, int]:
        x, y, z = (
            size * factor for size, factor in zip(self.shape, self.factors, strict=True)
        )
        return x, y, z

    def nodes_mm(self) -> Floats:
        """Nodes from the first sample to the last, in mm from the centre, (3, X, Y, Z)."""
        steps_mm = np.array(self.spacing_mm) / np.array(self.factors)
        counts = np.maximum(
            np.ceil(np.array(self.samples) * steps_mm / _NODE_MM).astype(int) + 1, 2
        )
        lines = [
            np.linspace(0, n - 1, count)
            for n, count in zip(self.samples, counts, strict=True)
        ]
        voxels = [
            (line + 0.5) / f - 0.5 for line, f in zip(lines, self.factors, strict=True)
        ]
        points = np.tensordot(
            self.affine[:3, :3], np.stack(np.meshgrid(*voxels, indexing="ij")), 1
        )
        offset = self.affine[:3, 3] - self.centre_mm
        return points + offset.reshape(3, 1, 1, 1)


def _draw(rng: np.random.Generator, sd: float, shape: int | list[int]) -> Floats:
    """Normal, but never beyond twice `sd`: no subject is a monster."""
    values: Floats = sd * np.clip(rng.standard_normal(shape), -2, 2)
    return values


def _draw_head(rng: np.random.Generator) -> _Head:
    size = np.diag(1 / (1 + _draw(rng, SIZE_SD, 3)))
    shear = np.eye(3)
    shear[np.triu_indices(3, 1)] = _draw(rng, SHEAR_SD, 3)
    rotation = np.eye(3)
    for axis, angle in enumerate(np.radians(_draw(rng, TILT_SD_DEG, 3))):
        rotation = rotation @ _rotation(np.eye(3)[axis], angle)
    shift = _draw(rng, SHIFT_SD_MM, 3)
    first, second, third = (
        _Field.draw(rng, WARP_SD_MM, WARP_KNOTS_MM) for _ in range(3)
    )
    return _Head(size @ shear @ rotation, shift, _invertible((first, second, third)))


def _invertible(warp: tuple[_Field, _Field, _Field]) -> tuple[_Field, _Field, _Field]:
    """The warp, halved until its Jacobian is above `MIN_JACOBIAN` on all nodes."""
    lines = [np.arange(-mm / 2, mm / 2 + _NODE_MM, _NODE_MM) for mm in FIELD_OF_VIEW_MM]
    points = np.stack(np.meshgrid(*lines, indexing="ij"))
    # (3 components, 3 directions, X, Y, Z) to matrices; halving the warp halves its gradient.
    gradients = [np.gradient(field.at(points), _NODE_MM) for field in warp]
    gradient = np.moveaxis(np.array(gradients), (0, 1), (-2, -1))
    scale = 1.0
    while np.linalg.det(np.eye(3) + scale * gradient).min() < MIN_JACOBIAN:
        scale /= 2
    x, y, z = (_Field(scale * field.knots, field.spacing_mm) for field in warp)
    return x, y, z


def _draw_grid(
    rng: np.random.Generator,
    anatomy: Anatomy,
    spacing_mm: tuple[float, float, float],
    orientation: str,
    oblique_deg: float,
) -> _SampledGrid:
    world, signs = zip(*world_axes(orientation), strict=True)
    directions = np.zeros((3, 3))
    directions[world, [0, 1, 2]] = signs
    diagonal = rng.choice([-1.0, 1.0], 3) / np.sqrt(3)
    centre = _draw(rng, CENTRE_SD_MM, 3)
    x, y, z = (
        max(1, round(FIELD_OF_VIEW_MM[w] / mm))
        for w, mm in zip(world, spacing_mm, strict=True)
    )
    affine = np.eye(4)
    affine[:3, :3] = (
        _rotation(diagonal, np.radians(oblique_deg)) @ directions * spacing_mm
    )
    affine[:3, 3] = centre - affine[:3, :3] @ ((np.array([x, y, z]) - 1) / 2)
    # Files hold single precision: what is written is what was rendered.
    affine = affine.astype(np.float32).astype(np.float64)
    # Voxels larger than the anatomy's are the mean of several samples: partial volume.
    f, g, h = (max(1, round(mm / anatomy.spacing_mm)) for mm in spacing_mm)
    return _SampledGrid((x, y, z), affine, (f, g, h), centre)


def _draw_brightness(rng: np.random.Generator, anatomy: Anatomy) -> NDArray[np.float32]:
    """The unwarped head in T1, (X, Y, Z), on the scale of the priors; air is 0."""
    share = CONTRAST_SHARED
    own = _draw(rng, 1, len(anatomy.means))
    offset = share * _draw(rng, 1, 1) + np.sqrt(1 - share**2) * own
    means = anatomy.means[:, 0] + offset * anatomy.means[:, 1]
    spreads = TEXTURE * anatomy.spreads[:, 0]
    means[_AIR] = spreads[_AIR] = 0  # what is seen there is noise
    # Tissue varies from voxel to voxel and over centimetres.
    white = rng.standard_normal(anatomy.tissues.shape, dtype=np.float32)
    texture = 0.5 * white
    for size in (3, 7):
        texture += 0.6 * size**1.5 * uniform_filter(white, size, mode="nearest")
    texture *= spreads[anatomy.contrast].astype(np.float32)[anatomy.tissues]
    texture += means[anatomy.contrast].astype(np.float32)[anatomy.tissues]
    np.maximum(texture, 0, out=texture)
    return texture


def _render(
    rng: np.random.Generator,
    anatomy: Anatomy,
    brightness: NDArray[np.float32],
    head: _Head,
    grid: _SampledGrid,
) -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
    """Image and truth (classes), slab by slab along the first axis, so that memory stays small."""
    points = grid.nodes_mm()
    coil = _Field.draw(rng, BIAS_SD, BIAS_KNOTS_MM)
    white_matter = float(brightness[anatomy.truth == _WHITE_MATTER].mean())
    noise = rng.uniform(*NOISE) * white_matter
    gain = rng.uniform(*WHITE_MATTER_VALUE) / white_matter
    # Per node: the place in voxels of the anatomy, and the logarithm of the gain.
    x, y, z = anatomy.extent_mm
    centre = [(x - 1) / 2, (y - 1) / 2, z - 2 + CROWN_MM - FIELD_OF_VIEW_MM[2] / 2]
    places_mm = head.to_anatomy_mm(points) + np.reshape(centre, (3, 1, 1, 1))
    where = (places_mm + 0.5) / anatomy.spacing_mm - 0.5
    nodes = torch.from_numpy(
        np.concatenate([where, coil.at(points)[None]]).astype(np.float32)
    )

    image = np.empty(grid.shape, np.int16)
    classes = np.empty(grid.shape, np.uint8)
    field = torch.from_numpy(brightness)[None, None]
    depth = max(
        1, _SLAB_SAMPLES // (grid.samples[1] * grid.samples[2] * grid.factors[0])
    )
    for start in range(0, grid.shape[0], depth):
        slab = slice(start, min(start + depth, grid.shape[0]))
        places, log_gain = _between_nodes(nodes, grid, slab)
        places[
            2
        ].abs_()  # below its last slice the neck goes on as its own mirror image
        clean = _pool(_sample(field, places) * log_gain.exp(), grid.factors)
        shape = clean.shape
        # Magnitude images: noise in both channels, so that air is not black.
        real = clean + noise * rng.standard_normal(shape, dtype=np.float32)
        imaginary = noise * rng.standard_normal(shape, dtype=np.float32)
        image[slab] = np.rint(gain * np.hypot(real, imaginary))
        classes[slab] = _largest_fraction(anatomy, places.numpy(), grid.factors)
    return image, classes


def _between_nodes(
    nodes: torch.Tensor, grid: _SampledGrid, slab: slice
) -> tuple[torch.Tensor, torch.Tensor]:
    """Places (3, X, Y, Z) and log gain (X, Y, Z) of a slab's samples, linear between nodes."""
    factor, (total, rows, columns) = grid.factors[0], grid.samples
    along = torch.arange(slab.start * factor, slab.stop * factor) * (
        (nodes.shape[1] - 1) / max(total - 1, 1)
    )
    lower = along.floor().clamp(max=nodes.shape[1] - 2)
    share = (along - lower).reshape(1, -1, 1, 1)
    index = lower.long()
    planes = nodes[:, index] * (1 - share) + nodes[:, index + 1] * share
    samples = functional.interpolate(
        planes.transpose(0, 1), (rows, columns), mode="bilinear", align_corners=True
    ).transpose(0, 1)
    return samples[:3], samples[3]


def _sample(field: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Trilinear values of `field` at places (3, X, Y, Z) in its voxels; its edges go on outside."""
    last = torch.tensor(field.shape[2:]).reshape(3, 1, 1, 1) - 1
    # grid_sample takes -1..1 from the first voxel to the last, and the last axis first.
    turned = (places * 2 / last - 1).flip(0).permute(1, 2, 3, 0)[None]
    return functional.grid_sample(
        field, turned, padding_mode="border", align_corners=True
    )[0, 0]


def _pool(samples: torch.Tensor, factors: tuple[int, int, int]) -> NDArray[np.float32]:
    pooled = (
        functional.avg_pool3d(samples[None], factors)[0]
        if max(factors) > 1
        else samples
    )
    array: NDArray[np.float32] = pooled.numpy()
    return array


def _largest_fraction(
    anatomy: Anatomy, places: NDArray[np.float32], factors: tuple[int, int, int]
) -> NDArray[np.uint8]:
    """The class with the largest share of each voxel, (X, Y, Z)."""
    cells = anatomy.cells
    last = (np.array(anatomy.truth.shape) - 1).reshape(3, 1, 1, 1)
    places = np.clip(places, 0, last.astype(np.float32))
    corner = np.minimum(places.astype(np.int32), last.astype(np.int32) - 1)
    codes = cells.ravel()[np.ravel_multi_index(tuple(corner), cells.shape)]
    by_voxel = _samples_last(codes, factors)
    classes: NDArray[np.uint8] = by_voxel.min(axis=-1)
    mixed = (by_voxel.max(axis=-1) == MIXED) | (classes != by_voxel.max(axis=-1))

    # Eight corners of each sample in a mixed voxel vote with their trilinear weights.
    base = np.stack(
        [_samples_last(axis, factors)[mixed] for axis in corner]
    )  # (3, M, samples)
    share = np.stack([_samples_last(axis, factors)[mixed] for axis in places]) - base
    classes[mixed] = _vote(anatomy.truth, base, share)
    return classes


def _vote(
    truth: NDArray[np.uint8], base: NDArray[np.int32], share: NDArray[np.float32]
) -> NDArray[np.uint8]:
    """The class of most weight around samples (3, M, samples) of M voxels."""
    count = int(truth.max()) + 1
    winners = np.empty(base.shape[1], np.uint8)
    chunk = max(1, 2**14 // base.shape[2])
    for start in range(0, len(winners), chunk):
        part = slice(start, start + chunk)
        first_bin = np.arange(len(winners[part]))[:, None] * count
        bins, weights = [], []
        for corner in np.ndindex(2, 2, 2):
            away = np.array(corner).reshape(3, 1, 1)
            bins.append(first_bin + truth[tuple(base[:, part] + away)])
            weights.append(
                np.where(away, share[:, part], 1 - share[:, part]).prod(axis=0)
            )
        votes = np.bincount(
            np.ravel(bins), np.ravel(weights), len(winners[part]) * count
        )
        winners[part] = votes.reshape(-1, count).argmax(axis=1)
    return winners


def _samples_last(array: NDArray[Any], factors: tuple[int, int, int]) -> NDArray[Any]:
    """Samples (X·f, Y·g, Z·h) to voxels (X, Y, Z, samples)."""
    f, g, h = factors
    x, y, z = array.shape
    blocks = array.reshape(x // f, f, y // g, g, z // h, h)
    return blocks.transpose(0, 2, 4, 1, 3, 5).reshape(x // f, y // g, z // h, f * g * h)


def _rotation(axis: Floats, angle: float) -> Floats:
    """About the unit vector `axis`, by Rodrigues' formula."""
    x, y, z = axis
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    turned: Floats = (
        np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross
    )
    return turned


def _check(
    spacing_mm: tuple[float, float, float], orientation: str, oblique_deg: float
) -> None:
    low, high = SPACING_MM
    if len(spacing_mm) != 3 or not all(low <= mm <= high for mm in spacing_mm):
        raise ConfigError(
            f"spacing {spacing_mm} is not three numbers from {low} to {high} mm"
        )
    try:
        world_axes(orientation)
    except ValueError:
        raise ConfigError(
            f"{orientation!r} is no orientation",
            remedy="three letters such as RAS or LIA: one of R L, one of A P, one of S I",
        ) from None
    if not 0 <= oblique_deg <= MAX_OBLIQUE_DEG:
        raise ConfigError(
            f"oblique angle {oblique_deg} is not in 0 to {MAX_OBLIQUE_DEG} degrees"
        )
