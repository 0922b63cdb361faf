"""Numbers computed in two ways: outputs of one part agree with another part, or with a reader."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from helpers.miniatures import head_labels, turned
from helpers.overfitted import miniature, overfitted_model
from helpers.serial import run_serially, write_heads
from PIL import Image
from typer.testing import CliRunner

import trinat
from trinat.pipelines.cli import app
from trinat.pipelines.predict.settings import OutputSettings
from trinat.pipelines.report.page import short_name
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.metrics.definitions import METRICS
from trinat.segmentation.rendering.pictures import draw_mosaic
from trinat.segmentation.space.conform import conform

SCHEME = load_scheme("quicknat33")
OUTS = ("cleaned", "as found")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write truths and predictions of three participants, on grids with other orders of the axes.

    The predictions are shifted, and a structure of each is missed, invented or exchanged.
    """
    root = tmp_path_factory.mktemp("pairs")
    for number, axes in enumerate(("RAS", "LIA", "PSR")):
        truth = head_labels()
        truth[truth == 14] = 0
        found = np.roll(truth, number, axis=1)
        found[found == 17] = 0
        found[2, 2, 2] = 15
        for name, data, order in (("truth", truth, axes), ("found", found, "RAS")):
            turned_data, affine = turned(data, order)
            affine[:3] *= 1.5
            path = root / name / f"sub-0{number}.nii.gz"
            path.parent.mkdir(exist_ok=True)
            Volume(turned_data, affine).write(path, labels=True)
    return root


@pytest.fixture(scope="module")
def report(pairs: Path) -> Path:
    """Evaluate the pairs on the command line."""
    options = {
        "--truth": str(pairs / "truth"),
        "--pred": str(pairs / "found"),
        "--out": str(pairs / "report"),
        "--not-predicted": "CSF",
        "--jobs": "1",
    }
    words = [word for option in options.items() for word in option]
    done = CliRunner().invoke(app, ["evaluate", *words, "--tables-only", "--quiet"])
    assert done.exit_code == 0, done.output
    return pairs / "report"


@pytest.fixture(scope="module")
def rows(report: Path) -> pd.DataFrame:
    return pd.read_csv(report / "metrics.csv")


@pytest.mark.parametrize("subject", ["sub-00", "sub-01", "sub-02"])
def test_python_measures_what_the_command_line_measures(
    pairs: Path, rows: pd.DataFrame, subject: str
) -> None:
    table = trinat.evaluate(
        pairs / f"truth/{subject}.nii.gz",
        pairs / f"found/{subject}.nii.gz",
        not_predicted=["CSF"],
    )
    of_scan = rows[rows["subject"] == subject]
    written = of_scan.pivot_table(
        index="structure", columns="metric", values="value", dropna=False
    )
    metrics = [metric for metric in METRICS if metric in table]
    assert len(metrics) > 10
    expected = table[metrics]
    found = written.reindex(index=expected.index, columns=metrics)
    pd.testing.assert_frame_equal(
        found, expected, check_names=False, rtol=1e-9, atol=1e-9
    )
    distances = of_scan[of_scan["metric"] == "hd95"].set_index("structure")
    notes = distances["note"].reindex(table.index).fillna("")
    assert notes.to_dict() == table["note"].to_dict()
    assert {"missed", "invented", "absent from both"} <= set(notes)


def test_the_mean_of_a_group_is_that_of_its_rows(rows: pd.DataFrame) -> None:
    members: dict[str, set[str]] = {"group:all": set()}
    for label in SCHEME.labels[1:]:
        members.setdefault(f"group:{label.group}", set()).add(label.name)
        if label.name != "CSF":
            members["group:all"].add(label.name)
    of_groups = rows[rows["structure"].str.startswith("group:")]
    compared = 0
    for row in of_groups.itertuples():
        if row.metric == "generalised_dice" or row.structure not in members:
            continue
        same_scan = (rows["subject"] == row.subject) & (rows["metric"] == row.metric)
        is_member = rows["structure"].isin(members[row.structure])
        assert row.value == pytest.approx(
            rows[same_scan & is_member]["value"].mean(), nan_ok=True
        )
        compared += 1
    assert compared > 3 * len(members)


