"""FreeSurfer SUBJECTS_DIR: one folder per subject, with `mri/` in it."""

from __future__ import annotations

import re
from pathlib import Path

from trinat.segmentation.data.identity import Named, identify
from trinat.segmentation.data.sources.base import (
    STRIPPED,
    Exclusion,
    Listed,
    Source,
    SourceOptions,
    Subject,
    by_name,
    first_existing,
    safe_name,
)

# From the least to the most processed image; all are on the grid of aseg.mgz.
IMAGES = ("orig.mgz", "nu.mgz", "T1.mgz", "norm.mgz", "brainmask.mgz", "brain.mgz")
# Label maps of the whole brain. The last two are FastSurfer's, without surfaces.
LABELS = (
    "aseg.mgz",
    "aparc+aseg.mgz",
    "aparc.DKTatlas+aseg.mgz",
    "aseg.auto.mgz",
    "aseg.auto_noCCseg.mgz",
    "aparc.DKTatlas+aseg.deep.mgz",
)
_STRIPPED = frozenset({"norm.mgz", "brainmask.mgz", "brain.mgz"})

_TEMPLATES = re.compile(
    r"fsaverage\d*|fsaverage_sym|[lr]h\.EC_average|cvs_avg35.*|bert"
)


def _find(root: Path, options: SourceOptions) -> Listed:
    """Yield every folder in `root` as a subject if there is an image in its mri/.

    `options.image` and `options.labels` name the files to use; by default the first existing file
    of IMAGES and LABELS is used.
    """
    found = []
    for folder in by_name(root.iterdir()):
        if not folder.is_dir() or folder.name.startswith("."):
            continue
        reason = why_no_scan(folder)
        if reason:
            yield Exclusion(folder.name, reason)
            continue
        image = find_image(folder, options.image)
        if image is None:
            wanted = options.image or ", ".join(IMAGES)
            yield Exclusion(
                folder.name, f"none of these in mri/: {wanted}", broken=True
            )
            continue
        found.append((folder, image))
    identities = identify([Named(folder.name) for folder, _ in found])
    for (folder, image), identity in zip(found, identities, strict=True):
        yield Subject(
            id=safe_name(folder.name),
            participant=identity.participant,
            session=identity.scan or None,
            image=image,
            labels=find_labels(folder, options.labels),
            extra=options.extra,
            ignore=options.ignore,
            fold=options.fold,
            note=note_on(image),
        )


def find_image(folder: Path, name: str | None = None) -> Path | None:
    """Return the path of an image in a subject's folder, or None.

    `name` is its name in mri/, such as orig or orig.mgz; None means the least processed image.
    """
    names = (_mgz(name),) if name else IMAGES
    return first_existing(folder / "mri", names)


def note_on(image: Path) -> str:
    """Return the note of a subject with this image: that it is skull-stripped, or ""."""
    return STRIPPED if image.name in _STRIPPED else ""


def find_labels(folder: Path, name: str | None = None) -> Path | None:
    """Return the path of a label map in a subject's folder, or None.

    `name` is its name in mri/, such as aseg or aseg.mgz; None means the first existing of LABELS.
    """
    names = (_mgz(name),) if name else LABELS
    return first_existing(folder / "mri", names)


def find_parcels(folder: Path) -> Path | None:
    """Return the label map with the Desikan-Killiany parcels in a subject's folder, or None."""
    return find_labels(folder, "aparc+aseg.mgz")


def why_no_subject(folder: Path) -> str:
    """Return the reason why a folder is no FreeSurfer subject, or "" if it is one."""
    if _TEMPLATES.fullmatch(folder.name):
        return "a template, not a participant"
    if not (folder / "mri").is_dir():
        return "no mri/ folder"
    if (folder / "base-tps").exists():
        return "a longitudinal base: an average of sessions, not a scan"
    return ""


def why_no_scan(folder: Path) -> str:
    """Return the reason why a folder has no scan of its own, or "" if it has one.

    A longitudinal result has none if the folder with the same scan's cross-sectional result exists.
    """
    scan, is_longitudinal, _ = folder.name.partition(".long.")
    if is_longitudinal and (folder.parent / scan / "mri").is_dir():
        return f"the scan of {scan} once more"
    return why_no_subject(folder)


def _mgz(name: str) -> str:
    """Return the file name of an image: orig.mgz for both orig and orig.mgz."""
    return name if name.endswith(".mgz") else f"{name}.mgz"


SOURCE = Source(
    find=_find,
    uses=("image", "labels"),
    nothing="no subject folder here",
    remedy="--root is a SUBJECTS_DIR",
)
