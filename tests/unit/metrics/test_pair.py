"""One pass over all structures: values, absences, groups, confusions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from helpers.refusals import refusal

from trinat.segmentation.errors import ConfigError, EvaluationError
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.metrics.definitions import (
    LESION_WISE,
    METRICS,
    NOT_PREDICTED,
    OTHER_CSF,
)
from trinat.segmentation.metrics.pair import PairMeasurements, compare, evaluate
from trinat.segmentation.metrics.surface import hausdorff_mm, surface_distances

SPACING_MM = (1.0, 1.5, 2.0)


@pytest.fixture(scope="module")
def scheme() -> LabelScheme:
    return load_scheme("quicknat33")


@pytest.fixture(scope="module")
def index(scheme: LabelScheme) -> dict[str, int]:
    return {name: i for i, name in enumerate(scheme.names)}


@pytest.fixture(scope="module")
def measured(scheme: LabelScheme, index: dict[str, int]) -> PairMeasurements:
    """Measure a shifted left caudate, a missed right caudate, and an invented left putamen."""
    truth, prediction = np.zeros((2, 12, 12, 12), np.uint8)
    truth[2:6, 2:6, 2:6] = index["Left-Caudate"]
    prediction[3:7, 2:6, 2:6] = index["Left-Caudate"]
    truth[9:11, 2:4, 2:4] = index["Right-Caudate"]
    prediction[2:4, 9:11, 9:11] = index["Left-Putamen"]
    return compare(truth, prediction, SPACING_MM, scheme)


def value(measured: PairMeasurements, structure: str, metric: str) -> float:
    found = [
        r for r in measured.rows() if r.structure == structure and r.metric == metric
    ]
    assert len(found) == 1
    return found[0].value


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("dice", 0.75),  # 48 of 64 voxels in common
        ("iou", 48 / 80),
        ("precision", 0.75),
        ("recall", 0.75),
        ("hd100", 1.0),
        ("centroid_distance", 1.0),
        ("volume", 64 * 3.0),
        ("truth_volume", 64 * 3.0),
        ("volume_difference", 0.0),
    ],
)
def test_a_shifted_structure(
    measured: PairMeasurements, metric: str, expected: float
) -> None:
    assert value(measured, "Left-Caudate", metric) == pytest.approx(expected)


ABSENT = {
    "absent from both": ("Left-Pallidum", "if_absent_from_both"),
    "missed": ("Right-Caudate", "if_missed"),
    "invented": ("Left-Putamen", "if_invented"),
}


@pytest.mark.parametrize("absence", ABSENT)
@pytest.mark.parametrize(
    "metric",
    [
        metric
        for metric in METRICS
        if metric not in ("side_swap", "generalised_dice", *LESION_WISE)
    ],
)
def test_absent_structures_follow_the_stated_policy(
    measured: PairMeasurements, absence: str, metric: str
) -> None:
    structure, policy = ABSENT[absence]
    stated = getattr(METRICS[metric], policy)
    number = value(measured, structure, metric)
    if stated == "undefined":
        assert math.isnan(number)
    elif stated == "as measured":
        assert number == 8 * 3.0
    else:
        assert number == float(stated)


@pytest.mark.parametrize("absence", ABSENT)
@pytest.mark.parametrize("metric", LESION_WISE)
def test_absent_lesions_follow_the_stated_policy(absence: str, metric: str) -> None:
    truth, prediction = np.zeros((2, 4, 4, 4), np.uint8)
    if absence == "missed":
        truth[:2] = 1
    if absence == "invented":
        prediction[:2] = 1
    measured = compare(truth, prediction, SPACING_MM, load_scheme("lesions"))
    stated = getattr(METRICS[metric], ABSENT[absence][1])
    number = value(measured, "White-matter-lesions", metric)
    assert math.isnan(number) if stated == "undefined" else number == float(stated)


def test_lesions_that_meet_at_a_corner_are_one() -> None:
    truth, prediction = np.zeros((2, 16, 16, 16), np.uint8)
    truth[:2, :2, :2] = truth[2:4, 2:4, 2:4] = 1
    truth[9:] = 1
    prediction[0, 0, 0] = 1
    table = evaluate(truth, prediction, labels="lesions")
    found = table.loc["White-matter-lesions"]
    # The one voxel of the prediction is too small for a lesion.
    assert (found["lesion_recall"], found["lesion_f1"]) == (0, 0)
    prediction[:2, 0, :2] = 5
    found = evaluate(truth, prediction, labels="lesions").loc["White-matter-lesions"]
    assert (found["lesion_recall"], found["lesion_precision"]) == (0.5, 1)


def test_notes_say_why_a_value_is_undefined(measured: PairMeasurements) -> None:
    notes = {r.structure: r.note for r in measured.rows() if r.metric == "hd95"}
    assert notes["Left-Caudate"] == ""
    assert notes["Right-Caudate"] == "missed"
    assert notes["Left-Putamen"] == "invented"
    assert notes["CSF"] == "absent from both"


def test_a_group_is_the_mean_of_its_structures_and_counts_the_undefined(
    measured: PairMeasurements,
) -> None:
    rows = {
        (r.structure, r.metric): r
        for r in measured.rows()
        if r.structure.startswith("group:")
    }
    dice = rows["group:subcortical", "dice"]
    assert dice.value == pytest.approx((0.75 + 0 + 0) / 3)
    assert dice.note == "mean of 3 of 16"
    assert rows["group:subcortical", "hd100"].note == "mean of 1 of 16"
    assert math.isnan(rows["group:ventricles", "dice"].value)
    assert ("group:csf", "dice") not in rows
    assert ("group:all", "volume") not in rows


def test_all_structures_leave_out_csf(
    scheme: LabelScheme, index: dict[str, int]
) -> None:
    truth = np.zeros((6, 6, 6), np.uint8)
    truth[:3] = index["CSF"]
    truth[3:] = index["Brain-Stem"]
    prediction = np.where(truth == index["CSF"], 0, truth).astype(np.uint8)
    measured = compare(truth, prediction, SPACING_MM, scheme)
    assert value(measured, "group:all", "dice") == 1
    assert value(measured, "CSF", "dice") == 0


def test_a_mirrored_prediction_is_told(
    scheme: LabelScheme, index: dict[str, int]
) -> None:
    truth = np.zeros((8, 4, 4), np.uint8)
    truth[1:3, 1:3, 1:3] = index["Left-Hippocampus"]
    truth[5:7, 1:3, 1:3] = index["Right-Hippocampus"]
    truth[3:5, 1:3, 1:3] = index["Brain-Stem"]
    measured = compare(truth, truth[::-1], SPACING_MM, scheme)
    assert value(measured, "Left-Hippocampus", "side_swap") == 1
    assert value(measured, "Left-Hippocampus", "dice") == 0
    assert value(measured, "Brain-Stem", "dice") == 1
    assert not [
        r
        for r in measured.rows()
        if (r.structure, r.metric) == ("Brain-Stem", "side_swap")
    ]


def test_confusions_account_for_every_voxel(measured: PairMeasurements) -> None:
    confusions = [r for r in measured.rows() if r.metric.startswith("labelled_as:")]
    by_pair = {
        (r.structure, r.metric.removeprefix("labelled_as:")): r.value
        for r in confusions
    }
    assert by_pair == {
        ("Left-Caudate", "Left-Caudate"): 48 * 3.0,
        ("Left-Caudate", "background"): 16 * 3.0,
        ("background", "Left-Caudate"): 16 * 3.0,
        ("Right-Caudate", "background"): 8 * 3.0,
        ("background", "Left-Putamen"): 8 * 3.0,
    }
    assert measured.joint.sum() == 12**3


def test_the_box_is_exact_at_the_border_of_the_array(
    scheme: LabelScheme, index: dict[str, int]
) -> None:
    """Structures at the array's faces are measured like those in the middle of a larger array."""
    truth, prediction = np.zeros((2, 6, 5, 4), np.uint8)
    truth[:3] = index["Brain-Stem"]
    prediction[:4, 1:] = index["Brain-Stem"]
    padded = [np.pad(x, 3) for x in (truth, prediction)]
    inside, outside = (
        compare(*pair, SPACING_MM, scheme).values
        for pair in ((truth, prediction), padded)
    )
    for metric, values in inside.items():
        np.testing.assert_allclose(values[1:], outside[metric][1:])
    whole = surface_distances(truth > 0, prediction > 0, SPACING_MM)
    assert whole is not None
    assert inside["hd95"][index["Brain-Stem"]] == hausdorff_mm(whole, 95)


