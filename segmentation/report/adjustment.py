"""Volumes of a group adjusted for the size of the head, by the intracranial volume.

- `residual`: for each structure a line of volume over intracranial volume is fitted to the group,
  by least squares, and what it gives for the difference of a scan from the group's mean is taken
  away. Values stay in mm³, as of a head of mean size.
- `proportion`: the volume in percent of the intracranial volume.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from trinat.segmentation.errors import EvaluationError

if TYPE_CHECKING:
    from trinat.segmentation.report.cohort import Scan

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
    scans: Sequence[Scan], structures: Sequence[str], method: Method
) -> tuple[dict[str, Values], Adjustment]:
    """Adjusted volumes, (N,) by structure, and how they were adjusted.

    NaN for a scan without the structure or without an intracranial volume. EvaluationError where
    fewer than four scans have an intracranial volume, or none of them differ.
    """
    intracranial = np.array([_number(scan.intracranial_mm3) for scan in scans])
    known = np.isfinite(intracranial)
    if known.sum() < FEWEST_SCANS:
        raise EvaluationError(
            f"{known.sum()} of {len(scans)} scans have an intracranial volume, and "
            f"{FEWEST_SCANS} are needed to adjust for it",
            remedy=_REMEDY,
        )
    mean_mm3 = float(intracranial[known].mean())
    adjusted = {}
    rows = {}
    for structure in structures:
        volumes = np.array([_number(scan.volumes_mm3.get(structure)) for scan in scans])
        if method == "proportion":
            adjusted[structure] = 100 * volumes / intracranial
            continue
        line = _line(intracranial, volumes)
        adjusted[structure] = volumes - line["slope"] * (intracranial - mean_mm3)
        rows[structure] = line
    coefficients = pd.DataFrame.from_dict(rows, orient="index")
    without = len(scans) - int(known.sum())
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
    centred = x - x.mean()
    slope = float(centred @ (y - y.mean()) / (centred @ centred))
    explained = slope**2 * float(centred @ centred)
    total = float(((y - y.mean()) ** 2).sum())
    return {
        "slope": slope,
        "intercept": float(y.mean() - slope * x.mean()),
        "r2": explained / total if total else np.nan,
        "scans": scans,
    }


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
