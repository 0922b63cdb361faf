"""Label maps alone, for networks that learn from scans synthesised on the way."""

from __future__ import annotations

from pathlib import Path

from segmentation.data.pairs import image_files
from segmentation.data.source import Listing, SourceOptions, Subject, safe_name
from segmentation.errors import DatasetError

__all__ = ["find"]


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
                extra=options.extra,
                ignore=options.ignore,
            )
            for name, path in files.items()
        )
    )
