"""ComBat harmonisation: removes the effects of sites from a group's volumes, and measures them.

Johnson, Li and Rabinovic, Biostatistics 8, 118 (2007); Fortin et al., NeuroImage 167, 104 (2018). A
measurement is modelled as a mean, the effects of age, sex and group, and a residual; a site shifts
and scales residuals. Shift and scale are estimated for each structure, and shrunk towards the
site's effects on all structures (empirical Bayes, with normal and inverse gamma priors).

This is our own code because existing packages fail if a volume is missing, which is usual here: in
neuroCombat 0.2.12 one missing value makes every result undefined. On complete data the results are
equal (docs/notes/harmonisation.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from trinat.pipelines.common.text import count
from trinat.pipelines.study.participants import LEAST_KNOWN
from trinat.segmentation.errors import EvaluationError

Values = NDArray[np.float64]
Sites = NDArray[np.int64]

# The 95 % interval of a site's shift is about ±2 / sqrt(participants) standard deviations: with
# fewer participants the estimate is useless.
FEWEST_AT_SITE = 10
# Tolerance at which the iteration of shift and scale ends, in standard deviations: far below any
# rounding.
_SETTLED = 1e-10
_MOST_STEPS = 10_000

# Covariates whose effects are kept, if participants differ by them.
_KEPT_COVARIATES = ("age", "sex", "group")


@dataclass(frozen=True)
class Harmonisation:
    """Description of how the effects of sites were removed from the values of a metric.

    - `kept` are the covariates whose effects on the values are kept: age, sex or group.
    - `participants` is the number of participants at each site.
    - `without` is the number of scans that lack a site or one of these covariates: they have no
      harmonised volume.

    `effects` has a row for each structure and site, with these columns. They are NaN if the
    structure was not harmonised.

    - `participants`, and the means of their values, `mean_before` and `mean_after`
    - `percent_before` and `percent_after`: the difference of the site from the mean of all sites
      for equal kept covariates, in percent of the structure's mean
    - `shift`, in standard deviations, and `scale`, a factor: the effects that ComBat removed
    """

    kept: tuple[str, ...]
    participants: Mapping[str, int]
    without: int
    effects: pd.DataFrame

    @property
    def not_harmonised(self) -> list[str]:
        """Structures that have no harmonised volume."""
        is_known = self.effects.groupby("structure", sort=False)["shift"].count() > 0
        return list(is_known.index[~is_known])


def values_by_scan(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the values of one metric with a row for each scan and a column for each structure.

    `frame` is the frame of a `Cohort`; scans and structures keep its order.
    """
    rows = frame[frame["metric"] == metric]
    values = rows.pivot(index="scan", columns="structure", values="value")
    return values[rows["structure"].unique()]


def harmonise(frame: pd.DataFrame, metric: str) -> tuple[pd.DataFrame, Harmonisation]:
    """Remove the effects of sites from one metric; return the new values and a description.

    `frame` is the frame of a `Cohort`. The first result is a table of `values_by_scan`; NaN for
    scans without a site or covariate. Effects are estimated from participants, who count once at a
    site, and are removed from each scan. EvaluationError is raised for fewer than two sites, for
    too few participants at a site, and if the effects of sites cannot be separated from those of
    age, sex and group.
    """
    values = values_by_scan(frame, metric)
    by_scan = frame[frame["metric"] == metric].groupby("scan")
    covariates = by_scan[["subject", "site", *_KEPT_COVARIATES]].first()
    design = refuse_unharmonisable(covariates)
    numbers = design.sites
    is_known = design.is_known
    of_known = design.of_scans[is_known]
    known = covariates[is_known]
    of_participants = [known["subject"], known["site"]]
    means = values[is_known].groupby(of_participants).mean()
    covariates_of_participants = _of_measured(
        of_known, values[is_known], of_participants
    )

    before = means.to_numpy(float)
    effects = site_effects(before, numbers, covariates_of_participants)
    after = effects.remove_site_effects(before, numbers, covariates_of_participants)
    remaining = site_effects(after, numbers, covariates_of_participants)
    sites_of_scans = known["site"].map(list(design.participants).index).to_numpy()
    harmonised = pd.DataFrame(np.nan, values.index, values.columns)
    harmonised.loc[is_known] = effects.remove_site_effects(
        values[is_known].to_numpy(float), sites_of_scans, of_known.to_numpy(float)
    )

    # Relative to the expected volume of these participants, because `mean` alone is the volume at
    # age 0.
    percent = 100 * effects.sd / effects.expected(covariates_of_participants).mean(0)
    percent_remaining = (
        100 * remaining.sd / remaining.expected(covariates_of_participants).mean(0)
    )
    table = []
    for place, structure in enumerate(values.columns):
        for site, name in enumerate(design.participants):
            here = numbers == site
            table.append(
                {
                    "structure": structure,
                    "site": name,
                    "participants": int(np.isfinite(before[here, place]).sum()),
                    "mean_before": _mean(before[here, place]),
                    "mean_after": _mean(after[here, place]),
                    "percent_before": effects.shift_alone[site, place] * percent[place],
                    "percent_after": remaining.shift_alone[site, place]
                    * percent_remaining[place],
                    "shift": effects.shift[site, place],
                    "scale": effects.scale[site, place],
                }
            )
    without = int((~is_known).sum())
    done = Harmonisation(design.kept, design.participants, without, pd.DataFrame(table))
    return harmonised, done


