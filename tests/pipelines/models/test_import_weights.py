"""The command that converts a checkpoint file to a model folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from helpers.refusals import refusal
from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.segmentation.errors import ModelError, OutputError
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.models.foreign import _BLOCKS, _PARTS, PORT_PREPROCESSING
from trinat.segmentation.models.quicknat import QuickNat, QuickNatConfig
from trinat.segmentation.space.views import View

SMALL = QuickNatConfig(filters=4)


def port_state(config: QuickNatConfig) -> dict[str, torch.Tensor]:
    """Return a network's weights under the port's names, by the importer's table read backwards."""
    blocks = {ours: theirs for theirs, ours in _BLOCKS.items()}
    parts = {ours: theirs for theirs, ours in _PARTS.items()}
    state = {}
    for name, tensor in QuickNat(config).state_dict().items():
        path, _, leaf = name.rpartition(".")
        if path == "classifier":
            state[f"classifier.conv.{leaf}"] = tensor
            continue
        block = next(ours for ours in blocks if path.startswith(f"{ours}."))
        part = parts[path.removeprefix(f"{block}.")]
        if ".fc" in part and leaf == "weight":
            tensor = tensor[:, :, 0, 0]
        state[f"{blocks[block]}.{part}.{leaf}"] = tensor
    return state


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(
        app, ["import-weights", *map(str, arguments)], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "coronal.pth.tar"
    torch.save({"epoch": 1, "state_dict": port_state(SMALL)}, path)
    return path


def test_a_checkpoint_becomes_a_model_that_loads(
    checkpoint: Path, tmp_path: Path
) -> None:
    out = tmp_path / "port"
    said = run(checkpoint, "--view", "coronal", "--out", out, "--licence", "MIT")
    assert "coronal, 33 classes, 4 filters, squeeze-and-excitation both" in said
    model = load_model(out)
    assert list(model.networks) == [View.CORONAL]
    assert model.info.architectures[View.CORONAL] == SMALL
    assert model.info.training.licence == "MIT"


def test_how_its_scans_must_lie_is_recorded(checkpoint: Path, tmp_path: Path) -> None:
    run(checkpoint, "--view", "axial", "--out", tmp_path / "port")
    preprocessing = load_model(tmp_path / "port").info.preprocessing
    assert preprocessing == PORT_PREPROCESSING
    assert (preprocessing.axes, preprocessing.scaling) == ("LIA", "minimum-maximum")


def test_classes_that_the_label_scheme_does_not_have_are_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file.pth"
    torch.save(port_state(QuickNatConfig(filters=4, classes=28)), path)
    with pytest.raises(
        ModelError, match="coronal network has 28 classes, quicknat33 33"
    ):
        run(path, "--view", "coronal", "--out", tmp_path / "port")
    assert not (tmp_path / "port").exists()


def test_a_model_that_is_there_is_not_overwritten(
    checkpoint: Path, tmp_path: Path
) -> None:
    run(checkpoint, "--view", "coronal", "--out", tmp_path / "port")
    with refusal(OutputError, tmp_path / "port"):
        run(checkpoint, "--view", "axial", "--out", tmp_path / "port")


def test_a_checkpoint_that_runs_something_is_refused(tmp_path: Path) -> None:
    canary = tmp_path / "ran"

    class Canary:
        def __reduce__(self) -> object:
            return os.system, (f"touch {canary}",)

    path = tmp_path / "file.pth"
    torch.save({"state_dict": Canary()}, path)
    with refusal(ModelError, path):
        run(path, "--view", "coronal", "--out", tmp_path / "port")
    assert not canary.exists()
