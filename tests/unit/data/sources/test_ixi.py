"""IXI: labels in another folder, under any of the usual names."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.listings import DEFAULT, reasons
from helpers.miniatures import freesurfer_subject, ixi_scan

from trinat.segmentation.data.sources.base import STRIPPED, SourceOptions
from trinat.segmentation.data.sources.registry import list_subjects


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
    assert (subject.id, subject.participant) == ("IXI002-Guys-0828", "IXI002")
    assert subject.labels == tmp_path / "fs" / folder / "mri" / "aparc+aseg.mgz"
    assert subject.image.name == "orig.mgz", (
        "the labels lie on FreeSurfer's grid, not the scan's"
    )
    assert reasons(listing) == {"IXI012-HH-1211": "no labels"}


def test_a_stripped_image_of_freesurfer_has_a_note(tmp_path: Path) -> None:
    ixi_scan(tmp_path / "ixi", "IXI002-Guys-0828")
    freesurfer_subject(tmp_path / "fs", "IXI002", image="brainmask.mgz")
    options = SourceOptions(subjects_dir=tmp_path / "fs")
    (subject,) = list_subjects("ixi", tmp_path / "ixi", options).subjects
    assert subject.note == STRIPPED


def test_ixi_without_labels_says_how_to_make_them(tmp_path: Path) -> None:
    scan = ixi_scan(tmp_path, "IXI002-Guys-0828")
    (tmp_path / "IXI-notes.txt").write_text("")
    listing = list_subjects("ixi", tmp_path, DEFAULT)
    assert listing.subjects[0].image == scan
    assert listing.subjects[0].labels is None
    assert "recon-all" in listing.advice
    assert "\n" not in listing.advice
    assert reasons(listing) == {"IXI-notes.txt": "not named as an IXI T1 scan"}
