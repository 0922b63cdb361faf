"""Pictures of a subject in a store, plain or augmented; by default without the face."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.pipelines.common.config import check, read_yaml
from trinat.segmentation.data.augmentation import AugmentationConfig, Augmenter
from trinat.segmentation.data.dataset import SliceDataset
from trinat.segmentation.data.open_store import stored_image, stored_labels, whole_view
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import DatasetError
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import IGNORE
from trinat.segmentation.rendering import pictures
from trinat.segmentation.rendering.pictures import draw_rows, encoded, label_colors
from trinat.segmentation.space.views import View, to_slices

Picture = NDArray[np.float32]

# Augmented slices beside one another.
_ACROSS = 6
_OPACITY = 0.3


def show_subject(
    root: Path,
    subject: str,
    path: Path,
    *,
    whole_head: bool = False,
) -> None:
    """Draw image, labels and overlay of a subject in three views, as a PNG file at `path`.

    `root` is the folder of the store. By default only the part with the brain is drawn, without the
    face. With `whole_head`, two slices of each view show the whole head. DatasetError if the
    subject has no labels to find the brain by, unless `whole_head` is given.
    """
    store = Store(root)
    file = store.file(subject)
    entry = store.info.subjects[subject]
    if not (entry.has_labels or whole_head):
        what = f"subject {subject} has no labels to tell the brain from the face"
        raise DatasetError(
            what, where=root, remedy="add --whole-head to show the face too"
        )
    view = whole_view(store)
    scheme = store.scheme.seen_in(view)
    image = None
    labels = None
    if entry.has_image:
        image = stored_image(file, view).data
    if entry.has_labels:
        labels = stored_labels(file, view).data
        labels = np.where(labels == IGNORE, 0, labels)
    # A missing image is shown in black.
    if image is None:
        assert labels is not None
        image = np.zeros(labels.shape, np.float32)
    if labels is None:
        labels = np.zeros(image.shape, np.uint8)
    if whole_head:
        colors = label_colors(scheme)
        rows: dict[str, list[Picture]] = {}
        for each in View:
            gray = to_slices(image, each)
            classes = to_slices(labels, each)
            shown: list[Picture] = []
            for number in (len(gray) * 2 // 5, len(gray) * 3 // 5):
                shown += pictures.three_pictures(gray[number], classes[number], colors)
            rows[each.value] = shown
        picture = draw_rows(rows, subject)
    else:
        picture = pictures.draw_mosaic(
            Volume(image, file.affine),
            Volume(labels, file.affine),
            scheme,
            title=subject,
        )
    write_whole(path, encoded(picture, "PNG"))


def show_augmented(
    root: Path,
    subject: str,
    path: Path,
    *,
    count: int,
    config: Path | None = None,
    seed: int = 0,
) -> None:
    """Draw augmented slices of a subject, as a PNG file at `path`.

    There are `count` slices of each view with their labels, cropped to the brain. `root` is the
    folder of the store, `config` a YAML file of augmentation settings. The same seed gives the same
    picture. DatasetError for a subject without a labelled voxel.
    """
    store = Store(root)
    settings = read_augmentation(config)
    rows: dict[str, list[Picture]] = {}
    for view in store.views:
        dataset = SliceDataset(store, [subject], view)
        images, labels = _slices_with_brain(dataset, subject, count, root)
        generator = torch.Generator().manual_seed(seed)
        augment = Augmenter(settings, view, dataset.scheme)
        images, labels = augment(images, labels, generator)
        colors = label_colors(dataset.scheme)
        shown = []
        for image, classes in zip(images[:, 0].numpy(), labels.numpy(), strict=True):
            window = pictures.brain_window(classes[None])
            gray = image[window] * classes.any()  # dark where nothing is labelled
            overlaid = pictures.overlay(gray, classes[window], colors, _OPACITY)
            shown.append(overlaid)
        for start in range(0, count, _ACROSS):
            name = view.value
            if start > 0:
                name = f"{view.value} {start + 1}"
            rows[name] = shown[start : start + _ACROSS]
    picture = draw_rows(rows, f"{subject}, augmented, seed {seed}")
    write_whole(path, encoded(picture, "PNG"))


def _slices_with_brain(
    dataset: SliceDataset,
    subject: str,
    count: int,
    root: Path,
) -> tuple[Tensor, Tensor]:
    """Return `count` slices with much brain, evenly from one end of the brain to the other.

    They are images (N, C, H, W) and classes (N, H, W), which are background where a mask leaves
    voxels out. Raises DatasetError, which names the store `root`, if the subject has no labelled
    voxel.
    """
    foreground = dataset.class_counts[:, 1:].sum(axis=1)
    useful = np.flatnonzero(foreground > foreground.max() / 4)
    if not len(useful):
        raise DatasetError(f"subject {subject} has no labelled voxel", where=root)
    evenly = np.linspace(0, len(useful) - 1, count)
    places = evenly.round().astype(int)
    slices = [dataset[number] for number in useful[places]]
    images = torch.stack([image for image, _ in slices])
    labels = torch.stack([classes for _, classes in slices])
    return images, labels.where(labels != IGNORE, 0)


def read_augmentation(path: Path | None) -> AugmentationConfig:
    """Read augmentation settings from a YAML file; return the defaults if `path` is None."""
    if path is None:
        return AugmentationConfig()
    return check(AugmentationConfig, read_yaml(path), path)
