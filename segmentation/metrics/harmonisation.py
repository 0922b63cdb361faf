"""ComBat: takes the effects of sites away from measurements, and keeps what persons differ by.

Johnson, Li and Rabinovic, Biostatistics 8, 118 (2007); Fortin et al., NeuroImage 167, 104 (2018). A
measurement is a mean, what is explained by age, sex and group, and a residual; a site shifts and
stretches residuals. How much is estimated of each structure, and drawn towards what the site does
to all structures (empirical Bayes, with normal and inverse gamma priors).

Own code, as the packages that have it fail where a volume is not known, which here is usual: of
neuroCombat 0.2.12 one missing value makes every result undefined. On complete data the results are
equal (docs/notes/harmonisation.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import EvaluationError

Values = NDArray[np.float64]
Sites = NDArray[np.int64]

# A site's shift is known to 2 / sqrt(persons) standard deviations: of fewer persons, to no use.
FEWEST_AT_SITE = 10
# Where the iteration of shift and scale ends: in standard deviations, far below any rounding.
_SETTLED = 1e-10
_MOST_STEPS = 10_000


@dataclass(frozen=True)
class SiteEffects:
    """Holds what S sites do to K structures, and what persons without site effects have.

    `shift` and `scale` (S, K) are of residuals: the mean in standard deviations, and the factor of
    the standard deviation. `shift_alone` (S, K) is the shift without empirical Bayes. `mean` (K,),
    `slopes` (P, K) and `sd` (K,) say what is expected of P facts. What cannot be known is NaN.
    """

    shift: Values
    scale: Values
    shift_alone: Values
    mean: Values
    slopes: Values
    sd: Values

    def expected(self, facts: Values) -> Values:
        """What persons with these facts (N, P) have on average where sites do nothing: (N, K)."""
        return np.asarray(self.mean + facts @ self.slopes)

    def taken_away(self, values: Values, sites: Sites, facts: Values) -> Values:
        """The measurements (N, K) of persons at `sites` (N,), as they are without the sites."""
        expected = self.expected(facts)
        residuals = (values - expected) / self.sd
        restored = (residuals - self.shift[sites]) / self.scale[sites]
        return np.asarray(expected + self.sd * restored)


def site_effects(values: Values, sites: Sites, facts: Values) -> SiteEffects:
    """Estimate what each site does to measurements (N, K) of N persons.

    `sites` (N,) counts from 0, and `facts` (N, P) are kept: numbers, and 0 or 1 for what is either.
    Values may be NaN. Facts may not, and must not follow from sites (see `tells_apart`). Effects on
    a structure are not known if a site has fewer than `FEWEST_AT_SITE` values of it, or if nobody
    differs. EvaluationError where those on fewer than two structures are known.
    """
    count = int(sites.max()) + 1
    at_site = np.eye(count)[sites]
    design = np.hstack([at_site, facts])
    structures = values.shape[1]
    mean = np.full(structures, np.nan)
    slopes = np.full((facts.shape[1], structures), np.nan)
    sd = np.full(structures, np.nan)
    for place in range(structures):
        known = np.isfinite(values[:, place])
        of_sites = at_site[known].sum(0)
        if of_sites.min() < FEWEST_AT_SITE or not tells_apart(
            sites[known], facts[known]
        ):
            continue
        found, *_ = np.linalg.lstsq(design[known], values[known, place], rcond=None)
        residuals = values[known, place] - design[known] @ found
        # The sites' means count by the persons that they are of.
        mean[place] = of_sites @ found[:count] / of_sites.sum()
        slopes[:, place] = found[count:]
        spread = float(np.sqrt((residuals**2).mean()))
        if spread > 1e-9 * abs(mean[place]):
            sd[place] = spread

    standard = (values - mean - facts @ slopes) / sd
    shift = np.full((count, structures), np.nan)
    variance = np.full((count, structures), np.nan)
    shift_alone = np.full((count, structures), np.nan)
    usable = np.isfinite(sd)
    if usable.sum() < 2:
        raise EvaluationError(
            f"fewer than two structures have {FEWEST_AT_SITE} volumes at each site, and what a "
            "site does to one is learnt from the others",
            remedy="leave out sites with few persons, or do not harmonise",
        )
    for site in range(count):
        alone, drawn, squared = _drawn_together(standard[sites == site][:, usable])
        shift_alone[site, usable] = alone
        shift[site, usable] = drawn
        variance[site, usable] = squared
    return SiteEffects(shift, np.sqrt(variance), shift_alone, mean, slopes, sd)


def tells_apart(sites: Sites, facts: Values) -> bool:
    """Whether effects of sites (N,) and of facts (N, P) can be told apart.

    They cannot if a fact follows from the site and the other facts: if all patients are of one site
    that has nobody else.
    """
    design = np.hstack([np.eye(int(sites.max()) + 1)[sites], facts])
    return bool(np.linalg.matrix_rank(design) == design.shape[1])


def _drawn_together(residuals: Values) -> tuple[Values, Values, Values]:
    """Estimate means, posterior means and posterior variances, (K,) each, of a site's residuals.

    The residuals are (N, K). The priors are those of the site's K means and variances, by their
    moments.
    """
    known = np.isfinite(residuals).sum(0)
    means = np.nanmean(residuals, axis=0)
    variances = np.nanvar(residuals, axis=0, ddof=1)

    common_mean = means.mean()
    spread = means.var(ddof=1)
    middle = variances.mean()
    spread_of_variances = variances.var(ddof=1)
    # The inverse gamma distribution with these moments; multiplied by the second, which may be 0.
    certainty = middle**2 + spread_of_variances
    prior = middle * certainty

    # Each of the two depends on the other.
    drawn_mean = means
    drawn_variance = variances
    for _ in range(_MOST_STEPS):
        before = drawn_mean, drawn_variance
        weight = known * spread
        drawn_mean = (weight * means + drawn_variance * common_mean) / (
            weight + drawn_variance
        )
        squares = np.nansum((residuals - drawn_mean) ** 2, axis=0)
        drawn_variance = (prior + spread_of_variances * squares / 2) / (
            certainty + spread_of_variances * known / 2
        )
        moved = np.abs(np.subtract((drawn_mean, drawn_variance), before))
        if moved.max() < _SETTLED:
            break
    return means, drawn_mean, drawn_variance
