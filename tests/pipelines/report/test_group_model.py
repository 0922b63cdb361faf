"""The model that is fitted to a participants table, its results and its description."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from trinat.pipelines.report.changes import Course, change_of, compare_changes
from trinat.pipelines.report.group_model import GroupModel, fit_groups
from trinat.pipelines.report.group_page import (
    change_table,
    effect_tables,
    forest_plots,
    methods_text,
    slope_table,
)
from trinat.segmentation.errors import EvaluationError

STRUCTURES = ("Left-Hippocampus", "Right-Hippocampus", "Brain-Stem")


def people(count: int, **facts: Sequence[object]) -> pd.DataFrame:
    """Return participants with random volumes of three structures, and these attributes."""
    draw = np.random.default_rng(count)
    known = {
        "group": [""] * count,
        "site": [""] * count,
        "sex": [""] * count,
        "family": [""] * count,
        "age": [np.nan] * count,
        "icv": [np.nan] * count,
        **facts,
    }
    subjects = [f"sub-{number:02}" for number in range(count)]
    tables = [
        pd.DataFrame(
            {
                "subject": subjects,
                "structure": structure,
                "value": draw.normal(4000, 300, count),
                **known,
            }
        )
        for structure in STRUCTURES
    ]
    return pd.concat(tables, ignore_index=True)


def facts_of_people(count: int, **facts: Sequence[object]) -> pd.DataFrame:
    """Return these attributes of participants in the form of `cohort.facts_of`."""
    columns = ["group", "site", "sex", "family", "age", "icv"]
    return people(count, **facts).groupby("subject")[columns].first()


def fitted(
    participants: pd.DataFrame, covariates: Sequence[str] | None = None
) -> GroupModel:
    model = fit_groups(participants, "volume", covariates)
    assert model is not None
    return model


def varied(count: int) -> dict[str, Sequence[object]]:
    """Return random attributes that differ between participants."""
    draw = np.random.default_rng(1)
    return {
        "group": ["control", "patient"] * (count // 2),
        "site": ["north", "north", "south", "south"] * (count // 4),
        "sex": list(draw.choice(["F", "M"], count)),
        "age": list(draw.uniform(50, 80, count)),
        "icv": list(draw.normal(1.5e6, 1e5, count)),
    }


def test_the_formula_that_is_printed_gives_the_same_numbers_in_statsmodels() -> None:
    from statsmodels.formula.api import ols

    participants = people(40, **varied(40))
    model = fitted(participants)
    assert model.formula == "volume ~ group + age + sex + icv + site"
    effects = model.effects.set_index(["fact", "structure"])
    slopes = model.slopes.set_index("structure")
    for structure in STRUCTURES:
        rows = participants[participants["structure"] == structure].rename(
            columns={"value": "volume"}
        )
        fit = ols(model.formula, rows.assign(icv=rows["icv"] / 1e6)).fit(cov_type="HC2")
        for fact, name in (("group", "group[T.patient]"), ("sex", "sex[T.M]")):
            row = effects.loc[(fact, structure)]
            # The first group minus the second; the formula has the second minus the first.
            assert row["difference"] == pytest.approx(-fit.params[name], rel=1e-6)
            assert row["standard_error"] == pytest.approx(fit.bse[name], rel=1e-6)
            assert (row["participants"], row["residual_df"]) == (40, 34)
            assert row["r2"] == pytest.approx(fit.rsquared, rel=1e-6)
        slope = slopes.loc[structure]
        assert slope["slope"] == pytest.approx(fit.params["age"], rel=1e-6)
        assert slope["standard_error"] == pytest.approx(fit.bse["age"], rel=1e-6)


def test_variance_inflation_is_that_of_statsmodels() -> None:
    from statsmodels.stats.outliers_influence import variance_inflation_factor

    facts = varied(40)
    facts["age"] = [
        age + 20 * (group == "patient")
        for age, group in zip(facts["age"], facts["group"], strict=True)
    ]
    model = fitted(people(40, group=facts["group"], age=facts["age"]))
    patient = np.array(facts["group"]) == "patient"
    design = np.stack([np.ones(40), patient, np.array(facts["age"])], axis=1)
    expected = variance_inflation_factor(design, 1)
    assert model.effects["vif"].iloc[0] == pytest.approx(expected)
    assert model.slopes["vif"].iloc[0] == pytest.approx(expected)


def test_p_is_corrected_over_the_structures_of_a_pair() -> None:
    effects = fitted(people(12, group=["a", "b"] * 6)).effects
    least = effects["p"].min()
    assert effects["p_holm"].min() == pytest.approx(min(1, 3 * least))


def test_the_columns_of_effects_stay_and_new_ones_follow() -> None:
    columns = list(fitted(people(12, group=["a", "b"] * 6)).effects.columns)
    assert columns[:14] == [
        *("fact", "first_group", "second_group", "structure", "first", "second"),
        *("difference", "low", "high", "g", "g_low", "g_high", "p", "p_holm"),
    ]


def test_few_participants_have_few_terms_and_a_notice_for_each_other() -> None:
    """Eight participants can support group and age: five degrees of freedom remain."""
    facts = varied(8)
    facts["sex"] = ["F", "M", "M", "F", "F", "M", "M", "F"]
    model = fitted(people(8, group=facts["group"], age=facts["age"], sex=facts["sex"]))
    assert model.formula == "volume ~ group + age"
    assert any(notice.startswith("Not in the model: sex") for notice in model.notices)


def test_named_covariates_are_taken_and_others_are_not() -> None:
    facts = varied(8)
    participants = people(8, **facts)
    assert fitted(participants, ["sex"]).formula == "volume ~ group + sex + site"
    assert fitted(participants, []).formula == "volume ~ group + site"


def test_a_covariate_that_nobody_has_or_that_asks_too_much_is_refused() -> None:
    with pytest.raises(EvaluationError) as refused:
        fitted(people(8, group=["a", "b"] * 4), ["age"])
    assert refused.value.remedy
    with pytest.raises(EvaluationError):
        fitted(people(4, **varied(4)), ["age", "sex", "icv"])


def test_participants_of_whom_a_term_is_not_known_are_named() -> None:
    ages = [60.0, 61, 64, 70, 66, 63, 59, 75, 71, np.nan]
    model = fitted(people(10, group=["a", "b"] * 5, age=ages))
    assert len(model.participants) == 9
    assert any("sub-09" in notice for notice in model.notices)


def test_a_covariate_that_few_have_is_left_out_and_costs_no_participant() -> None:
    ages = [60.0, 61, 64, 70, 66, 63, *[np.nan] * 4]
    model = fitted(people(10, group=["a", "b"] * 5, age=ages))
    assert (model.formula, len(model.participants)) == ("volume ~ group", 10)


def test_the_option_for_more_covariates_keeps_those_of_the_model() -> None:
    facts = varied(40)
    del facts["site"]
    # Known of 30 participants.
    facts["icv"] = [*facts["icv"][:30], *[np.nan] * 10]
    participants = people(40, **facts)
    model = fitted(participants)
    assert model.formula == "volume ~ group + age + sex"
    (option,) = [text for text in model.notices if "--covariates" in text]
    named = option.split("--covariates ")[1].rstrip(".").split(",")
    assert fitted(participants, named).formula == "volume ~ group + age + sex + icv"


def test_a_group_of_one_participant_takes_no_covariate_from_the_others() -> None:
    ages = [float(50 + number) for number in range(40)]
    model = fitted(people(41, group=[*["a", "b"] * 20, "other"], age=[*ages, np.nan]))
    assert model.formula == "volume ~ group + age"
    assert model.effects["participants"].max() == 40


def test_scans_without_a_row_in_the_table_change_no_model() -> None:
    facts = {
        "group": ["a", "b"] * 20,
        "age": [float(age) for age in range(40)],
        "site": ["north"] * 20 + ["south"] * 20,
    }
    listed = people(40, **facts)
    others = people(30)
    others["subject"] = "other-" + others["subject"]
    both = fitted(pd.concat([listed, others]))
    assert both.formula == fitted(listed).formula == "volume ~ group + age + site"
    pd.testing.assert_frame_equal(both.effects, fitted(listed).effects)


def test_covariates_that_leave_nobody_of_a_group_are_not_both_taken() -> None:
    age = [50.0 + number for number in range(40)] + [60.0, 61, 62, 63] + [np.nan] * 4
    sex = ["F", "M"] * 20 + [""] * 4 + ["F", "M", "F", "M"]
    group = ["control"] * 40 + ["patient"] * 8
    model = fitted(people(48, group=group, age=age, sex=sex))
    assert model.formula == "volume ~ group + age"
    assert set(model.effects["fact"]) == {"group"}


def test_a_participant_in_two_folders_has_one_change() -> None:
    courses = []
    for number in range(12):
        name = f"sub-{number:02}"
        for years in ([0.0, 1.0], [2.0, 5.0]):
            change = change_of([100, 98 - number % 5], years, None)
            assert change is not None
            courses.append(
                Course(name, "", STRUCTURES[0], ["a", "b"], years, [1, 2], change, None)
            )
    facts = facts_of_people(12, group=["a", "b"] * 6)
    changes = compare_changes(courses, facts)
    longest = compare_changes(courses[1::2], facts)
    assert changes.model is not None
    assert longest.model is not None
    pd.testing.assert_frame_equal(changes.model.effects, longest.model.effects)
    assert len(changes.notices) == len(longest.notices) + 1


def test_of_five_groups_no_differences_are_shown_and_a_notice_says_so() -> None:
    model = fitted(people(40, group=[f"g{n % 5}" for n in range(40)]))
    assert model.effects.empty
    assert model.notices == (
        "group has 5 values: differences are shown for at most 4.",
    )
    # Nothing was tested.
    assert "Holm" not in methods_text(model, "volumes", 0, 0)


def test_age_known_only_of_participants_without_a_group_is_no_term() -> None:
    groups = ["a"] * 8 + ["b"] * 8 + [""] * 8
    ages = [np.nan] * 16 + [float(60 + number) for number in range(8)]
    participants = people(24, group=groups, age=ages)
    model = fitted(participants)
    assert model.terms == ("group",)
    assert any("age (known of 0 of 16" in notice for notice in model.notices)
    with pytest.raises(EvaluationError):
        fit_groups(participants, "volume", ("age",))


def test_without_groups_a_site_that_few_have_is_no_term() -> None:
    ages = [float(50 + number) for number in range(40)]
    sites = ["north", "south"] * 4 + [""] * 32
    model = fitted(people(40, age=ages, site=sites))
    assert model.terms == ("age",)
    assert len(model.participants) == 40


def test_a_covariate_that_few_have_is_not_the_only_term() -> None:
    age = [60.0, 61, 65, 70, 75] + [np.nan] * 35
    assert fit_groups(people(40, age=age), "volume") is None


@pytest.mark.parametrize("known", [0, 2])
def test_a_covariate_that_one_group_lacks_does_not_cost_its_comparison(
    known: int,
) -> None:
    group = ["control"] * 34 + ["patient"] * 6
    ages = [60.0 + number % 7 for number in range(34 + known)] + [np.nan] * (6 - known)
    participants = people(40, group=group, age=ages)
    model = fitted(participants)
    assert (model.formula, len(model.participants)) == ("volume ~ group", 40)
    assert any("patient" in text and "age" in text for text in model.notices)
    if not known:
        with pytest.raises(EvaluationError) as refused:
            fitted(participants, ["age"])
        assert refused.value.remedy


def test_a_site_that_differs_between_the_scans_of_a_group_cannot_be_needed() -> None:
    # Patients have changed their scanner.
    sites = ["north", "south"] * 10 + [""] * 20
    participants = people(40, group=["control"] * 20 + ["patient"] * 20, site=sites)
    (notice,) = fitted(participants).notices
    assert "site" in notice
    with pytest.raises(EvaluationError) as refused:
        fit_groups(participants, "volume", needed=["site"])
    assert refused.value.remedy == "leave out --harmonise"


def test_groups_at_sites_of_their_own_are_not_compared_and_a_notice_says_why() -> None:
    model = fitted(people(20, group=["a", "b"] * 10, site=["north", "south"] * 10), [])
    assert model.effects["p"].isna().all()
    assert effect_tables(model, "mm³", 0) == []
    assert forest_plots(model) == []
    assert any("group and site cannot be separated" in text for text in model.notices)


def test_no_single_term_is_named_if_groups_differ_in_several() -> None:
    facts = {"site": ["north", "south"] * 10, "sex": ["F", "M"] * 10}
    model = fitted(people(20, group=["a", "b"] * 10, **facts))
    (notice,) = model.notices
    assert "cannot be compared" in notice
    assert "site" not in notice


def test_groups_that_share_one_of_three_sites_are_compared_there() -> None:
    sites = ["north"] * 6 + ["south"] * 6 + ["east"] * 12
    groups = ["a"] * 6 + ["b"] * 6 + ["a", "b"] * 6
    participants = people(24, group=groups, site=sites)
    effects = fitted(participants, []).effects
    of_groups = effects[effects["fact"] == "group"].set_index("structure")
    east = participants[(participants["site"] == "east")]
    for structure in STRUCTURES:
        here = east[east["structure"] == structure]
        means = here.groupby("group")["value"].mean()
        found = of_groups.loc[structure, "difference"]
        assert found == pytest.approx(means["a"] - means["b"])


def test_groups_far_apart_in_age_are_named_with_age_in_the_model_or_without() -> None:
    draw = np.random.default_rng(0)
    ages = [age + 50 * (place % 2) for place, age in enumerate(draw.normal(25, 2, 30))]
    participants = people(30, group=["a", "b"] * 15, age=ages)
    (notice,) = fitted(participants).notices
    assert notice.startswith("group and age go together")
    (notice,) = fitted(participants, []).notices
    assert "differ in age" in notice


def test_a_group_of_one_participant_is_named_and_has_no_number() -> None:
    model = fitted(people(9, group=[*["a", "b"] * 4, "c"]))
    known = model.effects.dropna(subset="p")
    assert set(known["second_group"]) == {"b"}
    assert any("c has one participant" in notice for notice in model.notices)


@pytest.mark.parametrize("alone", [1, 2])
def test_the_only_participant_or_family_of_a_site_has_no_part_in_expected_values(
    alone: int,
) -> None:
    participants = people(
        12 + alone,
        group=[*["a", "b"] * 6, *["a"] * alone],
        site=[*["north"] * 12, *["south"] * alone],
        family=[*[""] * 12, *["F"] * alone],
    )
    model = fitted(participants)
    assert model.formula == "volume ~ group + site"
    of_stem = participants[participants["structure"] == "Brain-Stem"]
    north = of_stem[of_stem["site"] == "north"].groupby("group")["value"].mean()
    means = model.means.set_index(["structure", "group"])["mean"]
    assert means["Brain-Stem"].to_dict() == pytest.approx(north.to_dict())
    assert change_table(model) is not None


def test_relatives_are_clustered_and_counted_in_a_notice() -> None:
    # Ten families of two, and four participants whose family is not known.
    families = [f"F{number // 2}" for number in range(20)] + [""] * 4
    groups = ["a", "a", "b", "b"] * 6
    participants = people(24, group=groups, family=families)
    model = fitted(participants)
    assert model.relatives == 20
    (notice,) = model.notices
    assert notice.startswith("20 participants")
    assert "CR2" in methods_text(model, "The volumes", 0, 0)
    # Each group has seven families; a participant without a family counts as one.
    assert model.effects["df"].max() < 12
    alone = fitted(participants.assign(family=""))
    assert alone.relatives == 0
    assert alone.effects["df"].min() > 15
    np.testing.assert_allclose(alone.effects["difference"], model.effects["difference"])


def test_a_group_of_one_family_is_named_and_not_compared() -> None:
    families = ["F1" if number % 2 else "" for number in range(12)]
    model = fitted(people(12, group=["a", "b"] * 6, family=families))
    assert model.effects["p"].isna().all()
    assert any(
        "group b has participants of one family" in text for text in model.notices
    )


def test_changes_of_relatives_are_clustered() -> None:
    facts = facts_of_people(
        8,
        group=["a", "a", "b", "b"] * 2,
        family=["F", "F", "G", "G", "H", "H", "I", "I"],
    )
    courses = [
        course_of(f"sub-{number:02}", rate, [0.0, 1.0, 2.0])
        for number, rate in enumerate([-1, -1.2, -2, -2.2, -1.5, -1.7, -2.5, -2.7])
    ]
    changes = compare_changes(courses, facts)
    assert changes.model is not None
    # Two families in each group count as two participants.
    assert changes.model.effects["df"].item() == pytest.approx(2)


@pytest.mark.parametrize(
    ("unit", "difference", "slope"),
    [
        ("mm³", "Difference (mm³)", "Slope (mm³ a year)"),
        # Structures of several units have theirs in their names.
        ("", "Difference", "Slope (a year)"),
    ],
)
def test_titles_have_the_unit_if_all_structures_have_one(
    unit: str, difference: str, slope: str
) -> None:
    model = fitted(people(12, group=["a", "b"] * 6, age=range(50, 62)))
    (effects,) = effect_tables(model, unit, 0)
    slopes = slope_table(model, unit, 0)
    assert slopes is not None
    assert difference in [column.title for column in effects.columns]
    assert slope in [column.title for column in slopes.columns]


def test_the_forest_plot_has_a_mark_for_each_structure_side_by_side() -> None:
    (drawing,) = forest_plots(fitted(people(12, group=["a", "b"] * 6)))
    assert {gid: len(names) for gid, names in drawing.marks.items()} == {
        "effects-left": 1,
        "effects-right": 1,
        "effects-midline": 1,
    }
    assert drawing.pdf.startswith(b"%PDF")


def test_the_methods_text_has_the_formula_the_participants_and_the_versions() -> None:
    from importlib.metadata import version

    text = methods_text(fitted(people(12, group=["a", "b"] * 6)), "The volumes", 2, 13)
    for part in (
        "volume ~ group",
        "12 participants (a: 6, b: 6)",
        f"statsmodels {version('statsmodels')}",
        "3 structures",
        "2 scans, 13 single values",
        "residual standard deviations",
    ):
        assert part in text


def test_the_methods_text_counts_the_structures_that_were_tested() -> None:
    participants = people(12, group=["a", "b"] * 6)
    participants.loc[participants["structure"] == "Brain-Stem", "value"] = 0
    text = methods_text(fitted(participants), "The volumes", 0, 0)
    assert "of 2 structures" in text
    assert "corrected for 2 structures" in text


def course_of(participant: str, rate: float, years: Sequence[float | None]) -> Course:
    """Return three volumes that change by `rate` per cent a year."""
    volumes = [100 - rate, 100.0, 100 + rate]
    change = change_of(volumes, years)
    assert change is not None
    cases = ["1", "2", "3"]
    return Course(participant, "", "Brain-Stem", cases, years, volumes, change, None)


def test_scans_without_dates_do_not_change_the_comparison_of_changes() -> None:
    facts = facts_of_people(12, group=["a", "b"] * 6)
    dated = [
        course_of(f"sub-{number:02}", rate, [0.0, 0.5 + number, 8.0])
        for number, rate in enumerate([-1.0, -2.0, -1.5, -2.5, -0.5, -3.0])
    ]
    undated = [course_of(f"sub-{n:02}", -1.0, [None] * 3) for n in range(6, 12)]
    alone = compare_changes(dated, facts).model
    among_others = compare_changes([*dated, *undated], facts).model
    assert alone is not None
    assert among_others is not None
    pd.testing.assert_frame_equal(alone.effects, among_others.effects)


def test_changes_are_compared_by_the_same_model_and_participants_with_one_scan_named() -> (
    None
):
    facts = facts_of_people(7, group=["a", "b"] * 3 + ["a"])
    rates = [-1.0, -2.0, -1.5, -2.5, -0.5, -3.0]
    courses = [
        course_of(f"sub-{number:02}", rate, [0.0, 1.0, 2.0])
        for number, rate in enumerate(rates)
    ]
    found = compare_changes(courses, facts)
    assert found.model is not None
    assert found.model.formula == "change ~ group"
    (row,) = found.model.effects.to_dict("records")
    # Means of -1 and -2.5 % a year, with variances of 0.25 in three participants each.
    assert row["difference"] == pytest.approx(1.5)
    assert row["standard_error"] == pytest.approx(np.sqrt(0.5 / 3))
    means = found.model.means.set_index("group")["mean"]
    assert [means["a"], means["b"]] == pytest.approx([-1, -2.5])
    assert any("1 participant" in text and "sub-06" in text for text in found.notices)


def test_changes_of_participants_whose_scanner_changed_are_not_compared() -> None:
    facts = facts_of_people(7, group=["a", "b"] * 3 + ["a"])
    rates = [-1.0, -2.0, -1.5, -2.5, -0.5, -3.0]
    courses = [
        course_of(f"sub-{number:02}", rate, [0.0, 1.0, 2.0])
        for number, rate in enumerate(rates)
    ]
    moved = course_of("sub-06", 40.0, [0.0, 1.0, 2.0])
    found = compare_changes([*courses, moved], facts, of_several_sites=["sub-06"])
    assert found.model is not None
    (row,) = found.model.effects.to_dict("records")
    assert row["difference"] == pytest.approx(1.5)
    (notice,) = [text for text in found.notices if "sub-06" in text]
    assert "site" in notice
