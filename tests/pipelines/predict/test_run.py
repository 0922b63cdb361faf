"""trinat predict: what is done, what is done again, and what it writes."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, tzinfo
from importlib.metadata import version
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers.overfitted import miniature, overfitted_model, random_model
from helpers.serial import QUICK, run_serially, write_scans

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.common.scanfiles import find_files
from trinat.pipelines.predict.ledger import read_entries
from trinat.pipelines.predict.merge import merge
from trinat.pipelines.predict.request import Shard
from trinat.segmentation.errors import ConfigError, InputError
from trinat.segmentation.io.files import sha256_of


def statuses(out: Path) -> dict[str, str]:
    return {
        case: entry.status for case, entry in read_entries([out / "run.jsonl"]).items()
    }


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines(), delimiter="\t"))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Three scans, one of them broken, and the folder of their segmentations."""
    root = tmp_path_factory.mktemp("three")
    scans = write_scans(root / "in", "a.nii.gz", "b/c.nii.gz")
    (scans / "broken.nii.gz").write_bytes(b"no scan")
    outcome = run_serially(scans, root / "out")
    assert (outcome.done, outcome.failed, outcome.skipped) == (2, 1, 0)
    assert outcome.exit == Exit.SOME_FAILED
    assert sum(outcome.grades.values()) == 2
    return scans, root / "out"


