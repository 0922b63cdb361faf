"""Batches from a slice store: reproducible, all slices in an epoch, cropped to size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.small_store import (
    TISSUE4,
    VIEWS,
    all_train,
    partly_labelled,
    small_store,
    stored_subject,
)

from trinat.segmentation.data.augmentation import AugmentationConfig
from trinat.segmentation.data.slices import quantise, scheme_table, write_subject
from trinat.segmentation.data.sources.base import Subject
from trinat.segmentation.data.splits import Split
from trinat.segmentation.data.store import (
    Store,
    StoreInfo,
    subject_path,
    write_participants,
)
from trinat.segmentation.data.transforms.from_torchio import RandomNoise
from trinat.segmentation.errors import DatasetError
from trinat.segmentation.labels.scheme import IGNORE, LabelScheme, load_scheme
from trinat.segmentation.models.losses import LossConfig, build_loss
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.heads import HeadMaps, phantom_heads
from trinat.segmentation.synthetic.settings import SynthesisConfig
from trinat.segmentation.training.batches import (
    Batch,
    BatchSource,
    MixedSource,
    StoreSource,
    SyntheticSource,
    _window,
    store_scans,
)
from trinat.segmentation.training.config import StoreConfig, ValidationConfig
from trinat.segmentation.training.state import seeded

PLAIN = AugmentationConfig(
    flip=0,
    affine=0,
    elastic=0,
    gain=0,
    bias=0,
    gamma=0,
    blur=0,
    low_resolution=0,
    noise=0,
)
SIZE = 16


@pytest.fixture
def config(tmp_path: Path) -> StoreConfig:
    """Write subjects a (trains) and b (validates).

    20 axial slices, slice k as bright as (k + 1) / 40.
    """
    root = tmp_path / "store"
    (root / "subjects").mkdir(parents=True)
    image = np.empty((SIZE, SIZE, 20), np.float32)
    image[:] = (np.arange(20) + 1) / 40
    labels = np.full((SIZE, SIZE, 20), 3, np.uint8)
    labels[0, 0, :] = 1
    for name in "ab":
        write_subject(
            subject_path(root, name),
            image=quantise(image),
            labels=labels,
            affine=np.eye(4),
            scheme=TISSUE4,
            views=(View.AXIAL,),
            fingerprint=name,
        )
    stored = {name: stored_subject(root, name, fingerprint=name) for name in "ab"}
    write_participants(root, [Subject(name, name, None, None) for name in "ab"], {})
    table = scheme_table(TISSUE4)
    StoreInfo(source="pairs", scheme=table, views=(View.AXIAL,), subjects=stored).write(
        root
    )
    split = Split(
        store=Store(root).fingerprint, seed=0, train=("a",), validation=("b",)
    )
    split.write(tmp_path / "split.json")
    return StoreConfig(path=root, split=tmp_path / "split.json", augmentation=PLAIN)


def source_of(
    config: StoreConfig,
    size: tuple[int, int] = (SIZE, SIZE),
    scheme: LabelScheme = TISSUE4,
) -> StoreSource:
    return StoreSource(config, View.AXIAL, size, 3, 0, scheme)


def test_a_batch_is_the_same_when_asked_again(config: StoreConfig) -> None:
    config = config.model_copy(update={"augmentation": AugmentationConfig()})
    one, again = (source_of(config).draw(37, 4, seeded("cpu", 1)) for _ in range(2))
    assert one.images.shape == (4, 3, SIZE, SIZE)
    assert torch.equal(one.images, again.images)
    assert one.what == again.what
    assert "a:" in one.what


def test_slices_carry_their_neighbours_and_their_labels(config: StoreConfig) -> None:
    batch = source_of(config).draw(0, 1, seeded("cpu", 0))
    number = int(batch.what.split(":")[1])
    middle = float(batch.images[0, 1, 5, 5])
    assert middle == pytest.approx((number + 1) / 40, abs=1e-3)
    below = 0 if number == 0 else number / 40
    assert float(batch.images[0, 0, 5, 5]) == pytest.approx(below, abs=1e-3)
    assert batch.labels[0, 0, 0] == 1
    assert batch.labels[0, 5, 5] == 3


@pytest.mark.parametrize("size", [(10, 12), (24, 16)])
def test_slices_are_cut_or_padded_to_size(
    config: StoreConfig, size: tuple[int, int]
) -> None:
    batch = source_of(config, size).draw(0, 3, seeded("cpu", 0))
    assert batch.images.shape == (3, 3, *size)
    assert batch.labels.shape == (3, *size)
    rows = min(size[0], SIZE)
    columns = min(size[1], SIZE)
    names = batch.what.removeprefix("axial slices ").split()
    for image, labels, name in zip(batch.images, batch.labels, names, strict=True):
        brightness = (int(name.removeprefix("a:")) + 1) / 40
        torch.testing.assert_close(
            image[1, :rows, :columns],
            torch.full((rows, columns), brightness),
            atol=1e-3,
            rtol=0,
        )
        # A whole slice is labelled; its padding is background.
        assert labels[:rows, :columns].all()
        assert not labels[rows:].any()
        assert not image[:, rows:].any()


@pytest.mark.parametrize(
    ("low", "high", "starts"),
    [
        (6, 9, {5, 6}),  # 9 - 4 at the earliest, 6 at the latest
        (14, 16, {12}),
        (2, 10, range(2, 7)),
        (0, 0, range(13)),
    ],
    ids=["fits", "at the edge", "larger than the window", "nothing labelled"],
)
def test_windows_show_what_is_labelled(low: int, high: int, starts: set[int]) -> None:
    labelled = np.zeros(16, bool)
    labelled[low:high] = True
    drawn = {_window(labelled, 4, share).start for share in np.arange(0, 1, 0.01)}
    assert drawn == set(starts)


def test_an_axis_that_is_too_short_is_taken_whole() -> None:
    labelled = np.ones(3, bool)
    assert {_window(labelled, 4, share).start for share in (0, 0.99)} == {0}


@pytest.mark.parametrize("view", VIEWS)
def test_workers_and_what_was_expected_change_no_bit(
    tmp_path: Path, view: View
) -> None:
    """Subjects of two shapes, batches of any size from the middle of an epoch."""
    store = small_store(tmp_path / "store", {"a": (16, 18, 20), "b": (17, 15, 13)})
    config = StoreConfig(path=store, split=all_train(store))
    here, ahead = (
        StoreSource(config, view, (14, 16), 3, 0, TISSUE4, workers)
        for workers in (0, 2)
    )
    batches = [(37, 3), (40, 1), (41, 4)]
    for batch in batches:
        ahead.expect(*batch)
    for seed, batch in enumerate([*reversed(batches), (3, 2)]):
        one, other = (
            source.draw(*batch, seeded("cpu", seed)) for source in (here, ahead)
        )
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
        assert one.what == other.what
    ahead.close()


class Told(BatchSource):
    """A source that records what it is told to expect, and what is drawn from it."""

    fingerprint = ""

    def __init__(self) -> None:
        self.expected: list[tuple[int, int]] = []
        self.drawn: list[tuple[int, int]] = []

    def expect(self, first: int, count: int) -> None:
        self.expected.append((first, count))

    def draw(self, first: int, count: int, generator: torch.Generator) -> Batch:
        self.drawn.append((first, count))
        return Batch(torch.zeros(count, 1, 4, 4), torch.zeros(count, 4, 4), "")


def test_without_balanced_draws_an_epoch_is_each_slice_once(
    config: StoreConfig,
) -> None:
    plain = config.model_copy(update={"balanced_share": 0.0})
    source = source_of(plain)
    assert source.slices() == 20
    for epoch in range(2):
        what = source.draw(20 * epoch, 20, seeded("cpu", 0)).what
        names = what.removeprefix("axial slices ").split()
        assert sorted(names) == sorted(f"a:{number}" for number in range(20))


def test_of_a_mixture_each_source_expects_its_own() -> None:
    drawn, real = Told(), Told()
    mixed = MixedSource(drawn, real, 0.25)
    for first in range(0, 30, 3):
        mixed.expect(first, 3)
        mixed.draw(first, 3, seeded("cpu", first))
    # Of thirty, floor(30 / 4).
    assert sum(count for _, count in drawn.drawn) == 7
    for source in (drawn, real):
        assert source.expected == source.drawn


def test_labels_of_another_scheme_are_refused(config: StoreConfig) -> None:
    with pytest.raises(DatasetError, match="tissue4, not quicknat33"):
        source_of(config, scheme=load_scheme("quicknat33"))


def test_whole_subjects_validate(config: StoreConfig) -> None:
    scans = list(store_scans(config, View.AXIAL, ValidationConfig(), 0))
    assert [scan.name for scan in scans] == ["b"]
    assert scans[0].images.shape == scans[0].labels.shape == (20, SIZE, SIZE)


def test_all_participants_validate_if_no_number_is_given(tmp_path: Path) -> None:
    names = "abcdef"
    store = small_store(tmp_path / "store", dict.fromkeys(names, (16, 16, 16)))
    split = tmp_path / "split.json"
    Split(
        store=Store(store).fingerprint,
        seed=0,
        train=("a",),
        validation=tuple("bcdef"),
    ).write(split)

    def scored(validation: ValidationConfig, seed: int) -> str:
        config = StoreConfig(path=store, split=split)
        scans = store_scans(config, View.AXIAL, validation, seed)
        return "".join(scan.name for scan in scans)

    assert scored(ValidationConfig(), 0) == "bcdef"
    drawn = [scored(ValidationConfig(participants=2), seed) for seed in range(20)]
    assert {len(names) for names in drawn} == {2}
    assert set("".join(drawn)) == set("bcdef")
    assert scored(ValidationConfig(participants=2), 7) == drawn[7]


def test_another_split_has_another_fingerprint(config: StoreConfig) -> None:
    before = source_of(config).fingerprint
    store = Store(config.path).fingerprint
    Split(store=store, seed=0, train=("b",), validation=("a",)).write(config.split)
    assert source_of(config).fingerprint != before


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_drawn_and_real_slices_keep_their_shares(
    config: StoreConfig, maps: HeadMaps, share: float
) -> None:
    scheme = TISSUE4
    drawn = SyntheticSource(
        maps,
        View.AXIAL,
        load_scheme("quicknat33"),
        SynthesisConfig(),
        (SIZE, SIZE),
        3,
    )
    real = source_of(config, scheme=scheme)
    mixed = MixedSource(drawn, real, share)
    names = []
    for step in range(10):
        batch = mixed.draw(4 * step, 4, seeded("cpu", step))
        assert len(batch.images) == 4
        names.append(batch.what)
    real_count = sum(name.count("a:") for name in names)
    assert real_count == 40 - int(share * 40)


def test_heads_with_a_structure_of_one_side_only_are_not_mirrored() -> None:
    source = SyntheticSource(
        phantom_heads(2),
        View.AXIAL,
        load_scheme("left4"),
        SynthesisConfig(),
        (SIZE, SIZE),
        1,
    )
    # Structures of the left side would lie on the right of a mirrored head.
    assert source.config.mirrored == 0


def test_named_transforms_of_slices_that_were_read_ahead_change_no_bit(
    tmp_path: Path,
) -> None:
    store = small_store(tmp_path / "store", {"a": (16, 18, 20)})
    named = PLAIN.model_copy(
        update={"transforms": (RandomNoise(name="RandomNoise", share=0.5),)}
    )
    config = StoreConfig(path=store, split=all_train(store), augmentation=named)
    plain = StoreConfig(path=store, split=all_train(store), augmentation=PLAIN)
    view, batch = View.CORONAL, (5, 8)
    untouched = StoreSource(plain, view, (14, 16), 3, 0, TISSUE4)
    here = StoreSource(config, view, (14, 16), 3, 0, TISSUE4)
    there = StoreSource(config, view, (14, 16), 3, 0, TISSUE4, 2)
    there.expect(*batch)
    images = [
        source.draw(*batch, seeded("cpu", 0)).images
        for source in (untouched, here, there)
    ]
    there.close()
    assert torch.equal(images[1], images[2])
    changed = (images[0] != images[1]).flatten(1).any(1)
    assert 0 < changed.sum() < len(changed)


def test_voxels_that_do_not_count_change_no_loss_and_no_gradient(
    tmp_path: Path,
) -> None:
    """Only rows 2 and 3 of slice 4 count."""
    labels = np.full((SIZE, SIZE, 6), 3, np.uint8)
    counted = np.zeros(labels.shape, bool)
    counted[:, 2:4, 4] = True
    labels[:, 2:4, 4] = 1
    store = partly_labelled(tmp_path / "store", labels, counted, TISSUE4)
    config = StoreConfig(path=store, split=all_train(store), augmentation=PLAIN)
    source = source_of(config)
    # Slices without counted voxels are not used.
    assert source.slices() == 1
    batch = source.draw(0, 2, seeded("cpu", 0, 0, 0))
    expected = torch.full((2, SIZE, SIZE), IGNORE, dtype=torch.uint8)
    expected[:, 2:4] = 1
    assert torch.equal(batch.labels, expected)

    loss = build_loss(LossConfig(balance=0), source.counts())
    logits = torch.randn(2, len(TISSUE4), SIZE, SIZE, requires_grad=True)
    value = loss(logits, batch.labels)
    value.backward()
    assert logits.grad is not None
    changed = logits.grad.abs().sum((0, 1, 3)) > 0
    assert changed.nonzero().flatten().tolist() == [2, 3]


def test_voxels_that_do_not_count_do_not_validate(tmp_path: Path) -> None:
    labels = np.full((SIZE, SIZE, 6), 3, np.uint8)
    counted = np.zeros(labels.shape, bool)
    counted[:, 2:4, 4] = True
    store = partly_labelled(tmp_path / "store", labels, counted, TISSUE4)
    split = tmp_path / "split.json"
    Split(store=Store(store).fingerprint, seed=0, train=(), validation=("a",)).write(
        split
    )
    config = StoreConfig(path=store, split=split)
    (scan,) = store_scans(config, View.AXIAL, ValidationConfig(), 0)
    assert scan.counted is not None
    assert scan.counted.sum((1, 2)).tolist() == [0, 0, 0, 0, 2 * SIZE, 0]
    assert (scan.labels == 3).all()
