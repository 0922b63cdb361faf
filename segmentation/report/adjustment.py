"""Volumes of a group adjusted for the size of the head, by the intracranial volume.

- `residual`: for each structure a line of volume over intracranial volume is fitted to the group,
  by least squares, and what it gives for the difference of a scan from the group's mean is taken
  away. Values stay in mm³, as of a head of mean size.
- `proportion`: the volume in percent of the intracranial volume.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from trinat.segmentation.errors import EvaluationError

Method = Literal["residual", "proportion"]
Values = NDArray[np.float64]
# A line through fewer scans says nothing.
FEWEST_SCANS = 4
_REMEDY = (
    "use a model that finds all fluid inside the skull on whole heads, or give a table of "
    "participants with a column eTIV"
)


@dataclass(frozen=True)
class Adjustment:
    """How volumes were adjusted: a row of coefficients for each structure, by its name.

    `mean_mm3` is the mean intracranial volume, `scans` the number of scans that have one, and
    `without` that of scans that lack it: they have no adjusted volume. The columns of
    `coefficients` are `slope`, `intercept`, `r2` and `scans`; empty for proportions.
    """

    method: Method
    mean_mm3: float
    scans: int
    without: int
    coefficients: pd.DataFrame

    @property
    def unit(self) -> str:
        """The unit of what is adjusted."""
        return "mm3" if self.method == "residual" else "%"


def adjust(
    volumes_mm3: Mapping[str, Values], intracranial_mm3: Values, method: Method
) -> tuple[dict[str, Values], Adjustment]:
    """Adjusted volumes of N scans, (N,) by structure, and how they were adjusted.

    `volumes_mm3` (N,) by structure and `intracranial_mm3` (N,) are NaN where they are not known,
    and so is what is adjusted. EvaluationError where fewer than four scans have an intracranial
    volume.
    """
    known = np.isfinite(intracranial_mm3)
    if known.sum() < FEWEST_SCANS:
        raise EvaluationError(
            f"{known.sum()} of {len(known)} scans have an intracranial volume, and "
            f"{FEWEST_SCANS} are needed to adjust for it",
            remedy=_REMEDY,
        )
    mean_mm3 = float(intracranial_mm3[known].mean())
    adjusted = {}
    rows = {}
    for structure, volumes in volumes_mm3.items():
        if method == "proportion":
            adjusted[structure] = 100 * volumes / intracranial_mm3
            continue
        line = _line(intracranial_mm3, volumes)
        adjusted[structure] = volumes - line["slope"] * (intracranial_mm3 - mean_mm3)
        rows[structure] = line
    coefficients = pd.DataFrame.from_dict(rows, orient="index")
    without = len(known) - int(known.sum())
    done = Adjustment(method, mean_mm3, int(known.sum()), without, coefficients)
    return adjusted, done


def _line(x: Values, y: Values) -> dict[str, float]:
    """The line of y over x by least squares; NaN where fewer than four pairs are known."""
    known = np.isfinite(x) & np.isfinite(y)
    x = x[known]
    y = y[known]
    scans = float(len(x))
    unknown = {"slope": np.nan, "intercept": np.nan, "r2": np.nan, "scans": scans}
    if len(x) < FEWEST_SCANS or np.ptp(x) == 0:
        return unknown
    line = stats.linregress(x, y)
    r2 = float(line.rvalue**2) if np.ptp(y) else np.nan
    return {
        "slope": float(line.slope),
        "intercept": float(line.intercept),
        "r2": r2,
        "scans": scans,
    }
