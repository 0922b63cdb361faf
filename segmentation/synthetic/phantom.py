"""Digital phantom: a head of known anatomy on any grid, and a T1 scan of it.

One anatomy (`anatomy.py`) is posed, resized and warped by a smooth invertible map that differs
between subjects. Image and truth derive from the same warped tissue fractions: the image is
their mean brightness, the truth their largest, so the truth is exact for any voxel size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates, uniform_filter
from torch.nn import functional

from trinat.segmentation.errors import ConfigError
from trinat.segmentation.grid import Grid, to_shape, world_axes
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels import Csf
from trinat.segmentation.labels.folding import (
    GENERATION_BETWEEN,
    GENERATION_SURROUNDINGS,
)
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.synthetic.anatomy import (
    Anatomy,
    cells_of,
    largest_fraction,
    load_anatomy,
)
from trinat.segmentation.synthetic.heads import heads_of

Floats = NDArray[np.float64]

FIELD_OF_VIEW_MM = (184.0, 248.0, 240.0)  # right-left, front-back, up-down
SPACING_MM = (0.3, 10.0)
# A larger angle would be described better by another order of the axes.
MAX_OBLIQUE_DEG = 45.0
# Standard deviation, along each axis, of the position of the field of view's centre in the scanner.
# All draws are limited to twice their standard deviation.
CENTRE_SD_MM = 15.0
# Smooth fields are evaluated on nodes at this distance, and interpolated linearly.
NODE_MM = 6.0
CROWN_MM = 16.0  # air above the head

# Standard deviations of the differences between subjects.
SIZE_SD = 0.03
SHEAR_SD = 0.015
TILT_SD_DEG = 3.0
SHIFT_SD_MM = 3.0
WARP_SD_MM = 2.0
WARP_KNOTS_MM = 30.0
# Lower limit of the warp's Jacobian: tissue is never folded, nor compressed further.
MIN_JACOBIAN = 0.3
BIAS_SD = 0.12  # standard deviation of the logarithm of the coil's gain
BIAS_KNOTS_MM = 80.0
CONTRAST_SHARED = (
    0.7  # share of the variation in brightness that tissues have in common
)
# Share of a tissue's spread that is texture, not noise, bias or partial volume.
TEXTURE = 0.3
NOISE = (0.01, 0.03)  # relative to the brightness of white matter
WHITE_MATTER_VALUE = (250.0, 700.0)

_SLAB_SAMPLES = 2**19
_AIR = 0  # row of air in the contrast table
_WHITE_MATTER = 1  # class of the left cerebral white matter


def phantom(
    seed: int | np.random.Generator = 0,
    *,
    spacing_mm: tuple[float, float, float] = (1.0, 1.0, 1.0),
    orientation: str = "RAS",
    oblique_deg: float = 0.0,
    anatomy: Anatomy | None = None,
    csf: Csf = "region",
) -> tuple[Volume, Volume]:
    """Make a synthetic head: a T1 scan and its exact label map.

    Parameters
    ----------
    seed : int
        Seed of head and scanner; the same seed gives the same head.
    spacing_mm : (x, y, z)
        Voxel size along the array's axes, in mm, 0.3 to 10. From 2 mm on the anatomy is coarser,
        too: such heads are made quickly, but may lack the smallest structures.
    orientation : str
        Orientation code of the array's axes, such as "RAS" or "LIA".
    oblique_deg : float
        Rotation of the grid about a diagonal, up to 45 degrees.
    anatomy : Anatomy, optional
        Anatomy to use in place of the shipped one.
    csf : str
        Extent of the label CSF: "region", a small one as in FreeSurfer's aseg, or "intracranial",
        all fluid inside the skull around the brain. The scan is the same.

    Returns
    -------
    (Volume, Volume)
        The scan, int16 (X, Y, Z), and its FreeSurfer numbers, int16, on the same grid.

    Raises
    ------
    ConfigError
        If the seed, the voxel size, the orientation or the angle is not allowed.

    Examples
    --------
    >>> scan, labels = trinat.phantom(seed=0, spacing_mm=(3, 3, 3))
    >>> scan.shape == labels.shape
    True
    """
    _check_grid(spacing_mm, orientation, oblique_deg)
    try:
        rng = np.random.default_rng(seed)
    except ValueError:
        raise ConfigError(f"seed {seed} is negative") from None
    anatomy = anatomy or load_anatomy(int(np.clip(min(spacing_mm), 1, 3)))
    if csf == "intracranial":
        anatomy = _with_all_fluid(anatomy)
    head = _draw_head(rng)
    grid = _draw_grid(rng, anatomy, spacing_mm, orientation, oblique_deg)
    brightness = _draw_brightness(rng, anatomy)
    image, classes = _render(rng, anatomy, brightness, head, grid)
    numbers = load_scheme("quicknat33").to_freesurfer(classes)
    return Volume(image, grid.affine), Volume(numbers, grid.affine)


@cache
def _with_all_fluid(anatomy: Anatomy) -> Anatomy:
    """Return an anatomy in whose truth all fluid inside the skull is CSF."""
    maps = heads_of(anatomy)
    is_fluid = np.isin(maps.numbers, (GENERATION_SURROUNDINGS, *GENERATION_BETWEEN))
    truth = anatomy.truth.copy()
    csf = load_scheme("quicknat33").find("CSF")
    truth[is_fluid[maps.labels[0]]] = csf.index
    truth.setflags(write=False)
    cells = cells_of(truth)
    cells.setflags(write=False)
    return replace(anatomy, truth=truth, cells=cells)


@dataclass(frozen=True, eq=False)
class SmoothField:
    """A smooth random function of position: cubic B-splines on a grid of knots.

    `knots` (X, Y, Z) are the coefficients, `spacing_mm` apart. The middle knot is in the centre of
    the field of view.
    """

    knots: Floats
    spacing_mm: float

    @classmethod
    def draw(
        cls,
        rng: np.random.Generator,
        sd: float,
        spacing_mm: float,
    ) -> SmoothField:
        """Draw a random field with standard deviation `sd` over the field of view."""
        # Oblique grids reach outside of it, where the outermost knots are repeated.
        shape = [int(np.ceil(1.4 * mm / spacing_mm)) + 3 for mm in FIELD_OF_VIEW_MM]
        # A sum of splines with weights (1, 4, 1) / 6 per axis has 0.5 ** 1.5 of the knots' spread.
        knots_sd = sd / 0.5**1.5
        return cls(_draw_normal(rng, knots_sd, shape), spacing_mm)

    def at(self, points_mm: Floats) -> Floats:
        """Return the values at points (3, ...), in mm from the centre."""
        centre = (np.array(self.knots.shape) - 1) / 2
        places = points_mm / self.spacing_mm + _as_column(centre, points_mm.ndim)
        values: Floats = map_coordinates(
            self.knots,
            places,
            order=3,
            mode="nearest",
            prefilter=False,
        )
        return values


def _draw_normal(rng: np.random.Generator, sd: float, shape: int | list[int]) -> Floats:
    """Draw normal values, limited to twice `sd`, so that no subject is extreme."""
    values: Floats = sd * np.clip(rng.standard_normal(shape), -2, 2)
    return values


def _as_column(vector: Floats, dimensions: int) -> Floats:
    """Reshape a vector (3,) to (3, 1, ...), to be added to points of this many dimensions."""
    return vector.reshape(3, *[1] * (dimensions - 1))


@dataclass(frozen=True, eq=False)
class _SampledGrid(Grid):
    """Voxel grid of the scan, with several samples in each voxel.

    Each voxel is the mean of f, g, h samples along its axes; these numbers are `factors`.
    `centre_mm` (3,) is the centre of the field of view.
    """

    factors: tuple[int, int, int]
    centre_mm: Floats

    @property
    def samples(self) -> tuple[int, int, int]:
        """Number of samples along each axis."""
        x, y, z = self.shape
        f, g, h = self.factors
        return x * f, y * g, z * h

    def nodes_mm(self) -> Floats:
        """Return the positions of a coarse grid of nodes, (3, X, Y, Z), in mm from the centre.

        The nodes reach from the first sample to the last. They are about `NODE_MM` apart, and at
        least two along each axis.
        """
        steps_mm = np.array(self.spacing_mm) / np.array(self.factors)
        lengths_mm = np.array(self.samples) * steps_mm
        intervals = np.ceil(lengths_mm / NODE_MM).astype(int)
        counts = np.maximum(intervals + 1, 2)
        voxels = []
        for samples, factor, count in zip(
            self.samples, self.factors, counts, strict=True
        ):
            line = np.linspace(0, samples - 1, count)
            voxels.append((line + 0.5) / factor - 0.5)
        grid = np.stack(np.meshgrid(*voxels, indexing="ij"))
        points = np.tensordot(self.affine[:3, :3], grid, 1)
        offset = self.affine[:3, 3] - self.centre_mm
        return points + offset.reshape(3, 1, 1, 1)


def _draw_grid(
    rng: np.random.Generator,
    anatomy: Anatomy,
    spacing_mm: tuple[float, float, float],
    orientation: str,
    oblique_deg: float,
) -> _SampledGrid:
    """Draw the scanner's voxel grid: a random centre, and a rotation about a random diagonal."""
    world, signs = zip(*world_axes(orientation), strict=True)
    directions = np.zeros((3, 3))
    directions[world, [0, 1, 2]] = signs
    diagonal = rng.choice([-1.0, 1.0], 3) / np.sqrt(3)
    centre = _draw_normal(rng, CENTRE_SD_MM, 3)
    shape = []
    factors = []
    for axis, mm in zip(world, spacing_mm, strict=True):
        shape.append(max(1, round(FIELD_OF_VIEW_MM[axis] / mm)))
        # Voxels larger than the anatomy's are the mean of several samples: partial volume.
        factors.append(max(1, round(mm / anatomy.spacing_mm)))
    turned = _rotation_about(diagonal, np.radians(oblique_deg))
    steps_mm = turned @ directions * spacing_mm
    middle_voxel = (np.array(shape) - 1) / 2
    affine = np.eye(4)
    affine[:3, :3] = steps_mm
    affine[:3, 3] = centre - steps_mm @ middle_voxel
    # Files store single precision, so render exactly what will be written.
    affine = affine.astype(np.float32).astype(np.float64)
    return _SampledGrid(to_shape(shape), affine, to_shape(factors), centre)


