"""Measures of labels against a network that knows better, with values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from segmentation.models.quicknat import QuickNat, QuickNatConfig
from segmentation.training.suspects import MEASURES, Evidence, Look, look, rank, summarise

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
    assert found.dice.tolist() == [1, 1, 1, 1]
    assert found.worst == (0, 1)


def test_exchanged_sides_are_seen_as_such() -> None:
    found = summarise([seen(PARTNERS.astype(np.uint8)[boxes()])], PARTNERS)
    assert found.measures["sides"] == 1
    assert found.dice.tolist() == [1, 0, 0, 1]


def test_a_shift_is_measured_in_voxels() -> None:
    moved = np.roll(boxes(), (3, -1), (1, 2))
    expected = np.hypot(3, 1)
    assert summarise([seen(moved)], PARTNERS).measures["shift"] == pytest.approx(expected)


def test_a_slice_with_hardly_a_voxel_counts_as_right() -> None:
    empty = Look(boxes() * 0, boxes() * 0, np.array([9.0, 9.0]), np.array([9.0, 9.0]))
    assert summarise([empty], PARTNERS).measures["slice loss"] == 0


def evidence(dice: tuple[float, ...] = (1, 0.9, 0.9), **changes: float) -> Evidence:
    voxels = np.array([0, 500, 500])
    return Evidence(dict.fromkeys(MEASURES, 0.0) | changes, np.array(dice), voxels, (0, 0))


def test_whatever_differs_most_from_the_other_subjects_decides_the_order() -> None:
    usual = {f"s{n}": evidence(loss=1 + n / 100) for n in range(5)}
    strange = {"lost": evidence((1, 0.9, 0.0)), "swapped": evidence(sides=1.0)}
    ranked = rank(usual | strange, ("background", "first", "second"))
    assert [(s.subject, s.why) for s in ranked[:2]] == [
        ("swapped", MEASURES["sides"]),
        ("lost", "second differs"),
    ]


def test_a_structure_that_most_subjects_lack_accuses_nobody() -> None:
    found = {f"s{n}": evidence((1, 0.9, np.nan)) for n in range(5)}
    assert {s.score for s in rank(found, ("background", "first", "second"))} == {0.0}


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
    found = look(two_classes(8.0), slices, torch.full((1, 2, 2), 255, dtype=torch.uint8))
    assert found.loss.tolist() == [0]
    assert not found.predicted.any()
    assert not found.truth.any()


def test_a_structure_of_an_unusual_size_is_seen_even_where_the_model_knows_it_badly() -> None:
    usual = {f"s{n}": evidence((1, 0.9, 0.1)) for n in range(5)}
    small = Evidence(usual["s0"].measures, usual["s0"].dice, np.array([0, 500, 100]), (0, 0))
    first = rank({**usual, "small": small}, ("background", "first", "second"))[0]
    assert (first.subject, first.why) == ("small", "second differs")
