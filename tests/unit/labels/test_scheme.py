"""The shipped label schemes: their classes, the sagittal merge, and structures by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.numbers import QUICKNAT, fold, fs
from helpers.refusals import refusal

from trinat.segmentation import labels
from trinat.segmentation.errors import LabelError
from trinat.segmentation.labels import SHIPPED_SCHEMES
from trinat.segmentation.labels.class_map import outer_rim
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.views import View

CONFIGS = Path(__file__).parents[3] / "configs"

# --- the shipped schemes ---


def test_the_33_classes_ascend_by_freesurfer_number() -> None:
    left = [2, 3, 4, 5, 7, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 24, 26, 28]
    right = [41, 42, 43, 44, 46, 47, 49, 50, 51, 52, 53, 54, 58, 60]
    assert QUICKNAT.fs_ids.tolist() == [0, *left, *right]
    assert len(QUICKNAT) == 33


def test_partners_are_the_same_structure_on_the_other_side() -> None:
    for label in QUICKNAT.labels:
        if label.partner is None:
            assert label.side is None
            continue
        partner = QUICKNAT.labels[label.partner]
        assert {label.name[:5], partner.name[:5]} == {"Left-", "Right"}
        assert label.name.split("-", 1)[1] == partner.name.split("-", 1)[1]
    assert sum(label.partner is None for label in QUICKNAT.labels) == 5
    assert not QUICKNAT.has_unpartnered_sides


def test_swapping_sides_twice_changes_nothing() -> None:
    swap = QUICKNAT.partner_permutation
    assert swap[QUICKNAT.names.index("Left-Hippocampus")] == QUICKNAT.names.index(
        "Right-Hippocampus"
    )
    assert swap[QUICKNAT.names.index("CSF")] == QUICKNAT.names.index("CSF")
    np.testing.assert_array_equal(swap[swap], np.arange(33))


def test_names_and_colours_are_those_of_freesurfers_table() -> None:
    thalamus = QUICKNAT.labels[7]
    assert (thalamus.name, thalamus.fs_id, thalamus.color) == (
        "Left-Thalamus",
        10,
        (0, 118, 14),
    )
    assert QUICKNAT.labels[2].color == (205, 62, 78)


def test_shared_arrays_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        QUICKNAT.fs_ids[0] = 1


# --- the sagittal merge ---


def test_the_merged_scheme_has_one_class_a_pair() -> None:
    merged = QUICKNAT.merged.scheme
    assert len(merged) == 19
    assert merged.names[:3] == (
        "background",
        "Cerebral-White-Matter",
        "Cerebral-Cortex",
    )
    assert not any("Left" in name or "Right" in name for name in merged.names)
    assert len(set(merged.names)) == 19
    np.testing.assert_array_equal(merged.partner_permutation, np.arange(19))


def test_expanding_gives_each_class_the_value_of_its_merged_one() -> None:
    merged = QUICKNAT.merged
    values = np.array(merged.scheme.names)[merged.to_merged]
    for label, value in zip(QUICKNAT.labels, values, strict=True):
        assert label.name.removeprefix("Left-").removeprefix("Right-") == value


def test_the_merged_scheme_reads_both_sides_and_needs_no_nearest_one() -> None:
    assert fs(17, 53, 77, 1003, 2003, scheme=QUICKNAT.merged.scheme) == [
        17,
        17,
        2,
        3,
        3,
    ]


# --- tissue4 and left4 ---


def test_tissues_take_in_all_structures() -> None:
    tissue = load_scheme("tissue4")
    assert tissue.names == ("background", "CSF", "Grey-Matter", "White-Matter")
    assert fold(4, 24, 15, 1002, 17, 47, 41, 251, 16, 30, scheme=tissue) == [
        1, 1, 1, 2, 2, 2, 3, 3, 3, 0,
    ]  # fmt: skip
    every = tissue.from_freesurfer(QUICKNAT.fs_ids[1:])
    assert every.min() > 0


def test_left4_keeps_the_left_hemisphere_and_draws_the_rim_of_its_cortex() -> None:
    left4 = load_scheme("left4")
    assert left4.names == (
        "background",
        "LeftCerebralExterior",
        "LeftWhiteMatter",
        "LeftCerebralCortex",
    )
    # The rim is one voxel that is not brain: hippocampus (17) beside cortex is not outside.
    assert fold(0, 0, 3, 2, 2, 3, 17, 0, scheme=left4) == [0, 1, 3, 2, 2, 3, 0, 0]
    assert fold(42, 41, 53, 0, 0, scheme=left4) == [0, 0, 0, 0, 0]


def test_left4_takes_a_given_exterior_as_it_is() -> None:
    assert fold(1, 0, 3, 0, scheme=load_scheme("left4")) == [1, 0, 3, 0]


def test_left4_sends_sideless_voxels_to_their_side() -> None:
    assert fold(2, 251, 0, 253, 41, scheme=load_scheme("left4")) == [2, 2, 0, 0, 0]


def test_only_sagittal_slices_show_no_sides() -> None:
    scheme = load_scheme("quicknat33")
    assert [len(scheme.seen_in(view)) for view in View] == [33, 33, 19]


def test_a_scheme_of_one_side_has_no_merge() -> None:
    left4 = load_scheme("left4")
    assert left4.has_unpartnered_sides
    with pytest.raises(LabelError, match="on one side only"):
        _ = left4.merged


def test_the_rim_shares_a_face_with_the_mask() -> None:
    mask = np.zeros((3, 3, 3), bool)
    mask[1, 1, 1] = True
    rim = outer_rim(mask)
    assert rim.sum() == 6
    assert not rim[1, 1, 1]
    assert rim[0, 1, 1]
    assert rim[1, 1, 2]


def test_the_schemes_are_the_tables_that_have_a_row_for_each_class() -> None:
    tables = {path.stem for path in (CONFIGS / "labels").glob("*.tsv")}
    others = {"dicom-codes", "freesurfer-folding", "neuromorphometrics-folding"}
    assert set(SHIPPED_SCHEMES) == tables - others
    assert SHIPPED_SCHEMES[0] == "quicknat33"


def test_what_else_lies_among_the_tables_is_no_scheme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tmp_path / "labels"
    (tables / "older").mkdir(parents=True)
    (tables / ".DS_Store").write_bytes(b"\0\0\0\1Bud1\xff")
    (tables / "own-folding.tsv").write_text("from\tto\n")
    for name in ("quicknat33", "own"):
        (tables / f"{name}.tsv").write_text("index\tname\n")
    monkeypatch.setattr(labels.resources, "files", lambda package: tmp_path)
    assert labels._shipped_schemes() == ("quicknat33", "own")


def test_an_unknown_name_lists_the_shipped_schemes() -> None:
    with refusal(LabelError, "quicknat34") as refused:
        load_scheme("quicknat34")
    assert "quicknat33, tissue4, neuromorphometrics49" in str(refused.value)


# --- structures by name ---


@pytest.mark.parametrize(
    "structure",
    ["Left-Hippocampus", "left hippocampus", "L_Hi", "l-hi", 17, "17", np.int16(17)],
)
def test_a_structure_is_found_by_name_abbreviation_and_number(structure) -> None:
    assert load_scheme("quicknat33").find(structure).index == 14


@pytest.mark.parametrize(
    ("structure", "message"),
    [
        ("Hippocampus", "has two sides: name Left-Hippocampus or Right-Hippocampus$"),
        ("hi", "has two sides: name Left-Hippocampus or Right-Hippocampus$"),
        (
            "Left-Hipocampus",
            "no structure of quicknat33: did you mean Left-Hippocampus or",
        ),
        ("brainstem", "did you mean Brain-Stem"),
        (
            1000,
            "no structure of quicknat33: give a name, an abbreviation or a FreeSurfer number",
        ),
        (None, "no structure of quicknat33: give a name"),
    ],
)
def test_what_is_no_structure_is_told_the_nearest(structure, message: str) -> None:
    with pytest.raises(LabelError, match=message):
        load_scheme("quicknat33").find(structure)


def test_a_structure_on_one_side_alone_needs_no_side() -> None:
    scheme = load_scheme("left4")
    assert scheme.labels[1].abbreviation == "L-CE"
    assert scheme.find("CE") == scheme.labels[1]
