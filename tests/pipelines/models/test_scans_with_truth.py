"""Scans with a reference: guessed and doubtful pairs are named, another head is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.files import touch
from helpers.overfitted import random_model
from helpers.studies import correct_voxel, write_study

from trinat.pipelines.models.scans_with_truth import (
    Reader,
    ScanWithTruth,
    pair_scans,
    refuse_another_head,
    work_on_each,
)
from trinat.pipelines.study.corrections import sidecar_path
from trinat.segmentation.errors import EvaluationError
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.metrics.overlap import joint_histogram
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.space.conform import conform


def test_a_pair_of_which_one_side_says_less_is_named(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    scans = touch(tmp_path / "scans", "sub-01_ses-2_T1w.nii")
    truths = touch(tmp_path / "truths", "sub-01_dseg.nii")
    paired, failures = pair_scans(scans, truths)
    assert (len(paired), failures) == (1, [])
    (line,) = logged.messages
    assert line.startswith("check it: sub-01_dseg.nii is compared with sub-01_ses-2")


def test_a_truth_whose_saving_was_interrupted_is_not_used(tmp_path: Path) -> None:
    results = write_study(tmp_path / "out", ["scan0", "scan1"])
    result = results / "scan0_dseg.nii.gz"
    correct_voxel(result, (15, 8, 6), 49, "Right-Thalamus")
    sidecar_path(result).unlink()
    paired, _ = pair_scans(tmp_path / "scans", results)
    used, _, failures = work_on_each(paired, lambda _: None)
    assert [scan.name for scan in used] == ["scan1"]
    (failure,) = failures
    assert failure.startswith("scan0: ")


def test_pairs_by_name_need_no_check_and_others_say_why_they_have_none(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    scans = touch(tmp_path / "scans", "sub-01_ses-1.nii", "sub-01_ses-2.nii", "b.nii")
    truths = touch(tmp_path / "truths", "sub-01.nii", "sub-01_ses-1.nii", "c.nii")
    paired, (doubtful, other) = pair_scans(scans, truths)
    assert [scan.name for scan in paired] == ["sub-01_ses-1"]
    assert all(line.startswith("not used: ") for line in logged.messages)
    if doubtful.startswith("c"):
        doubtful, other = other, doubtful
    assert doubtful.startswith("sub-01: not unique")
    assert other == "c: no scan"
    assert "not used: b: no truth" in logged.messages


def test_parcels_of_a_truth_count_together_as_cortex(tmp_path: Path) -> None:
    """Of the 8 voxels of each mm³, 3 are white matter and 5 are cortex, of three parcels."""
    block = np.array([[[2, 2], [2, 1001]], [[1001, 1002], [1002, 1003]]])
    numbers = np.pad(np.tile(block, (16, 16, 16)), 16)
    affine = np.diag([0.5, 0.5, 0.5, 1])
    paths = tmp_path / "scan.nii", tmp_path / "labels.nii"
    Volume(np.sign(numbers).astype(np.float32), affine).write(paths[0])
    Volume(numbers.astype(np.int16), affine).write(paths[1], labels=True)
    segmenter = SimpleNamespace(
        model=load_model(random_model()), prepare=partial(conform, shape=(32, 32, 32))
    )
    scan = ScanWithTruth("x", "x", *paths)
    _, classes = Reader(None, None).read(segmenter, scan)
    cortex = segmenter.model.scheme.names.index("Left-Cerebral-Cortex")
    assert np.count_nonzero(classes) == np.count_nonzero(classes == cortex) == 16**3


def test_a_truth_of_another_head_is_refused_and_exchanged_sides_are_named() -> None:
    model = load_model(random_model())
    scheme = model.scheme
    left, right = (
        scheme.names.index(f"{side}-Hippocampus") for side in ("Left", "Right")
    )
    stem = scheme.names.index("Brain-Stem")
    found = np.repeat([0, left, right, stem], 10)[None, None]
    where = Path("truth.nii")

    def joint(true: np.ndarray) -> np.ndarray:
        return joint_histogram(true, found, len(scheme))

    refuse_another_head([joint(found)], model, where)
    # 3 of 10 voxels agree in each structure.
    strange = joint(np.roll(found, 7))
    with pytest.raises(
        EvaluationError, match=r"Dice of 0\.30, and 0\.5 is needed: check"
    ):
        refuse_another_head([strange], model, where)
    # The view that sees most structures counts.
    refuse_another_head([strange, joint(found)], model, where)
    mirrored = joint(np.repeat([0, right, left, stem], 10)[None, None])
    # Only the brain stem of three structures agrees.
    with pytest.raises(EvaluationError, match=r"0\.33, .*; with left .* it is 1\.00"):
        refuse_another_head([mirrored], model, where)


def test_structures_that_are_not_in_the_truth_are_no_sign_of_another_head() -> None:
    model = load_model(random_model())
    found = np.repeat([0, 1, 2, 3, 4], 10)[None, None]
    true = np.where(found == 4, 4, 0)
    joint = joint_histogram(true, found, len(model.scheme))
    refuse_another_head([joint], model, Path("truth.nii"))
