"""The page of an evaluation, its summary, its figures and its tables for a paper."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
from helpers.ellipsoids import brain, write

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.evaluate.evaluation import (
    EvaluationSettings,
    evaluate_predictions,
    named_models,
)


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
    # Nobody was scanned twice, and no ledger states what the models cannot predict.
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
    assert compared[0]["participants"] == 6
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
        r"26 structures not shown, because no .* has it: (.*)\.", page
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
    }
    assert {
        f"{name}{ending}" for name in expected for ending in (".png", ".svg")
    } <= names
    assert {f"worst-{n}.png" for n in range(1, 6)} <= names


def test_means_of_models_over_different_values_are_said_to_be(report: Path) -> None:
    """Model b misses a hippocampus of one participant, so a has one distance more."""
    page = html.unescape((report / "report.html").read_text())
    assert "The means of first and second cover different scans and structures." in page
    summary = json.loads((report / "summary.json").read_text())
    left_out = {
        row["structure"]: row["left_out"]
        for row in summary["comparisons"]
        if row["metric"] == "hd95"
    }
    assert (
        left_out["Left-Hippocampus"] == 2
    )  # for sub-02, and for sub-07, which b lacks
    assert left_out["Right-Hippocampus"] == 1


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


def test_the_table_of_structures_has_means_deviations_and_intervals(
    tmp_path: Path,
) -> None:
    for n, missed in ((1, ()), (2, (17,))):
        write(tmp_path / f"truth/sub-{n}_dseg.nii.gz", brain())
        write(tmp_path / f"pred/sub-{n}_dseg.nii.gz", brain(without=missed))
    models = named_models([tmp_path / "pred"], ["own_50%"])
    settings = EvaluationSettings(
        tmp_path / "truth", models, tmp_path / "out", jobs=1, tables_only=True
    )
    assert evaluate_predictions(settings) == Exit.OK
    table = pd.read_csv(tmp_path / "out/structures.csv").set_index("structure")
    left = table.loc["L Hippocampus"]
    assert (left["model"], left["participants"]) == ("own_50%", 2)
    assert left["dice_mean":"dice_high"].tolist() == [0.5, 0.707, 0, 1]
    assert left["hd95_mean"] == 0
    assert np.isnan(left["hd95_sd"])
