"""Evaluate and report use corrections in place of the results that were corrected."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.studies import add_lesions, correct_voxel, write_study

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.evaluate import cohort, evaluation
from trinat.pipelines.learn.corrected import find_corrected
from trinat.pipelines.study.corrections import (
    corrected_path,
    mask_path,
    sidecar_path,
)
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.files import corrected_among, find_files
from trinat.pipelines.study.ledger import Ledger, read_entries
from trinat.pipelines.study.record import ScanResult
from trinat.pipelines.study.study import Study
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.views import reoriented

pytestmark = pytest.mark.usefixtures("without_figures")


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Write results a, b and c with true maps, and correct c to its truth.

    c is graded reject. Its true right thalamus has 28 voxels of 64 mm³, its result 27.
    """
    out = write_study(tmp_path / "out", ["a", "b", "c"])
    (tmp_path / "truth").mkdir()
    for name in "abc":
        result = out / f"{name}_dseg.nii.gz"
        truth = Volume.read(result, labels=True)
        if name == "c":
            corrected = correct_voxel(result, (15, 8, 6), 49, "Right-Thalamus")
            truth = Volume.read(corrected.path, labels=True)
        truth.write(tmp_path / "truth" / result.name, labels=True)
    return tmp_path


def test_a_correction_stands_under_the_name_of_its_result(study: Path) -> None:
    files = find_files(study / "out")
    assert [file.name for file in files] == ["a", "b", "c"]
    result = study / "out/c_dseg.nii.gz"
    assert files[2].path == corrected_path(result)
    assert files[2].result == result
    assert files[0].path == files[0].result
    before = find_files(study / "out", corrected=False)
    assert [file.path.name for file in before] == [f"{n}_dseg.nii.gz" for n in "abc"]


@pytest.mark.parametrize(
    "name",
    [
        "s{}.nii.gz",
        "s{}.NII.GZ",
        "s{}/seg.nii.gz",
        "s{}/mri/aseg.mgz",
        "sub-{0}/anat/sub-{0}_dseg.nii.gz",
    ],
)
def test_the_first_correction_of_label_maps_from_elsewhere_takes_the_place_of_its_own(
    tmp_path: Path, name: str
) -> None:
    paths = [tmp_path / name.format(number) for number in (1, 2, 3)]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    before = find_files(tmp_path)
    assert [file.path for file in before] == paths
    corrected = corrected_path(paths[1])
    corrected.touch()
    mask_path(paths[1]).touch()
    files = find_files(tmp_path)
    assert [file.path for file in files] == [paths[0], corrected, paths[2]]
    assert [file.parsed for file in files] == [file.parsed for file in before]
    assert find_files(tmp_path, corrected=False) == before


def test_a_correction_whose_result_a_run_has_removed_is_no_scan(study: Path) -> None:
    out = study / "out"
    (out / "c_dseg.nii.gz").unlink()
    with Ledger.resume(out / "run.jsonl", []) as ledger:
        ledger.add(Entry("c", "failed", "scan2.nii.gz", reason="damaged"))
    results = Study(out)
    (left,) = [f for f in results.checked(results.label_maps()) if f.unfit]
    assert left.path == out / "c_desc-corrected_dseg.nii.gz"
    found, failures = find_corrected(results)
    assert found == []
    assert failures == [f"{left.name}: {left.unfit}"]
    # Copied elsewhere, it is a label map like any other.
    copies = study / "copies"
    copies.mkdir()
    shutil.copy(left.path, copies)
    copied = Study(copies)
    assert [f.unfit for f in copied.checked(copied.label_maps())] == [""]


@pytest.mark.parametrize(
    ("of_scan", "structures", "parcels"),
    [
        ("sub-1/anat/sub-1_space-orig", "desc-trinat_dseg", "seg-parcels_dseg"),
        ("p1", "dseg", "parcels"),
    ],
)
def test_parcels_from_before_a_correction_are_named(
    tmp_path: Path, of_scan: str, structures: str, parcels: str
) -> None:
    result = tmp_path / f"{of_scan}_{structures}.nii.gz"
    result.parent.mkdir(parents=True, exist_ok=True)
    result.touch()
    (tmp_path / f"{of_scan}_{parcels}.nii.gz").touch()
    assert corrected_among(find_files(tmp_path, kind="parcels")) == ""
    corrected_path(result).touch()
    told = corrected_among(find_files(tmp_path, kind="parcels"))
    assert told.startswith(
        "the structures of 1 of 1 scans are corrected by hand; their maps"
    )
    assert corrected_among(find_files(tmp_path, corrected=False)) == ""