def _check_grid(
    spacing_mm: tuple[float, float, float], orientation: str, oblique_deg: float
) -> None:
    """Raise a ConfigError for an impossible grid."""
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


def _rotation_about(axis: Floats, angle: float) -> Floats:
    """Return the rotation matrix (3, 3) by `angle`, in radians, about the unit vector `axis`.

    By Rodrigues' formula.
    """
    x, y, z = axis
    cross = np.array(
        [
            [0, -z, y],
            [z, 0, -x],
            [-y, x, 0],
        ]
    )
    sine_part = np.sin(angle) * cross
    cosine_part = (1 - np.cos(angle)) * cross @ cross
    turned: Floats = np.eye(3) + sine_part + cosine_part
    return turned


_Warp = tuple[SmoothField, SmoothField, SmoothField]


@dataclass(frozen=True, eq=False)
class _HeadShape:
    """Difference between a subject's head and the anatomy: pose, size and a smooth warp.

    `matrix` (3, 3) and `shift_mm` (3,) map positions in the scan to positions in the anatomy, both
    in mm from the centre of the field of view. `warp` has a displacement field for each axis.
    """

    matrix: Floats
    shift_mm: Floats
    warp: _Warp

    def to_anatomy_mm(self, points_mm: Floats) -> Floats:
        """Return the positions (3, ...) in the anatomy of points (3, ...) of the scan."""
        posed = np.tensordot(self.matrix, points_mm, 1)
        posed += _as_column(self.shift_mm, points_mm.ndim)
        return posed + np.stack([field.at(posed) for field in self.warp])


