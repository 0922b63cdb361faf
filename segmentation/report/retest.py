"""What two scans of a person who has not changed differ by, as it was measured for a model."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import pandas as pd

__all__ = ["retest_of"]


@cache
def retest_of(model: str) -> dict[str, float]:
    """The standard deviation of the difference of two scans, in per cent, of each structure.

    It is that of scans segmented together. Empty for a model for which nobody has measured it.
    docs/reliability.md says how it was measured.
    """
    table = files("trinat.configs") / "retest" / f"{model}.tsv"
    if not table.is_file():
        return {}
    with table.open(encoding="utf-8") as file:
        frame = pd.read_csv(file, sep="\t", comment="#")
    return dict(zip(frame["structure"], frame["sd_percent"].astype(float), strict=True))
