"""What is measured of the parcels of a scan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.inference.quality import GradeName, grade_structure
from trinat.segmentation.labels.label import Side


@dataclass(frozen=True)
class ParcelMeasure:
    """One parcel of one side.

    `share` is that of the cortex of its side. `asymmetry` is left less right, of their mean: 0
    where both sides are alike, 2 where there is a left one alone. `agreement` is the mean Dice
    between views, None with one view. What cannot be told is None.
    """

    name: str
    freesurfer: int
    side: Side
    lobe: str
    voxels: int
    mm3: float
    share: float | None
    asymmetry: float | None
    agreement: float | None
    grade: GradeName | None


def measure_parcels(
    found: Prediction, limits: tuple[float, float]
) -> list[ParcelMeasure]:
    """Measure all parcels, the left ones first.

    `limits` of the views' agreement grade them as they grade structures.
    """
    voxels = found.parcel_voxels
    assert found.parcel_map is not None
    whole = found.parcel_map.parcellation.whole
    of_side: dict[str, int] = {}
    for name, count in voxels.items():
        side = whole.find(name).side
        assert side is not None
        of_side[side] = of_side.get(side, 0) + count
    measures = []
    for name, count in voxels.items():
        label = whole.find(name)
        assert label.side is not None
        assert label.partner is not None
        other = voxels[whole.names[label.partner]]
        left, right = (count, other) if label.side == "left" else (other, count)
        agreement = None
        if found.parcel_agreement is not None:
            agreement = found.parcel_agreement[name]
        share = count / of_side[label.side] if of_side[label.side] else None
        asymmetry = 2 * (left - right) / (left + right) if left + right else None
        measures.append(
            ParcelMeasure(
                name,
                label.fs_id,
                label.side,
                label.group,
                count,
                count * found.voxel_mm3,
                share,
                asymmetry,
                None if agreement is None or np.isnan(agreement) else agreement,
                grade_structure(count, agreement, limits),
            )
        )
    return measures
