"""Estimates of a linear model, worked out by hand and compared with statsmodels."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import linalg, stats

from trinat.segmentation.metrics.linear_model import Design, Estimate, LinearModel

FIRST = np.array([12.0, 14.0, 16.0])
SECOND = np.array([9.0, 10.0, 11.0, 10.0])


def groups(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, Design]:
    """Return the values of two groups, and a design with an intercept and the first group."""
    in_first = np.repeat([1.0, 0.0], [len(first), len(second)])
    matrix = np.stack([np.ones(len(in_first)), in_first], axis=1)
    return np.concatenate([first, second]), Design(matrix)


def difference(first: np.ndarray, second: np.ndarray) -> Estimate:
    values, design = groups(first, second)
    return LinearModel(values, design).estimate(design.contrast(np.array([0.0, 1.0])))


def test_the_difference_of_two_groups_has_welchs_standard_error() -> None:
    found = difference(FIRST, SECOND)
    # Means 14 and 10, variances 4 and 2/3: 4 / 3 + 2 / 3 / 4 = 1.5.
    assert found.value == pytest.approx(4)
    assert found.error == pytest.approx(np.sqrt(1.5))
    # Each group's variance has its own freedom, 2 and 3, if all vary alike:
    # (1/3 + 1/4)^2 / ((1/3)^2 / 2 + (1/4)^2 / 3).
    freedom = (7 / 12) ** 2 / (1 / 18 + 1 / 48)
    assert found.freedom == pytest.approx(freedom)
    half = stats.t.ppf(0.975, freedom) * np.sqrt(1.5)
    assert [found.low, found.high] == pytest.approx([4 - half, 4 + half])
    assert found.p == pytest.approx(2 * stats.t.sf(4 / np.sqrt(1.5), freedom))


def test_hedges_g_is_in_pooled_deviations_and_its_interval_agrees_with_p() -> None:
    found = difference(FIRST, SECOND)
    # Squares 8 and 2 over 5; the factor of 5 degrees of freedom is 0.8408 (Hedges, 1981).
    assert found.g == pytest.approx(4 / np.sqrt(2) * 0.8408, rel=1e-4)
    # t is at the tails of the noncentral distributions of both ends.
    in_sd = np.sqrt(2) / 0.840749
    t = found.value / found.error
    for end, chance in ((found.g_low, 0.975), (found.g_high, 0.025)):
        noncentral = end * in_sd / found.error
        below = stats.nct.cdf(t, found.freedom, noncentral)
        assert below == pytest.approx(chance, abs=1e-4)


def test_the_sign_changes_with_the_order_and_nothing_else() -> None:
    found = difference(FIRST, SECOND)
    turned = difference(SECOND, FIRST)
    assert [turned.low, turned.g_low] == pytest.approx([-found.high, -found.g_high])
    assert turned.p == pytest.approx(found.p)


def test_a_regression_agrees_with_statsmodels_hc2() -> None:
    from statsmodels.formula.api import ols

    draw = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "y": draw.normal(size=30),
            "age": draw.normal(60, 10, 30),
            "site": np.repeat(["a", "b", "c"], 10),
        }
    )
    expected = ols("y ~ age + site", table).fit(cov_type="HC2", use_t=True)
    design = Design(expected.model.exog)
    model = LinearModel(table["y"].to_numpy(), design)
    for place, name in enumerate(expected.model.exog_names):
        found = model.estimate(design.contrast(np.eye(4)[place]))
        assert found.value == pytest.approx(expected.params[name], rel=1e-6)
        assert found.error == pytest.approx(expected.bse[name], rel=1e-6)
        t = expected.params[name] / expected.bse[name]
        half = stats.t.ppf(0.975, found.freedom) * expected.bse[name]
        assert found.high - found.value == pytest.approx(half, rel=1e-6)
        assert found.p == pytest.approx(2 * stats.t.sf(abs(t), found.freedom))
    assert model.r2 == pytest.approx(expected.rsquared)
    influence = expected.get_influence()
    assert model.studentised_residuals == pytest.approx(
        influence.resid_studentized_internal
    )


def test_degrees_of_freedom_are_those_of_the_quadratic_form() -> None:
    """Bell and McCaffrey's formula, with matrices of participants by participants."""
    draw = np.random.default_rng(1)
    matrix = np.hstack([np.ones((12, 1)), draw.normal(size=(12, 2))])
    design = Design(matrix)
    coefficients = np.array([0.0, 1.0, -1.0])
    hat = matrix @ np.linalg.inv(matrix.T @ matrix) @ matrix.T
    shares = matrix @ np.linalg.inv(matrix.T @ matrix) @ coefficients
    weights = np.diag(shares**2 / (1 - np.diag(hat)))
    form = (np.eye(12) - hat) @ weights @ (np.eye(12) - hat)
    expected = np.trace(form) ** 2 / np.trace(form @ form)
    contrast = design.contrast(coefficients)
    assert contrast is not None
    assert contrast.freedom == pytest.approx(expected)
    assert contrast.variance == pytest.approx((shares**2).sum())