def _draw_head(rng: np.random.Generator) -> _HeadShape:
    """Draw how a subject's head differs from the anatomy: pose, size and a smooth warp."""
    size = np.diag(1 / (1 + _draw_normal(rng, SIZE_SD, 3)))
    shear = np.eye(3)
    shear[np.triu_indices(3, 1)] = _draw_normal(rng, SHEAR_SD, 3)
    rotation = np.eye(3)
    tilts = np.radians(_draw_normal(rng, TILT_SD_DEG, 3))
    for axis, angle in zip(np.eye(3), tilts, strict=True):
        rotation = rotation @ _rotation_about(axis, angle)
    shift = _draw_normal(rng, SHIFT_SD_MM, 3)
    # The order of these draws defines the phantom of a seed.
    along_x, along_y, along_z = [
        SmoothField.draw(rng, WARP_SD_MM, WARP_KNOTS_MM) for _ in range(3)
    ]
    warp = _invertible((along_x, along_y, along_z))
    return _HeadShape(size @ shear @ rotation, shift, warp)


def _invertible(warp: _Warp) -> _Warp:
    """Halve the warp until its Jacobian is at least `MIN_JACOBIAN` on all nodes."""
    lines = []
    for length_mm in FIELD_OF_VIEW_MM:
        half_mm = length_mm / 2
        lines.append(np.arange(-half_mm, half_mm + NODE_MM, NODE_MM))
    points = np.stack(np.meshgrid(*lines, indexing="ij"))
    # (3 components, 3 directions, X, Y, Z) to matrices; halving the warp halves its gradient.
    gradients = [np.gradient(field.at(points), NODE_MM) for field in warp]
    gradient = np.moveaxis(np.array(gradients), (0, 1), (-2, -1))

    def least_jacobian(scale: float) -> float:
        """Return the smallest determinant on all nodes, of the warp times `scale`."""
        jacobians = np.eye(3) + scale * gradient
        return float(np.linalg.det(jacobians).min())

    scale = 1.0
    while least_jacobian(scale) < MIN_JACOBIAN:
        scale /= 2
    along_x, along_y, along_z = [
        SmoothField(scale * field.knots, field.spacing_mm) for field in warp
    ]
    return along_x, along_y, along_z


