"""HTML page on a store: subjects, exclusions, volumes of structures and outliers.

Outliers are values far from those of the other subjects: volumes of structures, and the brightness
of the labelled part. A label map that does not belong to its image, a missing side, or another
contrast shows in them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trinat.pipelines.report import drawing
from trinat.pipelines.report.drawing import MODEL_COLORS, Drawing, canvas
from trinat.pipelines.report.page import (
    Column,
    Columns,
    Table,
    render,
    short_name,
    table,
)
from trinat.segmentation.data.slices import Statistics
from trinat.segmentation.data.store import Store
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.metrics.statistics import robust_z

# Robust standard deviations from the median, and the least number of subjects.
_FAR = 3.5
_FEWEST = 5
# Relative spread below which a class counts as constant: 1 % of its median.
_LEAST_SPREAD = 0.01
_RULE = (
    f"Values farther than {_FAR} robust standard deviations from the median, where there "
    f"are at least {_FEWEST} subjects. A robust standard deviation is 1.4826 times the median "
    "absolute deviation, and at least 1 % of the median."
)
_WIDTH = 8.6  # inches


class Outlier(NamedTuple):
    """A value far from those of the other subjects; `distance` is in robust standard deviations.

    `what` names the measure; values are in its unit.
    """

    subject: str
    what: str
    value: float
    median: float
    distance: float


def write_report(root: Path, path: Path) -> None:
    """Write the page of the store at `root` to the file `path`."""
    store = Store(root)
    statistics = {subject: store.file(subject).statistics for subject in store.subjects}
    labelled = _with_labels(statistics)
    outliers = find_outliers(store.scheme.names, statistics)
    left_out = [row for row in store.ledger if row.status != "done"]
    persons = len({participant.person for participant in store.participants})
    licences = {subject.licence for subject in store.info.subjects.values()}
    volumes = None
    if labelled:
        volumes = _volume_plot(store.scheme.names, labelled, outliers)
    far_subjects = len({outlier.subject for outlier in outliers})
    outlier_columns: Columns = [
        "Subject",
        "What",
        Column("Value", 3),
        Column("Median", 3),
        Column("Distance", 1, "in robust standard deviations"),
    ]
    page = render(
        "data.html",
        title="Slice store",
        lead=f"{len(store.subjects)} subjects of {persons} persons; "
        f"source: {store.info.source}; label scheme: {store.scheme.name}.",
        cards=[
            ("Subjects", len(store.subjects), "in the store"),
            ("Persons", persons, "never divided by a split"),
            ("With labels", len(labelled), f"{len(store.scheme) - 1} structures"),
            ("Left out", len(left_out), "failed or skipped"),
            ("Outliers", far_subjects, "subjects to look at"),
        ],
        views=", ".join(view.value for view in store.views),
        licences=sorted(licence for licence in licences if licence),
        outliers=table(
            "outlier-table",
            "Values far from those of the other subjects, farthest first",
            outlier_columns,
            outliers,
        ),
        volumes=volumes,
        subjects=_subject_table(store, statistics, outliers),
        left_out=table(
            "left-out-table",
            "In the source, but not in the store",
            ["Subject", "Status", "Reason"],
            [(row.subject, row.status, row.reason) for row in left_out],
        ),
        rule=_RULE,
    )
    write_whole(path, page)


def find_outliers(
    names: Sequence[str], statistics: Mapping[str, Statistics]
) -> list[Outlier]:
    """Find class volumes and brightness far from the median of all subjects, worst first.

    `names` are those of all classes, background first; `statistics` are by subject.
    """
    labelled = _with_labels(statistics)
    found: list[Outlier] = []
    for index, name in enumerate(names[1:], start=1):
        volumes = _volumes_ml(labelled, index).tolist()
        of_subjects = dict(zip(labelled, volumes, strict=True))
        found += _far(_name_of_volume(name), of_subjects)
    levels: dict[str, float] = {}
    for subject, of_subject in statistics.items():
        level = _brightness(of_subject)
        if level is not None:
            levels[subject] = level
    found += _far("brightness", levels)
    return sorted(found, key=lambda outlier: -outlier.distance)


def _far(what: str, values: Mapping[str, float]) -> list[Outlier]:
    """Return the outliers among the subjects' values; none if there are too few to judge."""
    if len(values) < _FEWEST:
        return []
    found = np.array(list(values.values()))
    median = float(np.median(found))
    distances = np.abs(robust_z(found, least_spread=_LEAST_SPREAD)).tolist()
    outliers = []
    for (subject, value), distance in zip(values.items(), distances, strict=True):
        if distance > _FAR:
            outliers.append(Outlier(subject, what, value, median, distance))
    return outliers


