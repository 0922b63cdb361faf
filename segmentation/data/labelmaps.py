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

# As heads.py reads the same maps; it is not imported here, because it brings torch along.
FOLDED = {136: 4, 163: 43, 137: 5, 164: 44, 25: 2, 57: 41}
OUTSIDE = (24, *range(500, 600))


def find(root: Path, options: SourceOptions) -> Listing:
    """Every image file in `root` is the label map of one person, in FreeSurfer's numbers."""
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
                extra={**FOLDED, **options.extra},
                ignore=tuple({*OUTSIDE, *options.ignore}),
            )
            for name, path in files.items()
        )
    )
