"""Each source finds every subject of its dataset's layout, and says why it leaves any out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.miniatures import (
    freesurfer_subject,
    ixi_scan,
    malc_scan,
    malc_table,
    neurite_session,
    oasis_session,
    write_nifti,
)

from trinat.segmentation.data.sources.base import (
    Listing,
    SourceOptions,
    Subject,
    safe_name,
)
from trinat.segmentation.data.sources.freesurfer import person_and_session
from trinat.segmentation.data.sources.neurite import SEG35
from trinat.segmentation.data.sources.oasis import TISSUES, wanted_member
from trinat.segmentation.data.sources.registry import list_subjects
from trinat.segmentation.errors import ConfigError, DatasetError
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.folding import load_folding
from trinat.segmentation.labels.scheme import load_scheme

TISSUE4 = SourceOptions(scheme="tissue4")
DEFAULT = SourceOptions()


def ids(listing: Listing) -> list[str]:
    return [subject.id for subject in listing.subjects]


def reasons(listing: Listing) -> dict[str, str]:
    return {exclusion.name: exclusion.reason for exclusion in listing.exclusions}


# OASIS-1 ------------------------------------------------------------------------------------


def test_oasis_sessions_of_one_person_keep_the_person(tmp_path: Path) -> None:
    oasis_session(tmp_path / "disc1", "OAS1_0002_MR1", age=55, sex="Male")
    oasis_session(tmp_path / "disc1", "OAS1_0010_MR1")
    oasis_session(tmp_path / "disc12", "OAS1_0010_MR2", n=3)
    listing = list_subjects("oasis1", tmp_path, TISSUE4)
    assert ids(listing) == ["OAS1_0002_MR1", "OAS1_0010_MR1", "OAS1_0010_MR2"]
    assert [s.person for s in listing.subjects] == [
        "OAS1_0002",
        "OAS1_0010",
        "OAS1_0010",
    ]
    assert [s.session for s in listing.subjects] == ["MR1", "MR1", "MR2"]
    assert [(s.age, s.sex) for s in listing.subjects[:2]] == [(55, "M"), (74, "F")]
    assert (
        listing.subjects[2].image.name
        == "OAS1_0010_MR2_mpr_n3_anon_111_t88_masked_gfc.hdr"
    )


@pytest.mark.parametrize(
    ("kind", "axes", "labelled"),
    [
        ("t88-masked", "LAS", True),
        ("t88", "LAS", True),
        ("subj111", "ASL", False),
        ("raw", "ASL", False),
    ],
)
def test_each_kind_of_oasis_image_has_its_documented_axes(
    tmp_path: Path, kind: str, axes: str, labelled: bool
) -> None:
    oasis_session(tmp_path, "OAS1_0001_MR1")
    (subject,) = list_subjects(
        "oasis1", tmp_path, SourceOptions("tissue4", image=kind)
    ).subjects
    assert subject.image_axes == axes
    assert bool(subject.labels) == labelled
    image = Volume.read(subject.image, axes=subject.image_axes)
    assert image.axcodes == axes
    if labelled:
        assert subject.labels_axes == "LAS"
        assert subject.extra == TISSUES


def test_oasis_tissue_numbers_become_the_classes_of_the_same_tissues() -> None:
    scheme = load_scheme("tissue4")
    classes = scheme.from_freesurfer(
        np.array([[[0, 1, 2, 3]]], np.int16), extra=TISSUES
    )
    assert [scheme.names[k] for k in classes.ravel()] == [
        "background", "CSF", "Grey-Matter", "White-Matter",
    ]  # fmt: skip


def test_a_lost_half_of_a_pair_excludes_its_session_alone(tmp_path: Path) -> None:
    oasis_session(tmp_path, "OAS1_0001_MR1")
    for session, pattern in (
        ("OAS1_0002_MR1", "PROCESSED/MPRAGE/T88_111/*_masked_gfc.img"),
        ("OAS1_0003_MR1", "FSL_SEG/*.hdr"),
        ("OAS1_0004_MR1", "FSL_SEG/*"),
    ):
        for lost in oasis_session(tmp_path, session).glob(pattern):
            lost.unlink()
    extra = oasis_session(tmp_path, "OAS1_0005_MR1", n=4)
    oasis_session(tmp_path, "OAS1_0005_MR1", n=5)
    assert extra.is_dir()
    listing = list_subjects("oasis1", tmp_path, TISSUE4)
    assert ids(listing) == ["OAS1_0001_MR1"]
    found = reasons(listing)
    assert found["OAS1_0002_MR1"].endswith("masked_gfc.hdr lacks its .img half")
    assert found["OAS1_0003_MR1"].endswith("fseg.img lacks its .hdr half")
    assert found["OAS1_0004_MR1"].startswith("no OAS1_0004_MR1_mpr_n?")
    assert found["OAS1_0005_MR1"].startswith("more than one")


def test_freesurfer_discs_serve_the_schemes_that_need_them(tmp_path: Path) -> None:
    oasis_session(tmp_path / "disc1", "OAS1_0001_MR1")
    freesurfer_subject(tmp_path / "fs" / "disc1", "OAS1_0001_MR1")
    freesurfer_subject(tmp_path / "fs" / "disc1", "OAS1_0009_MR1")
    listing = list_subjects("oasis1", tmp_path, DEFAULT)
    assert ids(listing) == ["OAS1_0001_MR1", "OAS1_0009_MR1"]
    subject = listing.subjects[0]
    assert (subject.image.name, subject.labels.name) == ("orig.mgz", "aseg.mgz")
    assert subject.image_axes is None, "its header says how it lies"


def test_one_session_on_two_discs_is_refused(tmp_path: Path) -> None:
    oasis_session(tmp_path / "disc1", "OAS1_0001_MR1")
    oasis_session(tmp_path / "disc2", "OAS1_0001_MR1")
    with pytest.raises(DatasetError, match="there twice"):
        list_subjects("oasis1", tmp_path, TISSUE4)


def test_an_unknown_kind_of_oasis_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no images called 'T2'"):
        list_subjects("oasis1", tmp_path, SourceOptions(image="T2"))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (
            "disc1/OAS1_0001_MR1/FSL_SEG/OAS1_0001_MR1_mpr_n4_anon_111_t88_masked_gfc_fseg.img",
            True,
        ),
        ("disc1/OAS1_0001_MR1/PROCESSED/MPRAGE/T88_111/x.hdr", True),
        ("disc1/OAS1_0001_MR1/OAS1_0001_MR1.txt", True),
        ("disc1/OAS1_0001_MR1/mri/aseg.mgz", True),
        ("disc1/OAS1_0001_MR1/RAW/OAS1_0001_MR1_mpr-2_anon.img", False),
        ("disc1/OAS1_0001_MR1/PROCESSED/MPRAGE/T88_111/x.gif", False),
        ("disc1/OAS1_0001_MR1/mri/brain.mgz", False),
    ],
)
def test_only_files_of_use_are_unpacked_from_a_disc(name: str, wanted: bool) -> None:
    assert wanted_member(name) == wanted


# Neurite-OASIS ------------------------------------------------------------------------------


def test_neurite_numbers_have_the_names_of_their_table() -> None:
    assert sorted(SEG35) == list(range(1, 36))
    # Spot checks against the dataset's own table.
    expected = {
        7: 10,
        13: 16,
        14: 17,
        17: 28,
        18: 30,
        19: 31,
        20: 41,
        30: 53,
        34: 62,
        35: 63,
    }
    assert {number: SEG35[number] for number in expected} == expected
    scheme = load_scheme("quicknat33")
    classes = scheme.from_freesurfer(
        np.arange(36, dtype=np.int16).reshape(1, 1, 36), extra=SEG35
    )
    names = [scheme.names[k] for k in classes.ravel()]
    assert (names[14], names[30]) == ("Left-Hippocampus", "Right-Hippocampus")
    assert names[18] == names[34] == "background"
    # All classes but CSF (24), which seg35 has none of.
    assert set(scheme.names) - set(names) == {"CSF"}


def test_neurite_sessions_are_found_and_lost_labels_told(tmp_path: Path) -> None:
    neurite_session(tmp_path, "OAS1_0001_MR1")
    (neurite_session(tmp_path, "OAS1_0002_MR1") / "seg35.nii.gz").unlink()
    (tmp_path / "OASIS_OAS1_0003").mkdir()
    listing = list_subjects("neurite", tmp_path, DEFAULT)
    assert [(s.id, s.person) for s in listing.subjects] == [
        ("OAS1_0001_MR1", "OAS1_0001")
    ]
    assert reasons(listing) == {
        "OASIS_OAS1_0002_MR1": "no seg35.nii.gz",
        "OASIS_OAS1_0003": "not named as a session",
    }
    with pytest.raises(ConfigError, match="no images called"):
        list_subjects("neurite", tmp_path, SourceOptions(image="talairach"))


# MALC ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["training", ""])
def test_the_challenges_scans_are_found_in_both_layouts(
    tmp_path: Path, part: str
) -> None:
    image = malc_scan(tmp_path, "1000", part=part)
    malc_scan(tmp_path, "1036", part=part)
    malc_table(tmp_path, "1000,OAS1_0061,F,20")
    first, second = list_subjects("malc", tmp_path, DEFAULT).subjects
    assert (first.id, first.person, first.age, first.sex) == (
        "1000",
        "OAS1_0061",
        20,
        "F",
    )
    assert (second.id, second.person, second.age, second.sex) == (
        "1036",
        "1036",
        None,
        None,
    )
    assert first.image == image
    assert first.labels is not None
    assert first.labels.name.endswith("_glm.nii.gz")
    assert first.note == ("" if part else "skull-stripped")
    assert first.fold is not None
    assert first.fold.name == "neuromorphometrics"
    assert "Neuromorphometrics" in first.licence


@pytest.mark.parametrize(
    "rows",
    [
        (),
        ("1003,OAS1_0101,M,30",),
        ("1023,OAS1_0101,M,30",),
        ("1003,A,M,30", "1023,B,M,30"),
    ],
)
def test_a_second_scan_is_of_the_same_person_whatever_the_table_has(
    tmp_path: Path, rows: tuple[str, ...]
) -> None:
    malc_scan(tmp_path, "1003", part="testing")
    malc_scan(tmp_path, "1023", part="testing")
    malc_table(tmp_path, *rows)
    first, second = list_subjects("malc", tmp_path, DEFAULT).subjects
    assert first.person == second.person
    assert (first.sex, second.sex) == (("M", "M") if rows else (None, None))


def test_test_scans_whose_labels_one_does_not_have_are_skipped(tmp_path: Path) -> None:
    malc_scan(tmp_path, "1000", part="training")
    malc_scan(tmp_path, "1003", part="testing")
    (tmp_path / "testing-labels/1003_3_glm.nii.gz").unlink()
    (tmp_path / "testing-labels").rmdir()
    listing = list_subjects("malc", tmp_path, DEFAULT)
    assert ids(listing) == ["1000"]
    assert [(e.reason, e.broken) for e in listing.exclusions] == [("no labels", False)]


def test_a_file_lost_from_a_part_is_told(tmp_path: Path) -> None:
    for scan in ("1000", "1001", "1002"):
        malc_scan(tmp_path, scan, part="training")
    (tmp_path / "training-images/1001_3.nii.gz").unlink()
    (tmp_path / "training-labels/1002_3_glm.nii.gz").unlink()
    listing = list_subjects("malc", tmp_path, DEFAULT)
    assert ids(listing) == ["1000"]
    assert reasons(listing) == {
        "1001": "no image (1001_3.nii.gz or 1001_SS.nii.gz or 1001.nii.gz)",
        "1002": "no label map in training-labels/",
    }
    assert all(exclusion.broken for exclusion in listing.exclusions)


def test_heads_go_before_stripped_scans_unless_asked_for(tmp_path: Path) -> None:
    stripped = malc_scan(tmp_path, "1000")
    head = write_nifti(tmp_path / "1000_3.nii.gz", np.ones((4, 4, 4), np.uint8))
    assert list_subjects("malc", tmp_path, DEFAULT).subjects[0].image == head
    asked = SourceOptions(image="stripped")
    assert list_subjects("malc", tmp_path, asked).subjects[0].image == stripped
    with pytest.raises(ConfigError, match="name head or stripped"):
        list_subjects("malc", tmp_path, SourceOptions(image="raw"))


def test_a_scan_in_two_places_is_refused(tmp_path: Path) -> None:
    malc_scan(tmp_path, "1000", part="training")
    malc_scan(tmp_path, "1000", part="testing")
    with pytest.raises(DatasetError, match="1000 is there twice"):
        list_subjects("malc", tmp_path, DEFAULT)


# IXI ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "folder", ["IXI002", "IXI002-Guys-0828", "IXI002-Guys-0828-T1"]
)
def test_ixi_labels_are_found_under_any_of_the_usual_names(
    tmp_path: Path, folder: str
) -> None:
    ixi_scan(tmp_path / "ixi", "IXI002-Guys-0828")
    ixi_scan(tmp_path / "ixi", "IXI012-HH-1211")
    freesurfer_subject(tmp_path / "fs", folder, labels="aparc+aseg.mgz")
    options = SourceOptions(subjects_dir=tmp_path / "fs")
    listing = list_subjects("ixi", tmp_path / "ixi", options)
    (subject,) = listing.subjects
    assert (subject.id, subject.person) == ("IXI002-Guys-0828", "IXI002")
    assert subject.labels == tmp_path / "fs" / folder / "mri" / "aparc+aseg.mgz"
    assert subject.image.name == "orig.mgz", (
        "the labels lie on FreeSurfer's grid, not the scan's"
    )
    assert reasons(listing) == {"IXI012-HH-1211": "no labels"}


def test_ixi_without_labels_says_how_to_make_them(tmp_path: Path) -> None:
    scan = ixi_scan(tmp_path, "IXI002-Guys-0828")
    (tmp_path / "IXI-notes.txt").write_text("")
    listing = list_subjects("ixi", tmp_path, DEFAULT)
    assert listing.subjects[0].image == scan
    assert listing.subjects[0].labels is None
    assert "recon-all" in listing.advice
    assert "\n" not in listing.advice
    assert reasons(listing) == {"IXI-notes.txt": "not named as an IXI T1 scan"}


# FreeSurfer ---------------------------------------------------------------------------------


def test_a_subjects_dir_gives_its_persons_and_not_its_templates(tmp_path: Path) -> None:
    freesurfer_subject(tmp_path, "sub-10")
    freesurfer_subject(tmp_path, "sub-2_ses-1", image="brainmask.mgz")
    freesurfer_subject(tmp_path, "fsaverage")
    freesurfer_subject(
        tmp_path, "p7.long.p7base", image="T1.mgz", labels="aparc+aseg.mgz"
    )
    (freesurfer_subject(tmp_path, "p7base") / "base-tps").write_text("p7\n")
    (freesurfer_subject(tmp_path, "empty") / "mri" / "orig.mgz").unlink()
    (tmp_path / "logs").mkdir()
    listing = list_subjects("freesurfer", tmp_path, DEFAULT)
    assert [(s.id, s.person, s.session) for s in listing.subjects] == [
        ("p7.long.p7base", "p7", None),
        ("sub-2_ses-1", "sub-2", "ses-1"),
        ("sub-10", "sub-10", None),
    ]
    assert [s.note for s in listing.subjects] == ["", "skull-stripped", ""]
    found = reasons(listing)
    assert found["fsaverage"] == "a template, not a person"
    assert found["p7base"].startswith("a longitudinal base")
    assert found["logs"] == "no mri/ folder"
    assert found["empty"].startswith("none of these in mri/: orig.mgz")


def test_the_freesurfer_files_to_take_can_be_named(tmp_path: Path) -> None:
    folder = freesurfer_subject(tmp_path, "s", image="T1.mgz")
    freesurfer_subject(tmp_path, "s", image="orig.mgz", labels="aparc+aseg.mgz")
    options = SourceOptions(image="T1", labels="aparc+aseg.mgz")
    (subject,) = list_subjects("freesurfer", tmp_path, options).subjects
    assert subject.image == folder / "mri" / "T1.mgz"
    assert subject.labels == folder / "mri" / "aparc+aseg.mgz"


# BIDS ---------------------------------------------------------------------------------------


def bids_scan(root: Path, name: str, *folders: str) -> Path:
    return write_nifti(root.joinpath(*folders, name), np.ones((4, 4, 4), np.int16))


def test_bids_pairs_scans_with_the_dseg_of_the_same_session_and_run(
    tmp_path: Path,
) -> None:
    for session, run in (("a", 1), ("a", 2), ("b", 1)):
        bids_scan(
            tmp_path,
            f"sub-01_ses-{session}_run-{run}_T1w.nii.gz",
            "sub-01",
            f"ses-{session}",
            "anat",
        )
    anat = ("derivatives", "prep", "sub-01", "ses-a", "anat")
    right = bids_scan(tmp_path, "sub-01_ses-a_run-2_desc-aseg_dseg.nii.gz", *anat)
    bids_scan(tmp_path, "sub-01_ses-a_run-2_space-MNI152_desc-aseg_dseg.nii.gz", *anat)
    bids_scan(tmp_path, "sub-01_ses-a_run-2_desc-aparcaseg_dseg.nii.gz", *anat)
    bids_scan(tmp_path, "sub-01_ses-a_run-2_dseg.nii.gz", *anat)
    (tmp_path / "participants.tsv").write_text(
        "participant_id\tage\tsex\tfamily\nsub-01\t89+\tfemale\tF3\n"
    )
    listing = list_subjects("bids", tmp_path, DEFAULT)
    assert [(s.id, s.labels) for s in listing.subjects] == [
        ("sub-01_ses-a_run-2", right),
    ]
    assert reasons(listing) == {
        "sub-01_ses-a_run-1": "no labels",
        "sub-01_ses-b_run-1": "no labels",
    }
    assert not any(exclusion.broken for exclusion in listing.exclusions), (
        "that is usual in BIDS"
    )
    first = listing.subjects[0]
    assert (first.person, first.session, first.age, first.sex, first.family) == (
        "sub-01", "a", 89, "F", "F3",
    )  # fmt: skip


def test_bids_takes_the_image_that_was_segmented(tmp_path: Path) -> None:
    bids_scan(tmp_path, "sub-01_T1w.nii.gz", "sub-01", "anat")
    bids_scan(tmp_path, "sub-02_T1w.nii.gz", "sub-02", "anat")
    anat = ("derivatives", "fmriprep", "sub-01", "anat")
    preprocessed = bids_scan(tmp_path, "sub-01_desc-preproc_T1w.nii.gz", *anat)
    bids_scan(tmp_path, "sub-01_desc-aseg_dseg.nii.gz", *anat)
    freesurfer_subject(tmp_path / "derivatives" / "freesurfer", "sub-02")
    first, second = list_subjects("bids", tmp_path, DEFAULT).subjects
    assert first.image == preprocessed
    assert second.image.name == "orig.mgz"
    assert second.labels.name == "aseg.mgz"


def test_bids_with_two_pipelines_wants_to_be_told_which(tmp_path: Path) -> None:
    bids_scan(tmp_path, "sub-01_T1w.nii.gz", "sub-01", "anat")
    for pipeline in ("a", "b"):
        bids_scan(
            tmp_path,
            "sub-01_desc-aseg_dseg.nii.gz",
            "derivatives",
            pipeline,
            "sub-01",
            "anat",
        )
    listing = list_subjects("bids", tmp_path, DEFAULT)
    assert reasons(listing)["sub-01_T1w"].startswith("several label maps")
    (subject,) = list_subjects("bids", tmp_path, SourceOptions(labels="b")).subjects
    assert subject.labels.is_relative_to(tmp_path / "derivatives" / "b")
    with pytest.raises(DatasetError, match="no such folder of derivatives"):
        list_subjects("bids", tmp_path, SourceOptions(labels="c"))


# Own pairs and label maps -------------------------------------------------------------------


def test_two_folders_are_paired_by_name(tmp_path: Path) -> None:
    for name in ("sub-1_ses-a_T1w.nii.gz", "sub-1_ses-b_T1w.nii.gz", "lonely.mgz"):
        (tmp_path / "images").mkdir(exist_ok=True)
        (tmp_path / "images" / name).touch()
    (tmp_path / "labels").mkdir()
    for name in ("sub-1_ses-a_T1w.mgz", "sub-1_ses-b_T1w.nii", "stray.nii.gz"):
        (tmp_path / "labels" / name).touch()
    listing = list_subjects("pairs", tmp_path, DEFAULT)
    assert [(s.id, s.person, s.labels.name) for s in listing.subjects] == [
        ("sub-1_ses-a_T1w", "sub-1", "sub-1_ses-a_T1w.mgz"),
        ("sub-1_ses-b_T1w", "sub-1", "sub-1_ses-b_T1w.nii"),
    ]
    assert reasons(listing) == {
        "lonely": "no label map of that name in labels/",
        "stray": "no image of that name in images/",
    }


def test_a_folder_of_no_images_and_two_files_of_one_name_are_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "images").mkdir()
    with pytest.raises(DatasetError, match="no image"):
        list_subjects("pairs", tmp_path, DEFAULT)
    for name in ("a.nii", "a.nii.gz"):
        (tmp_path / "images" / name).touch()
    with pytest.raises(DatasetError, match=r"both a\.nii and a\.nii\.gz are here"):
        list_subjects("pairs", tmp_path, DEFAULT)


def test_a_table_names_pairs_persons_and_families(tmp_path: Path) -> None:
    for name in ("a.nii.gz", "al.nii.gz", "b.nii.gz"):
        (tmp_path / name).touch()
    (tmp_path / "t.csv").write_text(
        "image,labels,subject,person,family,age,sex\n"
        "a.nii.gz,al.nii.gz,s1,p1,twins,31.5,m\n"
        "a.nii.gz,,b,,,,\n"
        "c.nii.gz,,,,,,\n"
        ",x,,,,,\n"
    )
    listing = list_subjects("pairs", tmp_path / "t.csv", DEFAULT)
    (first,) = listing.subjects
    assert (first.id, first.person, first.family, first.age, first.sex) == (
        "s1",
        "p1",
        "twins",
        31.5,
        "M",
    )
    assert reasons(listing) == {
        "c": "c.nii.gz is not there",
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


# All of them --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    ["oasis1", "neurite", "ixi", "malc", "freesurfer", "bids", "pairs", "labelmaps"],
)
def test_an_empty_folder_is_an_error_not_an_empty_dataset(
    tmp_path: Path, source: str
) -> None:
    with pytest.raises(DatasetError):
        list_subjects(source, tmp_path, DEFAULT)
    with pytest.raises(DatasetError, match="no such file or folder"):
        list_subjects(source, tmp_path / "missing", DEFAULT)


@pytest.mark.parametrize("source", ["oasis1", "neurite"])
def test_a_dataset_whose_numbers_are_known_takes_no_folding_table(
    tmp_path: Path, source: str
) -> None:
    options = SourceOptions(fold=load_folding("neuromorphometrics"))
    with pytest.raises(ConfigError, match=f"the label numbers of {source} are known"):
        list_subjects(source, tmp_path, options)


def test_numbers_for_generation_mean_nothing_in_another_numbering(
    tmp_path: Path,
) -> None:
    """24 is fluid outside the brain there; 136 lines a ventricle, and is a manual parcel."""
    write_nifti(tmp_path / "a.nii.gz", np.ones((4, 4, 4), np.uint8))
    options = SourceOptions(fold=load_folding("neuromorphometrics"))
    (subject,) = list_subjects("labelmaps", tmp_path, options).subjects
    assert (subject.extra, subject.ignore) == ({}, ())


def test_an_unknown_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name one of oasis1"):
        list_subjects("adni", tmp_path, DEFAULT)


def test_names_that_would_collide_on_disk_are_refused(tmp_path: Path) -> None:
    for folder in ("images", "labels"):
        (tmp_path / folder).mkdir()
        for name in ("A.nii", "a.nii"):
            (tmp_path / folder / name).touch()
    with pytest.raises(DatasetError, match="both be named"):
        list_subjects("pairs", tmp_path, DEFAULT)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("../../etc/passwd", "etc_passwd"),
        ("a b\n", "a_b_"),
        ("x" * 90, "x" * 64),
        ("-rf", "rf"),
    ],
)
def test_names_are_made_safe(given: str, name: str) -> None:
    assert safe_name(given) == name


def test_a_name_of_nothing_safe_is_refused() -> None:
    with pytest.raises(DatasetError, match="no subject name"):
        safe_name("../..")


def test_subjects_cannot_be_changed() -> None:
    subject = Subject("a", "a", None, None)
    with pytest.raises(AttributeError):
        subject.id = "b"  # type: ignore[misc]


def test_bids_gives_the_label_map_of_one_scan_to_no_other(tmp_path: Path) -> None:
    bids_scan(tmp_path, "sub-01_T1w.nii.gz", "sub-01", "anat")
    bids_scan(tmp_path, "sub-01_ce-gadolinium_T1w.nii.gz", "sub-01", "anat")
    anat = ("derivatives", "hand", "sub-01", "anat")
    bids_scan(tmp_path, "sub-01_desc-manual_dseg.nii.gz", *anat)
    assert ids(list_subjects("bids", tmp_path, DEFAULT)) == ["sub-01"]


def test_bids_gives_a_persons_freesurfer_folder_to_one_session(tmp_path: Path) -> None:
    for session in ("1", "2"):
        place = ("sub-01", f"ses-{session}", "anat")
        bids_scan(tmp_path, f"sub-01_ses-{session}_T1w.nii.gz", *place)
    freesurfer_subject(tmp_path / "derivatives" / "freesurfer", "sub-01")
    listing = list_subjects("bids", tmp_path, DEFAULT)
    assert ids(listing) == ["sub-01_ses-1"]
    assert reasons(listing) == {"sub-01_ses-2": "no labels"}


@pytest.mark.parametrize(
    ("name", "person", "session"),
    [
        ("sub-01_ses-2a", "sub-01", "ses-2a"),
        ("OAS1_0001_MR1", "OAS1_0001", "MR1"),
        ("OAS30001_MR_d0129", "OAS30001", "MR_d0129"),
        ("07_V2", "07", "V2"),
        ("07_tp2.long.07", "07", "tp2"),
        ("UCL_V001", "UCL_V001", None),
        ("NIMH_MRC0017", "NIMH_MRC0017", None),
    ],
)
def test_only_what_names_a_session_is_one(
    name: str, person: str, session: str | None
) -> None:
    assert person_and_session(name) == (person, session)
