"""Numberings other than FreeSurfer's: folding tables, shipped and the user's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.refusals import refusal

from trinat.segmentation.errors import LabelError
from trinat.segmentation.labels.folding import FoldingTable, load_folding
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme

QUICKNAT = load_scheme("quicknat33")
MANUAL = load_folding("neuromorphometrics")
HEADER = "first\tlast\tname\ttarget\n"


def fs(
    *numbers: int,
    fold: FoldingTable | None = MANUAL,
    scheme: LabelScheme = QUICKNAT,
    **options: object,
) -> list[int]:
    """Return FreeSurfer numbers of a row of voxels after folding."""
    row = np.array(numbers, np.int32).reshape(-1, 1, 1)
    classes = scheme.from_freesurfer(row, fold=fold, **options)  # type: ignore[arg-type]
    return scheme.to_freesurfer(classes).ravel().tolist()


def own(folder: Path, *rows: str) -> FoldingTable | None:
    path = folder / "own.tsv"
    path.write_text(HEADER + "".join(row + "\n" for row in rows))
    return load_folding(path)


# --- Neuromorphometrics' numbers ---


@pytest.mark.parametrize(
    ("number", "target"),
    [
        (0, 0), (4, 14), (11, 15), (35, 16), (46, 24),
        # Right first, except for the accumbens, whose sides are not adjacent.
        (23, 58), (30, 26), (31, 54), (32, 18), (36, 50), (37, 11), (38, 47), (39, 8),
        (40, 46), (41, 7), (44, 41), (45, 2), (47, 53), (48, 17), (49, 44), (50, 5),
        (51, 43), (52, 4), (55, 52), (56, 13), (57, 51), (58, 12), (59, 49), (60, 10),
        (61, 60), (62, 28),
        (100, 42), (101, 3), (206, 42), (207, 3), (65, 3), (66, 42),
        (15, 0), (42, 0), (43, 0), (63, 0), (64, 0), (69, 0), (74, 0), (75, 0), (76, 0),
    ],
)  # fmt: skip
def test_a_manual_label_becomes_its_structure(number: int, target: int) -> None:
    assert fs(number) == [target]


def test_every_parcel_is_cortex_even_right_and_odd_left() -> None:
    assert fs(*range(100, 208)) == [42, 3] * 54


def test_a_parcel_stays_a_parcel_in_a_scheme_that_has_it() -> None:
    """Its number there is 30000 more. 110, the whole cingulate gyrus, is not one of the parcels."""
    numbers = (47, 45, 100, 101, 110, 206, 207, 65)
    both_sides = load_scheme("neuromorphometrics")
    assert fs(*numbers, scheme=both_sides) == [
        *(53, 2, 30100, 30101, 0, 30206, 30207, 0)
    ]
    of_networks = load_scheme("neuromorphometrics49")
    assert fs(*numbers, scheme=of_networks) == [0, 0, 30101, 30101, 0, 30207, 30207, 0]


@pytest.mark.parametrize("lobules", [71, 72, 73])
def test_vermal_lobules_join_the_nearer_cerebellar_cortex(lobules: int) -> None:
    assert fs(39, lobules, 0, 38) == [8, 8, 0, 47]
    assert fs(39, 0, lobules, 38) == [8, 0, 47, 47]


def test_a_side_is_made_of_the_tables_numbers_not_of_freesurfers() -> None:
    """47 is FreeSurfer's right cerebellar cortex, and here the right hippocampus."""
    assert fs(47, 71, 0, 0, 39) == [53, 8, 0, 0, 8]


def test_a_side_whose_numbers_are_ignored_still_has_its_place() -> None:
    assert fs(39, 71, 0, 38, ignore=[39]) == [0, 8, 0, 47]


def test_lobules_without_any_cerebellum_are_refused() -> None:
    with pytest.raises(
        LabelError, match="nearer of FreeSurfer's 8 and 47, and neither"
    ):
        fs(45, 71)


def test_a_scheme_without_sides_takes_the_same_table() -> None:
    """Cortex, white matter, ventricle and lobules as grey, white, fluid and grey."""
    assert fs(100, 45, 52, 71, scheme=load_scheme("tissue4")) == [220, 219, 24, 220]


def test_freesurfers_meaning_of_a_number_is_gone() -> None:
    """2, 3 and 1001 are FreeSurfer's alone."""
    with pytest.raises(LabelError) as refused:
        fs(45, 2, 3, 3, 1001, where="1000_glm.nii.gz")
    assert str(refused.value) == (
        "1000_glm.nii.gz: holds label numbers that neuromorphometrics does not fold into "
        "quicknat33: 2 (1 voxel), 3 (2 voxels), 1001 (1 voxel): "
        "add them to the table, or ignore them"
    )


def test_single_numbers_can_be_mapped_or_ignored_on_top() -> None:
    assert fs(4, 5, 46, 45, extra={5: 77, 4: 24}, ignore=[46]) == [24, 2, 0, 2]


# --- a table of one's own ---


def test_a_table_of_ones_own_folds_ranges_and_nearest_sides(tmp_path: Path) -> None:
    table = own(
        tmp_path, "1\t3\tleft\t3", "4\t4\tright\t2035", "9\t9\tbetween\tnearest 3 42"
    )
    assert fs(1, 2, 3, 9, 0, 0, 4, fold=table) == [3, 3, 3, 3, 0, 0, 42]
    assert table is not None
    assert table.name == "own"


def test_a_sideless_target_finds_its_side_by_the_tables_numbers(tmp_path: Path) -> None:
    table = own(tmp_path, "1\t1\tleft\t2", "2\t2\tright\t41", "3\t3\tcallosum\t251")
    assert fs(1, 3, 0, 2, fold=table) == [2, 2, 0, 41]
    assert fs(1, 0, 3, 2, fold=table) == [2, 0, 41, 41]


def test_a_target_that_the_scheme_lacks_is_refused_where_it_occurs(
    tmp_path: Path,
) -> None:
    table = own(tmp_path, "1\t1\tleft\t2", "2\t2\tskull\t165")
    assert fs(1, fold=table) == [2]
    with pytest.raises(
        LabelError, match=r"own does not fold into quicknat33: 2 \(1 voxel\)"
    ):
        fs(1, 2, fold=table)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1\t2\t\t4a", "line 2: '4a' is no label number"),
        ("1\t2\t\tnearest 2", "line 2: target 'nearest 2' is not readable"),
        ("x\t2\t\t4", "line 2: 'x' is no label number"),
        ("2\t1\t\t4", "line 2: numbers 2 to 1 run backwards"),
        ("1\t2\t\t4\n2\t2\t\t5", "line 3: 2 is in two rows"),
        ("1\t99999999\t\t4", "'99999999' is no label number"),
    ],
)
def test_a_wrong_row_is_refused_by_its_line(
    tmp_path: Path, row: str, message: str
) -> None:
    with pytest.raises(LabelError, match=message):
        own(tmp_path, row)


def test_a_table_without_rows_or_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with refusal(LabelError, tmp_path / "own.tsv"):
        own(tmp_path)
    with refusal(LabelError, tmp_path / "missing.tsv"):
        load_folding(tmp_path / "missing.tsv")


def test_freesurfer_names_the_numbers_that_need_no_table() -> None:
    assert load_folding("freesurfer") is None
