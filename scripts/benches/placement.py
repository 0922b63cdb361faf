"""How often labels that lie on their scan are taken for moved, and moved ones for lying there.

    scripts/bench placement SOURCE ROOT

SOURCE is a dataset of `trinat prepare`, ROOT its folder. The labels of each subject are looked at
where they are, and moved by 3 and by 6 mm both ways along each axis. No network runs.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.data.preparing import classes_of, shift_of_labels
from trinat.segmentation.data.sources.base import SourceOptions, Subject
from trinat.segmentation.data.sources.registry import list_subjects
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.conform import conform

__all__ = ["run"]

_DISTANCES = (-6, -3, 3, 6)


def run(source: str, root: str) -> None:
    """Print what is said of each subject's labels, and in how many cases it is right."""
    false_alarms = []
    found: dict[int, list[bool]] = {abs(distance): [] for distance in _DISTANCES}
    for subject in list_subjects(source, Path(root), SourceOptions()).subjects:
        if subject.image is None or subject.labels is None:
            continue
        image, classes = _on_working_grid(subject)
        false_alarms.append(shift_of_labels(image, classes))
        right = 0
        for axis, distance in product(range(3), _DISTANCES):
            moved = np.roll(classes, distance, axis)
            expected = [0, 0, 0]
            expected[axis] = -distance
            is_right = shift_of_labels(image, moved) == tuple(expected)
            found[abs(distance)].append(is_right)
            right += is_right
        print(
            f"{subject.id}: as it is {false_alarms[-1]}, moved {right} of 12",
            flush=True,
        )
    wrong = sum(shift is not None for shift in false_alarms)
    print(f"taken for moved: {wrong} of {len(false_alarms)}")
    for distance, verdicts in found.items():
        print(f"moved by {distance} mm: {sum(verdicts)} of {len(verdicts)} found")


def _on_working_grid(
    subject: Subject,
) -> tuple[NDArray[np.floating], NDArray[np.integer]]:
    """A scan and its classes as `trinat prepare` compares them."""
    assert subject.image is not None
    assert subject.labels is not None
    conformed = conform(Volume.read(subject.image, axes=subject.image_axes))
    labels = Volume.read(subject.labels, labels=True, axes=subject.labels_axes)
    indices = classes_of(subject, labels, load_scheme("quicknat33"))
    classes = Volume(indices, conformed.plan.scan.affine)
    on_grid = conform(classes, labels=True, plan=conformed.plan).volume
    return conformed.volume.data, on_grid.data
