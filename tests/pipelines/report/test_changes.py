"""Changes over time, worked out by hand; their page; noise from two scans as in a table."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from helpers.browser import assert_fits_desk_and_phone, find_chromium
from scipy import stats

from trinat.pipelines.report.changes import (
    Course,
    change_of,
    changes_page,
    courses_plot,
    retest_of,
)
from trinat.pipelines.report.page import UNDEFINED


def course(
    participant: str, volumes: list[float], group: str = "", **changes
) -> Course:
    years = changes.get("years", [0.0, 2.0])
    change = change_of(volumes, years, 1.0)
    assert change is not None
    cases = [f"{participant}-{number}" for number in range(len(volumes))]
    return Course(
        participant, group, "Left-Hippocampus", cases, years, volumes, change, 1.0
    )


def page_of(
    courses: list[Course], left_out: Sequence[tuple[str, str, str]] = ()
) -> str:
    return changes_page({"": courses}, left_out)


def test_a_change_there_and_back_is_symmetric() -> None:
    loss = change_of([100, 90], [0, 1])
    gain = change_of([90, 100], [0, 1])
    assert loss is not None
    assert gain is not None
    # 10 of 95.
    assert loss.percent == pytest.approx(-10.526, abs=1e-3)
    assert gain.percent == pytest.approx(10.526, abs=1e-3)
    assert loss.percent_per_year == pytest.approx(loss.percent)
    assert loss.low is None


def test_two_years_halve_the_change_a_year() -> None:
    change = change_of([100, 90], [70.0, 72.0])
    assert change is not None
    assert change.percent_per_year == pytest.approx(-5.263, abs=1e-3)


@pytest.mark.parametrize(
    ("days", "is_a_year_told"), [(0.0, False), (0.007, False), (0.9, False), (1, True)]
)
def test_scans_of_one_day_have_no_change_a_year(
    days: float, is_a_year_told: bool
) -> None:
    """Noise over ten minutes would be thousands of per cent a year."""
    change = change_of([4000, 3980], [2021.0, 2021 + days / 365.25], 1.0)
    assert change is not None
    assert (change.percent_per_year is not None) == is_a_year_told
    assert change.percent == pytest.approx(-0.501, abs=1e-3)
    assert (change.noise == 1.0) != is_a_year_told


def test_three_scans_have_an_interval_around_the_slope() -> None:
    # Relative to the mean 100: +1, 0.5 and -1.5; slope -1.25, residuals -0.25, 0.5, -0.25.
    change = change_of([101, 100.5, 98.5], [0, 1, 2])
    assert change is not None
    assert change.percent_per_year == pytest.approx(-1.25)
    # t with one degree of freedom is 12.706; the error is sqrt(0.375 / 1 / 2) = 0.43301.
    assert change.high is not None
    assert change.high == pytest.approx(-1.25 + 12.706 * 0.43301, abs=1e-3)


def test_without_times_there_is_no_change_a_year() -> None:
    change = change_of([100, 90], [None, 1.0], retest_percent=1)
    assert change is not None
    assert change.percent_per_year is None
    assert change.noise == pytest.approx(1)
    assert change.is_beyond_noise


def test_noise_a_year_falls_with_time() -> None:
    # Retest noise is up to 1 % between two scans; these are four years apart.
    change = change_of([100, 99.5], [0, 4], retest_percent=1)
    assert change is not None
    assert change.noise == pytest.approx(1 / 4)
    assert change.is_beyond_noise is False


def test_a_structure_that_is_nowhere_has_no_change() -> None:
    assert change_of([0, 0], [0, 1]) is None


def test_the_largest_change_beside_its_noise_comes_first() -> None:
    page = page_of([course("still", [100, 100.1]), course("ill", [100, 90])])
    table = page[page.index("Participants with dates") :]
    assert table.index("ill") < table.index("still")
    assert "of 2 changes" in page
    assert ">yes<" in table


def test_groups_have_their_means() -> None:
    page = page_of(
        [
            course("a", [100, 98], group="patients"),
            course("b", [100, 100], group="well"),
        ]
    )
    assert "patients: mean ± SD (% a year)" in page
    # 2 of 99 in two years.
    assert "-1.01" in page.replace("−", "-")


def test_lesions_have_no_means_because_participants_without_them_have_no_change() -> (
    None
):
    courses = [course("a", [100, 98]), course("b", [100, 96])]
    page = changes_page(dict.fromkeys(["", "callosum", "lesions"], courses))
    assert 'id="callosum-group-table"' in page
    assert 'id="lesions-change-table"' in page
    assert 'id="lesions-group-table"' not in page


def test_changes_without_known_noise_are_not_counted_beside_those_with() -> None:
    known = course("a", [100, 50])
    unknown = course("b", [100, 50])
    unknown = replace(unknown, change=replace(unknown.change, noise=None))
    assert "of 1 change<" in page_of([known, unknown])


def test_without_dates_the_page_says_so() -> None:
    page = page_of([course("a", [100, 98], years=[None, None])])
    assert "1 participant without dates" in page
    assert "They are in a separate table" not in page
    assert "Participants without dates" in page
    assert (
        "% a year"
        not in page[page.index("Participants without dates") :].split("</table>")[0]
    )


def test_changes_a_year_and_without_times_have_no_common_mean() -> None:
    page = page_of(
        [
            course("a", [100, 98]),
            course("b", [100, 98]),
            course("c", [100, 50], years=[2.0, None]),
        ]
    )
    groups = page[page.index("By group") : page.index("Participants with dates")]
    assert "change a year" in groups
    # 2 of 99 in two years, twice; the third has no times.
    assert "-1.01 ± 0.00" in groups.replace("−", "-")
    assert "1 participant without dates" in page
    assert "c-0" not in page[: page.index("By group")]


def test_a_year_and_any_time_have_tables_with_one_unit_each() -> None:
    page = page_of([course("a", [100, 98]), course("b", [100, 98], years=[None, None])])
    timed = page[page.index('id="change-table"') :].split("</table>")[0]
    untimed = page[page.index('id="undated-table"') :].split("</table>")[0]
    # 1 % between two scans two years apart is half of that per year.
    assert "Noise (% a year)" in timed
    assert ">0.50</td>" in timed
    assert "Noise (%)" in untimed
    assert ">1.00</td>" in untimed


def test_the_noise_of_a_group_has_the_unit_of_its_changes() -> None:
    page = page_of([course("a", [100, 98]), course("b", [100, 96])])
    groups = page[page.index('id="group-table"') :].split("</table>")[0]
    assert "mean ± SD (% a year)" in groups
    assert "Noise of a participant (% a year)" in groups
    assert ">0.50</td>" in groups


def test_structures_that_a_group_lacks_are_sorted_last() -> None:
    other = replace(course("b", [100, 96], group="AD"), structure="Right-Hippocampus")
    page = page_of([course("a", [100, 98]), other])
    groups = page[page.index('id="group-table"') :].split("</table>")[0]
    # Each group lacks one of the two structures.
    assert groups.count(f'data-order="{UNDEFINED}"') == 2


def test_participants_without_a_group_are_not_all() -> None:
    alone = course("a", [100, 98])
    assert "All: mean ± SD" in page_of([alone, course("b", [100, 96])])
    page = page_of([alone, course("b", [100, 96], group="AD")])
    assert "No group: mean ± SD" in page
    assert "All: mean" not in page


@pytest.mark.parametrize("percent", [0.99, 1.01])
def test_two_scans_are_in_the_band_where_their_change_is_within_noise(
    percent: float,
) -> None:
    """Each lies half of the change from their mean."""
    course_ = course("a", [100 - percent / 2, 100 + percent / 2], years=[None, None])
    drawing = courses_plot([course_])
    (axis,) = [one for one in drawing.figure.axes if one.patches]
    (band,) = axis.patches
    is_inside = max(course_.percents) <= band.get_y() + band.get_height()
    assert is_inside != course_.change.is_beyond_noise
    assert is_inside == (percent < 1)
    assert "participants with 2 scans" in drawing.caption


@pytest.mark.parametrize(
    ("measure", "shown"),
    [
        ("Left-Hippocampus", "a-0: 1,003 mm³"),
        ("CC_area_mm2", "a-0: 1,003 mm²"),
        ("lh_insula_thickness", "a-0: 1,002.60 mm"),
    ],
)
def test_values_have_the_unit_of_their_measure(measure: str, shown: str) -> None:
    of_measure = replace(course("a", [1002.6, 1000]), structure=measure)
    assert courses_plot([of_measure]).marks["scans-0"][0] == shown


def test_one_participant_of_a_group_has_no_standard_deviation() -> None:
    page = page_of(
        [course("a", [100, 98], group="x"), course("b", [100, 98], group="y")]
    )
    assert page.count("−1.01 (1 participant)") == 2


def test_all_numbers_have_one_minus_sign_and_no_zero_has_one() -> None:
    # 100, 99 and 98 in two years: a line of -1 a year, in per cent of 99.
    falling = course("a", [100, 99, 98], years=[0.0, 1.0, 2.0])
    page = page_of([falling, course("b", [100, 99.999], group="y")])
    assert "−1.01 to −1.01" in page
    assert "+0.00 (1 participant)" in page
    assert "−0.00" not in page
    text = re.sub(r"<(style|script|svg).*?</\1>|<[^>]*>", " ", page, flags=re.S)
    assert not re.search(r"(^|\s)-\d", text)


def test_what_is_left_out_is_named_with_its_reason() -> None:
    left_out = [("a-2", "", "graded reject: cut"), ("b-1", "Brain-Stem", "graded look")]
    page = page_of([course("a", [100, 98])], left_out)
    assert "1 scan excluded from all changes: a-2." in page
    named = page[page.index('id="left-out-table"') :].split("</table>")[0]
    assert "graded reject: cut" in named
    assert "Brain Stem" in named


def test_a_page_of_scans_that_are_all_left_out_says_so() -> None:
    page = page_of([], [("a-1", "", "graded reject"), ("a-2", "", "graded reject")])
    assert "no participant has two usable scans" in page
    assert "<svg" not in page


def test_names_from_outside_are_text() -> None:
    page = page_of([course("<script>", [100, 98])])
    assert (
        "<script>"
        not in page[page.index("Participants with dates") :].split("</table>")[0]
    )


@pytest.mark.browser
def test_on_a_phone_nothing_is_wider_than_the_page(tmp_path: Path) -> None:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    page = tmp_path / "changes.html"
    long_name = "participant-" + 40 * "long"
    page.write_text(page_of([course(long_name, [100, 90], group="patients")]))
    assert_fits_desk_and_phone(chromium, page)


def test_few_measurements_have_a_wide_band() -> None:
    table = (files("trinat.configs") / "retest" / "fast.tsv").read_text("utf-8")
    row = next(csv.DictReader(table.splitlines(), delimiter="\t"))
    factor = stats.t.ppf(0.975, int(row["freedom"]))
    assert factor > 1.96
    expected = float(row["sd_percent"]) * factor
    assert retest_of("fast")[row["structure"]] == pytest.approx(expected)


def test_a_model_that_nobody_measured_has_none() -> None:
    assert retest_of("own") == {}
