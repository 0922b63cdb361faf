"""Tables of persons, as datasets come with them."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest

from trinat.segmentation.data.sources.base import Facts, facts_of, read_participants
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
    assert people == OF_IXI
    assert facts_of(people, "IXI002-Guys-0828-T1") == Facts(35.8, "F")
    assert facts_of(people, "IXI0020-Guys-0828-T1") == Facts()


def test_the_table_of_oasis(tmp_path: Path) -> None:
    (tmp_path / "oasis_cross-sectional.csv").write_text(
        "ID,M/F,Hand,Age,Educ,CDR\nOAS1_0001_MR1,F,R,74,2,0\nOAS1_0002_MR1,M,R,55,4,\n"
    )
    people = read_participants(tmp_path / "oasis_cross-sectional.csv")
    assert people == {"OAS1_0001_MR1": Facts(74, "F"), "OAS1_0002_MR1": Facts(55, "M")}
    assert facts_of(people, "OAS1_0002_MR1_mpr-1_anon").age == 55


def test_the_table_of_bids(tmp_path: Path) -> None:
    (tmp_path / "participants.tsv").write_text(
        "participant_id\tage\tsex\tsite\tfamily\nsub-01\t89+\tfemale\tnorth\tn/a\n"
    )
    assert read_participants(tmp_path / "participants.tsv") == {
        "sub-01": Facts(89, "F", site="north")
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name,age\nx,3\n", "has no column 'participant_id'.*IXI_ID"),
        ("IXI_ID,AGE\nIXI2,3\n", "row 2: IXI_ID is a whole number"),
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
    # As every .xls and .xlsx begins: pandas looks at it to choose a reader.
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
    with pytest.raises(DatasetError, match="not an Excel table"):
        read_participants(tmp_path / "IXI.xls")


def test_the_table_of_ixi_as_excel(tmp_path: Path) -> None:
    table = pd.DataFrame(IXI).astype({"IXI_ID": int})
    table.to_excel(tmp_path / "IXI.xlsx", index=False)
    assert read_participants(tmp_path / "IXI.xlsx") == OF_IXI
