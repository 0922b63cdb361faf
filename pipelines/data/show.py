"""Pictures of a store: what a subject's slices hold, and what augmentation makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.common.config import check, read_yaml
from segmentation.data.augmentation import AugmentationConfig, Augmenter
from segmentation.data.dataset import SliceDataset
from segmentation.data.store import Store
from segmentation.errors import DatasetError
from segmentation.io.files import write_whole
from segmentation.io.volume import Volume
from segmentation.report.pictures import (
    brain_window,
    draw_mosaic,
    draw_rows,
    encoded,
    label_colors,
    overlay,
    three_pictures,
)
from segmentation.space.views import View, from_slices, to_slices

Picture = NDArray[np.float32]

_ACROSS = 6


def show_subject(root: Path, subject: str, path: Path, *, whole_head: bool = False) -> None:
    """Image, labels and overlay in three views; by default only the brain's part of the head."""
    store = Store(root)
    file = store.file(subject)
    entry = store.info.subjects[subject]
    if not (entry.has_labels or whole_head):
        raise DatasetError(
            f"subject {subject} has no labels to tell the brain from the face",
            where=root,
            remedy="add --whole-head to show the face too",
        )
    view = next((v for v in store.views if v is not View.SAGITTAL), View.SAGITTAL)
    count, scheme = file.slice_count(view), store.scheme.seen_in(view)
    if entry.has_labels:
        labels = from_slices(file.labels(view, 0, count), view)
    if entry.has_image:
        image = from_slices(file.image(view, 0, count), view)
    else:
        image = np.zeros(labels.shape, np.float32)
    if not entry.has_labels:
        labels = np.zeros(image.shape, np.uint8)
    if whole_head:
        colors = label_colors(scheme)
        rows = {v.value: _across(to_slices(image, v), to_slices(labels, v), colors) for v in View}
        picture = encoded(draw_rows(rows, subject), "PNG")
    else:
        volumes = Volume(image, file.affine), Volume(labels, file.affine)
        picture = encoded(draw_mosaic(*volumes, scheme, title=subject), "PNG")
    write_whole(path, picture)


def show_augmented(
    root: Path, subject: str, path: Path, *, count: int, config: Path | None = None, seed: int = 0
) -> None:
    """`count` augmented slices of each view, labels laid over, cropped to the brain."""
    store = Store(root)
    settings = read_augmentation(config)
    rows: dict[str, list[Picture]] = {}
    for view in store.views:
        # Slices with much brain in them, from one end to the other.
        dataset = SliceDataset(store, [subject], view)
        foreground = dataset.class_counts[:, 1:].sum(axis=1)
        useful = np.flatnonzero(foreground > foreground.max() / 4)
        if not len(useful):
            raise DatasetError(f"subject {subject} has no labelled voxel", where=root)
        chosen = useful[np.linspace(0, len(useful) - 1, count).round().astype(int)]
        images, labels = (
            torch.stack(part) for part in zip(*map(dataset.__getitem__, chosen), strict=True)
        )
        generator = torch.Generator().manual_seed(seed)
        images, labels = Augmenter(settings, view, dataset.scheme)(images, labels, generator)
        colors = label_colors(dataset.scheme)
        pictures = []
        for image, truth in zip(images[:, 0].numpy(), labels.numpy(), strict=True):
            window = brain_window(truth[None])
            # Where nothing is labelled, all stays dark.
            pictures.append(overlay(image[window] * truth.any(), truth[window], colors, 0.3))
        for start in range(0, count, _ACROSS):
            name = view.value if start == 0 else f"{view.value} {start + 1}"
            rows[name] = pictures[start : start + _ACROSS]
    write_whole(path, encoded(draw_rows(rows, f"{subject}, augmented, seed {seed}"), "PNG"))


def read_augmentation(path: Path | None) -> AugmentationConfig:
    """Settings of a YAML file; without one, the defaults."""
    if path is None:
        return AugmentationConfig()
    return check(AugmentationConfig, read_yaml(path), path)


def _across(image: NDArray[Any], labels: NDArray[Any], colors: Picture) -> list[Picture]:
    """Two slices, each as image, labels and overlay."""
    positions = (len(image) * 2 // 5, len(image) * 3 // 5)
    return [p for n in positions for p in three_pictures(image[n], labels[n], colors)]
