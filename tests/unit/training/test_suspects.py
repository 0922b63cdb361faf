"""Scores of suspect labels against a better network, with values worked out by hand."""

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
    are_judged,
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
    return Look(truth, boxes(), np.array(loss))


def test_right_labels_have_no_shift_no_exchanged_sides_and_a_dice_of_one() -> None:
    found = summarise([seen(boxes())], PARTNERS)
    assert found.measures == {
        "loss": 2.0, "slice loss": 3.0, "sides": 0.0, "shift": 0.0
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
    empty = Look(boxes() * 0, boxes() * 0, np.array([9.0, 9.0]))
    assert summarise([empty], PARTNERS).measures["slice loss"] == 0


def test_the_loss_of_a_small_slice_counts_in_proportion() -> None:
    labels = np.zeros((3, 16, 16), np.uint8)
    labels[:2, 2:12, 2:12] = 1  # 100 voxels in two slices,
    labels[2, 2:7, 2:7] = 1  # and 25 at the end of the brain
    losses = np.array([1.0, 2.0, 6.0])
    found = summarise([Look(labels, labels, losses)], PARTNERS)
    assert found.measures["slice loss"] == 2
    assert found.worst == (0, 1)
    losses[2] = 9
    found = summarise([Look(labels, labels, losses)], PARTNERS)
    assert found.measures["slice loss"] == 9 * 25 / 100
    assert found.worst == (0, 2)


LIMIT = 3.0
NAMES = ("background", "left", "right", "middle")


def evidence(
    labelled: tuple[int, ...] = (500, 500, 500), missed: int = 0, **changes: float
) -> SubjectSummary:
    """Return evidence in which all labels are predicted, except `missed` voxels.

    These are of the midline structure. Both halves of the slices are alike.
    """
    joint = np.diag([0, *labelled])
    joint[3, 3] -= missed
    joint[3, 0] += missed
    measures = dict.fromkeys(MEASURES, 0.0) | changes
    half = joint // 2
    halves = np.array([half, joint - half])
    return SubjectSummary(measures, halves, (0, 0), np.zeros((4, 2), int))


def test_whatever_differs_most_from_the_other_subjects_decides_the_order() -> None:
    usual = {f"s{n}": evidence(loss=1 + n / 100) for n in range(5)}
    strange = {"lost": evidence(missed=200), "swapped": evidence(sides=1.0)}
    ranked = rank(usual | strange, NAMES, PARTNERS, LIMIT)
    assert ranked["why"][:2].to_dict() == {
        "swapped": MEASURES["sides"],
        "lost": "middle differs",
    }
    # A size of 320 against a predicted 520 is 37 usual spreads off, exchanged sides are 31.
    assert ranked.index[0] == "lost"


def test_exchanged_sides_are_the_reason_whatever_they_cost() -> None:
    found = {f"s{n}": evidence(loss=1 + n / 100) for n in range(5)}
    found["mirrored"] = evidence(loss=9.0, shift=3.0, sides=0.98)
    found["lost"] = evidence(loss=9.0, sides=0.01)
    ranked = rank(found, NAMES, PARTNERS, LIMIT)
    assert ranked.loc["mirrored", "why"] == MEASURES["sides"]
    assert ranked.loc["lost", "why"] == MEASURES["loss"]


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
    halves = np.array([np.diag([0, 250, 250, 5])] * 2)
    small = usual["s0"]._replace(halves=halves)
    first = rank({**usual, "small": small}, NAMES, PARTNERS, LIMIT).iloc[0]
    assert (first.name, first["why"]) == ("small", "middle differs")


def test_sides_are_compared_where_all_heads_differ_in_size() -> None:
    # For example thalami of 300 to 700 voxels: one of 550 stands out only beside its partner.
    found = {f"s{n}": evidence((300 + 100 * n, 300 + 100 * n, 500)) for n in range(5)}
    first = rank(
        {**found, "swollen": evidence((550, 400, 500))}, NAMES, PARTNERS, LIMIT
    ).iloc[0]
    assert first.name == "swollen"
    assert first["structure"] in ("left", "right")


def in_halves(first: int, second: int) -> SubjectSummary:
    """Return the midline structure with these voxels in every other slice."""
    halves = np.array([np.diag([0, 50_000, 50_000, size]) for size in (first, second)])
    return evidence()._replace(halves=halves)


def test_three_of_five_that_are_alike_by_chance_do_not_accuse_the_others() -> None:
    # The spread of three equal losses is 0. The usual one is 0.05 of 1 + loss, and counts half.
    found = {f"s{n}": evidence(loss=1.0) for n in range(4)} | {"s4": evidence(loss=1.2)}
    scores = rank(found, NAMES, PARTNERS, LIMIT)["score"]
    assert scores["s4"] == pytest.approx(0.2 / (2 * 0.05 * np.sqrt(0.5)))


def test_a_structure_that_one_half_of_the_slices_shows_accuses_nobody() -> None:
    # A small one between two slices: in three subjects one slice meets it, in two both do.
    sizes = [(60, 0), (0, 60), (60, 0), (60, 60), (60, 60)]
    found = {f"s{n}": in_halves(*halves) for n, halves in enumerate(sizes)}
    assert are_judged(found.values()).tolist() == [True, True, False]
    # Only the smaller share of the other structures remains.
    assert (rank(found, NAMES, PARTNERS, LIMIT)["score"] < 0.1).all()


def test_a_size_that_the_choice_of_slices_decides_is_less_suspect() -> None:
    # Six subjects of 400 voxels and one of 600; the halves of the six are alike or 3 to 1.
    def score(first: int, second: int) -> float:
        found = {f"s{n}": in_halves(first, second) for n in range(6)}
        found["s6"] = in_halves(300, 300)
        return float(rank(found, NAMES, PARTNERS, LIMIT).loc["s6", "score"])

    apart = np.log(620 / 200_660) - np.log(420 / 200_460)
    # They have no spread of their own, so the minimum for structures, 0.02, weighs 5 of 12
    # subjects.
    assert score(200, 200) == pytest.approx(apart / (0.02 * np.sqrt(5 / 12)), rel=1e-6)
    # In the halves: 10 voxels are added to each size, and 20 to the size of all slices.
    of_slices = np.log(310 / 100_330) - np.log(110 / 100_130)
    expected = apart / (1.4826 * of_slices / 2)
    assert score(300, 100) == pytest.approx(expected, rel=1e-6)


def two_classes(weight: float) -> QuickNat:
    """Return a network that calls bright pixels class 1: logits 0 and `weight` (x - 0.5)."""
    network = QuickNat(QuickNatConfig(classes=2, filters=1, depth=1, excitation="none"))
    network.features = lambda slices: slices  # type: ignore[method-assign]
    classifier = network.classifier
    nn.init.zeros_(classifier.weight)
    nn.init.zeros_(classifier.bias)
    with torch.no_grad():
        classifier.weight[1] = weight
        classifier.bias[1] = -weight / 2
    return network.eval()


def test_loss_of_one_bright_pixel_that_is_called_background() -> None:
    slices, truth = torch.zeros(2, 1, 2, 2), torch.zeros(2, 2, 2, dtype=torch.uint8)
    slices[:, 0, 0, 0] = 1
    truth[0, 0, 0] = 1
    found = look(two_classes(8.0), slices, truth)
    assert found.predicted[:, 0, 0].tolist() == [1, 1]
    # Logits 0 and 4 at the bright pixel, the only one that counts.
    right, wrong = np.log1p(np.exp(-4)), np.log1p(np.exp(4))
    np.testing.assert_allclose(found.loss, [right, wrong], rtol=1e-5)


def test_what_is_ignored_costs_nothing_and_is_seen_nowhere() -> None:
    slices = torch.ones(1, 1, 2, 2)
    found = look(
        two_classes(8.0), slices, torch.full((1, 2, 2), 255, dtype=torch.uint8)
    )
    assert found.loss.tolist() == [0]
    assert not found.predicted.any()
    assert not found.truth.any()
