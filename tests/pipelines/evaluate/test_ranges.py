"""Tables of expected volumes: accepted and refused ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.refusals import refusal

from trinat.pipelines.evaluate.user_tables import read_ranges
from trinat.pipelines.report.cohort import Range, Scan, cohort_of
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.labels.scheme import load_scheme


def ranges(tmp_path: Path, text: str) -> list[Range]:
    path = tmp_path / "ranges.tsv"
    path.write_text(text)
    return read_ranges(path, load_scheme("quicknat33"))


def ranges_of(tmp_path: Path, *lines: str) -> list[Range]:
    rows = ["structure\tlow_mm3\thigh_mm3\tsex\tage_from\tage_to", *lines]
    return ranges(tmp_path, "\n".join(rows) + "\n")


def participant(age: float) -> Scan:
    return Scan("a", "", {}, sex="M", age=age)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Left-Nothing\t1\t2\t\t\t", ": quicknat33 has no 'Left-Nothing'"),
        ("17\tx\t2\t\t\t", ", low_mm3: 'x' is no number"),
        ("17\t3\t2\t\t\t", ": low_mm3 is above high_mm3"),
        ("17\t1\t2\tX\t\t", ", sex: 'X' is not understood"),
        ("17\t1\t2\t\t90\t20", ": age_from is above age_to"),
        ("17\t1\t2\t\tyoung\t20", ", age_from: 'young' is no number"),
    ],
)
def test_wrong_ranges_are_refused_by_their_line(
    line: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "ranges.tsv"
    titles = "structure\tlow_mm3\thigh_mm3\tsex\tage_from\tage_to"
    path.write_text(f"{titles}\n{line}\n")
    with pytest.raises(ConfigError, match=f"line 2{message}"):
        read_ranges(path, load_scheme("quicknat33"))


@pytest.mark.parametrize("word", ["all", "both", "Any", ""])
def test_a_range_may_say_that_it_is_for_both_sexes(tmp_path: Path, word: str) -> None:
    (limits,) = ranges_of(tmp_path, f"17\t1\t2\t{word}\t\t")
    assert limits.fits(participant(30))


def test_a_range_to_a_whole_year_includes_its_last_day(tmp_path: Path) -> None:
    first, second = ranges_of(tmp_path, "17\t1\t2\t\t20\t29", "17\t1\t2\t\t30\t39")
    assert [first.fits(participant(age)) for age in (20, 29.5, 30)] == [
        True,
        True,
        False,
    ]
    assert [second.fits(participant(age)) for age in (29.5, 30)] == [False, True]


def test_a_range_ends_where_another_begins(tmp_path: Path) -> None:
    first, _ = ranges_of(tmp_path, "17\t1\t2\t\t20\t30", "17\t1\t2\t\t30\t40")
    assert [first.fits(participant(age)) for age in (30, 30.5)] == [True, False]


@pytest.mark.parametrize(
    ("limits", "sense"),
    [
        ("2.800\t4.600", "could be thousands or decimals"),
        ("412.345\t1080.500", None),
    ],
)
def test_limits_that_could_be_thousands_are_refused(
    tmp_path: Path, limits: str, sense: str | None
) -> None:
    table = f"structure\tlow_mm3\thigh_mm3\nLeft-Hippocampus\t{limits}\n\t\t\n"
    if sense is None:
        assert len(ranges(tmp_path, table)) == 1
        return
    with pytest.raises(ConfigError, match=sense):
        ranges(tmp_path, table)


@pytest.mark.parametrize("title", ["age", "age_max", "Sex", "gender"])
def test_a_column_of_participants_that_ranges_do_not_have_is_refused(
    tmp_path: Path, title: str
) -> None:
    table = f"structure\tlow_mm3\thigh_mm3\t{title}\nBrain-Stem\t1\t2\t60\n"
    with pytest.raises(ConfigError, match=f"the column '{title}' is not understood"):
        ranges(tmp_path, table)


def test_a_range_of_one_sex_ends_where_another_of_both_begins(tmp_path: Path) -> None:
    table = (
        "structure\tlow_mm3\thigh_mm3\tsex\tage_from\tage_to\n"
        "Brain-Stem\t1\t2\tF\t20\t29\nBrain-Stem\t1\t3\t\t29\t90\n"
    )
    assert [limits.age_to for limits in ranges(tmp_path, table)] == [
        29,
        pytest.approx(91),
    ]


def test_a_range_of_both_sexes_ends_where_one_of_either_begins(tmp_path: Path) -> None:
    table = (
        "structure\tlow_mm3\thigh_mm3\tsex\tage_from\tage_to\n"
        "17\t3000\t4000\t\t20\t30\n17\t2500\t3500\tF\t30\t40\n"
    )
    # For a woman of 30.5 only the second row applies.
    assert ranges(tmp_path, table)[0].age_to == 30


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("17\t1\t2\t\t\t", "Left-Hippocampus\t3\t4\t\t\t"),
        ("17\t1\t2\t\t\t", "17\t3\t4\tF\t60\t90"),
        ("17\t1\t2\tF\t20\t35", "17\t3\t4\tF\t30\t40"),
    ],
)
def test_two_ranges_for_the_same_participants_are_refused(
    tmp_path: Path, one: str, other: str
) -> None:
    with refusal(ConfigError, tmp_path / "ranges.tsv"):
        ranges_of(tmp_path, one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("17\t1\t2\tF\t20\t30", "17\t3\t4\tM\t20\t30"),
        ("17\t1\t2\t\t20\t30", "18\t3\t4\t\t20\t30"),
    ],
)
def test_ranges_of_two_sexes_or_structures_may_have_the_same_ages(
    tmp_path: Path, one: str, other: str
) -> None:
    first, second = ranges_of(tmp_path, one, other)
    assert (first.low_mm3, second.low_mm3) == (1, 3)


@pytest.mark.parametrize("ages_rise", [True, False])
def test_at_the_age_where_a_range_begins_it_alone_applies(
    tmp_path: Path, ages_rise: bool
) -> None:
    rows = ["17\t100\t200\t\t20\t30", "17\t300\t400\t\t30\t40"]
    if not ages_rise:
        rows.reverse()
    limits = ranges_of(tmp_path, *rows)
    scans = [
        Scan(f"{age} {mm3}", "", {"Left-Hippocampus": mm3}, sex="M", age=age)
        for age in (29.0, 30.0)
        for mm3 in (150.0, 350.0)
    ]
    found = cohort_of(scans, load_scheme("quicknat33"), limits)
    volumes = found.frame[found.frame["metric"] == "volume"]
    assert [note[:5] for note in volumes["note"]] == ["", "above", "below", ""]
