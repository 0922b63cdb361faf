"""Volumes without site effects: known effects, refusals, and the page.

ComBat itself: cases worked out by hand, missing values, and the reference implementation.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from helpers.pages import rows_of

from trinat.pipelines.report.cohort import Cohort, Scan, Section, cohort_of
from trinat.pipelines.report.cohort_page import cohort_drawings, cohort_page
from trinat.pipelines.report.harmonised import site_effects, tells_apart
from trinat.segmentation.errors import EvaluationError
from trinat.segmentation.labels.scheme import load_scheme

pytestmark = pytest.mark.usefixtures("without_figures")

pytestmark = pytest.mark.usefixtures("without_figures")

SCHEME = load_scheme("quicknat33")
NAMES = SCHEME.names[1:]
MEANS = np.linspace(1_000, 20_000, len(NAMES))


def study(
    participants: int, *, effect: float = 0.1, loss: float = 0.08
) -> tuple[list[Scan], np.ndarray]:
    """Return scans of three sites, and their volumes (N, K) before scanner effects.

    A scanner shifts each structure by `effect` of its mean, and scales the differences between
    participants. Patients have lost a share of every structure.
    """
    draw = np.random.default_rng(3)
    sites = np.repeat(range(3), participants)
    count = len(sites)
    patient = draw.random(count) < np.array([0.3, 0.5, 0.6])[sites]
    age = np.round(draw.uniform(20, 80, count))
    spread = 0.1 * draw.normal(size=(count, len(NAMES)))
    expected = 1 - 0.002 * (age - 50) - loss * patient
    stretch = np.exp(draw.normal(0, 0.15, (3, len(NAMES))))[sites]
    shift = effect * draw.normal(size=(3, len(NAMES)))[sites]
    clean = (expected[:, None] + spread) * MEANS
    seen = (expected[:, None] + spread * stretch + shift) * MEANS
    scans = [
        Scan(
            f"sub-{number}",
            "",
            dict(zip(NAMES, seen[number], strict=True)),
            sex="FM"[number % 2],
            age=float(age[number]),
            site=f"site {'ABC'[site]}",
            group="patient" if patient[number] else "control",
        )
        for number, site in enumerate(sites)
    ]
    return scans, clean


def values_of(cohort: Cohort, metric: str) -> np.ndarray:
    """Return one metric of all scans and structures, (N, K)."""
    rows = cohort.frame[cohort.frame["metric"] == metric]
    return rows["value"].to_numpy().reshape(len(cohort.scans), len(NAMES))


def test_known_effects_of_scanners_fall_by_80_percent_and_patients_stay_as_they_are() -> (
    None
):
    scans, clean = study(100)
    cohort = cohort_of(scans, SCHEME, harmonising=True)
    sites = np.repeat(range(3), 100)

    def bias(volumes: np.ndarray) -> float:
        """Return the mean distance of two sites that scanners, or harmonisation, have caused."""
        of_sites = [
            ((volumes - clean) / MEANS)[sites == site].mean(0) for site in (0, 1, 2)
        ]
        return float(
            np.mean([np.abs(a - b).mean() for a, b in combinations(of_sites, 2)])
        )

    def loss(volumes: np.ndarray) -> float:
        """Return the mean share of a structure that patients lack, given age and group."""
        patient = [scan.group == "patient" for scan in scans]
        age = [scan.age for scan in scans]
        design = np.stack([np.ones(300), np.array(age, float), patient], axis=1)
        slopes, *_ = np.linalg.lstsq(design, volumes / MEANS, rcond=None)
        return float(-slopes[2].mean())

    before = values_of(cohort, "volume")
    after = values_of(cohort, "harmonised_volume")
    assert bias(after) < 0.2 * bias(before)
    assert loss(after) == pytest.approx(0.08, rel=0.1)


def test_measured_volumes_stay_and_harmonised_ones_are_compared() -> None:
    scans, _ = study(12)
    plain = cohort_of(scans, SCHEME)
    cohort = cohort_of(scans, SCHEME, harmonising=True)
    assert (values_of(cohort, "volume") == values_of(plain, "volume")).all()
    assert cohort.compared == "harmonised_volume"
    z = cohort.frame.groupby("metric")["z"].count()
    assert (z["volume"], z["harmonised_volume"]) == (0, 36 * 32)


def test_a_participant_with_two_scans_counts_once_and_both_are_harmonised_alike() -> (
    None
):
    scans, _ = study(12)
    again = replace(scans[0], session="ses-2")
    once = values_of(cohort_of(scans, SCHEME, harmonising=True), "harmonised_volume")
    twice = values_of(
        cohort_of([*scans, again], SCHEME, harmonising=True), "harmonised_volume"
    )
    assert twice[:36] == pytest.approx(once)
    assert twice[36] == pytest.approx(once[0])


def test_adjusted_volumes_are_harmonised_where_there_are_any() -> None:
    scans, _ = study(12)
    sized = [replace(scan, intracranial_mm3=1.5e6) for scan in scans]
    cohort = cohort_of(sized, SCHEME, "proportion", harmonising=True)
    unit = cohort.frame.set_index("metric").loc["harmonised_volume", "unit"]
    assert set(unit) == {"%"}
    plain = values_of(cohort_of(scans, SCHEME, harmonising=True), "harmonised_volume")
    found = values_of(cohort, "harmonised_volume")
    assert found == pytest.approx(plain / 1.5e4)


def test_a_scan_of_which_not_all_is_known_has_no_harmonised_volume() -> None:
    scans, _ = study(12)
    scans[3] = replace(scans[3], site="")
    scans[7] = replace(scans[7], age=None)
    cohort = cohort_of(scans, SCHEME, harmonising=True)
    assert cohort.harmonisation is not None
    assert cohort.harmonisation.without == 2
    lacking = np.isnan(values_of(cohort, "harmonised_volume")).all(1)
    assert np.flatnonzero(lacking).tolist() == [3, 7]
    page = cohort_page([Section.of_volumes(cohort)], [], [], {})
    assert (
        "2 scans without harmonised volumes, because one of these is unknown: "
        "site, age, sex, group." in page
    )


def test_patients_beside_participants_without_a_group_are_refused() -> None:
    """Controls with an empty cell: the loss of patients would be taken for a site effect."""
    scans, _ = study(12)
    scans = [replace(scan, group=scan.group.replace("control", "")) for scan in scans]
    with pytest.raises(EvaluationError, match="without a group"):
        cohort_of(scans, SCHEME, harmonising=True)


def test_a_site_is_so_many_percent_of_what_its_participants_have() -> None:
    """Ventricles that grow from nothing at 60: their mean at age 0 is below 0."""
    scans, _ = study(40, effect=0, loss=0)
    draw = np.random.default_rng(1)
    grown = []
    for number, scan in enumerate(scans):
        age = 60 + number % 40
        factor = 1.1 if scan.site == "site A" else 1.0
        volumes_mm3 = {
            name: factor * (300 * (age - 58) + draw.normal(0, 300)) for name in NAMES
        }
        grown.append(replace(scan, age=float(age), volumes_mm3=volumes_mm3))
    done = cohort_of(grown, SCHEME, harmonising=True).harmonisation
    assert done is not None
    percent = done.effects.groupby("site")["percent_before"].mean()
    # 10 % more than two of three sites is 6.5 % more than the mean, and the others are 3.2 %
    # below.
    assert percent["site A"] == pytest.approx(6.5, abs=0.3)
    assert percent["site B"] == pytest.approx(-3.2, abs=0.3)


def test_ages_are_those_of_the_scans_that_have_a_value() -> None:
    """Two scans, 20 years apart, of which the second has no value at one site."""
    draw = np.random.default_rng(5)
    scans = []
    for number in range(40):
        site = "site A" if number < 20 else "site B"
        spread = draw.normal(0, 20, len(NAMES))
        first = 40.0 + number % 5
        for session, age in enumerate((first, first + 20)):
            values = 4000 - 20 * (age - 40) + spread + draw.normal(0, 5, len(NAMES))
            volumes_mm3 = dict(zip(NAMES, values, strict=True))
            if site == "site B" and session:
                del volumes_mm3["Left-Hippocampus"]
            scans.append(
                Scan(f"sub-{number}", str(session), volumes_mm3, age=age, site=site)
            )
    done = cohort_of(scans, SCHEME, harmonising=True).harmonisation
    assert done is not None
    shifts = done.effects.set_index(["structure", "site"])["percent_before"]
    # There is no effect of sites; ten years would be 5 %.
    assert shifts["Left-Hippocampus", "site B"] == pytest.approx(0, abs=0.3)


def test_a_structure_that_is_not_harmonised_is_named() -> None:
    scans, _ = study(12)
    for scan in [scan for scan in scans if scan.site == "site A"][:5]:
        del scan.volumes_mm3["Left-Hippocampus"]
    cohort = cohort_of(scans, SCHEME, harmonising=True)
    assert cohort.harmonisation is not None
    assert cohort.harmonisation.not_harmonised == ["Left-Hippocampus"]
    page = cohort_page([Section.of_volumes(cohort)], [], [], {})
    assert "1 structure without harmonised volumes" in page


def test_an_age_that_few_have_is_not_kept() -> None:
    scans, _ = study(12)
    scans = [
        replace(scan, age=scan.age if number < 5 else None)
        for number, scan in enumerate(scans)
    ]
    done = cohort_of(scans, SCHEME, harmonising=True).harmonisation
    assert done is not None
    assert done.kept == ("sex", "group")
    assert done.without == 0


def test_a_site_with_too_few_participants_is_refused_by_name_and_number() -> None:
    scans, _ = study(12)
    scans = [scan for scan in scans if scan.site != "site C"] + scans[-9:]
    with pytest.raises(
        EvaluationError, match="site site C has 9 participants of known age"
    ):
        cohort_of(scans, SCHEME, harmonising=True)


def test_one_site_alone_is_refused() -> None:
    scans, _ = study(12)
    with pytest.raises(EvaluationError, match="1 site in the participants table"):
        cohort_of(scans[:12], SCHEME, harmonising=True)


def test_patients_of_one_site_alone_are_refused() -> None:
    scans, _ = study(12)
    scans = [
        replace(scan, group="patient" if scan.site == "site A" else "control")
        for scan in scans
    ]
    said = "effect of group patient cannot be told from those of sites"
    with pytest.raises(EvaluationError, match=said):
        cohort_of(scans, SCHEME, harmonising=True)


def test_the_page_shows_sites_and_structures_before_and_after() -> None:
    scans, _ = study(12)
    cohort = cohort_of(scans, SCHEME, harmonising=True)
    drawings = cohort_drawings([Section.of_volumes(cohort)])
    page = cohort_page([Section.of_volumes(cohort)], drawings, [], {})
    sites = rows_of(page, "site-effect-table")
    assert [row[:2] for row in sites] == [
        ["site A", "12"],
        ["site B", "12"],
        ["site C", "12"],
    ]
    assert len(rows_of(page, "structure-effect-table")) == len(NAMES)
    for row in sites:
        assert float(row[3]) < 0.2 * float(row[2])
    (drawing,) = [drawing for drawing in drawings if drawing.name == "sites"]
    assert len(drawing.marks["sites-before-0"]) == len(NAMES)
    assert "and kept those of age, sex, group" in page
    plain = Section.of_volumes(cohort_of(scans, SCHEME))
    assert "site-effect-table" not in cohort_page([plain], [], [], {})


# Ten participants at each of two sites with the same spread: the variance is 1, or 10 / 9 within a
# site.
RESIDUALS = np.tile([-1.0, 1.0], 10)
SITES = np.repeat([0, 1], 10)
NO_FACTS = np.empty((20, 0))


def at_sites(*shifts: float) -> np.ndarray:
    """Return volumes of one structure per shift, in SDs of 10: up at one site, else down."""
    side = np.where(SITES == 0, 1, -1)
    columns = [100 + 10 * (RESIDUALS + side * shift) for shift in shifts]
    return np.stack(columns, axis=1)


def test_an_effect_that_all_structures_share_is_taken_away_whole() -> None:
    volumes = at_sites(0.5, 0.5)
    effects = site_effects(volumes, SITES, NO_FACTS)
    assert effects.shift == pytest.approx(np.array([[0.5, 0.5], [-0.5, -0.5]]))
    assert effects.scale == pytest.approx(np.full((2, 2), np.sqrt(10 / 9)))
    expected = 100 + 10 * RESIDUALS * np.sqrt(9 / 10)
    found = effects.remove_site_effects(volumes, SITES, NO_FACTS)
    assert found[:, 0] == pytest.approx(expected)
    assert found[:, 1] == pytest.approx(expected)


def test_effects_are_drawn_towards_those_on_other_structures() -> None:
    """0 and 2 have mean 1 and variance 2.

    0 becomes 10/9 / (10 * 2 + 10/9), and 2 decreases as much.
    """
    effects = site_effects(at_sites(0, 2), SITES, NO_FACTS)
    drawn = (10 / 9) / (20 + 10 / 9)
    assert effects.shift_alone[0] == pytest.approx([0, 2])
    assert effects.shift[0] == pytest.approx([drawn, 2 - drawn])
    assert effects.shift[1] == pytest.approx([-drawn, drawn - 2])


def test_what_is_kept_stays() -> None:
    """Every second pair of participants is larger by 30; both sites have equally many."""
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
    # The mean over 20 participants, as without the 21st.
    assert effects.mean[:2] == pytest.approx([100, 100])
    assert np.isnan(effects.remove_site_effects(more, sites, facts)).sum() == 2


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
    "participants", [(40, 60, 30), (200, 50), (25, 25, 25, 25, 25)], ids=str
)
def test_neurocombat(
    participants: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal to 1e-6 with its defaults, and to 1e-11 if it does not stop at the fourth digit."""
    theirs: Any = pytest.importorskip("neuroCombat.neuroCombat")
    pandas: Any = pytest.importorskip("pandas")
    draw = np.random.default_rng(len(participants))
    sites = np.repeat(range(len(participants)), participants)
    count = len(sites)
    age = draw.integers(20, 80, count)
    sex = draw.integers(0, 2, count)
    group = draw.integers(0, 2, count)
    facts = np.stack([sex, group, age], axis=1).astype(float)
    mean = draw.uniform(500, 20_000, 32)
    slopes = draw.normal(0, 0.02, (3, 32)) * mean / [[1], [1], [20]]
    spread = 0.1 * mean * draw.uniform(0.8, 1.2, (len(participants), 32))
    volumes = mean + facts @ slopes + spread[sites] * draw.normal(size=(count, 32))
    volumes += (0.1 * mean * draw.normal(size=(len(participants), 32)))[sites]
    ours = site_effects(volumes, sites, facts).remove_site_effects(
        volumes, sites, facts
    )

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
