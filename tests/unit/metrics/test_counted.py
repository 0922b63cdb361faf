"""Structures that count, for equal and different label schemes of prediction and evaluation."""

from __future__ import annotations

import pytest

from trinat.segmentation.errors import ConfigError
from trinat.segmentation.labels import Csf
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.metrics.counted import Made, made_by, members_of_groups

ALL, TISSUE, LEFT = (load_scheme(name) for name in ("quicknat33", "tissue4", "left4"))
UNKNOWN = "not predicted by this model"
VENTRICLES = (
    *("Left-Lateral-Ventricle", "Right-Lateral-Ventricle", "Left-Inf-Lat-Vent"),
    *("Right-Inf-Lat-Vent", "3rd-Ventricle", "4th-Ventricle"),
)


def test_what_the_model_does_not_know_does_not_count() -> None:
    assert Made(source=ALL, not_predicted=("CSF",)).left_out(ALL) == {"CSF": UNKNOWN}


def test_a_structure_of_another_scheme_counts_as_long_as_a_part_of_it_is_predicted() -> (
    None
):
    """CSF of tissue4 includes the ventricles, which a model without CSF predicts."""
    assert Made(source=ALL, not_predicted=("CSF",)).left_out(TISSUE) == {}
    nothing_of_it = Made(source=ALL, not_predicted=("CSF", *VENTRICLES))
    assert nothing_of_it.left_out(TISSUE) == {"CSF": UNKNOWN}


def test_a_participant_names_structures_in_the_words_of_the_evaluation() -> None:
    assert Made(named=("CSF",), source=ALL).left_out(TISSUE) == {"CSF": UNKNOWN}
    with pytest.raises(ConfigError, match="tissue4 has no 'Left-Thalamus'"):
        Made(named=("Left-Thalamus",), source=ALL).left_out(TISSUE)


def test_a_rejected_structure_does_not_count_where_it_stands_alone() -> None:
    rejected = {"Left-Thalamus": "anna", "CSF": "berta"}
    made = Made(source=ALL)
    assert made.left_out(ALL, rejected) == {
        "CSF": "rejected by berta",
        "Left-Thalamus": "rejected by anna",
    }
    assert made.rejected_but_measured(ALL, rejected) == set()


def test_a_rejected_part_of_a_structure_is_measured_and_said_to_be() -> None:
    rejected = {"Left-Thalamus": "anna", "CSF": "berta"}
    made = Made(source=ALL)
    assert made.left_out(TISSUE, rejected) == {}
    assert made.rejected_but_measured(TISSUE, rejected) == set(rejected)


def test_all_predicted_parts_rejected_is_all_rejected() -> None:
    made = Made(source=ALL, not_predicted=("CSF",))
    rejected = dict.fromkeys(VENTRICLES, "anna") | {"4th-Ventricle": "berta"}
    assert made.left_out(TISSUE, rejected) == {"CSF": "rejected by anna, berta"}


def test_a_rim_counts_as_long_as_what_it_is_made_around() -> None:
    made = Made(source=ALL, not_predicted=("CSF", "Left-Cerebral-White-Matter"))
    assert made.left_out(LEFT) == {"LeftWhiteMatter": UNKNOWN}


def test_a_ledger_says_what_is_predicted_in_the_words_of_its_model() -> None:
    known = [name for name in ALL.names[1:] if name != "CSF"]
    for scheme in (ALL, TISSUE):
        # No scheme has the structure that a rater named.
        for rated in ((), ("Nose",)):
            made = made_by(known, rated, scheme)
            assert made == Made(source=ALL, not_predicted=("CSF",))


@pytest.mark.parametrize("predicted", [(), ("Nose", "Left-Thalamus")])
def test_without_a_ledger_or_with_one_of_an_unknown_scheme_everything_counts(
    predicted: tuple[str, ...],
) -> None:
    assert made_by(predicted, (), ALL).left_out(ALL) == {}


def test_raters_words_tell_the_scheme_where_there_is_no_ledger() -> None:
    assert made_by((), {"Left-Thalamus"}, TISSUE).source == ALL


def test_the_mean_of_all_structures_is_without_background_and_csf() -> None:
    members = members_of_groups(ALL)
    names = [label.name for label in members["all"]]
    assert len(names) == 31
    assert not {"background", "CSF"} & set(names)
    assert not {"background", "csf"} & set(members)
    assert [label.name for label in members_of_groups(TISSUE)["all"]] == [
        "Grey-Matter",
        "White-Matter",
    ]


@pytest.mark.parametrize(
    ("made", "truth", "scheme", "left_out"),
    [
        ("intracranial", "region", ALL, {"CSF"}),
        ("intracranial", "region", TISSUE, {"CSF"}),
        ("intracranial", "intracranial", ALL, set()),
        ("region", "intracranial", ALL, {"CSF"}),
        ("region", "region", ALL, set()),
        # Nothing is known about the prediction, or there is no truth.
        (None, "region", ALL, set()),
        ("intracranial", None, ALL, set()),
    ],
)
def test_csf_is_not_compared_with_what_is_something_else(
    made: Csf | None, truth: Csf | None, scheme: LabelScheme, left_out: set[str]
) -> None:
    found = Made(source=ALL, csf=made).left_out(scheme, truth_csf=truth)
    reason = "not compared: the truth's CSF is something else"
    assert found == dict.fromkeys(left_out, reason)


def test_csf_that_is_not_predicted_is_that_alone() -> None:
    made = Made(source=ALL, not_predicted=("CSF",), csf="intracranial")
    assert made.left_out(ALL, truth_csf="region") == {"CSF": UNKNOWN}
