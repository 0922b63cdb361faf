"""Structures and the parcels of their cortex as one scheme."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.numbers import fold, fs

from trinat.segmentation.errors import LabelError
from trinat.segmentation.labels.parcels import Parcellation
from trinat.segmentation.labels.scheme import LOBES, LabelScheme, load_scheme

STRUCTURES = load_scheme("quicknat33")
PARCELS = load_scheme("desikan34")
DESIKAN = Parcellation(STRUCTURES, PARCELS)
MANUAL = Parcellation(STRUCTURES, load_scheme("neuromorphometrics49"))


def test_desikan34_are_freesurfers_parcels_without_the_corpus_callosum() -> None:
    numbers = [label.numbers for label in PARCELS.labels[1:]]
    assert numbers == [(1000 + n, 2000 + n) for n in range(1, 36) if n != 4]
    insula = PARCELS.find("insula")
    assert (insula.fs_id, insula.color, insula.group) == (
        1035,
        (255, 192, 32),
        "insula",
    )
    assert {label.group for label in PARCELS.labels[1:]} == set(LOBES)


def test_the_table_desikan_is_what_structures_and_parcels_give() -> None:
    assert DESIKAN.whole.labels == load_scheme("desikan").labels


def test_neuromorphometrics49_are_the_raters_parcels_left_before_right() -> None:
    # Neuromorphometrics has a number for each gyrus; these were not labelled separately.
    not_drawn = {110, 126, 130, 158, 188}
    right = [n for n in range(100, 208, 2) if n not in not_drawn]
    numbers = [label.numbers for label in MANUAL.parcels.labels[1:]]
    assert numbers == [(30001 + n, 30000 + n) for n in right]
    insula = MANUAL.parcels.find("anterior insula")
    assert (insula.fs_id, insula.abbreviation, insula.group) == (
        30103,
        "AIns",
        "insula",
    )
    assert {label.group for label in MANUAL.parcels.labels[1:]} == set(LOBES)


def test_the_table_neuromorphometrics_is_what_structures_and_parcels_give() -> None:
    assert MANUAL.whole.labels == load_scheme("neuromorphometrics").labels
    assert len(MANUAL.whole) == 31 + 2 * 49


def test_numbers_of_the_two_conventions_never_meet() -> None:
    of_desikan = {label.fs_id for label in DESIKAN.whole.labels if label.fs_id > 1000}
    of_manual = {label.fs_id for label in MANUAL.whole.labels if label.fs_id > 1000}
    assert (len(of_desikan), len(of_manual)) == (68, 98)
    assert not of_desikan & of_manual


def test_parcels_stand_in_place_of_the_cortex_on_its_side() -> None:
    names = STRUCTURES.names
    structures = [
        names.index("background"),
        names.index("Left-Hippocampus"),
        names.index("Left-Cerebral-Cortex"),
        names.index("Right-Cerebral-Cortex"),
    ]
    insula = PARCELS.find("insula").index
    joined = DESIKAN.join(np.array(structures), np.full(4, insula))
    numbers = DESIKAN.whole.to_freesurfer(joined)
    assert numbers.tolist() == [0, 17, 1035, 2035]
    np.testing.assert_array_equal(
        DESIKAN.is_cortex(np.array(structures)), [False, False, True, True]
    )


def test_cortex_without_a_parcel_is_background() -> None:
    cortex = STRUCTURES.find("Left-Cerebral-Cortex").index
    assert DESIKAN.join(np.array([cortex]), np.array([0])).tolist() == [0]


def test_partners_are_the_same_parcel_on_the_other_side() -> None:
    whole = DESIKAN.whole
    left = whole.find("ctx-lh-insula")
    assert left.partner is not None
    assert whole.names[left.partner] == "ctx-rh-insula"
    # Without the side, both have one name.
    assert "insula" in whole.merged.scheme.names


def test_structures_without_sides_have_no_parcels() -> None:
    with pytest.raises(LabelError, match="no left and right cortex"):
        Parcellation(load_scheme("tissue4"), PARCELS)


def test_a_parcel_without_a_number_a_side_is_refused() -> None:
    first, second, *_ = PARCELS.labels
    one_sided = LabelScheme("own", (first, replace(second, members=(1001,))))
    with pytest.raises(LabelError, match="bankssts of own has 1 numbers"):
        Parcellation(STRUCTURES, one_sided)


@pytest.mark.parametrize(
    ("scheme", "number"),
    [
        ("desikan", 1036),
        ("desikan", 1101),  # a2005s
        ("desikan", 2999),
        ("desikan", 30101),  # Neuromorphometrics
        ("neuromorphometrics", 1035),
        ("desikan34", 2100),
    ],
)
def test_parcels_of_another_atlas_are_unknown_numbers(scheme: str, number: int) -> None:
    named = load_scheme(scheme)
    with pytest.raises(LabelError) as caught:
        fold(named.labels[-1].fs_id, number, scheme=named)
    assert f"{number} (1 voxel)" in str(caught.value)
    assert named.classes_of_number(number) == set()


def test_unknown_cortex_is_no_parcel_and_cortex_folds_parcels_of_any_atlas() -> None:
    unknown = (1000, 1004, 2000, 2004, 3, 42)
    assert set(fold(*unknown, scheme=load_scheme("desikan"))) == {0}
    assert fs(1101, 30101, 2100, 30100) == [3, 3, 42, 42]
