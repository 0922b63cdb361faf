"""What two scans of a person who has not changed differ by, as it was measured for a model."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import pandas as pd
from scipy import special

__all__ = ["retest_of"]


@cache
def retest_of(model: str) -> dict[str, float]:
    """By structure: two scans of an unchanged person differ by less, in 95 of 100 cases; per cent.

    It is that of scans segmented together. Of few measurements (`freedom` in the table) the
    standard deviation is not well known: Student's t makes up for that. Empty for a model for which
    nobody has measured it. docs/reliability.md says how it was measured.
    """
    table = files("trinat.configs") / "retest" / f"{model}.tsv"
    if not table.is_file():
        return {}
    with table.open(encoding="utf-8") as file:
        frame = pd.read_csv(file, sep="\t", comment="#")
    within = frame["sd_percent"] * special.stdtrit(frame["freedom"], 0.975)
    return dict(zip(frame["structure"], within.astype(float), strict=True))