@pytest.fixture
def again(three: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """A copy of that, to change."""
    for folder, name in zip(three, ("in", "out"), strict=True):
        shutil.copytree(folder, tmp_path / name)
    return tmp_path / "in", tmp_path / "out"


def test_every_input_has_its_entry_and_the_broken_one_its_reason(three) -> None:
    _, out = three
    assert statuses(out) == {"a": "done", "b/c": "done", "broken": "failed"}
    reason = read_entries([out / "run.jsonl"])["broken"].reason
    assert reason.startswith("not gzip")


def test_labels_lie_on_the_scans_own_grid_as_labels(three) -> None:
    scans, out = three
    for name in ("a", "b/c"):
        scan, labels = (
            nib.load(scans / f"{name}.nii.gz"),
            nib.load(out / f"{name}_dseg.nii.gz"),
        )
        assert labels.shape == scan.shape
        np.testing.assert_allclose(labels.affine, scan.affine)
        assert labels.get_data_dtype() in (np.uint8, np.int16)
        assert labels.header.get_intent()[0] == "label"
        assert int(labels.header["qform_code"]) > 0
        assert int(labels.header["sform_code"]) > 0
        assert labels.header.get_xyzt_units()[0] == "mm"


def test_nothing_but_outputs_is_left(three) -> None:
    _, out = three
    assert {
        str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()
    } == {
        *("a_dseg.nii.gz", "b/c_dseg.nii.gz"),
        *(
            "run.jsonl",
            "summary.tsv",
            "volumes.tsv",
            "qc.tsv",
            "report.html",
            "labels.tsv",
        ),
    }
    assert not (out / ".trinat-work").exists()


def test_a_table_beside_the_label_maps_says_what_the_numbers_mean(three) -> None:
    _, out = three
    rows = {row["index"]: row for row in table(out / "labels.tsv")}
    assert rows["17"] == {
        "index": "17",
        "name": "Left-Hippocampus",
        "abbreviation": "L-Hi",
        "color": "#DCD814",
        "mapping": "9",
    }
    assert len(rows) == 33


def test_summary_has_a_row_for_every_input(three) -> None:
    _, out = three
    rows = {row["case"]: row["status"] for row in table(out / "summary.tsv")}
    assert rows == {"a": "done", "b/c": "done", "broken": "failed"}


def test_rerun_skips_what_is_done_and_tries_what_failed(again) -> None:
    outcome = run_serially(*again)
    assert (outcome.done, outcome.skipped, outcome.failed) == (0, 2, 1)


def test_a_changed_input_is_done_again(again) -> None:
    scans, out = again
    miniature("RAS", seed=9)[0].write(scans / "a.nii.gz")
    assert run_serially(scans, out).done == 1


def test_a_wrong_clock_keeps_no_old_result(again, monkeypatch) -> None:
    scans, out = again
    miniature("RAS", seed=8)[0].write(scans / "a.nii.gz")

    class In2099(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime(2099, 1, 1, tzinfo=tz)

    with monkeypatch.context() as ahead:
        ahead.setattr("trinat.pipelines.predict.entry.datetime", In2099)
        run_serially(scans, out)
    assert read_entries([out / "run.jsonl"])["a"].finished.startswith("2099")
    miniature("RAS", seed=9)[0].write(scans / "a.nii.gz")
    assert run_serially(scans, out).done == 1
    assert run_serially(scans, out).done == 0
    fresh = run_serially([str(scans / "a.nii.gz")], out / "fresh")
    assert fresh.done == 1
    rows = {row["case"]: row for row in table(out / "volumes.tsv")}
    assert rows["a"] == table(out / "fresh/volumes.tsv")[0]


def test_a_touched_input_is_not_done_again(again) -> None:
    scans, out = again
    (scans / "a.nii.gz").touch()
    assert run_serially(scans, out).done == 0


def test_a_damaged_or_missing_output_is_made_again_the_same(again) -> None:
    scans, out = again
    before = sha256_of(out / "a_dseg.nii.gz"), sha256_of(out / "b/c_dseg.nii.gz")
    (out / "a_dseg.nii.gz").write_bytes(b"damaged")
    (out / "b/c_dseg.nii.gz").unlink()
    assert run_serially(scans, out, overwrite=True).done == 2
    assert before == (
        sha256_of(out / "a_dseg.nii.gz"),
        sha256_of(out / "b/c_dseg.nii.gz"),
    )


def test_other_settings_or_another_model_do_everything_again(
    again, tmp_path: Path
) -> None:
    scans, out = again
    assert run_serially(scans, out, output=replace(QUICK, format="index")).done == 2
    other = shutil.copytree(overfitted_model(), tmp_path / "other")
    assert (
        run_serially(
            scans, out, output=replace(QUICK, format="index"), model=str(other)
        ).done
        == 2
    )


def test_freesurfer_numbers_by_default_and_indices_on_request(tmp_path: Path) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz")
    model = str(overfitted_model())
    run_serially(scans, tmp_path / "aseg", model=model)
    run_serially(
        scans, tmp_path / "index", model=model, output=replace(QUICK, format="index")
    )
    numbers = np.asarray(nib.load(tmp_path / "aseg/a_dseg.nii.gz").dataobj)
    indices = np.asarray(nib.load(tmp_path / "index/a_dseg.nii.gz").dataobj)
    truth = miniature()[1].data
    both = (numbers == 41) & (truth == 41)
    assert 2 * both.sum() / ((numbers == 41).sum() + (truth == 41).sum()) > 0.9
    # Right white matter is class 19 of the scheme.
    assert ((indices == 19) == (numbers == 41)).all()


def test_volumes_are_voxels_times_their_size_and_shares_of_the_brain(
    tmp_path: Path,
) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz")
    run_serially(scans, tmp_path / "out", model=str(overfitted_model()))
    (row,) = table(tmp_path / "out/volumes.tsv")
    labels = np.asarray(nib.load(tmp_path / "out/a_dseg.nii.gz").dataobj)
    white = float(row["Left-Cerebral-White-Matter_mm3"])
    assert white == (labels == 2).sum()
    assert float(row["Left-Cerebral-White-Matter_share"]) == pytest.approx(
        white / float(row["total_brain_mm3"]), abs=1e-6
    )


def test_mgz_stays_mgz_on_request_and_stats_are_freesurfers(tmp_path: Path) -> None:
    scans = write_scans(tmp_path / "in", "a.mgz")
    run_serially(scans, tmp_path / "out", output=replace(QUICK, mgz=True, stats=True))
    scan = nib.load(scans / "a.mgz")
    labels = nib.load(tmp_path / "out/a_dseg.mgz")
    assert isinstance(labels, nib.MGHImage)
    assert labels.shape == scan.shape == (40, 48, 44)
    np.testing.assert_allclose(labels.affine, scan.affine, atol=1e-5)
    assert not (tmp_path / "out/a_dseg.nii.gz").exists()
    counts = Counter(np.asarray(labels.dataobj).ravel().tolist())
    lines = (tmp_path / "out/a_aseg.stats").read_text().splitlines()
    assert "# ColHeaders Index SegId NVoxels Volume_mm3 StructName" in lines
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    voxels = {int(row[1]): int(row[2]) for row in rows}
    assert {number: n for number, n in voxels.items() if n} == {
        number: n for number, n in counts.items() if number
    }
    # Voxels of 1 mm.
    assert [float(row[3]) for row in rows] == [float(row[2]) for row in rows]


def test_clean_up_uncertainty_entropy_and_probabilities_are_written(
    tmp_path: Path,
) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz")
    output = replace(
        QUICK, samples=2, entropy=True, probabilities=True, clean=True, picture=True
    )
    run_serially(scans, tmp_path / "out", output=output, model=str(overfitted_model()))
    entry = read_entries([tmp_path / "out/run.jsonl"])["a"]
    assert 0 <= entry.result["iou"]["Left-Cerebral-Cortex"] <= 1
    names = set(entry.outputs)
    assert {
        "a_dseg.nii.gz",
        "a_entropy.nii.gz",
        "a_qc.png",
        "a_probseg.nii.gz",
    } <= names


def test_the_brain_mask_holds_the_structures_and_has_their_grid(tmp_path: Path) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz")
    output = replace(QUICK, brain_mask=True, stats=True)
    run_serially(scans, tmp_path / "out", output=output, model=str(overfitted_model()))
    mask = nib.load(tmp_path / "out/a_brainmask.nii.gz")
    labels = nib.load(tmp_path / "out/a_dseg.nii.gz")
    np.testing.assert_allclose(mask.affine, labels.affine)
    inside = np.asarray(mask.dataobj)
    assert np.unique(inside).tolist() == [0, 1]
    cortex = np.isin(np.asarray(labels.dataobj), (3, 42))
    assert inside[cortex].mean() > 0.99
    # What names the brain as a whole is in tables; what is not known has a note instead.
    (row,) = table(tmp_path / "out/volumes.tsv")
    assert row["EstimatedTotalIntraCranialVol_mm3"] == "n/a"
    assert float(row["CortexVol_mm3"]) == cortex.sum()
    note = "no intracranial volume: the model does not find the fluid around the brain"
    assert note in table(tmp_path / "out/qc.tsv")[0]["notes"]
    stats = (tmp_path / "out/a_aseg.stats").read_text()
    assert f"# {note}\n" in stats
    assert "# Measure Cortex, CortexVol, " in stats
    assert "eTIV" not in stats
    assert find_files(tmp_path / "out")[0].path.name == "a_dseg.nii.gz"
    assert len(find_files(tmp_path / "out")) == 1


def test_probabilities_are_one_file_whose_maps_are_named_and_sum_to_one(
    tmp_path: Path,
) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz")
    output = replace(QUICK, probabilities=True)
    run_serially(scans, tmp_path / "out", output=output, model=str(overfitted_model()))
    image = nib.load(tmp_path / "out/a_probseg.nii.gz")
    names = json.loads((tmp_path / "out/a_probseg.json").read_text())["LabelMap"]
    assert names[:2] == ["BG", "L-CWM"]
    assert "CSF" not in names  # which that model was never taught
    scan = nib.load(scans / "a.nii.gz")
    assert image.shape == (*scan.shape, len(names))
    np.testing.assert_allclose(image.affine, scan.affine)
    values = image.get_fdata()
    np.testing.assert_allclose(values.sum(-1), 1, atol=5e-3)
    labels = np.asarray(nib.load(tmp_path / "out/a_dseg.nii.gz").dataobj)
    assert values[labels == 2][:, 1].min() > 1 / len(names)
    assert values[..., 1].max() > 0.9


def test_shards_divide_the_cases_and_merge_joins_them(tmp_path: Path) -> None:
    scans = write_scans(tmp_path / "in", *(f"s{i}.nii.gz" for i in range(4)))
    out = tmp_path / "out"
    for part in (1, 2, 3):
        run_serially(scans, out, shard=Shard(part, 3))
    assert not (out / "summary.tsv").exists()
    outcome = merge(out)
    assert outcome.done == 4
    assert len(table(out / "summary.tsv")) == len(table(out / "volumes.tsv")) == 4
    # One run over everything finds nothing left to do.
    assert run_serially(scans, out).skipped == 4


def test_what_was_refused_and_is_put_right_is_told_no_more(tmp_path: Path) -> None:
    scans, out = write_scans(tmp_path / "in", "a.nii.gz", "a.nii"), tmp_path / "out"
    assert run_serially(scans, out).exit == Exit.ALL_FAILED
    (scans / "a.nii").unlink()
    assert run_serially(scans, out).exit == Exit.OK
    rows = {row["case"]: row["status"] for row in table(out / "summary.tsv")}
    assert rows == {"a": "done"}
    ledger = (out / "run.jsonl").read_bytes()
    assert run_serially(scans, out).skipped == 1
    assert (out / "run.jsonl").read_bytes() == ledger
    assert merge(out).exit == Exit.OK


def test_a_stopped_rerun_looks_through_no_more_of_what_is_done(
    again, monkeypatch
) -> None:
    @contextmanager
    def stopped() -> Iterator[Callable[[], bool]]:
        yield lambda: True

    monkeypatch.setattr("trinat.pipelines.predict.run.stop_on_signal", stopped)
    outcome = run_serially(*again)
    assert (outcome.done, outcome.skipped, outcome.failed) == (0, 0, 0)
    assert outcome.exit == Exit.INTERRUPTED


def test_half_a_pair_is_told_by_name_and_without_a_path(tmp_path: Path) -> None:
    scans, out = write_scans(tmp_path / "in", "a.nii.gz"), tmp_path / "out"
    nib.save(nib.Nifti1Pair.from_image(nib.load(scans / "a.nii.gz")), scans / "x.hdr")
    (scans / "x.img").unlink()
    assert run_serially(scans, out).exit == Exit.SOME_FAILED
    reason = read_entries([out / "run.jsonl"])["x"].reason
    assert reason == "its other half x.img is missing: put it beside it"


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/", "-1/2"])
def test_impossible_shards_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--shard"):
        Shard.parse(text)


@pytest.mark.parametrize(
    ("array", "shard"),
    [
        ({"ID": "5", "COUNT": "4", "MIN": "2", "STEP": "1"}, "4/4"),
        ({"ID": "7", "COUNT": "3", "MIN": "1", "STEP": "3"}, "3/3"),
        ({"ID": "3", "COUNT": "1", "MIN": "3", "STEP": "1"}, "1/1"),
        # --array=1,3 leaves scans to nobody: `trinat predict` refuses this part.
        ({"ID": "3", "COUNT": "2", "MIN": "1", "STEP": "1"}, "3/2"),
    ],
)
def test_a_task_of_a_slurm_array_is_a_part_wherever_the_array_counts_from(
    tmp_path: Path, array: dict[str, str], shard: str
) -> None:
    (tmp_path / "trinat").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "trinat").chmod(0o755)
    script = Path(__file__).parents[3] / "scripts/slurm/array.sh"
    surroundings = {f"SLURM_ARRAY_TASK_{name}": value for name, value in array.items()}
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", script, "scans/"],
        capture_output=True,
        text=True,
        env=surroundings | {"PATH": path},
    )
    assert done.stdout.split() == [
        *("predict", "scans/", "--shard", shard, "--threads", "1", "--quiet")
    ]