def test_memory_order_does_not_matter(scheme: LabelScheme) -> None:
    rng = np.random.default_rng(1)
    truth, prediction = rng.integers(0, 33, (2, 9, 8, 7)).astype(np.uint8)
    straight = compare(truth, prediction, SPACING_MM, scheme).values
    fortran = compare(np.asfortranarray(truth), prediction, SPACING_MM, scheme).values
    for metric, values in straight.items():
        np.testing.assert_array_equal(values, fortran[metric])


def test_two_empty_maps_have_nothing_to_say(scheme: LabelScheme) -> None:
    empty = np.zeros((4, 4, 4), np.uint8)
    measured = compare(empty, empty, SPACING_MM, scheme)
    assert measured.joint[0, 0] == 64
    assert set(measured.notes) >= {"absent from both"}
    assert math.isnan(measured.generalised_dice)


def test_inputs_are_left_alone(scheme: LabelScheme) -> None:
    truth = np.ones((4, 4, 4), np.uint8)
    truth.setflags(write=False)
    compare(truth, truth, SPACING_MM, scheme)


def test_what_a_model_cannot_predict_has_a_true_volume_alone_and_is_in_no_mean(
    scheme: LabelScheme, index: dict[str, int]
) -> None:
    truth, prediction = np.zeros((2, 6, 6, 6), np.uint8)
    truth[:2] = prediction[:2] = index["Left-Caudate"]
    truth[4:] = index["Left-Putamen"]
    maps = truth, prediction, SPACING_MM, scheme
    counted, left_out = compare(*maps), compare(*maps, {"Left-Putamen": NOT_PREDICTED})
    rows = [r for r in left_out.rows() if r.structure == "Left-Putamen"]
    known = {r.metric: r.value for r in rows if not math.isnan(r.value)}
    assert known == {"truth_volume": 72 * 3.0, "labelled_as:background": 72 * 3.0}
    notes = {r.note for r in rows if r.metric in METRICS}
    assert notes == {"not predicted by this model"}
    assert (
        value(counted, "group:all", "dice"),
        value(left_out, "group:all", "dice"),
    ) == (0.5, 1)
    assert (counted.generalised_dice, left_out.generalised_dice) == (
        pytest.approx(2 / 3),
        1,
    )
    with pytest.raises(
        EvaluationError, match="has Left-Caudate, which is listed as not"
    ):
        compare(*maps, {"Left-Caudate": NOT_PREDICTED})


