"""Pictures of what a store holds: of one subject, to look at, and of all slices, with a table.

A subject is shown by default without the face, plain or augmented. Of exported slices every voxel
can be had again. Image: 16-bit grey. Labels: class indices, shown in the scheme's colours by a
palette. Row 0 of a picture is its top: superior in coronal and sagittal slices, anterior in axial
ones.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.pipelines.common.config import check, read_yaml
from trinat.pipelines.jobs.lock import claimed, refuse_others
from trinat.pipelines.prepare.options import ExportSettings
from trinat.pipelines.report.measurements import write_table
from trinat.segmentation.data.augmentation import AugmentationConfig, Augmenter
from trinat.segmentation.data.dataset import SliceDataset
from trinat.segmentation.data.open_store import stored_image, stored_labels, whole_view
from trinat.segmentation.data.slices import Quantised, SubjectFile
from trinat.segmentation.data.splits import PARTS
from trinat.segmentation.data.store import SPLIT, Store
from trinat.segmentation.errors import DatasetError, InputError, reason_of
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.rendering import pictures
from trinat.segmentation.rendering.pictures import draw_rows, encoded, label_colors
from trinat.segmentation.space.views import View, chosen_views, to_slices

Picture = NDArray[np.float32]

# Augmented slices beside one another.
_ACROSS = 6
_OPACITY = 0.3

# Files written by an export.
SLICES = "slices.csv"
CLASSES = "classes.csv"
IMAGES = "images"
LABELS = "labels"

_OUTPUTS = (SLICES, CLASSES, IMAGES, LABELS)
_COLUMNS = (
    "subject",
    "person",
    "part",
    "view",
    "slice",
    "image",
    "labels",
    "image_scale",
    "image_zero",
)
# Threads that write pictures.
_WRITERS = 8
# A row of slices.csv, by column.
Row = dict[str, Any]


def show_subject(
    root: Path,
    subject: str,
    path: Path,
    *,
    whole_head: bool = False,
) -> None:
    """Image, labels and overlay in three views; by default only the brain's part of the head.

    Of a whole head two slices of each view are shown. DatasetError where that part is not known,
    since the subject has no labels.
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
    """`count` augmented slices of each view, labels laid over, cropped to the brain.

    `config` is a YAML file of augmentation settings. The same seed gives the same picture.
    DatasetError for a subject without a labelled voxel.
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
    """`count` slices with much brain in them, from one end to the other.

    Images (N, C, H, W) and classes (N, H, W).
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
    return images, labels


def read_augmentation(path: Path | None) -> AugmentationConfig:
    """Settings of a YAML file; without one, the defaults."""
    if path is None:
        return AugmentationConfig()
    return check(AugmentationConfig, read_yaml(path), path)


@dataclass(frozen=True)
class Exported:
    """Outcome of one subject: its rows of the table, or the reason of a failure."""

    subject: str
    rows: tuple[Row, ...] = ()
    failure: str = ""


def export_slices(
    settings: ExportSettings,
    finished: Callable[[Exported, int, int], None] = lambda one, done, total: None,
) -> list[Exported]:
    """Write the pictures and the tables; what an earlier export left goes.

    A subject whose file cannot be read is in no table, and its outcome says why. `finished` gets
    each outcome, how many there are so far, and of how many. Raises DatasetError where the store
    lacks what was asked for, and OutputError where the folder holds anything else.
    """
    asked = chosen_views(settings.views or None)
    store = Store(settings.store)
    there = store.subjects
    where = "the store"
    if settings.part is not None:
        there = store.part(settings.part, settings.split)
        where = f"the part {settings.part!r}"
    for name in settings.subjects:
        if name not in there:
            raise DatasetError(f"has no subject {name!r} in {where}", where=store.root)
    subjects = tuple(dict.fromkeys(settings.subjects)) or there
    for view in asked or ():
        if view not in store.views:
            raise DatasetError(f"holds no {view.value} slices", where=store.root)
    views = tuple(dict.fromkeys(asked or store.views))
    parts: dict[str, str] = {}  # empty without a split
    if settings.split is not None or (store.root / SPLIT).is_file():
        assignment = store.split(settings.split)
        for part in PARTS:
            parts.update(dict.fromkeys(assignment.part(part), part))
    facts: dict[str, Row] = {}
    for one in store.participants:
        part_of_one = parts.get(one.subject, "")
        facts[one.subject] = {
            "subject": one.subject,
            "person": one.person,
            "part": part_of_one,
        }
    out = settings.out
    refuse_others(out, _OUTPUTS)
    folders = [f"{kind}/{view.value}" for kind in (IMAGES, LABELS) for view in View]
    with claimed(out, _OUTPUTS, within=folders):
        # No table names pictures that are being replaced.
        (out / SLICES).unlink(missing_ok=True)
        outcomes: list[Exported] = []
        for subject in subjects:
            outcome = _export_subject(store, subject, views, facts[subject], settings)
            outcomes.append(outcome)
            finished(outcome, len(outcomes), len(subjects))
        rows = [row for outcome in outcomes for row in outcome.rows]
        # Pictures of an earlier export, or of a failed subject, are named by no row.
        named = {name for row in rows for name in (row["image"], row["labels"])}
        for folder in folders:
            for path in (out / folder).glob("*.png"):
                if f"{folder}/{path.name}" not in named:
                    path.unlink()
        write_table(out / CLASSES, _classes(store, views))
        write_table(out / SLICES, pd.DataFrame(rows, columns=_COLUMNS, dtype=object))
    return outcomes


