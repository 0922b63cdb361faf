"""trinat evaluate from files to files, on small ellipsoids."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.ellipsoids import AFFINE, brain, read_metrics, value, write
from helpers.miniatures import without_orientation
from helpers.refusals import refusal
from helpers.serial import run_serially, write_scans

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.evaluate.evaluation import (
    EvaluationSettings,
    evaluate_predictions,
    named_models,
)
from trinat.segmentation.errors import ConfigError, EvaluationError

pytestmark = pytest.mark.usefixtures("without_figures")


def test_maps_without_orientation_are_measured_when_told_what_to_trust(
    tmp_path: Path,
) -> None:
    for side in ("truth", "pred"):
        path = tmp_path / side / "sub-01.nii.gz"
        write(path, brain())
        without_orientation(path)
    untold = EvaluationSettings(
        tmp_path / "truth",
        named_models([tmp_path / "pred"], []),
        tmp_path / "out",
        tables_only=True,
        jobs=1,
    )
    with pytest.raises(EvaluationError, match="--trust-affine"):
        evaluate_predictions(untold)
    assert evaluate_predictions(replace(untold, trust_affine="header")) == Exit.OK


def test_metrics_have_the_promised_columns(report: Path) -> None:
    header = (report / "metrics.csv").read_text().splitlines()[0]
    assert header == "subject,session,model,structure,fs_id,metric,value,unit,note"


def test_a_missed_structure_scores_zero_and_is_noted(metrics: pd.DataFrame) -> None:
    assert value(metrics, "sub-02", "second", "Left-Hippocampus", "dice") == 0
    rows = metrics[(metrics["subject"] == "sub-02") & (metrics["model"] == "second")]
    rows = rows[(rows["structure"] == "Left-Hippocampus") & (rows["metric"] == "hd95")]
    assert rows[["note"]].to_numpy().tolist() == [["missed"]]
    assert rows["value"].isna().all()


def test_every_file_is_accounted_for(report: Path) -> None:
    pairs = pd.read_csv(report / "pairs.csv", keep_default_na=False)
    counts = pairs.groupby(["model", "status"]).size().to_dict()
    assert counts == {
        ("first", "measured"): 7,
        ("first", "no prediction"): 1,
        ("first", "no truth"): 1,
        ("second", "measured"): 6,
        ("second", "failed"): 1,
        ("second", "no prediction"): 1,
    }
    failed = pairs[pairs["status"] == "failed"].iloc[0]
    assert failed["prediction"] == "sub-07_dseg.nii.gz"
    assert failed["note"]


def test_checksums_are_of_the_files(report: Path, study: Path) -> None:
    pairs = pd.read_csv(report / "pairs.csv", keep_default_na=False)
    row = pairs[(pairs["subject"] == "sub-03") & (pairs["model"] == "first")].iloc[0]
    digest = hashlib.sha256(
        (study / "truth/sub-03_dseg.nii.gz").read_bytes()
    ).hexdigest()
    assert row["truth_sha256"] == digest


def test_jobs_do_not_change_a_byte(
    settings: EvaluationSettings, report: Path, tmp_path: Path
) -> None:
    assert (
        evaluate_predictions(replace(settings, out=tmp_path, jobs=2, tables_only=True))
        == Exit.SOME_FAILED
    )
    for name in ("metrics.csv", "pairs.csv"):
        assert (tmp_path / name).read_bytes() == (report / name).read_bytes()


@pytest.mark.usefixtures("without_figures")
def test_figures_of_an_earlier_evaluation_are_removed(pair: EvaluationSettings) -> None:
    write(pair.models["model"] / "x.nii.gz", brain())
    evaluate_predictions(pair)
    (pair.out / "figures/earlier.svg").touch()
    evaluate_predictions(pair)
    assert not (pair.out / "figures/earlier.svg").exists()


def test_resampling_brings_it_there_and_the_report_says_so(
    pair: EvaluationSettings,
) -> None:
    """Shifted by a voxel in the file and by one in the header: back in place."""
    shifted = AFFINE.copy()
    shifted[0, 3] = 2
    write(pair.models["model"] / "x.nii.gz", brain((-1, 0, 0)), shifted)
    assert (
        evaluate_predictions(replace(pair, resample=True, tables_only=True)) == Exit.OK
    )
    metrics = read_metrics(pair.out / "metrics.csv")
    assert value(metrics, "x", "model", "group:all", "dice") == 1
    note = pd.read_csv(pair.out / "pairs.csv")["note"].iloc[0]
    assert note.startswith("resampled to the truth's grid, label by label")


def test_parcels_count_together_as_cortex_when_they_are_resampled(
    pair: EvaluationSettings,
) -> None:
    """Of 8 voxels, 3 are white matter and 5 are cortex, of three parcels."""
    block = np.array([[[2, 2], [2, 1001]], [[1001, 1002], [1002, 1003]]])
    affine = np.eye(4)
    affine[:3, 3] = -0.5
    write(pair.models["model"] / "x.nii.gz", np.tile(block, (16, 16, 16)), affine)
    cortex = np.full((16, 16, 16), 3)
    write(pair.truth / "x.nii.gz", cortex, np.diag([2.0, 2, 2, 1]))
    assert (
        evaluate_predictions(replace(pair, resample=True, tables_only=True)) == Exit.OK
    )
    metrics = read_metrics(pair.out / "metrics.csv")
    assert value(metrics, "x", "model", "Left-Cerebral-Cortex", "dice") == 1


def test_a_truth_on_every_fourth_slice_is_measured_there_alone(tmp_path: Path) -> None:
    whole, sparse = brain(), np.zeros_like(brain())
    sparse[:, ::4] = whole[:, ::4]
    write(tmp_path / "truth/x.nii.gz", sparse)
    write(tmp_path / "pred/x.nii.gz", whole)
    models = {"model": tmp_path / "pred"}
    settings = EvaluationSettings(
        tmp_path / "truth", models, tmp_path / "out", jobs=1, tables_only=True
    )
    assert evaluate_predictions(settings) == Exit.OK
    metrics = read_metrics(tmp_path / "out/metrics.csv")
    assert value(metrics, "x", "model", "group:all", "dice") == 1
    assert value(metrics, "x", "model", "group:all", "hd100") == 0
    note = pd.read_csv(tmp_path / "out/pairs.csv")["note"].iloc[0]
    assert note.startswith(
        "the truth is labelled on 5 slices of 28 along its second axis"
    )


def test_two_models_of_one_name_are_refused() -> None:
    with refusal(ConfigError, remedy="--model-name"):
        named_models([Path("a"), Path("b")], ["model", "model"])


def test_model_names_must_be_as_many_as_models() -> None:
    with pytest.raises(ConfigError, match="1 --model-name for 2 --pred"):
        named_models([Path("a"), Path("b")], ["only"])


def test_nothing_to_pair_is_said(pair: EvaluationSettings) -> None:
    write(pair.models["model"] / "y.nii.gz", brain())
    write(pair.models["model"] / "z.nii.gz", brain())
    with pytest.raises(EvaluationError, match="no prediction has a truth"):
        evaluate_predictions(pair)


def test_two_truths_of_one_scan_are_refused_before_anything_is_measured(
    pair: EvaluationSettings,
) -> None:
    for folder in (pair.truth, pair.models["model"]):
        for kind in ("aseg", "manual"):
            write(folder / f"sub-01_desc-{kind}_dseg.nii.gz", brain())
    with pytest.raises(
        EvaluationError, match=r"desc-aseg.* and .*desc-manual.* both of sub-01"
    ):
        evaluate_predictions(pair)
    assert not pair.out.exists()


def test_images_that_are_not_there_are_said_before_anything_is_measured(
    pair: EvaluationSettings,
) -> None:
    write(pair.models["model"] / "x.nii.gz", brain())
    with pytest.raises(ConfigError, match="no such file or folder: check the path"):
        evaluate_predictions(replace(pair, images=pair.truth / "nowhere"))
    assert not pair.out.exists()


@pytest.mark.slow
@pytest.mark.important
def test_the_command_reads_like_its_help(study: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from trinat.pipelines.cli import main; main()",
        "evaluate",
    ]
    command += ["--truth", str(study / "truth"), "--pred", str(study / "a"), "--out"]
    done = subprocess.run(
        [*command, str(tmp_path / "out"), "--jobs", "1", "--tables-only"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == Exit.SOME_FAILED
    assert [line for line in done.stderr.splitlines() if "left" not in line][-2:] == [
        "sub-08, a: no prediction found",
        "sub-99, a: no truth found",
    ]
    assert done.stdout.strip() == str(tmp_path / "out" / "metrics.csv")
    assert not (tmp_path / "out" / "report.html").exists()


def test_a_subject_called_na_and_one_that_is_a_formula_survive(tmp_path: Path) -> None:
    for folder in ("truth", "pred"):
        for name in ("NA", "=1+1"):
            write(tmp_path / folder / f"{name}.nii.gz", brain())
    models = {"@model": tmp_path / "pred"}
    evaluate_predictions(
        EvaluationSettings(
            tmp_path / "truth", models, tmp_path / "out", jobs=1, tables_only=True
        )
    )
    metrics = read_metrics(tmp_path / "out" / "metrics.csv")
    assert set(metrics["subject"]) == {"NA", "'=1+1"}
    assert set(metrics["model"]) == {"'@model"}


def test_a_runs_results_are_known_by_their_scans_and_their_model(
    tmp_path: Path,
) -> None:
    # A space and an accent are not safe in the name of an output.
    names = ["Renée 2.nii.gz", "Renée 10.nii.gz"]
    scans = write_scans(tmp_path / "scans", *names)
    run_serially(scans, tmp_path / "out")
    (tmp_path / "truth").mkdir()
    for name in names:
        (found,) = (tmp_path / "out").glob(
            f"Renee_{name.split()[1].split('.')[0]}-*_dseg.nii.gz"
        )
        shutil.copy(found, tmp_path / "truth" / name)
    models = named_models([tmp_path / "out"], [])
    assert list(models) == ["random"]
    settings = EvaluationSettings(
        tmp_path / "truth", models, tmp_path / "report", tables_only=True, jobs=1
    )
    assert evaluate_predictions(settings) == Exit.OK
    pairs = pd.read_csv(tmp_path / "report/pairs.csv")
    assert set(pairs["paired_by"]) == {"name"}
    assert sorted(pairs["truth"]) == sorted(names)