def test_no_input_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to segment"):
        run_serially([], tmp_path / "out")


def test_all_inputs_missing_fails_the_run(tmp_path: Path) -> None:
    outcome = run_serially([str(tmp_path / "none.nii")], tmp_path / "out")
    assert outcome.exit == Exit.ALL_FAILED


def test_bids_in_gives_bids_out_that_the_validator_takes(tmp_path: Path) -> None:
    raw = write_scans(
        tmp_path / "raw",
        "sub-01/anat/sub-01_T1w.nii.gz",
        "sub-02/ses-a/anat/sub-02_ses-a_acq-x_run-1_T1w.nii.gz",
    )
    (raw / "dataset_description.json").write_text(
        '{"Name": "x", "BIDSVersion": "1.10.0"}'
    )
    out = tmp_path / "out"
    output = replace(QUICK, picture=True, entropy=True, stats=True, probabilities=True)
    run_serially(raw, out, output=output)
    labels = (
        out
        / "sub-02/ses-a/anat/sub-02_ses-a_acq-x_run-1_space-orig_desc-trinat_dseg.nii.gz"
    )
    assert labels.exists()
    sidecar = json.loads(
        labels.with_name(labels.name.replace(".nii.gz", ".json")).read_text()
    )
    source = "bids:raw:sub-02/ses-a/anat/sub-02_ses-a_acq-x_run-1_T1w.nii.gz"
    assert sidecar["Sources"] == [source]
    # Every scan's slices are on the page: there are fewer than it shows.
    page = (out / "report.html").read_text()
    assert page.count('class="viewer"') == len(list(out.rglob("*_qc.png"))) == 2
    made = {"Model": "random", "ModelSHA256": sha256_of(random_model() / "model.yaml")}
    assert sidecar | made | {"TrinatVersion": version("trinat")} == sidecar
    description = json.loads((out / "dataset_description.json").read_text())
    assert description["DatasetLinks"] == {"raw": "../raw/"}
    rows = table(out / "desc-trinat_dseg.tsv")
    assert rows[1] == {
        "index": "2",
        "name": "Left-Cerebral-White-Matter",
        "abbreviation": "L-CWM",
        "color": "#F5F5F5",
        "mapping": "2",
    }
    validator = Path(sys.executable).with_name("bids-validator-deno")
    checked = subprocess.run(
        [validator, "--format", "json", out],
        capture_output=True,
        text=True,
        check=False,
    )
    issues = json.loads(checked.stdout)["issues"]["issues"]
    assert [issue for issue in issues if issue["severity"] == "error"] == []
    assert checked.returncode == 0


