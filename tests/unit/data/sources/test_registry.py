"""All sources: empty folders, label numbers, names of subjects."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.listings import DEFAULT
from helpers.miniatures import write_nifti
from helpers.refusals import refusal

from trinat.segmentation.data.sources.base import (
    SourceOptions,
    safe_component,
    safe_name,
)
from trinat.segmentation.data.sources.registry import SOURCES, list_subjects
from trinat.segmentation.errors import ConfigError, DatasetError
from trinat.segmentation.labels.folding import load_folding


@pytest.mark.parametrize("source", SOURCES)
def test_an_empty_folder_is_an_error_not_an_empty_dataset(
    tmp_path: Path, source: str
) -> None:
    with pytest.raises(DatasetError):
        list_subjects(source, tmp_path, DEFAULT)
    with refusal(DatasetError, tmp_path / "missing", remedy="--root"):
        list_subjects(source, tmp_path / "missing", DEFAULT)


@pytest.mark.parametrize("source", ["oasis1", "neurite"])
@pytest.mark.parametrize(
    "options",
    [
        SourceOptions(fold=load_folding("neuromorphometrics")),
        SourceOptions(extra={17: 18}),
        SourceOptions(ignore=(24,)),
    ],
    ids=["fold", "extra", "ignore"],
)
def test_a_dataset_whose_numbers_are_known_takes_no_others(
    tmp_path: Path, source: str, options: SourceOptions
) -> None:
    with pytest.raises(ConfigError, match=f"the label numbers of {source} are known"):
        list_subjects(source, tmp_path, options)


def test_numbers_for_generation_mean_nothing_in_another_numbering(
    tmp_path: Path,
) -> None:
    """In FreeSurfer 24 is fluid outside the brain.

    136 is the lining of a ventricle, or a manual parcel.
    """
    write_nifti(tmp_path / "a.nii.gz", np.ones((4, 4, 4), np.uint8))
    options = SourceOptions(fold=load_folding("neuromorphometrics"))
    (subject,) = list_subjects("labelmaps", tmp_path, options).subjects
    assert (subject.extra, subject.ignore) == ({}, ())


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("bids", SourceOptions(image="nu")),
        ("bids", SourceOptions(subjects_dir=Path("fs"))),
        ("freesurfer", SourceOptions(subjects_dir=Path("fs"))),
        ("malc", SourceOptions(labels="x")),
    ],
)
def test_options_that_a_source_does_not_use_are_refused(
    tmp_path: Path, source: str, options: SourceOptions
) -> None:
    with pytest.raises(ConfigError, match="does not apply"):
        list_subjects(source, tmp_path, options)


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("pairs", SourceOptions(labels="other")),
        ("freesurfer", SourceOptions(labels="aseg.presurf")),
        ("ixi", SourceOptions(subjects_dir=Path("nowhere"))),
    ],
)
def test_labels_that_are_named_must_exist(
    tmp_path: Path, source: str, options: SourceOptions
) -> None:
    for path in ("images/a.nii", "s/mri/orig.mgz", "IXI002-Guys-0828-T1.nii"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert list_subjects(source, tmp_path, DEFAULT).subjects
    with refusal(DatasetError, tmp_path):
        list_subjects(source, tmp_path, options)


def test_an_unknown_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name one of oasis1"):
        list_subjects("nowhere", tmp_path, DEFAULT)


def test_names_that_would_collide_on_disk_are_refused(tmp_path: Path) -> None:
    for folder in ("images", "labels"):
        (tmp_path / folder).mkdir()
        for name in ("A.nii", "a.nii"):
            (tmp_path / folder / name).touch()
    with refusal(DatasetError, tmp_path):
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


@pytest.mark.parametrize(
    ("given", "in_store", "of_result"),
    [
        ("sub-01", "sub-01", "sub-01"),
        # The first digits of `printf "sub 01" | sha256sum`, and so on.
        ("sub 01", "sub_01", "sub_01-b665fd"),
        ("José", "Jos_", "Jose-24c2ab"),
        (".hidden", "hidden", "hidden-169241"),
    ],
)
def test_names_of_stores_and_of_results_are_as_they_were_in_every_version(
    given: str, in_store: str, of_result: str
) -> None:
    assert (safe_name(given), safe_component(given)) == (in_store, of_result)


def test_a_name_of_nothing_safe_is_refused() -> None:
    with pytest.raises(DatasetError, match="no subject name"):
        safe_name("../..")
