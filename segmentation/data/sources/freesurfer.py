"""A FreeSurfer SUBJECTS_DIR: one folder a subject, with `mri/` in it."""

from __future__ import annotations

import re
from pathlib import Path

from trinat.segmentation.data.sources.base import (
    Exclusion,
    Found,
    Source,
    SourceOptions,
    Subject,
    first_existing,
    natural_order,
    safe_name,
)

# From the scanner's own contrast to the most processed; all lie on the grid of aseg.mgz.
IMAGES = ("orig.mgz", "nu.mgz", "T1.mgz", "norm.mgz", "brainmask.mgz", "brain.mgz")
LABELS = ("aseg.mgz", "aparc+aseg.mgz", "aparc.DKTatlas+aseg.mgz", "aseg.auto.mgz")
_STRIPPED = frozenset({"norm.mgz", "brainmask.mgz", "brain.mgz"})

_TEMPLATES = re.compile(
    r"fsaverage\d*|fsaverage_sym|[lr]h\.EC_average|cvs_avg35.*|bert"
)
_SESSION = re.compile(
    r"(?P<person>.+?)_(?P<session>ses-\w+|MR(?:_d)?\d+|V\d{1,2}|tp\d{1,2})"
)


def _find(root: Path, options: SourceOptions) -> Found:
    """Every folder with `mri/` is a subject; labels are aseg.mgz or what options.labels names."""
    for folder in sorted(root.iterdir(), key=lambda path: natural_order(path.name)):
        if not folder.is_dir() or folder.name.startswith("."):
            continue
        if reason := _why_not(folder):
            yield Exclusion(folder.name, reason)
            continue
        image = find_image(folder, options.image)
        if image is None:
            wanted = options.image or ", ".join(IMAGES)
            yield Exclusion(
                folder.name, f"none of these in mri/: {wanted}", broken=True
            )
            continue
        person, session = person_and_session(folder.name)
        yield Subject(
            id=safe_name(folder.name),
            person=person,
            session=session,
            image=image,
            labels=find_labels(folder, options.labels),
            extra=options.extra,
            ignore=options.ignore,
            fold=options.fold,
            note="skull-stripped" if image.name in _STRIPPED else "",
        )


def find_image(folder: Path, name: str | None = None) -> Path | None:
    """mri/<name>, or the least processed image that is there."""
    return first_existing(folder / "mri", *([_mgz(name)] if name else IMAGES))


def find_labels(folder: Path, name: str | None = None) -> Path | None:
    return first_existing(folder / "mri", *([_mgz(name)] if name else LABELS))


def person_and_session(name: str) -> tuple[str, str | None]:
    """Person and session in names such as sub-01_ses-2, OAS1_0001_MR1, or 07.long.base."""
    name = name.partition(".long.")[0]
    match = _SESSION.fullmatch(name)
    return (match["person"], match["session"]) if match else (name, None)


def _why_not(folder: Path) -> str:
    if _TEMPLATES.fullmatch(folder.name):
        return "a template, not a person"
    if not (folder / "mri").is_dir():
        return "no mri/ folder"
    if (folder / "base-tps").exists():
        return "a longitudinal base: an average of sessions, not a scan"
    return ""


def _mgz(name: str) -> str:
    return name if name.endswith(".mgz") else f"{name}.mgz"


SOURCE = Source(_find, "no subject folder here", "--root is a SUBJECTS_DIR")
