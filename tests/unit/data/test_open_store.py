"""A store as datasets of torch, torchio and MONAI: its voxels, in their places."""

from __future__ import annotations

import json
import os
import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.refusals import refusal
from helpers.small_store import VIEWS, all_train, small_store, stored_subject
from torch.utils.data import DataLoader

import trinat
from trinat.segmentation.data import open_store as module
from trinat.segmentation.data.slices import quantise, scheme_table, write_subject
from trinat.segmentation.data.sources.base import Subject
from trinat.segmentation.data.store import (
    Store,
    StoreInfo,
    subject_path,
    write_participants,
)
from trinat.segmentation.errors import ConfigError, DatasetError, IntegrityError
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.labels.scheme import load_scheme

# Voxel (0, 0, 0) is 20 mm to the left, 30 mm behind and 40 mm below the origin.
AFFINE = np.array([[1.0, 0, 0, -20], [0, 1, 0, -30], [0, 0, 1, -40], [0, 0, 0, 1]])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Write subject a with value 4095 and class 3 in voxel (1, 2, 3) of (4, 5, 6).

    B has no labels.
    """
    scheme = load_scheme("tissue4")
    image = np.zeros((4, 5, 6), np.float32)
    labels = np.zeros((4, 5, 6), np.uint8)
    image[1, 2, 3] = 4095  # a step is 1: codes are values
    labels[1, 2, 3] = 3
    (tmp_path / "subjects").mkdir()
    stored = {}
    for name in ("a", "b"):
        write_subject(
            subject_path(tmp_path, name),
            image=quantise(image),
            labels=labels if name == "a" else None,
            affine=AFFINE,
            scheme=scheme,
            views=VIEWS,
            fingerprint=name,
        )
        stored[name] = stored_subject(tmp_path, name, has_labels=name == "a")
    write_participants(tmp_path, [Subject(name, name, None, None) for name in "ab"], {})
    StoreInfo(
        source="pairs", scheme=scheme_table(scheme), views=VIEWS, subjects=stored
    ).write(tmp_path)
    return tmp_path


def test_voxels_that_a_mask_leaves_out_are_255(root: Path) -> None:
    scheme = load_scheme("tissue4")
    counted = np.ones((4, 5, 6), bool)
    counted[0] = False
    write_subject(
        subject_path(root, "a"),
        image=quantise(np.zeros((4, 5, 6), np.float32)),
        labels=np.ones((4, 5, 6), np.uint8),
        counted=counted,
        affine=AFFINE,
        scheme=scheme,
        views=VIEWS,
        fingerprint="a",
    )
    subjects = {"a": stored_subject(root, "a")}
    Store(root).info.model_copy(update={"subjects": subjects}).write(root)
    store = trinat.open_store(root)
    expected = np.where(counted, 1, 255)
    np.testing.assert_array_equal(store.subjects()[0]["label"].data[0], expected)
    np.testing.assert_array_equal(store.monai()[0]["label"][0], expected)


def test_a_file_of_a_preparation_that_was_stopped_is_refused(root: Path) -> None:
    path = subject_path(root, "a")
    write_subject(
        path,
        image=quantise(np.zeros((4, 5, 6), np.float32)),
        labels=np.full((4, 5, 6), 2, np.uint8),
        affine=AFFINE,
        scheme=load_scheme("tissue4"),
        views=VIEWS,
        fingerprint="other settings",
    )
    store = trinat.open_store(root)
    for read in (store.subjects, store.monai, partial(store.slices, "axial")):
        with refusal(IntegrityError, path):
            read()


def test_a_file_with_another_time_is_hashed_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = subject_path(root, "a")
    os.utime(path, ns=(1, 1))
    hashed = []

    def counted(file: Path) -> str:
        hashed.append(file)
        return sha256_of(file)

    monkeypatch.setattr("trinat.segmentation.data.store.sha256_of", counted)
    for _ in range(2):
        Store(root).check(["a"])
    assert hashed == [path]
    # Content of the same size and of another time is read again.
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with refusal(IntegrityError, path):
        Store(root).check(["a"])


def test_slices_are_those_of_subjects_with_image_and_labels(root: Path) -> None:
    slices = trinat.open_store(root).slices("axial")
    assert slices.subjects == ("a",)
    # The fourth of six slices has a label; of the others every eighth is kept, so the first.
    assert slices.slice_of.tolist() == [0, 3]
    image, labels = slices[1]
    assert (image.shape, image.dtype) == ((1, 5, 4), torch.float32)
    assert (labels.shape, labels.dtype) == ((5, 4), torch.uint8)
    # Rows run along j, columns along i.
    assert image.nonzero().tolist() == [[0, 2, 1]]
    assert labels.nonzero().tolist() == [[2, 1]]
    assert (image.max(), labels.max()) == (4095, 3)


def test_neighbours_are_channels_on_each_side(root: Path) -> None:
    slices = trinat.open_store(root).slices(trinat.View.AXIAL, neighbours=1)
    image, _ = slices[0]
    assert image.shape == (3, 5, 4)
    middle, _ = slices[1]
    assert middle.nonzero().tolist() == [[1, 2, 1]]
    for wrong in (-1, 4):
        with pytest.raises(ConfigError, match=f"{wrong} neighbours: choose 1, 2 or 3"):
            trinat.open_store(root).slices("axial", neighbours=wrong)


def _doubled(
    image: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return image * 2, labels.long()


def test_a_transform_makes_the_item_also_in_batches(root: Path) -> None:
    slices = trinat.open_store(root).slices("coronal", transform=_doubled)
    images, labels = next(iter(DataLoader(slices, batch_size=len(slices))))
    assert images.max() == 8190
    assert labels.dtype == torch.int64


def test_torchio_gets_volumes_with_their_affine_when_they_are_used(root: Path) -> None:
    subjects = trinat.open_store(str(root)).subjects()
    assert len(subjects) == 1
    # As a reader process gets it: not read yet.
    subject = pickle.loads(pickle.dumps(subjects))[0]
    assert subject.name == "a"
    assert subject.image.data.shape == (1, 4, 5, 6)
    assert subject.image.data.nonzero().tolist() == [[0, 1, 2, 3]]
    assert subject.image.data.max() == 4095
    assert subject.label.data.nonzero().tolist() == [[0, 1, 2, 3]]
    assert subject.label.data.max() == 3
    for image in (subject.image, subject.label):
        np.testing.assert_array_equal(image.affine, AFFINE)


def test_monai_gets_tensors_with_their_affine(root: Path) -> None:
    (item,) = trinat.open_store(root).monai()
    assert set(item) == {"subject", "image", "label"}
    assert item["subject"] == "a"
    assert item["image"].nonzero().tolist() == [[0, 1, 2, 3]]
    assert (item["image"].max(), item["image"].dtype) == (4095, torch.float32)
    assert (item["label"].max(), item["label"].dtype) == (3, torch.uint8)
    for name in ("image", "label"):
        np.testing.assert_array_equal(item[name].affine, AFFINE)


def test_volumes_that_do_not_fit_in_memory_are_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 4 x 5 x 6 voxels of five bytes.
    monkeypatch.setattr(module, "free_memory", lambda: 600)
    assert len(trinat.open_store(root).monai()) == 1
    monkeypatch.setattr(module, "free_memory", lambda: 599)
    with refusal(DatasetError, root):
        trinat.open_store(root).monai()


def test_a_part_is_that_of_the_stores_split(tmp_path: Path) -> None:
    root = small_store(tmp_path / "store", {"a": (14, 16, 18), "b": (14, 16, 18)})
    store = trinat.open_store(root)
    with refusal(DatasetError, tmp_path / "store/split.json"):
        store.subjects("train")
    all_train(root)
    assert store.slices("axial", "train").subjects == ("a", "b")
    assert [subject.name for subject in store.subjects("train")] == ["a", "b"]
    assert [item["subject"] for item in store.monai("train")] == ["a", "b"]
    with refusal(DatasetError, tmp_path / "store/split.json"):
        store.monai("test")


def test_a_subject_of_a_part_without_labels_is_refused(root: Path) -> None:
    all_train(root)
    with refusal(DatasetError, root):
        trinat.open_store(root).subjects("train")


def test_sagittal_slices_without_sides_give_no_volumes(tmp_path: Path) -> None:
    root = small_store(tmp_path, {"a": (14, 16, 18)})
    info = json.loads((root / "store.json").read_text())
    info["views"] = ["sagittal"]
    info["scheme"] = scheme_table(load_scheme("quicknat33"))
    (root / "store.json").write_text(json.dumps(info))
    store = trinat.open_store(root)
    for volumes in (store.subjects, store.monai):
        with refusal(DatasetError, root):
            volumes()


def test_what_the_store_lacks_is_told(root: Path) -> None:
    with refusal(DatasetError, root):
        trinat.open_store(root).slices("sagittal")
    with pytest.raises(ConfigError, match=r"unknown view: .*'top'"):
        trinat.open_store(root).slices("top")
    with pytest.raises(DatasetError, match="not a slice store"):
        trinat.open_store(root / "subjects")


def test_an_unknown_part_is_refused_with_those_that_there_are(root: Path) -> None:
    with pytest.raises(DatasetError, match=r"no part 'valid'.*train, validation or"):
        trinat.open_store(root).slices("coronal", "valid")  # type: ignore[arg-type]


def test_an_opened_store_says_what_it_is(root: Path) -> None:
    store = trinat.open_store(root)
    assert repr(store) == f"OpenedStore('{root}': 2 subjects, coronal, axial)"
    assert store.scheme.name == "tissue4"
