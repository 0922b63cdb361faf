"""Who belongs to whom, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.common.discovery import find_files
from pipelines.evaluate.pairing import Pairing, pair_files
from segmentation.errors import ConfigError, EvaluationError


def folder(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def pairing(
    tmp_path: Path, truths: list[str], predictions: list[str], *, by_order: bool = False
) -> Pairing:
    return pair_files(
        find_files(folder(tmp_path / "truth", *truths)),
        find_files(folder(tmp_path / "predictions", *predictions)),
        by_order=by_order,
    )


def named(pairing: Pairing) -> list[tuple[str, str]]:
    return [(pair.truth.name, pair.prediction.name) for pair in pairing.pairs]


def test_bids_names_pair_by_entities_and_ignore_descriptions(tmp_path: Path) -> None:
    found = pairing(
        tmp_path,
        [
            "sub-01/ses-a/anat/sub-01_ses-a_desc-manual_dseg.nii.gz",
            "sub-01/ses-b/anat/sub-01_ses-b_desc-manual_dseg.nii.gz",
        ],
        [
            "sub-01/ses-b/anat/sub-01_ses-b_space-orig_desc-trinat_dseg.nii.gz",
            "sub-01/ses-a/anat/sub-01_ses-a_space-orig_desc-trinat_dseg.nii.gz",
        ],
    )
    assert named(found) == [
        ("sub-01_ses-a_desc-manual_dseg", "sub-01_ses-a_space-orig_desc-trinat_dseg"),
        ("sub-01_ses-b_desc-manual_dseg", "sub-01_ses-b_space-orig_desc-trinat_dseg"),
    ]
    assert [(p.truth.subject, p.truth.session) for p in found.pairs] == [
        ("sub-01", "ses-a"),
        ("sub-01", "ses-b"),
    ]


def test_a_persons_scans_have_names_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "sub-01_acq-x_run-2_ses-1_desc-a_dseg.nii"
    path.touch()
    (file,) = find_files(path)
    assert (file.subject, file.session, file.scan) == ("sub-01", "ses-1", "ses-1_acq-x_run-2")


def test_one_scan_a_subject_pairs_though_one_side_names_the_session(tmp_path: Path) -> None:
    found = pairing(
        tmp_path, ["sub-01_dseg.nii.gz"], ["sub-01/ses-1/anat/sub-01_ses-1_dseg.nii.gz"]
    )
    assert found.pairs[0].how == "subject"


def test_another_session_is_never_a_partner(tmp_path: Path) -> None:
    found = pairing(tmp_path, ["sub-01_ses-1_dseg.nii.gz"], ["sub-01_ses-2_dseg.nii.gz", "x.nii"])
    assert found.pairs == ()
    assert [file.name for file in found.truths_alone] == ["sub-01_ses-1_dseg"]


def test_two_candidates_are_none(tmp_path: Path) -> None:
    found = pairing(
        tmp_path, ["sub-01_dseg.nii"], ["sub-01_run-1_dseg.nii", "sub-01_run-2_dseg.nii"]
    )
    assert found.pairs == ()
    assert len(found.predictions_alone) == 2


def test_equal_names_pair_and_the_rest_is_named(tmp_path: Path) -> None:
    found = pairing(tmp_path, ["a.nii.gz", "b.mgz", "c.nii"], ["b.nii.gz", "a.nii", "d.nii.gz"])
    assert named(found) == [("a", "a"), ("b", "b")]
    assert [file.name for file in found.truths_alone] == ["c"]
    assert [file.name for file in found.predictions_alone] == ["d"]


def test_a_name_that_begins_the_other_pairs_up_to_a_separator(tmp_path: Path) -> None:
    found = pairing(tmp_path, ["case_1.nii", "case_10.nii"], ["case_10_seg.nii", "case_1_seg.nii"])
    assert named(found) == [("case_1", "case_1_seg"), ("case_10", "case_10_seg")]


def test_natural_order_is_the_last_resort_and_says_so(tmp_path: Path) -> None:
    sides = ["t2.nii", "t10.nii"], ["p10.nii", "p2.nii"]
    assert pairing(tmp_path, *sides).pairs == ()
    found = pairing(tmp_path, *sides, by_order=True)
    assert named(found) == [("t2", "p2"), ("t10", "p10")]
    assert "check it" in found.pairs[0].how


def test_natural_order_needs_equally_many(tmp_path: Path) -> None:
    assert pairing(tmp_path, ["t1.nii"], ["p1.nii", "p2.nii"], by_order=True).pairs == ()


def test_files_of_one_name_pair_by_their_folders(tmp_path: Path) -> None:
    names = ["p1/T1_dseg.nii.gz", "p2/T1_dseg.nii.gz"]
    found = pairing(tmp_path, names, names[::-1])
    assert named(found) == [("p1_T1", "p1_T1"), ("p2_T1", "p2_T1")]
    assert [pair.truth.subject for pair in found.pairs] == ["p1_T1", "p2_T1"]


def test_a_subjects_dir_pairs_with_bids_names(tmp_path: Path) -> None:
    found = pairing(
        tmp_path, ["sub-01/mri/aseg.mgz", "sub-02/mri/aseg.mgz"], ["sub-02_dseg.nii.gz"]
    )
    assert named(found) == [("sub-02", "sub-02_dseg")]


def test_label_maps_are_told_from_what_lies_beside_them(tmp_path: Path) -> None:
    folder(tmp_path, "x/a_dseg.nii.gz", "x/a_entropy.nii.gz", "b_dseg.mgz", "b_L-Th_probseg.nii.gz")
    assert [file.name for file in find_files(tmp_path)] == ["a", "b"]


def test_files_beside_marked_label_maps_are_label_maps_unless_they_are_their_scans(
    tmp_path: Path,
) -> None:
    names = ["a.nii.gz", "b.nii.gz", "c_dseg.nii.gz"]
    found = pairing(tmp_path, names, names)
    assert named(found) == [("a", "a"), ("b", "b"), ("c", "c")]
    folder(tmp_path / "truth", "c.nii.gz")  # the scan of c_dseg
    assert [file.name for file in find_files(tmp_path / "truth")] == ["a", "b", "c"]


def test_the_scans_of_a_subjects_dir_are_found_too(tmp_path: Path) -> None:
    folder(tmp_path, "sub-01/mri/aseg.mgz", "sub-01/mri/T1.mgz", "sub-02/mri/aseg.mgz")
    assert [file.path.name for file in find_files(tmp_path, suffix="T1w")] == ["T1.mgz"]


def test_two_files_pair_as_files(tmp_path: Path) -> None:
    folder(tmp_path, "one.nii", "other.nii")
    found = pair_files(find_files(tmp_path / "one.nii"), find_files(tmp_path / "other.nii"))
    assert len(found.pairs) == 1


def test_an_empty_or_absent_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="no label map"):
        find_files(tmp_path)
    with pytest.raises(ConfigError, match="no such file"):
        find_files(tmp_path / "nowhere")
