"""Takes the effects of sites away from a group's volumes, and measures them before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from trinat.segmentation.errors import EvaluationError
from trinat.segmentation.metrics.harmonisation import (
    FEWEST_AT_SITE,
    site_effects,
    tells_apart,
)
from trinat.segmentation.report.page import count

_Values = NDArray[np.float64]

# What is kept, if persons differ by it.
_KEPT_FACTS = ("age", "sex", "group")


@dataclass(frozen=True)
class Harmonisation:
    """Says how the effects of sites were taken away from the values of a `metric`.

    `kept` are the facts of persons whose effects are kept, `persons` the number at each site, and
    `without` the number of scans that lack a site or one of these facts: they have no harmonised
    volume.

    `effects` has a row for each structure and site: `persons`, and their `mean_before` and
    `mean_after`; how far the site is from all sites where the kept facts are equal, in percent of
    the structure's mean (`percent_before` and `percent_after`); and what ComBat took away, `shift`
    in standard deviations and the factor `scale`. NaN where a structure was not harmonised.
    """

    metric: str
    kept: tuple[str, ...]
    persons: Mapping[str, int]
    without: int
    effects: pd.DataFrame


def harmonise(
    frame: pd.DataFrame, metric: str
) -> tuple[dict[str, _Values], Harmonisation]:
    """Take the effects of sites away from one metric: values (N,) by structure, and how.

    `frame` is that of a `Cohort`. Effects are estimated of persons, who count once at a site, and
    taken away from each scan. EvaluationError with fewer than two sites, with too few persons at a
    site, and where the sites' effects cannot be told from what is to be kept.
    """
    rows = frame[frame["metric"] == metric]
    values = rows.pivot(index="scan", columns="structure", values="value")
    values = values[rows["structure"].unique()]
    facts = rows.groupby("scan")[["subject", "site", *_KEPT_FACTS]].first()
    kept, of_scans = _kept_facts(facts)
    is_known = (facts["site"] != "") & of_scans.notna().all(axis=1)
    known = facts[is_known]

    of_persons = [known["subject"], known["site"]]
    means = values[is_known].groupby(of_persons).mean()
    facts_of_persons = of_scans[is_known].groupby(of_persons).mean().to_numpy(float)
    numbers, names = pd.factorize(means.index.get_level_values("site"), sort=True)
    at_site = dict(zip(names, np.bincount(numbers), strict=True))
    _check_sites(at_site, facts["site"], kept)
    _check_kept(numbers, facts_of_persons, list(of_scans.columns))

    before = means.to_numpy(float)
    effects = site_effects(before, numbers, facts_of_persons)
    after = effects.taken_away(before, numbers, facts_of_persons)
    remaining = site_effects(after, numbers, facts_of_persons)
    sites_of_scans = pd.Index(names).get_indexer(known["site"])
    harmonised = np.full(values.shape, np.nan)
    harmonised[is_known.to_numpy()] = effects.taken_away(
        values[is_known].to_numpy(float),
        sites_of_scans,
        of_scans[is_known].to_numpy(float),
    )

    percent = 100 * effects.sd / effects.mean
    percent_remaining = 100 * remaining.sd / remaining.mean
    table = []
    for place, structure in enumerate(values.columns):
        for site, name in enumerate(names):
            here = numbers == site
            table.append(
                {
                    "structure": structure,
                    "site": name,
                    "persons": int(np.isfinite(before[here, place]).sum()),
                    "mean_before": _mean(before[here, place]),
                    "mean_after": _mean(after[here, place]),
                    "percent_before": effects.shift_alone[site, place] * percent[place],
                    "percent_after": remaining.shift_alone[site, place]
                    * percent_remaining[place],
                    "shift": effects.shift[site, place],
                    "scale": effects.scale[site, place],
                }
            )
    by_structure = {
        str(structure): harmonised[:, place]
        for place, structure in enumerate(values.columns)
    }
    without = int((~is_known).sum())
    done = Harmonisation(metric, kept, at_site, without, pd.DataFrame(table))
    return by_structure, done


def _kept_facts(facts: pd.DataFrame) -> tuple[tuple[str, ...], pd.DataFrame]:
    """Choose the facts of scans to keep, and write them as numbers, (N, P); NaN if not known.

    A fact that is the same for all who have it has no effect to keep. Of words there is a column of
    0 and 1 for each but the first.
    """
    kept = []
    columns = {}
    for fact in _KEPT_FACTS:
        of_fact = facts[fact].replace("", np.nan)
        found = sorted(of_fact.dropna().unique())
        if len(found) < 2:
            continue
        kept.append(fact)
        if fact == "age":
            columns[fact] = of_fact
            continue
        for word in found[1:]:
            columns[f"{fact} {word}"] = (of_fact == word).where(of_fact.notna())
    return tuple(kept), pd.DataFrame(columns, index=facts.index, dtype=float)


def _check_sites(
    persons: Mapping[str, int], sites: pd.Series, kept: Sequence[str]
) -> None:
    """Raise EvaluationError unless there are two sites or more, each with persons enough."""
    names = sorted(set(sites) - {""})
    if len(names) < 2:
        raise EvaluationError(
            f"{count(len(names), 'site')} in the table of participants, and two are needed to "
            "harmonise",
            remedy="give --participants with a column site, or leave --harmonise out",
        )
    with_facts = ""
    if kept:
        with_facts = f" of known {' and '.join(kept)}"
    for name in names:
        number = persons.get(name, 0)
        if number < FEWEST_AT_SITE:
            raise EvaluationError(
                f"site {name} has {count(number, 'person')}{with_facts}, and {FEWEST_AT_SITE} are "
                "needed to harmonise",
                remedy="leave the site's scans out, or join sites with one scanner and protocol",
            )


def _check_kept(sites: NDArray[np.int64], facts: _Values, names: Sequence[str]) -> None:
    """Raise EvaluationError if a fact to be kept follows from the site and the others."""
    for place, name in enumerate(names, start=1):
        if not tells_apart(sites, facts[:, :place]):
            raise EvaluationError(
                f"the effect of {name} cannot be told from those of sites",
                remedy="harmonise sites that each have persons of several kinds",
            )


def _mean(values: _Values) -> float:
    """Average those that are known; NaN of none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")