def _draw_brightness(rng: np.random.Generator, anatomy: Anatomy) -> NDArray[np.float32]:
    """Draw the T1 brightness of the anatomy's voxels, (X, Y, Z).

    It is on the scale of the priors, 0 to 255; air is 0.
    """
    share = CONTRAST_SHARED
    own = _draw_normal(rng, 1, len(anatomy.means))
    offset = share * _draw_normal(rng, 1, 1) + np.sqrt(1 - share**2) * own
    means = anatomy.means[:, 0] + offset * anatomy.means[:, 1]
    spreads = TEXTURE * anatomy.spreads[:, 0]
    # The signal of air is noise alone.
    means[_AIR] = 0
    spreads[_AIR] = 0
    # Tissue varies from voxel to voxel and over centimetres.
    white = rng.standard_normal(anatomy.tissues.shape, dtype=np.float32)
    texture = 0.5 * white
    for size in (3, 7):
        texture += 0.6 * size**1.5 * uniform_filter(white, size, mode="nearest")
    spread_of_tissue = spreads[anatomy.contrast].astype(np.float32)
    mean_of_tissue = means[anatomy.contrast].astype(np.float32)
    texture *= spread_of_tissue[anatomy.tissues]
    texture += mean_of_tissue[anatomy.tissues]
    np.maximum(texture, 0, out=texture)
    return texture


