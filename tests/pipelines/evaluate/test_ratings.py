"""Rejected results are left out of evaluate and report, and the agreement of raters is a table."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from helpers.refusals import refusal
from helpers.studies import write_study

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.evaluate import cohort, evaluation
from trinat.pipelines.evaluate.measuring import Task, read_pair
from trinat.pipelines.study.files import ParsedName, ScanFile
from trinat.pipelines.study.pairing import Pair
from trinat.pipelines.study.ratings import Rating, save_rating
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.io.volume import Volume


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write three results; anna rejects b and a structure of c, berta rejects nothing of b."""
    root = tmp_path_factory.mktemp("study")
    out = write_study(root / "out", ["a", "b", "c"])
    for name in "abc":
        (root / "truth").mkdir(exist_ok=True)
        shutil.copy(out / f"{name}_dseg.nii.gz", root / "truth")
    for scan, structure, rating, rater in (
        ("a", "", "pass", "anna"),
        ("b", "", "reject", "anna"),
        ("c", "Left-Thalamus", "reject", "anna"),
        ("a", "", "pass", "berta"),
        ("b", "", "look", "berta"),
    ):
        digest = sha256_of(out / f"{scan}_dseg.nii.gz")
        saved = Rating(scan, structure, rating, "", rater, "2026-01-01", digest)
        save_rating(root / "ratings.tsv", saved, lock=root / "lock")
    old = Rating("a", "", "reject", "", "carl", "2026-01-01", "0" * 64)
    save_rating(root / "ratings.tsv", old, lock=root / "lock")
    return root


def test_evaluate_leaves_out_what_was_rejected_of_the_same_bytes(
    study: Path, logged: pytest.LogCaptureFixture
) -> None:
    settings = evaluation.EvaluationSettings(
        truth=study / "truth",
        models={"fast": study / "out"},
        out=study / "evaluation",
        jobs=1,
        tables_only=True,
        ratings=study / "ratings.tsv",
    )
    logged.clear()
    assert evaluation.evaluate_predictions(settings) == Exit.OK
    pairs = pd.read_csv(study / "evaluation/pairs.csv").set_index("subject")
    assert dict(pairs["status"]) == {"a": "measured", "b": "rejected", "c": "measured"}
    assert pairs.loc["b", "note"] == "rejected by anna"
    rows = pd.read_csv(study / "evaluation/metrics.csv").set_index(
        ["subject", "structure", "metric"]
    )
    assert set(rows.index.get_level_values("subject")) == {"a", "c"}
    assert rows.loc[("a", "Left-Thalamus", "dice"), "value"] == 1
    assert pd.isna(rows.loc[("c", "Left-Thalamus", "dice"), "value"])
    assert rows.loc[("c", "Left-Thalamus", "dice"), "note"] == "rejected by anna"
    assert rows.loc[("c", "Right-Thalamus", "dice"), "value"] == 1
    # It does not count as background either.
    taken_for = {
        subject: {m for s, n, m in rows.index if (s, n) == (subject, "Left-Thalamus")}
        for subject in "ac"
    }
    assert "labelled_as:Left-Thalamus" in taken_for["a"]
    assert not {m for m in taken_for["c"] if m.startswith("labelled_as:")}
    # One rating by carl belongs to other bytes.
    (used,) = [line for line in logged.messages if "by raters" in line]
    assert re.findall(r"\d+ \w+", used) == ["1 scan", "1 structure", "1 rating"]


def test_a_page_of_rejected_structures_alone_has_no_values(tmp_path: Path) -> None:
    hippocampi = {17: "Left-Hippocampus", 53: "Right-Hippocampus"}
    labels = np.zeros((16, 16, 16), np.uint8)
    for number, first in zip(hippocampi, (1, 6), strict=True):
        labels[first : first + 4, 2:8, 2:8] = number
    for folder in ("truth", "out"):
        path = tmp_path / folder / "a_dseg.nii.gz"
        path.parent.mkdir()
        Volume(labels, np.eye(4)).write(path, labels=True)
    ratings = tmp_path / "ratings.tsv"
    for name in hippocampi.values():
        rejected = Rating(
            "a", name, "reject", "", "anna", "2026-01-01", sha256_of(path)
        )
        save_rating(ratings, rejected, lock=tmp_path / "lock")
    settings = evaluation.EvaluationSettings(
        truth=tmp_path / "truth",
        models={"fast": tmp_path / "out"},
        out=tmp_path / "evaluation",
        jobs=1,
        ratings=ratings,
    )
    assert evaluation.evaluate_predictions(settings) == Exit.OK
    assert (tmp_path / "evaluation/report.html").is_file()


