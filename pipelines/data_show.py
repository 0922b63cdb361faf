"""Pictures of a store: what a subject's slices hold, and what augmentation makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.config import check, read_yaml
from segmentation.data.augmentation import AugmentationConfig, Augmenter
from segmentation.data.dataset import EmptySlices, SliceDataset
from segmentation.data.store import Store
from segmentation.errors import DatasetError
from segmentation.files import atomic_write
from segmentation.report.mosaic import draw_mosaic, label_colors, overlay
from segmentation.views import View, from_slices, to_slices
from segmentation.volume import Volume

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["read_augmentation", "show_augmented", "show_subject"]

Picture = NDArray[np.float32]

_INK, _PAPER = "#d8d8d8", "#101010"
_ACROSS = 6
_DPI = 110


def show_subject(root: Path, subject: str, path: Path, *, whole_head: bool = False) -> None:
    """Image, labels and overlay in three views; by default only the brain's part of the head."""
    store = Store(root)
    file = store.file(subject)
    entry = store.info.subjects[subject]
    view = next((v for v in store.views if v is not View.SAGITTAL), View.SAGITTAL)
    count = file.slice_count(view)
    if not (entry.has_labels or whole_head):
        raise DatasetError(
            f"subject {subject} has no labels to tell the brain from the face",
            where=root,
            remedy="add --whole-head to show the face too",
        )
    if entry.has_labels:
        labels = from_slices(file.labels(view, 0, count), view)
    if entry.has_image:
        image = from_slices(file.image(view, 0, count), view)
    else:
        image = np.zeros(labels.shape, np.float32)
    if not entry.has_labels:
        labels = np.zeros(image.shape, np.uint8)
    scheme = store.scheme_of(view)
    if whole_head:
        colors = label_colors(scheme)
        rows = {v.value: _across(to_slices(image, v), to_slices(labels, v), colors) for v in View}
        _save(_grid(rows, subject), path)
        return
    affine = file.affine
    _save(draw_mosaic(Volume(image, affine), Volume(labels, affine), scheme, title=subject), path)


def show_augmented(
    root: Path, subject: str, path: Path, *, count: int, config: Path | None = None, seed: int = 0
) -> None:
    """`count` augmented slices of each view, labels laid over, cropped to the brain."""
    store = Store(root)
    settings = read_augmentation(config)
    rows: dict[str, list[Picture]] = {}
    for view in store.views:
        # Slices with much brain in them, from one end to the other.
        dataset = SliceDataset(store, [subject], view, empty=EmptySlices(keep_every=0))
        foreground = dataset.class_counts[:, 1:].sum(axis=1)
        useful = np.flatnonzero(foreground > foreground.max() / 4)
        chosen = useful[np.linspace(0, len(useful) - 1, count).round().astype(int)]
        images, labels = (
            torch.stack(part) for part in zip(*map(dataset.__getitem__, chosen), strict=True)
        )
        generator = torch.Generator().manual_seed(seed)
        images, labels = Augmenter(settings, view, dataset.scheme)(images, labels, generator)
        colors = label_colors(dataset.scheme)
        pictures = [
            overlay(
                _cropped(image[0].numpy(), truth.numpy()),
                _cropped(truth.numpy(), truth.numpy()),
                colors,
                0.3,
            )
            for image, truth in zip(images, labels, strict=True)
        ]
        for start in range(0, count, _ACROSS):
            name = view.value if start == 0 else f"{view.value} {start + 1}"
            rows[name] = pictures[start : start + _ACROSS]
    _save(_grid(rows, f"{subject}, augmented, seed {seed}"), path)


def read_augmentation(path: Path | None) -> AugmentationConfig:
    """Settings of a YAML file; without one, the defaults."""
    if path is None:
        return AugmentationConfig()
    return check(AugmentationConfig, read_yaml(path), path)


def _across(image: NDArray[Any], labels: NDArray[Any], colors: Picture) -> list[Picture]:
    """Two slices, each as image, labels and overlay."""
    blank = np.zeros(image.shape[1:], np.float32)
    pictures = []
    for position in (len(image) * 2 // 5, len(image) * 3 // 5):
        grey, truth = image[position], labels[position]
        pictures += [
            overlay(grey, np.zeros_like(truth), colors),
            overlay(blank, truth, colors, opacity=1),
            overlay(grey, truth, colors),
        ]
    return pictures


def _cropped(slice_: NDArray[Any], truth: NDArray[Any], margin: int = 10) -> NDArray[Any]:
    """The part of a slice around what is labelled; all of it stays dark where nothing is."""
    rows, columns = np.flatnonzero(truth.any(1)), np.flatnonzero(truth.any(0))
    if not len(rows):
        return np.zeros_like(slice_)
    return slice_[
        max(rows[0] - margin, 0) : rows[-1] + margin + 1,
        max(columns[0] - margin, 0) : columns[-1] + margin + 1,
    ]


def _grid(rows: Mapping[str, Sequence[Picture]], title: str) -> Figure:
    """Pictures in named rows; a slice's row 0 is at the bottom."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(
        figsize=(_ACROSS * 1.6, len(rows) * 1.8), facecolor=_PAPER, layout="constrained"
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(rows), _ACROSS, squeeze=False)
    for line, (name, pictures) in zip(axes, rows.items(), strict=True):
        for axis in line:
            axis.set_axis_off()
        for axis, picture in zip(line, pictures, strict=False):
            axis.imshow(picture, origin="lower", interpolation="nearest")
        line[0].set_title(name, color=_INK, fontsize=8, loc="left")
    figure.suptitle(title, color=_INK, fontsize=11)
    return figure


def _save(figure: Figure, path: Path) -> None:
    with atomic_write(path) as file:
        # No date inside: the same picture has the same bytes.
        figure.savefig(file, format="png", dpi=_DPI, facecolor=_PAPER, metadata={"Software": None})
