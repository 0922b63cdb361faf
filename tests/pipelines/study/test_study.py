"""A folder of results as a study: uncertain scans first, label maps with their ledger entries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.files import touch
from helpers.refusals import refusal
from helpers.studies import write_study

from trinat.pipelines.predict.tables import write_tables
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.ledger import Ledger
from trinat.pipelines.study.naming import Product
from trinat.pipelines.study.record import ScanResult, TimePoint
from trinat.pipelines.study.study import Study
from trinat.segmentation.data.sources.base import safe_component
from trinat.segmentation.errors import ConfigError, IntegrityError
from trinat.segmentation.labels import Csf


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return write_study(tmp_path / "out", ["a", "b", "c", "d"])


def test_the_doubtful_come_first_and_among_equals_those_whose_views_agree_least(
    out: Path,
) -> None:
    # Grades go pass, look, reject, pass; agreement falls from a to d.
    assert [scan.case for scan in Study(out).scans] == [
        "c",
        "b",
        "d",
        "a",
    ]


def participants_in(folder: Path, entries: Sequence[Entry]) -> list[str]:
    with Ledger(folder / "run.jsonl") as ledger:
        for entry in entries:
            ledger.add(entry)
    return [scan.participant for scan in Study(folder).scans]


def test_sessions_are_of_one_participant_and_folders_tell_participants_apart(
    tmp_path: Path,
) -> None:
    names = ("OAS1_0001_MR1", "OAS1_0001_MR2", "a/sub-01_T1w", "b/sub-01_T1w", "other")
    participants = ["OAS1_0001", "OAS1_0001", "a/sub-01", "b/sub-01", "other"]
    assert (
        participants_in(tmp_path, [Entry(name, "done") for name in names])
        == participants
    )


def test_sessions_that_were_segmented_together_are_of_one_participant(
    tmp_path: Path,
) -> None:
    together = ScanResult(longitudinal=TimePoint(participant="anna", volumes_mm3={}))
    entries = [
        Entry("other", "done"),
        Entry("visit-a", "done", result=together),
        Entry("visit-b", "done", result=together),
    ]
    assert participants_in(tmp_path, entries) == ["other", "anna", "anna"]


def test_the_page_of_a_batch_and_the_viewer_have_one_order_of_doubt(
    tmp_path: Path,
) -> None:
    entries = [
        Entry("passes", "done", result=ScanResult(grade="pass", mean_agreement=0.1)),
        Entry("without-grade", "done"),
        Entry("look-10", "done", result=ScanResult(grade="look")),
        Entry("look-9", "done", result=ScanResult(grade="look")),
        Entry(
            "look-apart", "done", result=ScanResult(grade="look", mean_agreement=0.7)
        ),
        Entry("rejected", "done", result=ScanResult(grade="reject")),
        Entry("failed", "failed", reason="no head"),
    ]
    names = [
        "failed",
        "rejected",
        "look-apart",
        "look-9",
        "look-10",
        "without-grade",
        "passes",
    ]
    with Ledger(tmp_path / "run.jsonl") as ledger:
        for entry in entries:
            ledger.add(entry)
    assert [scan.case for scan in Study(tmp_path).scans] == names
    write_tables(tmp_path, entries)
    page = (tmp_path / "report.html").read_text()
    rows = page[page.index('id="scan-table"') :]
    assert sorted(names, key=rows.index) == names


def test_the_scan_is_found_where_predict_read_it_or_among_the_images_named(
    out: Path, tmp_path: Path
) -> None:
    study = Study(out)
    (scan,) = [scan for scan in study.scans if scan.case == "c"]
    there = study.image(scan)
    assert there is not None
    assert there.resolve() == tmp_path / "scans" / "scan2.nii.gz"
    (tmp_path / "scans").rename(tmp_path / "moved")
    assert study.image(scan) is None
    moved = Study(out, images=tmp_path / "moved")
    assert moved.image(scan) == tmp_path / "moved" / "scan2.nii.gz"


def test_a_zip_has_no_image_because_it_may_contain_several_series(
    tmp_path: Path,
) -> None:
    touch(tmp_path, "p1.zip", "out/p1/series-3-0123abcd_dseg.nii.gz")
    outputs = {"p1/series-3-0123abcd_dseg.nii.gz": "x"}
    entry = Entry("p1/series-3-0123abcd", "done", scan="../p1.zip", outputs=outputs)
    with Ledger(tmp_path / "out/run.jsonl") as ledger:
        ledger.add(entry)
    study = Study(tmp_path / "out")
    assert study.image(study.scans[0]) is None


def test_an_output_folder_is_no_participant_of_dicom_series(tmp_path: Path) -> None:
    for site in ("A", "B"):
        cases = [f"{name}-5-0123abc{site.lower()}" for name in ("series", "07/series")]
        out = touch(tmp_path / site, *(f"{case}_dseg.nii.gz" for case in cases))
        with Ledger(out / "run.jsonl") as ledger:
            for case in cases:
                outputs = {f"{case}_dseg.nii.gz": "0"}
                ledger.add(Entry(case, "done", case, outputs=outputs))
    scans = Study(tmp_path).label_maps()
    assert sorted(scan.participant for scan in scans) == [
        *("A/07", "A/series-5-0123abca", "B/07", "B/series-5-0123abcb")
    ]


def test_another_scan_at_the_place_of_a_scan_is_not_taken_for_it(
    out: Path, tmp_path: Path
) -> None:
    (tmp_path / "scans" / "scan2.nii.gz").write_bytes(b"another scan")
    study = Study(out)
    is_found = {scan.case: study.image(scan) is not None for scan in study.scans}
    assert is_found == {"a": True, "b": True, "c": False, "d": True}


def test_other_label_maps_of_scans_of_one_name_are_found_by_their_folders(
    tmp_path: Path,
) -> None:
    maps = ["anna/T1_dseg.nii.gz", "bob/T1_dseg.nii.gz"]
    out = touch(tmp_path / "out", *maps)
    manual = touch(tmp_path / "manual", *maps)
    with Ledger(out / "run.jsonl") as ledger:
        for name in maps:
            case = name.removesuffix("_dseg.nii.gz")
            ledger.add(Entry(case, "done", f"{case}.nii.gz", outputs={name: "0"}))
    study = Study(out, against=manual)
    assert [study.other(scan) for scan in study.scans] == [
        manual / name for name in maps
    ]


def test_other_results_are_paired_by_the_names_that_the_scans_were_given(
    tmp_path: Path,
) -> None:
    given = {safe_component(name): name for name in ("anna b", "Jörg")}
    folders = [
        write_study(tmp_path / name, list(given), scans=tmp_path / "scans")
        for name in ("results", "better")
    ]
    for folder in folders:
        ledger = folder / "run.jsonl"
        lines = [json.loads(line) for line in ledger.read_text().splitlines()]
        for line in lines:
            line["input"] = f"{given[line['case']]}.nii.gz"
        ledger.write_text("\n".join(map(json.dumps, lines)) + "\n")
    results, better = folders
    study = Study(better, against=results)
    assert {scan.name for scan in study.scans} == set(given.values())
    assert {study.other(scan) for scan in study.scans} == {
        results / f"{case}_dseg.nii.gz" for case in given
    }


def test_a_ledger_that_names_a_file_outside_the_folder_is_refused(out: Path) -> None:
    (out.parent / "secret_dseg.nii.gz").write_bytes(b"secret")
    ledger = out / "run.jsonl"
    line = json.loads(ledger.read_text().splitlines()[-1])
    line["outputs"] = {"../secret_dseg.nii.gz": "0"}
    ledger.write_text(ledger.read_text() + json.dumps(line) + "\n")
    with refusal(IntegrityError, ledger):
        _ = Study(out).scans


def test_label_maps_know_the_output_folder_of_their_other_files(tmp_path: Path) -> None:
    site = write_study(tmp_path / "out/site", ["a"])
    for files in (Study(tmp_path / "out").label_maps(), Study(tmp_path / "out").scans):
        assert [file.output(Product.ENTROPY) for file in files] == [
            site / "a_entropy.nii.gz"
        ]


def test_label_maps_without_a_ledger_are_listed_too(out: Path) -> None:
    (out / "run.jsonl").unlink()
    study = Study(out)
    assert sorted(scan.case for scan in study.scans) == ["a", "b", "c", "d"]


def test_a_folder_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    with refusal(ConfigError, tmp_path / "nowhere", remedy="--out"):
        _ = Study(tmp_path / "nowhere").scans


def write_ledger(folder: Path, entries: Sequence[Entry]) -> None:
    with Ledger(folder / "run.jsonl") as ledger:
        for entry in entries:
            ledger.add(entry)


def test_a_folder_inside_an_output_folder_has_its_own_entries_alone(
    tmp_path: Path,
) -> None:
    entries = [
        Entry(name, "done", outputs={f"{name}/T1_dseg.nii.gz": "0"})
        for name in ("sub-1", "sub-2")
    ]
    write_ledger(tmp_path, entries)
    for place, names in (
        (tmp_path, ["sub-1", "sub-2"]),
        (tmp_path / "sub-2", ["sub-2"]),
        (tmp_path / "sub-1" / "T1_dseg.nii.gz", ["sub-1"]),
    ):
        assert [entry.case for entry in Study(place).entries] == names


@pytest.mark.parametrize(
    ("of_scans", "expected"),
    [
        ((None, None), None),
        ((None, "region"), "region"),
        (("region", "intracranial"), "intracranial"),
    ],
)
def test_csf_is_all_fluid_if_any_model_means_that(
    tmp_path: Path, of_scans: Sequence[Csf | None], expected: Csf | None
) -> None:
    entries = [
        Entry(f"sub-{number}", "done", result=ScanResult(csf=csf))
        for number, csf in enumerate(of_scans)
    ]
    write_ledger(tmp_path, entries)
    assert Study(tmp_path).csf == expected
