"""Tracking services receive the curves of a training; if one fails, the training goes on."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from helpers.tiny_training import SILENT, tiny_recipe

from trinat.pipelines.train import log
from trinat.pipelines.train.log import Trackers
from trinat.pipelines.train.run import train
from trinat.segmentation.errors import ConfigError, InterruptedRunError

VALIDATION = {"every_epochs": 1}


class Kept:
    """A tracking service that records its input, and may fail."""

    def __init__(self, failing: bool = False) -> None:
        self.failing = failing
        self.points: list[tuple[dict[str, float], int]] = []
        self.ends: list[str] = []

    def log(self, values: Mapping[str, float], step: int) -> None:
        if self.failing:
            raise ConnectionError("no route to host\nand pages of advice")
        self.points.append((dict(values), step))

    def close(self, end: str) -> None:
        self.ends.append(end)


def test_a_service_that_fails_ends_its_curves_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    services = {"wandb": Kept(failing=True), "mlflow": Kept()}
    monkeypatch.setattr(log, "_begin", lambda service, *given: services[service])
    recipe = tiny_recipe(tmp_path, tracking=["wandb", "mlflow"])
    with Trackers(tmp_path, recipe, 0) as trackers:
        for step in (1, 2):
            trackers.log({"loss": 0.5}, step)
    assert logged.messages == [
        "curves are no longer sent to wandb: no route to host; the training continues"
    ]
    assert services["mlflow"].points == [({"loss": 0.5}, 1), ({"loss": 0.5}, 2)]
    assert (services["wandb"].ends, services["mlflow"].ends) == ([], ["FINISHED"])


@pytest.mark.parametrize(
    ("error", "end"),
    [(ValueError("a bug"), "FAILED"), (InterruptedRunError("stopped"), "KILLED")],
)
def test_services_learn_how_a_job_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, end: str
) -> None:
    service = Kept()
    monkeypatch.setattr(log, "_begin", lambda *given: service)
    recipe = tiny_recipe(tmp_path, tracking=["mlflow"])
    with pytest.raises(type(error)), Trackers(tmp_path, recipe, 0):
        raise error
    assert service.ends == [end]


def test_a_service_that_is_not_installed_is_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    recipe = tiny_recipe(tmp_path, tracking=["mlflow"])
    with pytest.raises(ConfigError, match="mlflow needs it installed"):
        train(recipe, tmp_path / "run", SILENT)
    assert not (tmp_path / "run/train/coronal/metrics.csv").exists()


def test_a_service_that_cannot_begin_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(*given: object) -> None:
        raise PermissionError("no key\nget one")

    monkeypatch.setattr(log, "_begin", begin)
    recipe = tiny_recipe(tmp_path, tracking=["wandb"])
    with pytest.raises(ConfigError, match="wandb cannot begin: no key: see"):
        Trackers(tmp_path, recipe, 0)


# Their libraries emit deprecation warnings.
@pytest.mark.slow
@pytest.mark.important
@pytest.mark.filterwarnings("default")
def test_mlflow_has_the_curves_of_each_job_and_a_resumed_one_goes_on_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    recipe = tiny_recipe(tmp_path, tracking=["mlflow"], validation=VALIDATION)
    run = tmp_path / "run"
    train(recipe, run, SILENT)
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("tiny")
    found = {
        one.info.run_name: one for one in client.search_runs([experiment.experiment_id])
    }
    assert set(found) == {"run/train/coronal", "run/train/sagittal"}
    coronal = found["run/train/coronal"]
    assert coronal.info.status == "FINISHED"
    assert {"loss", "rate", "coronal/dice"} <= set(coronal.data.metrics)
    assert client.get_metric_history(coronal.info.run_id, "loss")[-1].step == 8
    settings = mlflow.artifacts.load_dict(f"{coronal.info.artifact_uri}/recipe.json")
    heads = Path(recipe.stages[0].data.synthetic.heads)
    assert settings["stages"][0]["data"]["synthetic"]["heads"] == heads.name
    assert str(heads.parent) not in json.dumps(settings)

    known = json.loads((run / "train/coronal/tracking.json").read_text())["mlflow"]
    with Trackers(run / "train/coronal", recipe, 8) as again:
        again.log({"loss": 0.25}, 9)
    assert client.get_run(known).data.metrics["loss"] == 0.25


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.filterwarnings("default")
def test_weights_and_biases_has_them_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setattr(socket, "gethostname", lambda: "a-host")
    recipe = tiny_recipe(
        tmp_path, tracking=["wandb"], validation=VALIDATION, views=["coronal"]
    )
    run = tmp_path / "run"
    train(recipe, run, SILENT)
    known = json.loads((run / "train/coronal/tracking.json").read_text())["wandb"]
    (kept,) = (run / "train/coronal").glob(f"wandb/offline-run-*/run-{known}.wandb")
    content = kept.read_bytes()
    for name in (b"loss", b"gradient_norm", b"coronal/dice", b"run/train/coronal"):
        assert name in content
    # Other users may read the tracking server, so it must not have local paths.
    heads = Path(recipe.stages[0].data.synthetic.heads)
    for private in (str(heads.parent), str(tmp_path), "a-host", sys.prefix):
        assert private.encode() not in content, private
    assert not list(kept.parent.glob("**/output.log"))
