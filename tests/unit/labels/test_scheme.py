"""Label schemes: the classes, FreeSurfer's numbers in and out, the sagittal merge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import distance_transform_edt

from trinat.segmentation.errors import LabelError
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.folding import folding_table
from trinat.segmentation.labels.nearest_side import outer_rim
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.space.views import View

QUICKNAT = load_scheme("quicknat33")
HEADER = "index\tname\tfreesurfer\tside\tpartner\tcolor\tabbreviation\tgroup"
BACKGROUND = "0\tbackground\t0\tn/a\tn/a\t#000000\tBG\tbackground"
LEFT = "1\tLeft-Thing\t10\tleft\t2\t#00760E\tL-T\tthings"
RIGHT = "2\tRight-Thing\t49\tright\t1\t#00760E\tR-T\tthings"


def fold(*numbers: int, scheme: LabelScheme = QUICKNAT, **options: object) -> list[int]:
    """Classes of a row of FreeSurfer numbers."""
    row = np.array(numbers, np.int32).reshape(-1, 1, 1)
    return scheme.from_freesurfer(row, **options).ravel().tolist()  # type: ignore[arg-type]


def fs(*numbers: int, scheme: LabelScheme = QUICKNAT, **options: object) -> list[int]:
    """The same row after folding, as FreeSurfer numbers."""
    classes = np.array(fold(*numbers, scheme=scheme, **options))
    return scheme.to_freesurfer(classes).tolist()


def write(folder: Path, *lines: str) -> Path:
    path = folder / "mine.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


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


# --- FreeSurfer numbers to classes and back ---


def test_every_class_survives_the_way_there_and_back() -> None:
    numbers = QUICKNAT.fs_ids.astype(np.int32)
    assert fold(*numbers.tolist()) == list(range(33))
    assert QUICKNAT.to_freesurfer(np.arange(33, dtype=np.uint8)).dtype == np.int16
    np.testing.assert_array_equal(QUICKNAT.to_freesurfer(np.arange(33)), numbers)


@pytest.mark.parametrize(
    ("number", "target"),
    [
        (1000, 3), (1035, 3), (1999, 3), (2000, 42), (2035, 42), (2999, 42),
        (78, 2), (79, 41), (31, 4), (63, 43),
        (30, 0), (62, 0), (85, 0), (72, 0), (80, 0), (81, 0), (82, 0),
    ],
)  # fmt: skip
def test_a_number_outside_the_scheme_folds_into_its_structure(
    number: int, target: int
) -> None:
    assert fs(number) == [target]


def test_the_folding_table_holds_nothing_more() -> None:
    single = {30, 31, 62, 63, 72, 77, 78, 79, 80, 81, 82, 85, 251, 252, 253, 254, 255}
    assert set(folding_table()) == single | set(range(1000, 3000))


@pytest.mark.parametrize("number", [77, 251, 252, 253, 254, 255])
def test_a_sideless_number_joins_the_nearest_white_matter(number: int) -> None:
    assert fs(2, number, 0, 41) == [2, 2, 0, 41]
    assert fs(2, 0, number, 41) == [2, 0, 41, 41]


def test_between_equal_distances_sides_alternate_from_voxel_to_voxel() -> None:
    assert fs(41, 0, 77, 0, 2) == [41, 0, 2, 0, 2]
    assert fs(0, 41, 0, 77, 0, 2) == [0, 41, 0, 41, 0, 2]


def test_a_symmetric_callosum_is_divided_into_halves() -> None:
    # White matter of 10x10 voxels on each side, between them five planes of callosum.
    numbers = np.repeat([2, 251, 251, 251, 251, 251, 41], 100).reshape(7, 10, 10)
    classes = QUICKNAT.from_freesurfer(numbers)[1:6]
    assert (QUICKNAT.to_freesurfer(classes) == 2).sum() == 250
    assert (QUICKNAT.to_freesurfer(classes) == 41).sum() == 250


def test_rounding_does_not_break_a_tie() -> None:
    # At 0.1 mm, 7 - 4 and 4 - 1 voxels differ in the last bit of their distance.
    assert fs(0, 2, 0, 0, 251, 0, 0, 41, spacing_mm=(0.1, 1.0, 1.0))[4] == 2
    assert fs(2, 0, 0, 251, 0, 0, 41, spacing_mm=(0.1, 1.0, 1.0))[3] == 41


def test_nearest_is_in_millimetres() -> None:
    plane = np.zeros((2, 3, 1), np.int16)
    plane[0, 0], plane[1, 0], plane[0, 2] = 251, 2, 41
    assert QUICKNAT.from_freesurfer(plane)[0, 0, 0] == 1
    assert QUICKNAT.from_freesurfer(plane, spacing_mm=(3.0, 1.0, 1.0))[0, 0, 0] == 19


def test_white_matter_of_a_known_side_counts_as_near() -> None:
    assert fs(78, 77, 0, 41)[1] == 2


def test_nearest_agrees_with_a_distance_map() -> None:
    rng = np.random.default_rng(5)
    numbers = rng.choice(
        [0, 2, 41, 77, 253], (24, 20, 18), p=[0.9, 0.02, 0.02, 0.03, 0.03]
    )
    spacing = (0.8, 1.0, 2.5)
    to_left = distance_transform_edt(numbers != 2, sampling=spacing)
    to_right = distance_transform_edt(numbers != 41, sampling=spacing)
    sideless = np.isin(numbers, [77, 253])
    is_even = np.indices(numbers.shape).sum(axis=0) % 2 == 0
    is_tie = np.isclose(to_left, to_right)
    joins_left = np.where(is_tie, is_even, to_left < to_right)
    expected = np.where(joins_left, 1, 19)[sideless]
    found = QUICKNAT.from_freesurfer(numbers, spacing_mm=spacing)[sideless]
    np.testing.assert_array_equal(found, expected)
    assert set(found.tolist()) == {1, 19}


def test_sideless_voxels_without_any_white_matter_are_refused() -> None:
    with pytest.raises(
        LabelError, match="2 voxels belong to the nearer of FreeSurfer's 2 and 41"
    ):
        fold(3, 251, 252)


def test_one_sides_white_matter_is_enough() -> None:
    assert fs(251, 0, 41) == [41, 0, 41]


def test_unknown_numbers_are_listed_with_their_counts() -> None:
    with pytest.raises(LabelError) as refused:
        fold(0, 2, 99, 99, 99, 6, where="scan.mgz")
    assert str(refused.value) == (
        "scan.mgz: holds label numbers that quicknat33 does not know: 6 (1 voxel), 99 (3 voxels): "
        "map them to known numbers, or ignore them"
    )


@pytest.mark.parametrize("number", [-1, 3000, 2**31 - 1, -(2**31)])
def test_numbers_beyond_the_table_are_unknown_too(number: int) -> None:
    with pytest.raises(LabelError, match=rf"does not know: {number} \(1 voxel\)"):
        fold(0, number)


@pytest.mark.parametrize(("count", "is_scan"), [(200, False), (201, True)])
def test_a_scan_in_place_of_labels_is_told_by_its_many_numbers(
    count: int, is_scan: bool
) -> None:
    with pytest.raises(LabelError) as refused:
        fold(*range(20_000, 20_000 + count))
    assert ("give a label map, not a scan" in str(refused.value)) == is_scan


def test_a_long_list_of_unknown_numbers_is_cut() -> None:
    with pytest.raises(LabelError, match=r"120 \(1 voxel\) and 5 more"):
        fold(*range(101, 126))


def test_ignored_numbers_become_background() -> None:
    assert fs(2, 99, 12175, ignore=[99, 12175]) == [2, 0, 0]


def test_mapped_numbers_follow_their_target() -> None:
    assert fs(136, 12, 77, 41, extra={136: 4, 12: 51, 77: 1001}) == [4, 51, 3, 41]


def test_a_number_mapped_to_a_sideless_one_finds_its_side() -> None:
    assert fs(2, 25, 0, 41, extra={25: 77}) == [2, 2, 0, 41]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"extra": {99: 98}}, "99 is mapped to 98, which quicknat33 does not know"),
        ({"extra": {99: 2}, "ignore": [99]}, "both mapped and ignored"),
        ({"ignore": [-3]}, "-3 is no label number"),
        ({"extra": {2**40: 2}}, "is no label number"),
    ],
)
def test_impossible_requests_are_refused(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(LabelError, match=message):
        fold(0, **options)


def test_fractions_are_refused() -> None:
    with pytest.raises(LabelError, match="integers, not float32"):
        QUICKNAT.from_freesurfer(np.zeros((2, 2, 2), np.float32))
    with pytest.raises(LabelError, match="integers, not float64"):
        QUICKNAT.to_freesurfer(np.zeros(3))


@pytest.mark.parametrize("bad", [-1, 33])
def test_indices_beyond_the_scheme_are_refused(bad: int) -> None:
    with pytest.raises(LabelError, match="no classes of quicknat33"):
        QUICKNAT.to_freesurfer(np.array([0, bad]))


@pytest.mark.parametrize("dtype", ["u1", "i2", ">i4", "i8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_any_integer_type_and_memory_order_will_do(dtype: str, order: str) -> None:
    numbers = np.random.default_rng(0).choice([0, 2, 41, 77, 17, 31], (5, 6, 7))
    given = np.array(numbers, dtype, order=order)  # type: ignore[call-overload]
    kept = given.copy()
    classes = QUICKNAT.from_freesurfer(given)
    assert classes.dtype == np.uint8
    np.testing.assert_array_equal(classes, QUICKNAT.from_freesurfer(numbers))
    np.testing.assert_array_equal(given, kept)


def test_an_empty_array_stays_empty() -> None:
    assert QUICKNAT.from_freesurfer(np.zeros((0, 3, 3), np.int16)).shape == (0, 3, 3)


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


def test_merging_joins_partners_and_nothing_else() -> None:
    to_merged = QUICKNAT.merged.to_merged
    swap = QUICKNAT.partner_permutation
    for first in range(33):
        for second in range(33):
            same = second in (first, swap[first])
            assert (to_merged[first] == to_merged[second]) == same


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
    # The rim is one voxel of what is not brain: hippocampus (17) beside cortex is not outside.
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


# --- one's own table ---


def test_an_own_table_is_a_scheme(tmp_path: Path) -> None:
    scheme = load_scheme(write(tmp_path, HEADER, BACKGROUND, LEFT, RIGHT))
    assert (scheme.name, scheme.names) == (
        "mine",
        ("background", "Left-Thing", "Right-Thing"),
    )
    assert scheme.labels[1].color == (0, 118, 14)
    assert len(scheme.merged.scheme) == 2
    with pytest.raises(LabelError, match="does not know: 2 "):
        fold(2, scheme=scheme)


def test_a_quotation_that_does_not_end_is_no_table(tmp_path: Path) -> None:
    for lines in ((f'"{HEADER}', BACKGROUND), (HEADER, f'"{BACKGROUND}')):
        with pytest.raises(LabelError, match="is no table: unexpected end of data"):
            load_scheme(write(tmp_path, *lines))


def test_an_own_class_goes_before_the_folding_table(tmp_path: Path) -> None:
    parcel = "1\tctx-lh-precuneus\t1025\tn/a\tn/a\t#A08CB4\tPC\tcortical"
    rest = "2\tctx-lh\t3\tn/a\tn/a\t#CD3E4E\tCC\tcortical"
    assert fold(
        1025,
        1024,
        3,
        scheme=load_scheme(write(tmp_path, HEADER, BACKGROUND, parcel, rest)),
    ) == [1, 2, 2]


def test_members_join_their_class(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        HEADER + "\tmembers",
        BACKGROUND + "\tn/a",
        LEFT + "\t10 11",
        RIGHT + "\tn/a",
    )
    assert fold(10, 11, 49, scheme=load_scheme(path)) == [1, 1, 2]


def test_a_spreadsheets_byte_order_mark_is_no_column(tmp_path: Path) -> None:
    path = tmp_path / "mine.tsv"
    path.write_text("\n".join([HEADER, BACKGROUND, LEFT, RIGHT]), encoding="utf-8-sig")
    assert len(load_scheme(path)) == 3


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([HEADER.replace("\tcolor", ""), BACKGROUND], "has no column 'color'"),
        ([HEADER + "\tcolour", BACKGROUND], "has an unknown column 'colour'"),
        ([HEADER, BACKGROUND + "\textra"], "line 2: has more or fewer cells"),
        ([HEADER, "0\tbackground"], "line 2: has more or fewer cells"),
        ([HEADER, BACKGROUND], "has 1 classes"),
        ([HEADER, BACKGROUND, LEFT.replace("1\t", "one\t", 1)], "line 3: index 'one' is no whole"),
        ([HEADER, BACKGROUND, LEFT.replace("10", "-10")], "freesurfer '-10' is no whole"),
        ([HEADER, BACKGROUND, LEFT.replace("10", "99999"), RIGHT], "99999 of Left-Thing is not in"),
        ([HEADER, BACKGROUND, LEFT.replace("#00760E", "green")], "'green' is no colour"),
        ([HEADER, BACKGROUND, LEFT.replace("\tleft", "\tport")], "'port' is no side"),
        ([HEADER, BACKGROUND, LEFT.replace("Left-Thing", "")], "name is empty"),
        ([HEADER, LEFT, RIGHT], "indices do not count up from 0"),
        ([HEADER, BACKGROUND.replace("\t0\t", "\t7\t"), LEFT, RIGHT], "class 0 is background"),
        ([HEADER, BACKGROUND, LEFT, RIGHT.replace("49", "10")], "FreeSurfer number 10 occurs"),
        ([HEADER, BACKGROUND, LEFT, RIGHT.replace("Right", "Left")], "name Left-Thing occurs"),
        ([HEADER, BACKGROUND, LEFT.replace("\t2\t", "\t5\t")], "partner 5 of Left-Thing is no"),
        ([HEADER, BACKGROUND, LEFT, RIGHT.replace("\t1\t", "\tn/a\t")], "not the other way round"),
        ([HEADER, BACKGROUND, LEFT, RIGHT.replace("\tright", "\tleft")], "not one left and one"),
        ([HEADER + "\tmembers", BACKGROUND + "\t0", LEFT + "\t10 49", RIGHT + "\t49"],
         "member 49 occurs twice"),
        ([HEADER + "\tmembers", BACKGROUND + "\t0", LEFT + "\tten", RIGHT + "\t"],
         "members 'ten' is no whole number"),
        ([HEADER + "\trim_of", BACKGROUND + "\tn/a", LEFT + "\t9", RIGHT + "\tn/a"],
         "Left-Thing is the rim of 9, which is no class"),
        ([""], "has no column 'index'"),
    ],
)  # fmt: skip
def test_a_table_that_is_no_scheme_is_refused(
    tmp_path: Path, lines: list[str], message: str
) -> None:
    path = write(tmp_path, *lines)
    with pytest.raises(LabelError, match=message) as refused:
        load_scheme(path)
    assert str(refused.value).startswith(f"{path}")


def test_a_table_of_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.tsv"
    path.write_bytes(b"\xff\xfe\x00index")
    with pytest.raises(LabelError, match="not a text file"):
        load_scheme(path)


def test_too_many_classes_are_refused() -> None:
    labels = [
        replace(QUICKNAT.labels[0], index=i, fs_id=i, name=f"class {i}")
        for i in range(255)
    ]
    with pytest.raises(LabelError, match="has 255 classes, not 2 to 254"):
        LabelScheme("crowd", tuple(labels))


def test_an_unknown_name_lists_the_shipped_schemes() -> None:
    with pytest.raises(LabelError, match="no such label scheme") as refused:
        load_scheme("quicknat34")
    assert "quicknat33, tissue4, left4" in str(refused.value)


# --- real data ---


@pytest.mark.parametrize("name", ["aseg.mgz", "aparc+aseg.mgz"])
def test_freesurfers_own_maps_fold_and_left_is_on_the_left(
    dev_data: Path, name: str
) -> None:
    path = dev_data / "freesurfer" / "sub-01" / "mri" / name
    volume = Volume.read(path, labels=True)
    classes = QUICKNAT.from_freesurfer(volume.data, spacing_mm=volume.spacing_mm)
    assert set(np.unique(classes).tolist()) == set(range(33))
    for label in QUICKNAT.labels:
        if label.side == "left" and label.partner is not None:
            left, right = (
                (np.argwhere(classes == k).mean(axis=0) @ volume.affine[:3, :3].T)[0]
                for k in (label.index, label.partner)
            )
            assert left < right - 3, label.name


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
