"""Label maps of whole heads alone, for networks that learn from scans synthesised on the way.

Their numbers go beyond FreeSurfer's: linings of ventricles and lesions join what they line or lie
in; 24 is the fluid all around the brain and 500 and more are outside it, so both are background.
"""

from __future__ import annotations

from pathlib import Path

from segmentation.data.pairs import image_files
from segmentation.data.source import Listing, SourceOptions, Subject, safe_name
from segmentation.errors import DatasetError

__all__ = ["find"]

OUTSIDE = (24, *range(500, 600))


def find(root: Path, options: SourceOptions) -> Listing:
    """Every image file in `root` is the label map of one person, in FreeSurfer's numbers."""
    # It brings torch along, which the other sources do without.
    from segmentation.heads import GENERATION_NUMBERS

    files = image_files(root)
    if not files:
        raise DatasetError("no label map (.nii.gz, .nii, .mgz) here", where=root)
    return Listing(
        tuple(
            Subject(
                id=safe_name(name),
                person=name,
                image=None,
                labels=path,
                extra={**GENERATION_NUMBERS, **options.extra},
                ignore=tuple({*OUTSIDE, *options.ignore}),
            )
            for name, path in files.items()
        )
    )