def _of_measured(
    of_scans: pd.DataFrame, values: pd.DataFrame, participants: list[pd.Series]
) -> Values:
    """Return the covariates of M participants for each of K structures, (M, P, K).

    They are means over the scans that have a value of the structure, or over all scans if none has.
    `of_scans` (N, P) and `values` (N, K) have a row for each scan; `participants` are the columns
    that together identify the participant at a site.
    """
    of_all = of_scans.groupby(participants).mean()
    of_structures = []
    for structure in values.columns:
        measured = of_scans.where(values[structure].notna())
        means = measured.groupby(participants).mean().fillna(of_all)
        of_structures.append(means.to_numpy(float))
    return np.stack(of_structures, axis=2)


@dataclass(frozen=True)
class _Design:
    """Design matrices of the covariates whose effects are kept, with the sites of the participants.

    `kept` are the names of the covariates. `of_scans` (N, P) has their values for each scan.
    `is_known` (N,) marks the scans that have a site and all covariates. `participants` has the
    number of participants at each site, and `sites` (M,) the site of each participant at a site, as
    an index in `participants`.
    """

    kept: tuple[str, ...]
    of_scans: pd.DataFrame
    is_known: pd.Series
    sites: Sites
    participants: dict[str, int]


def refuse_unharmonisable(covariates: pd.DataFrame) -> _Design:
    """Check that the effects of sites can be estimated, and return the matrices for this.

    Raises EvaluationError if there are fewer than two sites, if a site has too few participants, or
    if the effects of sites cannot be separated from those of age, sex and group. `covariates` has a
    row for each scan, with the columns subject, site, age, sex and group.
    """
    kept, of_scans = _kept_covariates(covariates)
    is_known = (covariates["site"] != "") & of_scans.notna().all(axis=1)
    known = covariates[is_known]
    # A participant counts once at each site.
    with_site = of_scans[is_known].assign(participants=1.0)
    of_participants = with_site.groupby([known["subject"], known["site"]]).mean()
    sites, names = pd.factorize(
        of_participants.index.get_level_values("site"), sort=True
    )
    columns = of_participants.drop(columns="participants").to_numpy(float)
    at_site = dict(zip(names, np.bincount(sites), strict=True))
    _check_sites(at_site, covariates["site"], kept)
    for place, name in enumerate(of_scans.columns, start=1):
        if not tells_apart(sites, columns[:, :place]):
            raise EvaluationError(
                f"the effect of {name} cannot be told from those of sites",
                remedy="harmonise sites that each have participants of several kinds",
            )
    return _Design(kept, of_scans, is_known, sites, at_site)


