"""trinat evaluate from files to files, on small ellipsoids."""

from __future__ import annotations

import hashlib
import html
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.miniatures import without_orientation
from helpers.serial import run_serially, write_scans

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.evaluate.mappings import read_mapping
from trinat.pipelines.evaluate.run import (
    EvaluationSettings,
    evaluate_predictions,
    named_models,
)
from trinat.pipelines.predict.entry import Entry
from trinat.pipelines.predict.ledger import Ledger
from trinat.segmentation.errors import ConfigError, EvaluationError
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.metrics.pair import evaluate as measure
from trinat.segmentation.report.evaluation import code_of

AFFINE = np.diag([2.0, 2.0, 2.0, 1.0])
# Centres and radii in voxels of a few structures, by FreeSurfer number.
BODIES = {
    2: ((8, 14, 14), 5),
    41: ((20, 14, 14), 5),
    17: ((8, 5, 8), 2.4),
    53: ((20, 5, 8), 2.4),
    16: ((14, 12, 4), 2.4),
    24: ((14, 22, 22), 2.2),
}


def brain(
    shift: tuple[int, int, int] = (0, 0, 0), *, without: tuple[int, ...] = ()
) -> np.ndarray:
    labels = np.zeros((28, 28, 28), np.int16)
    grid = np.indices(labels.shape)
    for number, (centre, radius) in BODIES.items():
        if number in without:
            continue
        moved = np.array(centre) + shift
        inside = ((grid - moved[:, None, None, None]) ** 2).sum(0) <= radius**2
        labels[inside] = number
    return labels


