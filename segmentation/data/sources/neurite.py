"""Neurite-OASIS: OASIS-1 sessions with FreeSurfer's image and labels, renumbered 0 to 35."""

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
)
from trinat.segmentation.errors import ConfigError

_LICENCE = "OASIS data use agreement; cite HyperMorph and OASIS-1"

_FOLDER = re.compile(r"OASIS_(?P<person>OAS1_\d{4})_(?P<session>MR\d)")
_FILES = {f"{a}{b}.nii.gz" for a in ("", "aligned_") for b in ("orig", "norm", "seg35")}

# FreeSurfer number of each of the dataset's own numbers 1..35, in its order.
_LEFT = (2, 3, 4, 5, 7, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 26, 28, 30, 31)
_RIGHT = (41, 42, 43, 44, 46, 47, 49, 50, 51, 52, 53, 54, 58, 60, 62, 63)
SEG35 = dict(enumerate((*_LEFT, *_RIGHT), start=1))


def _find(root: Path, options: SourceOptions) -> Found:
    """`orig` (or norm, or their aligned_ twins, by options.image) with the seg35 of its grid."""
    kind = options.image or "orig"
    if kind not in {"orig", "norm", "aligned_orig", "aligned_norm"}:
        raise ConfigError(
            f"neurite has no images called {kind!r}",
            remedy="name one of orig, norm, aligned_orig, aligned_norm",
        )
    labels_name = (
        "aligned_seg35.nii.gz" if kind.startswith("aligned_") else "seg35.nii.gz"
    )
    folders = [
        p
        for depth in ("", "*/")
        for p in root.glob(f"{depth}OASIS_OAS1_*")
        if p.is_dir()
    ]
    for folder in sorted(folders, key=lambda path: natural_order(path.name)):
        match = _FOLDER.fullmatch(folder.name)
        if match is None:
            yield Exclusion(folder.name, "not named as a session")
            continue
        image = first_existing(folder, f"{kind}.nii.gz")
        labels = first_existing(folder, labels_name)
        if image is None or labels is None:
            missing = f"{kind}.nii.gz" if image is None else labels_name
            yield Exclusion(folder.name, f"no {missing}", broken=True)
            continue
        yield Subject(
            id=f"{match['person']}_{match['session']}",
            person=match["person"],
            session=match["session"],
            image=image,
            labels=labels,
            extra=SEG35,
            licence=_LICENCE,
            note="skull-stripped" if kind.endswith("norm") else "",
        )


SOURCE = Source(
    _find,
    "no Neurite-OASIS session (OASIS_OAS1_0001_MR1, ...) here",
    "fetch it with `trinat data get neurite`",
    wanted_member=lambda name: Path(name).name in _FILES,
    fixed_numbers=True,
)