def _kept_covariates(covariates: pd.DataFrame) -> tuple[tuple[str, ...], pd.DataFrame]:
    """Return the names of the covariates to keep, and their values for N scans as numbers, (N, P).

    Unknown values are NaN. A covariate that is the same for all who have it has no effect to keep;
    age and sex are not kept if few scans have them.
    A categorical covariate has a column of 0 and 1 for each category but the first. EvaluationError
    if there is only one group and some scans have none.
    """
    kept = []
    columns = {}
    for covariate in _KEPT_COVARIATES:
        of_covariate = covariates[covariate].replace("", np.nan)
        found = sorted(of_covariate.dropna().unique())
        if covariate == "group" and len(found) == 1 and of_covariate.isna().any():
            raise EvaluationError(
                f"{count(int(of_covariate.notna().sum()), 'scan')} with the group {found[0]}, and "
                f"{int(of_covariate.isna().sum())} without a group",
                remedy="name the group of all, so that what they differ by can be kept",
            )
        is_rare = covariate != "group" and of_covariate.notna().mean() < LEAST_KNOWN
        if len(found) < 2 or is_rare:
            continue
        kept.append(covariate)
        if covariate == "age":
            columns[covariate] = of_covariate
            continue
        for word in found[1:]:
            columns[f"{covariate} {word}"] = (of_covariate == word).where(
                of_covariate.notna()
            )
    return tuple(kept), pd.DataFrame(columns, index=covariates.index, dtype=float)


def _check_sites(
    participants: Mapping[str, int], sites: pd.Series, kept: Sequence[str]
) -> None:
    """Raise EvaluationError unless there are two or more sites, each with enough participants.

    `participants` maps a site to its number of participants, counting only those for whom all
    covariates in `kept` are known. `sites` has the site of each scan, "" if unknown.
    """
    names = sorted(set(sites) - {""})
    if len(names) < 2:
        raise EvaluationError(
            f"{count(len(names), 'site')} in the participants table, and two are needed to "
            "harmonise",
            remedy="give --participants with a column site, or leave --harmonise out",
        )
    with_covariates = ""
    if kept:
        with_covariates = f" of known {' and '.join(kept)}"
    for name in names:
        number = participants.get(name, 0)
        if number < FEWEST_AT_SITE:
            raise EvaluationError(
                f"site {name} has {count(number, 'participant')}{with_covariates}, and "
                f"{FEWEST_AT_SITE} are needed to harmonise",
                remedy="leave the site's scans out, or join sites with one scanner and protocol",
            )


