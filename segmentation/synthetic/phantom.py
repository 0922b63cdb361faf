"""The phantom: a head of known anatomy in any geometry, and what a T1 scan of it looks like.

One anatomy (`anatomy.py`) is posed, resized and warped by a smooth invertible map, another for
each subject. Image and truth are two readings of the same warped tissue fractions: the image is
their mean brightness, the truth their largest, so the truth is exact whatever the voxels are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter
from torch.nn import functional

from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.folding import (
    GENERATION_BETWEEN,
    GENERATION_SURROUNDINGS,
)
from trinat.segmentation.labels.label import Csf
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.synthetic.anatomy import Anatomy, cells_of, load_anatomy
from trinat.segmentation.synthetic.fractions import largest_fraction
from trinat.segmentation.synthetic.heads import heads_of
from trinat.segmentation.synthetic.phantom_grid import (
    FIELD_OF_VIEW_MM,
    NODE_MM,
    SampledGrid,
    check_grid,
    draw_grid,
    rotation_about,
)
from trinat.segmentation.synthetic.smooth_field import (
    Floats,
    SmoothField,
    as_column,
    draw_normal,
)

CROWN_MM = 16.0  # air above the head

# How subjects differ: standard deviations; every draw is kept within twice its own.
SIZE_SD = 0.03
SHEAR_SD = 0.015
TILT_SD_DEG = 3.0
SHIFT_SD_MM = 3.0
WARP_SD_MM = 2.0
WARP_KNOTS_MM = 30.0
# Of the warp, everywhere: tissue is never folded, nor squeezed to less.
MIN_JACOBIAN = 0.3
BIAS_SD = 0.12  # of the logarithm of the coil's gain
BIAS_KNOTS_MM = 80.0
CONTRAST_SHARED = 0.7  # share of the tissues' brightness that scans vary together
# Share of a tissue's spread that is texture, not noise, bias or partial volume.
TEXTURE = 0.3
NOISE = (0.01, 0.03)  # of the brightness of white matter
WHITE_MATTER_VALUE = (250.0, 700.0)

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
    csf: Csf = "region",
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
    csf : str
        What the labels call CSF: "region", a small one as in FreeSurfer's aseg, or "intracranial",
        all fluid inside the skull around the brain. The scan is the same.

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
    check_grid(spacing_mm, orientation, oblique_deg)
    rng = np.random.default_rng(seed)
    anatomy = anatomy or load_anatomy(int(np.clip(min(spacing_mm), 1, 3)))
    if csf == "intracranial":
        anatomy = _with_all_fluid(anatomy)
    head = _draw_head(rng)
    grid = draw_grid(rng, anatomy, spacing_mm, orientation, oblique_deg)
    brightness = _draw_brightness(rng, anatomy)
    image, classes = _render(rng, anatomy, brightness, head, grid)
    numbers = load_scheme("quicknat33").to_freesurfer(classes)
    return Volume(image, grid.affine), Volume(numbers, grid.affine)


@cache
def _with_all_fluid(anatomy: Anatomy) -> Anatomy:
    """An anatomy whose truth names all fluid inside the skull CSF, as synthesis teaches it."""
    maps = heads_of(anatomy)
    is_fluid = np.isin(maps.numbers, (GENERATION_SURROUNDINGS, *GENERATION_BETWEEN))
    truth = anatomy.truth.copy()
    csf = load_scheme("quicknat33").find("CSF")
    truth[is_fluid[maps.labels[0]]] = csf.index
    truth.setflags(write=False)
    cells = cells_of(truth)
    cells.setflags(write=False)
    return replace(anatomy, truth=truth, cells=cells)


_Warp = tuple[SmoothField, SmoothField, SmoothField]


@dataclass(frozen=True, eq=False)
class _HeadShape:
    """How a subject's head differs from the anatomy: by pose and size, and by a smooth warp.

    `matrix` (3, 3) and `shift_mm` (3,) take the scan's mm to the anatomy's, both from the centre of
    the field of view; `warp` has a field for each axis.
    """

    matrix: Floats
    shift_mm: Floats
    warp: _Warp

    def to_anatomy_mm(self, points_mm: Floats) -> Floats:
        """Where in the anatomy points (3, ...) of the scan are, (3, ...)."""
        posed = np.tensordot(self.matrix, points_mm, 1)
        posed += as_column(self.shift_mm, points_mm.ndim)
        return posed + np.stack([field.at(posed) for field in self.warp])


def _draw_head(rng: np.random.Generator) -> _HeadShape:
    """A subject of its own."""
    size = np.diag(1 / (1 + draw_normal(rng, SIZE_SD, 3)))
    shear = np.eye(3)
    shear[np.triu_indices(3, 1)] = draw_normal(rng, SHEAR_SD, 3)
    rotation = np.eye(3)
    tilts = np.radians(draw_normal(rng, TILT_SD_DEG, 3))
    for axis, angle in zip(np.eye(3), tilts, strict=True):
        rotation = rotation @ rotation_about(axis, angle)
    shift = draw_normal(rng, SHIFT_SD_MM, 3)
    # Drawn in this order: along x, y and z.
    along_x, along_y, along_z = [
        SmoothField.draw(rng, WARP_SD_MM, WARP_KNOTS_MM, FIELD_OF_VIEW_MM)
        for _ in range(3)
    ]
    warp = _invertible((along_x, along_y, along_z))
    return _HeadShape(size @ shear @ rotation, shift, warp)


def _invertible(warp: _Warp) -> _Warp:
    """The warp, halved until its Jacobian is above `MIN_JACOBIAN` on all nodes."""
    lines = []
    for length_mm in FIELD_OF_VIEW_MM:
        half_mm = length_mm / 2
        lines.append(np.arange(-half_mm, half_mm + NODE_MM, NODE_MM))
    points = np.stack(np.meshgrid(*lines, indexing="ij"))
    # (3 components, 3 directions, X, Y, Z) to matrices; halving the warp halves its gradient.
    gradients = [np.gradient(field.at(points), NODE_MM) for field in warp]
    gradient = np.moveaxis(np.array(gradients), (0, 1), (-2, -1))

    def least_jacobian(scale: float) -> float:
        """The smallest determinant on all nodes, of the warp times `scale`."""
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
    """The unwarped head in T1, (X, Y, Z), on the scale of the priors; air is 0."""
    share = CONTRAST_SHARED
    own = draw_normal(rng, 1, len(anatomy.means))
    offset = share * draw_normal(rng, 1, 1) + np.sqrt(1 - share**2) * own
    means = anatomy.means[:, 0] + offset * anatomy.means[:, 1]
    spreads = TEXTURE * anatomy.spreads[:, 0]
    # What is seen in air is noise.
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
    grid: SampledGrid,
) -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
    """Image and truth (classes), slab by slab along the first axis, so that memory stays small."""
    points_mm = grid.nodes_mm()
    coil = SmoothField.draw(rng, BIAS_SD, BIAS_KNOTS_MM, FIELD_OF_VIEW_MM)
    white_matter = float(brightness[anatomy.truth == _WHITE_MATTER].mean())
    noise = rng.uniform(*NOISE) * white_matter
    gain = rng.uniform(*WHITE_MATTER_VALUE) / white_matter
    # Per node: the place in voxels of the anatomy, and the logarithm of the gain.
    places = _places_in_anatomy(anatomy, head, points_mm)
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
        # Below its last slice the neck goes on as its own mirror image.
        slab_places[2].abs_()
        shaded = _sample(field, slab_places) * slab_log_gain.exp()
        clean = _pool(shaded, grid.factors)
        # Magnitude images: noise in both channels, so that air is not black.
        real = clean + noise * rng.standard_normal(clean.shape, dtype=np.float32)
        imaginary = noise * rng.standard_normal(clean.shape, dtype=np.float32)
        image[slab] = np.rint(gain * np.hypot(real, imaginary))
        classes[slab] = largest_fraction(anatomy, slab_places.numpy(), grid.factors)
    return image, classes


def _places_in_anatomy(anatomy: Anatomy, head: _HeadShape, points_mm: Floats) -> Floats:
    """Where points (3, X, Y, Z) of the scan, in mm from the centre, are in the anatomy's voxels."""
    x, y, z = anatomy.extent_mm
    # The head stands in the field of view with its crown below the upper edge.
    middle_of_height = z - 2 + CROWN_MM - FIELD_OF_VIEW_MM[2] / 2
    centre_mm = np.array([(x - 1) / 2, (y - 1) / 2, middle_of_height])
    places_mm = head.to_anatomy_mm(points_mm) + as_column(centre_mm, points_mm.ndim)
    return (places_mm + 0.5) / anatomy.spacing_mm - 0.5


def _between_nodes(
    nodes: torch.Tensor, grid: SampledGrid, slab: slice
) -> tuple[torch.Tensor, torch.Tensor]:
    """Places (3, X, Y, Z) and log gain (X, Y, Z) of a slab's samples, linear between nodes."""
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
    """Trilinear values of a field (1, 1, X, Y, Z) at places (3, ...) in its voxels, (...).

    Beyond its edges the field goes on as it ends.
    """
    last = torch.tensor(field.shape[2:]).reshape(3, 1, 1, 1) - 1
    # grid_sample takes -1..1 from the first voxel to the last, and the last axis first.
    scaled = places * 2 / last - 1
    last_axis_first = scaled.flip(0).permute(1, 2, 3, 0)
    values = functional.grid_sample(
        field, last_axis_first[None], padding_mode="border", align_corners=True
    )
    return values[0, 0]


def _pool(samples: torch.Tensor, factors: tuple[int, int, int]) -> NDArray[np.float32]:
    """The mean over the samples of each voxel, (X f, Y g, Z h) to (X, Y, Z)."""
    pooled = samples
    if max(factors) > 1:
        pooled = functional.avg_pool3d(samples[None], factors)[0]
    array: NDArray[np.float32] = pooled.numpy()
    return array
