"""trinat prepare with the user's own pairs: empty, moved and duplicate ones are reported."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from helpers.miniatures import (
    head_image,
    head_labels,
    malc_scan,
    malc_table,
    write_nifti,
)
from helpers.prepared import GRID, prepare

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.prepare.making import Summary, prepare_store
from trinat.pipelines.prepare.options import PrepareConfig
from trinat.segmentation.data.splitting import split_store
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import DatasetError


def pair(root: Path, name: str, *, seed: int = 0, shift: int = 0) -> None:
    labels = head_labels(seed)
    write_nifti(root / f"images/{name}.nii.gz", head_image(labels, seed))
    write_nifti(root / f"labels/{name}.nii.gz", np.roll(labels, shift, 0))


def facts_of(store: Store) -> list[tuple[object, ...]]:
    return [(one.subject, one.age, one.sex) for one in store.metadata]


def test_the_challenge_s_own_table_says_who_the_subjects_are(tmp_path: Path) -> None:
    for scan in ("1003", "1023", "1101"):
        malc_scan(tmp_path / "in", scan)
    # A second scan without a row gets the data of the participant.
    malc_table(tmp_path / "in", "1003,OAS1_0101,M,30", "1101,OAS1_0102,F,x")
    _, store = prepare("malc", tmp_path / "in", tmp_path / "out")
    assert facts_of(store) == [
        ("1003", 30, "M"),
        ("1023", 30, "M"),
        ("1101", None, "F"),
    ]


def test_a_bids_dataset_s_participants_are_those_of_the_store(tmp_path: Path) -> None:
    root = tmp_path / "in"
    write_nifti(root / "sub-01/anat/sub-01_T1w.nii.gz", head_image(head_labels(0), 0))
    (root / "participants.tsv").write_text(
        "participant_id\tage\tsex\tfamily\nsub-01\t89+\tfemale\tF3\n"
    )
    _, store = prepare("bids", root, tmp_path / "out")
    (one,) = store.metadata
    assert (one.age, one.sex, one.family) == (89, "F", "F3")


@pytest.fixture
def two(tmp_path: Path) -> Store:
    """Return a store of the subjects 1000 and 1001."""
    for scan in ("1000", "1001"):
        malc_scan(tmp_path / "in", scan)
    _, store = prepare("malc", tmp_path / "in", tmp_path / "out")
    return store


def test_a_participant_has_accents_in_either_form_and_na_is_no_family(
    two: Store,
) -> None:
    (two.root / "participants.tsv").write_text(
        "participant_id\tparticipant\tfamily\n"
        "1000\tJos\xe9\tNA\n1001\tJose\N{COMBINING ACUTE ACCENT}\tNA\n"
    )
    first, second = Store(two.root).metadata
    assert first.participant == second.participant
    assert first.family is None


def test_all_that_is_wrong_with_the_participants_of_a_store_is_said_at_once(
    two: Store,
) -> None:
    (two.root / "participants.tsv").write_text(
        "participant_id\tparticipant\tage\tsex\n1000\tA\t999\tF\n1001\tB\t61\tz\n"
    )
    with pytest.raises(DatasetError) as caught:
        _ = Store(two.root).metadata
    assert "subject 1000, age: '999'" in str(caught.value)
    assert "subject 1001, sex: 'z'" in str(caught.value)


def made(
    root: Path, participants: Path | None = None, *, strict: bool = False
) -> Summary:
    """Prepare the pairs in `root`."""
    config = PrepareConfig(
        source="pairs",
        root=root,
        grid=GRID,
        participants=participants,
        strict=strict,
    )
    return prepare_store(config, root / "store")


def test_a_label_map_without_labels_fails(tmp_path: Path) -> None:
    pair(tmp_path, "good")
    pair(tmp_path, "empty", seed=1)
    empty = np.zeros_like(head_labels())
    write_nifti(tmp_path / "labels/empty.nii.gz", empty)
    summary = made(tmp_path)
    assert summary.exit is Exit.SOME_FAILED
    reasons = {row.subject: row.reason for row in summary.rows}
    assert "has no structure of quicknat33" in reasons["empty"]
    assert reasons["good"] == ""


def test_labels_that_do_not_lie_on_their_scan_are_named_in_each_run(
    tmp_path: Path,
) -> None:
    pair(tmp_path, "moved", shift=6)
    for _ in range(2):
        summary = made(tmp_path)
        (row,) = summary.rows
        assert row.status == "done"
        assert row.reason.startswith("the labels do not lie on the scan: they fit")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (
            "image,labels,Participant\nimages/a.nii.gz,labels/a.nii.gz,P01\n",
            "'Participant'",
        ),
        # A comma within a number would split a cell in two, and change the participant.
        (
            "image,labels,age,participant\nimages/a.nii.gz,labels/a.nii.gz,61,5,P01\n",
            "row 2: 5 cells under 4 titles",
        ),
    ],
    ids=["capital letter", "decimal comma"],
)
def test_a_table_of_pairs_whose_participants_would_be_lost_is_refused(
    tmp_path: Path, table: str, said: str
) -> None:
    pair(tmp_path, "a")
    (tmp_path / "pairs.csv").write_text(table)
    config = PrepareConfig(source="pairs", root=tmp_path / "pairs.csv", grid=GRID)
    with pytest.raises(DatasetError, match=said):
        prepare_store(config, tmp_path / "store")


def test_copies_of_a_scan_are_named_and_stay_in_one_part(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    for number in range(6):
        pair(tmp_path, f"case_{number}", seed=number)
    for copy, kind in product(("a", "b"), ("images", "labels")):
        folder = tmp_path / kind
        shutil.copy(folder / "case_0.nii.gz", folder / f"{copy}.nii.gz")
    made(tmp_path)
    sentence = "a, b, case_0 have the same scan, byte for byte: they stay in one part"
    assert sentence in logged.messages
    store = tmp_path / "store"
    for _, split in split_store(store, folds=3):
        in_test = {"a", "b", "case_0"} & set(split.test)
        assert len(in_test) in {0, 3}
    assert Store(store).copies == (sentence,)


def test_a_table_that_is_given_is_of_these_participants(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    pair(tmp_path, "case_1")
    table = tmp_path / "people.tsv"
    table.write_text("participant_id\tage\nother\t61\n")
    with pytest.raises(DatasetError, match="0 of 1 participants are in the table"):
        made(tmp_path, table)
    table.write_text("participant_id\tage\ncase_01\t61\ncase_2\tx\n")
    made(tmp_path, table)
    assert logged.messages == ["people.tsv: row 3, age: 'x' is no number"]
    (metadata,) = Store(tmp_path / "store").metadata
    assert metadata.age == 61
    with pytest.raises(DatasetError, match="--strict"):
        made(tmp_path, table, strict=True)
