"""The whole workflow as a user types it.

From a dataset's server to a report on the test participants.
"""

from __future__ import annotations

import csv
import hashlib
import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from helpers.loopback import Server, serve
from helpers.miniatures import freesurfer_subject, pack
from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.pipelines.common.exits import Exit
from trinat.pipelines.prepare.catalogue import load_catalogue
from trinat.segmentation.models.hardware import count_gpus

DISC = "oasis_cs_freesurfer_disc1"
RECIPE = {
    "name": "tiny",
    "network": {
        "filters": 8,
        "kernel": 3,
        "depth": 3,
        "excitation": "none",
        "activation": "relu",
        "order": "convolution-norm-activation",
        "dropout": 0.0,
    },
    "data": {
        "store": {
            "path": "of-another-time",
            "split": "of-another-time/split.json",
            "augmentation": dict.fromkeys(
                (
                    "flip",
                    "affine",
                    "elastic",
                    "bias",
                    "gamma",
                    "blur",
                    "low_resolution",
                    "noise",
                ),
                0,
            ),
        },
        "rows": 48,
        "columns": 48,
        "epoch_slices": 800,
    },
    "optimiser": {"rate": 0.005},
    "schedule": {"steps": 200, "warmup_steps": 5},
    "batch": 8,
    "precision": "float32",
    "ema": 0.8,
    "validation": {"participants": 1},
}


@pytest.fixture
def oasis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serve one disc of OASIS-1 on loopback: four participants, one of them scanned twice."""
    sessions = ("0001_MR1", "0002_MR1", "0002_MR2", "0003_MR1", "0004_MR1")
    for number, session in enumerate(sessions):
        freesurfer_subject(
            tmp_path / "original/disc1", f"OAS1_{session}", shift=number % 3
        )
    archive = pack(tmp_path / "original", tmp_path / f"{DISC}.tar.gz").read_bytes()
    server = Server()
    url = server.plays(lambda h: serve(h, archive))
    catalogue = load_catalogue()
    part = next(a for a in catalogue["oasis1"].archives if a.part == "freesurfer")
    md5 = {1: hashlib.md5(archive).hexdigest()}
    small = {"md5": md5, "plausible_bytes": (1, 10**9)}
    local = part.model_copy(update={"urls": (url,), **small})
    entry = catalogue["oasis1"].model_copy(update={"archives": (local,)})
    monkeypatch.setattr(
        "trinat.pipelines.prepare.catalogue.load_catalogue", lambda: {"oasis1": entry}
    )
    yield
    server.close()


@pytest.fixture
def type_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Run command lines in an empty folder and return their output; each must succeed."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def run(line: str) -> str:
        words = shlex.split(line)
        assert words[0] == "trinat"
        done = CliRunner().invoke(app, words[1:], standalone_mode=False)
        assert done.exception is None, f"{line}: {done.exception!r}"
        assert done.return_value in (None, Exit.OK), f"{line}: {done.output}"
        return done.output

    return run


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.usefixtures("oasis", "one_thread")
def test_from_a_datasets_server_to_a_report(type_: Callable[[str], str]) -> None:
    Path("grid.yaml").write_text("grid: [48, 48, 48]\n")
    Path("tiny.yaml").write_text(yaml.safe_dump(RECIPE))

    said = type_(
        "trinat data get oasis1 --part freesurfer --disc 1 --root oasis --accept-terms"
    )
    assert "downloaded, md5" in said
    said = type_(
        "trinat prepare --source oasis1 --root oasis --out store --config grid.yaml"
    )
    assert "5 in, 5 made, 0 up to date, 0 failed, 0 skipped" in said
    assert said.endswith("next: trinat split store --ratios 8 1 1 --seed 0\n")
    said = type_("trinat split store --ratios 2 1 1 --seed 0")
    recipe = "quicknat" if count_gpus() else "finetune"
    assert said.endswith(
        f"next: trinat train {recipe} --store store --out runs/oasis1\n"
    )
    split = json.loads(Path("store/split.json").read_text())
    participants = [
        {name[:9] for name in split[part]} for part in ("train", "validation", "test")
    ]
    assert [len(part) for part in participants] == [2, 1, 1]
    assert len(set.union(*participants)) == 4

    said = type_("trinat train tiny.yaml --store store --out runs/tiny")
    assert "coronal, axial, sagittal of tiny" in said
    # On sessions that no network has seen; each command proposes the next.
    for words in (
        "predict --store store --part test --model runs/tiny/model --out found",
        "evaluate --store store --part test --pred found --out report",
    ):
        assert f"next: trinat {words}\n" in said
        said = type_(f"trinat {words}")
    assert "Hippocampus" in Path("report/report.html").read_text()
    with Path("report/metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "dice"]
    assert {row["subject"] for row in rows} == participants[2]
    # Cortex, white matter and ventricles; seconds of training are not enough for smaller
    # structures.
    large = {str(number) for number in (2, 3, 4, 41, 42, 43)}
    scores = [float(row["value"]) for row in rows if row["fs_id"] in large]
    assert len(scores) == len(large) * len(split["test"])
    assert min(scores) > 0.9
