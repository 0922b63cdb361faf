"""What a store holds, as one HTML page: subjects, exclusions, volumes, intensities, outliers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trinat.pipelines.prepare.outliers import (
    FAR,
    FEWEST,
    Outlier,
    brightness,
    find_outliers,
    volumes_ml,
    with_image,
    with_labels,
)
from trinat.pipelines.prepare.report_figures import histogram_plot, volume_plot
from trinat.segmentation.data.statistics import Statistics
from trinat.segmentation.data.store import Store
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.report.page import Column, Columns, Table, render, table

_RULE = (
    f"Values farther than {FAR} robust standard deviations from the median, where there "
    f"are at least {FEWEST} subjects. A robust standard deviation is 1.4826 times the median "
    "absolute deviation, and at least 1 % of the median."
)


def write_report(root: Path, path: Path) -> None:
    """Write the page of the store at `root` to the file `path`."""
    store = Store(root)
    statistics = {subject: store.file(subject).statistics for subject in store.subjects}
    labelled = with_labels(statistics)
    imaged = with_image(statistics)
    outliers = find_outliers(store.scheme.names, statistics)
    left_out = [row for row in store.ledger if row.status != "done"]
    persons = len({participant.person for participant in store.participants})
    licences = {subject.licence for subject in store.info.subjects.values()}
    volumes = None
    if labelled:
        volumes = volume_plot(store.scheme.names, labelled, outliers)
    intensities = None
    if imaged:
        intensities = histogram_plot(imaged)
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
            ("Outliers", _subjects_among(outliers), "subjects to look at"),
        ],
        views=", ".join(view.value for view in store.views),
        licences=sorted(licence for licence in licences if licence),
        outliers=_outlier_table(outliers),
        volumes=volumes,
        volume_table=_volume_table(store, labelled),
        intensities=intensities,
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


def _subjects_among(outliers: Sequence[Outlier]) -> int:
    """How many subjects have an outlier."""
    return len({outlier.subject for outlier in outliers})


def _outlier_table(outliers: Sequence[Outlier]) -> Table:
    """A row for each outlier, in their order."""
    columns: Columns = [
        "Subject",
        "What",
        Column("Value", 3),
        Column("Median", 3),
        Column("Distance", 1, "in robust standard deviations"),
    ]
    caption = "Values far from those of the other subjects, farthest first"
    return table("outlier-table", caption, columns, outliers)


def _volume_table(store: Store, labelled: Mapping[str, Statistics]) -> Table:
    """The volumes of each structure over subjects; no rows where nobody has labels."""
    columns: Columns = [
        "Structure",
        Column("FreeSurfer", 0),
        Column("Median", 3),
        Column("Smallest", 3),
        Column("Largest", 3),
        Column("Absent", 0, "subjects without a voxel of it"),
    ]
    rows = []
    if labelled:
        for label in store.scheme.labels[1:]:
            volumes = volumes_ml(labelled, label.index)
            quantiles = np.percentile(volumes, (0, 50, 100))
            low, median, high = quantiles.tolist()
            absent = int((volumes == 0).sum())
            rows.append((label.name, label.fs_id, median, low, high, absent))
    caption = "Volumes in ml on the working grid"
    return table("volume-table", caption, columns, rows)


def _subject_table(
    store: Store, statistics: Mapping[str, Statistics], outliers: Sequence[Outlier]
) -> Table:
    """Who the subjects are, what each has, and how often each is an outlier."""
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
        labelled_ml = None
        if known.voxels:
            labelled_ml = sum(known.voxels[1:]) / 1000
        row = (
            name,
            participant.person,
            participant.family or "",
            participant.age,
            participant.sex or "",
            _content_of(store, name),
            labelled_ml,
            brightness(known),
            marked.count(name),
            "; ".join(store.file(name).notes),
        )
        rows.append(row)
    return table("subject-table", "Subjects", columns, rows)


def _content_of(store: Store, subject: str) -> str:
    """What a subject has, as "image and labels"."""
    entry = store.info.subjects[subject]
    parts = []
    if entry.has_image:
        parts.append("image")
    if entry.has_labels:
        parts.append("labels")
    return " and ".join(parts)
