"""Synthetic scans with lesions of white matter, for training.

A head is a T1 scan with a label map, or a label map alone. Its contrast is redrawn as FLAIR, or
stays T1, and real lesion shapes are painted into it. Bright structures that are no lesions, shading
and thick slices are painted too, because they cause most false detections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch.nn.functional import interpolate

from trinat.segmentation.grid import occupied_box
from trinat.segmentation.labels.folding import (
    GENERATION_FIRST_OUTSIDE,
    GENERATION_FOLDED,
)

Image = NDArray[np.float32]
Mask = NDArray[np.bool_]

LESION = 77
# Lesions in label maps for generation, left and right.
_GENERATION_LESIONS = (25, 57)
# Structures, as FreeSurfer numbers and as numbers of label maps for generation.
_CEREBRAL_WHITE = (2, 41, LESION, *_GENERATION_LESIONS, 251, 252, 253, 254, 255)
_INFRATENTORIAL = (7, 46, 16)
_VENTRICLES = (4, 5, 14, 15, 43, 44, 72)
_LININGS = (136, 137, 163, 164)
_PLEXUS = (31, 63)
_CORTEX = (3, 42)
_CEREBELLAR_CORTEX = (8, 47)
_PALLIDUM = (13, 52)
_DEEP_GREY = (10, 49, 11, 50, 12, 51, 26, 58, 28, 60)
_LIMBIC = (17, 53, 18, 54)
_FLUID = (24, *_VENTRICLES)
# Extent of the cerebral white matter in MNI space in mm, from the 1st to the 99th percentile.
MNI_LOW = np.array([-57.0, -92.0, -30.0])
MNI_HIGH = np.array([57.0, 54.0, 57.0])
# Smallest share of a lesion's voxels that must lie in tissue where lesions occur, and the number of
# positions that are tried for a lesion.
_LEAST_IN_WHITE = 0.6
_TRIES = 8


class Shape(NamedTuple):
    """Shape and position of one lesion, from a lesion mask in MNI space at 1 mm.

    `voxels` (X, Y, Z) is its mask with a margin. `centre` (3,) is its position along each axis,
    from 0 at one end of the cerebral white matter to 1 at the other.
    """

    voxels: Mask
    centre: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LesionHead:
    """A head with RAS axes and 1 mm.

    `numbers` (X, Y, Z) are FreeSurfer numbers, or those of label maps for generation. `t1` (X, Y,
    Z) is the T1 scan, None for a label map alone.
    """

    numbers: NDArray[np.integer]
    t1: Image | None

    @cached_property
    def ventricles(self) -> Mask:
        """Mask (X, Y, Z) of the ventricles and the choroid plexus."""
        return np.isin(self.numbers, (*_VENTRICLES, *_PLEXUS))

    @cached_property
    def from_ventricles(self) -> Image:
        """Distance of each voxel from the ventricles, (X, Y, Z), in mm."""
        return _distance(self.ventricles)

    @cached_property
    def from_cortex(self) -> Image:
        """Distance of each voxel from the cerebral cortex, (X, Y, Z), in mm."""
        return _distance(np.isin(self.numbers, _CORTEX))


@dataclass(frozen=True, eq=False)
class Painted:
    """A synthetic scan with lesions.

    `image` (X, Y, Z) is the scan, and `numbers` (X, Y, Z) the labels to learn, with lesions as 77.
    `contrast` is "FLAIR" or "T1". `thick_mm` is the thickness of thick slices, 0 for a scan without
    them.
    """

    image: Image
    numbers: NDArray[np.int16]
    contrast: str
    thick_mm: float


def shapes_of(mask: Mask, origin_mm: NDArray[np.float64]) -> list[Shape]:
    """Return all lesions of a mask (X, Y, Z) in MNI space, with RAS axes and 1 mm.

    `origin_mm` (3,) is the position of the first voxel in MNI space.
    """
    parts, _ = ndimage.label(mask, ndimage.generate_binary_structure(3, 3))
    shapes = []
    for number, box in enumerate(ndimage.find_objects(parts), start=1):
        voxels = np.pad(parts[box] == number, 3)
        middle = np.array([(side.start + side.stop - 1) / 2 for side in box])
        place = (middle + origin_mm - MNI_LOW) / (MNI_HIGH - MNI_LOW)
        shapes.append(Shape(voxels, place))
    return shapes


def paint(
    head: LesionHead, patients: Sequence[Sequence[Shape]], rng: np.random.Generator
) -> Painted:
    """Draw a synthetic scan of a head with lesions, as FLAIR or T1 at random.

    `patients` has the lesions of each patient; the scan gets some of the lesions of one of them.
    """
    contrast = "FLAIR" if rng.random() < 0.75 else "T1"
    white = np.isin(head.numbers, _CEREBRAL_WHITE)
    infratentorial = np.isin(head.numbers, _INFRATENTORIAL)
    painter = _Painter(head, white, infratentorial, contrast, rng)
    coverage, strength = painter.place(patients)
    image = painter.draw()
    image = painter.add_lesions(image, coverage, strength)
    image = painter.corrupt(image)
    thick_mm = 0.0
    if rng.random() < 0.4:
        thick_mm = float(rng.uniform(3, 8))
        axis = int(rng.choice(3, p=(0.2, 0.2, 0.6)))
        image, coverage = _thick_slices(image, coverage, axis, thick_mm, rng)
    image = painter.add_noise(image)
    # Raters mark what they see in a thick slice, even if a lesion fills only a part of the slice.
    least = 0.35 if thick_mm else 0.5
    numbers = _numbers_to_learn(head.numbers)
    numbers[coverage >= least] = LESION
    return Painted(image, numbers, contrast, thick_mm)


def _numbers_to_learn(numbers: NDArray[np.integer]) -> NDArray[np.int16]:
    """Return the label numbers that a network learns, (X, Y, Z).

    Fluid around the brain and everything outside become 0. Lesions that are already in the label
    map become white matter; the caller adds the lesions to learn.
    """
    table = np.arange(max(int(numbers.max()), LESION) + 1, dtype=np.int16)
    for number, target in GENERATION_FOLDED.items():
        if number < len(table):
            table[number] = target
    table[LESION] = 2
    table[24] = 0
    table[GENERATION_FIRST_OUTSIDE:] = 0
    learnt: NDArray[np.int16] = table[numbers]
    return learnt


class _Painter:
    """Steps that draw one scan; lengths in mm, brightness relative to white matter.

    `white` and `infratentorial` are masks (X, Y, Z) of the white matter of the cerebrum and of the
    brain below it. `contrast` is "FLAIR" or "T1".
    """

    def __init__(
        self,
        head: LesionHead,
        white: Mask,
        infratentorial: Mask,
        contrast: str,
        rng: np.random.Generator,
    ) -> None:
        self.head = head
        self.white = white
        self.allowed = white | infratentorial | np.isin(head.numbers, _LININGS)
        self.infratentorial = infratentorial
        self.contrast = contrast
        self.rng = rng
        self.ventricles = head.ventricles
        self.from_ventricles = head.from_ventricles
        self.from_cortex = head.from_cortex

    def place(self, patients: Sequence[Sequence[Shape]]) -> tuple[Image, Image]:
        """Place some lesions of a random patient in the head.

        Return the fraction of each voxel that is lesion, (X, Y, Z), 0 to 1, and the strength of the
        lesion there, (X, Y, Z), up to 1.2: how much its brightness differs from white matter.
        """
        rng = self.rng
        shape = self.head.numbers.shape
        coverage = np.zeros(shape, np.float32)
        strength = np.zeros(shape, np.float32)
        # Lesions that are in the label map are in the T1 scan, too.
        known = np.isin(self.head.numbers, (LESION, *_GENERATION_LESIONS))
        # Fewer lesion voxels are partial volume at the ventricles of healthy participants.
        if known.sum() > 3000:
            coverage = ndimage.gaussian_filter(known.astype(np.float32), 0.5)
            strength[coverage > 0.05] = rng.uniform(0.3, 1)
        patient = patients[int(rng.integers(len(patients)))]
        share = rng.uniform(0.2, 1)
        common = rng.uniform(0.25, 1)
        is_mirrored = rng.random() < 0.5
        for lesion in patient:
            if rng.random() > share:
                continue
            part, corner = self._placed_lesion(lesion, is_mirrored)
            if part is None:
                continue
            box = tuple(
                slice(start, start + length)
                for start, length in zip(corner, part.shape, strict=True)
            )
            own = float(np.clip(common * rng.uniform(0.6, 1.4), 0.2, 1.2))
            is_stronger = part > coverage[box]
            strength[box][is_stronger & (part > 0.05)] = own
            coverage[box] = np.maximum(coverage[box], part)
        allowed = ndimage.gaussian_filter(self.allowed.astype(np.float32), 0.5)
        return coverage * allowed, strength

    def _placed_lesion(
        self, lesion: Shape, is_mirrored: bool
    ) -> tuple[Image | None, NDArray[np.int64]]:
        """Rotate and scale a lesion, and find a plausible position for it in the head.

        Return the lesion (X, Y, Z), as the fraction of each voxel that it fills, and the index (3,)
        of its first voxel in the head. The lesion is None if no position was found.
        """
        rng = self.rng
        corner = np.zeros(3, np.int64)
        voxels = lesion.voxels[::-1] if is_mirrored else lesion.voxels
        is_anatomical = rng.random() < 0.7 or voxels.sum() > 3000
        turn = rng.normal(0, 0.15 if is_anatomical else 1.0, 3)
        scale = np.exp(rng.normal(0, 0.15)) * self._extent() / (MNI_HIGH - MNI_LOW)
        part = _rotated_and_scaled(voxels, turn, np.broadcast_to(scale, 3))
        inside = part > 0.5
        if not inside.any():
            return None, corner
        shape = np.array(self.head.numbers.shape)
        best = 0.0
        low = self._low
        if not is_anatomical:
            candidates = self._voxels_of_random_zone()
        for _ in range(_TRIES):
            if is_anatomical:
                place = lesion.centre.copy()
                if is_mirrored:
                    place[0] = 1 - place[0]
                middle = low + place * self._extent() + rng.normal(0, 3.5, 3)
            else:
                flat = candidates[rng.integers(len(candidates))]
                middle = np.array(np.unravel_index(flat, self.head.numbers.shape))
            start = np.round(middle - (np.array(part.shape) - 1) / 2).astype(np.int64)
            if (start < 0).any() or (start + part.shape > shape).any():
                continue
            box = tuple(slice(a, a + n) for a, n in zip(start, part.shape, strict=True))
            within = float(self.allowed[box][inside].mean())
            if within > best:
                best = within
                corner = start
        if best < _LEAST_IN_WHITE:
            return None, corner
        return part, corner

    def _voxels_of_random_zone(self) -> NDArray[np.int64]:
        """Return the voxels of a random zone of white matter, as indices of the flattened head."""
        kind = self.rng.choice(4, p=(0.4, 0.25, 0.25, 0.1))
        if kind == 0:
            zone = self.white & (self.from_ventricles < 4)
        elif kind == 1:
            zone = self.white & (self.from_cortex < 3)
        elif kind == 2:
            zone = self.white
        else:
            zone = self.infratentorial
        found = np.flatnonzero(zone)
        return found if len(found) else np.flatnonzero(self.allowed)

    def _extent(self) -> NDArray[np.float64]:
        """Return the extent of the cerebral white matter in voxels, (3,)."""
        if not hasattr(self, "_low"):
            places = np.argwhere(self.white)
            low, high = np.percentile(places[::7], [1, 99], axis=0)
            self._low = low
            self._high = high
        return np.asarray(self._high - self._low)

    def draw(self) -> Image:
        """Draw the scan without lesions."""
        rng = self.rng
        t1 = self.head.t1
        if self.contrast == "T1":
            brightness = {
                "white": 1.0,
                "grey": rng.uniform(0.6, 0.8),
                "fluid": rng.uniform(0.15, 0.35),
                "deep": rng.uniform(0.75, 0.9),
                "pallidum": rng.uniform(0.9, 1.0),
                "plexus": rng.uniform(0.4, 0.7),
            }
            if t1 is not None:
                return np.array(t1, np.float32)
        else:
            grey = rng.uniform(1.05, 1.5)
            brightness = {
                "white": 1.0,
                "grey": grey,
                "fluid": rng.uniform(0.1, 0.5),
                "deep": rng.uniform(0.95, grey),
                "pallidum": rng.uniform(0.75, 1.0),
                "plexus": rng.uniform(0.9, 1.7),
            }
        painted = self._from_labels(brightness)
        if t1 is None:
            return painted
        redrawn = self._from_t1(t1, brightness)
        share = rng.uniform(0.3, 1)
        is_brain = (self.head.numbers > 0) & (
            self.head.numbers < GENERATION_FIRST_OUTSIDE
        )
        inside = ndimage.gaussian_filter(is_brain.astype(np.float32), 1.0)
        mixed = share * redrawn + (1 - share) * painted
        return np.asarray(inside * mixed + (1 - inside) * redrawn, np.float32)

    def _from_t1(self, t1: Image, brightness: dict[str, float]) -> Image:
        """Turn a T1 scan into the wanted contrast by a curve that maps old to new brightness.

        `brightness` is the new brightness of each kind of tissue. The curve passes through fluid,
        grey and white matter.
        """
        numbers = self.head.numbers
        white = float(np.median(t1[self.white]))
        grey = float(np.median(t1[np.isin(numbers, _CORTEX)]))
        fluid = float(np.percentile(t1[self.ventricles], 25))
        fluid = min(fluid, 0.7 * grey)
        rise = fluid + 0.5 * (grey - fluid)
        bright = self.rng.uniform(0.9, 1.8)
        knots = [0, 0.5 * fluid, fluid, rise, grey, white, 1.25 * white, 2 * white]
        heights = [
            0,
            0.4 * brightness["fluid"],
            brightness["fluid"],
            0.5 * (brightness["fluid"] + brightness["grey"]),
            brightness["grey"],
            1.0,
            0.97,
            bright,
        ]
        return np.interp(t1, knots, heights).astype(np.float32)

    def _from_labels(self, brightness: dict[str, float]) -> Image:
        """Draw a scan from the label map alone.

        Each structure gets the `brightness` of its kind of tissue with a small random variation.
        """
        rng = self.rng
        numbers = self.head.numbers
        table = np.zeros(int(numbers.max()) + 1, np.float32)
        tissue = {
            "white": (*_CEREBRAL_WHITE, *_INFRATENTORIAL, 28, 60),
            "grey": (*_CORTEX, *_CEREBELLAR_CORTEX, *_LIMBIC),
            "fluid": _FLUID,
            "deep": _DEEP_GREY,
            "pallidum": _PALLIDUM,
            "plexus": _PLEXUS,
        }
        for name, members in tissue.items():
            for number in members:
                if number < len(table):
                    table[number] = brightness[name] * rng.normal(1, 0.04)
        # Both sides and the lesions look like their tissue.
        white = table[2]
        for number in (*_CEREBRAL_WHITE, *_LININGS):
            if number < len(table):
                table[number] = white
        for number in range(GENERATION_FIRST_OUTSIDE, len(table)):
            table[number] = rng.choice((0.1, rng.uniform(0.3, 1.8)), p=(0.3, 0.7))
        painted = table[numbers]
        texture = ndimage.gaussian_filter(rng.normal(size=numbers.shape), 1.0)
        painted = painted * (1 + rng.uniform(0, 0.15) * texture / texture.std())
        blurred = ndimage.gaussian_filter(painted, rng.uniform(0.4, 0.9))
        return np.asarray(blurred, np.float32)

    def add_lesions(self, image: Image, coverage: Image, strength: Image) -> Image:
        """Return the image with lesions, their halos, and other bright or dark structures.

        `coverage` (X, Y, Z) is the fraction of each voxel that is lesion, and `strength` how much
        the lesion there differs from white matter; both are returned by `place`.
        """
        rng = self.rng
        white = float(np.median(image[self.white]))
        # Bright rims of ventricles and uneven white matter, before the lesions.
        sign = 1.0 if self.contrast == "FLAIR" else -1.0
        rim = np.exp(-self.from_ventricles / rng.uniform(0.5, 1.5)) * self.allowed
        uneven = _smooth_noise(image.shape, rng.uniform(5, 14), rng)
        change = sign * rng.uniform(0, 0.3) * rim + rng.uniform(0, 0.06) * uneven
        brain = self.allowed | (self.from_cortex < 1)
        image = image + white * (change * brain).astype(np.float32)
        if self.contrast == "FLAIR":
            image = image + white * self._confounders(image.shape)
        # Lesions have soft borders, and some of them halos, which are not labelled as lesion.
        weight = ndimage.gaussian_filter(coverage, rng.uniform(0.3, 0.8))
        halo = ndimage.gaussian_filter(coverage, rng.uniform(1.5, 3)) * self.allowed
        weight = weight + rng.choice((0.0, rng.uniform(0.05, 0.25))) * halo
        weight = np.clip(weight, 0, 1)
        # The strength around lesions is that of the nearest lesion.
        strong = np.clip(ndimage.maximum_filter(strength, 5), 0.5, 1.2)
        strong = strong * (
            1 + rng.uniform(0, 0.2) * _smooth_noise(image.shape, 1.5, rng)
        )
        if self.contrast == "T1":
            target = white * (1 - rng.uniform(0.25, 0.6) * strong)
            return np.asarray(
                image + weight * np.minimum(target - image, 0), np.float32
            )
        target = white * (1 + rng.uniform(0.5, 1.1) * strong)
        painted = image + weight * np.maximum(target - image, 0)
        if rng.random() < 0.15:
            # Large lesions have dark cores.
            core = ndimage.gaussian_filter((coverage > 0.9).astype(np.float32), 1.5)
            painted *= 1 - rng.uniform(0.3, 0.7) * np.clip(2 * core - 1, 0, 1)
        return np.asarray(painted, np.float32)

    def _confounders(self, shape: tuple[int, ...]) -> Image:
        """Return the brightness to add for structures that look like lesions but are none.

        It is relative to white matter, (X, Y, Z); negative values are dark.
        """
        rng = self.rng
        numbers = self.head.numbers
        extra = np.zeros(shape, np.float32)
        limbic = np.isin(numbers, _LIMBIC).astype(np.float32)
        extra += rng.uniform(0, 0.25) * ndimage.gaussian_filter(limbic, 1.5)
        # Cortex is not equally bright everywhere: insula and cingulum are brighter.
        cortex = np.isin(numbers, _CORTEX)
        uneven = _smooth_noise(shape, 12, rng)
        extra += rng.uniform(0, 0.15) * (uneven * cortex).astype(np.float32)
        # Fluid that flows is bright.
        fluid = np.isin(numbers, _FLUID)
        flow = np.clip(_smooth_noise(shape, 5, rng) - 1.2, 0, 1.5)
        extra += rng.uniform(0, 0.7) * (flow * fluid).astype(np.float32)
        # Vessels and artefacts: bright specks outside of the white matter, dark ones inside.
        outside = ~self.allowed & (self.from_cortex < 4)
        for places, low, high, most in (
            (outside, 0.3, 1.0, 60),
            (self.white, -0.5, -0.2, 30),
        ):
            specks = np.zeros(shape, np.float32)
            candidates = np.flatnonzero(places)
            count = int(rng.integers(most))
            if not count or not len(candidates):
                continue
            specks.flat[rng.choice(candidates, count)] = rng.uniform(low, high, count)
            sigma = rng.uniform(0.5, 1.2, 3)
            peak = (2 * np.pi) ** 1.5 * sigma.prod()
            extra += peak * ndimage.gaussian_filter(specks, sigma)
        return extra

    def corrupt(self, image: Image) -> Image:
        """Strip the skull of some scans, and add shading and blur."""
        rng = self.rng
        numbers = self.head.numbers
        if rng.random() < 0.5:
            brain = (numbers > 0) & (numbers < GENERATION_FIRST_OUTSIDE)
            brain = ndimage.binary_closing(brain, iterations=4)
            margin = int(rng.integers(0, 3))
            if margin:
                brain = ndimage.binary_dilation(brain, iterations=margin)
            image = image * brain
        shading = _smooth_noise(image.shape, rng.uniform(25, 50), rng)
        image = image * np.exp(rng.uniform(0, 0.2) * shading)
        if rng.random() < 0.5:
            image = ndimage.gaussian_filter(image, rng.uniform(0.3, 0.8))
        return np.asarray(image, np.float32)

    def add_noise(self, image: Image) -> Image:
        """Add noise to voxels with a signal, so that the air of a stripped scan stays empty."""
        white = float(np.median(image[self.white]))
        noise = self.rng.normal(size=image.shape) * self.rng.uniform(0.005, 0.06)
        noisy = image + white * noise
        return np.where(image > 0.02 * white, np.clip(noisy, 0, None), 0).astype(
            np.float32
        )


def _thick_slices(
    image: Image,
    coverage: Image,
    axis: int,
    thick_mm: float,
    rng: np.random.Generator,
) -> tuple[Image, Image]:
    """Average image and coverage to thick slices along `axis`, and interpolate back to 1 mm.

    Return both, (X, Y, Z).
    """
    length = image.shape[axis]
    first = rng.uniform(0, thick_mm)
    centres = np.arange(first, length - 1, thick_mm)
    result = []
    for volume in (image, coverage):
        averaged = ndimage.uniform_filter1d(volume, round(thick_mm), axis=axis)
        averaged = np.moveaxis(averaged, axis, 0)
        slices = averaged[np.round(centres).astype(int)]
        place = (np.arange(length) - centres[0]) / thick_mm
        place = np.clip(place, 0, len(centres) - 1)
        below = np.floor(place).astype(int)
        above = np.minimum(below + 1, len(centres) - 1)
        weight = (place - below).astype(np.float32)[:, None, None]
        thick = (1 - weight) * slices[below] + weight * slices[above]
        result.append(np.moveaxis(thick, 0, axis))
    return result[0], result[1]


def _rotated_and_scaled(
    voxels: Mask, turn: NDArray[np.float64], scale: NDArray[np.float64]
) -> Image:
    """Rotate a mask by angles (3,) in radians and scale it by factors (3,).

    Return the fraction of each voxel that the mask fills, 0 to 1, without empty margins.
    """
    rotation = np.eye(3)
    for axis, angle in enumerate(turn):
        one, other = [a for a in range(3) if a != axis]
        about = np.eye(3)
        about[one, one] = about[other, other] = np.cos(angle)
        about[one, other] = -np.sin(angle)
        about[other, one] = np.sin(angle)
        rotation = rotation @ about
    corners = np.array(voxels.shape) * scale
    extent = np.ceil(np.abs(rotation.T) @ corners).astype(int) + 2
    # From a position in the result to the position in the mask.
    matrix = np.diag(1 / scale) @ rotation
    middle = (np.array(voxels.shape) - 1) / 2
    offset = middle - matrix @ ((extent - 1) / 2)
    soft = ndimage.gaussian_filter(voxels.astype(np.float32), 0.4)
    result = ndimage.affine_transform(
        soft, matrix, offset, tuple(extent.tolist()), order=1
    )
    box = occupied_box(result > 0.01) if (result > 0.01).any() else ...
    return np.asarray(result[box], np.float32)


def _distance(mask: Mask) -> Image:
    """Return the distance of each voxel from the nearest voxel of a mask, in voxels."""
    return np.asarray(ndimage.distance_transform_edt(~mask), np.float32)


def _smooth_noise(
    shape: tuple[int, ...], spacing_mm: float, rng: np.random.Generator
) -> Image:
    """Return noise of mean 0 and standard deviation 1 that is smooth over `spacing_mm`."""
    step = max(1, int(spacing_mm / 2))
    knots = rng.normal(size=[length // step + 4 for length in shape])
    knots = ndimage.gaussian_filter(knots, spacing_mm / step / 2)
    knots = (knots - knots.mean()) / knots.std()
    coarse = torch.from_numpy(knots.astype(np.float32))[None, None]
    # A twentieth of the time of scipy's zoom.
    size = [length * step for length in coarse.shape[2:]]
    noise = interpolate(coarse, size, mode="trilinear", align_corners=True)[0, 0]
    return np.asarray(noise[tuple(slice(length) for length in shape)].numpy())