def write(path: Path, labels: np.ndarray, affine: np.ndarray = AFFINE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Volume(labels, affine).write(path, labels=True)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven persons and two models; model b misses a structure, mirrors a scan, lacks a file and
    has a damaged one; one truth without any prediction, one prediction without a truth."""
    root = tmp_path_factory.mktemp("study")
    for n in range(1, 8):
        write(root / f"truth/sub-{n:02d}_dseg.nii.gz", brain())
        write(root / f"a/sub-{n:02d}_dseg.nii.gz", brain((n % 2, 0, 0)))
        write(
            root / f"b/sub-{n:02d}_dseg.nii.gz",
            brain((1, n % 2, 1), without=(17,) if n == 2 else ()),
        )
    mirrored = brain()
    mirrored = np.select(
        [mirrored == k for k in (2, 41, 17, 53)], [41, 2, 53, 17], mirrored
    )
    write(root / "b/sub-05_dseg.nii.gz", mirrored)
    (root / "b/sub-07_dseg.nii.gz").write_bytes(b"damaged")
    write(root / "truth/sub-08_dseg.nii.gz", brain())
    write(root / "a/sub-99_dseg.nii.gz", brain())
    return root


@pytest.fixture(scope="module")
def settings(study: Path) -> EvaluationSettings:
    models = named_models([study / "a", study / "b"], ["first", "second"])
    return EvaluationSettings(
        study / "truth", models, study / "report", jobs=1, command="trinat evaluate"
    )


@pytest.fixture(scope="module")
def report(settings: EvaluationSettings) -> Path:
    assert evaluate_predictions(settings) == Exit.SOME_FAILED
    return settings.out


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


def read_metrics(path: Path) -> pd.DataFrame:
    """A subject called NA is no missing value."""
    return pd.read_csv(
        path, keep_default_na=False, na_values={"value": "", "fs_id": ""}
    )


@pytest.fixture(scope="module")
def metrics(report: Path) -> pd.DataFrame:
    return read_metrics(report / "metrics.csv")


def value(
    metrics: pd.DataFrame, subject: str, model: str, structure: str, metric: str
) -> float:
    rows = metrics[
        (metrics["subject"] == subject)
        & (metrics["model"] == model)
        & (metrics["structure"] == structure)
        & (metrics["metric"] == metric)
    ]
    assert len(rows) == 1
    return float(rows["value"].iloc[0])


def test_metrics_have_the_promised_columns(report: Path) -> None:
    header = (report / "metrics.csv").read_text().splitlines()[0]
    assert header == "subject,session,model,structure,fs_id,metric,value,unit,note"


def test_a_perfect_prediction_is_perfect(metrics: pd.DataFrame) -> None:
    assert value(metrics, "sub-02", "first", "group:all", "dice") == 1
    assert value(metrics, "sub-02", "first", "group:all", "hd100") == 0


def test_a_shift_of_one_voxel_is_two_millimetres(metrics: pd.DataFrame) -> None:
    assert value(metrics, "sub-01", "first", "Brain-Stem", "hd100") == pytest.approx(2)
    assert value(
        metrics, "sub-01", "first", "Brain-Stem", "centroid_distance"
    ) == pytest.approx(2)


def test_volumes_are_in_cubic_millimetres(metrics: pd.DataFrame) -> None:
    voxels = np.count_nonzero(brain() == 16)
    assert value(metrics, "sub-01", "first", "Brain-Stem", "truth_volume") == 8 * voxels


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


def test_the_summary_is_strict_json_with_all_tables(report: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    summary = json.loads((report / "summary.json").read_text(), parse_constant=refuse)
    assert set(summary) == {
        "provenance",
        "statistics",
        "comparisons",
        "agreement",
        "retest",
        "not_predicted",
        "other_csf",
        "side_swapped",
        "absences",
        "pairs",
    }
    perfect = [
        row
        for row in summary["statistics"]
        if (row["metric"], row["structure"]) == ("dice", "group:all")
    ]
    assert {row["model"] for row in perfect} == {"first", "second"}
    assert {row["model"] for row in summary["agreement"]} == {"first", "second"}
    absent = {(row["model"], row["structure"]) for row in summary["absences"]}
    assert ("second", "Left-Hippocampus") in absent
    # Nobody was scanned twice, and no ledger says what the models cannot predict.
    assert summary["retest"] == []
    assert summary["not_predicted"] == []
    assert summary["pairs"] == {
        "measured": 13,
        "no prediction": 2,
        "failed": 1,
        "no truth": 1,
    }
    swapped = [(row["subject"], row["model"]) for row in summary["side_swapped"]]
    assert swapped == [("sub-05", "second")]
    compared = [
        row
        for row in summary["comparisons"]
        if row["metric"] == "dice" and row["structure"] == "group:all"
    ]
    assert len(compared) == 1
    assert compared[0]["persons"] == 6
    assert compared[0]["p"] is not None


def test_the_cards_show_both_models_and_no_row_a_structure_that_nobody_has(
    report: Path,
) -> None:
    page = (report / "report.html").read_text()
    titles = re.findall(r'class="what">([^<]*)<', page)
    assert titles == [
        f"{metric}, {model}"
        for model in ("first", "second")
        for metric in ("Dice", "IoU", "Hausdorff 95 %", "Surface Dice 1 mm")
    ]
    (absent,) = re.findall(
        r"26 structures in no label map, true or predicted, and not shown: (.*)\.", page
    )
    assert absent.startswith("Cerebral Cortex, Lateral Ventricle, Inf Lat Vent")
    assert ">L Putamen<" not in page
    assert ">L Hippocampus<" in page


def test_the_page_says_what_went_wrong(report: Path) -> None:
    page = (report / "report.html").read_text()
    assert "sub-05: second has left and right exchanged" in page
    assert "1 pair could not be measured" in page
    assert "2 true label maps without a prediction" in page
    assert "second: 1 structure missed over all scans" in page
    assert "For research, not for diagnosis." in page


def test_the_page_needs_no_network(report: Path) -> None:
    page = html.unescape((report / "report.html").read_text())
    assert "default-src 'none'" in page
    addresses = set(re.findall(r"(?:src|href)=\"(?!data:|#)([^\"]*)", page))
    assert addresses == set()


def test_figures_are_files_too(report: Path) -> None:
    names = {path.name for path in (report / "figures").iterdir()}
    expected = {
        "boxes-dice",
        "boxes-hd95",
        "bland-altman-1",
        "comparison-dice-1",
        "heat-map-1",
    }
    assert {
        f"{name}{ending}" for name in expected for ending in (".png", ".svg")
    } <= names
    assert {f"worst-{n}.png" for n in range(1, 6)} <= names


def test_the_printed_code_computes_the_page_again(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run as a reader would run it: in the report's folder, from the text on the page."""
    page = (report / "report.html").read_text()
    (printed,) = re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", page, re.DOTALL)
    code = html.unescape(printed)
    assert code == code_of("first")
    monkeypatch.chdir(report)
    (table,) = run_code(code)
    for row in json.loads((report / "summary.json").read_text())["statistics"]:
        if (row["model"], row["metric"]) == ("first", "dice") and row["persons"]:
            assert table["mean"][row["structure"]] == pytest.approx(
                row["mean"], rel=1e-12
            )


def run_code(code: str) -> list[pd.DataFrame]:
    tables: list[pd.DataFrame] = []
    exec(code.replace(".to_string()", ""), {"print": tables.append})
    return tables


def test_jobs_do_not_change_a_byte(
    settings: EvaluationSettings, report: Path, tmp_path: Path
) -> None:
    assert (
        evaluate_predictions(replace(settings, out=tmp_path, jobs=2, tables_only=True))
        == Exit.SOME_FAILED
    )
    for name in ("metrics.csv", "pairs.csv"):
        assert (tmp_path / name).read_bytes() == (report / name).read_bytes()


@pytest.fixture
def pair(tmp_path: Path) -> EvaluationSettings:
    write(tmp_path / "truth/x.nii.gz", brain())
    models = {"model": tmp_path / "pred"}
    return EvaluationSettings(tmp_path / "truth", models, tmp_path / "out", jobs=1)


def test_another_grid_is_refused(pair: EvaluationSettings) -> None:
    shifted = AFFINE.copy()
    shifted[0, 3] = 2
    write(pair.models["model"] / "x.nii.gz", brain(), shifted)
    with pytest.raises(
        EvaluationError, match=r"not on the truth's grid.*2 mm apart.*--resample"
    ):
        evaluate_predictions(pair)


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


def test_a_mapping_brings_other_numbers_to_freesurfer(
    pair: EvaluationSettings, tmp_path: Path
) -> None:
    other = np.where(brain() == 16, 7001, brain()).astype(np.int16)
    write(pair.models["model"] / "x.nii.gz", other)
    table = tmp_path / "mapping.tsv"
    table.write_text("number\tfreesurfer\tof\n7001\t16\tprediction\n")
    evaluate_predictions(replace(pair, mapping=table, tables_only=True))
    metrics = read_metrics(pair.out / "metrics.csv")
    assert value(metrics, "x", "model", "Brain-Stem", "dice") == 1


def in_manual_numbers(labels: np.ndarray) -> np.ndarray:
    """Of the bodies, in Neuromorphometrics' numbers."""
    manual = np.zeros_like(labels)
    for freesurfer, number in {2: 45, 41: 44, 17: 48, 53: 47, 16: 35, 24: 46}.items():
        manual[labels == freesurfer] = number
    return manual


def test_a_folding_table_is_of_the_truth_alone(pair: EvaluationSettings) -> None:
    write(pair.truth / "x.nii.gz", in_manual_numbers(brain()))
    write(pair.models["model"] / "x.nii.gz", brain())
    evaluate_predictions(replace(pair, fold="neuromorphometrics", tables_only=True))
    metrics = read_metrics(pair.out / "metrics.csv")
    for structure in ("Left-Hippocampus", "Right-Hippocampus", "Brain-Stem"):
        assert value(metrics, "x", "model", structure, "dice") == 1


def test_each_model_has_its_own_numbering(
    pair: EvaluationSettings, tmp_path: Path
) -> None:
    models = {"ours": tmp_path / "pred", "other": tmp_path / "other"}
    write(models["ours"] / "x.nii.gz", brain())
    write(models["other"] / "x.nii.gz", in_manual_numbers(brain()))
    folded = replace(
        pair,
        models=models,
        fold_pred=("freesurfer", "neuromorphometrics"),
        tables_only=True,
    )
    evaluate_predictions(folded)
    metrics = read_metrics(pair.out / "metrics.csv")
    for model in models:
        assert value(metrics, "x", model, "Left-Hippocampus", "dice") == 1
    with pytest.raises(ConfigError, match="3 --numbering-pred for 2 --pred"):
        evaluate_predictions(replace(folded, fold_pred=("freesurfer",) * 3))


def test_a_number_outside_the_table_fails_its_pair_and_is_named(
    pair: EvaluationSettings,
) -> None:
    """2 is white matter to FreeSurfer, and nothing to Neuromorphometrics."""
    write(pair.models["model"] / "x.nii.gz", brain())
    folded = replace(pair, fold="neuromorphometrics", tables_only=True)
    with pytest.raises(
        EvaluationError, match=r"neuromorphometrics does not fold .*: 2 \("
    ):
        evaluate_predictions(folded)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1\tx\ttruth", "whole numbers"),
        ("1\t2\teverything", "truth, prediction or both"),
    ],
)
def test_a_wrong_mapping_is_refused_by_its_line(
    line: str, message: str, tmp_path: Path
) -> None:
    table = tmp_path / "mapping.tsv"
    table.write_text(f"number\tfreesurfer\tof\n{line}\n")
    with pytest.raises(ConfigError, match=f"line 2.*{message}"):
        read_mapping(table)


