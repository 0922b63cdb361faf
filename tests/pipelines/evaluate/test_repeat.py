"""trinat evaluate --repeat: two scans of each participant, with labels and without."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.commands import trinat
from helpers.miniatures import head_labels
from helpers.sessions import head_of, pose_of, session_of

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.evaluate.repeat import evaluate_repeat
from trinat.pipelines.evaluate.settings import EvaluationSettings
from trinat.pipelines.report.repeat import LABELS, OTHER_LABELS, PREDICTIONS
from trinat.segmentation.errors import ConfigError, EvaluationError
from trinat.segmentation.io.volume import Volume

POSE = pose_of(4.0, 5.0)
WHITE = "Left-Cerebral-White-Matter"


def write_sessions(root: Path, participant: str = "p", seed: int = 0) -> None:
    """Write two scans of a head, their labels, and predictions that equal the labels.

    The second prediction lacks the structures of the right side.
    """
    head = head_of(seed)
    labels = head_labels()
    without_right = np.where((labels >= 41) & (labels < 80), 0, labels)
    scans = (head, session_of(head, POSE))
    poses = (np.eye(4), POSE)
    predictions = (labels, without_right)
    for number, (scan, pose) in enumerate(zip(scans, poses, strict=True), start=1):
        affine = pose @ head.affine
        name = f"{participant}_{number}"
        for folder in ("scans", "labels", "pred"):
            (root / folder).mkdir(exist_ok=True)
        scan.write(root / f"scans/{name}.nii.gz")
        Volume(labels, affine).write(root / f"labels/{name}.nii.gz", labels=True)
        prediction = Volume(predictions[number - 1], affine)
        prediction.write(root / f"pred/{name}_dseg.nii.gz", labels=True)


def write_table(root: Path, *participants: str) -> Path:
    rows = ["scan\tparticipant"]
    for participant in participants:
        rows += [f"{participant}_{number}.nii.gz\t{participant}" for number in (1, 2)]
    path = root / "sessions.tsv"
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture
def settings(tmp_path: Path) -> EvaluationSettings:
    write_sessions(tmp_path)
    return EvaluationSettings(
        tmp_path / "labels",
        {"fast": tmp_path / "pred"},
        tmp_path / "out",
        images=tmp_path / "scans",
        sessions_table=write_table(tmp_path, "p"),
        repeat=True,
        jobs=1,
    )


def dice_of(out: Path) -> dict[tuple[str, str], float]:
    table = pd.read_csv(out / "structures.csv")
    rows = table.set_index(["structure", "comparison"])["dice"]
    return dict(rows.items())


def test_labels_and_predictions_of_two_scans_are_compared(
    settings: EvaluationSettings,
) -> None:
    assert evaluate_repeat(settings) == Exit.OK
    dice = dice_of(settings.out)
    # The labels of the second scan are those of the first, moved with the head.
    assert dice[WHITE, LABELS] > 0.95
    # At the border of the missing right side, voxels may become left ones.
    assert dice[WHITE, PREDICTIONS] == pytest.approx(dice[WHITE, LABELS], abs=0.01)
    right = WHITE.replace("Left", "Right")
    assert dice[right, LABELS] > 0.95
    assert dice[right, PREDICTIONS] == 0
    # The first prediction matches the second labels as well; the second prediction has nothing
    # there.
    assert dice[right, OTHER_LABELS] == pytest.approx(dice[right, LABELS] / 2)
    rows = pd.read_csv(settings.out / "repeat.csv")
    crossed = rows[(rows.comparison == OTHER_LABELS) & (rows.structure == right)]
    assert list(crossed["first"]) == ["p_1", "p_2"]
    assert list(crossed["second"]) == ["p_2", "p_1"]
    assert list(crossed["difference_percent"]) == pytest.approx([0, 200], abs=1e-3)
    pairs = pd.read_csv(settings.out / "pairs.csv")
    assert list(pairs["status"]) == ["measured"]
    assert pairs["note"].isna().all()
    assert "How far labels repeat" in (settings.out / "report.html").read_text()


def test_without_labels_predictions_alone_are_compared(
    settings: EvaluationSettings,
) -> None:
    assert evaluate_repeat(replace(settings, truth=None)) == Exit.OK
    rows = pd.read_csv(settings.out / "repeat.csv")
    assert set(rows["comparison"]) == {PREDICTIONS}


def test_nothing_of_an_earlier_run_stays_beside_the_tables(
    settings: EvaluationSettings,
) -> None:
    evaluate_repeat(settings)
    assert (settings.out / "report.html").exists()
    evaluate_repeat(replace(settings, tables_only=True))
    assert not (settings.out / "report.html").exists()
    assert (settings.out / "structures.csv").exists()


def test_a_scan_without_labels_is_compared_where_it_can_be(
    settings: EvaluationSettings,
) -> None:
    assert settings.truth is not None
    (settings.truth / "p_2.nii.gz").unlink()
    assert evaluate_repeat(settings) == Exit.OK
    rows = pd.read_csv(settings.out / "repeat.csv")
    crossed = rows[rows.comparison == OTHER_LABELS]
    assert set(crossed["first"]) == {"p_2"}
    assert set(rows["comparison"]) == {PREDICTIONS, OTHER_LABELS}
    pairs = pd.read_csv(settings.out / "pairs.csv")
    assert list(pairs["note"]) == ["no labels of p_2"]


def test_two_heads_are_no_pair_and_the_others_are_measured(
    settings: EvaluationSettings, tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    write_sessions(tmp_path, "q", seed=1)
    other = (tmp_path / "scans/p_2.nii.gz").read_bytes()
    (tmp_path / "scans/q_2.nii.gz").write_bytes(other)
    table = write_table(tmp_path, "p", "q")
    logged.clear()
    status = evaluate_repeat(replace(settings, sessions_table=table))
    assert status == Exit.SOME_FAILED
    assert any(
        "q: the two scans do not show one head" in line for line in logged.messages
    )
    pairs = pd.read_csv(settings.out / "pairs.csv").set_index("participant")
    assert pairs["status"].to_dict() == {"p": "measured", "q": "failed"}


def test_a_participant_with_one_scan_is_listed(
    settings: EvaluationSettings, tmp_path: Path
) -> None:
    write_sessions(tmp_path, "q", seed=1)
    for place in ("scans/q_2.nii.gz", "labels/q_2.nii.gz", "pred/q_2_dseg.nii.gz"):
        (tmp_path / place).unlink()
    assert evaluate_repeat(settings) == Exit.OK
    pairs = pd.read_csv(settings.out / "pairs.csv").set_index("first")
    assert pairs["status"].to_dict() == {"p_1": "measured", "q_1": "left out"}


def test_scans_of_nobody_twice_are_refused(settings: EvaluationSettings) -> None:
    with pytest.raises(EvaluationError, match="no participant has two scans"):
        evaluate_repeat(replace(settings, sessions_table=None))
    assert not settings.out.exists()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"images": None}, "--repeat needs the scans"),
        ({"latex": True}, "--latex is not for --repeat"),
        ({"show_heads": True}, "--show-heads is not for --repeat"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    settings: EvaluationSettings, change: dict[str, object], what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        evaluate_repeat(replace(settings, **change))


def test_participants_are_for_it_alone(settings: EvaluationSettings) -> None:
    places = ["--truth", str(settings.truth), "--pred", str(settings.models["fast"])]
    participants = ["--sessions", str(settings.sessions_table)]
    with pytest.raises(ConfigError, match="--sessions has no effect without --repeat"):
        trinat("evaluate", *places, *participants, "--out", settings.out)


def test_participants_of_one_name_in_two_folders_are_two(
    settings: EvaluationSettings, tmp_path: Path
) -> None:
    for site in ("north", "south"):
        for number in (1, 2):
            name = f"sub-01_ses-{number}"
            for folder, before, after in (
                ("scans", f"p_{number}", f"{name}_T1w"),
                ("pred", f"p_{number}_dseg", f"{name}_dseg"),
            ):
                target = tmp_path / "sites" / folder / site / f"{after}.nii.gz"
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(tmp_path / folder / f"{before}.nii.gz", target)
    sites = tmp_path / "sites"
    settings = replace(
        settings,
        truth=None,
        models={"fast": sites / "pred"},
        images=sites / "scans",
        sessions_table=None,
    )
    assert evaluate_repeat(settings) == Exit.OK
    pairs = pd.read_csv(settings.out / "pairs.csv")
    assert pairs["participant"].tolist() == ["north/sub-01", "south/sub-01"]
