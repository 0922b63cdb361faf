"""Masks of lesions are compared by lesion, size and region."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.ellipsoids import read_metrics, value, write
from helpers.studies import add_lesions, correct_voxel, write_study

from trinat.pipelines.evaluate.cohort import CohortSettings, report_cohort
from trinat.pipelines.evaluate.evaluation import (
    EvaluationSettings,
    evaluate_predictions,
)
from trinat.pipelines.study.files import find_files
from trinat.pipelines.study.ratings import Rating, save_rating
from trinat.segmentation.errors import ConfigError, EvaluationError
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.lesions import number_lesions

pytestmark = pytest.mark.usefixtures("without_figures")
Box = tuple[slice, slice, slice]


def mask(*boxes: Box, number: int = 1) -> np.ndarray:
    """Return a mask of voxels of 2 x 2 x 2 mm, which are a number in boxes."""
    lesions = np.zeros((28, 28, 28), np.uint8)
    for box in boxes:
        lesions[box] = number
    return lesions


# 2, 12 and 64 voxels of 8 mm³, no two of which touch.
TINY = (slice(2, 3), slice(2, 3), slice(2, 4))
SMALL = (slice(10, 12), slice(10, 12), slice(10, 13))
LARGE = (slice(20, 24), slice(20, 24), slice(20, 24))
VOXEL = (slice(0, 1), slice(0, 1), slice(20, 21))
# Half of LARGE.
HALF = (slice(20, 24), slice(20, 24), slice(20, 22))


def evaluated(
    folder: Path,
    *,
    tables_only: bool = True,
    uncorrected: bool = False,
    ratings: Path | None = None,
) -> Path:
    """Compare the masks in `truth` and `pred`, and return the folder of the tables."""
    out = folder / "out"
    evaluate_predictions(
        EvaluationSettings(
            folder / "truth",
            {"model": folder / "pred"},
            out,
            labels="lesions",
            jobs=1,
            tables_only=tables_only,
            uncorrected=uncorrected,
            ratings=ratings,
        )
    )
    return out


def test_lesions_are_counted_by_scan_and_size(tmp_path: Path) -> None:
    # Any number but 0 is lesion, as in maps of numbered lesions.
    write(tmp_path / "truth/a.nii.gz", mask(TINY, SMALL, LARGE, number=7))
    write(tmp_path / "pred/a_lesions.nii.gz", mask(HALF, VOXEL))
    # A mask of the same scan of another kind.
    write(tmp_path / "pred/a_dseg.nii.gz", mask(TINY))
    out = evaluated(tmp_path)
    [scan] = pd.read_csv(out / "lesions.csv").to_dict("records")
    assert scan["subject"] == "a"
    assert (scan["true_lesions"], scan["found_lesions"]) == (3, 1)
    assert (scan["predicted_lesions"], scan["false_lesions"]) == (2, 1)
    # Voxels: 78 true, 33 predicted, 32 shared.
    assert scan["dice"] == pytest.approx(2 * 32 / (78 + 33))
    assert (scan["true_mm3"], scan["predicted_mm3"]) == (624, 264)
    assert scan["difference_mm3"] == -360
    assert scan["difference_percent"] == pytest.approx(-100 * 360 / 624)
    assert scan["recall"] == pytest.approx(1 / 3)
    assert scan["precision"] == 0.5
    assert scan["f1"] == pytest.approx(0.4)
    metrics = read_metrics(out / "metrics.csv")
    shown = value(metrics, "a", "model", "White-matter-lesions", "lesion_f1")
    assert shown == pytest.approx(0.4)

    classes = pd.read_csv(out / "lesion_classes.csv").set_index("class")
    assert set(classes["by"]) == {"size (mm³)"}
    columns = ["true_lesions", "found_lesions", "predicted_lesions", "false_lesions"]
    # 8 mm³ predicted; 16 and 96 mm³ true; 512 true and 256 predicted.
    assert classes[columns].to_numpy().tolist() == [
        [0, 0, 1, 1],
        [2, 0, 0, 0],
        [1, 1, 1, 0],
        [0, 0, 0, 0],
    ]
    assert np.isnan(classes.loc["from 1000", "f1"])


def test_masks_without_lesions(tmp_path: Path) -> None:
    for name, truth, prediction in (
        ("both", mask(), mask()),
        ("missed", mask(SMALL), mask()),
        ("invented", mask(), mask(SMALL)),
    ):
        write(tmp_path / f"truth/{name}.nii.gz", truth)
        write(tmp_path / f"pred/{name}.nii.gz", prediction)
    out = evaluated(tmp_path)
    table = pd.read_csv(out / "lesions.csv").set_index("subject")
    columns = ["dice", "recall", "precision", "f1", "difference_percent"]
    nan = np.nan
    np.testing.assert_equal(
        table.loc[["both", "missed", "invented"], columns].to_numpy(),
        [[nan, nan, nan, nan, nan], [0, 0, nan, 0, -100], [0, nan, 0, 0, nan]],
    )


def test_masks_of_a_bids_dataset_are_found(tmp_path: Path) -> None:
    anat = "sub-01/anat/sub-01"
    write(tmp_path / f"truth/{anat}_label-lesion_mask.nii.gz", mask(SMALL))
    write(tmp_path / f"pred/{anat}_space-orig_label-lesion_mask.nii.gz", mask(SMALL))
    write(tmp_path / f"pred/{anat}_space-orig_desc-brain_mask.nii.gz", mask(LARGE))
    write(tmp_path / f"pred/{anat}_space-orig_desc-trinat_dseg.nii.gz", mask(LARGE))
    [row] = pd.read_csv(evaluated(tmp_path) / "lesions.csv").to_dict("records")
    assert row["dice"] == 1


def test_label_maps_of_structures_are_no_masks_of_lesions(tmp_path: Path) -> None:
    write(tmp_path / "truth/a.nii.gz", mask(SMALL))
    write(tmp_path / "pred/a_dseg.nii.gz", mask(SMALL))
    with pytest.raises(EvaluationError) as refused:
        evaluated(tmp_path)
    assert refused.value.where == str(tmp_path / "pred")
    assert "--lesions" in refused.value.remedy


@pytest.mark.parametrize(("uncorrected", "recall"), [(False, 1), (True, 0)])
def test_a_corrected_mask_replaces_the_predicted_one(
    tmp_path: Path, uncorrected: bool, recall: float
) -> None:
    write(tmp_path / "truth/a.nii.gz", mask(VOXEL))
    # The mask of changed voxels, which is written beside the correction, is no mask of lesions.
    result = tmp_path / "pred/a_lesions.nii.gz"
    write(result, mask(LARGE))
    correct_voxel(result, (0, 0, 20), 1, "White-matter-lesions")
    out = evaluated(tmp_path, uncorrected=uncorrected)
    [row] = pd.read_csv(out / "lesions.csv").to_dict("records")
    assert row["recall"] == recall


@pytest.mark.parametrize("is_corrected", [False, True])
def test_a_scan_that_was_rejected_is_left_out(
    tmp_path: Path, is_corrected: bool
) -> None:
    out = write_study(tmp_path / "pred", ["a", "b"])
    (tmp_path / "truth").mkdir()
    for name in "ab":
        add_lesions(out, name)
        shutil.copy(out / f"{name}_lesions.nii.gz", tmp_path / "truth")
    shown = out / "b_dseg.nii.gz"
    if is_corrected:
        shown = correct_voxel(shown, (3, 9, 6), 49, "Right-Thalamus").path
    rating = Rating("b", "", "reject", "", "anna", "2026-01-01", sha256_of(shown))
    ratings = tmp_path / "ratings.tsv"
    save_rating(ratings, rating, lock=tmp_path / "lock")
    rows = pd.read_csv(evaluated(tmp_path, ratings=ratings) / "lesions.csv")
    assert rows["subject"].tolist() == ["a"]


def test_a_report_refuses_the_scheme_of_lesions(tmp_path: Path) -> None:
    out = write_study(tmp_path / "out", ["a"])
    with pytest.raises(ConfigError) as refused:
        report_cohort(CohortSettings(out, tmp_path / "report", labels="lesions"))
    assert refused.value.remedy


@pytest.mark.slow
def test_the_page_has_the_tables_of_lesions(tmp_path: Path) -> None:
    write(tmp_path / "truth/a.nii.gz", mask(SMALL, LARGE))
    write(tmp_path / "pred/a.nii.gz", mask(HALF))
    page = (evaluated(tmp_path, tables_only=False) / "report.html").read_text()
    section = page[page.index('<section id="lesions">') :].split("</section>")[0]
    assert "100 to 1000" in section
    assert "lesion-scan-table" in section
    # Where structures are not known, regions are not, either.
    assert "infratentorial" not in section


def test_regions_follow_from_the_structures_of_a_run(tmp_path: Path) -> None:
    out = write_study(tmp_path / "pred", ["a"])
    # Lesions of 256 and 64 mm³ in a head without ventricles, cortex and cerebellum.
    add_lesions(out, "a")
    truth = Volume.read(out / "a_lesions.nii.gz", labels=True)
    first = number_lesions(truth.data, 64).numbers == 1
    write(tmp_path / "truth/a.nii.gz", first.astype(np.uint8), truth.affine)
    classes = pd.read_csv(evaluated(tmp_path) / "lesion_classes.csv")
    regions = classes[classes["by"] == "region"].set_index("class")
    columns = ["true_lesions", "found_lesions", "predicted_lesions", "false_lesions"]
    assert regions.loc["deep", columns].tolist() == [1, 1, 2, 1]
    assert regions.loc["deep", ["true_mm3", "predicted_mm3"]].tolist() == [256, 320]
    assert regions.loc["periventricular", columns].tolist() == [0, 0, 0, 0]


def test_masks_in_subfolders_are_found(tmp_path: Path) -> None:
    for name in ("p1", "p2"):
        write(tmp_path / name / f"{name}.nii.gz", mask(SMALL))
    found = find_files(tmp_path, kind="lesions")
    assert sorted(file.path.parent.name for file in found) == ["p1", "p2"]
