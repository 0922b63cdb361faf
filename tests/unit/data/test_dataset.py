"""Slices for training: the right ones, in a stated order, the same from any worker."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.refusals import refusal
from helpers.small_store import stored_subject
from torch.utils.data import DataLoader

from trinat.segmentation.data.dataset import SliceDataset, balanced_order
from trinat.segmentation.data.slices import quantise, scheme_table, write_subject
from trinat.segmentation.data.sources.base import Subject
from trinat.segmentation.data.splits import Split
from trinat.segmentation.data.store import (
    FORMAT,
    Store,
    StoreInfo,
    subject_path,
    write_participants,
)
from trinat.segmentation.errors import ConfigError, DatasetError
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.views import View

TISSUE4 = load_scheme("tissue4")
N = 20  # axial slices of each subject, 16 x 16


def volume(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return axial slices k of intensity k + 1 (in 40ths), with labels in slices 5 to 14 only."""
    image = np.zeros((16, 16, N), np.float32)
    image[:] = (np.arange(N) + 1) / 40
    image[0, 0, :] = 1.0 + number / 10
    image[0, 1, :] = -0.1 * number  # below background: codes of b do not begin at 0
    labels = np.zeros((16, 16, N), np.uint8)
    labels[4:8, 4:8, 5:15] = 3
    labels[10, 10, 7] = 1  # a class of one voxel in one slice
    labels[12:14, 12, 9:12] = 2
    return image, labels


def make_store(
    root: Path, names: tuple[str, ...] = ("a", "b"), **missing: str
) -> Store:
    """Write a store; `missing` names what a subject lacks: image or labels."""
    (root / "subjects").mkdir(parents=True)
    stored = {}
    for number, name in enumerate(names):
        image, labels = volume(number)
        write_subject(
            subject_path(root, name),
            image=None if missing.get(name) == "image" else quantise(image),
            labels=None if missing.get(name) == "labels" else labels,
            affine=np.eye(4),
            scheme=TISSUE4,
            views=(View.AXIAL, View.SAGITTAL),
            fingerprint=name,
        )
        stored[name] = stored_subject(
            root,
            name,
            fingerprint=name,
            has_image=missing.get(name) != "image",
            has_labels=missing.get(name) != "labels",
        )
    write_participants(root, [Subject(name, name, None, None) for name in names], {})
    views = (View.AXIAL, View.SAGITTAL)
    StoreInfo(
        source="pairs", scheme=scheme_table(TISSUE4), views=views, subjects=stored
    ).write(root)
    return Store(root)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store")