@pytest.mark.parametrize(("uncorrected", "dice"), [(False, 1), (True, 54 / 55)])
def test_evaluate_measures_corrections_and_says_so(
    study: Path, uncorrected: bool, dice: float, logged: pytest.LogCaptureFixture
) -> None:
    settings = evaluation.EvaluationSettings(
        truth=study / "truth",
        models={"fast": study / "out"},
        out=study / "evaluation",
        jobs=1,
        tables_only=True,
        uncorrected=uncorrected,
    )
    logged.clear()
    assert evaluation.evaluate_predictions(settings) == Exit.OK
    rows = pd.read_csv(study / "evaluation/metrics.csv").set_index(
        ["subject", "structure", "metric"]
    )
    found = rows.loc[("c", "Right-Thalamus", "dice"), "value"]
    assert found == pytest.approx(dice)
    told = "fast: 1 of 3 label maps are corrected by hand; --uncorrected takes them as they were"
    assert any(line.startswith(told) for line in logged.messages) is not uncorrected


def test_a_truth_whose_saving_was_interrupted_is_not_used(study: Path) -> None:
    sidecar_path(study / "out/c_dseg.nii.gz").unlink()
    settings = evaluation.EvaluationSettings(
        truth=study / "out",
        models={"m": study / "truth"},
        out=study / "evaluation",
        jobs=1,
        tables_only=True,
    )
    assert evaluation.evaluate_predictions(settings) == Exit.SOME_FAILED
    pairs = pd.read_csv(study / "evaluation/pairs.csv").set_index("subject")
    assert dict(pairs["status"]) == {"a": "measured", "b": "measured", "c": "failed"}
    assert "interrupted" in pairs.loc["c", "note"]


@pytest.mark.parametrize("uncorrected", [False, True])
def test_report_counts_corrected_lesions(
    study: Path, uncorrected: bool, logged: pytest.LogCaptureFixture
) -> None:
    # The structures of c are corrected, too.
    for name in "ac":
        add_lesions(study / "out", name)
    mask = study / "out/c_lesions.nii.gz"
    correct_voxel(mask, (6, 9, 12), 1, "White-matter-lesions")
    settings = cohort.CohortSettings(
        predictions=study / "out",
        out=study / "report",
        jobs=1,
        uncorrected=uncorrected,
        excluded=(),
    )
    logged.clear()
    cohort.report_cohort(settings)
    rows = pd.read_csv(study / "report/lesions.csv").set_index(["subject", "structure"])
    # 320 mm³ were found, and a voxel of 64 mm³ was painted.
    found = [rows.loc[(name, "lesions_mm3"), "value"] for name in "ac"]
    assert found == ([320, 320] if uncorrected else [320, 384])
    said = "1 of 3 label maps and 1 of 3 masks of lesions are corrected by hand"
    assert any(line.startswith(said) for line in logged.messages) is not uncorrected


def test_a_damaged_label_map_beside_corrected_lesions_fails_its_scan_only(
    study: Path,
) -> None:
    out = study / "out"
    add_lesions(out, "a")
    correct_voxel(out / "a_lesions.nii.gz", (6, 9, 12), 1, "White-matter-lesions")
    labels = out / "a_dseg.nii.gz"
    labels.write_bytes(labels.read_bytes()[:100])
    results = Study(out)
    checked = results.checked(results.label_maps(), lesions=True)
    assert [file.name for file in checked if file.unfit] == ["a"]
    settings = cohort.CohortSettings(out, study / "report", jobs=1)
    assert cohort.report_cohort(settings) == Exit.SOME_FAILED


def test_corrected_lesions_have_their_regions_whatever_axes_the_labels_have(
    study: Path,
) -> None:
    out = study / "out"
    add_lesions(out, "c")
    correct_voxel(out / "c_lesions.nii.gz", (6, 9, 12), 1, "White-matter-lesions")

    def measured() -> ScanResult:
        results = Study(out)
        (scan,) = [scan for scan in results.scans if scan.case == "c"]
        return results.result(scan)

    before = measured()
    assert before.lesions is not None
    # Another program saves the corrected labels in other axes; the grid is not cubic.
    path = corrected_path(out / "c_dseg.nii.gz")
    labels = Volume.read(path, labels=True)
    reoriented(labels, "LIA").write(path, labels=True)
    assert measured() == before


def test_a_correction_of_lesions_whose_saving_was_interrupted_counts_nowhere(
    study: Path,
) -> None:
    add_lesions(study / "out", "a")
    mask = study / "out/a_lesions.nii.gz"
    correction = correct_voxel(mask, (6, 9, 12), 1, "White-matter-lesions")
    sidecar_path(mask).unlink()
    assert correction.path.is_file()
    results = Study(study / "out")
    checked = results.checked(results.label_maps(), lesions=True)
    assert [file.name for file in checked if file.unfit] == ["a"]
    assert "interrupted" in checked[0].unfit
    told = "1 of 2 label maps are corrected by hand"
    assert corrected_among(checked, lesions=True).startswith(told)


