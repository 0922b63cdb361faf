"""What a store holds, to look at: an HTML page of all of it, and pictures of a subject."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from trinat.pipelines.common.config import check, read_yaml
from trinat.segmentation.data.augmentation import AugmentationConfig, Augmenter
from trinat.segmentation.data.dataset import SliceDataset
from trinat.segmentation.data.statistics import Statistics
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import DatasetError
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.metrics.statistics import robust_z
from trinat.segmentation.report import drawing, pictures
from trinat.segmentation.report.drawing import MODEL_COLORS, Drawing, canvas
from trinat.segmentation.report.page import (
    Column,
    Columns,
    Table,
    render,
    short_name,
    table,
)
from trinat.segmentation.report.pictures import draw_rows, encoded, label_colors
from trinat.segmentation.report.svg import INK
from trinat.segmentation.space.views import View, from_slices, to_slices

Picture = NDArray[np.float32]

# Robust standard deviations from the median, and the least number of subjects.
_FAR = 3.5
_FEWEST = 5
# Intensities below are air or its noise; tissue is brighter.
_NOISE = 0.1
# Augmented slices beside one another.
_ACROSS = 6
# Relative spread below which a class counts as constant: 1 % of its median.
_LEAST_SPREAD = 0.01


class Outlier(NamedTuple):
    """A value far from those of the other subjects; `distance` is in robust standard deviations."""

    subject: str
    what: str
    value: float
    median: float
    distance: float


def write_report(root: Path, path: Path) -> None:
    store = Store(root)
    statistics = {subject: store.file(subject).statistics for subject in store.subjects}
    labelled = {subject: s for subject, s in statistics.items() if s.voxels}
    imaged = {subject: s for subject, s in statistics.items() if s.histogram}
    outliers = find_outliers(store.scheme.names, statistics)
    failed = [
        (r.subject, r.status, r.reason) for r in store.ledger if r.status != "done"
    ]
    people = {participant.person for participant in store.participants}
    subjects, strange = len(store.subjects), len({o.subject for o in outliers})
    distance = Column("Distance", 1, "in robust standard deviations")
    titles: Columns = ["Subject", "Status", "Reason"]
    page = render(
        "data.html",
        title="Slice store",
        lead=f"{subjects} subjects of {len(people)} persons; source: {store.info.source}; "
        f"label scheme: {store.scheme.name}.",
        cards=[
            ("Subjects", subjects, "in the store"),
            ("Persons", len(people), "never divided by a split"),
            ("With labels", len(labelled), f"{len(store.scheme) - 1} structures"),
            ("Left out", len(failed), "failed or skipped"),
            ("Outliers", strange, "subjects to look at"),
        ],
        views=", ".join(view.value for view in store.views),
        licences=sorted(
            {entry.licence for entry in store.info.subjects.values() if entry.licence}
        ),
        outliers=table(
            "outlier-table",
            "Values far from those of the other subjects, farthest first",
            ["Subject", "What", Column("Value", 3), Column("Median", 3), distance],
            outliers,
        ),
        volumes=_volume_plot(store.scheme.names, labelled, outliers)
        if labelled
        else None,
        volume_table=_volume_table(store, labelled),
        intensities=_histograms(imaged) if imaged else None,
        subjects=_subject_table(store, statistics, outliers),
        left_out=table(
            "left-out-table", "In the source, but not in the store", titles, failed
        ),
        rule=f"Values farther than {_FAR} robust standard deviations from the median, where there "
        f"are at least {_FEWEST} subjects. A robust standard deviation is 1.4826 times the median "
        "absolute deviation, and at least 1 % of the median.",
    )
    write_whole(path, page)


def find_outliers(
    names: Sequence[str], statistics: Mapping[str, Statistics]
) -> list[Outlier]:
    """Class volumes and brightness far from the median of all subjects, worst first."""
    found: list[Outlier] = []
    labelled = {subject: s for subject, s in statistics.items() if s.voxels}
    for index, name in enumerate(names[1:], start=1):
        volumes = dict(zip(labelled, _volumes(labelled, index).tolist(), strict=True))
        found += _far(_volume_of(name), volumes)
    levels = {subject: _brightness(s) for subject, s in statistics.items()}
    found += _far(
        "brightness", {k: level for k, level in levels.items() if level is not None}
    )
    return sorted(found, key=lambda outlier: -outlier.distance)


def _volume_of(name: str) -> str:
    return f"volume of {short_name(name)} (ml)"


def _brightness(statistics: Statistics) -> float | None:
    """Mean intensity of what is labelled, None where nothing is; without a label map the head's
    median, noise around it included."""
    if not statistics.histogram:
        return None
    if not statistics.voxels:
        return float(statistics.percentiles["p50"])
    voxels = np.array(statistics.voxels[1:], np.float64)
    if not voxels.any():
        return None
    return float(voxels @ np.array(statistics.class_means[1:]) / voxels.sum())


def _far(what: str, values: Mapping[str, float]) -> list[Outlier]:
    if len(values) < _FEWEST:
        return []
    found = np.array(list(values.values()))
    distances = np.abs(robust_z(found, least_spread=_LEAST_SPREAD)).tolist()
    return [
        Outlier(subject, what, value, float(np.median(found)), distance)
        for (subject, value), distance in zip(values.items(), distances, strict=True)
        if distance > _FAR
    ]


def _volume_table(store: Store, labelled: Mapping[str, Statistics]) -> Table:
    rows = []
    for label in store.scheme.labels[1:] if labelled else ():
        volumes = _volumes(labelled, label.index)
        low, median, high = np.percentile(volumes, (0, 50, 100)).tolist()
        rows.append(
            (label.name, label.fs_id, median, low, high, int((volumes == 0).sum()))
        )
    titles = {"FreeSurfer": 0, "Median": 3, "Smallest": 3, "Largest": 3}
    columns: Columns = [
        "Structure",
        *(Column(title, digits) for title, digits in titles.items()),
    ]
    columns.append(Column("Absent", 0, "subjects without a voxel of it"))
    return table("volume-table", "Volumes in ml on the working grid", columns, rows)


def _subject_table(
    store: Store, statistics: Mapping[str, Statistics], outliers: Sequence[Outlier]
) -> Table:
    marked = [outlier.subject for outlier in outliers]
    rows = []
    for person in store.participants:
        entry, s = store.info.subjects[person.subject], statistics[person.subject]
        has = [name for name in ("image", "labels") if getattr(entry, f"has_{name}")]
        who = (
            person.subject,
            person.person,
            person.family or "",
            person.age,
            person.sex or "",
        )
        labelled_ml = sum(s.voxels[1:]) / 1000 if s.voxels else None
        measured = (labelled_ml, _brightness(s), marked.count(person.subject))
        notes = "; ".join(store.file(person.subject).notes)
        rows.append((*who, " and ".join(has), *measured, notes))
    hint = "mean of what is labelled, else the head's median, on the working scale"
    columns: Columns = [
        *("Subject", "Person", "Family", Column("Age", 0), "Sex", "Has"),
        *(
            Column("Labelled (ml)", 0),
            Column("Brightness", 3, hint),
            Column("Outliers", 0),
        ),
        "Notes",
    ]
    return table("subject-table", "Subjects", columns, rows)


def _volume_plot(
    names: Sequence[str],
    labelled: Mapping[str, Statistics],
    outliers: Sequence[Outlier],
) -> Drawing:
    """A box a structure, relative to its median so that all share an axis; outliers in red."""
    volumes = {name: _volumes(labelled, n) for n, name in enumerate(names) if n}
    volumes = {
        name: values for name, values in volumes.items() if np.median(values) > 0
    }
    far = {(o.subject, o.what) for o in outliers}
    dots = [
        (subject, name, n) for name in volumes for n, subject in enumerate(labelled)
    ]
    blue = MODEL_COLORS[0]
    with canvas(8.6, 0.24 * len(volumes) + 0.9) as (figure, axis):
        shares = [100 * values / np.median(values) for values in volumes.values()]
        drawing.draw_boxes(axis, list(enumerate(shares)), 0.8, blue)
        colors = [
            drawing.WARNING_COLOR if (s, _volume_of(name)) in far else blue
            for s, name, _ in dots
        ]
        if shares:
            drawing.draw_dots(axis, list(enumerate(shares)), 0.6, colors, "volumes")
        drawing.name_rows(axis, volumes)
        axis.set_xlabel("volume, % of the median")
    return Drawing(
        "volumes",
        figure,
        "Volumes of the structures over subjects",
        {
            "volumes": [
                f"{subject}: {volumes[name][n]:.3g} ml" for subject, name, n in dots
            ]
        },
        caption="Boxes span the quartiles, whiskers reach the last value within 1.5 quartile "
        "ranges; every dot is a subject, outliers are red.",
    )


def _volumes(labelled: Mapping[str, Statistics], index: int) -> NDArray[np.float64]:
    return np.array([s.voxels[index] for s in labelled.values()], np.float64) / 1000


def _histograms(imaged: Mapping[str, Statistics]) -> Drawing:
    """Intensities of every head, a line each, and the median of all."""
    counts = np.array([s.histogram for s in imaged.values()], np.float64)
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    middles = (np.arange(counts.shape[1]) + 0.5) * 1.5 / counts.shape[1]
    with canvas(8.6, 3.2) as (figure, axis):
        faint = max(0.08, 1 / len(shares) ** 0.5)
        axis.plot(middles, shares.T, color=MODEL_COLORS[0], lw=0.6, alpha=faint)
        axis.plot(middles, np.median(shares, axis=0), color=INK, lw=1.6)
        axis.set_xlabel("intensity on the working scale")
        axis.set_ylabel("% of the head's voxels")
        # Not by the first bins: where air is noisy they hold half of all voxels.
        tallest = float(np.percentile(shares[:, middles > _NOISE], 99.5))
        axis.set_ylim(0, tallest * 1.2 or 1)
        axis.grid(axis="y")
    label = "Histograms of intensity, one line per subject"
    caption = (
        "One line per subject; the dark line is their median. The last bin holds all higher "
        "intensities. Noise around the head may exceed the plot at the left."
    )
    return Drawing("intensities", figure, label, caption=caption)


# Pictures of a subject ------------------------------------------------------------------------


def show_subject(
    root: Path, subject: str, path: Path, *, whole_head: bool = False
) -> None:
    """Image, labels and overlay in three views; by default only the brain's part of the head."""
    store = Store(root)
    file = store.file(subject)
    entry = store.info.subjects[subject]
    if not (entry.has_labels or whole_head):
        what = f"subject {subject} has no labels to tell the brain from the face"
        raise DatasetError(
            what, where=root, remedy="add --whole-head to show the face too"
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
        rows: dict[str, list[Picture]] = {}
        for each in View:
            gray, truth = to_slices(image, each), to_slices(labels, each)
            shown = (len(gray) * 2 // 5, len(gray) * 3 // 5)
            parts = (pictures.three_pictures(gray[n], truth[n], colors) for n in shown)
            rows[each.value] = [picture for three in parts for picture in three]
        picture = encoded(draw_rows(rows, subject), "PNG")
    else:
        volumes = Volume(image, file.affine), Volume(labels, file.affine)
        picture = encoded(pictures.draw_mosaic(*volumes, scheme, title=subject), "PNG")
    write_whole(path, picture)


def show_augmented(
    root: Path,
    subject: str,
    path: Path,
    *,
    count: int,
    config: Path | None = None,
    seed: int = 0,
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
            torch.stack(part)
            for part in zip(*map(dataset.__getitem__, chosen), strict=True)
        )
        generator = torch.Generator().manual_seed(seed)
        images, labels = Augmenter(settings, view, dataset.scheme)(
            images, labels, generator
        )
        colors = label_colors(dataset.scheme)
        shown = []
        for image, truth in zip(images[:, 0].numpy(), labels.numpy(), strict=True):
            window = pictures.brain_window(truth[None])
            # Where nothing is labelled, all stays dark.
            shown.append(
                pictures.overlay(
                    image[window] * truth.any(), truth[window], colors, 0.3
                )
            )
        for start in range(0, count, _ACROSS):
            name = view.value if start == 0 else f"{view.value} {start + 1}"
            rows[name] = shown[start : start + _ACROSS]
    write_whole(
        path, encoded(draw_rows(rows, f"{subject}, augmented, seed {seed}"), "PNG")
    )


def read_augmentation(path: Path | None) -> AugmentationConfig:
    """Settings of a YAML file; without one, the defaults."""
    return (
        check(AugmentationConfig, read_yaml(path), path)
        if path
        else AugmentationConfig()
    )
