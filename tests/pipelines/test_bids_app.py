"""The BIDS App: its command line, which other tools call."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from miniatures import without_orientation
from overfitted import random_model
from serial import write_scans

from pipelines.batch.ledger import read_entries
from pipelines.cli import bids
from pipelines.exits import Exit


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["trinat-bids", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        bids.main()
    return int(caught.value.code or 0)


def test_participants_then_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    write_scans(raw, *(f"sub-{n}/anat/sub-{n}_T1w.nii.gz" for n in ("01", "02", "03")))
    (raw / "dataset_description.json").write_text('{"Name": "x", "BIDSVersion": "1.10.0"}')
    without_orientation(raw / "sub-03/anat/sub-03_T1w.nii.gz")
    options = ("--model", random_model(), "--n_cpus", 1, "--trust-affine", "header")
    options += ("--participant_label", "01", "sub-03")
    assert run(monkeypatch, raw, out, "participant", *options) == Exit.OK
    assert set(read_entries([out / "run.jsonl"])) == {"sub-01/anat/sub-01", "sub-03/anat/sub-03"}
    (out / "volumes.tsv").unlink()
    assert run(monkeypatch, raw, out, "group") == Exit.OK
    assert (out / "volumes.tsv").exists()


def test_a_folder_that_is_no_dataset_is_refused(tmp_path: Path, monkeypatch, capsys) -> None:
    assert run(monkeypatch, tmp_path, tmp_path / "out", "participant") == Exit.ALL_FAILED
    assert "dataset_description.json is missing" in capsys.readouterr().err


def test_an_unknown_level_is_refused(tmp_path: Path, monkeypatch, capsys) -> None:
    assert run(monkeypatch, tmp_path, tmp_path, "everything") == Exit.USAGE
    assert "participant or group" in capsys.readouterr().err
