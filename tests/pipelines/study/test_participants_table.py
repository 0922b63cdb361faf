"""ParticipantsTable tables as they come with datasets."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest
from helpers.refusals import refusal

from trinat.pipelines.study.participants import Facts, ParticipantsTable
from trinat.pipelines.study.participants_table import (
    inspect_participants,
    read_participants,
)
from trinat.segmentation.errors import DatasetError

IXI = {
    "IXI_ID": ["2", "12", "12", "646"],
    "SEX_ID (1=m, 2=f)": ["2", "1", "1", "9"],
    "HEIGHT": ["164", "175", "175", "0"],
    "AGE": ["35.8", "", "38.78", ""],
}
OF_IXI = {
    "IXI002": Facts(35.8, "F"),
    "IXI012": Facts(38.78, "M"),
    "IXI646": Facts(),
}


def test_the_table_of_ixi(tmp_path: Path) -> None:
    pd.DataFrame(IXI).to_csv(tmp_path / "IXI.csv", index=False)
    people = read_participants(tmp_path / "IXI.csv")
    assert people.facts == OF_IXI
    scans = [("IXI002-Guys-0828-T1", "IXI002"), ("IXI0020-Guys-0828-T1", "IXI0020")]
    matched = people.match(dict.fromkeys(scans, ()))
    assert matched.of(*scans[0]) == Facts(35.8, "F")
    assert matched.of(*scans[1]) == Facts()
    (doubt,) = people.doubts
    assert doubt.startswith("row 5, SEX_ID (1=m, 2=f): '9'")


def test_the_table_of_oasis(tmp_path: Path) -> None:
    (tmp_path / "oasis_cross-sectional.csv").write_text(
        "ID,M/F,Hand,Age,Educ,CDR\nOAS1_0001_MR1,F,R,74,2,0\nOAS1_0002_MR1,M,R,55,4,\n"
    )
    people = read_participants(tmp_path / "oasis_cross-sectional.csv")
    assert people.facts == {
        "OAS1_0001_MR1": Facts(74, "F"),
        "OAS1_0002_MR1": Facts(55, "M"),
    }
    scan = ("OAS1_0002_MR1_mpr-1_anon", "OAS1_0002")
    assert people.match({scan: ()}).of(*scan).age == 55


def test_the_table_of_bids(tmp_path: Path) -> None:
    (tmp_path / "participants.tsv").write_text(
        "participant_id\tage\tsex\tsite\tfamily\nsub-01\t89+\tfemale\tnorth\tn/a\n"
    )
    assert read_participants(tmp_path / "participants.tsv").facts == {
        "sub-01": Facts(89, "F", site="north")
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name,age\nx,3\n", "has no column 'participant_id'.*IXI_ID"),
        ("IXI_ID,AGE\nIXI2,3\n", "row 2, IXI_ID: 'IXI2' is no whole number"),
    ],
)
def test_another_table_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(DatasetError, match=complaint):
        read_participants(tmp_path / "p.csv")


@pytest.mark.parametrize(
    ("name", "package"), [("IXI.xls", "xlrd"), ("IXI.xlsx", "openpyxl")]
)
def test_excel_names_the_package_that_reads_it(
    tmp_path: Path, name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    # The first bytes of every .xls and .xlsx, by which pandas chooses a reader.
    old = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504)
    (tmp_path / name).write_bytes(old if name.endswith("xls") else _empty_xlsx())
    with pytest.raises(
        DatasetError, match=f"needs the package {package}: pip install {package}"
    ):
        read_participants(tmp_path / name)


def _empty_xlsx() -> bytes:
    import io
    import zipfile

    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:
        archive.writestr("xl/workbook.xml", "")
    return file.getvalue()


def test_what_is_no_excel_table_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "IXI.xls").write_text("IXI_ID,AGE\n2,35\n")
    with refusal(DatasetError, tmp_path / "IXI.xls"):
        read_participants(tmp_path / "IXI.xls")


def test_the_table_of_ixi_as_excel(tmp_path: Path) -> None:
    table = pd.DataFrame(IXI).astype({"IXI_ID": int})
    table.to_excel(tmp_path / "IXI.xlsx", index=False)
    assert read_participants(tmp_path / "IXI.xlsx").facts == OF_IXI


def people_of(tmp_path: Path, text: str, name: str = "people.tsv") -> ParticipantsTable:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return read_participants(path)


def refusal_of(tmp_path: Path, text: str, name: str = "people.tsv") -> str:
    with pytest.raises(DatasetError) as caught:
        people_of(tmp_path, text, name)
    return str(caught.value)


# Columns and units


def test_an_age_is_not_the_age_at_onset(tmp_path: Path) -> None:
    people = people_of(tmp_path, "participant_id\tage\tage at onset\na\t61\t21\n")
    assert people.facts["a"].age == 61


def test_a_column_that_is_like_one_of_ours_is_named(tmp_path: Path) -> None:
    people = people_of(tmp_path, "participant_id\tage at onset\na\t21\n")
    assert people.facts["a"].age is None
    assert "'age at onset' is not read as the age" in people.doubts[0]


@pytest.mark.parametrize(
    ("title", "age"), [("age (at scan)", 21), ("age (at onset)", None)]
)
def test_what_stands_in_brackets_is_read_too(
    tmp_path: Path, title: str, age: int | None
) -> None:
    people = people_of(tmp_path, f"participant_id\t{title}\na\t21\n")
    assert people.facts["a"].age == age


@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("Date of birth", "age"),
        ("dob", "age"),
        ("scan_age", "age"),
        ("PTGENDER", "sex"),
        ("TIV", "intracranial volume"),
    ],
)
def test_a_title_with_a_word_of_ours_is_named_where_nothing_else_is_read(
    tmp_path: Path, title: str, kind: str
) -> None:
    people = people_of(tmp_path, f"participant_id\t{title}\na\t1\n")
    assert f"{title!r} is not read as the {kind}" in people.doubts[0]
    plain = "participant_id\tage\tsex\teTIV\tdob\na\t61\tF\t1400000\t1960\n"
    assert people_of(tmp_path, plain).doubts == ()


def test_a_column_that_is_read_as_one_thing_is_not_named_as_another(
    tmp_path: Path,
) -> None:
    people = people_of(tmp_path, "participant_id\tsex_at_birth\na\tF\n")
    assert people.facts["a"].sex == "F"
    assert people.doubts == ()


@pytest.mark.parametrize(("title", "unit"), [("scan_age", "years"), ("TIV", "mm3")])
def test_a_title_that_is_not_ours_has_a_unit_that_is_known(
    tmp_path: Path, title: str, unit: str
) -> None:
    (tmp_path / "people.json").write_text(f'{{"{title}": {{"Units": "{unit}"}}}}')
    people = people_of(tmp_path, f"participant_id\t{title}\na\t36\n")
    assert people.doubts[0].endswith(": give the column a plain title if it is")


@pytest.mark.parametrize(
    ("title", "cell", "years"),
    [
        ("age (months)", "240", 20),
        ("age_months", "18", 1.5),
        ("Age [days]", "730.5", 2),
        ("AGE (years)", "61", 61),
        ("age_at_scan", "61", 61),
    ],
)
def test_an_age_has_the_unit_of_its_title(
    tmp_path: Path, title: str, cell: str, years: float
) -> None:
    people = people_of(tmp_path, f"participant_id\t{title}\na\t{cell}\n")
    assert people.facts["a"].age == years
    assert people.columns["age"] == title


@pytest.mark.parametrize(
    ("unit", "years"),
    [("years old", 36), ("month(s)", 3), ("Yr.", 36), ("n/a", 36), ("lustra", None)],
)
def test_a_unit_beside_the_table_is_understood_or_its_ages_are_not_read(
    tmp_path: Path, unit: str, years: float | None
) -> None:
    (tmp_path / "people.json").write_text(f'{{"age": {{"Units": "{unit}"}}}}')
    people = people_of(tmp_path, "participant_id\tage\na\t36\n")
    assert people.facts["a"].age == years
    said = ("'age' is not read as the age: its unit 'lustra' is not known",)
    assert people.doubts == (said if years is None else ())


def test_a_unit_may_be_in_the_file_beside_the_table(tmp_path: Path) -> None:
    (tmp_path / "people.json").write_text(
        '{"age": {"Units": "months"}, "sex": {"Levels": {"1": "male", "2": "female"}}}'
    )
    people = people_of(tmp_path, "participant_id\tage\tsex\na\t18\t2\n")
    assert people.facts["a"] == Facts(1.5, "F")


@pytest.mark.parametrize(
    "levels",
    [
        '{"M": "male participant", "F": "female participant"}',
        '{"M": {"description": "male"}, "F": {"Description": "female"}}',
    ],
)
def test_a_clear_sex_stays_clear_with_a_description_of_its_words(
    tmp_path: Path, levels: str
) -> None:
    (tmp_path / "people.json").write_text(f'{{"sex": {{"Levels": {levels}}}}}')
    people = people_of(tmp_path, "participant_id\tsex\na\tF\nb\tM\n")
    assert [people.facts[name].sex for name in "ab"] == ["F", "M"]


def test_two_columns_of_one_thing_are_refused_unless_they_agree(tmp_path: Path) -> None:
    text = "participant_id\tage\tage (months)\na\t2\t24\n"
    assert people_of(tmp_path, text).facts["a"].age == 2
    assert "row 3: the columns 'age' and 'age (months)' are both" in refusal_of(
        tmp_path, text + "b\t2\t30\n"
    )


def test_a_title_that_stands_twice_is_two_columns(tmp_path: Path) -> None:
    text = "participant_id\tage\tage\na\t61\t21\n"
    assert "row 2: the columns 'age' and 'age'" in refusal_of(tmp_path, text)


def test_oasis_has_its_head_sizes_in_cm3(tmp_path: Path) -> None:
    text = "ID,M/F,Age,eTIV\nOAS1_0001_MR1,F,74,1344\n"
    people = people_of(tmp_path, text, "oasis.csv")
    assert people.facts["OAS1_0001_MR1"].intracranial_mm3 == 1_344_000
    assert people.notes == ("eTIV is read as cm³, by its size",)


def test_the_limits_of_a_head_are_said_in_full(tmp_path: Path) -> None:
    people = people_of(tmp_path, "participant_id\teTIV (mm3)\na\t1344\n")
    assert people.doubts[0].endswith("volume from 700,000 to 2,300,000 mm³")


def test_head_sizes_in_two_units_are_refused(tmp_path: Path) -> None:
    text = "participant_id\teTIV\na\t1344\nb\t1344000\n"
    assert "eTIV is in cm³ (row 2) and mm³ (row 3)" in refusal_of(tmp_path, text)


# Cells


@pytest.mark.parametrize("cell", ["999", "-1", "44,000", "old", "121"])
def test_what_is_no_age_is_named_by_row_and_column(tmp_path: Path, cell: str) -> None:
    people = people_of(tmp_path, f"participant_id\tage\na\t61\nb\t{cell}\n")
    assert people.facts["b"].age is None
    (doubt,) = people.doubts
    assert doubt.startswith(f"row 3, age: {cell!r}")


@pytest.mark.parametrize(
    ("cell", "sex"),
    [
        ("man", "M"),
        ("Male", "M"),
        ("hombre", "M"),
        ("mujer", "F"),
        ("f", "F"),
        ("WOMAN", "F"),
        ("missing", None),
        ("mixed", None),
        ("3", None),
    ],
)
def test_a_sex_is_a_word_of_a_list(tmp_path: Path, cell: str, sex: str | None) -> None:
    people = people_of(tmp_path, f"participant_id\tsex\na\t{cell}\nb\t{cell}\n")
    assert people.facts["a"].sex == sex
    if sex:
        assert people.doubts == ()
        return
    (doubt,) = people.doubts
    assert doubt.startswith(f"row 2 and 1 more, sex: {cell!r}")


def test_m_beside_h_may_be_a_woman(tmp_path: Path) -> None:
    text = "participant_id\tsex\na\tH\nb\tM\n"
    assert "M could be a man or a woman" in refusal_of(tmp_path, text)


def test_codes_of_a_title_count_either_way_round(tmp_path: Path) -> None:
    for codes in ("0 = female, 1 = male", "F: 0, M: 1"):
        people = people_of(tmp_path, f"participant_id\tsex ({codes})\na\t0\nb\t1\n")
        assert [facts.sex for facts in people.facts.values()] == ["F", "M"]


def test_names_are_names_and_nothing_is_nothing(tmp_path: Path) -> None:
    text = "participant_id\tage\tgroup\nNA\t1\tNone\nnan\t2\tunknown\nc\tNA\tn/a\n"
    people = people_of(tmp_path, text)
    assert people.facts == {
        "NA": Facts(1, group="None"),
        "nan": Facts(2, group="unknown"),
        "c": Facts(),
    }
    assert people.doubts == ()


def test_participants_whose_family_is_not_known_are_no_relatives(
    tmp_path: Path,
) -> None:
    text = "participant_id\tfamily\na\tNA\nb\tnone\nc\tF1\n"
    people = people_of(tmp_path, text)
    assert [facts.family for facts in people.facts.values()] == [None, None, "F1"]


# Rows


def test_a_quote_in_a_remark_swallows_no_rows(tmp_path: Path) -> None:
    text = 'participant_id\tremark\tage\na\t6" plate\t61\nb\tx\t62\nc\t"y"\t63\n'
    assert {
        name: facts.age for name, facts in people_of(tmp_path, text).facts.items()
    } == {
        "a": 61,
        "b": 62,
        "c": 63,
    }


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("p.tsv", "participant_id\tage\na\n", "row 2: 1 cells under 2 titles"),
        ("p.tsv", "participant_id\tage\na\t1\t2\n", "row 2: 3 cells under 2 titles"),
        ("p.csv", "participant_id,age\n\na,61,5\n", "row 3: 3 cells under 2 titles"),
        (
            "p.csv",
            'participant_id,age,x\na,1,"b\nc,2,d"\n',
            "row 2, x: a cell of several",
        ),
        ("p.csv", 'participant_id,age\na,"1\nb,2\n', "not a table"),
    ],
)
def test_a_row_of_another_length_is_named(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    assert problem in refusal_of(tmp_path, text, name)


def test_empty_cells_beyond_the_titles_and_empty_rows_are_nothing(
    tmp_path: Path,
) -> None:
    people = people_of(tmp_path, "participant_id,age\na,1,,\n,,\nb,2\n", "p.csv")
    assert list(people.facts) == ["a", "b"]


def test_semicolons_and_decimal_commas_are_a_spreadsheet_s(tmp_path: Path) -> None:
    text = "\ufeffparticipant_id;age;sex (1=m, 2=f)\r\na;61,5;2\r\n"
    assert people_of(tmp_path, text, "p.csv").facts == {"a": Facts(61.5, "F")}


def test_a_participant_who_is_there_twice_with_other_facts_is_refused(
    tmp_path: Path,
) -> None:
    text = "participant_id\tage\tsex\na\t61\t\na\t\tM\n"
    assert people_of(tmp_path, text).facts == {"a": Facts(61, "M")}
    complaint = refusal_of(tmp_path, text + "a\t21\tM\n")
    assert "rows 2 and 4: a has the age 61.0 and 21.0" in complaint


def test_a_second_column_of_groups_is_named_where_it_differs(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("participant_id,group,diagnosis\n1,control,AD\n2,patient,AD\n")
    read = read_participants(path)
    assert {facts.group for facts in read.facts.values()} == {"control", "patient"}
    assert "'diagnosis' is not read, as 'group' is" in read.notes
    path.write_text("participant_id,group,diagnosis\n1,a,a\n2,b,b\n")
    assert not any("diagnosis" in note for note in read_participants(path).notes)


# The key


@pytest.mark.parametrize(
    "title", ["participant_id", "Subject ID", "subject_id", "PTID", "ID", "SubjectID"]
)
def test_participants_are_named_by_one_of_several_titles(
    tmp_path: Path, title: str
) -> None:
    people = people_of(tmp_path, f"{title}\tage\nsub-01\t61\n")
    assert people.facts == {"sub-01": Facts(61)}
    assert people.columns["participant"] == title


def test_two_columns_that_could_name_the_participants_are_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(DatasetError) as caught:
        people_of(tmp_path, "PTID\tID\tage\na\tb\t61\n")
    assert "'PTID' and 'ID'" in str(caught.value)
    # BIDS defines which of the two columns it is.
    people = people_of(tmp_path, "ID\tparticipant_id\tage\nscan7\tsub-01\t61\n")
    assert list(people.facts) == ["sub-01"]


# Spellings


def test_names_that_differ_in_case_or_blanks_are_one(tmp_path: Path) -> None:
    people = people_of(
        tmp_path,
        "participant_id\tgroup\tsite\n"
        "a\tHC\tHamburg\nb\thc \thamburg\nc\tHC\thamburg\nd\tAD\tHamburg\n",
    )
    assert [facts.group for facts in people.facts.values()] == ["HC", "HC", "HC", "AD"]
    assert {facts.site for facts in people.facts.values()} == {"Hamburg"}
    assert people.notes == (
        "site: 'Hamburg' and 'hamburg' are read as one, 'Hamburg'",
        "group: 'HC' and 'hc' are read as one, 'HC'",
    )


def test_accents_may_be_written_in_two_ways(tmp_path: Path) -> None:
    composed, apart = "\u00e9", "e\u0301"
    rows = "".join(f"{n}\t{name}\n" for n, name in enumerate((composed, apart)))
    people = people_of(tmp_path, f"participant_id\tgroup\n{rows}")
    assert {facts.group for facts in people.facts.values()} == {composed}


# All problems at once


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    text = (
        "participant_id\tage\tage (months)\teTIV\n"
        "a\t61\t732\t1344\na\t62\t744\t\nb\t2\t30\t1344000\n"
    )
    found = inspect_participants(_written(tmp_path, text))
    assert [problem.partition(":")[0] for problem in found.problems] == [
        "eTIV is in cm³ (row 2) and mm³ (row 4) (write all rows in one unit)",
        "row 4",
        "rows 2 and 3",
    ]
    with pytest.raises(DatasetError) as caught:
        read_participants(tmp_path / "people.tsv")
    assert all(problem in str(caught.value) for problem in found.problems)


def test_all_rows_of_another_length_are_reported_together(tmp_path: Path) -> None:
    said = refusal_of(tmp_path, "participant_id\tage\na\nb\t61\nc\t1\t2\n")
    assert "row 2" in said
    assert "row 4" in said


def _written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "people.tsv"
    path.write_text(text, "utf-8")
    return path


# Units, codes and titles that are easily missed


@pytest.mark.parametrize(
    "described",
    [
        '{"age": {"Units": "months"}}',
        '{"Age": {"Unit": "months"}}',
        '{"AGE": {"units": "Months"}}',
        '{"Age": {"Description": "Age of the participant in months, at the scan"}}',
    ],
)
def test_the_unit_of_ages_is_found_in_any_spelling(
    tmp_path: Path, described: str
) -> None:
    (tmp_path / "people.json").write_text(described)
    people = people_of(tmp_path, "participant_id\tAge\na\t96\n")
    assert people.facts["a"].age == 8


def test_codes_of_sex_are_read_in_the_table_of_ixi_alone(tmp_path: Path) -> None:
    people = people_of(tmp_path, "participant_id\tsex_id\na\t1\nb\t2\n")
    assert {facts.sex for facts in people.facts.values()} == {None}
    assert [doubt.partition(",")[0] for doubt in people.doubts] == ["row 2", "row 3"]
    ixi = people_of(tmp_path, "IXI_ID\tsex_id\n1\t1\n2\t2\n")
    assert [facts.sex for facts in ixi.facts.values()] == ["M", "F"]


@pytest.mark.parametrize(
    ("titles", "cells", "facts"),
    [
        ("Alter\tGeschlecht", "61,5\tweiblich", Facts(61.5, "F")),
        ("edad\tsexo", "61\thombre", Facts(61, "M")),
        ("age\tsexe", "61\tfemme", Facts(61, "F")),
        ("age\tsesso", "61\tmaschio", Facts(61, "M")),
        ("AgeMonths\tsex", "732\tM", Facts(61, "M")),
        ("AgeYears\tsex", "61\tM", Facts(61, "M")),
    ],
)
def test_titles_of_other_languages_and_without_spaces_are_read(
    tmp_path: Path, titles: str, cells: str, facts: Facts
) -> None:
    people = people_of(tmp_path, f"participant_id\t{titles}\na\t{cells}\n")
    assert people.facts["a"] == facts
    assert people.doubts == ()


@pytest.mark.parametrize("title", ["Alter (Monate)", "Geburtsdatum", "âge", "età"])
def test_titles_that_look_like_an_age_are_reported(tmp_path: Path, title: str) -> None:
    people = people_of(tmp_path, f"participant_id\t{title}\na\t1\n")
    assert people.facts["a"].age is None
    assert repr(title) in people.doubts[0]
