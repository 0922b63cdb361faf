"""ratings.tsv: preserved whatever it contains, and the agreement of raters."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import pytest
from helpers.refusals import refusal

from trinat.pipelines.study.ratings import (
    VERDICTS,
    Rating,
    agreement_table,
    read_ratings,
    rejections,
    save_rating,
)
from trinat.segmentation.errors import DatasetError
from trinat.segmentation.inference.checks.limits import GradeName
from trinat.segmentation.io.files import read_rows


def rating(scan: str = "a", rater: str = "anna", **facts: str) -> Rating:
    known = {"structure": "", "rating": "pass", "remark": "", "sha256": "0", **facts}
    return Rating(scan=scan, rater=rater, rated="2026-01-01T00:00:00+00:00", **known)


def test_verdicts_are_the_grades_of_results() -> None:
    assert get_args(GradeName) == VERDICTS


@pytest.mark.parametrize(
    "remark", ["=1+1", "-", "'quoted", 'a "b"', "unknown", "", "日本, ü"]
)
def test_a_remark_comes_back_as_it_was_said(tmp_path: Path, remark: str) -> None:
    path = tmp_path / "ratings.tsv"
    for scan in ("a", "b"):  # existing rows are written again
        save_rating(path, rating(scan, remark=remark), lock=tmp_path / "lock")
    assert [r.remark for r in read_ratings(path)] == [remark, remark]


def test_columns_of_a_users_own_stay_in_the_table(tmp_path: Path) -> None:
    path = tmp_path / "ratings.tsv"
    save_rating(path, rating("a"), lock=tmp_path / "lock")
    header, row = path.read_text().splitlines()
    path.write_text(f"{header}\tnote\n{row}\task\n")
    for scan in ("b", "a"):
        save_rating(path, rating(scan, rating="look"), lock=tmp_path / "lock")
    rows = read_rows(path, required=("note",))
    assert [(row["scan"], row["rating"], row["note"]) for row in rows] == [
        ("b", "look", ""),
        ("a", "look", "ask"),
    ]


def test_ratings_that_are_saved_at_once_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "ratings.tsv"

    def save(n: int) -> None:
        save_rating(path, rating(f"scan{n}"), lock=tmp_path / "lock")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(save, range(16)))
    assert sorted(r.scan for r in read_ratings(path)) == sorted(
        f"scan{n}" for n in range(16)
    )


def test_a_rating_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ratings.tsv"
    save_rating(path, rating(), lock=tmp_path / "lock")
    path.write_text(path.read_text().replace("pass", "fine"))
    with pytest.raises(DatasetError, match="'fine'"):
        read_ratings(path)


def test_ratings_in_another_encoding_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ratings.tsv"
    save_rating(path, rating(), lock=tmp_path / "lock")
    path.write_bytes(path.read_bytes() + "é".encode("latin-1"))
    with refusal(DatasetError, path, remedy="UTF-8"):
        read_ratings(path)


def test_a_rating_that_is_none_is_refused_behind_an_empty_one_too(
    tmp_path: Path,
) -> None:
    columns = "scan\tstructure\trating\tremark\trater\trated\tsha256"
    lines = ["a\tn/a\tn/a\tn/a\tanna\tn/a\tx", "b\tn/a\tfine\tn/a\tanna\tn/a\tx"]
    (tmp_path / "ratings.tsv").write_text("\n".join([columns, *lines]) + "\n")
    with refusal(DatasetError, tmp_path / "ratings.tsv"):
        read_ratings(tmp_path / "ratings.tsv")


def test_rejections_say_of_what_and_by_whom() -> None:
    found = rejections(
        [
            rating(rating="reject", sha256="x"),
            rating(rater="berta", rating="reject", sha256="x"),
            rating(structure="CSF", rating="reject", sha256="y"),
            rating(rating="look", sha256="z"),
        ]
    )
    assert found == {"x": {"": "anna, berta"}, "y": {"CSF": "anna"}}


def test_two_raters_agree_by_what_both_said_of_the_bytes_that_are_there() -> None:
    ratings = [
        rating("a", rating="pass"),
        rating("b", rating="reject"),
        rating("c", rating="pass"),
        rating("a", "berta", rating="pass"),
        rating("b", "berta", rating="pass"),
        rating("c", "berta", rating="pass", sha256="changed since"),
        rating("c", rating="pass", sha256="changed since"),
        rating("d", rating="pass"),
        rating("d", "berta", rating="reject"),
        # Withdrawn in the file by hand.
        rating("d", "berta", rating=""),
    ]
    (row,) = agreement_table(ratings, seen={"0"}).to_dict("records")
    # Equal in 1 of 2. By chance: anna passes 1/2, berta all: 1/2. So kappa is 0.
    assert row["rated_by_both"] == 2
    assert row["same_percent"] == 50
    assert row["kappa"] == 0