def test_mappings_apply_to_the_truth_unless_said(tmp_path: Path) -> None:
    table = tmp_path / "mapping.tsv"
    table.write_text("number\tfreesurfer\tof\n1\t2\t\n3\t4\tboth\n")
    mappings = read_mapping(table)
    assert (mappings.truth, mappings.prediction) == ({1: 2, 3: 4}, {3: 4})


def test_two_models_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two models are called 'model'"):
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


def test_no_jobs_are_refused(pair: EvaluationSettings) -> None:
    with pytest.raises(ConfigError, match="use at least 1"):
        evaluate_predictions(replace(pair, jobs=0))


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


@pytest.mark.parametrize("told_by", ["ledger", "option"])
def test_what_a_model_cannot_predict_is_listed_apart(
    tmp_path: Path, told_by: str
) -> None:
    for n in (1, 2):
        write(tmp_path / f"truth/sub-{n:02d}.nii.gz", brain())
        write(tmp_path / f"pred/sub-{n:02d}.nii.gz", brain((1, 0, 0), without=(24,)))
    models = named_models([tmp_path / "pred"], ["fast"])
    settings = EvaluationSettings(tmp_path / "truth", models, tmp_path / "out", jobs=1)
    if told_by == "option":
        settings = replace(settings, not_predicted=("CSF",))
    else:
        known = [name for name in load_scheme("quicknat33").names[1:] if name != "CSF"]
        with Ledger(tmp_path / "pred/run.jsonl") as ledger:
            ledger.add(
                Entry(
                    "sub-01", "done", result={"volumes_mm3": dict.fromkeys(known, 1.0)}
                )
            )
    assert evaluate_predictions(settings) == Exit.OK
    metrics = read_metrics(tmp_path / "out/metrics.csv")
    csf = metrics[
        (metrics["structure"] == "CSF") & ~metrics["metric"].str.startswith("labelled")
    ]
    assert set(csf["note"]) == {"not predicted by this model"}
    assert csf["metric"][csf["value"].notna()].unique().tolist() == ["truth_volume"]
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["not_predicted"] == [{"model": "fast", "structure": "CSF"}]
    assert "CSF" not in {row["structure"] for row in summary["statistics"]}
    page = (tmp_path / "out/report.html").read_text()
    assert "CSF is not predicted by fast: it is in no mean." in page
    assert "Lowest Dice: CSF" not in page
    assert page.index('id="headline"') < page.index('id="unknown-table"')


