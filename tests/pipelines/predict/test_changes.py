"""Tables of changes, computed from the ledger."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.serial import table

from trinat.pipelines.predict.changes import write_changes
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.record import (
    LesionResult,
    LesionsResult,
    ScanResult,
    SheetResult,
    ThicknessResult,
)
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.models.zoo import MODEL_FILE, find_model

pytestmark = pytest.mark.usefixtures("without_figures")

OF_FAST = sha256_of(find_model("fast") / MODEL_FILE)


def scan(
    case: str,
    mm3: float,
    year: float | None,
    together: str = "",
    finished: str = "1",
    **result: object,
) -> Entry:
    """Return the entry of a scan of Anna that was segmented together with others, "a b"."""
    fact = {
        "participant": "anna",
        "group": "",
        "year": year,
        "scans": {name: f"digest of {name}" for name in together.split()},
        "volumes_mm3": {"Brain-Stem": mm3},
    }
    facts = {"model": "own", "longitudinal": fact, **result}
    return Entry(case, "done", result=ScanResult(**facts), finished=finished)


def volumes(folder: Path, *scans: Entry) -> tuple[str, str]:
    """Return the first and last volume of the only structure in changes.tsv."""
    write_changes(folder, scans)
    (row,) = table(folder / "changes.tsv")
    return row["first_mm3"], row["last_mm3"]


@pytest.mark.parametrize(
    ("years", "first_and_last"),
    [
        ((2022, 2021, 2020), ("3.0", "1.0")),
        ((None, None, None), ("1.0", "3.0")),
        # A scan without a time is not ordered among the others.
        ((2022, None, 2020), ("1.0", "3.0")),
    ],
)
def test_scans_are_in_the_order_of_time_or_else_of_their_names(
    tmp_path: Path, years, first_and_last
) -> None:
    scans = [
        scan(f"visit-{n}", float(n), year, "visit-1 visit-2 visit-3")
        for n, year in enumerate(years, start=1)
    ]
    assert volumes(tmp_path, *scans) == first_and_last


def test_times_count_where_only_a_scan_that_is_left_out_has_none(
    tmp_path: Path,
) -> None:
    scans = [
        scan("a", 3600.0, 2022.0, "a b c"),
        scan("b", 4000.0, 2020.0, "a b c"),
        scan("c", 3800.0, None, "a b c", grade="reject", reasons=["cut"]),
    ]
    assert volumes(tmp_path, *scans) == ("4000.0", "3600.0")
    (row,) = table(tmp_path / "changes.tsv")
    # 400 of 3800 in two years.
    assert (row["change_percent"], row["percent_per_year"]) == ("-10.526", "-5.263")


def test_no_group_is_none_in_both_tables(tmp_path: Path) -> None:
    volumes(tmp_path, scan("a", 1.0, 2020, "a b"), scan("b", 2.0, 2021, "a b"))
    for name in ("changes.tsv", "timepoints.tsv"):
        assert {row["group"] for row in table(tmp_path / name)} == {"n/a"}


def test_structures_that_no_scan_has_do_not_stop_the_run(tmp_path: Path) -> None:
    write_changes(tmp_path, [scan("a", 0, 1.0, "a b"), scan("b", 0, 2.0, "a b")])
    assert len((tmp_path / "changes.tsv").read_text().splitlines()) == 1


def test_a_rejected_scan_is_a_time_point_and_in_no_change(tmp_path: Path) -> None:
    scans = [
        scan("a", 100.0, 2020, grade="pass"),
        scan("b", 50.0, 2021, grade="reject", reasons=["cut"]),
        scan("c", 98.0, 2022, grade="look"),
    ]
    write_changes(tmp_path, scans)
    (row,) = table(tmp_path / "changes.tsv")
    # 2 of 99 in two years.
    assert (row["scans"], row["percent_per_year"]) == ("2", "-1.01")
    left_out = {
        row["case"]: row["left_out"] for row in table(tmp_path / "timepoints.tsv")
    }
    assert left_out == {"a": "n/a", "b": "graded reject: cut", "c": "n/a"}
    write_changes(tmp_path, scans, ())
    (row,) = table(tmp_path / "changes.tsv")
    assert row["scans"] == "3"
    write_changes(tmp_path, scans, ("reject", "look"))
    # A single scan has not changed.
    assert table(tmp_path / "changes.tsv") == []


def test_a_rejected_structure_is_in_no_change(tmp_path: Path) -> None:
    scans = [
        scan("a", 100.0, 2020),
        scan("b", 50.0, 2021, structure_grades={"Brain-Stem": "reject"}),
        scan("c", 98.0, 2022),
    ]
    write_changes(tmp_path, scans)
    (row,) = table(tmp_path / "changes.tsv")
    assert (row["scans"], row["last_mm3"]) == ("2", "98.0")
    assert (
        table(tmp_path / "timepoints.tsv")[1]["left_out"] == "Brain-Stem: graded reject"
    )


def thickness(mm: float | None, grade: str = "pass") -> ThicknessResult:
    """Return the thickness of an insula, as the result of a scan has it."""
    insula = SheetResult(side="left", mm=mm, std_mm=0.5, area_mm2=900.0, mm3=2700.0)
    return ThicknessResult(grade=grade, reasons=[], sheets={"ctx-lh-insula": insula})


def test_thickness_changes_in_a_table_of_its_own(tmp_path: Path) -> None:
    scans = [
        scan("a", 1.0, 2020, thickness=thickness(3.0)),
        scan("b", 1.0, 2021, thickness=thickness(5.0, "reject")),
        scan("c", 1.0, 2022, thickness=thickness(2.8)),
    ]
    write_changes(tmp_path, scans)
    (row,) = table(tmp_path / "thickness_changes.tsv")
    assert (row["measure"], row["scans"]) == ("lh_insula_thickness", "2")
    assert (row["first"], row["last"]) == ("3.0", "2.8")
    # 0.2 of 2.9 in two years.
    assert (row["change_percent"], row["percent_per_year"]) == ("-6.897", "-3.448")
    page = (tmp_path / "changes.html").read_text()
    (of_thickness,) = re.findall(r'<section id="thickness">.*?</section>', page, re.S)
    assert 'id="thickness-change-table"' in of_thickness
    assert ">L insula<" in of_thickness


def test_thickness_of_one_scan_has_not_changed(tmp_path: Path) -> None:
    scans = [
        scan("a", 1.0, 2020, thickness=thickness(3.0)),
        scan("b", 1.0, 2021, thickness=thickness(None)),
    ]
    write_changes(tmp_path, scans)
    assert not (tmp_path / "thickness_changes.tsv").exists()


def with_lesions(
    case: str, year: float, *lesions: tuple[int, float], grade: str = "pass"
):
    """Return the entry of a scan with lesions, each with its site and its volume in mm³."""
    rows = [
        LesionResult(
            lesion=number,
            mm3=mm3,
            region="deep",
            x_mm=float(site),
            y_mm=0,
            z_mm=0,
            probability=0.9,
        )
        for number, (site, mm3) in enumerate(lesions, start=1)
    ]
    found = LesionsResult(grade=grade, reasons=[], lesions=rows)
    entry = scan(case, 1.0, year, lesions=found)
    assert entry.result.longitudinal is not None
    entry.result.longitudinal.lesion_sites = [site for site, _ in lesions]
    entry.result.longitudinal.voxel_mm3 = 1.0
    return entry


def test_lesions_are_followed_from_scan_to_scan(tmp_path: Path) -> None:
    scans = [
        with_lesions("a", 2020, (1, 500), (2, 100), (3, 8), (4, 60)),
        # The first has become two lesions.
        with_lesions("b", 2021, (1, 300), (1, 210), (2, 40), (5, 12), (4, 140)),
        with_lesions("c", 2022, (1, 510), grade="reject"),
    ]
    write_changes(tmp_path, scans)
    rows = table(tmp_path / "lesions_over_time.tsv")
    found = {
        row["lesion"]: (row["change"], float(row["mm3"]), row["beyond_noise"])
        for row in rows
    }
    # Half a voxel of the surface of a ball of 500, 100, 140 mm³: 152, 52 and 65 mm³.
    assert found == {
        "1": ("unchanged", 510, "no"),
        "2": ("shrunken", 40, "yes"),
        "3": ("gone", 0, "no"),
        "4": ("grown", 140, "yes"),
        "5": ("new", 12, "no"),
    }
    assert {(row["previous_scan"], row["scan"]) for row in rows} == {("a", "b")}
    page = (tmp_path / "changes.html").read_text()
    (section,) = re.findall(r'<section id="lesions">.*?</section>', page, re.S)
    assert "1 lesion unchanged" in section
    write_changes(tmp_path, scans, ())
    rows = table(tmp_path / "lesions_over_time.tsv")
    assert {row["change"] for row in rows if row["scan"] == "c"} == {
        "unchanged",
        "gone",
    }


def test_corrected_lesions_have_no_change_and_are_named(tmp_path: Path) -> None:
    scans = [
        with_lesions("a", 2020, (1, 500)),
        # The lesion at the second site is false, and a rater has erased it.
        with_lesions("b", 2021, (1, 500), (2, 100)),
        with_lesions("c", 2022, (1, 500)),
    ]
    scans[1] = replace(scans[1], outputs={"b_lesions.nii.gz": ""})
    for name in ("b_lesions.nii.gz", "b_desc-corrected_lesions.nii.gz"):
        (tmp_path / name).touch()
    write_changes(tmp_path, scans)
    (row,) = table(tmp_path / "lesions_over_time.tsv")
    assert (row["previous_scan"], row["scan"], row["change"]) == ("a", "c", "unchanged")
    rows = table(tmp_path / "lesions_changes.tsv")
    assert {row["scans"] for row in rows} == {"2"}
    page = (tmp_path / "changes.html").read_text()
    assert "corrected by hand" in page.split('id="left-out-table"')[1]


def test_a_run_without_lesions_has_no_table_of_them(tmp_path: Path) -> None:
    write_changes(tmp_path, [scan("a", 1.0, 2020, "a b"), scan("b", 2.0, 2021, "a b")])
    assert not (tmp_path / "lesions_over_time.tsv").exists()


def session(
    case: str,
    mm3: float,
    year: float,
    together: tuple[str, ...],
    *,
    digest: str = "",
    **facts: float,
) -> Entry:
    """Return the entry of a scan that was segmented with the scans in `together`."""
    fact = {
        "participant": "anna",
        "group": "",
        "year": year,
        "scans": dict.fromkeys(together, "0"),
        "volumes_mm3": {"Brain-Stem": mm3},
        **facts,
    }
    result = {"model": "fast", "longitudinal": fact}
    return Entry(
        case,
        "done",
        input_sha256=digest or case,
        model=OF_FAST,
        result=ScanResult(**result),
    )


@pytest.mark.parametrize(
    ("model", "views", "noise_is_known"),
    [(OF_FAST, (), True), ("0" * 64, (), False), (OF_FAST, ("coronal",), False)],
    ids=["as shipped", "another model of that name", "one view"],
)
def test_noise_is_that_of_the_model_as_it_was_measured(
    tmp_path: Path, model: str, views: tuple[str, ...], noise_is_known: bool
) -> None:
    names = ("a", "b")
    scans = [session("a", 100, 1, names), session("b", 200, 2, names)]
    for entry in scans:
        entry.result.longitudinal.views = views
    write_changes(tmp_path, [replace(entry, model=model) for entry in scans])
    (row,) = table(tmp_path / "changes.tsv")
    assert (row["noise"] != "n/a") == noise_is_known
    assert row["beyond_noise"] == ("yes" if noise_is_known else "n/a")


def test_a_scan_that_was_renamed_is_no_time_point_more(tmp_path: Path) -> None:
    old, new = ("a", "b", "c"), ("a2", "b", "c")
    scans = [session("a", 9, 1, old)]
    scans += [session(case, n, n, new) for n, case in enumerate(new, start=1)]
    assert volumes(tmp_path, *scans) == ("1.0", "3.0")
    rows = table(tmp_path / "timepoints.tsv")
    assert [row["case"] for row in rows] == ["a2", "b", "c"]


def test_a_scan_that_is_no_longer_given_takes_no_part(tmp_path: Path) -> None:
    scans = [session("a", 1, 1, ("a", "b"))]
    # Now alone, it was segmented by itself.
    scans.append(Entry("b", "done", result=ScanResult(model="fast")))
    write_changes(tmp_path, scans)
    assert list(tmp_path.iterdir()) == []


def test_a_copy_under_another_date_is_noted_and_does_not_count(tmp_path: Path) -> None:
    names = ("a", "b", "copy")
    scans = [session("a", 1, 1, names), session("b", 2, 2, names)]
    scans.append(session("copy", 1, 9, names, digest="a"))
    assert volumes(tmp_path, *scans) == ("1.0", "2.0")
    left_out = [row["left_out"] for row in table(tmp_path / "timepoints.tsv")]
    assert left_out == ["n/a", "n/a", "byte for byte the same as a"]
    assert "byte for byte the same as a" in (tmp_path / "changes.html").read_text()


def test_two_series_in_a_zip_are_no_copies(tmp_path: Path) -> None:
    names = ("a/series-1", "a/series-2")
    scans = [
        replace(session(name, 1, year, names, digest="a"), scan="../a.zip")
        for year, name in enumerate(names)
    ]
    assert volumes(tmp_path, *scans) == ("1.0", "1.0")


def test_a_head_of_another_size_is_named_and_in_no_change(tmp_path: Path) -> None:
    names = ("a", "b")
    scans = [session("a", 100, 1, names), session("b", 200, 2, names)]
    write_changes(tmp_path, scans)
    assert table(tmp_path / "changes.tsv")[0]["beyond_noise"] == "yes"
    scans[1] = session("b", 200, 2, names, stretch_percent=2.06)
    # Whatever grades are included.
    write_changes(tmp_path, scans, ())
    assert table(tmp_path / "changes.tsv") == []
    (_, second) = table(tmp_path / "timepoints.tsv")
    assert second["left_out"].startswith("the head is 2.06 % larger along one axis")
    assert "2.06 % larger along one axis" in (tmp_path / "changes.html").read_text()


def test_a_scan_that_was_removed_since_is_compared_with_no_other(
    tmp_path: Path,
) -> None:
    """Scan c of a, b and c was removed.

    Its volume is from another segmentation than the new ones.
    """
    left_over = scan("c", 9.0, 2022, "a b c")
    new = [scan("a", 1.0, 2020, "a b", "2"), scan("b", 2.0, 2021, "a b", "2")]
    assert volumes(tmp_path, left_over, *new) == ("1.0", "2.0")
    assert "\tc\t" not in (tmp_path / "timepoints.tsv").read_text()


def test_a_participant_who_is_half_replaced_has_no_changes_until_all_is(
    tmp_path: Path,
) -> None:
    """A run stopped between two files of a participant, and the last of two scans was removed."""
    old = scan("b", 2.0, 2021, "a b c"), scan("c", 3.0, 2022, "a b c")
    write_changes(tmp_path, [scan("a", 1.0, 2020, "a b", "2"), *old])
    alone = Entry("a", "done", result=ScanResult(model="own"))
    write_changes(tmp_path, [alone, old[0], scan("c", 3.0, 2022, "a c")])
    assert list(tmp_path.iterdir()) == []


def test_scans_that_were_renamed_are_compared_as_they_are_named_now(
    tmp_path: Path,
) -> None:
    old = [scan("a", 1.0, 2020, "a b"), scan("b", 2.0, 2021, "a b")]
    new = [
        scan("c", 3.0, 2020, "c d", "2"),
        scan("d", 4.0, 2021, "c d", "2"),
    ]
    assert volumes(tmp_path, *new, *old) == ("3.0", "4.0")


def test_a_scan_whose_labels_were_corrected_leaves_the_others(tmp_path: Path) -> None:
    kept = Entry("b", "skipped", model="a hash")
    others = [scan("a", 1.0, 2020, "a b c"), scan("c", 3.0, 2022, "a b c")]
    assert volumes(tmp_path, kept, *others) == ("1.0", "3.0")