def _export_subject(
    store: Store,
    subject: str,
    views: Sequence[View],
    facts: Row,
    settings: ExportSettings,
) -> Exported:
    """Write a subject's pictures; a damaged file is its failure, a full disk is everyone's."""
    rows: list[Row] = []
    file = store.file(subject)
    try:
        store.check([subject])
        for view in views:
            scheme = store.scheme.seen_in(view)
            place = {**facts, "view": view.value}
            exported = _export_view(file, view, scheme, settings)
            rows += [{**place, **row} for row in exported]
    except (InputError, DatasetError) as error:
        return Exported(subject, failure=reason_of(error))
    finally:
        file.close()
    return Exported(subject, tuple(rows))


def _export_view(
    file: SubjectFile,
    view: View,
    scheme: LabelScheme,
    settings: ExportSettings,
) -> list[Row]:
    """Write the pictures of a view; slice number, files and scale of each slice."""
    count = file.slice_count(view)
    image: Quantised | None = None
    labels: NDArray[np.uint8] | None = None
    if file.has(view, "image"):
        image = file.codes(view, 0, count).filling_16_bits()
    if file.has(view, "labels"):
        labels = file.labels(view, 0, count)

    def write(number: int) -> Row:
        name = f"{view.value}/{file.path.stem}_{number:03}.png"
        row: Row = dict.fromkeys(("image", "labels", "image_scale", "image_zero"), "")
        row["slice"] = number
        if image is not None:
            row["image"] = f"{IMAGES}/{name}"
            row["image_scale"] = image.scale
            row["image_zero"] = image.zero
            picture = encoded(_upright(image.codes[number]), "PNG", compress_level=1)
            _write(settings.out / row["image"], picture)
        if labels is not None:
            row["labels"] = f"{LABELS}/{name}"
            picture = _palette_png(_upright(labels[number]), scheme)
            _write(settings.out / row["labels"], picture)
        return row

    numbers: Sequence[int] = range(count)
    if settings.labelled:
        numbers = []
        if labels is not None:
            is_labelled = labels.any(axis=(1, 2))
            numbers = np.flatnonzero(is_labelled).tolist()
    # While one thread waits for the disk, others pack.
    with ThreadPoolExecutor(_WRITERS) as pool:
        return list(pool.map(write, numbers))


def _upright(pixels: NDArray[Any]) -> NDArray[Any]:
    """A slice (H, W), whose rows grow upwards or forwards, with its last row at the top."""
    return pixels[::-1]


def _palette_png(classes: NDArray[np.uint8], scheme: LabelScheme) -> bytes:
    """A picture whose pixels are the class indices (H, W), shown in the scheme's colours."""
    from PIL import Image

    colors: list[int] = []
    for label in scheme.labels:
        colors += label.color
    picture = Image.fromarray(np.ascontiguousarray(classes))
    picture.putpalette(colors)
    buffer = io.BytesIO()
    # A byte a pixel, also where a scheme has few classes: not every reader takes less.
    picture.save(buffer, "PNG", bits=8)
    return buffer.getvalue()


def _write(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all, in a folder that is made for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)


def _classes(store: Store, views: Iterable[View]) -> pd.DataFrame:
    """Return a table of the indices in the label pictures of each view, with their classes."""
    rows = [
        {
            "view": view.value,
            "index": label.index,
            "name": label.name,
            "freesurfer": label.fs_id,
            "color": label.hex_color,
        }
        for view in views
        for label in store.scheme.seen_in(view).labels
    ]
    return pd.DataFrame(rows)
