"""How a volume changes in time, and which change is larger than what two scans differ by anyway.

Changes are in per cent of the person's mean volume, so that neither scan is the one that counts:
from 100 to 90 is -10.53 %, and back is +10.53 % (symmetrised per cent change). Times are in years.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

__all__ = ["Change", "change_of"]

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Change:
    """How the volume of one structure of one person changes.

    - `percent` is the change from the first to the last scan.
    - `percent_per_year` is the slope; None where times are not known, or all are one.
    - `low` and `high` are the 95 % interval of the slope, with three or more scans.
    - `noise` is what `percent_per_year` (without times: `percent`) stays within in 95 of 100
      persons that do not change; None where that was not measured.
    """

    scans: int
    years: float | None
    percent: float
    percent_per_year: float | None
    low: float | None
    high: float | None
    noise: float | None

    @property
    def is_beyond_noise(self) -> bool | None:
        """Whether it is larger than what unchanged persons show; None where that is not known."""
        if self.noise is None:
            return None
        value = self.percent_per_year
        if value is None:
            value = self.percent
        return abs(value) > self.noise


def change_of(
    volumes: Sequence[float],
    years: Sequence[float | None],
    retest_percent: float | None = None,
) -> Change | None:
    """The change over two or more volumes in the order of time; None where all are 0.

    `retest_percent` is what two scans of a person who has not changed differ by at most, in 95 of
    100 cases.
    """
    values = np.asarray(volumes, float)
    mean = values.mean()
    if mean <= 0:
        return None
    percents = 100 * (values / mean - 1)
    # Over the mean of these two, as is usual, and not of all.
    both = (values[0] + values[-1]) / 2
    percent = 0.0
    if both > 0:
        percent = float(100 * (values[-1] - values[0]) / both)
    times = None
    if all(year is not None for year in years):
        times = np.asarray(years, float)
    if times is None or np.ptp(times) == 0:
        return Change(len(values), None, percent, None, None, None, retest_percent)
    from_mean = times - times.mean()
    spread = float(np.sqrt((from_mean**2).sum()))
    slope, half = _slope(percents, from_mean)
    low = None
    high = None
    if half is not None:
        low = slope - half
        high = slope + half
    noise = None
    if retest_percent is not None:
        # A difference of two has the noise of both scans.
        of_one_scan = retest_percent / np.sqrt(2)
        noise = float(of_one_scan / spread)
    return Change(
        scans=len(values),
        years=float(np.ptp(times)),
        percent=percent,
        percent_per_year=slope,
        low=low,
        high=high,
        noise=noise,
    )


def _slope(percents: Values, from_mean: Values) -> tuple[float, float | None]:
    """Slope of the line of least squares, and half its 95 % interval with three or more scans.

    `from_mean` are the times, counted from their mean.
    """
    squares = (from_mean**2).sum()
    slope = float((from_mean * percents).sum() / squares)
    freedom = len(percents) - 2
    if not freedom:
        return slope, None
    off = percents - percents.mean() - slope * from_mean
    error = np.sqrt((off**2).sum() / freedom / squares)
    # The quantile of Student's t; `scipy.stats` takes half a second to import.
    return slope, float(special.stdtrit(freedom, 0.975) * error)