def _mean(values: Values) -> float:
    """Return the mean of the values that are finite; NaN if there are none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


@dataclass(frozen=True)
class SiteEffects:
    """Effects of S sites on K structures, and the values expected without them.

    - `shift` and `scale` (S, K) describe the residuals at a site: their mean in standard
      deviations, and the factor of their standard deviation. `shift_alone` (S, K) is the shift
      without empirical Bayes.
    - `mean` (K,), `slopes` (P, K) and `sd` (K,) give the values expected for P covariates, and the
      standard deviation of residuals.

    Unknown values are NaN.
    """

    shift: Values
    scale: Values
    shift_alone: Values
    mean: Values
    slopes: Values
    sd: Values

    def expected(self, covariates: Values) -> Values:
        """Return the values of K structures, (N, K), to expect without the effects of sites.

        `covariates` are those of N scans or participants, (N, P), or for each structure, (N, P, K).
        """
        return np.asarray(self.mean + _effects_of(covariates, self.slopes))

    def remove_site_effects(
        self, values: Values, sites: Sites, covariates: Values
    ) -> Values:
        """Return the values of K structures, (N, K), without the effects of sites.

        `values` (N, K) are the measured values. `sites` (N,) has the site of each row, counted from
        0. `covariates` are those of `expected`.
        """
        expected = self.expected(covariates)
        residuals = (values - expected) / self.sd
        restored = (residuals - self.shift[sites]) / self.scale[sites]
        return np.asarray(expected + self.sd * restored)


def site_effects(values: Values, sites: Sites, covariates: Values) -> SiteEffects:
    """Estimate the effects of each site on the values (N, K) of N participants.

    `sites` (N,) counts from 0. The effects of `covariates` are kept: (N, P), or (N, P, K) if they
    differ between structures; categories are columns of 0 and 1. Values may be NaN; covariates may
    not, and they must be separable from sites (see `tells_apart`). The effects on a structure are
    NaN if a site has fewer than `FEWEST_AT_SITE` values of it, or if all residuals are 0.
    EvaluationError if the effects on fewer than two structures are known.
    """
    count = int(sites.max()) + 1
    at_site = np.eye(count)[sites]
    structures = values.shape[1]
    mean = np.full(structures, np.nan)
    slopes = np.full((covariates.shape[1], structures), np.nan)
    sd = np.full(structures, np.nan)
    for place in range(structures):
        known = np.isfinite(values[:, place])
        of_sites = at_site[known].sum(0)
        of_structure = covariates[known]
        if of_structure.ndim == 3:
            of_structure = of_structure[:, :, place]
        if of_sites.min() < FEWEST_AT_SITE or not tells_apart(
            sites[known], of_structure
        ):
            continue
        design = np.hstack([at_site[known], of_structure])
        found, *_ = np.linalg.lstsq(design, values[known, place], rcond=None)
        residuals = values[known, place] - design @ found
        # The sites' means are weighted by their numbers of participants.
        mean[place] = of_sites @ found[:count] / of_sites.sum()
        slopes[:, place] = found[count:]
        spread = float(np.sqrt((residuals**2).mean()))
        if spread > 1e-9 * abs(mean[place]):
            sd[place] = spread

    standard = (values - mean - _effects_of(covariates, slopes)) / sd
    shift = np.full((count, structures), np.nan)
    variance = np.full((count, structures), np.nan)
    shift_alone = np.full((count, structures), np.nan)
    usable = np.isfinite(sd)
    if usable.sum() < 2:
        raise EvaluationError(
            f"fewer than two structures have {FEWEST_AT_SITE} volumes at each site, and what a "
            "site does to one is learnt from the others",
            remedy="leave out sites with few participants, or do not harmonise",
        )
    for site in range(count):
        alone, drawn, squared = _posterior_effects(standard[sites == site][:, usable])
        shift_alone[site, usable] = alone
        shift[site, usable] = drawn
        variance[site, usable] = squared
    return SiteEffects(shift, np.sqrt(variance), shift_alone, mean, slopes, sd)


def _effects_of(covariates: Values, slopes: Values) -> Values:
    """Return the effects of covariates on K structures, (N, K), by their slopes (P, K).

    `covariates` are (N, P), or (N, P, K) if they differ between structures.
    """
    if covariates.ndim == 2:
        return np.asarray(covariates @ slopes)
    return np.asarray(np.einsum("npk,pk->nk", covariates, slopes))


def tells_apart(sites: Sites, covariates: Values) -> bool:
    """Return True if effects of sites (N,) and of covariates (N, P) can be separated.

    `sites` counts from 0. Effects cannot be separated if a covariate is determined by the site and
    the other covariates, for example if all patients, and no other participants, are of one site.
    """
    design = np.hstack([np.eye(int(sites.max()) + 1)[sites], covariates])
    return bool(np.linalg.matrix_rank(design) == design.shape[1])


def _posterior_effects(residuals: Values) -> tuple[Values, Values, Values]:
    """Estimate the shift and the variance of one site's residuals, by empirical Bayes.

    `residuals` (N, K) are those of N participants in K structures, in standard deviations; NaN if
    unknown. Returns three arrays (K,): the means, the means shrunk towards those of the other
    structures, and the variances shrunk in the same way. The priors are fitted to the K means and
    variances by the method of moments.
    """
    known = np.isfinite(residuals).sum(0)
    means = np.nanmean(residuals, axis=0)
    variances = np.nanvar(residuals, axis=0, ddof=1)

    common_mean = means.mean()
    spread = means.var(ddof=1)
    middle = variances.mean()
    spread_of_variances = variances.var(ddof=1)
    # Parameters of the inverse gamma distribution with these moments, multiplied by
    # `spread_of_variances`, which may be 0.
    certainty = middle**2 + spread_of_variances
    prior = middle * certainty

    # Iterate, because mean and variance depend on each other.
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
