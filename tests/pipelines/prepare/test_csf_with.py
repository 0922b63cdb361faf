"""FreeSurfer labels completed by the CSF of a model where they have none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.miniatures import head_image, head_labels, write_nifti
from helpers.overfitted import model_of_all_fluid, random_model
from helpers.prepared import GRID, build, head_in, prepare, volume_of
from helpers.refusals import refusal

from trinat.pipelines.prepare.making import prepare_store, read_config
from trinat.pipelines.prepare.options import PrepareConfig
from trinat.segmentation.data.preparing import Cut, fingerprint, prepare_subject
from trinat.segmentation.data.slices import SubjectFile
from trinat.segmentation.data.sources.base import Subject
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.views import View

SCHEME = load_scheme("quicknat33")
CSF = SCHEME.names.index("CSF")
CUT = Cut(SCHEME, (View.CORONAL,), GRID)


def test_csf_fills_background_alone(tmp_path: Path) -> None:
    labels = head_labels()
    (x, y, z), *_ = np.argwhere(labels == 0)
    (i, j, k), *_ = np.argwhere(labels == 2)
    found = np.zeros_like(labels)
    # One voxel of background and one of white matter; a cortex that the labels do not have.
    found[x, y, z] = 24
    found[i, j, k] = 24
    found[x, y, z + 1] = 3
    image = write_nifti(tmp_path / "image.nii.gz", head_image(labels), "RAS")
    truth = write_nifti(tmp_path / "labels.nii.gz", labels, "RAS")
    csf = write_nifti(tmp_path / "found.nii.gz", found, "RAS")
    subject = Subject("a", "a", image, truth, csf=csf)
    prepare_subject(subject, tmp_path / "a.h5", CUT, "made")

    expected = SCHEME.from_freesurfer(labels)
    assert expected[x, y, z] == 0
    expected[x, y, z] = CSF
    file = SubjectFile(tmp_path / "a.h5")
    slices = file.labels(View.CORONAL, 0, file.slice_count(View.CORONAL))
    got = np.moveaxis(slices, (0, 1, 2), (1, 2, 0))
    np.testing.assert_array_equal(head_in(got, expected), expected)


def test_another_csf_makes_another_subject() -> None:
    subject = Subject("a", "a", None, None)
    without = fingerprint(subject, CUT, "image", "labels")
    assert fingerprint(subject, CUT, "image", "labels", "csf") != without
    assert fingerprint(subject, CUT, "image", "labels", None) == without


@pytest.mark.slow
def test_a_store_says_whose_csf_it_has(tmp_path: Path) -> None:
    subject, _, settings = build("freesurfer", tmp_path / "in")
    model = model_of_all_fluid(tmp_path / "fluid")
    _, store = prepare(
        "freesurfer", tmp_path / "in", tmp_path / "out", csf_with=str(model), **settings
    )
    assert store.info.csf == "intracranial"
    assert any("CSF of random (" in note for note in store.file(subject).notes)
    labels = volume_of(store, subject, View.CORONAL)
    truth = SCHEME.from_freesurfer(head_labels())
    brain = truth > 0
    np.testing.assert_array_equal(head_in(labels, truth)[brain], truth[brain])


def test_a_model_that_has_no_such_csf_is_refused(tmp_path: Path) -> None:
    build("freesurfer", tmp_path / "in")
    config = PrepareConfig(
        source="freesurfer", root=tmp_path / "in", csf_with=str(random_model())
    )
    with refusal(ConfigError, "csf_with"):
        prepare_store(config, tmp_path / "out")


def test_a_scheme_without_csf_is_refused(tmp_path: Path) -> None:
    build("freesurfer", tmp_path / "in")
    model = model_of_all_fluid(tmp_path / "fluid")
    config = PrepareConfig(
        source="freesurfer", root=tmp_path / "in", labels="left4", csf_with=str(model)
    )
    with pytest.raises(ConfigError, match="left4 has no CSF"):
        prepare_store(config, tmp_path / "out")


def test_labels_of_a_model_have_a_csf_already(tmp_path: Path) -> None:
    given = {
        "source": "ixi",
        "root": tmp_path,
        "label_with": "fast",
        "csf_with": "fast",
    }
    with refusal(ConfigError, "command line"):
        read_config(None, given)
