"""Linear regression with valid intervals for small, unequal and heteroscedastic groups.

statsmodels fits by ordinary least squares. Standard errors are robust (HC2), and the t distribution
has the degrees of freedom of Bell and McCaffrey (Imbens and Kolesár, Review of Economics and
Statistics 98, 701, 2016), which depend on the comparison. Between two groups without covariates
this is close to Welch's test. HC3 with the residual degrees of freedom, the usual choice, rejects
up to 11 % of true null hypotheses of small groups (docs/notes/statistics.md).

Participants in one cluster, such as a family, may be correlated. Standard errors are then CR2, of
which HC2 is the case of clusters of one (Bell and McCaffrey, Survey Methodology 28, 169, 2002;
Pustejovsky and Tipton, Journal of Business and Economic Statistics 36, 672, 2018).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from math import exp, lgamma
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

Values = NDArray[np.float64]

_TAIL = 0.025  # on each side of a 95 % interval
_UNKNOWN = float("nan")
# For much larger t, scipy's search for the noncentrality does not end.
_MOST_T = 1000.0
# Residuals below this share of the values are rounding errors.
_ROUNDING = 1e-12
# A participant with this leverage is fitted exactly and tells nothing about the variance.
_FULL_LEVERAGE = 1 - 1e-9


@dataclass(frozen=True)
class Estimate:
    """Estimate of a contrast, with its 95 % interval (`low` to `high`) and two-sided p.

    `error` is the standard error, and `freedom` the degrees of freedom of t. `g` is the estimate in
    residual standard deviations, corrected for small samples as Hedges' g. Its interval, `g_low` to
    `g_high`, is from the noncentral t distribution. All are NaN if the data do not determine the
    estimate or its error.
    """

    value: float = _UNKNOWN
    low: float = _UNKNOWN
    high: float = _UNKNOWN
    g: float = _UNKNOWN
    g_low: float = _UNKNOWN
    g_high: float = _UNKNOWN
    p: float = _UNKNOWN
    error: float = _UNKNOWN
    freedom: float = _UNKNOWN


@dataclass(frozen=True)
class Contrast:
    """A linear combination of coefficients that the design determines.

    `coefficients` (P,) are the factors of the combination. Residuals multiplied by
    `residual_factors` (N,) are summed over each cluster; the sum of squares of these sums is the
    robust variance of the estimate. `freedom` are the degrees of freedom of Bell and McCaffrey.
    `variance` is the variance of the estimate if each participant's value has a variance of 1.
    """

    coefficients: Values
    residual_factors: Values
    freedom: float
    variance: float


class Design:
    """A design matrix, and the weights and clusters of the participants.

    `matrix` (N, P) has a row for each participant and may lack full rank. `weights` (N,) are 1 by
    default. `clusters` (N,) has a number or name that correlated participants share; by default all
    are independent. `leverage` (N,) is that of each participant; `is_fitted_exactly` (N,) marks
    participants whose leverage is 1 and whose residual is therefore always 0. `is_in_exact_cluster`
    (N,) marks the members of clusters with a residual, or a sum of residuals, that is always 0.
    `residual_freedom` is N minus the rank.
    """

    def __init__(
        self,
        matrix: Values,
        weights: Values | None = None,
        clusters: NDArray[Any] | None = None,
    ) -> None:
        self.matrix = matrix
        self.weights = np.ones(len(matrix)) if weights is None else weights
        matrix = np.sqrt(self.weights)[:, None] * matrix
        self._weighted = matrix
        inverse = np.linalg.pinv(matrix)
        self._inverse_square = inverse @ inverse.T
        self._projection = inverse @ matrix
        self.leverage = np.einsum("np,pn->n", matrix, inverse)
        self.is_fitted_exactly = self.leverage > _FULL_LEVERAGE
        self.residual_freedom = len(matrix) - int(np.linalg.matrix_rank(matrix))
        if clusters is None:
            clusters = np.arange(len(matrix))
        _, self._clusters = np.unique(clusters, return_inverse=True)
        self.is_in_exact_cluster = np.zeros(len(matrix), bool)
        self._blocks = []
        for members in _members_by_size(self._clusters):
            hat = np.einsum("csp,pct->cst", matrix[members], inverse[:, members])
            # Covariances of the residuals of each cluster, if values are independent and have the
            # same variance.
            values, vectors = np.linalg.eigh(np.eye(members.shape[1]) - hat)
            is_exact = values < 1 - _FULL_LEVERAGE
            self.is_in_exact_cluster[members[is_exact.any(axis=1)]] = True
            self._blocks.append((members, values, vectors, is_exact))

    def contrast(self, coefficients: Values) -> Contrast | None:
        """Return the contrast with factors (P,) of the coefficients; None if it is not determined.

        A contrast that depends on a participant or cluster that is fitted exactly has a value, but
        no variance. It counts as undetermined. An example is the difference from a group of one
        participant, or of one family.
        """
        if self.residual_freedom < 1:
            return None
        if not np.allclose(coefficients @ self._projection, coefficients, atol=1e-8):
            return None
        # Weight of each participant's value in the estimate.
        shares = self._weighted @ (self._inverse_square @ coefficients)
        # The shares of each cluster, multiplied by the inverse square root of the covariances of
        # its residuals. This makes the robust variance unbiased if values are independent and have
        # the same variance.
        factors = np.zeros(len(shares))
        for members, values, vectors, is_exact in self._blocks:
            along = np.einsum("cst,cs->ct", vectors, shares[members])
            if np.abs(along[is_exact]).max(initial=0) > 1e-9 * np.abs(shares).max():
                return None
            along /= np.sqrt(np.where(is_exact, np.inf, values))
            factors[members] = np.einsum("cst,ct->cs", vectors, along)
        # The robust variance is a quadratic form of the values. If these are independent and have
        # the same variance, its mean and variance are those of a multiple of chi-squared with these
        # degrees of freedom.
        own = self.sum_clusters(factors**2)
        weighted = self.sum_clusters(factors[:, None] * self._weighted)
        of_fit = self._inverse_square @ (weighted.T @ weighted)
        fitted = np.einsum("cp,pq,cq->c", weighted, self._inverse_square, weighted)
        squares = (own**2 - 2 * own * fitted).sum() + np.trace(of_fit @ of_fit)
        variance = float((shares**2).sum())
        return Contrast(coefficients, factors, variance**2 / float(squares), variance)

    def sum_clusters(self, values: Values) -> Values:
        """Return the sums over each cluster of the participants' values, (N,) or (N, P)."""
        sums = np.zeros((self._clusters.max() + 1, *values.shape[1:]))
        np.add.at(sums, self._clusters, values)
        return sums


