"""Provenance of weights: written by training, shown by trinat models show."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from helpers.small_model import save_small
from helpers.small_store import all_train, small_store
from helpers.tiny_training import SILENT, tiny_recipe
from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.pipelines.train import provenance
from trinat.pipelines.train.provenance import command, commit, read_provenance
from trinat.pipelines.train.run import train
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.io.files import sha256_of

pytestmark = pytest.mark.usefixtures("one_thread", "without_pages")


def test_a_model_says_by_whom_and_from_what_it_was_trained(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", {"a": (20, 20, 20)})
    start = save_small(tmp_path / "start")
    place = {"path": str(store), "split": str(all_train(store))}
    recipe = tiny_recipe(
        tmp_path,
        scheme="tissue4",
        views=["axial"],
        data={"store": place, "rows": 16, "columns": 16, "epoch_slices": 16},
        schedule={"steps": 2},
        start=str(start),
    )
    model = train(recipe, tmp_path / "run", SILENT)
    jobs = read_provenance(model)
    assert list(jobs) == ["train/axial"]
    (call,) = jobs["train/axial"]
    assert call["trinat"] == version("trinat")
    assert call["start"] == sha256_of(start / "model.yaml")
    assert list(call["store"]) == ["train"]
    assert call["gpu"] == ""
    seconds = datetime.fromisoformat(call["ended"]) - datetime.fromisoformat(
        call["began"]
    )
    assert abs(seconds.total_seconds() - call["seconds"]) < 2
    # Models are shared, so their provenance must not have local paths.
    assert str(tmp_path) not in (model / "provenance.json").read_text()

    # Resuming a finished run must not change who trained it.
    train(recipe, tmp_path / "run", SILENT, resume=True)
    assert read_provenance(model) == jobs

    shown = CliRunner().invoke(app, ["models", "show", str(model)]).output
    assert "job: train/axial" in shown
    assert f"start: {call['start']}" in shown
    as_json = CliRunner().invoke(app, ["models", "show", str(model), "--json"]).output
    assert json.loads(as_json)["jobs"] == jobs

    card = model / "MODEL_CARD.md"
    by_hand = "by Jürgen".encode("latin-1")
    card.write_bytes(by_hand)
    train(recipe, tmp_path / "run", SILENT, resume=True)
    assert card.read_bytes() == by_hand


def test_a_model_without_provenance_is_shown() -> None:
    done = CliRunner().invoke(app, ["models", "show", "fast"])
    assert done.exit_code == 0
    assert done.output.startswith("name: fast\n")
    assert done.output.endswith("jobs: not written down\n")


def test_a_model_to_show_is_named() -> None:
    with pytest.raises(ConfigError, match="models show requires a model"):
        CliRunner().invoke(app, ["models", "show"], catch_exceptions=False)


def test_a_command_line_names_no_folder_of_this_disk() -> None:
    words = ["/opt/x/bin/trinat", "train", "fast", "--out", "/data/lab/runs/a"]
    words += ["--set", "data.synthetic.heads=/data/lab/heads.npz", "--view", "axial"]
    assert command(words) == (
        "trinat train fast --out runs/a --set data.synthetic.heads=lab/heads.npz "
        "--view axial"
    )
    assert command(["/opt/x/trinat/__main__.py", "train"]) == "trinat train"


def test_a_checkout_has_a_commit_and_an_installed_package_has_none(
    tmp_path: Path,
) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *who, *words],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    (tmp_path / "code.py").write_text("1")
    assert commit(tmp_path) == ""
    git("init")
    git("add", "code.py")
    git("commit", "-m", "first")
    assert commit(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "code.py").write_text("2")
    assert commit(tmp_path) == git("rev-parse", "HEAD") + "-dirty"


def test_a_gpu_is_written_down_with_the_version_of_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(provenance, "describe_gpu", lambda index: ("H100", 1, 1))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert provenance._gpu(torch.device("cuda:0")) == "H100, CUDA 13.0"
    assert provenance._gpu(torch.device("cpu")) == ""
