"""The HTML page of a store: its subjects, what was left out, volumes, intensities, outliers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from segmentation.data.slices import Statistics
from segmentation.data.store import Store
from segmentation.files import atomic_text
from segmentation.report.figures import Drawing, short_name
from segmentation.report.page import Cell, Column, Table, number, render
from segmentation.report.svg import GRID, INK

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Outlier", "find_outliers", "write_report"]

_BLUE, _RED = "#2f7fc1", "#d1502f"
# Robust standard deviations from the median, of at least so many subjects.
_FAR = 3.5
_FEWEST = 5
_MAD_TO_STD = 1.4826
# Intensities below are air or its noise; tissue is brighter.
_NOISE = 0.1
# Relative spread below which a class counts as constant: 1 % of its median.
_LEAST_SPREAD = 0.01


@dataclass(frozen=True)
class Outlier:
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
    failed = [row for row in store.ledger if row.status != "done"]
    people = {participant.person for participant in store.participants}
    page = render(
        "data.html",
        title="Slice store",
        lead=f"{len(store.subjects)} subjects of {len(people)} persons from {store.info.source}, "
        f"classes of {store.scheme.name}.",
        contents=[
            ("glance", "At a glance"),
            ("outliers", "Outliers"),
            ("volumes", "Volumes"),
            ("intensities", "Intensities"),
            ("subjects", "Subjects"),
            ("left-out", "Left out"),
        ],
        provenance={"trinat": version("trinat")},
        cards=[
            {"what": "Subjects", "value": str(len(store.subjects)), "more": "in the store"},
            {"what": "Persons", "value": str(len(people)), "more": "never divided by a split"},
            {
                "what": "With labels",
                "value": str(len(labelled)),
                "more": f"{len(store.scheme) - 1} structures",
            },
            {"what": "Left out", "value": str(len(failed)), "more": "failed or skipped"},
            {
                "what": "Outliers",
                "value": str(len({o.subject for o in outliers})),
                "more": "subjects to look at",
            },
        ],
        views=", ".join(view.value for view in store.views),
        licences=sorted({entry.licence for entry in store.info.subjects.values() if entry.licence}),
        outliers=_outlier_table(outliers),
        volumes=_volume_plot(store.scheme.names, labelled, outliers).inline() if labelled else "",
        volume_table=_volume_table(store, labelled),
        intensities=_histograms(imaged).inline() if imaged else "",
        subjects=_subject_table(store, statistics, outliers),
        left_out=Table(
            "left-out-table",
            "What the source named and the store does not hold",
            (Column("Subject"), Column("Status", pick=True), Column("Reason")),
            [[Cell(row.subject), Cell(row.status), Cell(row.reason)] for row in failed],
        ),
        rule=f"more than {_FAR} robust standard deviations (1.4826 times the median absolute "
        f"deviation, at least 1 % of the median) from the median of at least {_FEWEST} subjects",
    )
    with atomic_text(path) as file:
        file.write(page)


def find_outliers(names: Sequence[str], statistics: Mapping[str, Statistics]) -> list[Outlier]:
    """Class volumes and brightness that lie far from the median of all subjects, worst first."""
    found: list[Outlier] = []
    with_volumes = {subject: s for subject, s in statistics.items() if s.voxels}
    for index, name in enumerate(names):
        if index:
            volumes = {subject: s.voxels[index] / 1000 for subject, s in with_volumes.items()}
            found += _far(f"volume of {short_name(name)} (ml)", volumes)
    levels = {subject: _brightness(s) for subject, s in statistics.items()}
    found += _far("brightness", {k: level for k, level in levels.items() if level is not None})
    return sorted(found, key=lambda outlier: -outlier.distance)


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
    median = float(np.median(list(values.values())))
    deviation = float(np.median([abs(value - median) for value in values.values()]))
    spread = max(_MAD_TO_STD * deviation, _LEAST_SPREAD * abs(median))
    if spread == 0:
        return []
    return [
        Outlier(subject, what, value, median, abs(value - median) / spread)
        for subject, value in values.items()
        if abs(value - median) > _FAR * spread
    ]


def _outlier_table(outliers: Sequence[Outlier]) -> Table:
    return Table(
        "outlier-table",
        "Values far from those of the other subjects, farthest first",
        (
            Column("Subject"),
            Column("What"),
            Column("Value", numeric=True),
            Column("Median", numeric=True),
            Column("Distance", numeric=True, hint="in robust standard deviations"),
        ),
        [
            [
                Cell(o.subject),
                Cell(o.what),
                number(o.value),
                number(o.median),
                number(o.distance, 1),
            ]
            for o in outliers
        ],
    )


def _volume_table(store: Store, labelled: Mapping[str, Statistics]) -> Table:
    rows = []
    for index, label in enumerate(store.scheme.labels):
        volumes = [s.voxels[index] / 1000 for s in labelled.values()]
        if index and volumes:
            absent = sum(volume == 0 for volume in volumes)
            low, median, high = np.percentile(volumes, (0, 50, 100)).tolist()
            rows.append(
                [
                    Cell(label.name),
                    number(float(label.fs_id), 0),
                    number(median),
                    number(low),
                    number(high),
                    number(float(absent), 0),
                ]
            )
    return Table(
        "volume-table",
        "Volumes in ml on the working grid",
        (
            Column("Structure"),
            Column("FreeSurfer", numeric=True),
            Column("Median", numeric=True),
            Column("Smallest", numeric=True),
            Column("Largest", numeric=True),
            Column("Absent", numeric=True, hint="subjects without a voxel of it"),
        ),
        rows,
    )


def _subject_table(
    store: Store, statistics: Mapping[str, Statistics], outliers: Sequence[Outlier]
) -> Table:
    marked = [outlier.subject for outlier in outliers]
    rows = []
    for person in store.participants:
        entry, s = store.info.subjects[person.subject], statistics[person.subject]
        brain = sum(s.voxels[1:]) / 1000 if s.voxels else None
        notes = "; ".join(store.file(person.subject).notes)
        rows.append(
            [
                Cell(person.subject),
                Cell(person.person),
                Cell(person.family or ""),
                number(person.age, 0),
                Cell(person.sex or ""),
                Cell(
                    " and ".join(
                        w for w in ("image" * entry.has_image, "labels" * entry.has_labels) if w
                    )
                ),
                number(brain, 0),
                number(_brightness(s)),
                number(float(marked.count(person.subject)), 0),
                Cell(notes),
            ]
        )
    return Table(
        "subject-table",
        "Subjects",
        (
            Column("Subject"),
            Column("Person"),
            Column("Family"),
            Column("Age", numeric=True),
            Column("Sex"),
            Column("Has"),
            Column("Labelled (ml)", numeric=True),
            Column(
                "Brightness",
                numeric=True,
                hint="mean of what is labelled, else the head's median, on the working scale",
            ),
            Column("Outliers", numeric=True),
            Column("Notes"),
        ),
        rows,
    )


def _volume_plot(
    names: Sequence[str], labelled: Mapping[str, Statistics], outliers: Sequence[Outlier]
) -> Drawing:
    """A box a structure, relative to its median so that all share an axis; outliers in red."""
    marked = {(o.subject, o.what) for o in outliers}
    titles: dict[str, list[str]] = {}
    shown = [
        (name, values)
        for index, name in enumerate(names)
        if index and np.median(values := _volumes(labelled, index)) > 0
    ]
    with _canvas(8.6, 0.24 * len(shown) + 0.9) as (figure, axis):
        for row, (name, values) in enumerate(shown):
            relative = 100 * values / np.median(values)
            axis.boxplot(
                relative,
                positions=[row],
                orientation="horizontal",
                widths=0.6,
                showfliers=False,
                boxprops={"color": _BLUE, "lw": 0.9},
                whiskerprops={"color": _BLUE, "lw": 0.9},
                capprops={"lw": 0},
                medianprops={"color": _BLUE, "lw": 1.8},
            )
            what = f"volume of {short_name(name)} (ml)"
            colors = [_RED if (subject, what) in marked else _BLUE for subject in labelled]
            jitter = ((np.arange(len(relative)) * 0.618034 + 0.5) % 1 - 0.5) * 0.4
            gid = f"volumes-{row}"
            axis.scatter(relative, row + jitter, s=8, c=colors, lw=0, zorder=3, gid=gid)
            titles[gid] = [
                f"{subject}: {value:.3g} ml"
                for subject, value in zip(labelled, values, strict=True)
            ]
        axis.set_yticks(range(len(shown)), [short_name(name) for name, _ in shown])
        axis.set_ylim(len(shown) - 0.4, -0.6)
        axis.set_xlabel("volume, % of the median")
        axis.grid(axis="x")
        axis.set_axisbelow(True)
    return Drawing("volumes", figure, "Volumes of the structures over subjects", titles)


def _volumes(labelled: Mapping[str, Statistics], index: int) -> NDArray[np.float64]:
    return np.array([s.voxels[index] for s in labelled.values()], np.float64) / 1000


def _histograms(imaged: Mapping[str, Statistics]) -> Drawing:
    """Intensities of every head, a line each, and the median of all."""
    counts = np.array([s.histogram for s in imaged.values()], np.float64)
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    middles = (np.arange(counts.shape[1]) + 0.5) * 1.5 / counts.shape[1]
    with _canvas(8.6, 3.2) as (figure, axis):
        axis.plot(middles, shares.T, color=_BLUE, lw=0.6, alpha=max(0.08, 1 / len(shares) ** 0.5))
        axis.plot(middles, np.median(shares, axis=0), color=INK, lw=1.6)
        axis.set_xlabel(
            "intensity on the working scale; noise around the head may leave the picture at the "
            "left, the last bin holds all above"
        )
        axis.set_ylabel("% of the head's voxels")
        # Not by the first bins: where air is noisy they hold half of all voxels.
        tallest = float(np.percentile(shares[:, middles > _NOISE], 99.5))
        axis.set_ylim(0, tallest * 1.2 or 1)
        axis.grid(axis="y")
    return Drawing("intensities", figure, "Histograms of intensity, a line a subject")


@contextmanager
def _canvas(width: float, height: float) -> Iterator[Any]:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    inks = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style = dict.fromkeys(inks, INK) | {"grid.color": GRID, "font.size": 8.5}
    with mpl.rc_context(style | {"axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.subplots()
