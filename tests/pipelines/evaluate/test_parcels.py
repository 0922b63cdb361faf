"""Maps of parcels are compared with maps of parcels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.ellipsoids import brain, read_metrics, value, write
from helpers.overfitted import with_parcels
from helpers.serial import QUICK, run_serially, write_heads
from helpers.studies import write_study

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.evaluate.cohort import CohortSettings, report_cohort
from trinat.pipelines.evaluate.evaluation import (
    EvaluationSettings,
    evaluate_predictions,
    named_models,
)
from trinat.pipelines.study.ratings import Rating, save_rating
from trinat.pipelines.study.record import (
    CallosumResult,
    FurtherResult,
    SheetResult,
    ThicknessResult,
)
from trinat.segmentation.io.files import sha256_of

pytestmark = pytest.mark.usefixtures("without_figures")


def divided(shift: tuple[int, int, int] = (0, 0, 0)) -> np.ndarray:
    """Return the small brain with its white matter divided into insula and cuneus of both sides."""
    labels = brain(shift)
    upper = np.indices(labels.shape)[1] > 14
    for structure, parcels in {2: (1035, 1005), 41: (2035, 2005)}.items():
        is_here = labels == structure
        labels[is_here & upper] = parcels[0]
        labels[is_here & ~upper] = parcels[1]
    return labels


def evaluated(truth: Path, predictions: Path, out: Path) -> pd.DataFrame:
    settings = EvaluationSettings(
        truth,
        named_models([predictions], ["fast"]),
        out,
        labels="desikan",
        jobs=1,
        tables_only=True,
    )
    assert evaluate_predictions(settings) == Exit.OK
    return read_metrics(out / "metrics.csv")


def test_aparc_of_freesurfers_subjects_is_the_truth_of_parcels(tmp_path: Path) -> None:
    mri = tmp_path / "subjects/sub-01/mri"
    write(mri / "aseg.mgz", brain())
    write(mri / "aparc+aseg.mgz", divided())
    # Next to the map of structures, which has no parcel.
    write(tmp_path / "pred/sub-01_dseg.nii.gz", brain())
    write(tmp_path / "pred/sub-01_parcels.nii.gz", divided())
    metrics = evaluated(tmp_path / "subjects", tmp_path / "pred", tmp_path / "out")
    for name in ("ctx-lh-insula", "ctx-rh-cuneus", "Left-Hippocampus"):
        assert value(metrics, "sub-01", "fast", name, "dice") == 1
    assert value(metrics, "sub-01", "fast", "group:insula", "dice") == 1


def test_parcels_of_a_run_are_not_structures_that_its_model_lacks(
    tmp_path: Path,
) -> None:
    scans = write_heads(tmp_path / "in", "a.nii.gz")
    model = with_parcels(tmp_path / "model")
    results = tmp_path / "results"
    run_serially(scans, results, output=replace(QUICK, parcels=True), model=str(model))
    truth = tmp_path / "truth"
    truth.mkdir()
    found = (results / "a_parcels.nii.gz").read_bytes()
    (truth / "a_parcels.nii.gz").write_bytes(found)
    metrics = evaluated(truth, results, tmp_path / "out")
    dice = metrics[(metrics["metric"] == "dice") & metrics["value"].notna()]
    assert dice["structure"].str.startswith("ctx-").sum() > 1
    assert (dice["value"] == 1).all()


def test_a_report_on_a_group_has_the_volumes_of_parcels(tmp_path: Path) -> None:
    scans = write_heads(tmp_path / "in", "a.nii.gz", "b.nii.gz")
    model = with_parcels(tmp_path / "model")
    results = tmp_path / "results"
    run_serially(scans, results, output=replace(QUICK, parcels=True), model=str(model))
    settings = CohortSettings(
        results, tmp_path / "report", labels="desikan", excluded=()
    )
    report_cohort(settings)
    volumes = pd.read_csv(tmp_path / "report/volumes.csv")
    parcels = pd.read_csv(results / "parcels.tsv", sep="\t")
    of_run = parcels.set_index(["case", "parcel"]).mm3
    volumes = volumes[volumes.metric == "volume"]
    of_report = volumes.set_index(["subject", "structure"]).value
    counted = [name for name in of_run["a"].index if of_run["a", name] > 0]
    assert len(counted) > 1
    for name in counted:
        assert of_report["a", name] == of_run["a", name]


def test_a_report_has_a_part_on_parcels_where_results_have_them(tmp_path: Path) -> None:
    names = [f"p{number}" for number in range(9)]
    out = write_study(tmp_path / "out", names, with_parcels=names)
    settings = CohortSettings(out, tmp_path / "report", excluded=())
    assert report_cohort(settings) == Exit.OK
    page = (settings.out / "report.html").read_text()
    part = page[page.index('<section id="parcels">') :].split("</section>")[0]
    assert "9 scans;" in part
    assert "L insula" in part
    parcels = pd.read_csv(settings.out / "parcels.csv")
    insula = parcels[parcels.structure == "ctx-lh-insula"]
    assert list(insula[insula.metric == "volume"].value) == [32 * 64.0] * 9
    # Structures keep their volumes without parcels.
    volumes = pd.read_csv(settings.out / "volumes.csv")
    assert not volumes.structure.str.startswith("ctx-").any()


def with_further(out: Path, results: Mapping[str, Mapping[str, FurtherResult]]) -> None:
    """Give cases of a study the results of further outputs, by case and name."""
    lines = []
    for line in (out / "run.jsonl").read_text().splitlines():
        entry = json.loads(line)
        for name, result in results.get(entry["case"], {}).items():
            entry["result"][name] = result.model_dump(mode="json")
        lines.append(json.dumps(entry))
    (out / "run.jsonl").write_text("\n".join(lines) + "\n")


def thickness(mm: float, grade: str = "pass") -> ThicknessResult:
    """Return a thickness of both insulae, and none of a cuneus."""
    sheets = {}
    for hemisphere, side, of_side in (("lh", "left", mm), ("rh", "right", mm - 0.1)):
        sheets[f"ctx-{hemisphere}-insula"] = SheetResult(
            side=side, mm=of_side, std_mm=0.5, area_mm2=80, mm3=200
        )
    sheets["ctx-lh-cuneus"] = SheetResult(
        side="left", mm=None, std_mm=None, area_mm2=0, mm3=0
    )
    return ThicknessResult(grade=grade, reasons=["noise"], sheets=sheets)


def callosum(area_mm2: float, grade: str = "pass") -> CallosumResult:
    """Return a callosum of this area."""
    return CallosumResult(
        grade=grade,
        reasons=[],
        volumes_mm3={"CC_Anterior": 900},
        total_mm3=5 * area_mm2,
        area_mm2=area_mm2,
        length_mm=70,
        midline_mm=80,
        mean_thickness_mm=6.5,
        max_thickness_mm=12,
        thickness_mm=[2, 7],
    )


def test_a_report_has_tables_of_further_outputs(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    out = write_study(tmp_path / "out", names, with_parcels=names)
    results = {
        name: {"thickness": thickness(2.5), "callosum": callosum(640)} for name in names
    }
    results["b"] = {"thickness": thickness(2.5, "reject"), "callosum": callosum(600)}
    with_further(out, results)
    # Of the four scans c is rejected.
    report_cohort(CohortSettings(out, tmp_path / "report", excluded=("reject",)))
    table = pd.read_csv(tmp_path / "report/thickness.csv")
    of_scans = table[table.metric == "thickness"]
    assert set(of_scans.structure) == {"lh_insula_thickness", "rh_insula_thickness"}
    left = of_scans[of_scans.structure == "lh_insula_thickness"]
    assert left.groupby("subject").value.first().dropna().to_dict() == {
        "a": 2.5,
        "d": 2.5,
    }
    assert set(of_scans.unit) == {"mm"}
    # 0.1 of 2.45.
    asymmetry = table[(table.metric == "asymmetry_index") & (table.subject == "a")]
    assert list(asymmetry.value) == pytest.approx([100 * 0.1 / 2.45])
    left_out = pd.read_csv(tmp_path / "report/left_out.csv")
    (row,) = left_out[left_out.structure == "thickness"].to_dict("records")
    assert (row["subject"], row["grade"]) == ("b", "reject")
    table = pd.read_csv(tmp_path / "report/callosum.csv")
    area = table[table.structure == "CC_area_mm2"]
    assert dict(zip(area.subject, area.value, strict=True)) == {
        "a": 640,
        "b": 600,
        "d": 640,
    }
    assert set(area.unit) == {"mm2"}


def test_groups_are_compared_by_further_outputs(tmp_path: Path) -> None:
    names = [f"p{number:02}" for number in range(12)]
    out = write_study(tmp_path / "out", names)
    lines = ["participant_id\tgroup"]
    results = {}
    draw = np.random.default_rng(0)
    for number, name in enumerate(names):
        is_patient = number % 2
        lines.append(f"{name}\t{'patient' if is_patient else 'control'}")
        results[name] = {
            "thickness": thickness(2.5 - 0.3 * is_patient + draw.normal(0, 0.02)),
            "callosum": callosum(640 + draw.normal(0, 20)),
        }
    (out / "participants.tsv").write_text("\n".join(lines) + "\n")
    with_further(out, results)
    report_cohort(CohortSettings(out, tmp_path / "report", excluded=()))
    effects = pd.read_csv(tmp_path / "report/thickness_effects.csv")
    left = effects[effects.structure == "lh_insula_thickness"].iloc[0]
    assert (left.first_group, left.second_group) == ("control", "patient")
    assert left.difference == pytest.approx(0.3, abs=0.05)
    assert left.p_holm < 0.001
    effects = pd.read_csv(tmp_path / "report/callosum_effects.csv")
    area = effects[effects.structure == "CC_area_mm2"].iloc[0]
    assert area.p_holm > 0.05
    page = (tmp_path / "report/report.html").read_text()
    part = page[page.index('<section id="thickness">') :].split("</section>")[0]
    assert "L insula" in part


def test_a_parcel_that_is_far_from_the_group_stands_out(tmp_path: Path) -> None:
    names = [f"p{number}" for number in range(9)]
    out = write_study(tmp_path / "out", names, with_parcels=names)
    lines = []
    for number, line in enumerate((out / "run.jsonl").read_text().splitlines()):
        entry = json.loads(line)
        parcels = entry["result"]["parcels"]
        # 2,048 mm³ and a little, and one of twice that.
        parcels["ctx-lh-insula"]["mm3"] += number if number < 8 else 2048
        lines.append(json.dumps(entry))
    (out / "run.jsonl").write_text("\n".join(lines) + "\n")
    settings = CohortSettings(out, tmp_path / "report", excluded=())
    report_cohort(settings)
    page = (settings.out / "report.html").read_text()
    part = page[page.index('id="parcels-outlier-table"') :].split("</table>")[0]
    assert "L insula" in part
    assert "p8" in part
    assert "p7" not in part


def test_what_has_been_corrected_and_what_is_graded_out_is_in_no_part_on_parcels(
    tmp_path: Path,
) -> None:
    names = ["a", "b", "c"]
    out = write_study(tmp_path / "out", names, with_parcels=names)
    labels = (out / "a_dseg.nii.gz").read_bytes()
    (out / "a_desc-corrected_dseg.nii.gz").write_bytes(labels)
    # Of the three scans c is rejected; all parcels are graded look.
    report_cohort(CohortSettings(out, tmp_path / "report", excluded=("reject",)))
    parcels = pd.read_csv(tmp_path / "report/parcels.csv")
    assert set(parcels.subject) == {"b"}
    report_cohort(CohortSettings(out, tmp_path / "again", excluded=("look", "reject")))
    assert not (tmp_path / "again/parcels.csv").exists()


def test_a_parcel_that_is_left_out_has_its_own_grade(tmp_path: Path) -> None:
    names = [f"p{number}" for number in range(9)]
    out = write_study(tmp_path / "out", names, with_parcels=names)
    lines = []
    for line in (out / "run.jsonl").read_text().splitlines():
        entry = json.loads(line)
        entry["result"]["grade"] = "pass"
        entry["result"]["parcels"]["ctx-lh-insula"]["grade"] = "reject"
        lines.append(json.dumps(entry))
    (out / "run.jsonl").write_text("\n".join(lines) + "\n")
    report_cohort(CohortSettings(out, tmp_path / "report", excluded=("reject",)))
    left_out = pd.read_csv(tmp_path / "report/left_out.csv")
    of_parcel = left_out[left_out.structure == "ctx-lh-insula"]
    assert list(of_parcel.grade) == ["reject"] * 9


def test_parcels_of_a_rejected_cortex_are_left_out(tmp_path: Path) -> None:
    out = write_study(tmp_path / "out", ["a", "b"], with_parcels=["a", "b"])
    digest = sha256_of(out / "a_dseg.nii.gz")
    cortex = "Left-Cerebral-Cortex"
    rejected = Rating("a", cortex, "reject", "", "anna", "2026-01-01", digest)
    ratings = tmp_path / "ratings.tsv"
    save_rating(ratings, rejected, lock=tmp_path / "lock")
    report_cohort(CohortSettings(out, tmp_path / "report", ratings=ratings))
    parcels = pd.read_csv(tmp_path / "report/parcels.csv").query("metric == 'volume'")
    known = parcels.dropna(subset="value")
    assert set(known.subject) == {"b"}
    left_out = pd.read_csv(tmp_path / "report/left_out.csv")
    assert set(left_out.structure) == {cortex, *known.structure}
