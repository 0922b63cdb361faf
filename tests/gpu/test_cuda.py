"""Behaviour that only a GPU can show."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import small_store as stored
from torch import Tensor

from trinat.pipelines.train.job import Watcher
from trinat.pipelines.train.run import read_recipe, train
from trinat.segmentation.data.augmentation import AugmentationConfig
from trinat.segmentation.errors import DeviceError, InterruptedRunError
from trinat.segmentation.inference.fusion import ViewAggregator
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.losses import LossConfig, build_loss
from trinat.segmentation.models.quicknat import PUBLISHED, QuickNat
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.heads import phantom_heads
from trinat.segmentation.synthetic.settings import SynthesisConfig
from trinat.segmentation.synthetic.synthesis import synthesise
from trinat.segmentation.synthetic.targets import Heads, aim
from trinat.segmentation.training.batches import StoreSource, SyntheticSource
from trinat.segmentation.training.config import Recipe, StoreConfig
from trinat.segmentation.training.loop import Trainer
from trinat.segmentation.training.network import new_network
from trinat.segmentation.training.state import read_latest, seeded

# Compilers warn of much that is no error.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

CUDA = "cuda"
SCHEME = load_scheme("quicknat33")
SMALL = PUBLISHED.model_copy(update={"filters": 16, "dropout": 0.0})
SETTINGS = ("network.filters=16", "batch=8", "data.rows=64", "data.columns=64")


@pytest.fixture(scope="module")
def maps():
    return phantom_heads(4)


@pytest.fixture(scope="module")
def heads(maps) -> Heads:
    return aim(maps, SCHEME, CUDA)


@pytest.fixture(scope="module", autouse=True)
def repeatable_products() -> Iterator[None]:
    """Make matrix products repeatable for all tests; torch reads the setting once per process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        yield


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def batch(count: int = 4, size: int = 64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(count, 1, size, size), torch.randint(
        0, 33, (count, size, size)
    ).byte()


def network(**changes: object) -> QuickNat:
    torch.manual_seed(0)
    return QuickNat(SMALL.model_copy(update=changes))


def error_of(found: Tensor, wanted: Tensor) -> float:
    return float(
        (found.double().cpu() - wanted.double().cpu()).norm() / wanted.double().norm()
    )


def draw(heads: Heads, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = seeded(CUDA, seed)
    return synthesise(heads, SynthesisConfig(), View.CORONAL, 8, (64, 64), generator)


def test_drawing_never_waits_for_the_gpu(heads: Heads) -> None:
    draw(heads)
    torch.cuda.set_sync_debug_mode("error")
    try:
        images, labels = draw(heads)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert images.isfinite().all()
    assert labels.max() > 0


def test_a_seed_fixes_what_is_drawn(heads: Heads) -> None:
    (one, labels), (same, again), (other, _) = (draw(heads, seed) for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert torch.equal(labels, again)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(("bf16", "limit"), [(False, 1e-2), (True, 5e-2)])
def test_logits_are_those_of_float64(bf16: bool, limit: float) -> None:
    """Float32 convolutions run in tf32 by default; bf16 has 8 bits."""
    slices, _ = batch()
    wanted = network().double().eval()(slices.double()).detach()
    with torch.autocast(CUDA, torch.bfloat16, enabled=bf16), torch.inference_mode():
        found = network().to(CUDA).eval()(slices.to(CUDA))
    assert error_of(found, wanted) < limit


def test_the_folded_network_is_the_same() -> None:
    trained = network(order="convolution-norm-activation").to(CUDA).eval()
    slices = batch()[0].to(CUDA)
    with torch.inference_mode():
        assert error_of(trained.fold()(slices), trained(slices)) < 1e-2


@pytest.mark.parametrize("bf16", [False, True])
def test_steps_give_the_same_bits_twice(deterministic: None, bf16: bool) -> None:
    slices, labels = (tensor.to(CUDA) for tensor in batch())

    def weights() -> Tensor:
        own = network(dropout=0.2).to(CUDA).train()
        loss = build_loss(LossConfig(), torch.ones(33)).to(CUDA)
        optimiser = torch.optim.AdamW(own.parameters(), 1e-3)
        torch.manual_seed(2)
        for _ in range(3):
            with torch.autocast(CUDA, torch.bfloat16, enabled=bf16):
                logits = own(slices)
            optimiser.zero_grad(set_to_none=True)
            loss(logits, labels).backward()
            optimiser.step()
        return torch.cat([p.detach().flatten() for p in own.parameters()])

    assert torch.equal(weights(), weights())


def test_a_compiled_network_is_the_same() -> None:
    own = network().to(CUDA).eval()
    slices = batch()[0].to(CUDA)
    with torch.inference_mode():
        assert error_of(torch.compile(own)(slices), own(slices)) < 1e-2


def trainer(maps, *settings: str) -> Trainer:
    recipe = read_recipe("quicknat", (*SETTINGS, *settings))
    stage = recipe.stages[0]
    synthesis = stage.data.synthetic.synthesis
    source = SyntheticSource(
        maps,
        View.CORONAL,
        SCHEME,
        synthesis,
        (stage.data.rows, stage.data.columns),
        1,
        CUDA,
    )
    own = new_network(recipe.network, len(SCHEME))
    return Trainer(recipe, stage, own, source, torch.device(CUDA))


def test_views_and_their_fusion_never_wait_for_the_gpu() -> None:
    segmenter = Predictor("fast", device=CUDA)
    image = torch.rand(64, 64, 64, device=CUDA)
    within = torch.zeros(64, 64, 64, dtype=torch.bool)
    within[10:50, 20:60, :40] = True
    fusion = ViewAggregator(
        (64, 64, 64), SCHEME, segmenter.views, device=CUDA, mean="geometric"
    )
    torch.cuda.set_sync_debug_mode("error")
    try:
        for view, part in segmenter.each_view(image, within=within):
            fusion.add(
                view, part.slices.start, part.probabilities, part.rows, part.columns
            )
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert fusion.finish().isfinite().all()


def test_training_learns(maps) -> None:
    own = trainer(maps, "compile=false", "optimiser.rate=0.005")
    assert own.precision == torch.bfloat16
    losses = []
    for _ in range(60):
        losses.append(own.step().loss)
        own.counters.share = 0.2
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])


def test_slices_of_a_store_are_there_what_they_are_here(tmp_path: Path) -> None:
    """Read ahead, through pinned memory, 16-bit codes made float32 by the GPU: no bit differs."""
    store = stored.small_store(
        tmp_path / "store", {"a": (16, 18, 20), "b": (17, 15, 13)}
    )
    kinds = (
        "flip",
        "affine",
        "elastic",
        "gain",
        "bias",
        "gamma",
        "blur",
        "low_resolution",
        "noise",
    )
    plain = AugmentationConfig.model_validate(dict.fromkeys(kinds, 0))
    config = StoreConfig(path=store, split=stored.all_train(store), augmentation=plain)
    # The window is larger than any slice, so its position does not matter.
    for view in stored.VIEWS:
        source = StoreSource(config, view, (24, 24), 3, 0, stored.TISSUE4, workers=2)
        source.expect(5, 4)
        there, here = (source.draw(5, 4, seeded(device, 0)) for device in (CUDA, "cpu"))
        assert there.images.device.type == there.labels.device.type == CUDA
        assert torch.equal(there.images.cpu(), here.images)
        assert torch.equal(there.labels.cpu(), here.labels)
        assert there.what == here.what
        source.close()


def test_out_of_memory_says_which_batch_to_try(maps) -> None:
    own = trainer(
        maps, "compile=false", "batch=64", "data.rows=512", "data.columns=512"
    )
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, 4 * 2**30 / total))
    try:
        with pytest.raises(DeviceError, match="set batch to 32"):
            own.step()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_view_is_trained_within_its_time(
    maps, tmp_path: Path, compiled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    maps.save(tmp_path / "heads.npz")
    settings = (
        f"data.synthetic.heads={tmp_path / 'heads.npz'}",
        f"compile={compiled}".lower(),
    )
    recipe = read_recipe("quicknat", (*SETTINGS, *settings))
    run = tmp_path / "run"
    train(recipe, run, Watcher(), views=[View.AXIAL], seconds=15, device=CUDA)
    counters = json.loads((tmp_path / "run/train/axial/done.json").read_text())
    assert counters["step"] > 10
    assert counters["share"] == 1
    # A message appears if the compiler does not work; here it should work.
    assert not [line for line in caplog.messages if "without being compiled" in line]


def recipe_on_store(folder: Path, *settings: str) -> Recipe:
    """Return a recipe in which three participants of a small store train, and one validates."""
    store = stored.small_store(folder, dict.fromkeys("abcd", (40, 44, 48)))
    split = json.loads(stored.all_train(store).read_text())
    split |= {"train": ["a", "b", "c"], "validation": ["d"]}
    (store / "split.json").write_text(json.dumps(split))
    return read_recipe(
        "quicknat",
        (
            *SETTINGS,
            "scheme=tissue4",
            "data.synthetic=null",
            f"data.store.path={store}",
            f"data.store.split={store / 'split.json'}",
            "data.epoch_slices=64",
            "views=[coronal]",
            "schedule.epochs=null",
            "schedule.steps=16",
            "validation.every_epochs=1",
            "compile=false",
            *settings,
        ),
    )


def test_a_step_on_a_store_waits_for_its_loss_alone(tmp_path: Path) -> None:
    recipe = recipe_on_store(tmp_path / "store")
    stage = recipe.stages[0]
    source = StoreSource(
        stage.data.store, View.CORONAL, (64, 64), 1, 0, stored.TISSUE4, workers=2
    )
    own = new_network(recipe.network, len(stored.TISSUE4))
    device = torch.device(CUDA)
    trainer = Trainer(recipe, stage, own, source, device)
    trainer.step()
    looks = 0
    real = trainer._clip_gradients

    def clip_gradients(parts: object) -> tuple[float, float]:
        nonlocal looks
        looks += 1
        torch.cuda.set_sync_debug_mode("default")
        found = real(parts)
        torch.cuda.set_sync_debug_mode("error")
        return found

    trainer._clip_gradients = clip_gradients
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert looks == 1
    source.close()


def test_a_run_on_a_store_is_validated_and_resumed_to_the_bit(tmp_path: Path) -> None:
    """Uses the switch for determinism, and fused AdamW whose state comes from a file."""
    recipe = recipe_on_store(tmp_path / "store", "deterministic=true")
    silent = Watcher()
    train(recipe, tmp_path / "straight", silent, device=CUDA)
    seen = 0

    def stop(*given: object) -> None:
        nonlocal seen
        seen += 1
        if seen == 9:
            os.kill(os.getpid(), signal.SIGTERM)

    stopping = Watcher(stop)
    with pytest.raises(InterruptedRunError):
        train(recipe, tmp_path / "broken", stopping, device=CUDA)
    train(recipe, tmp_path / "broken", silent, device=CUDA, resume=True)
    job = "train/coronal"
    (straight, _), (broken, _) = (
        read_latest(tmp_path / run / job) for run in ("straight", "broken")
    )
    for name, value in straight.network.items():
        assert torch.equal(value, broken.network[name]), name
    scores = (tmp_path / "straight" / job / "validations.csv").read_text()
    assert scores == (tmp_path / "broken" / job / "validations.csv").read_text()


def test_float16_learns_with_scaled_gradients(maps) -> None:
    own = trainer(maps, "compile=false", "precision=float16", "optimiser.rate=0.005")
    losses = [own.step().loss for _ in range(60)]
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])
    assert own.counters.bad < 10
