"""Grades of structures by hand, and of whole scans with faults."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.overfitted import miniature, overfitted_model
from scipy import ndimage

from trinat.pipelines.models.fit_limits import cut, inverted, middle
from trinat.segmentation.grid import Grid
from trinat.segmentation.inference.checks.limits import LIMITS, Limits
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.inference.quality import Grade, grade, limits_of
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.label import Label
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.models.model_info import Quality
from trinat.segmentation.models.zoo import find_model
from trinat.segmentation.space.conform import ConformPlan


def label(index: int, name: str, group: str) -> Label:
    return Label(index, name, index, None, (0, 0, 0), name, group, None)


SCHEME = LabelScheme(
    "three",
    (
        label(0, "background", "background"),
        label(1, "white", "white-matter"),
        label(2, "cortex", "cortical"),
        label(3, "stem", "brainstem"),
    ),
)
# Three structures of 144 mm³.
BLOCKS = np.repeat([1, 2, 3], 144).reshape(3, 12, 12).astype(np.uint8)
BRIGHTNESS = np.array([0.0, 1.2, 0.8, 1.0], np.float32)


def by_hand(
    agreement: list[float] | None = None,
    labels: np.ndarray = BLOCKS,
    brightness: np.ndarray = BRIGHTNESS,
) -> Prediction:
    """Return a segmentation with this label for each voxel of 1 mm."""
    affine = np.eye(4)
    grid = Grid(labels.shape, affine)
    plan = ConformPlan(grid, (1, 1), grid)
    return Prediction(
        torch.nn.functional.one_hot(torch.from_numpy(labels).long(), 4).half(),
        SCHEME,
        plan,
        Volume(brightness[labels], affine),
        (),
        np.array([np.nan, *agreement]) if agreement else None,
        None,
        (),
    )


HAND = Limits(
    agreement=(0.8, 0.6),
    smallest_brain_mm3=(0.0, 0.0),
    contrast=(1.1, 1.0),
    rejected=(0.0, 0.4),
    missing=(1, 2),
)


def test_structures_are_graded_by_how_much_the_views_agree_on_them() -> None:
    verdict = grade(by_hand([0.9, 0.7, 0.5]).evidence, HAND)
    assert verdict.structures == {"white": "pass", "cortex": "look", "stem": "reject"}


def test_what_no_view_found_by_itself_is_rejected() -> None:
    assert (
        grade(by_hand([0.9, 0.9, np.nan]).evidence, HAND).structures["stem"] == "reject"
    )


def test_one_view_alone_grades_no_structure_but_those_not_found() -> None:
    assert grade(by_hand().evidence, HAND).structures == {}
    labels = np.where(BLOCKS == 3, 1, BLOCKS)
    assert grade(by_hand(labels=labels).evidence, HAND).structures == {"stem": "reject"}


def test_of_one_view_a_missing_structure_alone_does_not_reject_the_scan() -> None:
    without_stem = np.where(BLOCKS == 3, 2, BLOCKS).astype(np.uint8)
    limits = replace(HAND, missing=(1, 3))
    found = grade(by_hand(labels=without_stem).evidence, limits)
    assert found.structures == {"stem": "reject"}
    assert found.name == "look"


def test_a_sound_scan_passes_and_says_nothing() -> None:
    verdict = grade(by_hand([0.9, 0.9, 0.9]).evidence, HAND)
    assert (verdict.name, verdict.reasons) == ("pass", ())


def test_one_rejected_structure_is_named_for_a_person_to_look_at() -> None:
    verdict = grade(by_hand([0.99, 0.99, 0.5]).evidence, HAND)
    assert (verdict.name, verdict.reasons) == ("look", ("views disagree on stem",))


def test_many_rejected_structures_reject_the_scan() -> None:
    verdict = grade(
        by_hand([0.99, 0.58, 0.58]).evidence, replace(HAND, agreement=(0.7, 0.6))
    )
    assert (verdict.name, verdict.reasons) == (
        "reject",
        ("views disagree on cortex, stem",),
    )


def test_a_models_own_limits_come_before_the_general_ones() -> None:
    info = Predictor(overfitted_model(), device="cpu").model.info
    assert limits_of(info) is LIMITS
    own = info.model_copy(update={"quality": Quality(agreement=(0.9, 0.4))})
    assert limits_of(own) == replace(LIMITS, agreement=(0.9, 0.4))


def test_a_model_for_any_contrast_does_not_ask_for_t1() -> None:
    info = Predictor(overfitted_model(), device="cpu").model.info
    for_any = limits_of(info.model_copy(update={"contrast": "any"}))
    found = by_hand([0.9] * 3, brightness=np.array([0, 0.8, 1.2, 1], np.float32))
    reasons = grade(found.evidence, replace(HAND, contrast=for_any.contrast)).reasons
    assert not any("T1" in reason for reason in reasons)


# Limits for an overfitted head of 25 ml.
MINIATURE = Limits(
    smallest_brain_mm3=(2.0e4, 1.0e4),
    largest_brain_mm3=(4.0e4, 8.0e4),
    missing=(99, 99),
    rejected=(1.0, 1.0),
)


@pytest.fixture(scope="module")
def found(segmenter: Predictor) -> Prediction:
    """Segment the miniature head in a skull.

    Without it the flat sides of its brain look like cuts.
    """
    found = segmenter.segment(miniature(seed=1)[0])
    around = ndimage.binary_dilation(found.working.data > 0, iterations=2)
    skull = np.where(around, 0.2, 0).astype(np.float32)
    image = replace(found.image, data=np.maximum(found.image.data, skull))
    return replace(found, image=image)


def test_a_good_segmentation_passes(found) -> None:
    assert grade(found.evidence, MINIATURE).name == "pass"


@pytest.mark.parametrize(
    ("limits", "name", "reason"),
    [
        ({"smallest_brain_mm3": (3e4, 1e4)}, "look", "ml only"),
        ({"smallest_brain_mm3": (3e4, 2.9e4)}, "reject", "ml only"),
        ({"largest_brain_mm3": (1e4, 9e4)}, "look", "brain of"),
        ({"largest_brain_mm3": (1e4, 2e4)}, "reject", "brain of"),
        ({"agreement": (1.1, 0.1)}, "look", "views agree"),
        ({"agreement": (1.2, 1.1)}, "reject", "views agree"),
        ({"symmetry": (1.1, 0.1)}, "look", "one side"),
        ({"symmetry": (1.2, 1.1)}, "reject", "one side"),
        ({"contrast": (9, 0.1)}, "look", "not T1"),
        ({"contrast": (9, 8)}, "reject", "not T1"),
        ({"missing": (1, 99)}, "look", "not found"),
        ({"missing": (1, 1)}, "reject", "not found"),
        ({"rejected": (-1, 2)}, "look", "2 structures rejected"),
        ({"rejected": (-2, -1)}, "reject", "2 structures rejected"),
        ({"cut_mm2": (-1, 9e9)}, "look", "the field of view ends"),
        ({"cut_mm2": (-2, -1)}, "reject", "the field of view ends"),
        ({"saturated": (-1, 9)}, "look", "saturated"),
        ({"saturated": (-2, -1)}, "reject", "saturated"),
        ({"noise": (-1, 9)}, "look", "noise of"),
        ({"noise": (-2, -1)}, "reject", "noise of"),
        ({"bands": (-1, 9)}, "look", "white matter is uneven"),
        ({"bands": (-2, -1)}, "reject", "white matter is uneven"),
        ({"edges": (9, -1)}, "look", "edges of white matter"),
        ({"edges": (9, 8)}, "reject", "edges of white matter"),
        ({"spacing_mm": (0.5, 9)}, "look", "voxels are 1.0 mm apart"),
        ({"spacing_mm": (0.4, 0.5)}, "reject", "voxels are 1.0 mm apart"),
    ],
)
def test_each_pair_of_limits_gives_its_reason_and_no_other(
    found, limits, name: str, reason: str
) -> None:
    verdict = grade(found.evidence, replace(MINIATURE, **limits))
    assert verdict.name == name
    assert len(verdict.reasons) == 1
    assert reason in verdict.reasons[0]


def test_half_a_head_is_rejected_by_its_missing_side(found: Prediction) -> None:
    # Derived from a good result, because the output for half a head depends on the last bits.
    fused = found.fused.clone()
    fused[20:] = 0
    fused[20:, ..., 0] = 1
    verdict = grade(replace(found, fused=fused).evidence, MINIATURE)
    assert verdict.name == "reject"
    assert any("one side has" in reason for reason in verdict.reasons)


@pytest.mark.slow
@pytest.mark.important
def test_noise_that_is_no_head_fails_with_the_shipped_limits(
    segmenter: Predictor,
) -> None:
    noise = np.random.default_rng(0).gamma(2, 50, (64, 64, 64)).astype(np.float32)
    assert grade(segmenter.segment(Volume(noise, np.eye(4))).evidence).name == "reject"


SMALL_FIELD = (
    96,
    112,
    96,
)  # the brain's size is ignored here


def ball() -> np.ndarray:
    return (_radius() < 0.9).astype(np.float32)


def box() -> np.ndarray:
    return (np.abs(_places()).max(axis=0) < 0.9).astype(np.float32)


def trunk() -> np.ndarray:
    """Return slices of a body: fat around muscle, two dark lungs, a bright spine."""
    x, y, _ = _places()
    radius = np.hypot(x, 1.3 * y)
    values = np.where(radius < 0.9, 0.9, 0.0)
    values[radius < 0.75] = 0.45
    for side in (-0.35, 0.35):
        values[np.hypot(x - side, y) < 0.25] = 0.05
    values[np.hypot(x, y - 0.4) < 0.1] = 0.7
    return values.astype(np.float32)


def noise() -> np.ndarray:
    return np.random.default_rng(0).gamma(2, 0.5, SMALL_FIELD).astype(np.float32)


def _places() -> np.ndarray:
    lines = (np.linspace(-1, 1, n, dtype=np.float32) for n in SMALL_FIELD)
    return np.stack(np.meshgrid(*lines, indexing="ij"))


def _radius() -> np.ndarray:
    return np.sqrt((_places() ** 2).sum(axis=0))


def shipped_grade(image: np.ndarray, affine: np.ndarray) -> Grade:
    """Grade by the shipped model and its limits, except the brain's size."""
    segmenter = Predictor(find_model("fast"), device="cpu")
    limits = replace(
        limits_of(segmenter.model.info),
        smallest_brain_mm3=(0.0, 0.0),
    )
    return grade(segmenter.segment(Volume(image, affine)).evidence, limits)


@pytest.mark.slow
@pytest.mark.parametrize("thing", [ball, box, trunk, noise])
def test_what_is_no_head_fails_whatever_its_size(thing) -> None:
    clean = thing()
    air = 0.03 * np.random.default_rng(0).standard_normal((2, *SMALL_FIELD)).astype(
        np.float32
    )
    image = np.hypot(clean + air[0], air[1])
    assert shipped_grade(image, np.eye(4)).name == "reject"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "share"), [(inverted, 1.0), (cut, 0.5)], ids=["T2-like", "half a head"]
)
def test_a_head_that_is_not_as_it_should_be_fails(change, share) -> None:
    scan, _ = middle(1)
    changed = change(scan.data, np.random.default_rng(0), share)
    assert shipped_grade(np.asarray(changed, np.float32), scan.affine).name == "reject"