def test_what_is_rejected_is_told_in_the_means_that_leave_it_out(
    scheme: LabelScheme, index: dict[str, int]
) -> None:
    truth, prediction = np.zeros((2, 6, 6, 6), np.uint8)
    truth[:2] = prediction[:2] = index["Left-Caudate"]
    truth[4:] = index["Left-Putamen"]
    prediction[3:] = index["Left-Putamen"]
    rejected = {"Left-Putamen": "rejected by anna"}
    measured = compare(truth, prediction, SPACING_MM, scheme, rejected)
    rows = {(r.structure, r.metric): r for r in measured.rows()}
    assert rows["Left-Putamen", "dice"].note == "rejected by anna"
    assert math.isnan(rows["Left-Putamen", "dice"].value)
    # 14 of the 16 structures of the group are in neither map.
    assert rows["group:subcortical", "dice"].note == "mean of 1 of 16"
    assert rows["group:subcortical", "dice"].value == 1
    # It is no confusion either, because its replacement is unknown.
    assert ("Left-Putamen", "labelled_as:background") not in rows
    assert not [metric for _, metric in rows if metric == "labelled_as:Left-Putamen"]


def test_csf_that_is_something_else_has_a_true_volume_and_takes_nothing_away(
    scheme: LabelScheme, index: dict[str, int]
) -> None:
    truth, prediction = np.zeros((2, 6, 6, 6), np.uint8)
    truth[:2] = prediction[:2] = index["Left-Caudate"]
    prediction[1:4] = index["CSF"]
    truth[5] = index["CSF"]
    other = {"CSF": OTHER_CSF}
    rows = {
        (row.structure, row.metric): row
        for row in compare(truth, prediction, SPACING_MM, scheme, other).rows()
    }
    assert rows["CSF", "truth_volume"].value == 36 * 3.0
    assert math.isnan(rows["CSF", "dice"].value)
    assert rows["CSF", "dice"].note.startswith("not compared")
    # Labels in place of the truth's CSF mean nothing; those replaced by CSF do.
    assert ("CSF", "labelled_as:background") not in rows
    assert rows["Left-Caudate", "labelled_as:CSF"].value == 36 * 3.0


