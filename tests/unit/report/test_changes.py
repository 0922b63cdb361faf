"""The page of changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.browser import assert_fits_desk_and_phone, find_chromium

from trinat.segmentation.metrics.change import change_of
from trinat.segmentation.report.changes import Course, changes_page


def course(person: str, volumes: list[float], group: str = "", **changes) -> Course:
    years = changes.get("years", [0.0, 2.0])
    change = change_of(volumes, years, 1.0)
    assert change is not None
    cases = [f"{person}-{number}" for number in range(len(volumes))]
    return Course(person, group, "Left-Hippocampus", cases, years, volumes, change, 1.0)


def test_the_largest_change_beside_its_noise_comes_first() -> None:
    page = changes_page([course("still", [100, 100.1]), course("ill", [100, 90])])
    table = page[page.index("The largest first") :]
    assert table.index("ill") < table.index("still")
    assert "of 2 changes" in page
    assert ">yes<" in table


def test_groups_have_their_means() -> None:
    page = changes_page(
        [
            course("a", [100, 98], group="patients"),
            course("b", [100, 100], group="well"),
        ]
    )
    assert "patients: mean ± SD (%)" in page
    # 2 of 99 in two years.
    assert "-1.01" in page.replace("−", "-")


def test_without_dates_the_page_says_so() -> None:
    page = changes_page([course("a", [100, 98], years=[None, None])])
    assert "1 person without dates" in page
    assert "in the table of changes alone" not in page


def test_changes_a_year_and_without_times_have_no_common_mean() -> None:
    page = changes_page(
        [
            course("a", [100, 98]),
            course("b", [100, 98]),
            course("c", [100, 50], years=[2.0, None]),
        ]
    )
    groups = page[page.index("By group") : page.index("The largest first")]
    assert "change a year" in groups
    # 2 of 99 in two years, twice; not the third, which may be of any time.
    assert "-1.01 ± 0.00" in groups.replace("−", "-")
    assert "1 person without dates" in page
    assert "c-0" not in page[: page.index("By group")]


def test_names_from_outside_are_text() -> None:
    page = changes_page([course("<script>", [100, 98])])
    assert (
        "<script>" not in page[page.index("The largest first") :].split("</table>")[0]
    )


@pytest.mark.browser
def test_on_a_phone_nothing_is_wider_than_the_page(tmp_path: Path) -> None:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    page = tmp_path / "changes.html"
    long_name = "person-" + 40 * "long"
    page.write_text(changes_page([course(long_name, [100, 90], group="patients")]))
    assert_fits_desk_and_phone(chromium, page)
