"""Training on a claimed GPU: no mixed devices, and no waits."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers import small_store as stored
from helpers.claimed import Claims, claimed, device_of
from helpers.tiny_training import NETWORK, SILENT

from trinat.pipelines.train.job import Watcher
from trinat.pipelines.train.result import Job
from trinat.pipelines.train.run import train
from trinat.segmentation.data import augmentation
from trinat.segmentation.errors import InterruptedRunError
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.heads import HeadMaps
from trinat.segmentation.training import loop
from trinat.segmentation.training.batches import (
    BatchSource,
    MixedSource,
    StoreSource,
    SyntheticSource,
)
from trinat.segmentation.training.config import Recipe, StoreConfig
from trinat.segmentation.training.loop import StepReport, Trainer
from trinat.segmentation.training.network import new_network
from trinat.segmentation.training.state import read_state, write_state

TISSUE4 = load_scheme("tissue4")
VIEW = View.CORONAL
SIZE = (16, 16)
# The loss and the norm of the gradient, in one read.
ONE_READ = ["loop._clip_gradients"]

Sources = Callable[[str], BatchSource]


@pytest.fixture
def sources(tmp_path: Path, maps: HeadMaps) -> Sources:
    """Provide slices of a store, synthetic ones, or both mixed.

    To be opened on a claimed device.
    """
    shapes = {"a": (16, 18, 20), "b": (17, 15, 13), "c": (14, 20, 16)}
    store = stored.small_store(tmp_path / "store", shapes)
    config = StoreConfig(path=store, split=stored.all_train(store))

    def source(kind: str, device: str = "cuda") -> BatchSource:
        recipe = recipe_of()
        of_store = StoreSource(config, VIEW, SIZE, 3, 0, TISSUE4)
        settings = recipe.stages[0].data.synthetic
        assert settings is not None
        synthetic = SyntheticSource(
            maps, VIEW, TISSUE4, settings.synthesis, SIZE, 3, device
        )
        if kind == "store":
            return of_store
        if kind == "synthetic":
            return synthetic
        return MixedSource(synthetic, of_store, 0.5)

    return source


def recipe_of(**stage: object) -> Recipe:
    content = {
        "name": "tiny",
        "scheme": "tissue4",
        "views": ["coronal"],
        "network": NETWORK | {"channels": 3},
        "data": {
            "synthetic": {
                "heads": "phantom",
                "synthesis": {"shift_mm": 2, "elastic_mm": 1},
            },
            "rows": 16,
            "columns": 16,
            "epoch_slices": 16,
        },
        "precision": "float32",
        "schedule": {"steps": 12},
        "batch": 6,
        **stage,
    }
    return Recipe.model_validate(content)


def trainer_of(
    source: BatchSource,
    device: str = "cuda:0",
    **stage: object,
) -> Trainer:
    recipe = recipe_of(**stage)
    torch.manual_seed(0)
    network = new_network(recipe.network, len(TISSUE4))
    return Trainer(recipe, recipe.stages[0], network, source, torch.device(device))


def after_first_step(claims: Claims, trainer: Trainer) -> None:
    """Forget the first step, which copies tables to the device once."""
    trainer.step()
    claims.reads.clear()
    claims.uploads.clear()


@pytest.mark.parametrize("kind", ["store", "synthetic", "mixed"])
def test_a_step_waits_for_its_loss_and_for_nothing_else(
    sources: Sources, kind: str
) -> None:
    with claimed() as claims:
        trainer = trainer_of(sources(kind), accumulate=2)
        after_first_step(claims, trainer)
        trainer.step()
        assert claims.reads == ONE_READ
        assert claims.uploads == []
        assert all(
            device_of(one).type == "cuda" for one in trainer.network.parameters()
        )


def test_a_gpu_computes_what_a_processor_does(sources: Sources) -> None:
    """Pooling, odd convolutions and the Dice sums have another form on a GPU."""
    with claimed():
        trainer = trainer_of(sources("synthetic"))
        found = [trainer.step().loss for _ in range(2)]
    trainer = trainer_of(sources("synthetic", "cpu"), "cpu")
    wanted = [trainer.step().loss for _ in range(2)]
    assert found == pytest.approx(wanted, rel=1e-4)


def test_a_resumed_run_goes_on_with_a_fused_optimiser(
    sources: Sources, tmp_path: Path
) -> None:
    with claimed() as claims:
        straight = trainer_of(sources("store"))
        straight.step()
        path = write_state(tmp_path, straight.state({}))
        resumed = trainer_of(sources("store"))
        assert resumed.optimiser.defaults["fused"]
        resumed.load(read_state(path))
        after_first_step(claims, resumed)
        straight.step()
        claims.reads.clear()
        assert resumed.step().loss == straight.step().loss
        assert claims.reads == 2 * ONE_READ


def test_a_tensor_on_another_device_is_found(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = augmentation._brighten

    def brighten(images, config, draw):
        return real(images, config, draw) + torch.zeros(len(images), 1, 1, 1)

    monkeypatch.setattr(augmentation, "_brighten", brighten)
    with claimed(), pytest.raises(RuntimeError, match="cpu and cuda:0 in aten::add"):
        trainer_of(sources("store")).step()


def test_a_look_at_a_value_is_found(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    with claimed() as claims:
        trainer = trainer_of(sources("store"))
        after_first_step(claims, trainer)
        real = trainer._loss

        def loss(batch):
            found = real(batch)
            assert found.isfinite()
            return found

        monkeypatch.setattr(trainer, "_loss", loss)
        trainer.step()
        assert len(claims.reads) == 1 + len(ONE_READ)


def test_an_upload_that_is_waited_for_is_found(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        augmentation, "upload", lambda values, device: values.to(device)
    )
    with claimed() as claims:
        trainer = trainer_of(sources("store"))
        after_first_step(claims, trainer)
        trainer.step()
        assert "augmentation._deform" in claims.uploads


@pytest.mark.parametrize("kind", ["store", "synthetic", "mixed"])
def test_mps_gets_no_float64(sources: Sources, kind: str) -> None:
    with claimed("mps:0"):
        trainer_of(sources(kind, "mps"), "mps:0").step()


def test_a_float64_on_mps_is_found(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "widest_float", lambda device: torch.float64)
    with claimed("mps:0"), pytest.raises(TypeError, match="MPS has no float64"):
        trainer_of(sources("store"), "mps:0").step()


def test_a_gpu_without_bfloat16_computes_in_float16_with_scaled_gradients(
    sources: Sources, tmp_path: Path
) -> None:
    with claimed(capability=(7, 5)):
        trainer = trainer_of(sources("store"), precision="auto")
        assert trainer.precision == torch.float16
        # An infinite gradient: the step changes nothing, and the scale is halved.
        trainer.scaler.load_state_dict(trainer.scaler.state_dict() | {"scale": 2.0**60})
        before = trainer.network.encoders[0].layers[0].convolution.weight.clone()
        trainer.step()
        after = trainer.network.encoders[0].layers[0].convolution.weight
        assert torch.equal(before, after)
        assert trainer.scaler.get_scale() == 2.0**59

        trainer.scaler.load_state_dict(trainer.scaler.state_dict() | {"scale": 2.0**10})
        trainer.step()
        assert not torch.equal(before, after)
        resumed = trainer_of(sources("store"), precision="auto")
        resumed.load(read_state(write_state(tmp_path, trainer.state({}))))
        assert resumed.scaler.state_dict() == trainer.scaler.state_dict()
        assert resumed.step().loss == trainer.step().loss


@pytest.mark.slow
@pytest.mark.important
def test_a_whole_run_is_validated_stopped_and_resumed(tmp_path: Path) -> None:
    shapes = dict.fromkeys("abcd", (16, 18, 20))
    store = stored.small_store(tmp_path / "store", shapes)
    split = json.loads(stored.all_train(store).read_text())
    split |= {"train": ["a", "b", "c"], "validation": ["d"]}
    (store / "split.json").write_text(json.dumps(split))
    data = {
        "store": {"path": store, "split": store / "split.json"},
        "rows": 16,
        "columns": 16,
        "epoch_slices": 12,
    }
    recipe = recipe_of(data=data, schedule={"steps": 6}, validation={"every_epochs": 1})
    out = tmp_path / "run"

    def stop_after_two_steps(job: Job, report: StepReport, progress: float) -> None:
        if report.step == 2:
            signal.raise_signal(signal.SIGUSR1)

    stopping = Watcher(step=stop_after_two_steps)
    with claimed():
        with pytest.raises(InterruptedRunError):
            train(recipe, out, stopping, device="cuda")
        train(recipe, out, SILENT, device="cuda", resume=True)
    job = out / "train/coronal"
    assert json.loads((job / "done.json").read_text())["step"] == 6
    assert len((job / "validations.csv").read_text().splitlines()) > 1