def _with_labels(statistics: Mapping[str, Statistics]) -> dict[str, Statistics]:
    """Select the subjects that have a label map."""
    return {subject: known for subject, known in statistics.items() if known.voxels}


def _volumes_ml(labelled: Mapping[str, Statistics], index: int) -> NDArray[np.float64]:
    """Return the volumes (N,) of a class in millilitres, on a grid of 1 mm³ voxels."""
    voxels = [known.voxels[index] for known in labelled.values()]
    return np.array(voxels, np.float64) / 1000


def _name_of_volume(structure: str) -> str:
    """Name the outliers of a structure's volume."""
    return f"volume of {short_name(structure)} (ml)"


def _brightness(statistics: Statistics) -> float | None:
    """Return the mean intensity of the labelled part; None without labels or image.

    Without a label map it is the median of the head, including the noise around it.
    """
    if not statistics.histogram:
        return None
    if not statistics.voxels:
        return float(statistics.percentiles["p50"])
    voxels = np.array(statistics.voxels[1:], np.float64)
    if not voxels.any():
        return None
    means = np.array(statistics.class_means[1:])
    return float(voxels @ means / voxels.sum())


def _subject_table(
    store: Store, statistics: Mapping[str, Statistics], outliers: Sequence[Outlier]
) -> Table:
    """Make the table of subjects: person, content, and number of outliers."""
    hint = "mean of what is labelled, else the head's median, on the working scale"
    columns: Columns = [
        "Subject",
        "Person",
        "Family",
        Column("Age", 0),
        "Sex",
        "Has",
        Column("Labelled (ml)", 0),
        Column("Brightness", 3, hint),
        Column("Outliers", 0),
        "Notes",
    ]
    marked = [outlier.subject for outlier in outliers]
    rows: list[tuple[Any, ...]] = []
    for participant in store.participants:
        name = participant.subject
        known = statistics[name]
        entry = store.info.subjects[name]
        content = []
        if entry.has_image:
            content.append("image")
        if entry.has_labels:
            content.append("labels")
        labelled_ml = None
        if known.voxels:
            labelled_ml = sum(known.voxels[1:]) / 1000
        row = (
            name,
            participant.person,
            participant.family or "",
            participant.age,
            participant.sex or "",
            " and ".join(content),
            labelled_ml,
            _brightness(known),
            marked.count(name),
            "; ".join(store.file(name).notes),
        )
        rows.append(row)
    return table("subject-table", "Subjects", columns, rows)


def _volume_plot(
    names: Sequence[str],
    labelled: Mapping[str, Statistics],
    outliers: Collection[Outlier],
) -> Drawing:
    """Draw a box for each structure, relative to its median; outliers in red.

    Structures whose median is 0 have no box.
    """
    volumes = {}
    for index, name in enumerate(names[1:], start=1):
        of_structure = _volumes_ml(labelled, index)
        if np.median(of_structure) > 0:
            volumes[name] = of_structure
    far = {(outlier.subject, outlier.what) for outlier in outliers}
    colors = []
    marks = []
    for name, of_structure in volumes.items():
        for subject, volume in zip(labelled, of_structure, strict=True):
            color = MODEL_COLORS[0]
            if (subject, _name_of_volume(name)) in far:
                color = drawing.WARNING_COLOR
            colors.append(color)
            marks.append(f"{subject}: {volume:.3g} ml")
    shares = [100 * values / np.median(values) for values in volumes.values()]
    rows = list(enumerate(shares))
    with canvas(_WIDTH, 0.24 * len(volumes) + 0.9) as (figure, axis):
        drawing.draw_boxes(axis, rows, 0.8, MODEL_COLORS[0])
        if rows:
            drawing.draw_dots(axis, rows, 0.6, colors, "volumes")
        drawing.name_rows(axis, volumes)
        axis.set_xlabel("volume, % of the median")
    return Drawing(
        "volumes",
        figure,
        "Volumes of the structures over subjects",
        {"volumes": marks},
        caption="Boxes span the quartiles, whiskers reach the last value within 1.5 quartile "
        "ranges; every dot is a subject, outliers are red.",
    )
