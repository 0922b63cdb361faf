"""Choice between the q-form and the s-form of a header, and refusal of contradictory ones."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple, get_args

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import ConfigError, GeometryError
from trinat.segmentation.grid import SAME_GRID_MM, Grid, world_axes
from trinat.segmentation.io.headers import Form, Header
from trinat.segmentation.io.limits import REMAKE, SPACING_RANGE_MM

TrustAffine = Literal["sform", "qform", "header"]

MAX_SHEAR = 1e-3
# No scanner's origin is farther away, and beyond this float32 positions have no exact tenths of a
# mm.
MAX_ORIGIN_MM = 1e5
# Relative tolerance between the voxel size in the header and that of the form.
_SAME_SPACING = 0.01
_TRUST = "decide with --trust-affine sform, qform or header"


class ChosenAffine(NamedTuple):
    """The affine of an image, the (q-form, s-form) codes to write, and notes on the choice.

    `affine` is (4, 4), voxel index -> RAS mm. `notes` are empty if there was nothing to choose.
    """

    affine: NDArray[np.float64]
    codes: tuple[int, int]
    notes: tuple[str, ...]


def check_trust(trust: TrustAffine | None) -> None:
    """Raise ConfigError if `trust` is neither None nor a word of `TrustAffine`."""
    words = get_args(TrustAffine)
    if trust is not None and trust not in words:
        raise ConfigError(
            f"unknown trust_affine {trust!r}", remedy=f"use {', '.join(words)}"
        )


def place(
    header: Header,
    trust: TrustAffine | None,
    axes: str | None,
    where: Path,
) -> ChosenAffine:
    """Choose the affine of an image, which places it in space: that of the s-form or of the q-form.

    If one form alone has a code above 0, it is used, whatever `trust` says. Otherwise the s-form
    takes precedence over the q-form. With the `trust` "sform" or "qform", that form is used,
    whatever the other form says. With "header", nibabel's choice is used: the s-form, else the
    q-form, else voxel axes to the left, front and top. `axes` (such as "ASL") is used only if both
    forms have the code 0, unknown. Raises a GeometryError if the header has no orientation, or
    contradicts itself or `axes`, and a ConfigError for an unknown `trust`.
    """
    check_trust(trust)
    qform = header.qform
    sform = header.sform
    if not _has_one_form(header):
        if trust == "sform":
            return _check_form(header, sform, "s-form", where)
        if trust == "qform":
            return _check_form(header, qform, "q-form", where)
    if not (qform.code or sform.code):
        return _place_without_form(header, trust, axes, where)
    if sform.code:
        taken = _check_form(header, sform, "s-form", where)
    else:
        taken = _check_form(header, qform, "q-form", where)
    found = "".join(nib.aff2axcodes(taken.affine))
    if axes is not None and trust is None and found != axes:
        raise GeometryError(
            f"its header says axes {found}, not {axes}", where=where, remedy=_TRUST
        )
    if trust == "header" or not (qform.code and sform.code):
        return taken
    other = _affine_or_error(header, qform, "q-form", where)
    if _sides_differ(taken.affine, other):
        raise GeometryError(
            "q- and s-form disagree about which side is left",
            where=where,
            remedy=_TRUST,
        )
    taken_grid = Grid(header.shape, taken.affine)
    apart_mm = taken_grid.apart_mm(Grid(header.shape, other))
    if apart_mm <= SAME_GRID_MM:
        return taken._replace(codes=(qform.code, sform.code))
    note = f"q- and s-form differ by up to {apart_mm:.1f} mm; the s-form is used"
    return taken._replace(notes=(*taken.notes, note))


def _has_one_form(header: Header) -> bool:
    """Return True if one form alone has a code above 0; the numbers of the other mean nothing."""
    return bool(header.qform.code) != bool(header.sform.code)


def _place_without_form(
    header: Header,
    trust: TrustAffine | None,
    axes: str | None,
    where: Path,
) -> ChosenAffine:
    """Choose the affine of an image whose q-form and s-form have the code 0, unknown.

    It is made from `axes`, such as "ASL", or is nibabel's default if `trust` is "header". Otherwise
    a GeometryError is raised.
    """
    if axes is not None:
        affine = _from_axes(axes, header)
    elif trust == "header":
        affine = header.bare
    else:
        raise GeometryError(
            "no orientation in its header",
            where=where,
            remedy="convert it from DICOM again, or give --trust-affine header, which takes its "
            "axes as LAS (MGH: LIA)",
        )
    return _check_form(header, Form(1, affine), "voxel size", where)


def _check_form(header: Header, form: Form, name: str, where: Path) -> ChosenAffine:
    """Check the q-form or the s-form, and return its affine as the image's.

    The code of the form is written for both forms of the output. `name` is its name for messages. A
    note is added if the header's voxel sizes differ from those of the form.
    """
    affine = _affine_or_error(header, form, name, where)
    code = form.code or 1
    notes: tuple[str, ...] = ()
    if not np.allclose(_spacing(affine), header.zooms, rtol=_SAME_SPACING):
        sizes = " x ".join(f"{size:.3g}" for size in header.zooms)
        notes = (
            f"its header's voxel size of {sizes} mm is not that of the {name}, which is used",
        )
    return ChosenAffine(affine, (code, code), notes)


def _affine_or_error(
    header: Header, form: Form, name: str, where: Path
) -> NDArray[np.float64]:
    """Return the affine of a form; raise a GeometryError if no scan can have this affine."""
    remedy = REMAKE if _has_one_form(header) else _TRUST
    if form.affine is None:
        raise GeometryError(f"its {name} is not a rotation", where=where, remedy=remedy)
    problem = why_impossible(form.affine)
    if problem:
        raise GeometryError(f"its {name} {problem}", where=where, remedy=remedy)
    return form.affine


def why_impossible(affine: NDArray[np.float64]) -> str:
    """Return the reason why no scan can have this affine, or "" if a scan can have it."""
    if not np.isfinite(affine).all():
        return "is not finite"
    if not np.allclose(affine[3], (0, 0, 0, 1)):
        return "has a last row other than 0, 0, 0, 1: is it transposed?"
    lengths = _spacing(affine)
    if lengths.min() == 0:
        return "is singular"
    low, high = SPACING_RANGE_MM
    if lengths.min() < low or lengths.max() > high:
        return "has impossible voxel sizes"
    directions = affine[:3, :3] / lengths
    if abs(np.linalg.det(directions)) < MAX_SHEAR:
        return "is singular"
    # The products of unit vectors at right angles form the identity matrix.
    cosines = directions.T @ directions
    if np.abs(cosines - np.eye(3)).max() > MAX_SHEAR:
        return "has shear"
    if np.abs(affine[:3, 3]).max() > MAX_ORIGIN_MM:
        return f"puts the scan more than {MAX_ORIGIN_MM / 1000:.0f} m away"
    return ""


def _spacing(affine: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the voxel sizes (3,) of an affine in mm; its values may be of any size."""
    with np.errstate(over="ignore"):
        steps = affine[:3, :3]
        return np.asarray(np.sqrt((steps**2).sum(axis=0)))


