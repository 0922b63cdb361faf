"""Grouping of scans by participant and by time."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from helpers.refusals import refusal

from trinat.pipelines.study.cases import Case, Participant, Refusal
from trinat.pipelines.study.discovery import find_cases
from trinat.pipelines.study.grouping import participants_of, with_facts
from trinat.pipelines.study.participants import Facts
from trinat.segmentation.errors import ConfigError, DatasetError


def cases(*ids: str) -> list[Case]:
    return [Case(one, Path(f"/scans/{one}.nii.gz"), f"{one}.nii.gz") for one in ids]


def scans(participants: list[Participant]) -> dict[str, list[str]]:
    return {
        participant.name: [scan.id for scan in participant.scans]
        for participant in participants
    }


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sessions.tsv"
    path.write_text(text)
    return path


def test_names_of_oasis_and_bids_say_the_participant() -> None:
    given = cases("OAS1_0001_MR1", "d/OAS1_0001_MR2_mpr", "sub-2_ses-a_T1w", "x")
    assert scans(participants_of(given, None, None)) == {
        "OAS1_0001": ["OAS1_0001_MR1", "d/OAS1_0001_MR2_mpr"],
        "sub-2": ["sub-2_ses-a_T1w"],
        "x": ["x"],
    }


def test_a_table_says_participant_date_and_group(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        "scan\tparticipant\tdate\tgroup\na.nii.gz\tp\t2020-01-01\tpatients\n"
        "b.nii.gz\tp\t2021-01-01\tpatients\n",
    )
    (participant,) = participants_of(cases("a", "b"), None, path)
    first, second = participant.years
    assert second - first == pytest.approx(366 / 365.25)
    assert participant.group == "patients"


def test_a_table_may_have_names_in_another_form_of_unicode(tmp_path: Path) -> None:
    path = table(tmp_path, "scan,participant\nÅse_1.nii.gz,p\nÅse_2,p\n")
    given = cases(*(unicodedata.normalize("NFD", f"Åse_{n}") for n in (1, 2)))
    assert scans(participants_of(given, None, path)) == {
        "p": [case.id for case in given]
    }


def test_an_age_is_a_time_too(tmp_path: Path) -> None:
    path = table(tmp_path, "scan,participant,date\na,p,70.5\nb,p,72\n")
    (participant,) = participants_of(cases("a", "b"), None, path)
    assert participant.years == (70.5, 72)


@pytest.mark.parametrize("title", ["scan_date", "Age", "months", "date (months)"])
def test_a_column_like_one_of_times_is_named_where_no_other_is_read(
    tmp_path: Path, title: str, logged: pytest.LogCaptureFixture
) -> None:
    logged.clear()
    path = table(tmp_path, f"scan\tparticipant\t{title}\na\tp\t1\nb\tp\t2\n")
    (participant,) = participants_of(cases("a", "b"), None, path)
    assert participant.years == (None, None)
    what = f"{title.lower()!r} is not read: times are in a column date, years or days"
    assert logged.messages == [f"sessions.tsv: {what}"]
    with_years = table(
        tmp_path, f"scan\tparticipant\t{title}\tdate\na\tp\t1\t2020-01-01\n"
    )
    logged.clear()
    participants_of(cases("a"), None, with_years)
    assert logged.messages == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("scan\tdate\na\t1\n", "needs the columns scan and participant"),
        ("scan\tparticipant\nc\tp\n", "line 2: 'c' is no scan of this run"),
        ("scan\tparticipant\na\tp\na\tq\n", "line 3: 'a' is there twice"),
        ("scan\tparticipant\na\t\n", "line 2: no participant"),
        ("scan\tparticipant\tdate\na\tp\tsoon\n", "line 2: 'soon' is no date"),
        ("", "needs the columns scan and participant"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        participants_of(cases("a", "b"), None, table(tmp_path, text))


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    path = table(tmp_path, "scan\tparticipant\na\t" + "p" * 200_000)
    with refusal(DatasetError, path):
        participants_of(cases("a", "b"), None, path)


def test_what_is_not_known_is_empty_and_spaces_do_not_count(tmp_path: Path) -> None:
    path = table(
        tmp_path, "scan, participant, date, group\na, p, N/A, n/a\nb, p, 72,\n"
    )
    (participant,) = participants_of(cases("a", "b"), None, path)
    assert participant.name == "p"
    assert participant.years == (None, 72)
    assert participant.group == ""


def write_two_sessions(folder: Path, rows: str = "", sessions: str = "") -> None:
    """Write a BIDS dataset of participant 1 with the sessions a and b.

    `rows` is its participants table, and `sessions` are the rows of the table of its sessions.
    """
    for session in ("a", "b"):
        anat = folder / "sub-1" / f"ses-{session}" / "anat"
        anat.mkdir(parents=True)
        (anat / f"sub-1_ses-{session}_T1w.nii.gz").touch()
    (folder / "dataset_description.json").write_text("{}")
    if rows:
        (folder / "participants.tsv").write_text(rows)
    if sessions:
        table = folder / "sub-1" / "sub-1_sessions.tsv"
        table.write_text(f"session_id\tacq_time\n{sessions}")


def test_a_bids_dataset_says_participant_time_and_group(tmp_path: Path) -> None:
    write_two_sessions(
        tmp_path,
        "participant_id\tgroup\nsub-1\told\n",
        "ses-a\t2020-01-01T12:00:00\nses-b\tn/a\n",
    )
    found = find_cases([tmp_path])
    (participant,) = participants_of(found.cases, found.bids_root, None)
    assert participant.name == "sub-1"
    assert participant.group == "old"
    assert participant.years[0] is not None
    assert participant.years[1] is None


def test_a_participant_whose_sessions_are_of_two_groups_is_in_none(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    rows = "participant_id\tgroup\nsub-1_ses-a\tMCI\nsub-1_ses-b\tAD\n"
    write_two_sessions(tmp_path, rows)
    found = find_cases([tmp_path])
    (participant,) = participants_of(found.cases, found.bids_root, None)
    assert participant.group == ""
    assert "sub-1 is in the groups MCI and AD" in logged.messages[0]
    with refusal(DatasetError, tmp_path / "participants.tsv", remedy="--strict"):
        participants_of(found.cases, found.bids_root, None, strict=True)


def test_a_participant_without_a_row_in_the_table_of_its_dataset_is_named(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    write_two_sessions(tmp_path, "participant_id\tgroup\nsub-2\told\n")
    found = find_cases([tmp_path])
    participants_of(found.cases, found.bids_root, None)
    (message,) = logged.messages
    assert message.startswith("participants.tsv: 1 of 1 participants")
    assert message.endswith("sub-1")


def test_one_scan_stays_a_case_of_its_own() -> None:
    participants = participants_of(cases("p_MR1", "p_MR2", "x"), None, None)
    assert [type(participant.unit) for participant in participants] == [
        Participant,
        Case,
    ]


def years(tmp_path: Path, *times: str, column: str = "date") -> list[float | None]:
    rows = [f"{case}\tp\t{time}\n" for case, time in zip("abc", times, strict=False)]
    path = table(tmp_path, f"scan\tparticipant\t{column}\n" + "".join(rows))
    (participant,) = participants_of(cases(*"abc"[: len(times)]), None, path)
    return list(participant.years)


def test_a_date_may_have_no_dashes(tmp_path: Path) -> None:
    first, second = years(tmp_path, "20200101", "20220101")
    assert first is not None
    assert second is not None
    assert second - first == pytest.approx(731 / 365.25)


def test_times_of_two_zones_are_compared(tmp_path: Path) -> None:
    """07:30 of 2 March in UTC, and 16:00 of 1 March."""
    first, second = years(tmp_path, "2020-03-01T23:30-08:00", "2020-03-02T01:00+09:00")
    assert first is not None
    assert second is not None
    assert first - second == pytest.approx(15.5 / 24 / 365.25, rel=1e-4)


def test_the_time_of_a_date_is_its_year_and_equal_numbers_of_days_are_equal_times(
    tmp_path: Path,
) -> None:
    # Ten years and four days after 2000-01-01, of which three have a 29th of February.
    first, second = years(tmp_path, "2010-01-05", "2011-01-05")
    assert first == pytest.approx(2000 + 3657 / 365.25)
    assert second - first == pytest.approx(365 / 365.25)
    for day in ("01-01", "12-31"):
        for year in range(1996, 2028, 2):
            dates = (f"{year}-{day}", f"{year + 1}-{day}")
            found = years(tmp_path, *dates)
            assert [int(time) for time in found] == [year, year + 1]


def test_days_are_days_in_a_column_of_that_name(tmp_path: Path) -> None:
    assert years(tmp_path, "0", "730.5", column="days") == [0, 2]
    assert years(tmp_path, "0", "730.5", column="date (days)") == [0, 2]


@pytest.mark.parametrize(
    ("times", "problem"),
    [
        (
            ("34.5", "2021-03-01"),
            "line 3: '2021-03-01' is a date, and other lines have numbers",
        ),
        (
            ("2021-03-01", "2023"),
            "line 3: '2023' is a number, and other lines have dates",
        ),
        (("0", "730"), "line 3: '730' is no date and no number of years"),
        (("0", "90"), "scans of p are 90 years apart.*call the column days"),
        (("202103", "202303"), "line 2: '202103' is no date and no number of years"),
        (("20201301", "20211301"), "line 2: '20201301' is no date"),
        (("44256", "44986"), "line 2: '44256' is no date"),
    ],
)
def test_times_that_could_be_other_times_are_refused(
    tmp_path: Path, times: tuple[str, str], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        years(tmp_path, *times)


def test_a_missing_scan_takes_no_other_out_of_the_table(tmp_path: Path) -> None:
    (tmp_path / "a.nii").touch()
    (tmp_path / "list.txt").write_text("a.nii\nb.nii\n")
    found = find_cases([tmp_path / "list.txt"])
    for name in ("b", "b.nii"):
        path = table(tmp_path, f"scan\tparticipant\na\tp\n{name}\tp\n")
        groups = participants_of(found.cases, None, path, refusals=found.refusals)
        assert scans(groups) == {"p": ["a"]}


def test_a_row_without_a_scan_is_no_row_of_a_refused_input(tmp_path: Path) -> None:
    path = table(tmp_path, "scan\tparticipant\na\tp\n\tp\n")
    with refusal(ConfigError, path):
        participants_of(cases("a"), None, path, refusals=[Refusal("b", "no scan")])


def test_two_columns_of_times_are_refused(tmp_path: Path) -> None:
    path = table(tmp_path, "scan\tparticipant\tdate\tdays\na\tp\t2020-01-01\t0\n")
    with refusal(ConfigError, path):
        participants_of(cases("a"), None, path)


def test_it_is_said_how_numbers_are_read_and_which_scans_a_table_lacks(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    path = table(tmp_path, "scan\tparticipant\tdate\na\tp\t70.5\n")
    participants_of(cases("a", "b"), None, path)
    assert logged.messages == [
        "sessions.tsv: the numbers in date are read as years",
        "sessions.tsv: 1 of 2 scans are not in it: b.nii.gz",
    ]
    with pytest.raises(DatasetError, match="1 of 2 scans are not in it"):
        participants_of(cases("a", "b"), None, path, strict=True)


def test_a_participant_is_in_one_group(tmp_path: Path) -> None:
    path = table(tmp_path, "scan\tparticipant\tgroup\na\tp\told\nb\tp\tyoung\n")
    with refusal(ConfigError, path):
        participants_of(cases("a", "b"), None, path)


def test_spellings_of_a_group_are_one_group(tmp_path: Path) -> None:
    path = table(
        tmp_path, "scan\tparticipant\tgroup\na\tp\tHC\nb\tp\tHC\nc\tq\thc\nd\tq\tHC\n"
    )
    found = participants_of(cases(*"abcd"), None, path)
    assert [participant.group for participant in found] == ["HC", "HC"]


def test_participants_of_two_sites_stay_apart() -> None:
    given = cases("A/sub-01_ses-1_T1w", "A/sub-01_ses-2_T1w", "B/sub-01_ses-1_T1w")
    assert scans(participants_of(given, None, None)) == {
        "A/sub-01": ["A/sub-01_ses-1_T1w", "A/sub-01_ses-2_T1w"],
        "B/sub-01": ["B/sub-01_ses-1_T1w"],
    }


def test_a_time_of_bids_may_have_no_dashes_and_what_is_none_is_named(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    write_two_sessions(tmp_path, sessions="ses-a\t20210301\nses-b\t34.5\n")
    found = find_cases([tmp_path])
    (participant,) = participants_of(found.cases, found.bids_root, None)
    # 2021-03-01 is 7730 days after 2000-01-01.
    assert participant.years == (2000 + 7730 / 365.25, None)
    assert logged.messages == ["acq_time: sub-1_sessions.tsv, row 3: '34.5' is no date"]


def test_times_of_bids_that_are_a_lifetime_apart_are_not_used(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    write_two_sessions(tmp_path, sessions="ses-a\t1925-01-01\nses-b\t2021-01-01\n")
    found = find_cases([tmp_path])
    (participant,) = participants_of(found.cases, found.bids_root, None)
    assert participant.years == (None, None)
    assert any("sub-1 are 96 years apart" in line for line in logged.messages)


def test_a_session_that_its_table_does_not_have_is_named(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    # A table may lack a time, but a wrong name, such as b for ses-b, is an error.
    write_two_sessions(tmp_path, sessions="ses-a\tn/a\nb\t2021-03-01\n")
    found = find_cases([tmp_path])
    (participant,) = participants_of(found.cases, found.bids_root, None)
    assert participant.years == (None, None)
    assert logged.messages == ["acq_time: sub-1_sessions.tsv has no row ses-b"]


def test_participants_of_one_name_in_two_folders_have_their_own_facts(
    tmp_path: Path,
) -> None:
    rows = "participant_id\tage\tsex\nA/sub-01\t25\tF\nB/sub-01\t70\tM\n"
    path = table(tmp_path, rows)
    told = with_facts(cases("A/sub-01_T1w", "B/sub-01_T1w"), path)
    facts = [case.facts for case in told if case.facts is not None]
    assert [(one.age, one.sex) for one in facts] == [(25, "F"), (70, "M")]


def test_nobody_has_the_facts_of_a_participant_of_the_same_name_elsewhere(
    tmp_path: Path,
) -> None:
    path = table(tmp_path, "participant_id\tage\tsex\nsub-01\t25\tF\nC\t30\tF\n")
    told = with_facts(cases("A/sub-01_T1w", "B/sub-01_T1w", "C"), path)
    assert [case.facts.age if case.facts else None for case in told] == [None, None, 30]


def test_a_scan_has_the_facts_of_the_participant_in_the_table_of_sessions(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    given = cases("001", "002", "003")
    sessions = "scan\tparticipant\n001\t001\n002\t001\n003\t002\n"
    sessions_with_dates = "scan\tparticipant\tyears\n001\t001\t1\n002\t001\t5\n"
    participants = participants_of(given, None, table(tmp_path, sessions))
    path = tmp_path / "participants.tsv"
    path.write_text("participant_id\tage\n001\t25\n002\t70\n")
    told = with_facts(given, path, participants)
    assert [case.facts and case.facts.age for case in told] == [25, 25, 70]
    assert not any("more than a year" in text for text in logged.messages)
    dated = table(tmp_path, sessions_with_dates)
    with_facts(given, path, participants_of(given, None, dated))
    assert any("more than a year" in text for text in logged.messages)


def test_only_a_table_that_was_given_needs_a_row_of_a_scan(tmp_path: Path) -> None:
    path = table(tmp_path, "participant_id\tage\tsex\nsub-01\t25\tF\n")
    given = cases("sub-02_T1w")
    assert [case.facts for case in with_facts(given, path, is_given=False)] == [Facts()]
    with refusal(DatasetError, path):
        with_facts(given, path)


def test_a_table_in_another_folder_names_scans_as_they_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / "sessions").mkdir(exist_ok=True)
        (tmp_path / f"sessions/{name}.nii.gz").touch()
    (tmp_path / "tables").mkdir()
    rows = "scan\tparticipant\nsessions/a.nii.gz\tanna\nsessions/b.nii.gz\tanna\n"
    path = table(tmp_path / "tables", rows)
    monkeypatch.chdir(tmp_path)
    (participant,) = participants_of(find_cases(["sessions"]).cases, None, path)
    assert participant.name == "anna"


@pytest.mark.parametrize(
    ("days", "is_clear"), [("1.400", False), ("33.238", True), ("1400.5", True)]
)
def test_days_that_could_be_thousands_are_refused(
    tmp_path: Path, days: str, is_clear: bool
) -> None:
    path = table(tmp_path, f"scan,participant,days\na,p,0\nb,p,{days}\n")
    if is_clear:
        assert len(participants_of(cases("a", "b"), None, path)) == 1
        return
    with refusal(ConfigError, path):
        participants_of(cases("a", "b"), None, path)
