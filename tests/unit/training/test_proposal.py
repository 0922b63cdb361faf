"""Which scan to correct next: the one that is like most of the doubt that is left."""

from __future__ import annotations

import numpy as np
import pytest

from trinat.segmentation.training.proposal import likeness, propose

# Three scans that are alike, and two others, of which nobody is like them or each other.
ALIKE = np.eye(5)
ALIKE[:3, :3] = 1
PERSONS = ("a", "b", "c", "d", "e")


def chosen(
    doubts: list[float],
    corrected: tuple[int, ...] = (),
    persons: tuple[str, ...] = PERSONS,
) -> list[int]:
    proposals = propose(ALIKE, np.array(doubts), persons, corrected, 3)
    return [proposal.scan for proposal in proposals]


def test_the_scan_that_is_like_most_others_comes_first_and_then_what_it_does_not_teach() -> (
    None
):
    assert chosen([0.1, 0.1, 0.1, 0.1, 0.2]) == [0, 4, 3]


def test_much_doubt_in_one_scan_counts_more_than_many_scans_without() -> None:
    assert chosen([0.01, 0.01, 0.01, 0.5, 0.1]) == [3, 4, 0]


def test_what_is_like_a_corrected_scan_is_taught_already() -> None:
    # Only the doubt of 3 and 4 is left; then nothing is, and the next person comes.
    assert chosen([0.4, 0.4, 0.4, 0.1, 0.2], corrected=(1,)) == [4, 3, 0]


def test_no_person_comes_twice() -> None:
    persons = ("a", "a", "a", "d", "d")
    assert chosen([0.1, 0.1, 0.1, 0.1, 0.2], persons=persons) == [0, 4]
    assert chosen([0.1] * 5, corrected=(3,), persons=persons) == [0]


def test_shares_are_of_all_doubt() -> None:
    doubts = np.array([0.1, 0.1, 0.1, 0.1, 0.2])
    proposals = propose(ALIKE, doubts, PERSONS, (), 2)
    assert [proposal.share for proposal in proposals] == pytest.approx([0.5, 1 / 3])
    assert propose(ALIKE, np.zeros(5), PERSONS, (), 1)[0].share == 0


def test_likeness_falls_with_the_distance_in_units_of_what_is_usual() -> None:
    # 0, 1 and 2 on a line, in any unit: squares of distances 1, 1 and 4, whose median is 1.
    features = np.array([[0.0], [30.0], [60.0]])
    near = np.exp(-0.5)
    far = np.exp(-2)
    expected = [[1, near, far], [near, 1, near], [far, near, 1]]
    np.testing.assert_allclose(likeness(features), expected)
    # What is constant, or not known of a scan, tells nobody apart.
    more = np.column_stack([features, np.full(3, 7.0), [np.nan] * 3])
    np.testing.assert_allclose(likeness(more), expected)
    np.testing.assert_array_equal(likeness(np.ones((2, 3))), np.ones((2, 2)))
    np.testing.assert_array_equal(likeness(np.empty((1, 0))), [[1.0]])