def test_csf_of_a_model_that_finds_all_fluid_is_not_compared_with_a_region(
    tmp_path: Path,
) -> None:
    write(tmp_path / "truth/sub-01.nii.gz", brain())
    write(tmp_path / "pred/sub-01.nii.gz", brain((1, 0, 0)))
    names = load_scheme("quicknat33").names[1:]
    found = {"volumes_mm3": dict.fromkeys(names, 1.0), "csf": "intracranial"}
    with Ledger(tmp_path / "pred/run.jsonl") as ledger:
        ledger.add(Entry("sub-01", "done", result=found))
    models = {"fast": tmp_path / "pred"}
    settings = EvaluationSettings(tmp_path / "truth", models, tmp_path / "out", jobs=1)
    assert evaluate_predictions(settings) == Exit.OK
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["other_csf"] == [{"model": "fast", "structure": "CSF"}]
    assert "CSF" not in {row["structure"] for row in summary["statistics"]}
    assert "CSF of fast is not compared" in (tmp_path / "out/report.html").read_text()
    # With a truth of all fluid it counts.
    settings = replace(settings, csf="intracranial", out=tmp_path / "again")
    assert evaluate_predictions(settings) == Exit.OK
    summary = json.loads((tmp_path / "again/summary.json").read_text())
    assert summary["other_csf"] == []
    assert "CSF" in {row["structure"] for row in summary["statistics"]}


def test_coarser_schemes_are_measured_as_in_python(tmp_path: Path) -> None:
    """CSF of tissue4 has the ventricles: it counts, though the model does not know its CSF."""
    truth = brain()
    truth[2:5, 20:24, 20:24] = 4
    prediction = np.where(truth == 24, 0, truth).astype(np.int16)
    write(tmp_path / "truth/sub-01.nii.gz", truth)
    write(tmp_path / "pred/sub-01.nii.gz", prediction)
    known = [name for name in load_scheme("quicknat33").names[1:] if name != "CSF"]
    with Ledger(tmp_path / "pred/run.jsonl") as ledger:
        ledger.add(
            Entry("sub-01", "done", result={"volumes_mm3": dict.fromkeys(known, 1.0)})
        )
    models = {"fast": tmp_path / "pred"}
    settings = EvaluationSettings(
        tmp_path / "truth", models, tmp_path / "out", labels="tissue4", jobs=1
    )
    assert evaluate_predictions(replace(settings, tables_only=True)) == Exit.OK
    rows = read_metrics(tmp_path / "out/metrics.csv")
    (dice,) = rows[(rows["structure"] == "CSF") & (rows["metric"] == "dice")]["value"]
    paths = (tmp_path / "truth/sub-01.nii.gz", tmp_path / "pred/sub-01.nii.gz")
    assert dice == pytest.approx(measure(*paths, labels="tissue4").dice["CSF"])
    assert 0 < dice < 1


