"""How much of the bias between simulated sites harmonisation takes away, by persons at a site.

    scripts/bench sites [STUDIES]

docs/study.md has the result, docs/notes/harmonisation.md says how it is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from trinat.pipelines.report.harmonised import FEWEST_AT_SITE, site_effects

__all__ = ["Study", "run"]

Values = NDArray[np.float64]

_PERSONS = (10, 15, 20, 30, 50, 100, 200)
_EFFECTS = (0.06, 0.1)  # of scanners: a share of a structure's mean
_STRUCTURES = 32


@dataclass(frozen=True)
class Study:
    """Persons at sites: their volumes with and without the scanners' effects, (N, K) each.

    `facts` are sex, group and age; `mean` and `loss` (K,) are a structure's mean, and what patients
    lack of it.
    """

    sites: NDArray[np.int64]
    facts: Values
    clean: Values
    seen: Values
    mean: Values
    loss: Values

    @classmethod
    def draw(cls, seed: int, persons: int, effect: float, sites: int = 3) -> Study:
        """Sites with as many persons, who are older and more often patients from site to site."""
        draw = np.random.default_rng(seed)
        at_site = np.repeat(np.arange(sites), persons)
        count = len(at_site)
        age = np.round(draw.uniform(20, 80, count) + 5 * at_site)
        sex = draw.integers(0, 2, count)
        group = draw.random(count) < np.linspace(0.3, 0.6, sites)[at_site]
        facts = np.stack([sex, group, age], axis=1).astype(float)

        mean = np.exp(draw.uniform(np.log(500), np.log(250_000), _STRUCTURES))
        spread = draw.uniform(0.08, 0.15, _STRUCTURES) * mean
        of_age = -draw.uniform(0, 0.004, _STRUCTURES) * mean
        of_sex = draw.uniform(0, 0.08, _STRUCTURES) * mean
        loss = draw.uniform(0.05, 0.1, _STRUCTURES) * mean
        shift = draw.normal(0, effect, (sites, _STRUCTURES)) * mean
        stretch = np.exp(draw.normal(0, 0.15, (sites, _STRUCTURES)))

        expected = mean + facts @ np.stack([of_sex, -loss, of_age])
        own = spread * draw.normal(size=(count, _STRUCTURES))
        seen = expected + own * stretch[at_site] + (shift - shift.mean(0))[at_site]
        return cls(at_site, facts, expected + own, seen, mean, loss)

    def bias(self, volumes: Values) -> float:
        """The mean distance of two sites by what was done to their volumes, a share of the mean."""
        done = (volumes - self.clean) / self.mean
        of_sites = [done[self.sites == site].mean(0) for site in np.unique(self.sites)]
        pairs = [np.abs(one - other).mean() for one, other in combinations(of_sites, 2)]
        return float(np.mean(pairs))

    def effect_of_group(self, volumes: Values) -> float:
        """What patients lack by a regression, as a share of what they do lack."""
        design = np.hstack([np.ones((len(volumes), 1)), self.facts])
        slopes, *_ = np.linalg.lstsq(design, volumes, rcond=None)
        return float((-slopes[2] / self.loss).mean())

    def harmonised(self) -> Values:
        """The volumes as `trinat report` harmonises them."""
        effects = site_effects(self.seen, self.sites, self.facts)
        return effects.taken_away(self.seen, self.sites, self.facts)


def run(studies: str = "40") -> None:
    print(f"{studies} studies of three sites; at least {FEWEST_AT_SITE} persons a site")
    print("| persons | effect | bias falls by | least | group | SD | from clean |")
    print("|---|---|---|---|---|---|---|")
    for persons in _PERSONS:
        for effect in _EFFECTS:
            falls = []
            shares = []
            distances = []
            for seed in range(int(studies)):
                study = Study.draw(seed, persons, effect)
                harmonised = study.harmonised()
                falls.append(1 - study.bias(harmonised) / study.bias(study.seen))
                share = study.effect_of_group(harmonised)
                shares.append(share)
                distances.append(abs(share - study.effect_of_group(study.clean)))
            print(
                f"| {persons} | {effect:.0%} | {np.mean(falls):.0%} | {min(falls):.0%} "
                f"| {np.mean(shares):.3f} | {np.std(shares):.3f} "
                f"| {np.mean(distances):.3f} |",
                flush=True,
            )