def test_a_map_of_parcels_is_rejected_by_the_ratings_of_its_label_map(
    study: Path, tmp_path: Path
) -> None:
    labels = shutil.copy(study / "out/c_dseg.nii.gz", tmp_path)
    image = nib.load(labels)
    # Other bytes than those that were rated.
    parcels = nib.Nifti1Image(np.asarray(image.dataobj), image.affine)
    nib.save(parcels, tmp_path / "c_parcels.nii.gz")
    name = ParsedName("c", "c")
    pair = Pair(
        ScanFile(study / "truth/c_dseg.nii.gz", name, "c"),
        ScanFile(tmp_path / "c_parcels.nii.gz", name, "c"),
        "name",
    )
    rejected = {sha256_of(Path(labels)): {"Left-Thalamus": "anna"}}
    task = Task("fast", pair, "quicknat33", rejected=rejected)
    assert read_pair(task).rejected == {"Left-Thalamus": "anna"}


def test_a_rejected_part_of_a_structure_is_measured_with_it_and_said_to_be(
    study: Path, logged: pytest.LogCaptureFixture
) -> None:
    """Thalami are grey matter in tissue4: a rejected one does not take all of it away."""
    settings = evaluation.EvaluationSettings(
        truth=study / "truth",
        models={"fast": study / "out"},
        out=study / "tissues",
        labels="tissue4",
        jobs=1,
        tables_only=True,
        ratings=study / "ratings.tsv",
    )
    logged.clear()
    assert evaluation.evaluate_predictions(settings) == Exit.OK
    rows = pd.read_csv(study / "tissues/metrics.csv").set_index(
        ["subject", "structure", "metric"]
    )
    assert rows.loc[("c", "Grey-Matter", "dice"), "value"] == 1
    (used,) = [line for line in logged.messages if "by raters" in line]
    counted = ["1 scan", "0 structures", "1 rating", "1 structure"]
    assert re.findall(r"\d+ \w+", used) == counted
    assert "Left-Thalamus" in used
    groups = cohort.CohortSettings(
        study / "out",
        study / "volumes",
        "tissue4",
        jobs=1,
        ratings=study / "ratings.tsv",
        excluded=(),
    )
    assert cohort.report_cohort(groups) == Exit.OK
    volumes = pd.read_csv(study / "volumes/volumes.csv").query("metric == 'volume'")
    grey = volumes[volumes["structure"] == "Grey-Matter"].set_index("subject")["value"]
    assert set(grey.index) == {"a", "c"}
    assert (grey > 0).all()


def test_the_agreement_of_raters_is_a_table(study: Path) -> None:
    settings = cohort.CohortSettings(
        study / "out",
        study / "report",
        jobs=1,
        ratings=study / "ratings.tsv",
        excluded=(),
    )
    assert cohort.report_cohort(settings) == Exit.OK
    volumes = pd.read_csv(study / "report/volumes.csv")
    known = volumes.dropna(subset="value").query("metric == 'volume'")
    thalami = known[known["structure"].str.endswith("-Thalamus")]
    assert sorted(zip(thalami["subject"], thalami["structure"], strict=True)) == [
        ("a", "Left-Thalamus"),
        ("a", "Right-Thalamus"),
        ("c", "Right-Thalamus"),
    ]
    (row,) = pd.read_csv(study / "report/raters.csv").to_dict("records")
    # One of two scans has equal ratings; by chance (1/2)(1/2) for pass: kappa is (1/2 - 1/4) /
    # (3/4).
    assert (row["rater"], row["other_rater"], row["rated_by_both"]) == (
        "anna",
        "berta",
        2,
    )
    assert row["kappa"] == pytest.approx(1 / 3)


def test_ratings_that_are_not_there_are_told_before_anything_is_measured(
    study: Path,
) -> None:
    settings = cohort.CohortSettings(
        study / "out", study / "none", ratings=study / "no.tsv"
    )
    with refusal(ConfigError, study / "no.tsv"):
        cohort.report_cohort(settings)
    assert not (study / "none").exists()
