"""trinat report on scans that `predict --longitudinal` segmented together."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.studies import correct_voxel

from trinat.pipelines.evaluate.cohort import report_cohort
from trinat.pipelines.evaluate.evaluation import evaluate_predictions
from trinat.pipelines.evaluate.settings import CohortSettings, EvaluationSettings
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.files import find_files
from trinat.pipelines.study.ledger import Ledger
from trinat.pipelines.study.ratings import Rating, save_rating
from trinat.pipelines.study.record import (
    LesionResult,
    LesionsResult,
    ScanResult,
    SheetResult,
    ThicknessResult,
    TimePoint,
)
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.io.volume import Volume

pytestmark = pytest.mark.usefixtures("without_figures")

PARTICIPANTS = 8


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Two scans of each participant, whose names say nothing of the participant."""
    return write_study(tmp_path / "maps")


def write_study(maps: Path) -> Path:
    maps.mkdir(parents=True)
    rows = ["participant_id\tgroup"]
    with Ledger(maps / "run.jsonl") as ledger:
        for n in range(PARTICIPANTS):
            cases = [f"scan{2 * n}", f"scan{2 * n + 1}"]
            rows.append(f"P{n}\t{'ab'[n % 2]}")
            for session, case in enumerate(cases):
                labels = np.zeros((16, 16, 16), np.uint8)
                labels[1 : 4 + n % 3, 1:5, 1:5] = 17
                labels[6:9, 6:9, 1 : 4 + session] = 16
                labels[14, n, session] = 2  # no two maps are equal
                path = maps / f"{case}_dseg.nii.gz"
                Volume(labels, np.eye(4)).write(path, labels=True)
                together = TimePoint(
                    participant=f"P{n}",
                    year=2020.0 + session,
                    scans={name: name for name in cases},
                    volumes_mm3={
                        "Left-Hippocampus": 100.0 - session * n,
                        "Brain-Stem": 200.0 - session * (n % 3),
                    },
                )
                # Participants of group b lose 0.2 mm, which is 6.87 % a year more than group a.
                mm = 3.0 - session * (0.2 * (n % 2) - 0.02 * (n // 2 % 2))
                sheet = SheetResult(
                    side="left", mm=mm, std_mm=0.5, area_mm2=900.0, mm3=2700.0
                )
                thickness = ThicknessResult(
                    grade="pass",
                    reasons=[],
                    sheets=dict.fromkeys(
                        ("ctx-lh-insula", "Left-Cerebral-Cortex"), sheet
                    ),
                )
                lesion = LesionResult(
                    lesion=1,
                    mm3=20.0 + session * n,
                    region="deep",
                    x_mm=0,
                    y_mm=0,
                    z_mm=0,
                    probability=0.9,
                )
                lesions = LesionsResult(grade="pass", reasons=[], lesions=[lesion])
                result = ScanResult(
                    longitudinal=together, thickness=thickness, lesions=lesions
                )
                ledger.add(
                    Entry(
                        case,
                        "done",
                        input_sha256=case,
                        outputs={path.name: sha256_of(path)},
                        result=result,
                    )
                )
    (maps / "participants.tsv").write_text("\n".join([*rows, ""]))
    return maps


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report on such scans."""
    study = write_study(tmp_path_factory.mktemp("report") / "maps")
    report_cohort(CohortSettings(study, study / "out", jobs=1))
    return study / "out"


def test_participants_of_a_joint_segmentation_are_those_of_the_report(
    report: Path,
) -> None:
    volumes = pd.read_csv(report / "volumes.csv")
    scans_of = volumes.groupby("subject")["session"].nunique()
    assert scans_of.to_dict() == {f"P{n}": 2 for n in range(PARTICIPANTS)}
    effects = pd.read_csv(report / "change_effects.csv")
    assert set(effects["participants"]) == {PARTICIPANTS}
    page = (report / "report.html").read_text()
    assert (
        f"{PARTICIPANTS} participants (a: 4, b: 4) with two or more dated scans" in page
    )


def test_participants_of_one_name_at_two_sites_stay_apart(tmp_path: Path) -> None:
    rows = []
    for site in ("A", "B"):
        table = write_study(tmp_path / "sites" / site) / "participants.tsv"
        header, *people = table.read_text().splitlines()
        table.unlink()
        rows += [f"{site}/{row}" for row in people]
    study = tmp_path / "sites"
    (study / "participants.tsv").write_text("\n".join([header, *rows, ""]))
    report_cohort(CohortSettings(study, tmp_path / "out", jobs=1))
    volumes = pd.read_csv(tmp_path / "out/volumes.csv")
    scans_of = volumes.groupby("subject")["session"].nunique()
    assert len(scans_of) == 2 * PARTICIPANTS
    assert set(scans_of) == {2}
    effects = pd.read_csv(tmp_path / "out/change_effects.csv")
    assert set(effects["participants"]) == {2 * PARTICIPANTS}


def test_a_participant_that_was_named_with_a_folder_has_it_once(tmp_path: Path) -> None:
    """One run over two sites, whose other participants have equal names, too."""
    entries = {}
    for site in ("A", "B"):
        for name in ("sub-1_ses-1", "sub-1_ses-2", "sub-2"):
            path = tmp_path / site / f"{name}_dseg.nii.gz"
            path.parent.mkdir(exist_ok=True)
            path.touch()
            together = None
            if name != "sub-2":
                together = TimePoint(
                    participant=f"{site}/sub-1", year=None, scans={}, volumes_mm3={}
                )
            result = ScanResult(longitudinal=together)
            entries[path] = (tmp_path, Entry(f"{site}/{name}", "done", result=result))
    found = find_files(tmp_path, entries=entries)
    assert {file.participant for file in found} == {
        "A/sub-1",
        "B/sub-1",
        "A/sub-2",
        "B/sub-2",
    }


def test_participants_of_a_joint_segmentation_are_those_of_an_evaluation(
    study: Path, tmp_path: Path
) -> None:
    for folder in ("truth", "other"):
        (tmp_path / folder).mkdir()
        for path in study.glob("*_dseg.nii.gz"):
            shutil.copy(path, tmp_path / folder)
    settings = EvaluationSettings(
        tmp_path / "truth",
        {"other": tmp_path / "other", "together": study},
        tmp_path / "out",
        jobs=1,
        tables_only=True,
    )
    evaluate_predictions(settings)
    structures = pd.read_csv(tmp_path / "out/structures.csv")
    hippocampus = structures[structures["structure"] == "L Hippocampus"]
    assert list(hippocampus["participants"]) == [PARTICIPANTS, PARTICIPANTS]
    pairs = pd.read_csv(tmp_path / "out/pairs.csv")
    scans_of = pairs.groupby(["model", "subject"])["session"].nunique()
    assert len(scans_of) == 2 * PARTICIPANTS
    assert set(scans_of) == {2}


def test_a_covariate_that_changes_lack_is_still_taken_for_volumes(study: Path) -> None:
    """Only two participants, of one sex, have a second scan."""
    table = study / "participants.tsv"
    header, *people = table.read_text().splitlines()
    sexes = "MMFMFMFF"
    rows = [f"{row}\t{sex}" for row, sex in zip(people, sexes, strict=True)]
    table.write_text("\n".join([f"{header}\tsex", *rows, ""]))
    for number in range(5, 2 * PARTICIPANTS, 2):
        (study / f"scan{number}_dseg.nii.gz").unlink()
    settings = CohortSettings(study, study / "out", covariates=("sex",), jobs=1)
    report_cohort(settings)
    effects = pd.read_csv(study / "out/effects.csv")
    assert set(effects["formula"]) == {"volume ~ group + sex"}
    assert not (study / "out/change_effects.csv").exists()
    assert "Changes were not compared" in (study / "out/report.html").read_text()


def test_a_change_of_scanner_is_no_change_of_volume(study: Path) -> None:
    rows = ["participant_id\tgroup\tsite"]
    for number in range(2 * PARTICIPANTS):
        participant = number // 2
        site = "south" if number == 1 else "north"
        rows.append(f"scan{number}\t{'ab'[participant % 2]}\t{site}")
    (study / "participants.tsv").write_text("\n".join([*rows, ""]))
    report_cohort(CohortSettings(study, study / "out", jobs=1))
    effects = pd.read_csv(study / "out/change_effects.csv")
    assert set(effects["participants"]) == {PARTICIPANTS - 1}


def test_what_a_rater_rejects_has_no_part_in_changes(study: Path) -> None:
    digest = sha256_of(study / "scan0_dseg.nii.gz")
    for structure in ("Left-Hippocampus", "Left-Cerebral-Cortex"):
        rejected = Rating(
            "scan0", structure, "reject", "", "anna", "2026-01-01", digest
        )
        save_rating(study / "ratings.tsv", rejected, lock=study / "lock")
    settings = CohortSettings(
        study, study / "out", ratings=study / "ratings.tsv", jobs=1
    )
    report_cohort(settings)
    effects = pd.read_csv(study / "out/change_effects.csv").set_index("structure")
    assert effects["participants"].to_dict() == {
        "Left-Hippocampus": PARTICIPANTS - 1,
        "Brain-Stem": PARTICIPANTS,
    }
    rows = pd.read_csv(study / "out/thickness.csv").query("metric == 'thickness'")
    assert rows.dropna(subset="value").groupby("structure").size().to_dict() == {
        "lh_MeanThickness_thickness": 2 * PARTICIPANTS - 1,
        "lh_insula_thickness": 2 * PARTICIPANTS - 1,
    }
    effects = pd.read_csv(study / "out/thickness_change_effects.csv")
    assert effects.set_index("structure")["participants"].to_dict() == {
        "lh_MeanThickness_thickness": PARTICIPANTS - 1,
        "lh_insula_thickness": PARTICIPANTS - 1,
    }


def test_changes_of_thickness_are_compared_between_groups(report: Path) -> None:
    effects = pd.read_csv(report / "thickness_change_effects.csv")
    effect = effects.set_index("structure").loc["lh_insula_thickness"]
    assert effect["first_group"] == "a"
    # From 3.00 to 3.00 or 3.02 mm, and from 3.00 to 2.80 or 2.82 mm.
    assert effect["difference"] == pytest.approx(0.3322 + 6.5411, abs=1e-3)
    page = (report / "report.html").read_text()
    assert 'id="thickness-change-means-table"' in page


def test_changes_of_lesions_are_not_compared(study: Path) -> None:
    """A participant without lesions has no change in percent, and would be left out."""
    report_cohort(CohortSettings(study, study / "out", jobs=1))
    assert (study / "out/lesions_effects.csv").exists()
    assert not (study / "out/lesions_change_effects.csv").exists()


@pytest.mark.parametrize("is_edited", [False, True])
def test_a_corrected_scan_has_no_thickness_and_no_change(
    study: Path, is_edited: bool
) -> None:
    """Both were measured in the labels before their correction."""
    result = study / "scan0_dseg.nii.gz"
    correction = correct_voxel(result, (0, 0, 0), 2, "Left-Cerebral-White-Matter")
    if is_edited:
        # Another program has written over the result.
        correction.path.replace(result)
    report_cohort(CohortSettings(study, study / "out", jobs=1))
    thickness = pd.read_csv(study / "out/thickness.csv")
    measured = thickness.groupby("subject")["session"].nunique()
    assert (measured["P0"], measured["P1"]) == (1, 2)
    for table in ("change_effects.csv", "thickness_change_effects.csv"):
        effects = pd.read_csv(study / "out" / table)
        assert set(effects["participants"]) == {PARTICIPANTS - 1}
