"""Names, definitions, values for absent structures and places of display of all metrics.

The report prints these texts, the site makes a table of them (docs/metrics.md), and the tests
hold the code to them. `pair.py` computes the values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

TOLERANCES_MM = (1.0, 2.0)
BOUNDARY_WIDTH_MM = 2.0

# Words of the note column for a structure absent from the truth, the prediction or both.
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
    """Definition of a metric.

    `key` is its name in tables, `title` its name on pages. `unit` is empty for shares. `better`
    says which values are good: higher, lower, near zero, or neither. Its value for a structure that
    one map lacks is described by `if_absent_from_both`, `if_missed` (only the prediction lacks it)
    and `if_invented` (only the truth lacks it). `averaged` is True if its mean over the structures
    of a group is reported.
    """

    key: str
    title: str
    unit: str
    better: Better
    definition: str
    if_absent_from_both: str = "undefined"
    if_missed: str = "undefined"
    if_invented: str = "undefined"
    averaged: bool = True

    @property
    def least(self) -> float:
        """Smallest possible value."""
        if self.better == "zero":
            return -100.0
        return 0.0

    @property
    def most(self) -> float:
        """Largest possible value; 1 for a share."""
        if self.unit:
            return math.inf
        return 1.0

    @property
    def shown_unit(self) -> str:
        """Unit as shown to users."""
        if self.unit == "mm3":
            return "mm³"
        return self.unit

    @property
    def title_with_unit(self) -> str:
        """Column heading: the title with its unit."""
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
    """Define a share from 0 to 1, where 1 is perfect.

    `missed` and `invented` are the values for a structure that only the prediction or only the
    truth lacks.
    """
    return Metric(
        key, title, "", "higher", definition, if_missed=missed, if_invented=invented
    )


def _distance(key: str, title: str, definition: str) -> Metric:
    """Define a distance in mm, which is undefined unless both maps have the structure."""
    return Metric(key, title, "mm", "lower", definition)


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
    # A mean of volumes over structures is meaningless.
    Metric(
        "volume",
        "Volume",
        "mm3",
        "none",
        "Predicted voxels times the volume of one.",
        if_absent_from_both="0",
        if_missed="0",
        if_invented="as measured",
        averaged=False,
    ),
    Metric(
        "truth_volume",
        "True volume",
        "mm3",
        "none",
        "True voxels times the volume of one.",
        if_absent_from_both="0",
        if_missed="as measured",
        if_invented="0",
        averaged=False,
    ),
    Metric(
        "volume_difference",
        "Volume difference",
        "%",
        "zero",
        "(predicted - true volume) / true volume.",
        if_missed="-100",
    ),
    Metric(
        "absolute_volume_difference",
        "Absolute volume difference",
        "%",
        "lower",
        "|predicted - true volume| / true volume.",
        if_missed="100",
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
    _share(
        "lesion_f1",
        "Lesion F1",
        "Harmonic mean of lesion recall and lesion precision. Voxels that touch are one lesion, if "
        "they have 3 mm³ or more. Of masks of lesions only, as the next two.",
    ),
    _share(
        "lesion_recall",
        "Lesion recall",
        "Share of the true lesions that share at least one voxel with a predicted lesion.",
        invented="undefined",
    ),
    _share(
        "lesion_precision",
        "Lesion precision",
        "Share of the predicted lesions that share at least one voxel with a true lesion.",
        "undefined",
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

# Every metric is in metrics.csv, in summary.json and in the report's table of structures. The
# selections below are also shown elsewhere, as far as they were measured:
METRICS: dict[str, Metric] = {metric.key: metric for metric in _ALL}
LESION_WISE = ("lesion_f1", "lesion_recall", "lesion_precision")
# Cards, summary tables and comparisons of models: few metrics, to keep the number of tests small.
HEADLINE = (
    "dice",
    *LESION_WISE,
    "iou",
    "hd95",
    "surface_dice_1mm",
    "assd",
    "absolute_volume_difference",
)
# structures.csv, and the tables of scans x structures on the page.
PRINTED = ("dice", "iou", "hd95", "surface_dice_1mm", *LESION_WISE)
# Box plots.
PLOTTED = (*PRINTED, "assd", "boundary_iou", "volume_difference")
# Decimal places by unit.
DIGITS = {"": 3, "mm": 2, "%": 1, "mm3": 0}
