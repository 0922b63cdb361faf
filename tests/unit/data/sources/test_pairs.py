"""The user's own pairs: two folders or a table; and label maps without scans."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.listings import DEFAULT, reasons
from helpers.refusals import refusal

from trinat.segmentation.data.sources.registry import list_subjects
from trinat.segmentation.errors import DatasetError


def test_two_folders_are_paired_by_name(tmp_path: Path) -> None:
    for name in ("sub-1_ses-a_T1w.nii.gz", "sub-1_ses-b_T1w.nii.gz", "lonely.mgz"):
        (tmp_path / "images").mkdir(exist_ok=True)
        (tmp_path / "images" / name).touch()
    (tmp_path / "labels").mkdir()
    for name in ("sub-1_ses-a_T1w.mgz", "sub-1_ses-b_T1w.nii", "stray.nii.gz"):
        (tmp_path / "labels" / name).touch()
    listing = list_subjects("pairs", tmp_path, DEFAULT)
    assert [(s.id, s.participant, s.labels.name) for s in listing.subjects] == [
        ("sub-1_ses-a_T1w", "sub-1", "sub-1_ses-a_T1w.mgz"),
        ("sub-1_ses-b_T1w", "sub-1", "sub-1_ses-b_T1w.nii"),
    ]
    assert reasons(listing) == {
        "lonely": "no label map of that name in labels/",
        "stray": "no image of that name in images/",
    }


def test_accents_in_either_unicode_form_are_one_name(tmp_path: Path) -> None:
    for path in ("images/Jos\xe9.nii", "labels/Jose\N{COMBINING ACUTE ACCENT}.nii"):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).touch()
    (subject,) = list_subjects("pairs", tmp_path, DEFAULT).subjects
    assert subject.labels is not None


def test_a_folder_of_no_images_and_two_files_of_one_name_are_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "images").mkdir()
    with refusal(DatasetError, tmp_path / "images"):
        list_subjects("pairs", tmp_path, DEFAULT)
    for name in ("a.nii", "a.nii.gz"):
        (tmp_path / "images" / name).touch()
    with refusal(DatasetError, tmp_path / "images"):
        list_subjects("pairs", tmp_path, DEFAULT)


def test_the_case_of_the_ending_of_a_table_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "a.nii").touch()
    (tmp_path / "T.CSV").write_text("image\na.nii\n")
    assert list_subjects("pairs", tmp_path / "T.CSV", DEFAULT).subjects


def test_a_table_names_pairs_participants_and_families(tmp_path: Path) -> None:
    for name in ("a.nii.gz", "al.nii.gz", "b.nii.gz"):
        (tmp_path / name).touch()
    (tmp_path / "t.csv").write_text(
        "image,labels,subject,participant,family,age,sex\n"
        "a.nii.gz,al.nii.gz,s1,p1,twins,31.5,m\n"
        "a.nii.gz,,b,NA,NA,,\n"
        "c.nii.gz,,,,,,\n"
        ",x,,,,,\n"
    )
    listing = list_subjects("pairs", tmp_path / "t.csv", DEFAULT)
    (first,) = listing.subjects
    assert (first.id, first.participant, first.family, first.age, first.sex) == (
        "s1",
        "p1",
        "twins",
        31.5,
        "M",
    )
    every = list_subjects("pairs", tmp_path / "t.csv", DEFAULT, keep_unlabelled=True)
    second = every.subjects[1]
    assert (second.participant, second.family) == ("NA", None)
    assert reasons(listing) == {
        "c": "c.nii.gz does not exist",
        "line 5": "no image named",
        "b": "no labels",
    }
    assert all(exclusion.broken for exclusion in listing.exclusions)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("scan\nx\n", "no column 'image'"),
        ("image,age\na.nii,old\n", "line 2: age 'old' is no number"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(
    tmp_path: Path, text: str, reason: str
) -> None:
    (tmp_path / "a.nii").touch()
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DatasetError, match=reason):
        list_subjects("pairs", tmp_path / "t.csv", DEFAULT)


def test_label_maps_alone_have_no_image(tmp_path: Path) -> None:
    (tmp_path / "seg_2.nii.gz").touch()
    (tmp_path / "seg_10.nii.gz").touch()
    (tmp_path / "README.md").touch()
    listing = list_subjects("labelmaps", tmp_path, DEFAULT)
    assert [(s.id, s.image) for s in listing.subjects] == [
        ("seg_2", None),
        ("seg_10", None),
    ]


def test_label_maps_of_two_sessions_are_of_one_participant(tmp_path: Path) -> None:
    for name in ("sub-01_ses-1.nii", "sub-01_ses-2.nii", "sub-02.nii"):
        (tmp_path / name).touch()
    subjects = list_subjects("labelmaps", tmp_path, DEFAULT).subjects
    assert [one.participant for one in subjects] == ["sub-01", "sub-01", "sub-02"]


@pytest.mark.parametrize(
    ("title", "meant"),
    [
        ("person", "participant"),
        ("participant_id", "participant"),
        ("Subject_ID", "subject"),
        ("label", "labels"),
        ("Masks", "mask"),
    ],
)
def test_another_title_of_a_column_is_refused_rather_than_ignored(
    tmp_path: Path, title: str, meant: str
) -> None:
    table = tmp_path / "pairs.tsv"
    table.write_text(f"image\t{title}\na.nii.gz\tanna\n")
    with pytest.raises(DatasetError) as caught:
        list_subjects("pairs", table, DEFAULT)
    assert caught.value.remedy == f"call it {meant}"


def test_folders_of_images_in_a_table_name_the_participants(tmp_path: Path) -> None:
    images = ["sub-01/ses-1/a.nii", "sub-01/ses-2/b.nii", "sub-02/ses-1/c.nii"]
    for image in images:
        (tmp_path / "V1" / image).parent.mkdir(parents=True)
        (tmp_path / "V1" / image).touch()
    table = tmp_path / "pairs.csv"
    absolute = tmp_path / "V1" / images[0]
    table.write_text(f"image\n{absolute}\nV1/{images[1]}\nV1/{images[2]}\n")
    subjects = list_subjects("pairs", table, DEFAULT).subjects
    assert [one.participant for one in subjects] == ["sub-01", "sub-01", "sub-02"]
