"""Conversion of a few FreeSurfer numbers to classes of a scheme and back."""

from __future__ import annotations

import numpy as np

from trinat.segmentation.labels.scheme import LabelScheme, load_scheme

QUICKNAT = load_scheme("quicknat33")


def fold(*numbers: int, scheme: LabelScheme = QUICKNAT, **options: object) -> list[int]:
    """Return the classes of FreeSurfer numbers."""
    row = np.array(numbers, np.int32).reshape(-1, 1, 1)
    return scheme.from_freesurfer(row, **options).ravel().tolist()  # type: ignore[arg-type]


def fs(*numbers: int, scheme: LabelScheme = QUICKNAT, **options: object) -> list[int]:
    """Return FreeSurfer numbers after folding them to classes."""
    classes = np.array(fold(*numbers, scheme=scheme, **options))
    return scheme.to_freesurfer(classes).tolist()