def _sides_differ(one: NDArray[np.float64], two: NDArray[np.float64]) -> bool:
    """Return True if two affines disagree about which side is left.

    This is so if one mirrors the other, or if their directions to the right, in voxel axes, are 60°
    or more apart.
    """
    # The determinant is negative if the voxel axes are left-handed.
    handedness_of_one = np.linalg.det(one[:3, :3])
    handedness_of_two = np.linalg.det(two[:3, :3])
    if handedness_of_one * handedness_of_two < 0:
        return True
    # The first row, with unit columns, is the direction to the right in voxel axes.
    right_one = one[0, :3] / _spacing(one)
    right_two = two[0, :3] / _spacing(two)
    return bool(right_one @ right_two < 0.5)


def _from_axes(axes: str, header: Header) -> NDArray[np.float64]:
    """Return an affine with a dataset's documented axes and the header's voxel sizes.

    `axes` are such as "ASL". The centre of the image is at 0 mm.
    """
    affine = np.diag([0.0, 0, 0, 1])
    for axis, (world, direction) in enumerate(world_axes(axes)):
        affine[world, axis] = direction * header.zooms[axis]
    # The origin t follows from the centre c at 0 mm: A c + t = 0.
    centre = (np.array(header.shape) - 1) / 2
    affine[:3, 3] = -affine[:3, :3] @ centre
    return affine
