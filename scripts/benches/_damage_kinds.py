"""Kinds of damage to a scan, as functions of a good scan, with five strengths each.

A damage takes a `Head`, whose white matter is at 1. Besides the new scan it returns where its
voxels truly lie and which part of the head is gone, so that labels can be compared with those
of the good scan.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.io.volume import Volume

Floats = NDArray[np.float32]

# White matter in scans that are written as 16 bit.
_WHITE = 300.0
_LEFT_WHITE_MATTER, _RIGHT_WHITE_MATTER = 2, 41
_BRAIN_STEM = 16
_CORTEX = (3, 42)
# Number of voxels that a scan is padded by on each side.
_PADDED = 40


@dataclass(frozen=True, eq=False)
class Head:
    """A good scan, in RAS axes and with white matter at 1, and its anatomy."""

    image: Floats  # (X, Y, Z)
    affine: NDArray[np.float64]
    numbers: NDArray[np.int16]  # FreeSurfer's, (X, Y, Z)

    @property
    def brain(self) -> NDArray[np.bool_]:
        return self.numbers > 0


@dataclass(frozen=True, eq=False)
class Damaged:
    """A damaged scan: its header may be wrong, and a part of the head may be gone."""

    scan: Volume
    true_affine: NDArray[np.float64]
    gone: NDArray[np.bool_] | None = None  # on the good scan's grid


Damage = Callable[[Head, float, np.random.Generator], Damaged]


@dataclass(frozen=True)
class Kind:
    """One kind of damage and its strengths.

    Kinds that change the look of tissue everywhere are measured on parts of heads, in a fifth
    of the time.
    """

    name: str
    unit: str
    damage: Damage
    strengths: tuple[float, float, float, float, float]
    on_parts: bool = False

    def apply(self, head: Head, strength: float, name: str) -> Damaged:
        """Return the damaged scan; the same each time for the head of this name."""
        seed = zlib.crc32(f"{name} {self.name} {strength}".encode())
        return self.damage(head, strength, np.random.default_rng(seed))


def _same_place(
    head: Head, image: Floats, gone: NDArray[np.bool_] | None = None
) -> Damaged:
    return Damaged(as_scan(image, head.affine), head.affine, gone)


def as_scan(image: Floats, affine: NDArray[np.float64]) -> Volume:
    """Return magnitudes as 16-bit integers, as scanners write them."""
    whole = np.rint(image.clip(0) * _WHITE).clip(0, np.iinfo(np.int16).max)
    return Volume(whole.astype(np.int16), affine)


def noise(head: Head, share: float, draw: np.random.Generator) -> Damaged:
    """Add Rician noise, as a share of the brightness of white matter, in air too."""
    one = share * draw.standard_normal(head.image.shape, np.float32)
    other = share * draw.standard_normal(head.image.shape, np.float32)
    return _same_place(head, np.hypot(head.image + one, other))


def blur(head: Head, width_mm: float, _: np.random.Generator) -> Damaged:
    """Blur by a Gaussian of this full width at half maximum."""
    return _same_place(head, ndimage.gaussian_filter(head.image, width_mm / 2.355))


def thick(head: Head, slices_mm: float, _: np.random.Generator) -> Damaged:
    """Average to thick axial slices, with a header that says so."""
    voxels = round(slices_mm)
    x, y, z = head.image.shape
    count = z // voxels
    in_slices = head.image[:, :, : count * voxels].reshape(x, y, count, voxels)
    affine = head.affine.copy()
    affine[:3, 3] += affine[:3, 2] * (voxels - 1) / 2
    affine[:3, 2] *= voxels
    return Damaged(as_scan(in_slices.mean(axis=3, dtype=np.float32), affine), affine)


def bias(head: Head, strength: float, _: np.random.Generator) -> Damaged:
    """Apply the gain of a coil, e^±strength from corner to corner."""
    ramps = np.meshgrid(
        *(np.linspace(-1, 1, n) for n in head.image.shape), indexing="ij"
    )
    return _same_place(
        head, np.asarray(head.image * np.exp(strength * sum(ramps) / 3), np.float32)
    )


def motion(head: Head, angle_deg: float, _: np.random.Generator) -> Damaged:
    """Take half of k-space and its centre from the head nodding by this angle."""
    angle = np.deg2rad(angle_deg)
    turn = np.array(
        [
            [1, 0, 0],
            [0, np.cos(angle), -np.sin(angle)],
            [0, np.sin(angle), np.cos(angle)],
        ]
    )
    centre = ndimage.center_of_mass(head.brain)
    turned = ndimage.affine_transform(head.image, turn, centre - turn @ centre, order=1)
    still, moved = np.fft.fft(head.image, axis=1), np.fft.fft(turned, axis=1)
    # The first half of the lines along y was acquired before the head moved.
    lines = np.fft.fftfreq(head.image.shape[1]) < 0
    mixed = np.where(lines[None, :, None], moved, still)
    return _same_place(head, np.abs(np.fft.ifft(mixed, axis=1)).astype(np.float32))


def ghost(head: Head, share: float, _: np.random.Generator) -> Damaged:
    """Add a second head of this brightness, half a field of view further back."""
    size = head.image.shape[1]
    return _same_place(
        head, head.image + share * np.roll(head.image, size // 2, axis=1)
    )


def saturated(head: Head, ceiling: float, _: np.random.Generator) -> Damaged:
    """Convert to 8 bit, and clip values above this share of white matter to 255."""
    whole = np.rint(head.image / ceiling * 255).clip(0, 255).astype(np.uint8)
    return Damaged(Volume(whole, head.affine), head.affine)


def ball(head: Head, radius_mm: float, _: np.random.Generator) -> Damaged:
    """Add a dark lesion where the white matter of the right half is deepest."""
    white = head.numbers == _RIGHT_WHITE_MATTER
    inside = _ball_at(head, _deepest(white), radius_mm) & head.brain
    return _same_place(head, _with_blob(head, inside, 0.3))


def mass(head: Head, radius_mm: float, _: np.random.Generator) -> Damaged:
    """Add a bright mass beside the brain stem, as with contrast agent."""
    x, y, z = np.argwhere(head.numbers == _BRAIN_STEM).mean(axis=0)
    place = np.array([x - 20, y, z])
    return _same_place(head, _with_blob(head, _ball_at(head, place, radius_mm), 1.7))


def _deepest(mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    depth = ndimage.distance_transform_edt(mask)
    return np.array(np.unravel_index(int(depth.argmax()), depth.shape), float)


def _ball_at(head: Head, place: NDArray[Any], radius_mm: float) -> NDArray[np.bool_]:
    spacing = np.linalg.norm(head.affine[:3, :3], axis=0)
    axes = np.ogrid[tuple(slice(n) for n in head.image.shape)]
    squares = sum(
        ((axis - at) * mm) ** 2
        for axis, at, mm in zip(axes, place, spacing, strict=True)
    )
    return np.asarray(squares <= radius_mm**2)


def _with_blob(head: Head, inside: NDArray[np.bool_], value: float) -> Floats:
    """Return the image with a blob whose edge is as soft as that of anatomy."""
    share = ndimage.gaussian_filter(inside.astype(np.float32), 0.7)
    return np.asarray(head.image * (1 - share) + value * share, np.float32)


def cut_top(head: Head, depth_mm: float, _: np.random.Generator) -> Damaged:
    """End the field of view this far below the top of the brain."""
    top = int(np.flatnonzero(head.brain.any(axis=(0, 1))).max())
    kept = head.image[:, :, : top + 1 - round(depth_mm)]
    return Damaged(as_scan(kept, head.affine), head.affine)


def cut_bottom(head: Head, depth_mm: float, _: np.random.Generator) -> Damaged:
    """End the field of view this far above the bottom of the brain."""
    bottom = int(np.flatnonzero(head.brain.any(axis=(0, 1))).min())
    first = bottom + round(depth_mm)
    affine = head.affine.copy()
    affine[:3, 3] += affine[:3, 2] * first
    return Damaged(as_scan(head.image[:, :, first:], affine), affine)


def cut_side(head: Head, depth_mm: float, _: np.random.Generator) -> Damaged:
    """Set voxels to zero from this far inside the right end of the brain."""
    right = int(np.flatnonzero(head.brain.any(axis=(1, 2))).max())
    gone = np.zeros(head.image.shape, bool)
    gone[right + 1 - round(depth_mm) :] = True
    return _same_place(head, np.where(gone, np.float32(0), head.image), gone)


def cut_obliquely(head: Head, depth_mm: float, _: np.random.Generator) -> Damaged:
    """Zero voxels above a plane, nose up by 30°, this far below the top of the brain.

    The depth is measured along the normal of the plane.
    """
    tilt = np.deg2rad(30)
    axes = np.ogrid[tuple(slice(n) for n in head.image.shape)]
    height = np.cos(tilt) * axes[2] - np.sin(tilt) * axes[1] + 0 * axes[0]
    gone = height > height[head.brain].max() - depth_mm
    return _same_place(head, np.where(gone, np.float32(0), head.image), gone)


def wrapped(head: Head, overlap_mm: float, _: np.random.Generator) -> Damaged:
    """Shorten the field of view so that the front of the head wraps over its back."""
    inside = np.flatnonzero(head.brain.any(axis=(0, 2)))
    first, last = int(inside.min()), int(inside.max()) + 1
    over = round(overlap_mm)
    # Tissue in front of the anterior end reappears at the posterior end, this far inside.
    field = last - first - over
    folded = np.zeros_like(head.image[:, :field])
    for shift in range(-3, 4):
        start = first + over // 2 + shift * field
        part = head.image[:, max(start, 0) : max(start + field, 0)]
        at = max(start, 0) - start
        folded[:, at : at + part.shape[1]] += part
    affine = head.affine.copy()
    affine[:3, 3] += affine[:3, 1] * (first + over // 2)
    return Damaged(as_scan(folded, affine), affine)


def gamma(head: Head, power: float, _: np.random.Generator) -> Damaged:
    return _same_place(head, np.asarray(head.image.clip(0) ** power, np.float32))


def inverted(head: Head, share: float, _: np.random.Generator) -> Damaged:
    """Move tissue towards the contrast of T2 by this share; air stays dark."""
    turned = (1 - share) * head.image + share * (1.3 - head.image)
    return _same_place(head, np.where(head.image > 0.1, turned, head.image).clip(0))


def lost_slices(head: Head, share: float, _: np.random.Generator) -> Damaged:
    """Remove this share of signal from every second axial slice of four millimetres."""
    dark = (np.arange(head.image.shape[2]) // 4) % 2 == 1
    return _same_place(
        head, head.image * np.where(dark, 1 - share, 1).astype(np.float32)
    )


def wrong_size(head: Head, factor: float, _: np.random.Generator) -> Damaged:
    """Write a header that says that voxels are larger than they are, or smaller."""
    claimed = head.affine.copy()
    claimed[:3] *= factor
    return Damaged(as_scan(head.image, claimed), head.affine)


def wrong_turn(head: Head, angle_deg: float, _: np.random.Generator) -> Damaged:
    """Write a header that says that the head is turned about the axis from ear to ear."""
    angle = np.deg2rad(angle_deg)
    turn = np.eye(4)
    turn[1:3, 1:3] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    return Damaged(as_scan(head.image, turn @ head.affine), head.affine)


def mirrored(head: Head, _strength: float, _: np.random.Generator) -> Damaged:
    """Mirror the voxels from side to side under an unchanged header."""
    return Damaged(as_scan(head.image[::-1], head.affine), head.affine)


def offset(head: Head, shift: float, _: np.random.Generator) -> Damaged:
    """Add a constant, as a share of white matter; with a negative one voxels fall below 0."""
    whole = np.rint((head.image + np.float32(shift)) * _WHITE)
    return Damaged(Volume(whole.astype(np.int32), head.affine), head.affine)


def padded(head: Head, value: float, _: np.random.Generator) -> Damaged:
    """Pad by forty voxels of a constant on each side, as a share of white matter."""
    whole = np.rint(head.image * _WHITE).astype(np.int32)
    wide = np.pad(whole, _PADDED, constant_values=round(value * _WHITE))
    affine = head.affine.copy()
    affine[:3, 3] -= affine[:3, :3] @ np.full(3, _PADDED)
    return Damaged(Volume(wide, affine), affine)


def stripped_in_noise(head: Head, share: float, draw: np.random.Generator) -> Damaged:
    """Keep the brain alone, in magnitude noise as a share of white matter."""
    brain = ndimage.binary_fill_holes(ndimage.binary_dilation(head.brain, iterations=2))
    air = share * draw.rayleigh(size=head.image.shape)
    return _same_place(head, np.where(brain, head.image, air).astype(np.float32))


def cut_top_noise(head: Head, depth_mm: float, draw: np.random.Generator) -> Damaged:
    """Replace the head by noise of air from this far below the top of the brain."""
    top = int(np.flatnonzero(head.brain.any(axis=(0, 1))).max())
    gone = np.zeros(head.image.shape, bool)
    gone[:, :, top + 1 - round(depth_mm) :] = True
    air = 0.02 * draw.rayleigh(size=head.image.shape)
    return _same_place(head, np.where(gone, air, head.image).astype(np.float32), gone)


def slices_lost(head: Head, count: float, _: np.random.Generator) -> Damaged:
    """Remove this many axial slices from the middle without changing the header."""
    middle = int(np.argwhere(head.brain)[:, 2].mean())
    missing = np.s_[middle : middle + round(count)]
    kept = np.delete(head.image, missing, axis=2)
    gone = np.zeros(kept.shape, bool)
    # The part above has moved down; only the part below is where the header says.
    gone[:, :, middle:] = True
    return Damaged(as_scan(kept, head.affine), head.affine, gone)


def shifted_halves(head: Head, shift_mm: float, _: np.random.Generator) -> Damaged:
    """Shift the left half of the head up by this much."""
    middle = int(np.argwhere(head.brain)[:, 0].mean())
    voxels = round(shift_mm)
    image = head.image.copy()
    image[:middle] = 0
    image[:middle, :, voxels:] = head.image[:middle, :, : head.image.shape[2] - voxels]
    gone = np.zeros(head.image.shape, bool)
    gone[:middle] = True
    return _same_place(head, image, gone)


def grey_mass(head: Head, radius_mm: float, _: np.random.Generator) -> Damaged:
    """Add a mass as bright as cortex where the white matter of the left half is deepest."""
    white = head.numbers == _LEFT_WHITE_MATTER
    cortex = float(np.median(head.image[np.isin(head.numbers, _CORTEX)]))
    inside = _ball_at(head, _deepest(white), radius_mm) & head.brain
    return _same_place(head, _with_blob(head, inside, cortex))


def bright_mass(head: Head, radius_mm: float, _: np.random.Generator) -> Damaged:
    """Add a mass brighter than white matter where the white matter of the left half is deepest."""
    white = head.numbers == _LEFT_WHITE_MATTER
    inside = _ball_at(head, _deepest(white), radius_mm) & head.brain
    return _same_place(head, _with_blob(head, inside, 1.3))


KINDS: tuple[Kind, ...] = (
    Kind("cut top", "mm", cut_top, (10, 20, 30, 45, 60)),
    Kind("cut side, zeros", "mm", cut_side, (10, 20, 30, 45, 60)),
    Kind("dark ball", "mm radius", ball, (5, 10, 15, 20, 28)),
    Kind("motion", "°", motion, (2, 4, 6, 9, 14), on_parts=True),
    Kind("ghost", "of the signal", ghost, (0.05, 0.1, 0.2, 0.35, 0.5), on_parts=True),
    Kind(
        "saturated",
        "of white matter",
        saturated,
        (1.15, 1.0, 0.9, 0.8, 0.7),
        on_parts=True,
    ),
    Kind("thick slices", "mm", thick, (2, 3, 4, 5, 7), on_parts=True),
    Kind("noise", "of white matter", noise, (0.03, 0.06, 0.1, 0.2, 0.5), on_parts=True),
    Kind("blur", "mm", blur, (2, 3, 4, 5, 7), on_parts=True),
    Kind("bias", "log gain", bias, (0.3, 0.6, 1.0, 1.5, 2.2), on_parts=True),
    Kind("inverted", "share", inverted, (0.2, 0.35, 0.5, 0.7, 1.0), on_parts=True),
    Kind("wrapped", "mm", wrapped, (5, 10, 20, 30, 45)),
    Kind("bright mass", "mm radius", mass, (5, 10, 15, 20, 25)),
    Kind("gamma", "power", gamma, (0.5, 0.7, 1.5, 2.2, 3.0), on_parts=True),
    Kind("cut obliquely, zeros", "mm", cut_obliquely, (10, 20, 30, 45, 60)),
    Kind(
        "lost slices",
        "of the signal",
        lost_slices,
        (0.1, 0.2, 0.4, 0.6, 0.8),
        on_parts=True,
    ),
    Kind("wrong size", "times", wrong_size, (0.7, 0.85, 1.15, 1.3, 1.5)),
    Kind("wrong turn", "°", wrong_turn, (10, 20, 35, 60, 90)),
    Kind("cut bottom", "mm", cut_bottom, (10, 20, 30, 45, 60)),
    Kind("offset", "of white matter", offset, (-3.0, -0.5, 0.05, 0.5, 3.0)),
    Kind("padding", "of white matter", padded, (-3.0, -0.2, 0.3, 1.0, 10.0)),
    Kind(
        "stripped, noise around",
        "of white matter",
        stripped_in_noise,
        (0.005, 0.01, 0.02, 0.05, 0.1),
    ),
    Kind("cut top, noise", "mm", cut_top_noise, (10, 15, 20, 30, 45)),
    Kind("slices lost", "slices", slices_lost, (1, 2, 3, 5, 8)),
    Kind("shifted halves", "mm", shifted_halves, (1, 2, 4, 8, 12)),
    Kind("grey mass", "mm radius", grey_mass, (5, 10, 15, 20, 28)),
    Kind("mass in white matter", "mm radius", bright_mass, (5, 10, 15, 20, 28)),
)

# Nothing in such a scan looks wrong, so no check can find it.
UNSEEN = Kind("mirrored", "", mirrored, (1, 1, 1, 1, 1))