def test_relatives_in_one_group_count_as_one_participant() -> None:
    """With two members in each family, results are those of the families' means."""
    of_families, design = groups(FIRST, SECOND)
    expected = LinearModel(of_families, design).estimate(
        design.contrast(np.array([0.0, 1.0]))
    )
    apart = np.tile([-1.0, 1.0], len(of_families))
    values = np.repeat(of_families, 2) + apart
    families = np.repeat(np.arange(len(of_families)), 2)
    design = Design(np.repeat(design.matrix, 2, axis=0), clusters=families)
    found = LinearModel(values, design).estimate(design.contrast(np.array([0.0, 1.0])))
    for name in ("value", "low", "high", "p", "error", "freedom"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name))


def test_relatives_in_both_groups_are_compared_within_their_family() -> None:
    # Differences within the families: 1, 2 and 3.
    values = np.array([11.0, 22, 33, 10, 20, 30])
    in_first = np.repeat([1.0, 0.0], 3)
    matrix = np.stack([np.ones(6), in_first], axis=1)
    design = Design(matrix, clusters=np.tile([0, 1, 2], 2))
    found = LinearModel(values, design).estimate(design.contrast(np.array([0.0, 1.0])))
    paired = stats.ttest_rel(values[:3], values[3:])
    assert found.value == pytest.approx(2)
    assert found.error == pytest.approx(1 / np.sqrt(3))
    assert found.freedom == pytest.approx(2)
    assert found.p == pytest.approx(paired.pvalue)


def test_weighted_clusters_have_the_errors_and_freedom_of_the_definition() -> None:
    """CR2 and its degrees of freedom, with matrices of participants by participants."""
    draw = np.random.default_rng(3)
    matrix = np.hstack([np.ones((14, 1)), draw.normal(size=(14, 2))])
    weights = draw.uniform(0.2, 1, 14)
    families = np.array([0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 5, 6, 7, 7])
    values = draw.normal(size=14)
    coefficients = np.array([0.0, 1.0, -1.0])
    weighted = np.sqrt(weights)[:, None] * matrix
    square = np.linalg.inv(weighted.T @ weighted)
    rest = np.eye(14) - weighted @ square @ weighted.T
    shares = weighted @ square @ coefficients
    rows = []
    for family in range(8):
        of_family = np.flatnonzero(families == family)
        within = rest[np.ix_(of_family, of_family)]
        root = linalg.inv(linalg.sqrtm(within))
        rows.append(shares[of_family] @ root @ rest[of_family])
    forms = np.stack(rows)
    variance = ((forms @ (np.sqrt(weights) * values)) ** 2).sum()
    covariances = forms @ forms.T
    freedom = np.trace(covariances) ** 2 / np.trace(covariances @ covariances)
    design = Design(matrix, weights, families)
    found = LinearModel(values, design).estimate(design.contrast(coefficients))
    assert found.error == pytest.approx(np.sqrt(variance))
    assert found.freedom == pytest.approx(freedom)


def test_a_group_of_one_family_has_no_estimate() -> None:
    values, design = groups(FIRST, SECOND)
    design = Design(design.matrix, clusters=np.array([0, 0, 0, 1, 2, 3, 4]))
    assert design.contrast(np.array([0.0, 1.0])) is None
    second = LinearModel(values, design).estimate(design.contrast(np.array([1.0, 0.0])))
    # Four independent values: their mean, with a variance of 2/3.
    assert second.value == pytest.approx(10)
    assert second.error == pytest.approx(np.sqrt(2 / 3 / 4))
    assert second.freedom == pytest.approx(3)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([1.0], [2.0, 3.0, 5.0]),  # one participant has no variance
        ([4.0, 4.0], [4.0, 4.0]),  # nobody differs
        ([0.1 + 0.2, 0.3], [0.3, 0.3]),  # equal except for rounding
    ],
)
def test_what_the_data_do_not_determine_is_not_a_number(
    first: list[float], second: list[float]
) -> None:
    found = difference(np.array(first), np.array(second))
    assert np.isnan([found.value, found.low, found.g, found.p]).all()


def test_columns_that_are_the_same_cannot_be_separated_and_others_can() -> None:
    draw = np.random.default_rng(2)
    patient = np.repeat([0.0, 1.0], 6)
    age = draw.normal(size=12)
    # All patients are at the second site.
    design = Design(np.stack([np.ones(12), patient, patient, age], axis=1))
    assert design.residual_freedom == 9
    assert design.contrast(np.array([0.0, 1.0, 0.0, 0.0])) is None
    assert design.contrast(np.array([0.0, 1.0, 1.0, 0.0])) is not None
    assert design.contrast(np.array([0.0, 0.0, 0.0, 1.0])) is not None


def test_groups_hundreds_of_deviations_apart_have_an_interval() -> None:
    found = difference(np.arange(30.0) + 900, np.arange(30.0))
    assert found.g_low < found.g < found.g_high


def test_nearly_exact_values_have_no_interval_of_g() -> None:
    found = difference(np.array([1.0, 1 + 1e-9, 1.0]), np.array([2.0, 2.0, 2 + 1e-9]))
    assert found.p < 1e-6
    assert np.isnan([found.g_low, found.g_high]).all()