def test_means_of_models_over_different_values_are_said_to_be(report: Path) -> None:
    """Model b misses a hippocampus of one person: a has a distance more there."""
    page = html.unescape((report / "report.html").read_text())
    assert (
        "The means of first and second are not over the same scans and structures."
        in page
    )
    summary = json.loads((report / "summary.json").read_text())
    left_out = {
        row["structure"]: row["left_out"]
        for row in summary["comparisons"]
        if row["metric"] == "hd95"
    }
    assert left_out["Left-Hippocampus"] == 2  # of sub-02, and of sub-07, which b lacks
    assert left_out["Right-Hippocampus"] == 1


def test_a_structure_that_the_scheme_lacks_cannot_be_named(
    pair: EvaluationSettings,
) -> None:
    write(pair.models["model"] / "x.nii.gz", brain())
    with pytest.raises(ConfigError, match="quicknat33 has no 'Liquor'"):
        evaluate_predictions(replace(pair, not_predicted=("Liquor",)))


def test_what_a_reader_wants_comes_first(report: Path) -> None:
    page = (report / "report.html").read_text()
    cards = re.findall(r'<p class="what">(.*?), first</p>', page)
    assert cards[:4] == ["Dice", "IoU", "Hausdorff 95 %", "Surface Dice 1 mm"]
    headline = page[page.index('id="headline"') : page.index('id="groups"')]
    assert "Generalised" not in headline
    assert (
        headline.index("IoU")
        < headline.index("Hausdorff 95 %")
        < headline.index("Surface Dice")
    )
    assert all(
        f'id="heat-{m}-1"' in page for m in ("dice", "iou", "hd95", "surface_dice_1mm")
    )
    bland_altman = (report / "figures/bland-altman-1.svg").read_text()
    assert all(
        name in bland_altman
        for name in ("R Hippocampus", "L Hippocampus", "Brain Stem")
    )


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


def test_tables_for_a_paper_and_what_they_show(tmp_path: Path) -> None:
    for n, missed in ((1, ()), (2, (17,))):
        write(tmp_path / f"truth/sub-{n}_dseg.nii.gz", brain())
        write(tmp_path / f"pred/sub-{n}_dseg.nii.gz", brain(without=missed))
    models = named_models([tmp_path / "pred"], ["own_50%"])
    settings = EvaluationSettings(
        tmp_path / "truth", models, tmp_path / "out", jobs=1, tables_only=True
    )
    assert evaluate_predictions(replace(settings, latex=True, csv=True)) == Exit.OK
    lines = (tmp_path / "out/structures.tex").read_text().splitlines()
    # Dice 1 and 0: SD 0.707. The missed one has no distance, so one person is left.
    (row,) = [line for line in lines if line.startswith("L Hippocampus")]
    shown = r"0.500 $\pm$ 0.707"
    assert row == rf"L Hippocampus & 2 & {shown} & {shown} & 0.00 & {shown} \\"
    assert {r"\toprule", r"\midrule", r"\bottomrule"} <= set(lines)
    assert (
        r"Structure & Persons & Dice & IoU & Hausdorff 95 \% (mm) & Surface Dice 1 mm \\"
        in lines
    )
    assert any(line.startswith(r"\caption{own\_50\%: mean") for line in lines)
    assert any(line.startswith("All structures & 2 &") for line in lines)
    table = pd.read_csv(tmp_path / "out/structures.csv").set_index("structure")
    left = table.loc["L Hippocampus"]
    assert (left["model"], left["persons"]) == ("own_50%", 2)
    assert left["dice_mean":"dice_high"].tolist() == [0.5, 0.707, 0, 1]
    assert left["hd95_mean"] == 0
    assert np.isnan(left["hd95_sd"])


def test_tables_for_a_paper_are_not_written_unasked(report: Path) -> None:
    assert not list(report.glob("structures.*"))
