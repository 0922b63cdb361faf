"""trinat participants: a participants table as trinat reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.ledger import Ledger
from trinat.pipelines.study.participants_check import (
    describe_table,
    match_participants,
    shared_ages,
)
from trinat.pipelines.study.record import ScanResult, TimePoint
from trinat.segmentation.errors import DatasetError


def table(tmp_path: Path) -> Path:
    path = tmp_path / "people.tsv"
    path.write_text(
        "participant_id\tage (months)\tsex\teTIV\n1\t240\tman\t1344\n9\tx\tf\t1500\n"
    )
    return path


def test_rows_columns_units_and_doubts_are_shown(tmp_path: Path) -> None:
    said = list(describe_table(table(tmp_path), None))
    assert said == [
        "# participant: the column 'participant_id'",
        "# age: the column 'age (months)'",
        "# sex: the column 'sex'",
        "# intracranial_mm3: the column 'eTIV'",
        "# eTIV is read as cm³, by its size",
        "participant\tage\tsex\tfamily\tsite\tgroup\tintracranial_cm3",
        "1\t20\tM\t\t\t\t1344",
        "9\t\tF\t\t\t\t1500",
        "# not understood: row 3, age (months): 'x' is no number",
    ]
    with pytest.raises(
        DatasetError, match=r"not understood: row 3, age \(months\): 'x'"
    ):
        list(describe_table(table(tmp_path), None, strict=True))


def test_each_scan_is_shown_with_its_row(tmp_path: Path) -> None:
    for name in ("sub-01_ses-a", "sub-01_ses-b", "sub-02"):
        (tmp_path / f"maps/{name}_dseg.nii.gz").parent.mkdir(exist_ok=True)
        (tmp_path / f"maps/{name}_dseg.nii.gz").touch()
    said = list(describe_table(table(tmp_path), tmp_path / "maps"))
    assert said[5:] == [
        "scan\tparticipant\tsession\trow\tage\tsex\tfamily\tsite\tgroup\tintracranial_cm3",
        "sub-01_ses-a_dseg\tsub-01\tses-a\t1\t20\tM\t\t\t\t1344",
        "sub-01_ses-b_dseg\tsub-01\tses-b\t1\t20\tM\t\t\t\t1344",
        "sub-02_dseg\tsub-02\t\t\t\t\t\t\t\t",
        "# rows without a scan: 9",
        "# not understood: row 3, age (months): 'x' is no number",
        "# not understood: 1 of 2 participants are not in the table: sub-02",
    ]


def test_scans_that_were_segmented_together_are_of_one_participant(
    tmp_path: Path,
) -> None:
    maps = tmp_path / "maps"
    maps.mkdir()
    together = TimePoint(participant="9", volumes_mm3={})
    with Ledger(maps / "run.jsonl") as ledger:
        for name in ("first", "second"):
            (maps / f"{name}_dseg.nii.gz").touch()
            outputs = {f"{name}_dseg.nii.gz": "0"}
            result = ScanResult(longitudinal=together)
            ledger.add(Entry(name, "done", outputs=outputs, result=result))
    said = describe_table(table(tmp_path), maps)
    assert [line.split("\t")[:4] for line in said if "\t9\t" in line] == [
        ["first", "9", "first", "9"],
        ["second", "9", "second", "9"],
    ]


def test_a_line_within_a_name_stays_in_its_cell(tmp_path: Path) -> None:
    (tmp_path / "maps").mkdir()
    (tmp_path / "maps/new\nline_dseg.nii.gz").touch()
    (tmp_path / "maps/sub-1_dseg.nii.gz").touch()
    said = list(describe_table(table(tmp_path), tmp_path / "maps"))
    assert not any("\n" in line for line in said)
    assert any(line.startswith("new\\nline\t") for line in said)


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "maps").mkdir()
    (tmp_path / "maps/sub-1_dseg.nii.gz").touch()
    path = tmp_path / "empty.tsv"
    path.write_text("participant_id\tage\n")
    with pytest.raises(DatasetError, match=r"0 of 1 participants .* it has no rows"):
        list(describe_table(path, tmp_path / "maps"))


def test_all_problems_of_a_refused_table_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "people.tsv"
    path.write_text("participant_id\tage\tsex\na\t61\tF\na\t62\tF\nb\t1\tF\nb\t1\tM\n")
    said: list[str] = []
    with pytest.raises(DatasetError) as caught:
        said.extend(describe_table(path, None))
    assert caught.value.where == str(path)
    refused = [line for line in said if line.startswith("# refused")]
    assert [line.split(":")[1] for line in refused] == [
        " rows 2 and 3",
        " rows 4 and 5",
    ]


@pytest.mark.parametrize(
    "rows",
    [
        # Two participants.
        "anna\t40\tM\nbert\t50\tM\n",
        # One name, and two sexes.
        "a_V1\t40\tM\na_V2\t41\tF\n",
    ],
)
def test_a_participant_with_rows_of_two_participants_is_refused(
    rows: str, tmp_path: Path
) -> None:
    path = tmp_path / "people.tsv"
    path.write_text("participant_id\tage\tsex\n" + rows)
    names = [row.split("\t")[0] for row in rows.splitlines()]
    with pytest.raises(DatasetError) as refused:
        match_participants(path, {(name, "a"): () for name in names})
    assert refused.value.where == str(path)


def test_scans_that_were_segmented_together_may_have_rows_of_any_names(
    tmp_path: Path,
) -> None:
    path = tmp_path / "people.tsv"
    path.write_text("participant_id\tage\tsex\nx\t60\tF\ny\t62\tF\nz\t40\tM\n")
    scans = {("x", "anna"): (), ("y", "anna"): ()}
    matched = match_participants(path, scans, together=["anna"])
    assert [matched.of(*name).age for name in scans] == [60, 62]
    # They are of one sex.
    with pytest.raises(DatasetError):
        match_participants(path, scans | {("z", "anna"): ()}, together=["anna"])


@pytest.mark.parametrize(
    ("rows", "is_named"),
    [
        ("anna\t40\n", True),
        ("anna\tn/a\n", False),
        ("x\t40\ny\t42\n", False),
    ],
)
def test_scans_of_several_years_with_the_age_of_one_row_are_named(
    rows: str, is_named: bool, tmp_path: Path
) -> None:
    path = tmp_path / "people.tsv"
    path.write_text("participant_id\tage\n" + rows)
    years = {("x", "anna"): 2020.0, ("y", "anna"): 2022.0}
    matched = match_participants(path, dict.fromkeys(years, ()), together=["anna"])
    assert ("anna" in shared_ages(matched, years)) == is_named
    assert not shared_ages(matched, years | {("y", "anna"): 2020.5})


def test_rows_of_two_sessions_are_of_one_participant(tmp_path: Path) -> None:
    path = tmp_path / "people.tsv"
    path.write_text(
        "participant_id\tage\tsex\nOAS2_0001_MR1\t80\tM\nOAS2_0001_MR2\t82\tM\n"
    )
    scans = {(f"OAS2_0001_MR{n}", "OAS2_0001"): () for n in (1, 2)}
    assert len(match_participants(path, scans).rows) == 2
