"""The user's own table as a label scheme."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.numbers import QUICKNAT, fold
from helpers.refusals import refusal

from trinat.segmentation.errors import LabelError
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme

HEADER = "index\tname\tfreesurfer\tside\tpartner\tcolor\tabbreviation\tgroup"
BACKGROUND = "0\tbackground\t0\tn/a\tn/a\t#000000\tBG\tbackground"
LEFT = "1\tLeft-Thing\t10\tleft\t2\t#00760E\tL-T\tthings"
RIGHT = "2\tRight-Thing\t49\tright\t1\t#00760E\tR-T\tthings"


def write(folder: Path, *lines: str) -> Path:
    path = folder / "mine.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_an_own_table_is_a_scheme(tmp_path: Path) -> None:
    scheme = load_scheme(write(tmp_path, HEADER, BACKGROUND, LEFT, RIGHT))
    assert (scheme.name, scheme.names) == (
        "mine",
        ("background", "Left-Thing", "Right-Thing"),
    )
    assert scheme.labels[1].color == (0, 118, 14)
    assert len(scheme.merged.scheme) == 2
    with pytest.raises(LabelError, match=r"are not in \S+: 2 "):
        fold(2, scheme=scheme)


def test_a_quotation_that_does_not_end_is_no_table(tmp_path: Path) -> None:
    for lines in ((f'"{HEADER}', BACKGROUND), (HEADER, f'"{BACKGROUND}')):
        with refusal(LabelError, tmp_path / "mine.tsv"):
            load_scheme(write(tmp_path, *lines))


def test_an_own_class_goes_before_the_folding_table(tmp_path: Path) -> None:
    parcel = "1\tctx-lh-precuneus\t1025\tn/a\tn/a\t#A08CB4\tPC\tcortical"
    rest = "2\tctx-lh\t3\tn/a\tn/a\t#CD3E4E\tCC\tcortical"
    assert fold(
        1025,
        1024,
        3,
        scheme=load_scheme(write(tmp_path, HEADER, BACKGROUND, parcel, rest)),
    ) == [1, 2, 2]


def test_members_join_their_class(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        HEADER + "\tmembers",
        BACKGROUND + "\tn/a",
        LEFT + "\t10 11",
        RIGHT + "\tn/a",
    )
    assert fold(10, 11, 49, scheme=load_scheme(path)) == [1, 1, 2]


def test_a_spreadsheets_byte_order_mark_is_no_column(tmp_path: Path) -> None:
    path = tmp_path / "mine.tsv"
    path.write_text("\n".join([HEADER, BACKGROUND, LEFT, RIGHT]), encoding="utf-8-sig")
    assert len(load_scheme(path)) == 3


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([HEADER.replace("\tcolor", ""), BACKGROUND], "has no column 'color'"),
        ([HEADER + "\tcolour", BACKGROUND], "has an unknown column 'colour'"),
        ([HEADER, BACKGROUND + "\textra"], "line 2: has more or fewer cells"),
        ([HEADER, "0\tbackground"], "line 2: has more or fewer cells"),
        ([HEADER, BACKGROUND], "has 1 classes"),
        ([HEADER, BACKGROUND, LEFT.replace("1\t", "one\t", 1)], "line 3: index 'one' is no whole"),
        ([HEADER, BACKGROUND, LEFT.replace("10", "-10")], "freesurfer '-10' is no whole"),
        ([HEADER, BACKGROUND, LEFT.replace("10", "99999"), RIGHT], "99999 of Left-Thing is not in"),
        ([HEADER, BACKGROUND, LEFT.replace("#00760E", "green")], "'green' is no colour"),
        ([HEADER, BACKGROUND, LEFT.replace("\tleft", "\tport")], "'port' is no side"),
        ([HEADER, BACKGROUND, LEFT.replace("Left-Thing", "")], "name is empty"),
        ([HEADER, LEFT, RIGHT], "indices do not count up from 0"),
        ([HEADER, BACKGROUND.replace("\t0\t", "\t7\t"), LEFT, RIGHT], "class 0 is background"),
        ([HEADER, BACKGROUND, LEFT, RIGHT.replace("49", "10")], "FreeSurfer number 10 occurs"),
        ([HEADER, BACKGROUND, LEFT, RIGHT.replace("Right", "Left")], "name Left-Thing occurs"),
        ([HEADER, BACKGROUND, LEFT.replace("\t2\t", "\t5\t")], "partner 5 of Left-Thing is no"),
        ([HEADER, BACKGROUND, LEFT, RIGHT.replace("\t1\t", "\tn/a\t")], "not the other way round"),
        ([HEADER, BACKGROUND, LEFT, RIGHT.replace("\tright", "\tleft")], "not one left and one"),
        ([HEADER + "\tmembers", BACKGROUND + "\t0", LEFT + "\t10 49", RIGHT + "\t49"],
         "member 49 occurs twice"),
        ([HEADER + "\tmembers", BACKGROUND + "\t0", LEFT + "\tten", RIGHT + "\t"],
         "members 'ten' is no whole number"),
        ([HEADER + "\trim_of", BACKGROUND + "\tn/a", LEFT + "\t9", RIGHT + "\tn/a"],
         "Left-Thing is the rim of 9, which is no class"),
        ([""], "has no column 'index'"),
    ],
)  # fmt: skip
def test_a_table_that_is_no_scheme_is_refused(
    tmp_path: Path, lines: list[str], message: str
) -> None:
    path = write(tmp_path, *lines)
    with pytest.raises(LabelError, match=message) as refused:
        load_scheme(path)
    assert str(refused.value).startswith(f"{path}")


def test_a_table_of_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.tsv"
    path.write_bytes(b"\xff\xfe\x00index")
    with refusal(LabelError, path):
        load_scheme(path)


def test_too_many_classes_are_refused() -> None:
    labels = [
        replace(QUICKNAT.labels[0], index=i, fs_id=i, name=f"class {i}")
        for i in range(255)
    ]
    with pytest.raises(LabelError, match="has 255 classes, not 2 to 254"):
        LabelScheme("crowd", tuple(labels))
