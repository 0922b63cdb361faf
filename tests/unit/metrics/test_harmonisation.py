"""ComBat: cases worked out by hand, values that are not known, and the reference implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trinat.segmentation.errors import EvaluationError
from trinat.segmentation.metrics.harmonisation import site_effects, tells_apart

# Ten persons at each of two sites, who differ alike: their variance is 1, or 10 / 9 of ten.
RESIDUALS = np.tile([-1.0, 1.0], 10)
SITES = np.repeat([0, 1], 10)
NO_FACTS = np.empty((20, 0))


def at_sites(*shifts: float) -> np.ndarray:
    """Volumes of a structure a shift, in standard deviations of 10, up at one site, else down."""
    side = np.where(SITES == 0, 1, -1)
    columns = [100 + 10 * (RESIDUALS + side * shift) for shift in shifts]
    return np.stack(columns, axis=1)


def test_an_effect_that_all_structures_share_is_taken_away_whole() -> None:
    volumes = at_sites(0.5, 0.5)
    effects = site_effects(volumes, SITES, NO_FACTS)
    assert effects.shift == pytest.approx(np.array([[0.5, 0.5], [-0.5, -0.5]]))
    assert effects.scale == pytest.approx(np.full((2, 2), np.sqrt(10 / 9)))
    expected = 100 + 10 * RESIDUALS * np.sqrt(9 / 10)
    found = effects.taken_away(volumes, SITES, NO_FACTS)
    assert found[:, 0] == pytest.approx(expected)
    assert found[:, 1] == pytest.approx(expected)


def test_effects_are_drawn_towards_those_on_other_structures() -> None:
    """0 and 2 have mean 1 and variance 2: 0 becomes 10/9 / (10 * 2 + 10/9), 2 as much less."""
    effects = site_effects(at_sites(0, 2), SITES, NO_FACTS)
    drawn = (10 / 9) / (20 + 10 / 9)
    assert effects.shift_alone[0] == pytest.approx([0, 2])
    assert effects.shift[0] == pytest.approx([drawn, 2 - drawn])
    assert effects.shift[1] == pytest.approx([-drawn, drawn - 2])


def test_what_is_kept_stays() -> None:
    """Every second pair of persons is larger by 30; there is as many of them at both sites."""
    larger = np.tile([0.0, 0.0, 1.0, 1.0], 5)[:, None]
    effects = site_effects(at_sites(0.5, 0.5) + 30 * larger, SITES, larger)
    assert effects.slopes == pytest.approx(np.array([[30.0, 30.0]]))
    assert effects.mean == pytest.approx([100, 100])


def test_a_volume_that_is_not_known_costs_no_other() -> None:
    volumes = at_sites(0.5, 0.4, 0.3)
    sites = np.append(SITES, 1)
    facts = np.empty((21, 0))
    more = np.vstack([volumes, [np.nan, np.nan, 99]])
    effects = site_effects(more, sites, facts)
    # Of 20 persons, as without the 21st.
    assert effects.mean[:2] == pytest.approx([100, 100])
    assert np.isnan(effects.taken_away(more, sites, facts)).sum() == 2


def test_a_structure_that_a_site_has_too_few_of_is_left_alone() -> None:
    volumes = at_sites(0.5, 0.4, 0.3)
    volumes[0, 0] = np.nan
    found = site_effects(volumes, SITES, NO_FACTS)
    assert np.isnan(found.shift[:, 0]).all()
    assert np.isfinite(found.shift[:, 1:]).all()


def test_one_structure_alone_is_refused() -> None:
    constant = np.full(20, 7.0)
    volumes = np.stack([at_sites(0.5)[:, 0], constant], axis=1)
    with pytest.raises(
        EvaluationError, match=r"fewer than two structures have 10 .*: leave out"
    ):
        site_effects(volumes, SITES, NO_FACTS)


def test_patients_of_one_site_alone_cannot_be_told_from_it() -> None:
    patients = (SITES == 1).astype(float)[:, None]
    assert not tells_apart(SITES, patients)
    patients[0] = 1
    assert tells_apart(SITES, patients)


@pytest.mark.parametrize(
    "persons", [(40, 60, 30), (200, 50), (25, 25, 25, 25, 25)], ids=str
)
def test_neurocombat(persons: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal to 1e-6 as it is, and to 1e-11 if it does not stop at the fourth digit."""
    theirs: Any = pytest.importorskip("neuroCombat.neuroCombat")
    pandas: Any = pytest.importorskip("pandas")
    draw = np.random.default_rng(len(persons))
    sites = np.repeat(range(len(persons)), persons)
    count = len(sites)
    age = draw.integers(20, 80, count)
    sex = draw.integers(0, 2, count)
    group = draw.integers(0, 2, count)
    facts = np.stack([sex, group, age], axis=1).astype(float)
    mean = draw.uniform(500, 20_000, 32)
    slopes = draw.normal(0, 0.02, (3, 32)) * mean / [[1], [1], [20]]
    spread = 0.1 * mean * draw.uniform(0.8, 1.2, (len(persons), 32))
    volumes = mean + facts @ slopes + spread[sites] * draw.normal(size=(count, 32))
    volumes += (0.1 * mean * draw.normal(size=(len(persons), 32)))[sites]
    ours = site_effects(volumes, sites, facts).taken_away(volumes, sites, facts)

    table = pandas.DataFrame({"site": sites, "sex": sex, "group": group, "age": age})
    for settled, equal in ((1e-4, 1e-6), (1e-12, 1e-11)):
        monkeypatch.setattr(theirs.it_sol, "__defaults__", (settled,))
        found = theirs.neuroCombat(
            volumes.T,
            table,
            "site",
            categorical_cols=["sex", "group"],
            continuous_cols=["age"],
        )
        assert ours == pytest.approx(found["data"].T, rel=equal, abs=0)
