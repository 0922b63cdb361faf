"""trinat average: weights, statistics of norms, and what a soup keeps."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from helpers.overfitted import random_model
from helpers.tiny_training import SILENT, tiny_recipe
from torch.optim.swa_utils import update_bn
from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.pipelines.laboratory.average import average, mean_of, soup
from trinat.pipelines.train.result import CONFIG
from trinat.pipelines.train.run import train
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.models.quicknat import QuickNat, QuickNatConfig
from trinat.segmentation.space.views import View

pytestmark = pytest.mark.usefixtures("without_pages")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("average")
    for seed in (1, 2):
        (folder / str(seed)).mkdir()
        recipe = tiny_recipe(folder / str(seed), seed=seed, views=["coronal"])
        train(recipe, folder / f"run-{seed}", SILENT)
    return [folder / "run-1", folder / "run-2"]


def test_the_mean_of_weights_and_statistics_of_new_data() -> None:
    config = QuickNatConfig(
        classes=2, filters=1, depth=1, order="convolution-norm-activation"
    )
    networks = [QuickNat(config) for _ in range(2)]
    for value, network in zip((1.0, 3.0), networks, strict=True):
        for parameter in network.parameters():
            torch.nn.init.constant_(parameter, value)
    mean = mean_of(networks)
    assert {float(p.detach().unique()) for p in mean.parameters()} == {2.0}
    assert {float(p.detach().unique()) for p in networks[0].parameters()} == {1.0}
    update_bn([torch.ones(2, 1, 8, 8)], mean)
    # 25 neighbours of weight 2 in the middle, 9 in a corner.
    norm = mean.encoders[0].layers[0].norm
    counts = torch.tensor([3, 4, 5, 5, 5, 5, 4, 3.0])
    assert float(norm.running_mean) == pytest.approx(
        2 * float(counts.outer(counts).mean())
    )


def test_a_soup_keeps_a_member_only_if_it_helps() -> None:
    found = {(1, 2): 0.85, (1, 2, 0): 0.8}
    assert soup([0.5, 0.8, 0.7], lambda some: found[tuple(some)]) == [1, 2]
    assert soup([0.5, 0.8], lambda some: 0.79) == [1]


def test_runs_are_averaged_and_the_gain_is_measured(
    runs: list[Path], tmp_path: Path
) -> None:
    (gain,) = average(runs, tmp_path / "mean", batches=2)
    first, second, mean = (
        load_model(path).networks[View.CORONAL].classifier.weight
        for path in (runs[0] / "model", runs[1] / "model", tmp_path / "mean")
    )
    torch.testing.assert_close(mean, (first + second) / 2)
    assert gain.kept == (0, 1)
    info = load_model(tmp_path / "mean").info
    assert info.metrics == {"validation_dice": {"coronal": gain.mean}}
    (greedy,) = average(runs, tmp_path / "soup", greedy=True, batches=2)
    assert greedy.mean >= max(greedy.members)


def test_networks_of_another_shape_are_refused(
    runs: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="has other networks or labels"):
        average([runs[0], random_model()], tmp_path / "out")
    with pytest.raises(ConfigError, match="no mean of one"):
        average(runs[:1], tmp_path / "out")


def bound_model(run: Path, folder: Path) -> Path:
    """A run's model whose licence is not that of trinat."""
    shutil.copytree(run / "model", folder)
    info = folder / "model.yaml"
    content = yaml.safe_load(info.read_text())
    content["training"]["licence"] = "CC BY-NC 3.0"
    info.write_text(yaml.safe_dump(content))
    return folder


def test_weights_of_two_licences_have_no_mean(runs: list[Path], tmp_path: Path) -> None:
    bound = bound_model(runs[1], tmp_path / "bound")
    with pytest.raises(ConfigError, match="has another licence"):
        average([runs[0], bound], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_tells_whose_weights_they_are(
    runs: list[Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(runs[0] / CONFIG, run)
    bound_model(runs[0], run / "model")
    other = bound_model(runs[1], tmp_path / "other")
    words = ["average", str(run), str(other), "--out", str(tmp_path / "mean")]
    done = CliRunner().invoke(app, [*words, "--batches", "1"], standalone_mode=False)
    assert done.exception is None, done.exception
    assert "licensed under CC BY-NC 3.0" in done.stderr
