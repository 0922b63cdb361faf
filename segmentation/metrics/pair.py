"""Measurement of all metrics of all structures of one truth and one prediction."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.errors import ConfigError, EvaluationError
from trinat.segmentation.grid import around_both, is_empty, occupied_box
from trinat.segmentation.io.volume import ScanLike, Volume
from trinat.segmentation.labels import DEFAULT_SCHEME, Csf
from trinat.segmentation.labels.lesions import MatchedLesions
from trinat.segmentation.labels.scheme import LOBES, LabelScheme, load_scheme
from trinat.segmentation.metrics import overlap, surface
from trinat.segmentation.metrics.common_grid import labelled_slices, on_grid_of
from trinat.segmentation.metrics.counted import ALL_STRUCTURES, Made, members_of_groups
from trinat.segmentation.metrics.definitions import (
    BOUNDARY_WIDTH_MM,
    METRICS,
    NOT_PREDICTED,
    OTHER_CSF,
    TOLERANCES_MM,
    Absence,
)

if TYPE_CHECKING:
    import pandas as pd

Indices = NDArray[np.uint8]
Values = NDArray[np.float64]

# Structures with these notes are left out of means. They do not count as missing values either.
_NEVER = (NOT_PREDICTED, OTHER_CSF)


@dataclass(frozen=True)
class Measurement:
    """Value of one metric for one structure, or its mean over a group of structures.

    `structure` is a label's name, or `group:<name>` for a group. `fs_id` is the FreeSurfer number;
    None for groups. `metric` is a key of `METRICS`, or `labelled_as:<structure>` for the volume
    that was predicted as another structure. `value` is NaN if it is undefined. `note` then has the
    reason. `note` also says which rule gave the value of an absent structure.
    """

    structure: str
    fs_id: int | None
    metric: str
    value: float
    unit: str
    note: str = ""


@dataclass(frozen=True, eq=False)
class PairMeasurements:
    """Measurements of one prediction, by class of a scheme.

    `joint` (K, K) counts voxels by true and predicted class. Rejected structures have no voxels in
    the prediction. `values[metric]` has one number for each class, (K,), NaN if undefined. `notes`
    has one text for each class: an `Absence`, the reason why the structure does not count, or "".
    `without_confusions` are the true classes whose confusions with other classes are not reported.
    `lesions` has the lesions of both maps, on their whole grid; None if these are not masks of
    lesions.
    """

    scheme: LabelScheme
    joint: NDArray[np.int64]
    values: dict[str, Values]
    generalised_dice: float
    notes: tuple[str, ...]
    without_confusions: frozenset[int]
    voxel_mm3: float
    lesions: MatchedLesions | None = None

    def rows(self) -> list[Measurement]:
        """Return all measurements: of structures, of groups, and confusions between structures."""
        return [*self._structures(), *self._groups(), *self._confusions()]

    def _structures(self) -> Iterator[Measurement]:
        """Yield every metric of every structure; midline structures have no side swap."""
        for label in self.scheme.labels[1:]:
            note = self.notes[label.index]
            for metric, values in self.values.items():
                if metric == "side_swap" and label.partner is None:
                    continue
                value = float(values[label.index])
                unit = METRICS[metric].unit
                yield Measurement(label.name, label.fs_id, metric, value, unit, note)

    def _groups(self) -> Iterator[Measurement]:
        """Yield the unweighted mean of each metric over each group's structures.

        Undefined values are left out of a mean, and its note then has the number of values in it.
        """
        for group, members in members_of_groups(self.scheme).items():
            predicted = [
                label for label in members if self.notes[label.index] not in _NEVER
            ]
            # Midline structures have no other side.
            paired = [label for label in predicted if label.partner is not None]
            for metric, values in self.values.items():
                labels = paired if metric == "side_swap" else predicted
                if not METRICS[metric].averaged or not labels:
                    continue
                of_group = values[[label.index for label in labels]]
                known = of_group[~np.isnan(of_group)]
                mean = float("nan")
                if len(known):
                    mean = float(known.mean())
                note = ""
                if len(known) < len(labels):
                    note = f"mean of {len(known)} of {len(labels)}"
                unit = METRICS[metric].unit
                yield Measurement(f"group:{group}", None, metric, mean, unit, note)
        every = f"group:{ALL_STRUCTURES}"
        yield Measurement(every, None, "generalised_dice", self.generalised_dice, "")

    def _confusions(self) -> Iterator[Measurement]:
        """Yield the volume, in mm3, of each true class that was predicted as each class.

        Correct predictions and background are included, except true background predicted as
        background.
        """
        for true, predicted in np.argwhere(self.joint):
            if true == predicted == 0 or true in self.without_confusions:
                continue
            label = self.scheme.labels[true]
            metric = f"labelled_as:{self.scheme.names[predicted]}"
            value = float(self.joint[true, predicted] * self.voxel_mm3)
            yield Measurement(label.name, label.fs_id, metric, value, "mm3")


def compare(
    truth: Indices,
    prediction: Indices,
    spacing_mm: tuple[float, float, float],
    scheme: LabelScheme,
    excluded: Mapping[str, str] | None = None,
) -> PairMeasurements:
    """Measure a prediction against the truth, two maps (X, Y, Z) of the scheme's class indices.

    `excluded` maps structures that do not count to reasons: not predicted, other CSF, or rejected.
    These structures have only a true volume, and are left out of means. Rejected structures become
    background in the prediction. CSF that is not compared stays in the prediction: where the truth
    has another structure, it counts as an error of that structure. Raises EvaluationError if the
    prediction has a structure that is listed as not predicted.
    """
    excluded = excluded or {}
    overlap.check_shapes(truth, prediction)
    reasons = [excluded.get(name) for name in scheme.names]
    unknown = [k for k, reason in enumerate(reasons) if reason == NOT_PREDICTED]
    other_csf = [k for k, reason in enumerate(reasons) if reason == OTHER_CSF]
    rejected = [k for k, reason in enumerate(reasons) if reason not in (None, *_NEVER)]
    if rejected:
        prediction = np.where(np.isin(prediction, rejected), np.uint8(0), prediction)
    voxel_mm3 = float(np.prod(spacing_mm))
    lesions = None
    if scheme.kind == "lesions":
        lesions = MatchedLesions.between(truth, prediction, voxel_mm3)
    voxels = truth.size
    truth, prediction = _crop(truth, prediction)
    joint = overlap.joint_histogram(truth, prediction, len(scheme))
    # All voxels that were cut off are background in both maps.
    joint[0, 0] += voxels - truth.size
    true_voxels = joint.sum(1)
    predicted_voxels = joint.sum(0)
    for index in unknown:
        if predicted_voxels[index]:
            name = scheme.names[index]
            raise EvaluationError(
                f"the prediction has {name}, which is listed as not predicted"
            )
    values = _voxel_values(joint, spacing_mm, scheme)
    values |= _surface_values(truth, prediction, spacing_mm, len(scheme))
    if lesions is not None:
        counts = lesions.counts
        values["lesion_f1"] = np.array([np.nan, counts.f1])
        values["lesion_recall"] = np.array([np.nan, counts.recall])
        values["lesion_precision"] = np.array([np.nan, counts.precision])
    not_counted = [*unknown, *other_csf, *rejected]
    for metric in values.keys() - {"truth_volume"}:
        values[metric][not_counted] = np.nan
    notes = []
    for label in scheme.labels:
        absence = _absence(true_voxels[label.index], predicted_voxels[label.index])
        notes.append(excluded.get(label.name, absence))
    return PairMeasurements(
        scheme=scheme,
        joint=joint,
        values={metric: values[metric] for metric in METRICS if metric in values},
        generalised_dice=overlap.generalised_dice(joint, not_counted),
        notes=tuple(notes),
        without_confusions=frozenset([*other_csf, *rejected]),
        voxel_mm3=voxel_mm3,
        lesions=lesions,
    )


def _voxel_values(
    joint: NDArray[np.int64],
    spacing_mm: tuple[float, float, float],
    scheme: LabelScheme,
) -> dict[str, Values]:
    """Compute the metrics that need voxel counts only, by metric, each (K,).

    `joint` is the joint histogram (K, K).
    """
    true_mm3 = overlap.volumes_mm3(joint.sum(1), spacing_mm)
    predicted_mm3 = overlap.volumes_mm3(joint.sum(0), spacing_mm)
    difference_percent = overlap.volume_difference_percent(true_mm3, predicted_mm3)
    return {
        "dice": overlap.dice(joint),
        "iou": overlap.iou(joint),
        "precision": overlap.precision(joint),
        "recall": overlap.recall(joint),
        "volume": predicted_mm3,
        "truth_volume": true_mm3,
        "volume_difference": difference_percent,
        "absolute_volume_difference": np.abs(difference_percent),
        "side_swap": overlap.side_swap(joint, scheme.partner_permutation),
    }


def _surface_values(
    truth: Indices,
    prediction: Indices,
    spacing_mm: tuple[float, float, float],
    classes: int,
) -> dict[str, Values]:
    """Compute the metrics that depend on shape, by metric, each (K,).

    Each structure is measured within its bounding box. `classes` is the number of classes, K.
    """
    dice_keys = [f"surface_dice_{tolerance:g}mm" for tolerance in TOLERANCES_MM]
    keys = ["hd95", "hd100", "assd", *dice_keys, "boundary_iou", "centroid_distance"]
    values = {key: np.full(classes, np.nan) for key in keys}
    for index, box in _boxes(truth, prediction):
        true = truth[box] == index
        predicted = prediction[box] == index
        distances = surface.surface_distances(true, predicted, spacing_mm)
        if distances is None:
            # One of the two is empty, so no part of the other surface is near.
            for key in (*dice_keys, "boundary_iou"):
                values[key][index] = 0.0
            continue
        values["hd95"][index] = surface.hausdorff_mm(distances, 95)
        values["hd100"][index] = surface.hausdorff_mm(distances)
        values["assd"][index] = surface.average_symmetric_distance_mm(distances)
        for key, tolerance_mm in zip(dice_keys, TOLERANCES_MM, strict=True):
            values[key][index] = surface.surface_dice(distances, tolerance_mm)
        values["boundary_iou"][index] = surface.boundary_iou(
            true, predicted, spacing_mm, BOUNDARY_WIDTH_MM
        )
        values["centroid_distance"][index] = surface.centroid_distance_mm(
            true, predicted, spacing_mm
        )
    return values


def _crop(truth: Indices, prediction: Indices) -> tuple[Indices, Indices]:
    """Crop both maps to the bounding box of all structures, as C-contiguous arrays."""
    box = occupied_box((truth > 0) | (prediction > 0))
    if is_empty(box):
        return truth[:1], prediction[:1]
    return np.ascontiguousarray(truth[box]), np.ascontiguousarray(prediction[box])


def _boxes(
    truth: Indices, prediction: Indices
) -> Iterator[tuple[int, tuple[slice, ...]]]:
    """Yield the index of each class that is in at least one map, and its bounding box in both."""
    # Boxes by class, from 1 on; None for an absent class below the largest.
    true_boxes = ndimage.find_objects(truth)
    predicted_boxes = ndimage.find_objects(prediction)
    pairs = zip_longest(true_boxes, predicted_boxes)
    for index, (true_box, predicted_box) in enumerate(pairs, start=1):
        if true_box is None and predicted_box is None:
            continue
        if true_box is None:
            yield index, predicted_box
        elif predicted_box is None:
            yield index, true_box
        else:
            yield index, around_both(true_box, predicted_box)


def _absence(true: Any, predicted: Any) -> Absence | Literal[""]:
    """Return the word for a structure that is absent from one or both maps; "" if it is in both.

    `true` and `predicted` are its numbers of voxels.
    """
    if true and predicted:
        return ""
    if true:
        return "missed"
    if predicted:
        return "invented"
    return "absent from both"


def refuse_without_parcels(
    classes: Indices, scheme: LabelScheme, where: str | Path
) -> None:
    """Raise EvaluationError if a label scheme has parcels of the cortex and a label map has none.

    `classes` (X, Y, Z) is the label map in class indices of the scheme; `where` names it.
    """
    if not scheme.has_parcels:
        return
    parcels = [label.index for label in scheme.labels if label.group in LOBES]
    if not np.isin(classes, parcels).any():
        raise EvaluationError(
            f"has no parcels, which {scheme.name} asks for",
            where=where,
            remedy="segment it with parcels, or choose no label scheme",
        )


def evaluate(
    truth: ScanLike | NDArray[Any],
    prediction: ScanLike | NDArray[Any],
    *,
    labels: str = DEFAULT_SCHEME,
    resample: bool = False,
    not_predicted: Collection[str] = (),
    csf: Csf | None = None,
    csf_pred: Csf | None = None,
) -> pd.DataFrame:
    """Compare a prediction with the truth: all metrics of docs/metrics.md, by structure.

    Parameters
    ----------
    truth, prediction : array, Result, or scan in any type of `trinat.segment`
        Label maps of FreeSurfer numbers, (X, Y, Z). A bare array is on the grid of the other
        map; two arrays have voxels of 1 mm.
    labels : str or path
        Label scheme: name of a shipped one, or a TSV file. "lesions" compares masks of lesions.
    resample : bool
        Resample the prediction to the truth's grid if they differ; otherwise that is an error.
    not_predicted : str or list of str
        Structures of the label scheme that the model does not predict. Known from a Result, unknown
        for a file.
    csf : str, optional
        Definition of CSF in the truth: "region", a small one as in FreeSurfer's aseg (the
        default), or "intracranial", all fluid inside the skull. Known from a Result. CSF is not
        compared if the prediction is known to use the other definition.
    csf_pred : str, optional
        The same for the prediction. Known from a Result, unknown for a file.

    Returns
    -------
    DataFrame
        One row per structure (index: its name), one column per metric: shares from 0 to 1,
        distances in mm, volumes in mm³, differences in %. `note` says which map lacks the
        structure; NaN is undefined.

    Raises
    ------
    GeometryError
        If the maps are on different grids, without `resample`.
    EvaluationError
        If the prediction is that of the sagittal view alone, without sides, or if the label scheme
        has parcels of the cortex and a map has none.
    ConfigError
        If `csf` or `csf_pred` is unknown.
    LabelError
        If the label scheme is unknown, or a map has numbers that do not belong to it.
    InputError
        If a file cannot be read as a label map.

    Examples
    --------
    >>> scan, truth = trinat.phantom(seed=0, spacing_mm=(3, 3, 3))
    >>> table = trinat.evaluate(truth, truth)
    >>> float(table.dice["Left-Thalamus"])
    1.0
    """
    import pandas as pd

    for meaning in (csf, csf_pred):
        if meaning is not None and meaning not in get_args(Csf):
            raise ConfigError(
                f"unknown definition of CSF {meaning!r}",
                remedy=f"use {' or '.join(get_args(Csf))}",
            )
    made = _made_of(prediction, not_predicted, csf_pred)
    truth_csf: Csf = csf or _made_of(truth).csf or "region"
    true, predicted = _volumes_of(truth, prediction)
    scheme = load_scheme(labels)
    if made.source is not None and scheme.has_sides and not made.source.has_sides:
        raise EvaluationError(
            "the prediction does not tell left from right",
            remedy="segment with another view than the sagittal one, too",
        )

    def to_classes(volume: Volume) -> Indices:
        return scheme.from_freesurfer(volume.data, spacing_mm=volume.spacing_mm)

    spacing_mm = true.spacing_mm
    true_classes = to_classes(true)
    predicted, _ = on_grid_of(predicted, true, resample=resample, to_classes=to_classes)
    predicted_classes = predicted.data
    refuse_without_parcels(true_classes, scheme, "the truth")
    refuse_without_parcels(predicted_classes, scheme, "the prediction")
    if scheme.kind != "lesions":
        true_classes, predicted_classes, spacing_mm = labelled_slices(
            true_classes, predicted_classes, spacing_mm
        )
    left_out = made.left_out(scheme, truth_csf=truth_csf)
    found = compare(true_classes, predicted_classes, spacing_mm, scheme, left_out)
    structures = pd.Index(scheme.names, name="structure")
    table = pd.DataFrame(found.values, index=structures)
    table.insert(0, "freesurfer", scheme.fs_ids)
    table["note"] = found.notes
    # Without the background.
    return table.iloc[1:]


def _made_of(
    given: object, not_predicted: Collection[str] = (), csf: Csf | None = None
) -> Made:
    """Return the provenance of a prediction, which is complete only for a Result.

    A Result has it in its attributes. For arrays and files, only the arguments `not_predicted` and
    `csf` are known.
    """
    if isinstance(not_predicted, str):
        not_predicted = [not_predicted]
    return Made(
        named=tuple(not_predicted),
        source=getattr(given, "scheme", None),
        not_predicted=tuple(getattr(given, "not_predicted", ())),
        csf=getattr(given, "csf", csf),
    )


def _volumes_of(
    truth: ScanLike | NDArray[Any], prediction: ScanLike | NDArray[Any]
) -> tuple[Volume, Volume]:
    """Return truth and prediction as volumes.

    A bare array gets the affine of the other map; two arrays get voxels of 1 mm.
    """
    true = getattr(truth, "labels", truth)
    predicted = getattr(prediction, "labels", prediction)
    affine = np.eye(4)
    if not isinstance(true, np.ndarray):
        true = Volume.of(true, labels=True)
        affine = true.affine
    if not isinstance(predicted, np.ndarray):
        predicted = Volume.of(predicted, labels=True)
        if isinstance(true, np.ndarray):
            affine = predicted.affine
    if isinstance(true, np.ndarray):
        true = Volume.of((true, affine), labels=True)
    if isinstance(predicted, np.ndarray):
        predicted = Volume.of((predicted, affine), labels=True)
    return true, predicted