def test_the_means_of_a_report_are_those_of_its_rows(
    report: Path, rows: pd.DataFrame
) -> None:
    """One session per participant: means over participants are means over rows."""
    shown = rows["structure"].map(short_name)
    means = rows.groupby([shown, "metric"])["value"].mean()
    table = pd.read_csv(report / "structures.csv").set_index("structure")
    compared = 0
    for name, of_structure in table.iterrows():
        for metric in ("dice", "iou", "hd95"):
            mean = of_structure[f"{metric}_mean"]
            assert mean == pytest.approx(means[name, metric], abs=0.005, nan_ok=True)
            compared += 1
    assert compared > 50
    page = json.loads((report / "summary.json").read_text())
    (dice,) = (
        row["mean"]
        for row in page["statistics"]
        if (row["structure"], row["metric"]) == ("group:all", "dice")
    )
    assert dice == pytest.approx(means["All structures", "dice"])


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Segment a scan of 1 mm (`a`) and one of 1.2 x 0.9 x 1.5 mm (`b`), cleaned and as found."""
    root = tmp_path_factory.mktemp("predicted")
    scans = write_heads(root / "in", "a.nii.gz")
    scan, _ = miniature("LIA", seed=1)
    affine = scan.affine.copy()
    affine[:3, :3] *= (1.2, 0.9, 1.5)
    Volume(scan.data, affine).write(scans / "b.nii.gz")
    for out in OUTS:
        output = OutputSettings(picture=True, clean=out == "cleaned")
        run_serially(scans, root / out, output=output, model=str(overfitted_model()))
    return root


@pytest.mark.parametrize("out", OUTS)
@pytest.mark.parametrize("scan", ["a", "b"])
def test_volumes_are_those_of_the_label_maps_voxels(
    predicted: Path, out: str, scan: str
) -> None:
    with (predicted / out / "volumes.tsv").open() as file:
        table = {row["case"]: row for row in csv.DictReader(file, delimiter="\t")}
    image = nib.load(predicted / out / f"{scan}_dseg.nii.gz")
    counts = np.bincount(np.asarray(image.dataobj).ravel(), minlength=100)
    voxel_mm3 = abs(np.linalg.det(image.affine[:3, :3]))
    structures = [label for label in SCHEME.labels[1:] if counts[label.fs_id]]
    assert len(structures) > 3
    for label in structures:
        assert float(table[scan][f"{label.name}_mm3"]) == pytest.approx(
            counts[label.fs_id] * voxel_mm3, abs=1e-3
        )


@pytest.mark.parametrize("out", OUTS)
def test_the_picture_shows_the_label_map_that_is_written(
    predicted: Path, out: str
) -> None:
    scan = Volume.read(predicted / "in/a.nii.gz")
    # The part of the working grid around the brain.
    found = Predictor(overfitted_model(), device="cpu").segment(scan)
    written = Volume.read(predicted / out / "a_dseg.nii.gz", labels=True)
    on_grid = conform(written, labels=True, plan=found.plan).volume
    indices = Volume(SCHEME.from_freesurfer(on_grid.data), on_grid.affine)
    expected = draw_mosaic(found.image, indices, SCHEME, title="a")
    with Image.open(predicted / out / "a_qc.png") as picture:
        np.testing.assert_array_equal(np.asarray(picture), expected)


def test_cleaning_changes_the_label_map_of_that_scan(predicted: Path) -> None:
    """Otherwise the tests above could not tell a cleaned map from another one."""
    cleaned, found = (nib.load(predicted / out / "a_dseg.nii.gz") for out in OUTS)
    assert np.count_nonzero(found.get_fdata() != cleaned.get_fdata()) > 100