@pytest.fixture
def keep_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep all slices, so that items are slices by number."""
    monkeypatch.setattr("trinat.segmentation.data.dataset._KEEP_EVERY", 1)


def drawn(dataset: SliceDataset, share: float, epochs: int) -> Counter[int]:
    """Count how often each item is drawn in this many epochs."""
    counts: Counter[int] = Counter()
    for epoch in range(epochs):
        counts.update(balanced_order(dataset.class_counts, share, 0, epoch))
    return counts


@pytest.mark.usefixtures("keep_all")
def test_an_item_is_a_slice_and_its_labels(store: Store) -> None:
    dataset = SliceDataset(store, ["a"], View.AXIAL)
    image, labels = dataset[7]
    assert (image.shape, image.dtype) == ((1, 16, 16), torch.float32)
    assert (labels.shape, labels.dtype) == ((16, 16), torch.uint8)
    expected_image, expected_labels = volume(0)
    # Rows run along j, columns along i.
    np.testing.assert_allclose(image[0].numpy(), expected_image[:, :, 7].T, atol=3e-4)
    np.testing.assert_array_equal(labels.numpy(), expected_labels[:, :, 7].T)


@pytest.mark.usefixtures("keep_all")
def test_thick_slices_have_their_neighbours_and_background_beyond_the_ends(
    store: Store,
) -> None:
    dataset = SliceDataset(store, ["a"], View.AXIAL, thick=5)

    def levels(index: int) -> list[float]:
        return [round(float(channel[3, 3]) * 40, 2) for channel in dataset[index][0]]

    assert levels(9) == pytest.approx([8, 9, 10, 11, 12], abs=0.02)
    assert levels(0) == pytest.approx([0, 0, 1, 2, 3], abs=0.02)
    assert levels(N - 1) == pytest.approx([18, 19, 20, 0, 0], abs=0.02)
    _, labels = dataset[7]
    assert labels[10, 10] == 1, "labels are those of the middle slice"


@pytest.mark.parametrize("thick", [0, 2, 9])
def test_slices_without_a_middle_or_too_thick_are_refused(
    store: Store, thick: int
) -> None:
    with pytest.raises(ConfigError, match="thick"):
        SliceDataset(store, ["a"], View.AXIAL, thick=thick)


def test_every_eighth_empty_slice_is_kept(store: Store) -> None:
    # The empty ones are 0-4 and 15-19: the first and the eighth after it.
    expected = [0, *range(5, 15), 18]
    dataset = SliceDataset(store, ["a", "b"], View.AXIAL)
    assert dataset.slice_of[dataset.subject_of == 0].tolist() == expected
    assert dataset.slice_of[dataset.subject_of == 1].tolist() == expected
    assert len(dataset) == 2 * len(expected)


def test_voxels_per_class_are_those_of_the_items(store: Store) -> None:
    dataset = SliceDataset(store, ["a", "b"], View.AXIAL)
    # Twelve slices of 256 voxels; in ten 16 of class 3, in one 1 of class 1, in three 2 of class 2.
    assert dataset.class_counts.sum(axis=0).tolist() == [
        2 * (3072 - 160 - 1 - 6),
        2,
        12,
        320,
    ]


def test_sagittal_slices_have_the_merged_scheme(store: Store) -> None:
    assert SliceDataset(store, ["a"], View.SAGITTAL).scheme.name == "tissue4-merged"
    assert SliceDataset(store, ["a"], View.AXIAL).scheme.name == "tissue4"


def test_a_view_that_the_store_lacks_is_refused(store: Store) -> None:
    with pytest.raises(DatasetError, match="holds no coronal slices"):
        SliceDataset(store, ["a"], View.CORONAL)


@pytest.mark.parametrize("lacking", ["image", "labels"])
def test_subjects_that_cannot_train_are_refused(tmp_path: Path, lacking: str) -> None:
    store = make_store(tmp_path / "s", a=lacking)
    with pytest.raises(DatasetError, match=f"subject a has no {lacking}"):
        SliceDataset(store, ["a"], View.AXIAL)
    with refusal(DatasetError, tmp_path / "s"):
        SliceDataset(store, ["x"], View.AXIAL)
    with refusal(DatasetError, tmp_path / "s"):
        SliceDataset(store, [], View.AXIAL)


@pytest.mark.usefixtures("keep_all")
def test_more_subjects_than_files_may_be_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import trinat.segmentation.data.dataset as module

    monkeypatch.setattr(module, "_OPEN_FILES", 2)
    names = ("a", "b", "c", "d")
    store = make_store(tmp_path / "s", names)
    dataset = SliceDataset(store, names, View.AXIAL)
    for index in (0, 25, 45, 65, 5, 26):
        image, _ = dataset[index]
        subject, number = divmod(index, N)
        assert float(image[0, 3, 3]) == pytest.approx((number + 1) / 40, abs=3e-4)
        assert float(image[0, 0, 0]) == pytest.approx(1 + subject / 10, abs=3e-4)
    assert sum(file._file is not None for file in dataset.files._files) == 2


# Order --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("keep_all")
def test_without_balance_every_item_comes_once(store: Store) -> None:
    counts = SliceDataset(store, ["a", "b"], View.AXIAL).class_counts
    first = balanced_order(counts, 0, seed=0, epoch=0)
    assert sorted(first) == list(range(40))
    assert balanced_order(counts, 0, seed=0, epoch=0) == first
    second = balanced_order(counts, 0, seed=0, epoch=1)
    assert second != first
    assert sorted(second) == list(range(40))
    assert balanced_order(counts, 0, seed=1, epoch=0) != first


@pytest.mark.usefixtures("keep_all")
def test_balance_meets_rare_classes_as_often_as_common_ones(store: Store) -> None:
    dataset = SliceDataset(store, ["a"], View.AXIAL)
    found = drawn(dataset, 1.0, epochs=150)
    # A third each: class 1 in slice 7, class 2 in slices 9-11, class 3 in slices 5-14.
    assert found[7] == pytest.approx(1000 + 100, abs=120)
    assert found[9] == pytest.approx(333 + 100, abs=80)
    assert found[5] == pytest.approx(100, abs=50)
    assert not set(found) - set(range(5, 15))


@pytest.mark.usefixtures("keep_all")
def test_the_share_of_balanced_items_is_met(store: Store) -> None:
    dataset = SliceDataset(store, ["a"], View.AXIAL)
    found = drawn(dataset, 0.5, epochs=200)
    empty = sum(found[n] for n in (*range(5), *range(15, 20)))
    assert empty == pytest.approx(1000, abs=120)
    assert found.total() == 4000


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_items_whoever_reads_them(store: Store, workers: int) -> None:
    dataset = SliceDataset(store, ["a", "b"], View.AXIAL, thick=3)
    dataset[0]  # opened here first: workers must not use this process's handle
    order = balanced_order(dataset.class_counts, 0.5, seed=3, epoch=2)
    loader = DataLoader(dataset, 4, sampler=order, num_workers=workers)
    for first, (images, labels) in zip(range(0, len(order), 4), loader, strict=True):
        items = [dataset[index] for index in order[first : first + 4]]
        assert torch.equal(images, torch.stack([image for image, _ in items]))
        assert torch.equal(labels, torch.stack([one for _, one in items]))


# With a split -------------------------------------------------------------------------------


def test_an_empty_part_of_a_split_is_refused(store: Store, tmp_path: Path) -> None:
    split = Split(store=store.fingerprint, seed=0, train=("a",), test=("b",))
    split.write(tmp_path / "split.json")
    assert store.part("test", tmp_path / "split.json") == ("b",)
    with refusal(DatasetError, tmp_path / "split.json"):
        store.part("validation", tmp_path / "split.json")


def test_a_family_filled_in_later_is_respected(store: Store, tmp_path: Path) -> None:
    Split(store=store.fingerprint, seed=0, train=("a",), test=("b",)).write(
        tmp_path / "s.json"
    )
    table = store.root / "participants.tsv"
    header, *rows = table.read_text().splitlines()
    rows = [row.replace("n/a\tn/a\tn/a\tn/a", "n/a\ttwins\tn/a\tn/a") for row in rows]
    table.write_text("\n".join([header, *rows]) + "\n")
    with refusal(DatasetError, tmp_path / "s.json"):
        Store(store.root).part("train", tmp_path / "s.json")


@pytest.mark.parametrize(
    ("text", "reason"),
    [(None, "no store.json"), ("{", "is damaged"), ("{}", "is damaged")],
)
def test_what_is_no_store_is_told(
    tmp_path: Path, text: str | None, reason: str
) -> None:
    if text is not None:
        (tmp_path / "store.json").write_text(text)
    with pytest.raises(DatasetError, match=reason):
        Store(tmp_path)


def test_a_store_of_another_format_is_refused(store: Store) -> None:
    path = store.root / "store.json"
    path.write_text(path.read_text().replace(f'"format": {FORMAT}', '"format": 99'))
    with pytest.raises(DatasetError, match="of another version of trinat"):
        Store(store.root)


def test_a_store_cannot_name_files_elsewhere(store: Store) -> None:
    path = store.root / "store.json"
    path.write_text(path.read_text().replace('"a": {', '"../../a": {'))
    with pytest.raises(DatasetError, match="is damaged"):
        Store(store.root)


def test_a_table_that_lost_a_participant_is_refused(store: Store) -> None:
    table = store.root / "participants.tsv"
    table.write_text("\n".join(table.read_text().splitlines()[:-1]) + "\n")
    with refusal(DatasetError, table):
        store.metadata  # noqa: B018


def test_a_table_with_two_different_rows_of_a_subject_is_refused(store: Store) -> None:
    table = store.root / "participants.tsv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines, lines[-1]]) + "\n")
    assert store.metadata
    first, _, rest = lines[-1].split("\t", 2)
    other = f"{first}\tsomebody-else\t{rest}"
    table.write_text("\n".join([*lines, other]) + "\n")
    with refusal(DatasetError, table, remedy="delete"):
        Store(store.root).metadata  # noqa: B018


def test_the_scheme_is_read_as_it_was_stored(store: Store) -> None:
    assert store.scheme == TISSUE4
