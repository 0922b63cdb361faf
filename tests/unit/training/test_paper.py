"""The recipe `quicknat-paper` compared with the formulas of the paper and its authors' code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from oracle import quicknat_port as port
from oracle import quicknat_training as paper
from torch import Tensor

from trinat.pipelines.train.run import read_recipe
from trinat.segmentation.models.foreign import read_port
from trinat.segmentation.models.losses import build_loss
from trinat.segmentation.training.batches import Batch, BatchSource
from trinat.segmentation.training.config import Recipe
from trinat.segmentation.training.loop import Trainer
from trinat.segmentation.training.network import copy_network, new_network

CLASSES = 5
SIZE = 32


@pytest.fixture
def recipe() -> Recipe:
    return read_recipe("quicknat-paper")


def labels_with_patches(classes: int, images: int) -> Tensor:
    """Return patches of 8 x 8 pixels of one class: some in each image, all classes in some."""
    generator = torch.Generator().manual_seed(1)
    small = torch.randint(
        0, classes, (images, SIZE // 8, SIZE // 8), generator=generator
    )
    return small.repeat_interleave(8, 1).repeat_interleave(8, 2).to(torch.uint8)


@pytest.mark.parametrize("present", [CLASSES, CLASSES - 2])
def test_loss_and_gradient_are_those_of_the_authors(
    recipe: Recipe, present: int
) -> None:
    """Also if a batch lacks classes of the store."""
    labels = labels_with_patches(present, 4)
    counts = torch.tensor([90_000, 7_000, 1_500, 400, 60_000])
    ours, theirs = (
        torch.randn(
            (4, CLASSES, SIZE, SIZE),
            generator=torch.Generator().manual_seed(2),
            dtype=torch.float64,
        ).requires_grad_()
        for _ in range(2)
    )
    found = build_loss(recipe.stages[0].loss, counts)(ours, labels)
    expected = paper.loss(theirs, labels, counts)
    found.backward()
    expected.backward()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    assert ours.grad is not None
    assert theirs.grad is not None
    largest = theirs.grad.abs().max()
    torch.testing.assert_close(
        ours.grad, theirs.grad, rtol=1e-5, atol=1e-5 * float(largest)
    )


class Fixed(BatchSource):
    """The same four slices at each step."""

    fingerprint = ""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = images
        self.labels = labels

    def draw(self, first: int, count: int, generator: torch.Generator) -> Batch:
        return Batch(self.images, self.labels, "fixed")

    def counts(self) -> Tensor:
        return torch.bincount(self.labels.flatten().long(), minlength=CLASSES)

    def slices(self) -> int:
        return 12


def test_two_steps_are_those_of_the_authors(recipe: Recipe, tmp_path: Path) -> None:
    """With the network of their port, without gates and dropout, and with its weights."""
    torch.manual_seed(3)
    theirs = port.QuickNat(filters=4, classes=CLASSES, gate=None)
    theirs.apply(lambda part: setattr(part, "p", 0.0) if hasattr(part, "p") else None)
    torch.save(theirs.state_dict(), tmp_path / "port.pth")
    start = read_port(tmp_path / "port.pth")
    shape = start.config.model_copy(update={"dropout": 0.0})
    ours = new_network(shape, CLASSES)
    ours.load_state_dict(start.state_dict())

    labels = labels_with_patches(CLASSES, 4)
    noise = torch.randn((4, 1, SIZE, SIZE), generator=torch.Generator().manual_seed(4))
    images = labels[:, None] / CLASSES + 0.1 * noise
    source = Fixed(images, labels)
    plain = recipe.model_copy(update={"network": shape})
    trainer = Trainer(plain, plain.stages[0], ours, source, torch.device("cpu"))
    # Twelve slices once are three batches of four.
    assert trainer.epoch_steps == 3

    theirs.double().train()
    optimiser = paper.Sgd()
    for _ in range(2):
        theirs.zero_grad()
        expected = paper.loss(theirs(images.double()), labels, source.counts())
        expected.backward()
        # The port has weights that it never uses.
        used = {
            name: weight
            for name, weight in theirs.named_parameters()
            if weight.grad is not None
        }
        optimiser.step(used)
        report = trainer.step()
        assert report.loss == pytest.approx(expected.item(), rel=1e-5)

    torch.save(theirs.float().state_dict(), tmp_path / "after.pth")
    after = read_port(tmp_path / "after.pth").state_dict()
    before = start.state_dict()
    alone = copy_network(ours).requires_grad_(False)
    trained = dict(alone.named_parameters())
    moved = [float((trained[name] - before[name]).abs().max()) for name in trained]
    assert max(moved) > 0.01
    for name, weight in trained.items():
        torch.testing.assert_close(weight, after[name], rtol=1e-5, atol=1e-5, msg=name)


def test_the_network_is_the_papers(recipe: Recipe) -> None:
    """No gates, no dropout, rectifiers; nothing is augmented, and each slice comes once."""
    network = recipe.network.model_dump()
    assert (network["excitation"], network["dropout"]) == ("none", 0)
    assert (network["activation"], network["bottleneck"]) == ("relu", "convolution")
    (stage,) = recipe.stages
    assert stage.data.store is not None
    assert stage.data.store.balanced_share == 0
    assert stage.data.epoch_slices is None
    augmentation = stage.data.store.augmentation
    shares = ("flip", "affine", "elastic", "gain", "bias", "gamma", "blur", "noise")
    assert [getattr(augmentation, share) for share in shares] == [0] * len(shares)
    assert (augmentation.low_resolution, augmentation.transforms) == (0, ())