def test_sagittal_slices_alone_give_a_table_of_structures_without_sides(
    tmp_path: Path,
) -> None:
    raw = write_scans(tmp_path / "raw", "sub-01/anat/sub-01_T1w.nii.gz")
    out = tmp_path / "out"
    run_serially(raw, out, output=replace(QUICK, views=("sagittal",), format="index"))
    rows = table(out / "desc-trinat_dseg.tsv")
    labels = np.asarray(nib.load(next(out.rglob("*_dseg.nii.gz"))).dataobj)
    assert labels.max() < len(rows) == 19
    assert rows[1]["name"] == "Cerebral-White-Matter"


def test_scans_without_a_checksum_are_refused_on_request(tmp_path: Path) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz", "b.nii")
    outcome = run_serially(scans, tmp_path / "out", require_checksum=True)
    assert (outcome.done, outcome.failed) == (1, 1)
    entries = read_entries([tmp_path / "out/run.jsonl"])
    assert entries["a"].status == "done"
    assert "has no checksum" in entries["b"].reason
    # Also what was segmented before it was asked for.
    assert run_serially(scans, tmp_path / "out").done == 1
    assert run_serially(scans, tmp_path / "out", require_checksum=True).failed == 1


def test_timings_name_the_stages_and_add_up_to_the_run(tmp_path: Path) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz", "b.nii.gz")
    trinat = str(Path(sys.executable).with_name("trinat"))
    options = ["--model", str(random_model()), "--threads", "1", "--quiet", "--timings"]
    done = subprocess.run(
        [trinat, "predict", str(scans), "--out", str(tmp_path / "out"), *options],
        check=True,
        capture_output=True,
        text=True,
    )
    lines = [line.rsplit(maxsplit=3) for line in done.stderr.splitlines()[2:]]
    walls = {name.strip(): float(wall) for name, wall, _, _ in lines}
    stages = {
        "start",
        "model",
        "find",
        "read",
        "hash",
        "conform",
        "localisation",
        "fusion",
    }
    stages |= {
        "coronal",
        "axial",
        "sagittal",
        "agreement",
        "restore",
        "grade",
        "write",
        "picture",
    }
    assert stages <= walls.keys()
    whole, rest = walls.pop("total"), walls["other"]
    assert whole == pytest.approx(sum(walls.values()), abs=0.01 * len(walls))
    # What is in no stage: mostly the end of the worker process.
    assert -0.05 * whole < rest < 0.2 * whole
    for entry in read_entries([tmp_path / "out/run.jsonl"]).values():
        assert {"read", "conform", "coronal", "write"} <= entry.timings_s.keys()
