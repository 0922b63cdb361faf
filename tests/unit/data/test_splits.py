"""No participant and no family is on two sides of a split."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.refusals import refusal
from hypothesis import assume, given
from hypothesis import strategies as st

from trinat.segmentation.data.splits import (
    PARTS,
    Split,
    SubjectMetadata,
    make_folds,
    make_published_split,
    make_split,
    read_exclusions,
    read_split,
)
from trinat.segmentation.errors import ConfigError, DatasetError


def people(count: int) -> list[SubjectMetadata]:
    return [SubjectMetadata(f"s{i}", f"p{i}") for i in range(count)]


def test_a_hundred_participants_meet_the_ratios_exactly() -> None:
    split = make_split(people(100), (8, 1, 1), seed=0, store="S")
    assert [len(split.part(name)) for name in PARTS] == [80, 10, 10]
    assert len({*split.train, *split.validation, *split.test}) == 100


def test_five_participants_fill_three_parts() -> None:
    split = make_split(people(5), (8, 1, 1), seed=0, store="S")
    assert [len(split.part(name)) for name in PARTS] == [3, 1, 1]


def test_a_part_of_ratio_zero_stays_empty() -> None:
    split = make_split(people(10), (9, 1, 0), seed=0, store="S")
    assert [len(split.part(name)) for name in PARTS] == [9, 1, 0]


def test_the_seed_decides_and_the_order_of_the_list_does_not() -> None:
    first = make_split(people(50), seed=1, store="S")
    assert make_split(people(50)[::-1], seed=1, store="S") == first
    assert make_split(people(50), seed=2, store="S") != first


def test_names_are_listed_in_natural_order() -> None:
    split = make_split(people(12), (1, 0, 0), seed=0, store="S")
    assert split.train == tuple(f"s{i}" for i in range(12))


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 12)), min_size=1, max_size=60),
    st.integers(0, 5),
)
def test_participants_and_families_stay_together(
    links: list[tuple[int, int]], seed: int
) -> None:
    subjects = [
        SubjectMetadata(
            f"s{i}", f"p{participant}", family=f"f{family}" if family < 6 else None
        )
        for i, (participant, family) in enumerate(links)
    ]
    try:
        split = make_split(subjects, (2, 1, 1), seed=seed, store="S")
    except DatasetError:
        assume(False)  # fewer groups than parts
    where = {subject: name for name in PARTS for subject in split.part(name)}
    assert len(where) == len(subjects)
    for a in subjects:
        for b in subjects:
            if a.participant == b.participant or (a.family and a.family == b.family):
                assert where[a.subject] == where[b.subject]
    split.check(subjects, "S")


def test_cousins_through_a_shared_sibling_stay_together() -> None:
    # p1 has two sessions listed under two families, so all three participants belong together.
    chain = [
        SubjectMetadata("a", "p0", family="f0"),
        SubjectMetadata("b", "p1", family="f0"),
        SubjectMetadata("c", "p1", family="f1"),
        SubjectMetadata("d", "p2", family="f1"),
        SubjectMetadata("e", "p3"),
    ]
    split = make_split(chain, (1, 1, 0), seed=0, store="S")
    assert {split.train, split.validation} == {("a", "b", "c", "d"), ("e",)}


def test_every_part_has_both_sexes_and_all_ages() -> None:
    crowd = [
        SubjectMetadata(f"s{i}", f"p{i}", age=20 + i % 60, sex="F" if i % 3 else "M")
        for i in range(120)
    ]
    by_name = {p.subject: p for p in crowd}
    for seed in range(5):
        split = make_split(crowd, (8, 1, 1), seed=seed, store="S")
        for name in PARTS:
            members = [by_name[subject] for subject in split.part(name)]
            women = sum(p.sex == "F" for p in members) / len(members)
            assert women == pytest.approx(2 / 3, abs=0.09)
            mean_age = sum(p.age or 0 for p in members) / len(members)
            assert mean_age == pytest.approx(49.5, abs=5)


def test_each_participant_is_tested_once_over_the_folds() -> None:
    splits = make_folds(people(23), 5, seed=0, store="S")
    assert len(splits) == 5
    assert sorted(s for split in splits for s in split.test) == sorted(
        p.subject for p in people(23)
    )
    for split in splits:
        split.check(people(23), "S")
        assert len(split.train) + len(split.validation) + len(split.test) == 23
        assert len(split.test) in (4, 5)
    assert [split.validation for split in splits] == [
        s.test for s in splits[1:] + splits[:1]
    ]


def test_two_folds_cannot_test_and_validate() -> None:
    with pytest.raises(ConfigError) as caught:
        make_folds(people(9), 2, seed=0, store="S")
    assert "--kfold 2" in str(caught.value)
    assert caught.value.remedy == "give --kfold 3 or more"
    halves = make_folds(people(9), 2, seed=0, store="S", validate=False)
    assert [len(half.validation) for half in halves] == [0, 0]
    with pytest.raises(ConfigError):
        make_folds(people(9), 1, seed=0, store="S", validate=False)


def test_folds_without_validation_train_all_but_the_tested() -> None:
    splits = make_folds(people(6), 3, seed=0, store="S", validate=False)
    for split in splits:
        assert split.validation == ()
        assert len(split.test) == 2
        assert len(split.train) == 4
        assert not set(split.train) & set(split.test)
    assert len({subject for split in splits for subject in split.test}) == 6


def test_fewer_families_than_parts_are_refused() -> None:
    twins = [
        SubjectMetadata("a", "a", family="f"),
        SubjectMetadata("b", "b", family="f"),
    ]
    with pytest.raises(
        DatasetError, match="too few participants or families for 2 parts: 1"
    ):
        make_split(twins, (1, 1, 0), seed=0, store="S")


def test_ratios_that_make_no_sense_are_refused() -> None:
    with pytest.raises(DatasetError, match="cannot be met"):
        make_split(people(9), (0, 1, 1), seed=0, store="S")
    with pytest.raises(DatasetError, match="cannot be met"):
        make_split(people(9), (1, -1, 1), seed=0, store="S")
    with pytest.raises(DatasetError, match="cannot be met"):
        make_split(people(9), (1, float("nan"), 1), seed=0, store="S")


# As in the labelling challenge: s0 to s14 train, s15 and s16 are two scans of one participant.
TRAINING = tuple(f"s{i}" for i in range(15))
CHALLENGE = [*people(16), SubjectMetadata("s16", "p15")]


def test_a_published_split_is_as_published() -> None:
    split = make_published_split(CHALLENGE, TRAINING, seed=0, store="S")
    assert (split.train, split.validation, split.test) == (TRAINING, (), ("s15", "s16"))


def test_a_part_of_the_dataset_keeps_the_published_division() -> None:
    split = make_published_split(CHALLENGE[14:], TRAINING, seed=0, store="S")
    assert (split.train, split.test) == (("s14",), ("s15", "s16"))


@given(st.integers(1, 14), st.integers(0, 5))
def test_so_many_of_the_published_training_participants_validate(
    count: int, seed: int
) -> None:
    split = make_published_split(
        CHALLENGE, TRAINING, validation=count, seed=seed, store="S"
    )
    assert len(split.validation) == count
    assert {*split.train, *split.validation} == set(TRAINING)
    assert len(split.train) == 15 - count
    assert split.test == ("s15", "s16")


def test_participants_for_validation_are_spread_over_ages() -> None:
    """Three times five ages, one of each."""
    aged = [
        SubjectMetadata(f"s{i}", f"p{i}", age=20.0 + 10 * (i // 3)) for i in range(15)
    ]
    split = make_published_split(aged, TRAINING, validation=5, seed=0, store="S")
    assert [int(name[1:]) // 3 for name in split.validation] == [0, 1, 2, 3, 4]


def test_somebody_is_left_to_train() -> None:
    with pytest.raises(
        DatasetError, match="15 participants for validation leave none of 15 to train"
    ):
        make_published_split(CHALLENGE, TRAINING, validation=15, seed=0, store="S")


def test_a_split_that_shares_a_participant_is_refused() -> None:
    sessions = [
        SubjectMetadata("a_ses-1", "a"),
        SubjectMetadata("a_ses-2", "a"),
        SubjectMetadata("b", "b"),
    ]
    split = Split(store="S", seed=0, train=("a_ses-1", "b"), test=("a_ses-2",))
    with refusal(DatasetError, ""):
        split.check(sessions, "S")


def test_a_split_that_shares_a_family_is_refused() -> None:
    twins = [
        SubjectMetadata("a", "a", family="f"),
        SubjectMetadata("b", "b", family="f"),
    ]
    with refusal(DatasetError, ""):
        Split(store="S", seed=0, train=("a",), validation=("b",)).check(twins, "S")


@pytest.mark.parametrize(
    ("split", "reason"),
    [
        (Split(store="other", seed=0, train=("s0",)), "another store"),
        (Split(store="S", seed=0, train=("s0", "x")), "x is not a subject"),
        (Split(store="S", seed=0, train=("s0", "s0")), "s0 is listed twice"),
    ],
)
def test_a_split_that_does_not_fit_the_store_is_refused(
    split: Split, reason: str
) -> None:
    with pytest.raises(DatasetError, match=reason):
        split.check(people(3), "S")


def test_a_split_is_read_as_it_was_written(tmp_path: Path) -> None:
    split = make_split(people(10), seed=3, store="S")
    split.write(tmp_path / "split.json")
    assert read_split(tmp_path / "split.json") == split


def test_a_list_of_subjects_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_bytes(b"\xef\xbb\xbfa\r\nb # twice\r\n")
    assert read_exclusions(tmp_path / "names.txt") == ("a", "b")


@pytest.mark.parametrize(
    "text", ["", "[]", '{"store": "S"}', '{"store":"S","seed":0,"trian":[]}']
)
def test_what_is_no_split_file_is_told_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.json").write_text(text)
    with refusal(DatasetError, tmp_path / "s.json"):
        read_split(tmp_path / "s.json")
    with refusal(DatasetError, tmp_path / "missing.json"):
        read_split(tmp_path / "missing.json")
