"""Norms with round numbers, for values worked out by hand."""

from __future__ import annotations

from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.metrics.norms import Curve, Norms, rows_of


def norms(model: str = "") -> Norms:
    """Return norms for women of 30 to 31.

    3,000 mm³ per structure, spread of a tenth, 120 participants.
    """
    curve = Curve([30.0, 31.0], [1.0] * 2, [3000.0] * 2, [0.1] * 2, [20] * 2, 120)
    rows = []
    for structure in load_scheme("quicknat33").names[1:]:
        rows += rows_of(structure, "F", curve, model)
    return Norms.of(rows)
