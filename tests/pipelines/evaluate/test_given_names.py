"""Scans whose names and folders were made safe for the output: each keeps its participant."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest
from helpers.serial import run_serially, write_scans

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.evaluate.cohort import measure_group, read_known
from trinat.pipelines.evaluate.evaluation import (
    EvaluationSettings,
    evaluate_predictions,
)
from trinat.pipelines.evaluate.settings import CohortSettings
from trinat.pipelines.jobs.progress import no_progress
from trinat.pipelines.study.discovery import find_cases
from trinat.pipelines.study.grouping import participants_of, with_facts
from trinat.pipelines.study.participants_check import describe_table
from trinat.pipelines.study.study import Study

pytestmark = pytest.mark.usefixtures("without_figures")

FOLDERS = ("P01 é_V1", "P01 é_V2", "P02 [b]_V1", "P02 [b]_V2")
PARTICIPANTS = ["P01 é", "P01 é", "P02 [b]", "P02 [b]"]
SESSIONS = ["V1_T1 ü", "V2_T1 ü", "V1_T1 ü", "V2_T1 ü"]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Segment two sessions of two participants; return the folder of scans, results and table."""
    root = tmp_path_factory.mktemp("study")
    scans = write_scans(root / "scans", *(f"{name}/T1 ü.nii.gz" for name in FOLDERS))
    run_serially(scans, root / "results")
    (root / "people.tsv").write_text(
        "participant_id\tage\tsex\nP01 é\t30\tF\nP02 [b]\t40\tM\n"
    )
    return root


def test_scans_to_segment_are_grouped_by_the_names_of_their_folders(
    study: Path,
) -> None:
    cases = find_cases([study / "scans"]).cases
    groups = participants_of(cases, None, None)
    assert [(group.name, len(group.scans)) for group in groups] == [
        ("P01 é", 2),
        ("P02 [b]", 2),
    ]
    with_ages = with_facts(cases, study / "people.tsv", strict=True)
    assert [case.facts and case.facts.age for case in with_ages] == [30, 30, 40, 40]


def test_a_report_has_the_participant_and_session_of_each_scan(
    study: Path, tmp_path: Path
) -> None:
    settings = CohortSettings(
        study / "results",
        tmp_path / "report",
        participants=study / "people.tsv",
        strict=True,
        excluded=(),
        jobs=1,
    )
    group = measure_group(settings, read_known(settings), no_progress)
    assert [scan.subject for scan in group.scans] == PARTICIPANTS
    assert [scan.session for scan in group.scans] == SESSIONS
    assert [scan.age for scan in group.scans] == [30, 30, 40, 40]


def test_the_rows_of_a_table_are_shown_for_each_scan(study: Path) -> None:
    lines = list(describe_table(study / "people.tsv", study / "results", strict=True))
    rows = [line.split("\t") for line in lines[-4:]]
    assert [row[1] for row in rows] == PARTICIPANTS
    assert [row[3] for row in rows] == PARTICIPANTS


def test_label_maps_are_paired_with_truths_in_folders_of_the_given_names(
    study: Path, tmp_path: Path
) -> None:
    for file, name in zip(Study(study / "results").label_maps(), FOLDERS, strict=True):
        (tmp_path / "truth" / name).mkdir(parents=True)
        shutil.copy(file.path, tmp_path / "truth" / name / "T1 ü_dseg.nii.gz")
    settings = EvaluationSettings(
        tmp_path / "truth",
        {"random": study / "results"},
        tmp_path / "out",
        tables_only=True,
        jobs=1,
    )
    assert evaluate_predictions(settings) == Exit.OK
    pairs = pd.read_csv(tmp_path / "out/pairs.csv")
    assert set(pairs["status"]) == {"measured"}
    metrics = pd.read_csv(tmp_path / "out/metrics.csv")
    assert set(metrics["subject"]) == set(PARTICIPANTS)


def test_the_viewer_finds_participants_and_scans(study: Path) -> None:
    shown = Study(study / "results", images=study / "scans")
    scans = sorted(shown.scans, key=lambda scan: scan.entry.input)
    assert [scan.participant for scan in scans] == PARTICIPANTS
    for scan, name in zip(scans, FOLDERS, strict=True):
        assert shown.image(scan) == study / "scans" / name / "T1 ü.nii.gz"