def _members_by_size(clusters: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Return the places of the members of all clusters: for each size S an array (clusters, S).

    `clusters` (N,) has the number of each participant's cluster.
    """
    sizes = np.bincount(clusters)
    members = np.argsort(clusters, kind="stable")
    size_of_each = sizes[clusters[members]]
    return [
        members[size_of_each == size].reshape(-1, size) for size in np.unique(sizes)
    ]


class LinearModel:
    """Least-squares fit of the participants' values (N,) on a design.

    `residual_sd` is the residual standard deviation and `r2` the share of explained variance; both
    are NaN if no residuals are left.
    """

    def __init__(self, values: Values, design: Design) -> None:
        # Imported here: it takes a second, and most commands fit no model.
        from statsmodels.regression.linear_model import WLS

        self.design = design
        with warnings.catch_warnings():
            # Without full rank some coefficients are not unique; `contrast` refuses those.
            warnings.simplefilter("ignore")
            self._fit = WLS(values, design.matrix, design.weights).fit()
        squares = float((self._fit.wresid**2).sum())
        smallest = _ROUNDING * float(np.abs(values).max())
        self._has_spread = design.residual_freedom > 0 and squares > smallest**2
        self.residual_sd = _UNKNOWN
        self.r2 = _UNKNOWN
        if self._has_spread:
            self.residual_sd = float(np.sqrt(squares / design.residual_freedom))
            self.r2 = float(self._fit.rsquared)

    @property
    def fitted(self) -> Values:
        """Expected value of each participant, (N,)."""
        return np.asarray(self._fit.fittedvalues)

    @property
    def studentised_residuals(self) -> Values:
        """Studentised residuals, (N,); NaN for a participant fitted exactly."""
        rest = 1 - self.design.leverage
        rest = np.where(self.design.is_fitted_exactly, np.nan, rest)
        return np.asarray(self._fit.wresid / (self.residual_sd * np.sqrt(rest)))

    def estimate(self, contrast: Contrast | None) -> Estimate:
        """Estimate a contrast of the model's design.

        All fields are NaN for a contrast of None (not determined), and if the residuals are 0.
        """
        if contrast is None or not self._has_spread:
            return Estimate()
        residuals = contrast.residual_factors * self._fit.wresid
        variance = float((self.design.sum_clusters(residuals) ** 2).sum())
        if not variance > 0:
            return Estimate()
        error = float(np.sqrt(variance))
        value = float(contrast.coefficients @ self._fit.params)
        freedom = contrast.freedom
        half = float(special.stdtrit(freedom, 1 - _TAIL)) * error
        t = value / error
        low, high = _noncentrality(t, freedom)
        in_sd = _small_sample(self.design.residual_freedom) / self.residual_sd
        return Estimate(
            value=value,
            low=value - half,
            high=value + half,
            g=value * in_sd,
            g_low=low * error * in_sd,
            g_high=high * error * in_sd,
            p=2 * float(special.stdtr(freedom, -abs(t))),
            error=error,
            freedom=freedom,
        )


def _small_sample(freedom: int) -> float:
    """Return Hedges' factor, which makes a standardised effect unbiased (Hedges, 1981)."""
    if freedom < 2:
        return _UNKNOWN
    ratio = exp(lgamma(freedom / 2) - lgamma((freedom - 1) / 2))
    return float(ratio / np.sqrt(freedom / 2))


def _noncentrality(t: float, freedom: float) -> tuple[float, float]:
    """Return the 95 % interval of the noncentrality of a t statistic; NaN for extreme ones."""
    if abs(t) > _MOST_T:
        return _UNKNOWN, _UNKNOWN
    # Mirrored, because scipy's function fails in the far tail of a negative t.
    low, high = special.nctdtrinc(freedom, [1 - _TAIL, _TAIL], abs(t))
    if t < 0:
        return -float(high), -float(low)
    return float(low), float(high)
