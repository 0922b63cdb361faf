"""Neurite-OASIS: OASIS-1 sessions with FreeSurfer's image and labels, renumbered 0 to 35.

A session is a folder such as OASIS_OAS1_0001_MR1, with orig.nii.gz (the head), norm.nii.gz
(skull-stripped) and seg35.nii.gz (labels), and all three once more, aligned to each other.
"""

from __future__ import annotations

import re
from pathlib import Path

from trinat.segmentation.data.sources.base import (
    STRIPPED,
    Exclusion,
    Listed,
    Source,
    SourceOptions,
    Subject,
    by_name,
    first_existing,
    search,
)
from trinat.segmentation.errors import ConfigError

_LICENCE = "OASIS data use agreement; cite HyperMorph and OASIS-1"

_FOLDER = re.compile(r"OASIS_(?P<participant>OAS1_\d{4})_(?P<session>MR\d)")
# Kinds of images, each with the file of the labels on its grid.
_LABELS_OF = {
    "orig": "seg35.nii.gz",
    "norm": "seg35.nii.gz",
    "aligned_orig": "aligned_seg35.nii.gz",
    "aligned_norm": "aligned_seg35.nii.gz",
}
_FILES = {f"{kind}.nii.gz" for kind in _LABELS_OF} | set(_LABELS_OF.values())

# FreeSurfer numbers of the dataset's own numbers 1 to 35, in order.
_LEFT = (2, 3, 4, 5, 7, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 26, 28, 30, 31)
_RIGHT = (41, 42, 43, 44, 46, 47, 49, 50, 51, 52, 53, 54, 58, 60, 62, 63)
SEG35 = dict(enumerate((*_LEFT, *_RIGHT), start=1))


def _find(root: Path, options: SourceOptions) -> Listed:
    """Yield the sessions in `root`, or in one of its subfolders, as subjects.

    `options.image` is orig (the default), norm, aligned_orig or aligned_norm.
    """
    kind = options.image or "orig"
    if kind not in _LABELS_OF:
        raise ConfigError(
            f"neurite has no images called {kind!r}",
            remedy=f"name one of {', '.join(_LABELS_OF)}",
        )
    image_name = f"{kind}.nii.gz"
    labels_name = _LABELS_OF[kind]
    for folder in by_name(search(root, "OASIS_OAS1_*", depth=1)):
        if not folder.is_dir():
            continue
        match = _FOLDER.fullmatch(folder.name)
        if match is None:
            yield Exclusion(folder.name, "not named as a session")
            continue
        image = first_existing(folder, [image_name])
        if image is None:
            yield Exclusion(folder.name, f"no {image_name}", broken=True)
            continue
        labels = first_existing(folder, [labels_name])
        if labels is None:
            yield Exclusion(folder.name, f"no {labels_name}", broken=True)
            continue
        yield Subject(
            id=f"{match['participant']}_{match['session']}",
            participant=match["participant"],
            session=match["session"],
            image=image,
            labels=labels,
            extra=SEG35,
            licence=_LICENCE,
            note=STRIPPED if kind.endswith("norm") else "",
        )


def _wanted_member(name: str) -> bool:
    """Return True for a file of the dataset's archive that is used: an image or a label map."""
    return Path(name).name in _FILES


SOURCE = Source(
    find=_find,
    uses=("image",),
    nothing="no Neurite-OASIS session (OASIS_OAS1_0001_MR1, ...) here",
    remedy="fetch it with `trinat data get neurite`",
    wanted_member=_wanted_member,
    fixed_numbers=True,
)
