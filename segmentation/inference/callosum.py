"""Corpus callosum: found in the white matter around the midsagittal plane, and measured there.

Everything here happens on the working grid, whose axes are right, anterior and superior and whose
voxels are 1 mm, so that voxel indices are millimetres. The label map of the structures stays as it
is: the callosum is a part of its white matter.

The method, in order:

1. The midsagittal plane is fitted to where left and right white matter are equally probable.
2. The probability of white matter that is brighter than cortex is averaged over 5 mm around this
   plane, as FreeSurfer cuts its callosum out. The largest component of this section is callosum,
   fornix and septum.
3. From the body of the callosum, whatever is thicker than its surroundings is cut off (the fornix
   where it touches), and whatever lies below a gap (the fornix where it does not).
4. The callosum is what is left, with its border, where voxels are partly filled and darker. It is
   divided into five equal parts along its long axis, as FreeSurfer does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, optimize, sparse
from scipy.spatial import cKDTree

from trinat.segmentation.grid import moved
from trinat.segmentation.inference.checks.findings import (
    Finding,
    above,
    grade_findings,
)
from trinat.segmentation.inference.checks.limits import GradeName
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.conform import ConformPlan
from trinat.segmentation.space.morphology import largest_part

PARTS = 5
PROFILE_POINTS = 50
# Limits of the grade. The border of the callosum is 1.3 to 2.2 mm wide in sharp scans. After
# smoothing by a Gaussian with a full width at half maximum of 2.8 mm it is 2.6 to 3.3 mm wide, of
# 4 mm 3.2 to 3.8 mm.
EDGE_MM = (2.9, 3.6)
LENGTH_MM = (55.0, 95.0)
SMALLEST_MM2 = 200.0
# FreeSurfer's callosum is this thick from left to right.
_SLAB_MM = 5.0
_OFFSETS_MM = np.arange(-2.0, 3.0)
# The section extends this far from its middle, along its long axis and perpendicular to it.
_HALF_LENGTH_MM = 60.0
_HALF_HEIGHT_MM = 40.0
_STEP_MM = 0.5
# Positions of a section's samples along its first and second axis.
_ALONG_MM = np.arange(-_HALF_LENGTH_MM, _HALF_LENGTH_MM + _STEP_MM, _STEP_MM)
_ACROSS_MM = np.arange(-_HALF_HEIGHT_MM, _HALF_HEIGHT_MM + _STEP_MM, _STEP_MM)
# Left and right white matter touch where both together have at least this probability.
_IS_WHITE = 0.6
# With fewer voxels at which left and right touch, no plane is fitted: some 800 are usual.
_FEWEST_CONTACTS = 100
# Deviations from the plane that are larger count less (soft L1).
_USUAL_DEVIATION_MM = 0.5
# The fornix touches only the body of the callosum, which lies between these shares of the length,
# from the back. From `_ROSTRUM_FROM` on, the rostrum lies below the body and belongs to the
# callosum.
_BODY = (0.2, 0.8)
_ROSTRUM_FROM = 0.72
# The fornix touches the callosum along less than this.
_CONTACT_MM = 20.0
# Largest width of the border of the callosum, and its width where other tissue that the networks
# label as white matter lies next to it, and where the fornix was cut off.
_BORDER_MM = 2.5
_HALF_BORDER_MM = 0.5
_FORNIX_BORDER_MM = 1.0
# The brightness of cortex and of white matter is measured in voxels with at least this probability,
# within this distance of the plane's origin along each axis.
_SURE = 0.9
_REACH_MM = (12, 50, 35)
# White matter must be brighter than cortex by at least this share of their typical difference.
_LEAST_BRIGHTNESS = 0.3
# Brightness across the outline is sampled at these distances from it; positive ones are outside.
_EDGE_OFFSETS_MM = np.arange(-2.5, 3.0, 0.5)
_REFINEMENTS = 10
# The midline is smoothed by a Gaussian with this standard deviation, in points of the midline.
_SMOOTHING = 4.0
_SIDE_POINTS = 200


@dataclass(frozen=True, eq=False)
class Midplane:
    """The midsagittal plane, in voxels of the 1 mm working grid.

    `origin` is a point (3,) in the plane. `normal`, `forward` and `up`, (3,) each, are orthogonal
    unit vectors: `normal` is perpendicular to the plane and points to the right, the other two lie
    in the plane.
    """

    origin: NDArray[np.float64]
    normal: NDArray[np.float64]
    forward: NDArray[np.float64]
    up: NDArray[np.float64]

    def coordinates(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the coordinates of points (..., 3) relative to the plane's origin, (..., 3).

        The three coordinates are the distances along `forward`, `up` and `normal`.
        """
        axes = np.stack([self.forward, self.up, self.normal])
        found: NDArray[np.float64] = (points - self.origin) @ axes.T
        return found