def test_report_counts_a_corrected_scan_whatever_grade_its_result_had(
    study: Path, logged: pytest.LogCaptureFixture
) -> None:
    settings = cohort.CohortSettings(
        predictions=study / "out", out=study / "report", jobs=1
    )
    logged.clear()
    cohort.report_cohort(settings)
    volumes = pd.read_csv(study / "report/volumes.csv")
    of_c = volumes[volumes["subject"] == "c"].set_index(["structure", "metric"])
    volume_mm3 = of_c.loc[("Right-Thalamus", "volume"), "value"]
    assert volume_mm3 == pytest.approx(28 * 64)
    assert any(
        line.startswith("1 of 3 label maps are corrected") for line in logged.messages
    )
    assert "corrected by hand" in (study / "report/report.html").read_text()


def test_report_counts_a_painted_structure_that_the_model_does_not_predict(
    study: Path,
) -> None:
    ledger = study / "out/run.jsonl"
    entries = read_entries([ledger])
    with Ledger.resume(ledger, []) as resumed:
        for entry in entries.values():
            volumes_mm3 = dict(entry.result.volumes_mm3)
            del volumes_mm3["Right-Thalamus"]
            result = entry.result.model_copy(update={"volumes_mm3": volumes_mm3})
            resumed.add(replace(entry, result=result, attempt=2))
    settings = cohort.CohortSettings(study / "out", study / "report", jobs=1)
    cohort.report_cohort(settings)
    rows = pd.read_csv(study / "report/volumes.csv")
    rows = rows[rows["metric"] == "volume"].set_index(["structure", "subject"])
    thalamus = rows.loc["Right-Thalamus", "value"].dropna()
    assert dict(thalamus) == {"c": pytest.approx(28 * 64)}


def test_a_label_map_that_was_edited_counts_as_corrected(tmp_path: Path) -> None:
    # The result of c is graded reject.
    out = write_study(tmp_path / "out", ["a", "b", "c"])
    path = out / "c_dseg.nii.gz"
    labels = Volume.read(path, labels=True)
    labels.data[15, 8, 6] = 49
    labels.write(path, labels=True)
    study = Study(out)
    files = study.checked(study.label_maps())
    assert [file.is_by_hand for file in files] == [False, False, True]
    assert [file.unfit for file in files] == ["", "", ""]
    assert (files[2].entry.result.grade, files[2].judged.grade) == ("reject", "")
    assert corrected_among(files).startswith("1 of 3 label maps were edited")


@pytest.mark.parametrize("uncorrected", [False, True])
def test_report_names_corrections_whose_results_were_replaced_since(
    study: Path, uncorrected: bool, logged: pytest.LogCaptureFixture
) -> None:
    result = study / "out/c_dseg.nii.gz"
    labels = Volume.read(result, labels=True)
    labels.data[3] = 0
    labels.write(result, labels=True)
    entry = read_entries([study / "out/run.jsonl"])["c"]
    outputs = entry.outputs | {result.name: sha256_of(result)}
    with Ledger.resume(study / "out/run.jsonl", []) as ledger:
        ledger.add(replace(entry, outputs=outputs, attempt=2))
    settings = cohort.CohortSettings(
        study / "out", study / "report", jobs=1, uncorrected=uncorrected, excluded=()
    )
    logged.clear()
    cohort.report_cohort(settings)
    told = "were replaced since: c;"
    assert any(told in line for line in logged.messages) is not uncorrected
    assert (told in (study / "report/report.html").read_text()) is not uncorrected


def test_a_correction_of_a_scan_that_has_changed_since_is_not_measured(
    study: Path, logged: pytest.LogCaptureFixture
) -> None:
    scan = study / "scans/scan2.nii.gz"
    volume = Volume.read(scan)
    volume.data[0, 0, 0] = 7
    volume.write(scan)
    settings = cohort.CohortSettings(
        predictions=study / "out", out=study / "report", jobs=1
    )
    logged.clear()
    cohort.report_cohort(settings)
    assert any("c: is an old result" in line for line in logged.messages)


def test_a_correction_of_what_a_scan_was_before_is_not_measured(study: Path) -> None:
    out = study / "out"
    entry = read_entries([out / "run.jsonl"])["c"]
    # Another scan and its result replace the ones that were corrected.
    facts = sidecar_path(out / "c_dseg.nii.gz")
    said_of_it = json.loads(facts.read_text())
    facts.write_text(json.dumps({**said_of_it, "ScanSHA256": "another"}))
    assert entry.input_sha256
    results = Study(out)
    (unfit,) = [f for f in results.checked(results.label_maps()) if f.unfit]
    assert unfit.result == out / "c_dseg.nii.gz"
    assert "is a correction of what the scan was before" in unfit.unfit
    predicted = results.checked(results.label_maps(corrected=False))
    assert not any(file.unfit for file in predicted)
    assert not _learnt(out)


