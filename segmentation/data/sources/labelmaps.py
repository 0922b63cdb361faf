"""Label maps of whole heads alone, for networks that learn from scans synthesised on the way.

Their numbers go beyond FreeSurfer's: linings of ventricles and lesions join what they line or lie
in; 24 is the fluid all around the brain and 500 and more are outside it, so both are background.
"""

from __future__ import annotations

from pathlib import Path

from segmentation.data.sources.base import Listing, SourceOptions, Subject, safe_name
from segmentation.data.sources.pairs import image_files
from segmentation.errors import DatasetError
from segmentation.labels.folding import (
    GENERATION_FIRST_OUTSIDE,
    GENERATION_FOLDED,
    GENERATION_SURROUNDINGS,
)

_OUTSIDE = (GENERATION_SURROUNDINGS, *range(GENERATION_FIRST_OUTSIDE, 600))


def find(root: Path, options: SourceOptions) -> Listing:
    """Every image file in `root` is the label map of one person, in FreeSurfer's numbers."""
    subjects = (
        Subject(
            id=safe_name(name),
            person=name,
            image=None,
            labels=path,
            extra={**GENERATION_FOLDED, **options.extra},
            ignore=tuple({*_OUTSIDE, *options.ignore}),
        )
        for name, path in image_files(root).items()
    )
    nothing = DatasetError("no label map (.nii.gz, .nii, .mgz) here", where=root)
    return Listing.of(subjects, nothing)