@dataclass(frozen=True, eq=False)
class Section:
    """The callosum in its midsagittal section.

    Both maps (A, B) are sampled in steps of 0.5 mm around `plane.origin`: the first axis runs along
    `plane.forward`, the second along `plane.up`. `white` is the probability of white matter, and 0
    outside of the callosum. `is_callosum` marks the pixels at which white matter belongs to the
    callosum.
    """

    plane: Midplane
    white: NDArray[np.float64]
    is_callosum: NDArray[np.bool_]

    def parts(self, points: NDArray[np.float64]) -> NDArray[np.uint8]:
        """Return the part of the callosum, 1 (posterior) to 5 (anterior), at each of points (N, 3).

        The points are centres of white matter voxels, in voxels of the 1 mm working grid. The part
        is 0 for points outside of the callosum; their distance from the plane does not matter.
        """
        along, across, _ = self.plane.coordinates(points).T
        columns = (along + _HALF_LENGTH_MM) / _STEP_MM
        rows = (across + _HALF_HEIGHT_MM) / _STEP_MM
        share = ndimage.map_coordinates(
            self.is_callosum.astype(np.float32), [columns, rows], order=1
        )
        start = self.outline[:, 0].min()
        shares = (along - start) / self.length_mm
        numbers = 1 + np.clip(np.floor(PARTS * shares), 0, PARTS - 1)
        return np.where(share >= 0.5, numbers, 0).astype(np.uint8)

    @cached_property
    def outline(self) -> NDArray[np.float64]:
        """Closed outline of the section, (N, 2) in mm, without its last point."""
        from contourpy import contour_generator

        contours = contour_generator(_ALONG_MM, _ACROSS_MM, self.white.T)
        lines = contours.lines(0.5)
        longest = max((np.asarray(line, np.float64) for line in lines), key=len)
        return longest[:-1]

    @property
    def area_mm2(self) -> float:
        """Area inside the outline, in mm²."""
        return abs(_signed_area(self.outline))

    @property
    def length_mm(self) -> float:
        """Distance from the hindmost to the foremost point, measured along the long axis."""
        return float(np.ptp(self.outline[:, 0]))

    @cached_property
    def _midline(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Midline (N, 2) in mm, from back to front, and the thickness at its points (N,), in mm."""
        return find_midline(self.outline, self.white >= 0.5)

    @property
    def midline_mm(self) -> float:
        """Length of the curved midline, in mm."""
        points, _ = self._midline
        return float(_arc_lengths(points)[-1])

    @property
    def thickness_mm(self) -> NDArray[np.float64]:
        """Thickness at 50 points, (50,), evenly spaced along the midline from back to front."""
        points, thickness = self._midline
        places = _arc_lengths(points)
        middles = (np.arange(PROFILE_POINTS) + 0.5) / PROFILE_POINTS
        return np.asarray(np.interp(middles * places[-1], places, thickness))


@dataclass(frozen=True, eq=False)
class Callosum:
    """Corpus callosum of a scan: label map, volumes, and measures of its midsagittal section.

    Attributes
    ----------
    labels : Volume
        FreeSurfer's 251 (posterior) to 255 (anterior) in the scan's own space, int16.
    voxels : dict
        Number of voxels of each part within 2.5 mm of the midsagittal plane, by the part's name in
        FreeSurfer, such as "CC_Central". A voxel that is partly within counts as a fraction; in
        `labels` it has the part if its centre is within.
    grade : str
        pass, look or reject, with its `reasons`.
    section : Section or None
        The midsagittal section; None if no callosum was found.
    """

    labels: Volume
    voxels: dict[str, float]
    grade: GradeName
    reasons: tuple[str, ...]
    section: Section | None

    @property
    def volumes_mm3(self) -> dict[str, float]:
        """Volume of each part, by the part's name in FreeSurfer."""
        voxel_mm3 = self.labels.grid.voxel_mm3
        return {name: count * voxel_mm3 for name, count in self.voxels.items()}

    @property
    def volume_mm3(self) -> float:
        """Volume of the whole callosum in mm³, within 2.5 mm of the midsagittal plane."""
        return sum(self.volumes_mm3.values())

    @property
    def measures(self) -> dict[str, float | None]:
        """Area, lengths, and mean and largest thickness of the section, by column of callosum.tsv.

        Values are None if no callosum was found.
        """
        names = (
            *("area_mm2", "length_mm", "midline_mm"),
            *("mean_thickness_mm", "max_thickness_mm"),
        )
        if self.section is None:
            return dict.fromkeys(names)
        thickness = self.thickness_mm
        values = (
            self.section.area_mm2,
            self.section.length_mm,
            self.section.midline_mm,
            float(thickness.mean()),
            float(thickness.max()),
        )
        return dict(zip(names, values, strict=True))

    @property
    def thickness_mm(self) -> NDArray[np.float64]:
        """Thickness at 50 points, (50,), evenly spaced along the midline from back to front.

        All values are NaN if no callosum was found.
        """
        if self.section is None:
            return np.full(PROFILE_POINTS, np.nan)
        return self.section.thickness_mm


def measured(
    section: Section | None,
    image: Volume,
    is_white: Volume,
    plan: ConformPlan,
) -> Callosum:
    """Restore a callosum to the scan's own space, measure it, and grade it pass, look or reject.

    `section` is the callosum that `find_callosum` found, or None. `image` is the scan on the 1 mm
    working grid. `is_white` (bool) marks the white matter in the scan's own space: only these
    voxels can become callosum. `plan` maps the working grid to the scan.
    """
    scheme = load_scheme("callosum")
    parts = np.zeros(is_white.shape, np.uint8)
    counts: NDArray[np.float64] = np.zeros(len(scheme))
    if section is not None:
        to_working = np.linalg.inv(plan.working.affine)
        places = is_white.grid.places(np.argwhere(is_white.data))
        points = moved(places, to_working)
        found = section.parts(points)
        from_plane = section.plane.coordinates(points)[:, 2]
        half_mm = _SLAB_MM / 2
        is_inside = (-half_mm <= from_plane) & (from_plane < half_mm)
        parts[is_white.data] = np.where(is_inside, found, 0)
        steps = (to_working @ is_white.affine)[:3, :3]
        # Along the axis nearest to the normal, voxels follow each other without gap or overlap.
        width_mm = np.abs(section.plane.normal @ steps).max()
        shares = _share_in_slab(from_plane, width_mm)
        counts = np.bincount(found, shares, len(scheme)).astype(np.float64)
    voxels = {label.name: float(counts[label.index]) for label in scheme.labels[1:]}
    labels = Volume(scheme.to_freesurfer(parts), is_white.affine, is_white.codes)
    grade, reasons = _grade(section, parts, np.asarray(image.data, np.float32))
    return Callosum(labels, voxels, grade, reasons, section)


def _share_in_slab(
    from_plane: NDArray[np.float64], width_mm: float
) -> NDArray[np.float64]:
    """Return the share of each voxel that lies within 2.5 mm of the midsagittal plane, (N,).

    `from_plane` (N,) are the distances in mm of the voxels' centres from the plane, and `width_mm`
    is the width of a voxel across the plane. A count of whole voxels would depend on where the
    plane lies between two sagittal slices: 4 or 5 slices of 1.2 mm have their centre inside.
    """
    first = np.maximum(from_plane - width_mm / 2, -_SLAB_MM / 2)
    last = np.minimum(from_plane + width_mm / 2, _SLAB_MM / 2)
    return np.asarray(np.maximum(last - first, 0) / width_mm)


def _grade(
    section: Section | None, parts: NDArray[np.uint8], image: NDArray[np.float32]
) -> tuple[GradeName, tuple[str, ...]]:
    """Grade a callosum pass, look or reject; return the grade and the reasons for it.

    `parts` has the part of the callosum, 1 (posterior) to 5 (anterior), of each voxel in the scan's
    own space, 0 outside. `image` is the scan on the 1 mm working grid.
    """
    if section is None or not parts.any():
        return "reject", ("no callosum found: no white matter crosses the midline",)
    findings = []
    # The first and the last slice of each axis.
    ends = [np.take(parts, [0, -1], axis=axis).any() for axis in range(parts.ndim)]
    if any(ends):
        findings.append(Finding(True, "the field of view ends in the callosum"))
    edge_mm = edge_width(section, image)
    blurred = f"the border of the callosum is blurred over {edge_mm:.1f} mm"
    findings += above(edge_mm, EDGE_MM, blurred)
    if not LENGTH_MM[0] <= section.length_mm <= LENGTH_MM[1]:
        reason = f"the callosum is {section.length_mm:.0f} mm long"
        findings.append(Finding(False, reason))
    if section.area_mm2 < SMALLEST_MM2:
        reason = f"the section of the callosum is {section.area_mm2:.0f} mm²"
        findings.append(Finding(False, reason))
    return grade_findings(findings)


def edge_width(section: Section, image: NDArray[np.float32]) -> float:
    """Return the width of the callosum's border: the mm over which brightness changes across it.

    The width is a contrast divided by a slope. The contrast is the difference in brightness between
    points 2.5 mm inside and 2.5 mm outside of the outline; the slope is the steepest one between
    these points. Both are medians over all points of the outline.
    """
    outline = section.outline
    tangents = np.roll(outline, -1, axis=0) - np.roll(outline, 1, axis=0)
    normals = np.stack([tangents[:, 1], -tangents[:, 0]], axis=1)
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    if _signed_area(outline) < 0:
        normals = -normals
    points = outline[:, None] + _EDGE_OFFSETS_MM[:, None] * normals[:, None]
    columns = (points[..., 0] + _HALF_LENGTH_MM) / _STEP_MM
    rows = (points[..., 1] + _HALF_HEIGHT_MM) / _STEP_MM
    values = ndimage.map_coordinates(
        _average_over_slab(image, section.plane), [columns, rows], order=1
    )
    contrast = np.median(values[:, 0] - values[:, -1])
    # If the callosum is darker than its surroundings, the contrast and the slopes are negative.
    slopes = -np.diff(values, axis=1) / np.diff(_EDGE_OFFSETS_MM) * np.sign(contrast)
    steepest = np.median(slopes.max(axis=1))
    return float(abs(contrast) / max(steepest, 1e-6))


def find_callosum(
    left: NDArray[np.floating],
    right: NDArray[np.floating],
    cortex: NDArray[np.floating],
    image: NDArray[np.floating],
) -> Section | None:
    """Find the callosum from probabilities of tissues with RAS axes and voxels of 1 mm.

    Parameters
    ----------
    left, right, cortex : array (X, Y, Z)
        Probabilities of left and right white matter and of the cortex of both sides.
    image : array (X, Y, Z)
        The scan, in any contrast.

    Returns
    -------
    Section or None
        None if too little white matter crosses the midsagittal plane to define it.
    """
    plane = fit_midplane(left, right)
    if plane is None:
        return None
    white = np.asarray(left, np.float32) + right
    bright = _limited_by_brightness(white, cortex, image, plane)
    kept = np.zeros(0, bool)
    is_cut = np.zeros(0, bool)
    # The fornix tilts the first estimate of the long axis; the later ones are free of it.
    for _ in range(3):
        section = _average_over_slab(bright, plane)
        inside = largest_part(section >= 0.5)
        if not inside.any():
            return None
        kept = without_fornix(inside)
        is_cut = (section >= 0.5) & ~kept
        plane_of_kept = plane
        plane = _aligned_to(plane, kept)
    section = _average_over_slab(white, plane_of_kept)
    is_callosum = _with_border(kept, section >= 0.5, is_cut)
    section = np.where(is_callosum, section, 0)
    inside = largest_part(section >= 0.5)
    if not inside.any():
        return None
    section = np.where(inside | (section < 0.5), section, 0)
    return Section(plane_of_kept, section, is_callosum)


def fit_midplane(
    left: NDArray[np.floating], right: NDArray[np.floating]
) -> Midplane | None:
    """Fit a plane to the points at which left and right white matter are equally probable.

    `left` and `right` are the probabilities of white matter of each side, (X, Y, Z); left lies at
    low indices of the first axis. Returns None if the two sides touch in too few voxels.
    """
    lead = np.asarray(left, np.float32) - right
    white = np.asarray(left, np.float32) + right
    is_contact = (lead[:-1] > 0) & (lead[1:] <= 0)
    is_contact &= (white[:-1] > _IS_WHITE) & (white[1:] > _IS_WHITE)
    i, j, k = np.nonzero(is_contact)
    if len(i) < _FEWEST_CONTACTS:
        return None
    before = lead[:-1][is_contact]
    after = lead[1:][is_contact]
    x = i + before / (before - after)
    middle = np.array([np.median(x), np.median(j), np.median(k)])
    terms = np.stack([np.ones(len(x)), j - middle[1], k - middle[2]], axis=1)

    def deviations(coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(terms @ coefficients - x)

    fitted = optimize.least_squares(
        deviations,
        [middle[0], 0, 0],
        loss="soft_l1",
        f_scale=_USUAL_DEVIATION_MM,
    )
    at_middle, per_forward, per_up = fitted.x
    normal = np.array([1, -per_forward, -per_up])
    normal /= np.linalg.norm(normal)
    forward = np.array([0, 1, 0]) - normal[1] * normal
    forward /= np.linalg.norm(forward)
    origin = np.array([at_middle, middle[1], middle[2]])
    return Midplane(origin, normal, forward, np.cross(normal, forward))


def _limited_by_brightness(
    white: NDArray[np.floating],
    cortex: NDArray[np.floating],
    image: NDArray[np.floating],
    plane: Midplane,
) -> NDArray[np.float32]:
    """Return the probability of white matter (X, Y, Z), lowered where the scan is dark as cortex.

    `white` and `cortex` are probabilities, `image` is the scan, all (X, Y, Z). The typical
    brightness of both tissues is measured near the plane's origin.

    The reason is that networks repeat mistakes of the labels that they were trained with:
    FreeSurfer adds cortex and cingulum to a callosum that is stretched over wide ventricles.
    """
    near = _box_around(plane, white.shape)
    grey = image[near][cortex[near] > _SURE]
    bright = image[near][white[near] > _SURE]
    if not grey.size or not bright.size:
        return np.asarray(white, np.float32)
    darkest = np.median(grey)
    contrast = np.median(bright) - darkest
    if contrast == 0:
        return np.asarray(white, np.float32)
    brightness = (image - darkest) / contrast
    # The limit is 0.5 at the least brightness, so that the border of the callosum lies there.
    limit = 0.5 + brightness - _LEAST_BRIGHTNESS
    return np.asarray(np.clip(np.minimum(white, limit), 0, 1), np.float32)


def _with_border(
    core: NDArray[np.bool_], is_white: NDArray[np.bool_], is_cut: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Extend the bright core of the callosum by its border; return the mask (A, B).

    `core` marks the core in a section, `is_white` all white matter of the section, and `is_cut` the
    fornix that was cut off. Voxels of the border are partly filled and therefore darker than the
    core. White matter that continues beyond the width of a border without getting brighter is not
    border, but grey matter or the fornix. Where the fornix was cut off, the border is narrow.
    """
    to_core = ndimage.distance_transform_edt(~core, sampling=_STEP_MM)
    is_border = to_core <= _BORDER_MM
    is_beyond = is_white & ~is_border
    if is_beyond.any():
        to_beyond = ndimage.distance_transform_edt(~is_beyond, sampling=_STEP_MM)
        is_border &= (to_beyond > _BORDER_MM) | (to_core <= _HALF_BORDER_MM)
    return np.asarray(is_border & (~is_cut | (to_core <= _FORNIX_BORDER_MM)))


def _box_around(plane: Midplane, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Return a box of some centimetres around a plane's origin, clipped to an array's `shape`."""
    middle = np.rint(plane.origin).astype(int)
    return tuple(
        slice(max(place - reach, 0), min(place + reach, length))
        for place, reach, length in zip(middle, _REACH_MM, shape, strict=True)
    )


def without_fornix(inside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Remove fornix and septum from a section (A, B) of the callosum; return the remaining mask.

    The first axis of the section runs from back to front, the second one upwards. In each column of
    the body, the uppermost run of set pixels is the callosum. A morphological opening of its
    thickness along the body finds where it is thicker than everything around it within 20 mm: there
    the fornix touches the callosum.
    """
    columns = np.flatnonzero(inside.any(axis=1))
    first, length = columns[0], np.ptp(columns)
    start, stop = (int(first + share * length) for share in _BODY)
    body = inside[start:stop]
    height = body.shape[1]
    if not body.any(axis=1).all():
        # The callosum has a gap, so that fornix and callosum cannot be told apart.
        return inside
    levels = np.arange(height)
    top = height - 1 - np.argmax(body[:, ::-1], axis=1)
    is_gap = ~body & (levels < top[:, None])
    bottom = height - np.argmax(is_gap[:, ::-1], axis=1)
    bottom = np.where(is_gap.any(axis=1), bottom, 0)
    thickness = top + 1 - bottom
    window = round(_CONTACT_MM / _STEP_MM)
    # Pad with a large thickness, because both ends of the callosum are thicker than its body.
    padded = np.pad(thickness, window, constant_values=height)
    opened = ndimage.grey_opening(padded, size=window)[window:-window]
    lowest = top + 1 - opened
    is_below = levels < lowest[:, None]
    # The rostrum lies below the body: there, only pixels of the uppermost run are cut.
    is_before_rostrum = np.arange(start, stop) < first + _ROSTRUM_FROM * length
    is_cut = is_below & ((levels >= bottom[:, None]) | is_before_rostrum[:, None])
    kept = inside.copy()
    kept[start:stop] &= ~is_cut
    return largest_part(kept)


def find_midline(
    outline: NDArray[np.float64], inside: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the midline (N, 2) of a callosum from back to front, and its thickness (N,), in mm.

    `outline` (M, 2) is the closed outline in mm, `inside` (A, B) the mask of the section. The ends
    of the midline are the two points of the section with the longest path between them inside the
    section. They divide the outline into an upper and a lower side; the midline is equally far from
    both.
    """
    behind, before = _farthest_points(inside)
    _, (one, other) = cKDTree(outline).query([behind, before])
    turned = np.roll(outline, -one, axis=0)
    split = (other - one) % len(outline)
    sides = (turned[: split + 1], np.vstack([turned[split:], turned[:1]])[::-1])
    upper, lower = (_evenly_spaced(side, _SIDE_POINTS) for side in sides)
    upper_tree = cKDTree(_evenly_spaced(upper, 10 * _SIDE_POINTS))
    lower_tree = cKDTree(_evenly_spaced(lower, 10 * _SIDE_POINTS))
    midline = (upper + lower) / 2
    tips = midline[:1], midline[-1:]
    for _ in range(_REFINEMENTS):
        _, above = upper_tree.query(midline)
        _, below = lower_tree.query(midline)
        middles = (upper_tree.data[above] + lower_tree.data[below]) / 2
        smooth = ndimage.gaussian_filter1d(middles, _SMOOTHING, axis=0, mode="nearest")
        # At a blunt end, all middles are some distance from it.
        midline = _evenly_spaced(np.vstack([tips[0], smooth, tips[1]]), _SIDE_POINTS)
    to_upper, _ = upper_tree.query(midline)
    to_lower, _ = lower_tree.query(midline)
    return midline, np.asarray(to_upper + to_lower)


def _signed_area(outline: NDArray[np.float64]) -> float:
    """Return the area inside a closed outline (N, 2), negative if it runs clockwise."""
    x, y = outline.T
    return float(np.sum(x * np.roll(y, -1) - y * np.roll(x, -1)) / 2)


def _average_over_slab(
    white: NDArray[np.floating], plane: Midplane
) -> NDArray[np.float64]:
    """Average a map (X, Y, Z) across the slab around the plane; return the section, (A, B).

    `white` is the map; it counts as 0 outside of the array.
    """
    points = (
        plane.origin
        + _ALONG_MM[:, None, None, None] * plane.forward
        + _ACROSS_MM[:, None, None] * plane.up
        + _OFFSETS_MM[:, None] * plane.normal
    )
    values = ndimage.map_coordinates(white, np.moveaxis(points, -1, 0), order=1)
    return np.asarray(values.mean(axis=-1, dtype=np.float64))


def _aligned_to(plane: Midplane, kept: NDArray[np.bool_]) -> Midplane:
    """Move a plane's origin to the middle of a section, and turn `forward` to its long axis.

    `kept` (A, B) is the mask of the section in the plane.
    """
    columns, rows = np.nonzero(kept)
    points = np.stack([_ALONG_MM[columns], _ACROSS_MM[rows]], axis=1)
    middle = points.mean(axis=0)
    _, axes = np.linalg.eigh(np.cov((points - middle).T))
    x, y = axes[:, -1] * np.sign(axes[0, -1])
    origin = plane.origin + middle[0] * plane.forward + middle[1] * plane.up
    forward = x * plane.forward + y * plane.up
    return Midplane(origin, plane.normal, forward, np.cross(plane.normal, forward))


def _farthest_points(inside: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the two points with the longest path between them inside a section, (2, 2).

    `inside` (A, B) is the mask of the section. The points are in mm, the hindmost first.
    """
    pixels = np.argwhere(inside)
    pairs = cKDTree(pixels).query_pairs(1.5, output_type="ndarray")
    distances = np.linalg.norm(pixels[pairs[:, 0]] - pixels[pairs[:, 1]], axis=1)
    count = len(pixels)
    graph = sparse.coo_array((distances, pairs.T), (count, count)).tocsr()
    start = 0
    ends = []
    # The point farthest from any point is an end; the point farthest from this end is the other.
    for _ in range(3):
        reached = sparse.csgraph.dijkstra(graph, directed=False, indices=start)
        start = int(np.where(np.isfinite(reached), reached, -1).argmax())
        ends.append(start)
    columns, rows = pixels[ends[-2:]].T
    points = np.stack([_ALONG_MM[columns], _ACROSS_MM[rows]], axis=1)
    return np.asarray(points[np.argsort(points[:, 0])])


def _arc_lengths(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the length of a line (N, 2) from its first point to each of its points, (N,)."""
    steps = np.linalg.norm(np.diff(points, axis=0), axis=1)
    return np.concatenate([[0.0], np.cumsum(steps)])


def _evenly_spaced(points: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return `count` evenly spaced points (count, 2) on a line (N, 2), including both ends."""
    places = _arc_lengths(points)
    wanted = np.linspace(0, places[-1], count)
    columns = [np.interp(wanted, places, values) for values in points.T]
    return np.stack(columns, axis=1)