def test_a_result_says_itself_what_its_csf_is() -> None:
    truth = np.zeros((16, 16, 16), np.int16)
    truth[2:6, 2:6, 2:6] = 24

    @dataclass
    class Result:
        labels: tuple[np.ndarray, np.ndarray]
        scheme: LabelScheme
        not_predicted: tuple[str, ...] = ()
        csf: str = "intracranial"

    result = Result((truth, np.eye(4)), load_scheme("quicknat33"))
    assert evaluate(truth, result).note["CSF"] == OTHER_CSF
    assert evaluate(truth, result, csf="intracranial").dice["CSF"] == 1
    # Two results define CSF alike; for a file the definition is unknown.
    assert evaluate(result, result).dice["CSF"] == 1
    assert evaluate(truth, truth).dice["CSF"] == 1
    # ... unless the caller states it.
    assert evaluate(truth, truth, csf_pred="intracranial").note["CSF"] == OTHER_CSF
    # The metadata of a Result takes precedence.
    assert evaluate(truth, result, csf_pred="region").note["CSF"] == OTHER_CSF


def test_a_result_counts_where_any_part_of_a_structure_is_predicted() -> None:
    """CSF of tissue4 includes the ventricles, which a model without CSF predicts.

    27 of 36 voxels.
    """
    truth = np.zeros((16, 16, 16), np.int16)
    truth[1:4, 1:4, 1:4] = 4
    truth[1:4, 1:4, 4] = 24

    @dataclass
    class Result:
        labels: tuple[np.ndarray, np.ndarray]
        scheme: LabelScheme
        not_predicted: tuple[str, ...]

    prediction = np.where(truth == 24, 0, truth)
    result = Result((prediction, np.eye(4)), load_scheme("quicknat33"), ("CSF",))
    table = evaluate(truth, result, labels="tissue4")
    assert table.dice["CSF"] == pytest.approx(2 * 27 / (27 + 36))
    assert table.note["CSF"] == ""
    own = evaluate(truth, result)
    assert own.note["CSF"] == "not predicted by this model"
    told = evaluate(truth, result.labels, not_predicted="CSF")
    assert told.note["CSF"] == "not predicted by this model"


def test_maps_without_parcels_are_not_measured_by_parcels() -> None:
    cortex = np.full((16, 16, 16), 3, np.int16)
    parcels = cortex.copy()
    parcels[:8] = 1002
    for truth, prediction in ((cortex, cortex), (cortex, parcels), (parcels, cortex)):
        with pytest.raises(EvaluationError):
            evaluate(truth, prediction, labels="desikan")
    table = evaluate(parcels, parcels, labels="desikan")
    assert table[table["freesurfer"] == 1002]["dice"].tolist() == [1]


def test_parcels_count_together_as_cortex_where_the_grid_is_coarser() -> None:
    """Of 8 voxels, 3 are white matter and 5 are cortex, of three parcels."""
    block = np.array([[[2, 2], [2, 1001]], [[1001, 1002], [1002, 1003]]])
    affine = np.eye(4)
    affine[:3, 3] = -0.5
    prediction = Volume(np.tile(block, (4, 4, 4)), affine)
    truth = Volume(np.full((4, 4, 4), 3), np.diag([2.0, 2, 2, 1]))
    table = evaluate(truth, prediction, resample=True)
    assert table.dice["Left-Cerebral-Cortex"] == 1


@pytest.mark.parametrize("kind", [bool, np.float32])
def test_volumes_of_labels_in_another_type_are_compared(kind: type) -> None:
    mask = np.zeros((4, 4, 4), kind)
    mask[1:3, 1:3, 1:3] = 1
    volume = Volume(mask, np.eye(4))
    table = evaluate(volume, volume, labels="lesions")
    assert table.dice.tolist() == [1]


def test_another_order_of_axes_does_not_change_the_sides_of_a_map() -> None:
    """The corpus callosum (251) is as near to the left white matter as to the right one."""
    row = np.array([0, 41, 251, 2, 0, 0])
    labels = np.tile(row[:, None, None], (1, 4, 4))
    flip = np.diag([-1.0, 1, 1, 1])
    flip[0, 3] = len(row) - 1
    table = evaluate(Volume(labels, np.eye(4)), Volume(labels[::-1], flip))
    assert table.dice["Left-Cerebral-White-Matter"] == 1


def test_a_prediction_without_sides_is_no_prediction_of_structures_with_sides(
    scheme: LabelScheme,
) -> None:
    @dataclass
    class SagittalAlone:
        labels: np.ndarray
        scheme: LabelScheme

    labels = np.full((16, 16, 16), 10, np.int16)
    with pytest.raises(EvaluationError):
        evaluate(labels, SagittalAlone(labels, scheme.merged.scheme))


@pytest.mark.parametrize("meaning", ["csf", "csf_pred"])
def test_an_unknown_meaning_of_csf_is_refused(meaning: str) -> None:
    labels = np.full((4, 4, 4), 24)
    with refusal(ConfigError):
        evaluate(labels, labels, **{meaning: "intercranial"})
