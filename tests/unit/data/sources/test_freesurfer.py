"""A SUBJECTS_DIR: its participants, their sessions, and the files used."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.listings import DEFAULT, reasons
from helpers.miniatures import freesurfer_subject

from trinat.segmentation.data.sources.base import SourceOptions
from trinat.segmentation.data.sources.registry import list_subjects


def test_a_subjects_dir_gives_its_participants_and_not_its_templates(
    tmp_path: Path,
) -> None:
    freesurfer_subject(tmp_path, "sub-10")
    freesurfer_subject(tmp_path, "sub-2_ses-1", image="brainmask.mgz")
    freesurfer_subject(tmp_path, "fsaverage")
    freesurfer_subject(
        tmp_path, "p7.long.p7base", image="T1.mgz", labels="aparc+aseg.mgz"
    )
    (freesurfer_subject(tmp_path, "p7base") / "base-tps").write_text("p7\n")
    freesurfer_subject(tmp_path, "sub-10.long.base")
    (freesurfer_subject(tmp_path, "empty") / "mri" / "orig.mgz").unlink()
    (tmp_path / "logs").mkdir()
    listing = list_subjects("freesurfer", tmp_path, DEFAULT)
    assert [(s.id, s.participant, s.session) for s in listing.subjects] == [
        ("p7.long.p7base", "p7", None),
        ("sub-2_ses-1", "sub-2", "ses-1"),
        ("sub-10", "sub-10", None),
    ]
    assert [s.note for s in listing.subjects] == ["", "skull-stripped", ""]
    found = reasons(listing)
    assert found["fsaverage"] == "a template, not a participant"
    assert found["p7base"].startswith("a longitudinal base")
    assert found["sub-10.long.base"] == "the scan of sub-10 once more"
    assert found["logs"] == "no mri/ folder"
    assert found["empty"].startswith("none of these in mri/: orig.mgz")


def test_the_freesurfer_files_to_take_can_be_named(tmp_path: Path) -> None:
    folder = freesurfer_subject(tmp_path, "s", image="T1.mgz")
    freesurfer_subject(tmp_path, "s", image="orig.mgz", labels="aparc+aseg.mgz")
    options = SourceOptions(image="T1", labels="aparc+aseg.mgz")
    (subject,) = list_subjects("freesurfer", tmp_path, options).subjects
    assert subject.image == folder / "mri" / "T1.mgz"
    assert subject.labels == folder / "mri" / "aparc+aseg.mgz"


@pytest.mark.parametrize(
    "labels", ["aseg.auto_noCCseg.mgz", "aparc.DKTatlas+aseg.deep.mgz"]
)
def test_label_maps_of_fastsurfer_are_found(tmp_path: Path, labels: str) -> None:
    freesurfer_subject(tmp_path, "s", labels=labels)
    (subject,) = list_subjects("freesurfer", tmp_path, DEFAULT).subjects
    assert subject.labels.name == labels


def test_numbers_after_a_session_are_participants(tmp_path: Path) -> None:
    for name in ("TRIAL_V1_001", "TRIAL_V1_002"):
        freesurfer_subject(tmp_path, name)
    subjects = list_subjects("freesurfer", tmp_path, DEFAULT).subjects
    assert [one.participant for one in subjects] == ["TRIAL_001", "TRIAL_002"]
