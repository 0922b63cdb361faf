"""What each metric is called, means, does where a structure is absent, and where it is shown.

The report prints these texts, docs/metrics.md is checked against them, and the tests hold the
code to them. `pair.py` computes the values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

TOLERANCES_MM = (1.0, 2.0)
BOUNDARY_WIDTH_MM = 2.0

# What a structure's absence from the truth, the prediction or both is called in the note column.
Absence = Literal[
    "absent from both",
    "missed",
    "invented",
    "not predicted by this model",
    "not compared: the truth's CSF is something else",
]
NOT_PREDICTED: Absence = "not predicted by this model"
OTHER_CSF: Absence = "not compared: the truth's CSF is something else"


Better = Literal["higher", "lower", "zero", "none"]


@dataclass(frozen=True)
class Metric:
    """One row of the tables; the last three say its value where a structure is absent.

    `key` is its name in tables, `title` that on pages. `unit` is empty for shares. `better` says
    which values are good: higher, lower, near zero, or neither.
    """

    key: str
    title: str
    unit: str
    better: Better
    definition: str
    if_absent_from_both: str
    if_missed: str
    if_invented: str
    averaged: bool = True  # over the structures of a group

    @property
    def least(self) -> float:
        """The value that no other is below."""
        if self.better == "zero":
            return -100.0
        return 0.0

    @property
    def most(self) -> float:
        """The value that no other is above: a share ends at 1."""
        if self.unit:
            return math.inf
        return 1.0

    @property
    def shown_unit(self) -> str:
        """The unit as people write it."""
        if self.unit == "mm3":
            return "mm³"
        return self.unit

    @property
    def title_with_unit(self) -> str:
        """The heading of a column."""
        if not self.unit:
            return self.title
        return f"{self.title} ({self.shown_unit})"


def _share(
    key: str,
    title: str,
    definition: str,
    missed: str = "0",
    invented: str = "0",
) -> Metric:
    """Define a share: it goes from 0 to 1, and 1 is perfect."""
    return Metric(key, title, "", "higher", definition, "undefined", missed, invented)


def _distance(key: str, title: str, definition: str) -> Metric:
    """Define a distance in mm: it is undefined unless both maps have the structure."""
    return Metric(
        key, title, "mm", "lower", definition, "undefined", "undefined", "undefined"
    )


def _volume(
    key: str,
    title: str,
    definition: str,
    missed: str,
    invented: str,
) -> Metric:
    """Define a volume in mm³: no mean over structures says anything."""
    return Metric(
        key, title, "mm3", "none", definition, "0", missed, invented, averaged=False
    )


def _percent(key: str, title: str, better: Better, part: str, missed: str) -> Metric:
    """Define a percentage of the true volume."""
    definition = f"{part} / true volume."
    return Metric(key, title, "%", better, definition, "undefined", missed, "undefined")


_ALL = (
    _share("dice", "Dice", "2 |T∩P| / (|T| + |P|), in voxels."),
    _share("iou", "IoU", "|T∩P| / |T∪P|, in voxels (Jaccard index)."),
    _share(
        "precision",
        "Precision",
        "|T∩P| / |P|: how much of the prediction is right.",
        "undefined",
    ),
    _share(
        "recall",
        "Recall",
        "|T∩P| / |T|: how much of the truth was found.",
        invented="undefined",
    ),
    _distance(
        "hd95",
        "Hausdorff 95 %",
        "The larger of the two directed 95th percentiles of surface distance, by surface area.",
    ),
    _distance(
        "hd100",
        "Hausdorff",
        "The largest distance from a point of either surface to the other surface.",
    ),
    _distance(
        "assd",
        "Average surface distance",
        "Mean distance to the other surface over all points of both, by surface area.",
    ),
    *(
        _share(
            f"surface_dice_{mm:g}mm",
            f"Surface Dice {mm:g} mm",
            f"Share of both surfaces, by area, within {mm:g} mm of the other.",
        )
        for mm in TOLERANCES_MM
    ),
    _share(
        "boundary_iou",
        "Boundary IoU",
        "IoU of the rims: the voxels of each mask within 2 mm of a voxel outside it, but at least "
        "one voxel thick.",
    ),
    _volume(
        "volume",
        "Volume",
        "Predicted voxels times the volume of one.",
        "0",
        "as measured",
    ),
    _volume(
        "truth_volume",
        "True volume",
        "True voxels times the volume of one.",
        "as measured",
        "0",
    ),
    _percent(
        "volume_difference",
        "Volume difference",
        "zero",
        "(predicted - true volume)",
        "-100",
    ),
    _percent(
        "absolute_volume_difference",
        "Absolute volume difference",
        "lower",
        "|predicted - true volume|",
        "100",
    ),
    _distance(
        "centroid_distance",
        "Centroid distance",
        "Distance between the centres of gravity.",
    ),
    Metric(
        "side_swap",
        "Side swap",
        "",
        "lower",
        "Of the voxels where a left/right pair meets its truth, the share labelled with the wrong "
        "side: 0 is right, 1 is a mirrored prediction, above 0.5 left and right are exchanged. "
        "Undefined for structures on the midline.",
        "as the pair",
        "as the pair",
        "as the pair",
    ),
    Metric(
        "generalised_dice",
        "Generalised Dice",
        "",
        "higher",
        "Dice over all structures at once, each weighted by 1 / (true volume)²; one number a scan. "
        "The smallest structures decide it: it may lie far below the mean Dice.",
        "left out",
        "counts as error",
        "counts as error, with the smallest structure's weight",
        averaged=False,
    ),
)

# All are in metrics.csv, in summary.json and in the report's table of structures. Where else:
METRICS: dict[str, Metric] = {metric.key: metric for metric in _ALL}
# In cards, summary tables and comparisons of models: few, so that the tests stay few.
HEADLINE = (
    "dice",
    "iou",
    "hd95",
    "surface_dice_1mm",
    "assd",
    "absolute_volume_difference",
)
# In the heat map, structures.csv and the LaTeX table.
PRINTED = HEADLINE[:4]
# In box plots.
PLOTTED = (*PRINTED, "assd", "boundary_iou", "volume_difference")
# Digits after the point, by unit.
DIGITS = {"": 3, "mm": 2, "%": 1, "mm3": 0}
