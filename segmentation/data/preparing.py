"""Preparation of subjects: from files to arrays on a 1 mm grid, the working grid, with a hash.

Labels that explain the scan better when they are shifted by some voxels are misplaced; a note then
reports the shift.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.data.slices import (
    FORMAT,
    quantise,
    scheme_table,
    write_subject,
)
from trinat.segmentation.data.sources.base import Subject
from trinat.segmentation.errors import GeometryError, LabelError
from trinat.segmentation.grid import SAME_GRID_MM
from trinat.segmentation.io.files import files_of_scan, sha256_of
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.folding import GENERATION_SURROUNDINGS
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.space.conform import conform
from trinat.segmentation.space.views import View

# Start of the note on labels that are misaligned with their scan.
BADLY_PLACED = "the labels do not lie on the scan"
# Shifts of labels that are tried along each axis, in voxels of 1 mm.
_SHIFTS = (-6, -3, 3, 6)
# Every second voxel along each axis is compared.
_STRIDE = 2
# Labels of the whole brain fill about 0.4 of their bounding box, labels of the cortex alone 0.2.
_BRAIN_FILLS = 0.3
# Names of both directions of each axis of the working grid: towards lower and higher indices.
_TOWARDS = (("left", "right"), ("back", "front"), ("bottom", "top"))


@dataclass(frozen=True)
class Cut:
    """Settings for cutting subjects into slices: classes, views and size of the working grid.

    `grid` is the shape of the working grid, whose axes are RAS and whose voxels are 1 mm.
    `trust_affine` is "sform", "qform" or "header", the affine to use if those of a header disagree.
    With `fill_nonfinite`, voxels of images, label maps and masks that are NaN or infinite become 0.
    """

    scheme: LabelScheme
    views: tuple[View, ...]
    grid: tuple[int, int, int] = (256, 256, 256)
    trust_affine: TrustAffine | None = None
    fill_nonfinite: bool = False


def prepare_subject(subject: Subject, path: Path, cut: Cut, fingerprint: str) -> None:
    """Read one subject, resample it to voxels of 1 mm, and write its slices to the file `path`.

    Labels and mask are resampled to the same grid as the image. `fingerprint`, the hash of settings
    and input files, is stored with the slices. Raises an error with the reason if the subject
    cannot be used.
    """
    notes: list[str] = []
    if subject.note:
        notes.append(subject.note)
    image = None
    if subject.image is not None:
        image = Volume.read(
            subject.image,
            axes=subject.image_axes,
            trust_affine=cut.trust_affine,
            fill_nonfinite=cut.fill_nonfinite,
        )
        notes.extend(image.notes)
    classes = _read_classes(subject, cut, image)
    # Mask of voxels that are used in training, on the subject's own grid; None if all are used.
    mask = None
    if subject.mask is not None:
        mask = Volume.read(
            subject.mask,
            labels=True,
            trust_affine=cut.trust_affine,
            fill_nonfinite=cut.fill_nonfinite,
        )
        if image is not None:
            _require_same_grid(image, mask, subject.mask)
        if not mask.data.any():
            raise LabelError(
                "no voxel counts", where=subject.mask, remedy="leave the subject out"
            )
    scan, labels, counted = _on_working_grid(image, classes, mask, cut)
    if scan is not None and labels is not None:
        shift = shift_of_labels(scan.data, labels.data)
        if shift is not None:
            moves = []
            for axis, millimetres in zip(_TOWARDS, shift, strict=True):
                if millimetres:
                    moves.append(
                        f"{abs(millimetres)} mm to the {axis[millimetres > 0]}"
                    )
            notes.append(f"{BADLY_PLACED}: they fit better {' and '.join(moves)}")
    conformed = labels if scan is None else scan
    if conformed is None:
        raise ValueError(f"{subject.id} has neither image nor labels")
    write_subject(
        path,
        image=None if scan is None else quantise(scan.data),
        labels=None if labels is None else labels.data,
        counted=None if counted is None else counted.data > 0,
        affine=conformed.affine,
        scheme=cut.scheme,
        views=cut.views,
        fingerprint=fingerprint,
        notes=tuple(notes),
    )


def classes_of(
    subject: Subject, label_map: Volume, scheme: LabelScheme
) -> NDArray[np.uint8]:
    """Convert the numbers of a subject's label map to class indices of the scheme.

    `label_map` is the file `subject.labels`, which has been read. The result has its shape.
    """
    return scheme.from_freesurfer(
        label_map.data,
        spacing_mm=label_map.spacing_mm,
        extra=subject.extra,
        ignore=subject.ignore,
        fold=subject.fold,
        where=subject.labels,
    )


def _read_classes(subject: Subject, cut: Cut, image: Volume | None) -> Volume | None:
    """Read the subject's label map as class indices of the scheme, on its own grid.

    Returns None if the subject has no labels. Raises GeometryError if they are not on the grid of
    `image`, and LabelError if no structure of the scheme is in them.
    """
    if subject.labels is None:
        return None
    label_map = Volume.read(
        subject.labels,
        labels=True,
        axes=subject.labels_axes,
        trust_affine=cut.trust_affine,
        fill_nonfinite=cut.fill_nonfinite,
    )
    if image is not None:
        _require_same_grid(image, label_map, subject.labels)
    # Fold before conforming: the nearest side must be determined in the original map.
    indices = classes_of(subject, label_map, cut.scheme)
    if not indices.any():
        raise LabelError(
            f"has no structure of {cut.scheme.name}",
            where=subject.labels,
            remedy="check its numbers, or leave the subject out",
        )
    if subject.csf is not None:
        # Background voxels become CSF where a model's label map, on the scan's grid, says CSF.
        (csf,) = cut.scheme.classes_of_number(GENERATION_SURROUNDINGS)
        found = Volume.read(subject.csf, labels=True).data
        is_fluid = (indices == 0) & (found == GENERATION_SURROUNDINGS)
        indices = np.where(is_fluid, csf, indices).astype(indices.dtype)
    return replace(label_map, data=indices)


def _on_working_grid(
    image: Volume | None, classes: Volume | None, mask: Volume | None, cut: Cut
) -> tuple[Volume | None, Volume | None, Volume | None]:
    """Resample image, classes and mask to the 1 mm working grid; each is None if it was None.

    All three get the same grid, which depends on the image or, without an image, on the classes.
    """
    if image is None:
        if classes is None:
            return None, None, None
        return None, conform(classes, labels=True, shape=cut.grid).volume, None
    conformed = conform(image, shape=cut.grid)

    def by_plan_of_image(labels: Volume | None) -> Volume | None:
        if labels is None:
            return None
        # Labels are on the image's grid within the tolerance, so they get exactly its affine.
        on_grid = replace(labels, affine=image.affine)
        return conform(on_grid, labels=True, plan=conformed.plan).volume

    return conformed.volume, by_plan_of_image(classes), by_plan_of_image(mask)


def fingerprint(
    subject: Subject,
    cut: Cut,
    image: str | None,
    labels: str | None,
    csf: str | None = None,
    mask: str | None = None,
) -> str:
    """Return the SHA-256 of all settings and inputs that affect a subject's slices.

    `image`, `labels`, `csf` and `mask` are the SHA-256 hashes of the input files, None for a file
    that the subject does not have.
    """
    settings: dict[str, Any] = {
        "format": FORMAT,
        "scheme": scheme_table(cut.scheme),
        "views": sorted(view.value for view in cut.views),
        "grid": cut.grid,
        "reading": [cut.trust_affine, cut.fill_nonfinite],
        "axes": [subject.image_axes, subject.labels_axes],
        "extra": sorted(subject.extra.items()),
        "ignore": sorted(subject.ignore),
        "note": subject.note,
        "image": image,
        "labels": labels,
    }
    if subject.fold is not None:
        settings["fold"] = sorted(subject.fold.targets.items())
    if csf is not None:
        settings["csf"] = csf
    if mask is not None:
        settings["mask"] = mask
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of(path: Path | None) -> str | None:
    """Return the SHA-256 of a file; for an Analyze pair, of header and image concatenated.

    Returns None if `path` is None. A store compares the hash to detect that an input has changed.
    """
    return None if path is None else sha256_of(*files_of_scan(path))


def _require_same_grid(image: Volume, labels: Volume, where: Path | None) -> None:
    """Raise GeometryError if labels are not on the image's grid.

    `where` is the file of the labels.
    """
    if image.shape != labels.shape:
        what = f"labels have shape {labels.shape}, the image {image.shape}"
    else:
        distance_mm = image.grid.apart_mm(labels.grid)
        if distance_mm <= SAME_GRID_MM:
            return
        what = f"labels lie up to {distance_mm:.3g} mm away from the image"
    remedy = "bring the labels to the image's grid first (nearest neighbour)"
    raise GeometryError(what, where=where, remedy=remedy)


def shift_of_labels(
    image: NDArray[np.floating], classes: NDArray[np.integer]
) -> tuple[int, int, int] | None:
    """Return the shift of the labels (voxels in X, Y, Z) that fits the image better.

    Returns None if the labels fit best where they are. `image` and `classes` are (X, Y, Z) on the 1
    mm working grid. The fit is the share of the image's variance that lies between classes. Labels
    that leave out much of the brain, such as cortical parcels, cannot be judged in this way, and
    None is returned.
    """
    occupied = np.argwhere(classes > 0)
    if not len(occupied):
        return None
    extent = 1 + np.ptp(occupied, axis=0)
    if len(occupied) < _BRAIN_FILLS * extent.prod():
        return None
    most = max(_SHIFTS)
    low = np.maximum(occupied.min(axis=0) - most, most)
    high = np.minimum(occupied.max(axis=0) + most, np.array(classes.shape) - most)
    seen = image[_box_index(low, high, (0, 0, 0))].astype(np.float64).ravel()
    best = _explained_variance(seen, classes[_box_index(low, high, (0, 0, 0))])
    found = None
    for axis, distance in product(range(3), _SHIFTS):
        shift = [0, 0, 0]
        shift[axis] = distance
        share = _explained_variance(seen, classes[_box_index(low, high, shift)])
        if share > best:
            best = share
            # The classes were read at an offset of `shift`, so the labels must move the opposite
            # way.
            found = [-step for step in shift]
    return None if found is None else (found[0], found[1], found[2])


def _box_index(
    low: NDArray[np.integer],
    high: NDArray[np.integer],
    shift: tuple[int, ...] | list[int],
) -> tuple[slice, ...]:
    """Return slices that select every second voxel along each axis of a box, moved by `shift`.

    `low` and `high` (3,) are the first voxel of the box and the voxel after its last one; `shift`
    is in voxels.
    """
    return tuple(
        slice(int(first) + step, int(last) + step, _STRIDE)
        for first, last, step in zip(low, high, shift, strict=True)
    )


def _explained_variance(
    values: NDArray[np.float64], classes: NDArray[np.integer]
) -> float:
    """Return the share (0 to 1) of the variance of `values` (N,) that lies between classes.

    `classes` has one class for each value, in any shape.
    """
    groups = classes.ravel()
    counts = np.bincount(groups)
    sums = np.bincount(groups, values)
    present = counts > 0
    mean = values.mean()
    between = (sums[present] ** 2 / counts[present]).sum() - len(values) * mean**2
    total = ((values - mean) ** 2).sum()
    return float(between / total) if total > 0 else 0.0
