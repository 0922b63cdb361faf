"""From a subject's files to its arrays on the working grid, and when to do it again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trinat.segmentation.data.quantised import quantise
from trinat.segmentation.data.slices import FORMAT, scheme_table, write_subject
from trinat.segmentation.data.sources.base import Subject
from trinat.segmentation.errors import GeometryError
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.space.conform import conform
from trinat.segmentation.space.views import View

# Image and labels that lie further apart than this are not on one grid.
_SAME_GRID_MM = 1e-3


@dataclass(frozen=True)
class Cut:
    """How subjects are cut: into which classes, along which views, on how large a working grid."""

    scheme: LabelScheme
    views: tuple[View, ...]
    grid: tuple[int, int, int] = (256, 256, 256)
    trust_affine: TrustAffine | None = None  # what to believe where headers do not say
    fill_nonfinite: bool = False


def prepare_subject(subject: Subject, path: Path, cut: Cut, fingerprint: str) -> None:
    """Read, conform, cut and write one subject, or raise with the reason why not.

    One plan brings image and labels to the working grid.
    """
    notes: tuple[str, ...] = (subject.note,) if subject.note else ()
    image = classes = None
    if subject.image is not None:
        image = Volume.read(
            subject.image,
            axes=subject.image_axes,
            trust_affine=cut.trust_affine,
            fill_nonfinite=cut.fill_nonfinite,
        )
        notes += image.notes
    if subject.labels is not None:
        raw = Volume.read(
            subject.labels,
            labels=True,
            axes=subject.labels_axes,
            trust_affine=cut.trust_affine,
        )
        if image is not None:
            _require_same_grid(image, raw, subject)
        # Folding comes first: which side is nearest is a question to the original map.
        indices = cut.scheme.from_freesurfer(
            raw.data,
            spacing_mm=raw.spacing_mm,
            extra=subject.extra,
            ignore=subject.ignore,
            fold=subject.fold,
            where=subject.labels,
        )
        classes = replace(raw, data=indices)
    if image is None:
        if classes is None:
            raise ValueError(f"{subject.id} has neither image nor labels")
        scan, labels = None, conform(classes, labels=True, shape=cut.grid).volume
        affine = labels.affine
    else:
        conformed = conform(image, shape=cut.grid)
        scan, labels, affine = conformed.volume, None, conformed.volume.affine
        if classes is not None:
            # What lies within the tolerance of the image's grid is on it.
            on_grid = replace(classes, affine=image.affine)
            labels = conform(on_grid, labels=True, plan=conformed.plan).volume
    write_subject(
        path,
        image=quantise(scan.data) if scan else None,
        labels=labels.data if labels else None,
        affine=affine,
        scheme=cut.scheme,
        views=cut.views,
        fingerprint=fingerprint,
        notes=notes,
    )


def fingerprint(
    subject: Subject, cut: Cut, image: str | None, labels: str | None
) -> str:
    """SHA-256 over every setting that shapes the result and the inputs' own, by `digest_of`."""
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
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def digest_of(path: Path | None) -> str | None:
    """SHA-256 of a file; of an Analyze pair, of header and image in a row."""
    if path is None:
        return None
    return sha256_of(
        *((path, path.with_suffix(".img")) if path.suffix == ".hdr" else (path,))
    )


def _require_same_grid(image: Volume, labels: Volume, subject: Subject) -> None:
    if image.shape != labels.shape:
        what = f"labels have shape {labels.shape}, the image {image.shape}"
    elif (distance_mm := image.grid.apart_mm(labels.grid)) > _SAME_GRID_MM:
        what = f"labels lie up to {distance_mm:.3g} mm away from the image"
    else:
        return
    remedy = "bring the labels to the image's grid first (nearest neighbour)"
    raise GeometryError(what, where=subject.labels, remedy=remedy)