def test_a_correction_of_a_scan_that_counts_under_another_name_can_be_moved(
    study: Path,
) -> None:
    out = study / "out"
    entry = read_entries([out / "run.jsonl"])["c"]
    result = out / "c_dseg.nii.gz"
    now = result.rename(out / "d_dseg.nii.gz")
    shutil.copy(now, result)
    outputs = {now.name: sha256_of(now)}
    with Ledger.resume(out / "run.jsonl", []) as ledger:
        ledger.add(replace(entry, case="d", outputs=outputs))
    results = Study(out)
    (unfit,) = [f for f in results.checked(results.label_maps()) if f.unfit]
    # The user is not told to remove the correction.
    assert unfit.path == corrected_path(result)
    assert "desc-corrected" in unfit.unfit
    files = list(out.glob("c_desc-corrected_*"))
    assert len(files) == 3
    for file in files:
        file.rename(file.with_name(f"d{file.name.removeprefix('c')}"))
    result.unlink()
    results = Study(out)
    (moved,) = [f for f in results.checked(results.label_maps()) if f.corrects]
    assert (moved.path, moved.unfit) == (corrected_path(now), "")
    assert moved.correction
    assert moved.correction.sidecar


def _unfit(out: Path) -> list[Path]:
    """Return the label maps that are not the results of their scans."""
    study = Study(out)
    return [file.result for file in study.checked(study.label_maps()) if file.unfit]


def _learnt(out: Path) -> set[str]:
    """Return the scans with corrections to learn from."""
    found, failures = find_corrected(Study(out))
    assert all(line.startswith("c: ") for line in failures)
    return {each.scan.case for each in found}


def test_a_correction_that_was_saved_again_is_still_of_the_scan_that_it_was_of(
    study: Path,
) -> None:
    out = study / "out"
    result = out / "c_dseg.nii.gz"
    facts = sidecar_path(result)
    content = json.loads(facts.read_text())
    facts.write_text(json.dumps({**content, "ScanSHA256": "another"}))
    # Rewritten by another program, so that the hash in the JSON does not match.
    path = corrected_path(result)
    gzip_again = gzip.compress(gzip.decompress(path.read_bytes()), 1)
    path.write_bytes(gzip_again)
    assert _unfit(out) == [result]
    assert not _learnt(out)


@pytest.mark.parametrize("change", [np.zeros_like, lambda labels: labels[::-1]])
def test_a_correction_that_is_empty_or_mirrored_does_not_count(
    study: Path, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    out = study / "out"
    result = out / "c_dseg.nii.gz"
    labels = Volume.read(result, labels=True)
    wrong = Volume(np.ascontiguousarray(change(labels.data)), labels.affine)
    wrong.write(corrected_path(result), labels=True)
    assert _unfit(out) == [result]
    assert not _learnt(out)


def test_a_correction_of_a_part_of_the_grid_is_not_measured(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    out = write_study(tmp_path / "out", ["a", "b"])
    result = Volume.read(out / "a_dseg.nii.gz", labels=True)
    Volume(result.data[:17], result.affine).write(
        out / "a_desc-corrected_dseg.nii.gz", labels=True
    )
    logged.clear()
    settings = cohort.CohortSettings(out, tmp_path / "report", jobs=1)
    assert cohort.report_cohort(settings) == Exit.SOME_FAILED
    told = "is on another grid than the result that it corrects"
    assert any(line.startswith("a: ") and told in line for line in logged.messages)


def test_a_correction_in_another_format_is_one_too(tmp_path: Path) -> None:
    out = write_study(tmp_path / "out", ["a", "b"])
    result = Volume.read(out / "a_dseg.nii.gz", labels=True)
    result.write(out / "a_desc-corrected_dseg.nii", labels=True)
    files = find_files(out)
    assert [file.name for file in files] == ["a", "b"]
    assert files[0].path.name == "a_desc-corrected_dseg.nii"
    assert files[0].corrects == out / "a_dseg.nii.gz"
    assert [file.path.name for file in find_files(out, corrected=False)] == [
        "a_dseg.nii.gz",
        "b_dseg.nii.gz",
    ]


def test_files_of_an_earlier_evaluation_do_not_stay(study: Path) -> None:
    settings = evaluation.EvaluationSettings(
        truth=study / "truth",
        models={"fast": study / "out"},
        out=study / "evaluation",
        jobs=1,
        tables_only=True,
    )
    evaluation.evaluate_predictions(settings)
    (study / "evaluation/report.html").touch()
    evaluation.evaluate_predictions(settings)
    left = {path.name for path in (study / "evaluation").iterdir()}
    assert not left & {"report.html", "figures"}
    assert {"pairs.csv", "metrics.csv", "summary.json"} <= left
