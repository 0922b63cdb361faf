"""OASIS-1: sessions of participants, kinds of images and their axes, discs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.listings import DEFAULT, ids, reasons
from helpers.miniatures import freesurfer_subject, oasis_session
from helpers.refusals import refusal

from trinat.segmentation.data.sources.base import SourceOptions
from trinat.segmentation.data.sources.oasis import TISSUES, wanted_member
from trinat.segmentation.data.sources.registry import list_subjects
from trinat.segmentation.errors import ConfigError, DatasetError
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme

TISSUE4 = SourceOptions(scheme="tissue4")


def test_oasis_sessions_of_one_participant_keep_the_participant(tmp_path: Path) -> None:
    oasis_session(tmp_path / "disc1", "OAS1_0002_MR1", age=55, sex="Male")
    oasis_session(tmp_path / "disc1", "OAS1_0010_MR1")
    oasis_session(tmp_path / "disc12", "OAS1_0010_MR2", n=3)
    listing = list_subjects("oasis1", tmp_path, TISSUE4)
    assert ids(listing) == ["OAS1_0002_MR1", "OAS1_0010_MR1", "OAS1_0010_MR2"]
    assert [s.participant for s in listing.subjects] == [
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
    with refusal(DatasetError, tmp_path):
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
