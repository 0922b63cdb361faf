"""Fits norms to healthy persons: smooth curves of volumes over age.

log M is a natural cubic spline of age, a step between the sexes, and a multiple of the logarithm of
the intracranial volume; log S is a straight line over age; L is a number. All are fitted together,
by maximum likelihood, to one structure of all persons.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import interpolate, optimize

from trinat.segmentation.metrics.norms import NO_SKEWNESS, SEXES, Curve

Values = NDArray[np.float64]

# Fewer persons have no centiles: neither in all, nor of a sex, nor around an age.
FEWEST_PERSONS = 80
FEWEST_OF_SEX = 20
FEWEST_NEAR = 5
# So many years before and after an age are near.
NEAR_YEARS = 5.0
# The knots of the spline, by the number of persons; as quantiles of age, the ends are knots too.
_KNOTS = {0: (0, 1 / 3, 2 / 3, 1), 200: (0, 1 / 4, 1 / 2, 3 / 4, 1)}
# How skewed volumes may be: 1 is a normal distribution, 0 a log-normal one.
_SKEWNESS = (-3.0, 4.0)


@dataclass(frozen=True)
class Controls:
    """Healthy persons, N: their volumes of one structure, ages, sexes and intracranial volumes.

    `is_male` is 0 or 1. `intracranial_mm3` is None where it is not known of all.
    """

    volume_mm3: Values
    age: Values
    is_male: Values
    intracranial_mm3: Values | None = None


def fit_curves(controls: Controls) -> dict[str, Curve]:
    """Fit curves of women (F) and men (M) at each year of age; only of a sex that persons have.

    Controls are as many as `FEWEST_PERSONS` and `FEWEST_OF_SEX` say, and have volumes above 0. A
    curve ends where fewer than `FEWEST_NEAR` of them are near, and has no ages that none of its sex
    is older or younger than.
    """
    model = _Model.of(controls)
    found = optimize.minimize(
        model.loss, model.start(), method="L-BFGS-B", jac=True, bounds=model.bounds()
    )
    curves = {}
    for number, sex in enumerate(SEXES):
        if (controls.is_male == number).any():
            curves[sex] = model.curve(found.x, number)
    return curves


@dataclass(frozen=True)
class _Model:
    """The likelihood of controls: its parameters are those of log M, two of log S, and L.

    `design` (N, P) is that of log M. Its columns are a spline of age, and then, where they are
    known and vary, sex and the logarithm of the intracranial volume from its mean.
    """

    controls: Controls
    knots: Values
    design: Values
    middle_age: float
    log_head: float | None

    @classmethod
    def of(cls, controls: Controls) -> _Model:
        """Build the model of controls."""
        count = len(controls.age)
        quantiles = max(
            (least, places) for least, places in _KNOTS.items() if count >= least
        )[1]
        knots = np.unique(np.quantile(controls.age, quantiles))
        columns = [_spline(knots, controls.age)]
        if np.ptp(controls.is_male):
            columns.append(controls.is_male[:, None])
        log_head = None
        if controls.intracranial_mm3 is not None:
            logarithms = np.log(controls.intracranial_mm3)
            log_head = float(logarithms.mean())
            columns.append((logarithms - log_head)[:, None])
        return cls(
            controls,
            knots,
            np.hstack(columns),
            float(controls.age.mean()),
            log_head,
        )

    @property
    def _decades(self) -> Values:
        """Ages from the middle, in tens of years."""
        return (self.controls.age - self.middle_age) / 10

    def start(self) -> Values:
        """Where the fit begins: least squares of the logarithm, one spread, and no skewness."""
        logarithms = np.log(self.controls.volume_mm3)
        found, *_ = np.linalg.lstsq(self.design, logarithms, rcond=None)
        spread = (logarithms - self.design @ found).std()
        return np.append(found, [np.log(max(spread, 1e-6)), 0.0, 0.5])

    def bounds(self) -> list[tuple[float | None, float | None]]:
        """Of each parameter; the skewness alone has any."""
        free = [(None, None)] * (self.design.shape[1] + 2)
        return [*free, _SKEWNESS]

    def loss(self, parameters: Values) -> tuple[float, Values]:
        """Compute the negative log likelihood a person, and its gradient.

        With y = log(V / M) and u = (exp(L y) - 1) / L, a person's is log S + (u / S)^2 / 2 - L y.
        """
        logarithm = np.log(self.controls.volume_mm3) - self.design @ parameters[:-3]
        level, slope, skewness = parameters[-3:]
        log_spread = level + slope * self._decades
        spread = np.exp(log_spread)
        if abs(skewness) < NO_SKEWNESS:
            skewness = NO_SKEWNESS
        power = np.exp(np.clip(skewness * logarithm, -50, 50))
        u = (power - 1) / skewness
        z = u / spread
        value = (log_spread + z**2 / 2 - skewness * logarithm).mean()

        # u' = power with respect to y; y falls with log M.
        by_logarithm = z * power / spread - skewness
        by_spread = 1 - z**2
        u_by_skewness = (logarithm * power - u) / skewness
        by_skewness = z / spread * u_by_skewness - logarithm
        gradient = np.concatenate(
            [
                -(self.design * by_logarithm[:, None]).mean(0),
                [by_spread.mean(), (by_spread * self._decades).mean()],
                [by_skewness.mean()],
            ]
        )
        return float(value), gradient

    def curve(self, parameters: Values, sex: int) -> Curve:
        """Compute the curve of a sex, at those years that enough persons are near."""
        controls = self.controls
        of_sex = controls.age[controls.is_male == sex]
        ages = np.arange(np.floor(of_sex.min()), np.floor(of_sex.max()) + 1)
        apart = np.abs(controls.age[None] - ages[:, None])
        near = (apart <= NEAR_YEARS).sum(1)
        kept = _longest_run(near >= FEWEST_NEAR)
        ages = ages[kept]
        near = near[kept]

        design = self._design_at(ages, sex)
        level, slope, skewness = parameters[-3:]
        spread = np.exp(level + slope * (ages - self.middle_age) / 10)
        # A fitted spread is too small for new persons: by what parameters were fitted, and by how
        # uncertain the median is.
        persons = len(controls.age)
        freedom = persons - len(parameters)
        spread = spread * np.sqrt(
            persons / freedom * (1 + self._leverage(design, parameters))
        )
        head = power = None
        if self.log_head is not None:
            head = float(np.exp(self.log_head))
            power = float(parameters[self.design.shape[1] - 1])
        return Curve(
            ages.tolist(),
            [float(skewness)] * len(ages),
            np.exp(design @ parameters[:-3]).tolist(),
            spread.tolist(),
            near.tolist(),
            persons,
            head,
            power,
        )

    def _design_at(self, ages: Values, sex: int) -> Values:
        """Make the rows of the design for persons of a sex with a head of the mean size."""
        columns = [_spline(self.knots, ages)]
        if np.ptp(self.controls.is_male):
            columns.append(np.full((len(ages), 1), float(sex)))
        if self.log_head is not None:
            columns.append(np.zeros((len(ages), 1)))
        return np.hstack(columns)

    def _leverage(self, design: Values, parameters: Values) -> Values:
        """The variance of the median, in units of that of a person, at rows of the design."""
        spread = np.exp(parameters[-2] * self._decades)
        weighted = self.design / spread[:, None]
        inverse = np.linalg.pinv(weighted.T @ weighted)
        return np.asarray(np.einsum("ap,pq,aq->a", design, inverse, design))


def _spline(knots: Values, ages: Values) -> Values:
    """Evaluate the natural cubic splines that are 1 at one knot and 0 at the others, (A, knots)."""
    if len(knots) == 1:
        return np.ones((len(ages), 1))
    if len(knots) == 2:
        share = (ages - knots[0]) / (knots[1] - knots[0])
        return np.stack([1 - share, share], axis=1)
    found = interpolate.CubicSpline(knots, np.eye(len(knots)), bc_type="natural")
    return np.asarray(found(ages))


def _longest_run(flags: NDArray[np.bool_]) -> slice:
    """Find the longest run of true flags; an empty slice where there is none."""
    best = slice(0, 0)
    start = 0
    for place, flag in enumerate(np.append(flags, False)):
        if flag:
            continue
        if place - start > best.stop - best.start:
            best = slice(start, place)
        start = place + 1
    return best
