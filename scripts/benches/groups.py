"""Calibration and power of the group comparisons of `trinat report`, by simulated studies.

    scripts/bench groups [STUDIES]

Studies pass through the tables of the report. The rules behind them are compared in
`_group_rules.py`.

docs/notes/statistics.md has the results.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from benches._group_rules import print_rules
from trinat.pipelines.report.changes import Course, change_of, compare_changes
from trinat.pipelines.report.cohort import Cohort, Scan, cohort_of
from trinat.pipelines.report.group_model import GroupModel
from trinat.segmentation.labels.scheme import load_scheme

__all__ = ["run"]

_SCHEME = load_scheme("quicknat33")
_NAMES = _SCHEME.names[1::2]  # sixteen structures
_SIGNIFICANT = 0.05
_COMPARED = 10  # number of studies that are also compared with --harmonise
# Number of persons at each site, and the share of patients at each.
_DESIGNS = {
    "2 x 40, 10 and 90 %": (40, (0.1, 0.9)),
    "3 x 12, 50 % each": (12, (0.5, 0.5, 0.5)),
    "3 x 12, 25, 50, 75 %": (12, (0.25, 0.5, 0.75)),
    "3 x 12, 10, 50, 90 %": (12, (0.1, 0.5, 0.9)),
}


def scans_of(
    draw: np.random.Generator, persons: int, shares: Sequence[float], effect: float = 0
) -> list[Scan]:
    """Draw a study in which sites shift and scale volumes, and patients lack `effect` SDs."""
    site = np.repeat(np.arange(len(shares)), persons)
    count = len(site)
    patient = np.concatenate(
        [np.arange(persons) < round(share * persons) for share in shares]
    )
    age = draw.normal(60, 10, count).round(1)
    icv = draw.normal(1.5e6, 0.12e6, count)
    sex = draw.integers(0, 2, count)
    mean = np.exp(draw.uniform(np.log(500), np.log(250_000), len(_NAMES)))
    shift = draw.normal(0, 0.08, (len(shares), len(_NAMES)))
    stretch = np.exp(draw.normal(0, 0.15, (len(shares), len(_NAMES))))
    own = 0.1 * draw.normal(size=(count, len(_NAMES))) * stretch[site]
    relative = 1 - 0.003 * (age - 60) + 0.5 * (icv / 1.5e6 - 1) - 0.02 * sex
    relative = relative[:, None] + own + shift[site] - 0.1 * effect * patient[:, None]
    volumes = mean * relative
    return [
        Scan(
            f"sub-{number}",
            "",
            dict(zip(_NAMES, volumes[number], strict=True)),
            sex="FM"[sex[number]],
            age=float(age[number]),
            site="ABC"[site[number]],
            group="patient" if patient[number] else "control",
            intracranial_mm3=float(icv[number]),
        )
        for number in range(count)
    ]


def _p_values(model: GroupModel | None) -> pd.DataFrame:
    """Return p and corrected p of the groups, by structure."""
    assert model is not None
    return model.effects[model.effects["fact"] == "group"]


def _plain_p(cohort: Cohort) -> np.ndarray:
    """Return p of the groups by classical regressions with the same terms."""
    from patsy import dmatrix
    from statsmodels.regression.linear_model import OLS

    persons = cohort.persons.assign(icv=cohort.persons["icv"] / 1e6)
    p_values = []
    design = None
    for _, rows in persons.groupby("structure", sort=False):
        if design is None:
            design = dmatrix("group + age + sex + icv + site", rows)
        fit = OLS(rows["value"].to_numpy(), design).fit()
        place = design.design_info.column_names.index("group[T.patient]")
        p_values.append(fit.pvalues[place])
    return np.array(p_values)


def _studies(number: int) -> Iterator[np.random.Generator]:
    for seed in range(number):
        yield np.random.default_rng(seed)


def _print_null(studies: int) -> None:
    print("| null studies | p < 0.05 | a corrected p < 0.05 | formula |")
    print("|---|---|---|---|")
    for name, (persons, shares) in _DESIGNS.items():
        single = []
        corrected = []
        for seed, draw in enumerate(_studies(studies)):
            scans = scans_of(draw, persons, shares)
            found = _p_values(cohort_of(scans, _SCHEME).model)
            if seed < _COMPARED:
                harmonised = cohort_of(scans, _SCHEME, harmonising=True).model
                assert found.equals(_p_values(harmonised)), "harmonised values count"
            single.append((found["p"] < _SIGNIFICANT).mean())
            corrected.append((found["p_holm"] < _SIGNIFICANT).any())
        formula = found["formula"].iloc[0]
        print(
            f"| {name} | {np.mean(single):.1%} | {np.mean(corrected):.1%} | {formula} |",
            flush=True,
        )


def _print_power(studies: int) -> None:
    ours = []
    plain = []
    for draw in _studies(studies):
        cohort = cohort_of(scans_of(draw, 40, (0.5, 0.5), 0.5), _SCHEME)
        ours.append((_p_values(cohort.model)["p"] < _SIGNIFICANT).mean())
        plain.append((_plain_p(cohort) < _SIGNIFICANT).mean())
    print(
        f"power, d = 0.5, 2 x 40, 50 % each: {np.mean(ours):.1%}; classical regression "
        f"{np.mean(plain):.1%}",
        flush=True,
    )


def courses_of(draw: np.random.Generator, persons: pd.DataFrame) -> list[Course]:
    """Draw visits within 4 years: two to five of a control, two or three of a patient."""
    courses = []
    for person in persons.drop_duplicates("subject").itertuples():
        most = 6 if person.group == "control" else 4
        years = np.sort(draw.uniform(0, 4, draw.integers(2, most)))
        for name in _NAMES:
            rate = draw.normal(-0.5, 0.5)
            volumes = 100 + rate * years + draw.normal(0, 1, len(years))
            change = change_of(volumes, list(years))
            assert change is not None
            course = Course(
                person.subject,
                person.group,
                name,
                [str(number) for number in range(len(years))],
                list(years),
                volumes,
                change,
                None,
            )
            courses.append(course)
    return courses


def _print_changes(studies: int) -> None:
    for persons in (8, 20):
        single = []
        corrected = []
        for draw in _studies(studies):
            scans = scans_of(draw, persons, (0.25, 0.5))
            table = cohort_of(scans, _SCHEME).persons.assign(site="")
            found = _p_values(compare_changes(courses_of(draw, table), table).model)
            single.append((found["p"] < _SIGNIFICANT).mean())
            corrected.append((found["p_holm"] < _SIGNIFICANT).any())
        print(
            f"group x time, {2 * persons} persons, uneven visits: {np.mean(single):.1%} of p "
            f"below 0.05, a corrected p in {np.mean(corrected):.1%}",
            flush=True,
        )


def run(studies: str = "200") -> None:
    # statsmodels collects garbage with each correction, which takes longer than the model
    # itself.
    gc.freeze()
    print_rules()
    _print_changes(int(studies))
    _print_null(int(studies))
    _print_power(int(studies))
