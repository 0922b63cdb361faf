"""A slice store that is small enough to train on in a second."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trinat.segmentation.data.slices import quantise, scheme_table, write_subject
from trinat.segmentation.data.sources.base import Subject
from trinat.segmentation.data.splits import Split
from trinat.segmentation.data.store import (
    FileStamp,
    Store,
    StoredSubject,
    StoreInfo,
    subject_path,
    write_participants,
)
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.space.views import View

TISSUE4 = load_scheme("tissue4")
VIEWS = (View.CORONAL, View.AXIAL)


def small_store(root: Path, shapes: Mapping[str, tuple[int, int, int]]) -> Path:
    """Write a store of noisy nested boxes: subjects of these shapes, coronal and axial."""
    (root / "subjects").mkdir(parents=True)
    for seed, (name, shape) in enumerate(shapes.items()):
        labels = np.zeros(shape, np.uint8)
        labels[2:-2, 2:-2, 2:-2] = 2
        labels[4:-4, 4:-4, 4:-4] = 3
        labels[6:-6, 6:-6, 6:-6] = 1
        noise = np.random.default_rng(seed).normal(0, 0.05, shape)
        write_subject(
            subject_path(root, name),
            image=quantise((labels / 4 + noise).astype(np.float32)),
            labels=labels,
            affine=np.eye(4),
            scheme=TISSUE4,
            views=VIEWS,
            fingerprint=name,
        )
    stored = {name: stored_subject(root, name, fingerprint=name) for name in shapes}
    write_participants(root, [Subject(name, name, None, None) for name in shapes], {})
    StoreInfo(
        source="pairs", scheme=scheme_table(TISSUE4), views=VIEWS, subjects=stored
    ).write(root)
    return root


def stored_subject(root: Path, name: str, **changes: Any) -> StoredSubject:
    """Return the store's record of a subject whose file exists."""
    usual = {"fingerprint": "f", "has_image": True, "has_labels": True}
    return StoredSubject(
        file=FileStamp.of(subject_path(root, name)), **(usual | changes)
    )


def all_train(store: Path) -> Path:
    """Split a store with all subjects in training."""
    opened = Store(store)
    split = Split(store=opened.fingerprint, seed=0, train=opened.subjects)
    split.write(store / "split.json")
    return store / "split.json"


def damage(path: Path, view: View, name: str, number: int) -> None:
    """Overwrite the middle of one slice's packed bytes; as on a bad disk, the time stays."""
    import h5py

    before = path.stat()
    with h5py.File(path, "r") as file:
        chunk = file[f"{view.value}/{name}"].id.get_chunk_info(number)
    with path.open("r+b") as raw:
        raw.seek(chunk.byte_offset)
        raw.write(b"\xff" * chunk.size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def partly_labelled(
    root: Path, labels: np.ndarray, counted: np.ndarray, scheme: LabelScheme
) -> Path:
    """Write a store of one subject, "a", whose labels count in some places only."""
    (root / "subjects").mkdir(parents=True)
    write_subject(
        subject_path(root, "a"),
        image=quantise(np.ones(labels.shape, np.float32)),
        labels=labels,
        counted=counted,
        affine=np.eye(4),
        scheme=scheme,
        views=(View.AXIAL,),
        fingerprint="a",
    )
    write_participants(root, [Subject("a", "a", None, None)], {})
    StoreInfo(
        source="pairs",
        scheme=scheme_table(scheme),
        views=(View.AXIAL,),
        subjects={"a": stored_subject(root, "a", fingerprint="a")},
    ).write(root)
    return root
