"""Values of a store's subjects that are far from those of the others.

Those are the volumes of structures and the brightness of what is labelled: a label map that does
not belong to its image, a side that is missing, or another contrast shows in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.data.statistics import Statistics
from trinat.segmentation.metrics.statistics import robust_z
from trinat.segmentation.report.page import short_name

# Robust standard deviations from the median, and the least number of subjects.
FAR = 3.5
FEWEST = 5
# Relative spread below which a class counts as constant: 1 % of its median.
_LEAST_SPREAD = 0.01


class Outlier(NamedTuple):
    """A value far from those of the other subjects; `distance` is in robust standard deviations.

    `what` names the measure; values are in its unit.
    """

    subject: str
    what: str
    value: float
    median: float
    distance: float


def find_outliers(
    names: Sequence[str], statistics: Mapping[str, Statistics]
) -> list[Outlier]:
    """Class volumes and brightness far from the median of all subjects, worst first.

    `names` are those of all classes, background first; `statistics` are by subject.
    """
    labelled = with_labels(statistics)
    found: list[Outlier] = []
    for index, name in enumerate(names[1:], start=1):
        volumes = volumes_ml(labelled, index).tolist()
        of_subjects = dict(zip(labelled, volumes, strict=True))
        found += _far(name_of_volume(name), of_subjects)
    levels: dict[str, float] = {}
    for subject, of_subject in statistics.items():
        level = brightness(of_subject)
        if level is not None:
            levels[subject] = level
    found += _far("brightness", levels)
    return sorted(found, key=lambda outlier: -outlier.distance)


def with_labels(statistics: Mapping[str, Statistics]) -> dict[str, Statistics]:
    """Those of the subjects that have a label map."""
    return {subject: known for subject, known in statistics.items() if known.voxels}


def with_image(statistics: Mapping[str, Statistics]) -> dict[str, Statistics]:
    """Those of the subjects that have an image."""
    return {subject: known for subject, known in statistics.items() if known.histogram}


def volumes_ml(labelled: Mapping[str, Statistics], index: int) -> NDArray[np.float64]:
    """(N,) volumes of a class in millilitres, on a grid of 1 mm³ voxels."""
    voxels = [known.voxels[index] for known in labelled.values()]
    return np.array(voxels, np.float64) / 1000


def name_of_volume(structure: str) -> str:
    """What an outlier of a structure's volume is called."""
    return f"volume of {short_name(structure)} (ml)"


def brightness(statistics: Statistics) -> float | None:
    """Mean intensity of what is labelled; None where nothing is, or there is no image.

    Without a label map it is the head's median, noise around it included.
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


def _far(what: str, values: Mapping[str, float]) -> list[Outlier]:
    """The outliers among the subjects' values; none where there are too few to judge."""
    if len(values) < FEWEST:
        return []
    found = np.array(list(values.values()))
    median = float(np.median(found))
    distances = np.abs(robust_z(found, least_spread=_LEAST_SPREAD)).tolist()
    outliers = []
    for (subject, value), distance in zip(values.items(), distances, strict=True):
        if distance > FAR:
            outliers.append(Outlier(subject, what, value, median, distance))
    return outliers
