"""The numbers of one segmentation that the group's tables and page show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trinat.segmentation.inference import quality
from trinat.segmentation.inference.checks.evidence import Evidence
from trinat.segmentation.inference.checks.limits import Limits
from trinat.segmentation.inference.measuring import measure
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.labels.measures import BrainVolumes
from trinat.segmentation.models.checkpoint import Model

# A structure of which clean-up changed a smaller share is not reported.
_REPORTED_CHANGE = 0.01


def judge(
    found: Prediction,
    changes: dict[str, float],
    model: Model,
    limits: Limits,
) -> tuple[dict[str, Any], BrainVolumes]:
    """All numbers of a segmentation, as an entry's `result`: grades, volumes, doubts, notes.

    `changes` is the share of each structure that clean-up has changed; `limits` are the model's
    limits of quality. Returns the volumes of the brain as a whole, too.
    """
    volumes_mm3 = found.volumes_mm3
    evidence = Evidence.of(found)
    measured = measure(found, evidence, limits)
    verdict = quality.grade_by(evidence, limits)
    total_brain_mm3 = quality.total_brain_mm3(found.scheme, volumes_mm3)
    result: dict[str, Any] = {
        "model": model.name,
        "grade": verdict.name,
        "reasons": list(verdict.reasons),
        "structure_grades": dict(verdict.structures),
        "notes": list(found.notes),
        "total_brain_mm3": round(total_brain_mm3, 3),
        "volumes_mm3": {name: round(mm3, 3) for name, mm3 in volumes_mm3.items()},
        "measures_mm3": {
            name: None if mm3 is None else round(mm3, 3)
            for name, mm3 in measured.mm3.items()
        },
        "csf": found.csf,
        "tissue_contrast": _rounded(quality.tissue_contrast(evidence)),
    }
    if measured.note:
        result["notes"].append(measured.note)
    pseudo_labels = model.info.training.pseudo_labels
    if pseudo_labels:
        result["pseudo_labels"] = pseudo_labels
    if found.agreement is not None:
        result["mean_agreement"] = _rounded(quality.mean_agreement(found))
        result["agreement"] = _by_structure(found, volumes_mm3, found.agreement)
    if found.uncertainty is not None:
        for name in ("iou", "pairwise_dice", "volume_cv"):
            values = getattr(found.uncertainty, name)
            result[name] = _by_structure(found, volumes_mm3, values)
    cleaned = {
        name: round(share, 4)
        for name, share in changes.items()
        if share > _REPORTED_CHANGE
    }
    if cleaned:
        result["cleaned"] = cleaned
        shares = [f"{name} {share:.0%}" for name, share in cleaned.items()]
        result["notes"].append(f"clean-up changed {', '.join(shares)}")
    return result, measured


def _by_structure(
    found: Prediction, volumes_mm3: Mapping[str, float], values: np.ndarray
) -> dict[str, float | None]:
    """Values (K,) of classes by the names of structures, without background.

    Structures that the model cannot predict have no volume, and no value.
    """
    by_name = {}
    for label in found.scheme.labels[1:]:
        if label.name in volumes_mm3:
            by_name[label.name] = _rounded(float(values[label.index]))
    return by_name


def _rounded(value: float | None) -> float | None:
    if value is None or not np.isfinite(value):
        return None
    return round(value, 4)
