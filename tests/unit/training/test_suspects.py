"""Measures of labels against a network that knows better, with values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from trinat.segmentation.metrics.overlap import dice
from trinat.segmentation.models.quicknat import QuickNat, QuickNatConfig
from trinat.segmentation.training.suspects import (
    MEASURES,
    Look,
    SubjectSummary,
    _moderated,
    look,
    rank,
    summarise,
    where_to_look,
)

# Background, left and right of one structure, and a midline structure.
PARTNERS = np.array([0, 2, 1, 3])


def boxes() -> np.ndarray:
    labels = np.zeros((2, 16, 16), np.uint8)
    labels[:, 4:10, 2:7] = 1
    labels[:, 4:10, 9:14] = 2
    labels[:, 11:14, 6:10] = 3
    return labels


def seen(truth: np.ndarray, loss: tuple[float, float] = (1.0, 3.0)) -> Look:
    return Look(truth, boxes(), np.array(loss), np.array(loss) / 2)


def test_right_labels_have_no_shift_no_exchanged_sides_and_a_dice_of_one() -> None:
    found = summarise([seen(boxes())], PARTNERS)
    assert found.measures == {
        "loss": 2.0, "slice loss": 3.0, "gradient": 1.0, "sides": 0.0, "shift": 0.0
    }  # fmt: skip
    assert dice(found.joint).tolist() == [1, 1, 1, 1]
    assert found.worst == (0, 1)


def test_exchanged_sides_are_seen_as_such() -> None:
    found = summarise([seen(PARTNERS.astype(np.uint8)[boxes()])], PARTNERS)
    assert found.measures["sides"] == 1
    assert dice(found.joint).tolist() == [1, 0, 0, 1]


def test_a_shift_is_measured_in_voxels() -> None:
    moved = np.roll(boxes(), (3, -1), (1, 2))
    expected = np.hypot(3, 1)
    assert summarise([seen(moved)], PARTNERS).measures["shift"] == pytest.approx(
        expected
    )


def test_a_slice_with_hardly_a_voxel_counts_as_right() -> None:
    empty = Look(boxes() * 0, boxes() * 0, np.array([9.0, 9.0]), np.array([9.0, 9.0]))
    assert summarise([empty], PARTNERS).measures["slice loss"] == 0


LIMIT = 3.0
NAMES = ("background", "left", "right", "middle")


def evidence(
    labelled: tuple[int, ...] = (500, 500, 500), missed: int = 0, **changes: float
) -> SubjectSummary:
    """All that is labelled is predicted, but `missed` voxels of the midline structure."""
    joint = np.diag([0, *labelled])
    joint[3, 3] -= missed
    joint[3, 0] += missed
    measures = dict.fromkeys(MEASURES, 0.0) | changes
    return SubjectSummary(measures, joint, (0, 0), np.zeros((4, 2), int))


def test_whatever_differs_most_from_the_other_subjects_decides_the_order() -> None:
    usual = {f"s{n}": evidence(loss=1 + n / 100) for n in range(5)}
    strange = {"lost": evidence(missed=200), "swapped": evidence(sides=1.0)}
    ranked = rank(usual | strange, NAMES, PARTNERS, LIMIT)
    assert ranked["why"][:2].to_dict() == {
        "swapped": MEASURES["sides"],
        "lost": "middle differs",
    }
    assert ranked.index[0] == "swapped"


def test_who_is_not_suspect_has_no_reason_and_no_score_below_zero() -> None:
    found = {f"s{n}": evidence(loss=1 + n / 100) for n in range(5)}
    ranked = rank(found | {"swapped": evidence(sides=1.0)}, NAMES, PARTNERS, LIMIT)
    others = ranked.drop("swapped")
    assert set(others["why"]) == {""}
    assert set(others["structure"]) == {""}
    assert (others["score"] >= 0).all()
    assert ranked.loc["swapped", "why"] == MEASURES["sides"]


def test_the_slice_that_is_shown_is_that_of_the_structure_that_differs() -> None:
    truth = boxes()
    truth[1][truth[1] == 3] = 0
    truth[0, 4:10, 2:4] = 0
    # The loss is highest in the first slice; the second one lacks the midline structure.
    found = summarise([seen(truth, (9.0, 1.0))], PARTNERS)
    assert where_to_look(found, "middle differs", NAMES) == (0, 1)
    assert where_to_look(found, "left differs", NAMES) == (0, 0)
    assert where_to_look(found, MEASURES["loss"], NAMES) == (0, 0)


def test_a_structure_that_most_subjects_lack_accuses_nobody() -> None:
    found = {f"s{n}": evidence((500, 500, 0)) for n in range(5)}
    assert set(rank(found, NAMES, PARTNERS, LIMIT)["score"]) == {0.0}


def test_a_structure_of_an_unusual_size_is_seen_even_where_the_model_knows_it_badly() -> (
    None
):
    usual = {f"s{n}": evidence(missed=450) for n in range(5)}
    small = usual["s0"]._replace(joint=np.diag([0, 500, 500, 10]))
    first = rank({**usual, "small": small}, NAMES, PARTNERS, LIMIT).iloc[0]
    assert (first.name, first["why"]) == ("small", "middle differs")


def test_sides_are_compared_where_all_heads_differ_in_size() -> None:
    # Thalami, say, of 300 to 700 voxels: one of 550 is none to look at but beside its partner.
    found = {f"s{n}": evidence((300 + 100 * n, 300 + 100 * n, 500)) for n in range(5)}
    first = rank(
        {**found, "swollen": evidence((550, 400, 500))}, NAMES, PARTNERS, LIMIT
    ).iloc[0]
    assert first.name == "swollen"
    assert first["structure"] in ("left", "right")


def test_a_spread_that_few_subjects_show_is_drawn_to_that_of_other_structures() -> None:
    values = np.array([[0.0, 0.0], [1.0, 0.01], [2.0, -0.01], [-1.0, 0.0], [-2.0, 0.0]])
    found = np.abs(_moderated(values)).max(0)
    # Own spreads are 1.4826 and 0: half of the usual, 0.7413, is the least that counts.
    mixed = np.sqrt((5 * np.array([1.4826, 0]) ** 2 + 5 * 0.7413**2) / 10)
    np.testing.assert_allclose(found, [2, 0.01] / mixed, rtol=1e-6)


def two_classes(weight: float) -> QuickNat:
    """A network that calls bright pixels class 1: logits 0 and `weight` (x - 0.5)."""
    network = QuickNat(QuickNatConfig(classes=2, filters=1, depth=1, excitation="none"))
    network.features = lambda slices: slices  # type: ignore[method-assign]
    classifier = network.classifier
    nn.init.zeros_(classifier.weight)
    nn.init.zeros_(classifier.bias)
    with torch.no_grad():
        classifier.weight[1] = weight
        classifier.bias[1] = -weight / 2
    return network.eval()


def test_loss_and_gradient_of_one_bright_pixel_that_is_called_background() -> None:
    slices, truth = torch.zeros(2, 1, 2, 2), torch.zeros(2, 2, 2, dtype=torch.uint8)
    slices[:, 0, 0, 0] = 1
    truth[0, 0, 0] = 1
    found = look(two_classes(8.0), slices, truth)
    assert found.predicted[:, 0, 0].tolist() == [1, 1]
    # Logits 0 and 4 at the bright pixel, the only one that counts.
    right, wrong = np.log1p(np.exp(-4)), np.log1p(np.exp(4))
    np.testing.assert_allclose(found.loss, [right, wrong], rtol=1e-5)
    # Two weights and two biases each get plus or minus the error of the probability.
    share = 1 / (1 + np.exp(-4))
    np.testing.assert_allclose(found.gradient, [2 * (1 - share), 2 * share], rtol=1e-4)


def test_what_is_ignored_costs_nothing_and_is_seen_nowhere() -> None:
    slices = torch.ones(1, 1, 2, 2)
    found = look(
        two_classes(8.0), slices, torch.full((1, 2, 2), 255, dtype=torch.uint8)
    )
    assert found.loss.tolist() == [0]
    assert not found.predicted.any()
    assert not found.truth.any()