def _render(
    rng: np.random.Generator,
    anatomy: Anatomy,
    brightness: NDArray[np.float32],
    head: _HeadShape,
    grid: _SampledGrid,
) -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
    """Render the scan and the classes of its voxels, (X, Y, Z) each.

    `brightness` (X, Y, Z) is that of the anatomy's voxels, `head` maps positions in the scan to
    positions in the anatomy, and `grid` has the scan's voxels with several samples in each.
    Rendering goes slab by slab along the first axis, to limit memory.
    """
    points_mm = grid.nodes_mm()
    coil = SmoothField.draw(rng, BIAS_SD, BIAS_KNOTS_MM)
    white_matter = float(brightness[anatomy.truth == _WHITE_MATTER].mean())
    noise = rng.uniform(*NOISE) * white_matter
    gain = rng.uniform(*WHITE_MATTER_VALUE) / white_matter
    # The crown of the head is below the upper edge of the field of view.
    x, y, z = anatomy.extent_mm
    middle_of_height = z - 2 + CROWN_MM - FIELD_OF_VIEW_MM[2] / 2
    centre_mm = np.array([(x - 1) / 2, (y - 1) / 2, middle_of_height])
    places_mm = head.to_anatomy_mm(points_mm) + _as_column(centre_mm, points_mm.ndim)
    # Per node: position in voxels of the anatomy, and the logarithm of the gain.
    places = (places_mm + 0.5) / anatomy.spacing_mm - 0.5
    log_gain = coil.at(points_mm)[None]
    node_values = np.concatenate([places, log_gain]).astype(np.float32)
    nodes = torch.from_numpy(node_values)

    image = np.empty(grid.shape, np.int16)
    classes = np.empty(grid.shape, np.uint8)
    field = torch.from_numpy(brightness)[None, None]
    _, rows, columns = grid.samples
    samples_of_a_voxel_plane = rows * columns * grid.factors[0]
    depth = max(1, _SLAB_SAMPLES // samples_of_a_voxel_plane)
    for start in range(0, grid.shape[0], depth):
        slab = slice(start, min(start + depth, grid.shape[0]))
        slab_places, slab_log_gain = _between_nodes(nodes, grid, slab)
        # The anatomy ends in the neck; below, its mirror image continues it.
        slab_places[2].abs_()
        shaded = _sample(field, slab_places) * slab_log_gain.exp()
        # Mean over the samples of each voxel.
        if max(grid.factors) > 1:
            shaded = functional.avg_pool3d(shaded[None], grid.factors)[0]
        clean = shaded.numpy()
        # Magnitude images: noise in both channels, so that air is not black.
        real = clean + noise * rng.standard_normal(clean.shape, dtype=np.float32)
        imaginary = noise * rng.standard_normal(clean.shape, dtype=np.float32)
        image[slab] = np.rint(gain * np.hypot(real, imaginary))
        classes[slab] = largest_fraction(anatomy, slab_places.numpy(), grid.factors)
    return image, classes


def _between_nodes(
    nodes: torch.Tensor, grid: _SampledGrid, slab: slice
) -> tuple[torch.Tensor, torch.Tensor]:
    """Interpolate the samples of a slab between nodes.

    `nodes` (4, X, Y, Z) are the positions of the nodes, in voxels of the anatomy, and the logarithm
    of the coil's gain. `slab` is a range of voxels along the first axis. Return the positions (3,
    X, Y, Z) and the log gain (X, Y, Z) of its samples.
    """
    factor = grid.factors[0]
    total, rows, columns = grid.samples
    last_node = nodes.shape[1] - 1
    nodes_of_a_sample = last_node / max(total - 1, 1)
    samples = torch.arange(slab.start * factor, slab.stop * factor)
    along = samples * nodes_of_a_sample
    lower = along.floor().clamp(max=last_node - 1)
    share = (along - lower).reshape(1, -1, 1, 1)
    index = lower.long()
    below = nodes[:, index]
    above = nodes[:, index + 1]
    planes = below * (1 - share) + above * share
    values = functional.interpolate(
        planes.transpose(0, 1),
        (rows, columns),
        mode="bilinear",
        align_corners=True,
    )
    values = values.transpose(0, 1)
    places = values[:3]
    log_gain = values[3]
    return places, log_gain


def _sample(field: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Interpolate a field (1, 1, X, Y, Z) trilinearly at positions (3, ...) in its voxels, (...).

    Edge values are repeated outside.
    """
    last = torch.tensor(field.shape[2:]).reshape(3, 1, 1, 1) - 1
    # grid_sample expects positions from -1 (first voxel) to 1 (last voxel), with the last axis
    # first.
    scaled = places * 2 / last - 1
    last_axis_first = scaled.flip(0).permute(1, 2, 3, 0)
    values = functional.grid_sample(
        field, last_axis_first[None], padding_mode="border", align_corners=True
    )
    return values[0, 0]
