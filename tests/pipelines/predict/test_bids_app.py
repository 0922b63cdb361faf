"""The BIDS App: its command line, which other tools call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

import pytest
from helpers.files import touch
from helpers.miniatures import without_orientation
from helpers.overfitted import random_model, with_parcels
from helpers.refusals import refusal
from helpers.serial import run_serially, table, write_heads, write_scans

from trinat.pipelines.cli import bids, main
from trinat.pipelines.common.exits import Exit
from trinat.pipelines.jobs.lock import run_lock
from trinat.pipelines.predict.run import merge
from trinat.pipelines.study.ledger import read_entries
from trinat.pipelines.study.naming import WORK
from trinat.segmentation.errors import InputError, LockedError
from trinat.segmentation.models import zoo


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["trinat-bids", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        bids.main()
    return int(caught.value.code or 0)


def test_participants_then_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    write_scans(raw, *(f"sub-{n}/anat/sub-{n}_T1w.nii.gz" for n in ("01", "02", "03")))
    (raw / "dataset_description.json").write_text(
        '{"Name": "x", "BIDSVersion": "1.10.0"}'
    )
    without_orientation(raw / "sub-03/anat/sub-03_T1w.nii.gz")
    options = ("--model", random_model(), "--n_cpus", 1, "--trust-affine", "header")
    options += ("--participant_label", "01", "sub-03")
    assert run(monkeypatch, raw, out, "participant", *options) == Exit.OK
    done = {"sub-01/anat/sub-01", "sub-03/anat/sub-03"}
    assert set(read_entries([out / "run.sub-01-03.jsonl"])) == done
    # Tables cover all participants, whichever of them a command segments.
    assert not (out / "volumes.tsv").exists()
    capsys.readouterr()
    assert run(monkeypatch, raw, out, "group") == Exit.OK
    assert capsys.readouterr().out == f"2 done, 0 failed: {out / 'report.html'}\n"
    assert (out / "volumes.tsv").read_text().count("\n") == 1 + 2
    assert "segmented by trinat" in (out / "README.md").read_text()


@pytest.mark.usefixtures("without_workers")
def test_parcels_of_the_raters_are_named_in_one_table_of_the_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    write_heads(raw, "sub-01/anat/sub-01_T1w.nii.gz")
    (raw / "dataset_description.json").write_text(
        '{"Name": "x", "BIDSVersion": "1.10.0"}'
    )
    model = with_parcels(tmp_path / "model", "neuromorphometrics49")
    options = ("--model", model, "--n_cpus", 1, "--parcels", "--stats", "--thickness")
    assert run(monkeypatch, raw, out, "participant", *options) == Exit.OK
    anat = out / "sub-01/anat"
    assert (anat / "sub-01_space-orig_seg-parcels_dseg.nii.gz").is_file()
    assert (anat / "sub-01_space-orig_desc-trinat_parcelstats.stats").is_file()
    assert (anat / "sub-01_space-orig_desc-trinat_thickness.nii.gz").is_file()
    assert (anat / "sub-01_space-orig_desc-trinat_lhaparc.stats").is_file()
    names = (out / "seg-parcels_dseg.tsv").read_text()
    assert "30169\tctx-lh-precuneus\tlh-PCu\t" in names


@pytest.mark.usefixtures("without_workers")
def test_sessions_and_further_outputs_are_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    sessions = [
        f"sub-01/ses-{name}/anat/sub-01_ses-{name}_T1w.nii.gz" for name in ("a", "b")
    ]
    write_scans(raw, *sessions)
    (raw / "dataset_description.json").write_text(
        '{"Name": "x", "BIDSVersion": "1.10.0"}'
    )
    options = ("--model", random_model(), "--n_cpus", 1, "--session_label", "ses-b")
    options += ("--stats", "--entropy", "--probabilities", "--uncertainty", 2)
    assert run(monkeypatch, raw, out, "participant", *options) == Exit.OK
    (entry,) = read_entries([out / "run.ses-b.jsonl"]).values()
    assert entry.case == "sub-01/ses-b/anat/sub-01_ses-b"
    assert len(entry.result.iou) > 0
    endings = {
        Path(name).name.partition("space-orig_desc-")[2] for name in entry.outputs
    }
    masks = {name for name in endings if name.startswith("brain_")}
    assert masks == {"brain_mask.nii.gz", "brain_mask.json"}
    endings = {name.removeprefix("trinat_") for name in endings - masks}
    made = {"dseg.nii.gz", "stats.stats", "entropy.nii.gz", "probseg.nii.gz", "qc.png"}
    assert endings == made | {"dseg.json", "probseg.json"}
    other = ("--model", random_model(), "--session_label", "c")
    assert run(monkeypatch, raw, out, "participant", *other) == Exit.ALL_FAILED


@pytest.mark.usefixtures("without_workers")
def test_a_scan_whose_name_has_a_space_is_a_t1w_scan_like_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    write_scans(raw, "sub-01/anat/sub-01_space-T1w_T1w.nii.gz")
    (raw / "dataset_description.json").write_text(
        '{"Name": "x", "BIDSVersion": "1.10.0"}'
    )
    options = ("--model", random_model(), "--n_cpus", 1)
    for _ in range(2):
        assert run(monkeypatch, raw, out, "participant", *options) == Exit.OK
    (labels,) = out.glob("sub-01/anat/*dseg.nii.gz")
    assert labels.name == "sub-01_space-orig_desc-trinat_dseg.nii.gz"


@pytest.mark.usefixtures("without_workers")
def test_scans_of_another_contrast_have_results_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    write_scans(raw, *(f"sub-01/anat/sub-01_{kind}.nii.gz" for kind in ("T1w", "T2w")))
    (raw / "dataset_description.json").write_text(
        '{"Name": "x", "BIDSVersion": "1.10.0"}'
    )
    options = ("--model", random_model(), "--n_cpus", 1)
    assert run(monkeypatch, raw, out, "participant", *options) == Exit.OK
    other = (*options, "--suffix", "T2w")
    # Tables and changes would mix both.
    before = (out / "volumes.tsv").read_bytes()
    assert run(monkeypatch, raw, out, "participant", *other) == Exit.USAGE
    one = (*other, "--participant_label", "01")
    assert run(monkeypatch, raw, out, "participant", *one) == Exit.USAGE
    assert (out / "volumes.tsv").read_bytes() == before
    own = tmp_path / "own"
    assert run(monkeypatch, raw, own, "participant", *other) == Exit.OK
    (labels,) = own.glob("sub-01/anat/*dseg.nii.gz")
    assert labels.name == "sub-01_space-T2w_desc-trinat_dseg.nii.gz"
    assert run(monkeypatch, raw, own, "participant", *options) == Exit.USAGE


def test_jobs_of_one_participant_each_share_an_output_folder(tmp_path: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    write_scans(raw, *(f"sub-{n}/anat/sub-{n}_T1w.nii.gz" for n in ("01", "02")))
    with run_lock(out / WORK / "lock.sub-01"):
        assert run_serially(raw, out, participants=["02"]).done == 1
        with pytest.raises(LockedError):
            run_serially(raw, out, participants=["sub-01"])


def test_a_participant_who_was_missing_once_is_told_no_more(tmp_path: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    write_scans(raw, "sub-01/anat/sub-01_T1w.nii.gz")
    (raw / "sub-02").mkdir()
    assert run_serially(raw, out, participants=["02"]).failed == 1
    assert run_serially(raw, out, participants=["01"]).done == 1
    assert merge(out).failed == 1
    write_scans(raw, "sub-02/anat/sub-02_T1w.nii.gz")
    assert run_serially(raw, out, participants=["02"]).done == 1
    assert merge(out).failed == 0


def test_what_was_refused_of_a_session_and_is_put_right_is_told_no_more(
    tmp_path: Path,
) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    write_scans(raw, "sub-01/ses-a/anat/sub-01_ses-a_T1w.nii.gz")
    misplaced = [
        f"sub-01/ses-{name}/anat/sub-02_ses-{name}_T1w.nii.gz" for name in ("a", "b")
    ]
    left_out = "sub-01/ses-a/anat/sub-01_ses-a_space-MNI152Lin_T1w.nii.gz"
    touch(raw, *misplaced, left_out)
    for name in ("a", "b"):
        assert run_serially(raw, out, sessions=[name]).failed == 1
    for name in (*misplaced, left_out):
        (raw / name).unlink()
    assert run_serially(raw, out, sessions=["a"]).skipped == 1
    merge(out)
    # The run of one session says nothing about the other session.
    assert {row["case"]: row["status"] for row in table(out / "summary.tsv")} == {
        "sub-01/ses-a/anat/sub-01_ses-a": "done",
        misplaced[1]: "failed",
    }


def test_a_mistyped_participant_leaves_no_trace(tmp_path: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    write_scans(raw, "sub-01/anat/sub-01_T1w.nii.gz")
    with refusal(InputError, raw, remedy="--participant_label"):
        run_serially(raw, out, participants=["1"])
    assert not out.exists()


@pytest.mark.parametrize("command", [bids.main, main])
def test_where_no_model_is_named_the_devices_decide(
    command: Callable[[], NoReturn],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys,
) -> None:
    (tmp_path / "dataset_description.json").write_text("{}")
    monkeypatch.setattr(
        zoo, "default_model", lambda devices: f"best-for-{'-'.join(devices)}"
    )
    words = {
        bids.main: ["trinat-bids", str(tmp_path), str(tmp_path / "out"), "participant"],
        main: ["trinat", "predict", str(tmp_path), "--out", str(tmp_path / "out")],
    }
    monkeypatch.setattr(sys, "argv", [*words[command], "--device", "cuda:0,1"])
    with pytest.raises(SystemExit):
        command()
    assert "best-for-cuda:0-cuda:1: no such model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("participants.tsv", "participant_id\tage\nsub-01\t999\n", "'999' is no age"),
        (
            "sub-01/sub-01_sessions.tsv",
            "session_id\tacq_time\nses-a\t01/02/2020\n",
            "'01/02/2020' is no date",
        ),
    ],
)
def test_with_strict_what_is_not_understood_of_tables_stops_the_run(
    file: str, text: str, said: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    write_scans(raw, "sub-01/ses-a/anat/sub-01_ses-a_T1w.nii.gz")
    (raw / "dataset_description.json").write_text("{}")
    (raw / file).write_text(text)
    options = ("--model", random_model(), "--longitudinal", "--strict")
    assert run(monkeypatch, raw, out, "participant", *options) == Exit.ALL_FAILED
    assert said in capsys.readouterr().err


def test_strict_without_tables_to_read_is_refused(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    (tmp_path / "dataset_description.json").write_text("{}")
    words = (tmp_path, tmp_path / "out", "participant", "--strict")
    assert run(monkeypatch, *words) == Exit.USAGE
    assert "--strict is for --longitudinal" in capsys.readouterr().err


def test_the_version_is_told(tmp_path: Path, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "--version") == Exit.OK
    assert capsys.readouterr().out == f"trinat {version('trinat')}\n"


@pytest.mark.parametrize(
    "files", [(), ("dataset_description.json", "sub-01/mri/orig.mgz")]
)
def test_a_folder_that_is_no_dataset_is_refused(
    files: tuple[str, ...], tmp_path: Path, monkeypatch, capsys
) -> None:
    touch(tmp_path, *files)
    assert (
        run(monkeypatch, tmp_path, tmp_path / "out", "participant") == Exit.ALL_FAILED
    )
    assert "use trinat predict" in capsys.readouterr().err


def test_an_unknown_level_is_refused(tmp_path: Path, monkeypatch, capsys) -> None:
    assert run(monkeypatch, tmp_path, tmp_path, "everything") == Exit.USAGE
    assert "participant or group" in capsys.readouterr().err


def test_the_second_participant_finds_the_files_of_the_dataset_in_place(
    tmp_path: Path,
) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    write_scans(raw, *(f"sub-{n}/anat/sub-{n}_T1w.nii.gz" for n in ("01", "02")))
    (raw / "dataset_description.json").write_text(
        '{"Name": "x", "BIDSVersion": "1.10.0"}'
    )
    for number in ("01", "02"):
        assert run_serially(raw, out, participants=[number]).done == 1
    assert (out / "desc-trinat_dseg.tsv").is_file()
