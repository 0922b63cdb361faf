"""Structures that a model does not predict, or defines differently, are listed separately."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.ellipsoids import brain, read_metrics, write
from helpers.studies import add_result

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.evaluate.evaluation import (
    EvaluationSettings,
    evaluate_predictions,
    named_models,
)
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.metrics.pair import evaluate as measure

pytestmark = pytest.mark.usefixtures("without_figures")


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
        volumes = dict.fromkeys(known, 1.0)
        add_result(tmp_path / "pred", "sub-01", volumes_mm3=volumes)
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
    assert "CSF is not predicted by fast and excluded from its means." in page
    assert "Lowest Dice: CSF" not in page
    assert page.index('id="headline"') < page.index('id="unknown-table"')


@pytest.mark.slow
@pytest.mark.important
def test_csf_of_a_model_that_finds_all_fluid_is_not_compared_with_a_region(
    tmp_path: Path,
) -> None:
    write(tmp_path / "truth/sub-01.nii.gz", brain())
    write(tmp_path / "pred/sub-01.nii.gz", brain((1, 0, 0)))
    names = load_scheme("quicknat33").names[1:]
    found = {"volumes_mm3": dict.fromkeys(names, 1.0), "csf": "intracranial"}
    add_result(tmp_path / "pred", "sub-01", **found)
    models = {"fast": tmp_path / "pred"}
    settings = EvaluationSettings(tmp_path / "truth", models, tmp_path / "out", jobs=1)
    assert evaluate_predictions(settings) == Exit.OK
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["other_csf"] == [{"model": "fast", "structure": "CSF"}]
    assert "CSF" not in {row["structure"] for row in summary["statistics"]}
    assert "CSF of fast is not compared" in (tmp_path / "out/report.html").read_text()
    # It counts if the truth contains all fluid.
    settings = replace(settings, csf="intracranial", out=tmp_path / "again")
    assert evaluate_predictions(settings) == Exit.OK
    summary = json.loads((tmp_path / "again/summary.json").read_text())
    assert summary["other_csf"] == []
    assert "CSF" in {row["structure"] for row in summary["statistics"]}


def test_csf_of_label_maps_from_elsewhere_is_what_the_option_says(
    tmp_path: Path,
) -> None:
    write(tmp_path / "truth/sub-01.nii.gz", brain())
    write(tmp_path / "aseg/sub-01.nii.gz", brain((1, 0, 0)))
    write(tmp_path / "synthseg/sub-01.nii.gz", brain((1, 0, 0)))
    models = {"aseg": tmp_path / "aseg", "synthseg": tmp_path / "synthseg"}
    settings = EvaluationSettings(
        tmp_path / "truth",
        models,
        tmp_path / "out",
        jobs=1,
        tables_only=True,
        csf_pred=("region", "intracranial"),
    )
    assert evaluate_predictions(settings) == Exit.OK
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["other_csf"] == [{"model": "synthseg", "structure": "CSF"}]
    settings = replace(settings, csf_pred=("region",) * 3)
    with pytest.raises(ConfigError, match="3 --csf-pred for 2 --pred"):
        evaluate_predictions(settings)


def test_coarser_schemes_are_measured_as_in_python(tmp_path: Path) -> None:
    """CSF of tissue4 includes the ventricles, so it counts although the model's CSF is unknown."""
    truth = brain()
    truth[2:5, 20:24, 20:24] = 4
    prediction = np.where(truth == 24, 0, truth).astype(np.int16)
    write(tmp_path / "truth/sub-01.nii.gz", truth)
    write(tmp_path / "pred/sub-01.nii.gz", prediction)
    known = [name for name in load_scheme("quicknat33").names[1:] if name != "CSF"]
    volumes = dict.fromkeys(known, 1.0)
    add_result(tmp_path / "pred", "sub-01", volumes_mm3=volumes)
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


def test_a_structure_that_the_scheme_lacks_cannot_be_named(
    pair: EvaluationSettings,
) -> None:
    write(pair.models["model"] / "x.nii.gz", brain())
    with pytest.raises(ConfigError, match="quicknat33 has no 'Liquor'"):
        evaluate_predictions(replace(pair, not_predicted=("Liquor",)))
