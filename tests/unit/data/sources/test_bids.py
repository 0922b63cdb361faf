"""BIDS: matching of label maps to scans."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.listings import DEFAULT, ids, reasons
from helpers.miniatures import freesurfer_subject, write_nifti
from helpers.refusals import refusal

from trinat.segmentation.data.sources.base import STRIPPED, SourceOptions
from trinat.segmentation.data.sources.registry import list_subjects
from trinat.segmentation.errors import DatasetError


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
    bids_scan(tmp_path, "sub-01_ses-a_run-2_space-orig_seg-tissues_dseg.nii.gz", *anat)
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
    assert (first.participant, first.session) == ("sub-01", "a")


def test_bids_takes_magnitude_images_only(tmp_path: Path) -> None:
    for part in ("mag", "phase", "real", "imag"):
        bids_scan(tmp_path, f"sub-01_part-{part}_T1w.nii.gz", "sub-01", "anat")
    # Made from the only magnitude image, though another image comes first by its name.
    freesurfer_subject(tmp_path / "derivatives" / "freesurfer", "sub-01")
    listing = list_subjects("bids", tmp_path, DEFAULT)
    assert ids(listing) == ["sub-01_part-mag"]
    assert set(reasons(listing)) == {
        f"sub-01_part-{part}_T1w" for part in ("phase", "real", "imag")
    }
    assert not any(exclusion.broken for exclusion in listing.exclusions)


def test_bids_takes_no_image_in_the_space_of_a_template(tmp_path: Path) -> None:
    for name in ("sub-01_desc-preproc_T1w", "sub-01_space-MNI152Lin_T1w"):
        bids_scan(tmp_path, f"{name}.nii.gz", "sub-01", "anat")
    listing = list_subjects("bids", tmp_path, DEFAULT)
    assert ids(listing) == ["sub-01_desc-preproc"]
    assert set(reasons(listing)) == {"sub-01_space-MNI152Lin_T1w"}


@pytest.mark.parametrize(
    ("right", "other"),
    [
        ("seg-aseg", "seg-aparcaseg"),
        ("space-orig_desc-aseg", "space-orig_seg-callosum"),
        ("space-orig_desc-corrected", "space-orig_desc-trinat"),
    ],
    ids=["parcels", "callosum", "correction"],
)
def test_of_two_maps_of_a_scan_one_has_its_structures(
    tmp_path: Path, right: str, other: str
) -> None:
    bids_scan(tmp_path, "sub-01_T1w.nii.gz", "sub-01", "anat")
    anat = ("derivatives", "prep", "sub-01", "anat")
    expected = bids_scan(tmp_path, f"sub-01_{right}_dseg.nii.gz", *anat)
    bids_scan(tmp_path, f"sub-01_{other}_dseg.nii.gz", *anat)
    (subject,) = list_subjects("bids", tmp_path, DEFAULT).subjects
    assert subject.labels == expected


def test_predictions_of_trinat_are_labels_only_if_their_folder_is_named(
    tmp_path: Path,
) -> None:
    bids_scan(tmp_path, "sub-01_T1w.nii.gz", "sub-01", "anat")
    anat = ("derivatives", "own", "sub-01", "anat")
    predicted = bids_scan(tmp_path, "sub-01_space-orig_desc-trinat_dseg.nii.gz", *anat)
    (subject,) = list_subjects("bids", tmp_path, DEFAULT).subjects
    assert subject.labels is None
    (subject,) = list_subjects("bids", tmp_path, SourceOptions(labels="own")).subjects
    assert subject.labels == predicted


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


def test_a_stripped_image_of_freesurfer_has_a_note(tmp_path: Path) -> None:
    for name, image in (("sub-01", "orig.mgz"), ("sub-02", "brainmask.mgz")):
        bids_scan(tmp_path, f"{name}_T1w.nii.gz", name, "anat")
        freesurfer_subject(tmp_path / "derivatives/freesurfer", name, image=image)
    subjects = list_subjects("bids", tmp_path, DEFAULT).subjects
    assert [one.note for one in subjects] == ["", STRIPPED]


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
    with refusal(DatasetError, tmp_path / "derivatives/c"):
        list_subjects("bids", tmp_path, SourceOptions(labels="c"))


def test_bids_gives_the_label_map_of_one_scan_to_no_other(tmp_path: Path) -> None:
    bids_scan(tmp_path, "sub-01_T1w.nii.gz", "sub-01", "anat")
    bids_scan(tmp_path, "sub-01_ce-gadolinium_T1w.nii.gz", "sub-01", "anat")
    anat = ("derivatives", "hand", "sub-01", "anat")
    bids_scan(tmp_path, "sub-01_desc-manual_dseg.nii.gz", *anat)
    assert ids(list_subjects("bids", tmp_path, DEFAULT)) == ["sub-01"]


def test_bids_gives_a_participants_freesurfer_folder_to_one_session(
    tmp_path: Path,
) -> None:
    for session in ("2", "10"):
        place = ("sub-01", f"ses-{session}", "anat")
        bids_scan(tmp_path, f"sub-01_ses-{session}_T1w.NII.GZ", *place)
    freesurfer_subject(tmp_path / "derivatives" / "freesurfer", "sub-01")
    listing = list_subjects("bids", tmp_path, DEFAULT)
    assert ids(listing) == ["sub-01_ses-2"]
    assert reasons(listing) == {"sub-01_ses-10": "no labels"}
