"""Matching of files by name."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from helpers.files import touch
from helpers.refusals import refusal

from trinat.pipelines.study.files import find_files, find_images
from trinat.pipelines.study.pairing import Pairing, pair_files
from trinat.segmentation.errors import ConfigError, EvaluationError


def pairing(
    tmp_path: Path, truths: list[str], predictions: list[str], *, guess: bool = False
) -> Pairing:
    return pair_files(
        find_files(touch(tmp_path / "truth", *truths)),
        find_files(touch(tmp_path / "predictions", *predictions)),
        guess=guess,
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
    assert [(p.truth.parsed.subject, p.truth.parsed.session) for p in found.pairs] == [
        ("sub-01", "ses-a"),
        ("sub-01", "ses-b"),
    ]


def test_label_maps_in_subfolders_pair_with_predictions_of_the_same_folder(
    tmp_path: Path,
) -> None:
    found = pairing(
        tmp_path,
        ["p1/labels.nii.gz", "p2/labels.nii.gz"],
        ["p1/labels_dseg.nii.gz", "p2/labels_dseg.nii.gz"],
    )
    assert [
        (p.truth.parsed.subject, p.prediction.parsed.subject) for p in found.pairs
    ] == [
        ("p1_labels", "p1_labels"),
        ("p2_labels", "p2_labels"),
    ]


def test_names_in_both_forms_of_unicode_are_one(tmp_path: Path) -> None:
    names = [unicodedata.normalize(form, "Åse.nii.gz") for form in ("NFC", "NFD")]
    assert len(pairing(tmp_path, names[:1], names[1:]).pairs) == 1


def test_a_participants_scans_have_names_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "sub-01_acq-x_run-2_ses-1_desc-a_dseg.nii"
    path.touch()
    (file,) = find_files(path)
    assert (file.parsed.subject, file.parsed.session, file.parsed.scan) == (
        "sub-01",
        "ses-1",
        "ses-1_acq-x_run-2",
    )


def test_one_scan_a_subject_pairs_though_one_side_names_the_session(
    tmp_path: Path,
) -> None:
    found = pairing(
        tmp_path, ["sub-01_dseg.nii.gz"], ["sub-01/ses-1/anat/sub-01_ses-1_dseg.nii.gz"]
    )
    assert found.pairs[0].how == "subject"
    assert found.pairs[0].is_guess


def test_another_session_is_never_a_partner(tmp_path: Path) -> None:
    found = pairing(
        tmp_path, ["sub-01_ses-1_dseg.nii.gz"], ["sub-01_ses-2_dseg.nii.gz", "x.nii"]
    )
    assert found.pairs == ()
    assert [file.name for file in found.truths_alone] == ["sub-01_ses-1_dseg"]


def test_two_candidates_are_none(tmp_path: Path) -> None:
    found = pairing(
        tmp_path,
        ["sub-01_dseg.nii"],
        ["sub-01_run-1_dseg.nii", "sub-01_run-2_dseg.nii"],
    )
    assert found.pairs == ()
    assert len(found.predictions_alone) == 2


def test_equal_names_pair_and_the_rest_is_named(tmp_path: Path) -> None:
    found = pairing(
        tmp_path, ["a.nii.gz", "b.mgz", "c.nii"], ["b.nii.gz", "a.nii", "d.nii.gz"]
    )
    assert named(found) == [("a", "a"), ("b", "b")]
    assert [file.name for file in found.truths_alone] == ["c"]
    assert [file.name for file in found.predictions_alone] == ["d"]


def test_a_name_that_begins_the_other_pairs_up_to_a_separator(tmp_path: Path) -> None:
    found = pairing(
        tmp_path, ["case_1.nii", "case_10.nii"], ["case_10_seg.nii", "case_1_seg.nii"]
    )
    assert named(found) == [("case_1", "case_1_seg"), ("case_10", "case_10_seg")]


def test_a_name_that_begins_anothers_is_not_crossed_with_it(tmp_path: Path) -> None:
    found = pairing(
        tmp_path,
        ["OAS1_0001.nii.gz", "OAS1_0001_MR2.nii.gz"],
        ["OAS1_0001_pred.nii.gz", "OAS1_0001_MR2_pred.nii.gz"],
        guess=True,
    )
    assert named(found) == [
        ("OAS1_0001", "OAS1_0001_pred"),
        ("OAS1_0001_MR2", "OAS1_0001_MR2_pred"),
    ]
    assert found.guesses == []


def test_names_with_an_ending_on_each_side_are_not_crossed_and_are_to_be_checked(
    tmp_path: Path,
) -> None:
    # In natural order GT comes before MR2, and MR2 before pred.
    found = pairing(
        tmp_path,
        ["OAS1_0001_GT.nii.gz", "OAS1_0001_MR2_GT.nii.gz"],
        ["OAS1_0001_pred.nii.gz", "OAS1_0001_MR2_pred.nii.gz"],
        guess=True,
    )
    assert named(found) == [
        ("OAS1_0001_GT", "OAS1_0001_pred"),
        ("OAS1_0001_MR2_GT", "OAS1_0001_MR2_pred"),
    ]
    assert found.guesses[0] == (
        "OAS1_0001_GT.nii.gz is compared with OAS1_0001_pred.nii.gz, "
        "by what is left of names that begin or end otherwise"
    )


def test_the_longest_name_that_begins_another_has_it(tmp_path: Path) -> None:
    sides = ["a.nii", "a_b.nii"], ["a_b_x1.nii", "a_y2.nii"]
    found = pairing(tmp_path, *sides, guess=True)
    assert named(found) == [("a", "a_y2"), ("a_b", "a_b_x1")]
    # _x1 may be part of the file's kind or of the participant's name.
    assert len(found.guesses) == 2
    assert pairing(tmp_path, *sides).pairs == ()


@pytest.mark.parametrize(
    ("space", "kind"), [("orig", "T1w"), ("T2w", "T2w"), ("MNI152", "T1w")]
)
def test_images_are_of_the_kind_that_label_maps_have_as_their_space(
    tmp_path: Path, space: str, kind: str
) -> None:
    raw = touch(
        tmp_path / "raw",
        "sub-01/anat/sub-01_T1w.nii",
        "sub-01/anat/sub-01_T2w.nii",
    )
    label_map = Path(f"sub-01_space-{space}_desc-trinat_dseg.nii.gz")
    assert [file.path.name for file in find_images(raw, [label_map])] == [
        f"sub-01_{kind}.nii"
    ]


def test_an_archive_is_refused_with_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "all.tar.gz").write_bytes(b"x")
    with refusal(EvaluationError, tmp_path / "all.tar.gz"):
        find_files(tmp_path / "all.tar.gz")


def test_a_zip_may_be_a_series(tmp_path: Path) -> None:
    (tmp_path / "series.zip").write_bytes(b"x")
    assert len(find_files(tmp_path / "series.zip")) == 1


@pytest.mark.parametrize(
    ("name", "is_guess"), [("a_seg.nii", False), ("a_MR2_seg.nii", True)]
)
def test_an_ending_that_says_what_a_file_is_needs_no_check(
    tmp_path: Path, name: str, is_guess: bool
) -> None:
    found = pairing(tmp_path, ["a.nii"], [name], guess=True)
    assert [pair.is_guess for pair in found.pairs] == [is_guess]


def test_of_many_guesses_the_first_are_told(tmp_path: Path) -> None:
    numbers = range(1, 7)
    truths, predictions = [f"t{n}.nii" for n in numbers], [f"p{n}.nii" for n in numbers]
    found = pairing(tmp_path, truths, predictions, guess=True)
    assert len(found.pairs) == 6
    assert found.guesses[3:] == ["3 more pairs of that kind"]


def test_a_session_that_is_no_entity_is_not_passed_over(tmp_path: Path) -> None:
    assert (
        pairing(tmp_path, ["sub-01_dseg.nii"], ["sub-01_ses-2.auto_dseg.nii"]).pairs
        == ()
    )


def test_another_session_under_a_common_ending_is_no_partner(tmp_path: Path) -> None:
    names = ["OAS1_0001_MR2_pred.nii", "OAS1_0002_pred.nii"]
    found = pairing(tmp_path, ["OAS1_0001.nii", "OAS1_0002.nii"], names, guess=True)
    assert named(found) == [("OAS1_0002", "OAS1_0002_pred")]


def test_what_is_not_unique_names_both_candidates(tmp_path: Path) -> None:
    found = pairing(tmp_path, ["a.nii"], ["a_x.nii", "a_y.nii"], guess=True)
    assert found.pairs == ()
    why = found.doubts[found.truths_alone[0].path]
    assert why == "not unique: a_x.nii or a_y.nii could be its partner"
    why = found.doubts[found.predictions_alone[0].path]
    assert why == "not unique: a.nii could be the partner of a_x.nii or a_y.nii"


def test_what_others_take_does_not_make_the_rest_unique(tmp_path: Path) -> None:
    found = pairing(
        tmp_path,
        ["sub-01_dseg.nii", "sub-01_ses-1_dseg.nii"],
        ["sub-01_ses-1_dseg.nii", "sub-01_ses-2_dseg.nii"],
    )
    assert named(found) == [("sub-01_ses-1_dseg", "sub-01_ses-1_dseg")]
    why = found.doubts[found.truths_alone[0].path]
    assert "sub-01_ses-1_dseg.nii or sub-01_ses-2_dseg.nii" in why


def test_numbers_are_what_is_left_of_names_and_to_be_checked(tmp_path: Path) -> None:
    sides = ["t2.nii", "t10.nii"], ["p10.nii", "p2.nii"]
    assert pairing(tmp_path, *sides).pairs == ()
    found = pairing(tmp_path, *sides, guess=True)
    assert named(found) == [("t2", "p2"), ("t10", "p10")]
    assert len(found.guesses) == 2


def test_names_that_have_nothing_in_common_are_never_paired_by_their_order(
    tmp_path: Path,
) -> None:
    assert (
        pairing(tmp_path, ["ann.nii", "bo.nii"], ["cy.nii", "di.nii"], guess=True).pairs
        == ()
    )


def test_sessions_are_not_set_aside_as_endings(tmp_path: Path) -> None:
    truths, predictions = ["a_MR1.nii", "b_MR1.nii"], ["a_MR2.nii", "b_MR2.nii"]
    assert pairing(tmp_path, truths, predictions, guess=True).pairs == ()


def test_one_truth_of_two_predictions_is_not_guessed(tmp_path: Path) -> None:
    assert pairing(tmp_path, ["t1.nii"], ["p1.nii", "p2.nii"], guess=True).pairs == ()


def test_equal_names_in_folders_of_two_participants_are_refused(tmp_path: Path) -> None:
    found = pairing(tmp_path, ["p1/T1_dseg.nii.gz"], ["p2/T1_dseg.nii.gz"], guess=True)
    assert found.pairs == ()
    why = found.doubts[found.truths_alone[0].path]
    assert why == "p2/T1_dseg.nii.gz has its name, in another folder"


def test_equal_names_in_a_folder_that_lies_deeper_pair_and_are_to_be_checked(
    tmp_path: Path,
) -> None:
    found = pairing(tmp_path, ["disc1/p1/T1_dseg.nii.gz"], ["p1/T1_dseg.nii.gz"])
    assert [(pair.how, pair.is_guess) for pair in found.pairs] == [("name", True)]


def test_a_name_in_a_folder_is_to_be_checked_where_the_other_has_none(
    tmp_path: Path,
) -> None:
    found = pairing(tmp_path, ["T1_dseg.nii.gz"], ["p2/T1_dseg.nii.gz"])
    assert found.guesses == [
        "T1_dseg.nii.gz is compared with p2/T1_dseg.nii.gz, by name"
    ]


def test_folders_that_join_to_one_name_stay_two(tmp_path: Path) -> None:
    names = ["a_b/c_dseg.nii", "a/b_c_dseg.nii", "x/c_dseg.nii", "x/b_c_dseg.nii"]
    found = pairing(tmp_path, names, names)
    assert [pair.truth.name for pair in found.pairs] == [
        "a/b_c",
        "a_b/c",
        "x_b_c",
        "x_c",
    ]
    assert all(
        pair.truth.path.relative_to(tmp_path / "truth")
        == pair.prediction.path.relative_to(tmp_path / "predictions")
        for pair in found.pairs
    )


def test_folders_that_join_to_one_name_are_not_crossed(tmp_path: Path) -> None:
    truths = ["a_b/c_dseg.nii", "x/c_dseg.nii"]
    found = pairing(tmp_path, truths, ["a/b_c_dseg.nii", "x/b_c_dseg.nii"], guess=True)
    assert "a_b/c_dseg.nii" in [file.shown for file in found.truths_alone]


def test_files_of_one_name_pair_by_their_folders(tmp_path: Path) -> None:
    names = ["p1/T1_dseg.nii.gz", "p2/T1_dseg.nii.gz"]
    found = pairing(tmp_path, names, names[::-1])
    assert named(found) == [("p1_T1", "p1_T1"), ("p2_T1", "p2_T1")]
    assert [pair.truth.parsed.subject for pair in found.pairs] == ["p1_T1", "p2_T1"]


def test_a_subjects_dir_pairs_with_bids_names(tmp_path: Path) -> None:
    found = pairing(
        tmp_path, ["sub-01/mri/aseg.mgz", "sub-02/mri/aseg.mgz"], ["sub-02_dseg.nii.gz"]
    )
    assert named(found) == [("sub-02", "sub-02_dseg")]


def test_label_maps_are_told_from_what_lies_beside_them(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "x/a_dseg.nii.gz",
        "x/a_entropy.nii.gz",
        "b_dseg.mgz",
        "b_L-Th_probseg.nii.gz",
    )
    assert [file.name for file in find_files(tmp_path)] == ["a", "b"]


def test_files_beside_marked_label_maps_are_label_maps_unless_they_are_their_scans(
    tmp_path: Path,
) -> None:
    names = ["a.nii.gz", "b.nii.gz", "c_dseg.nii.gz"]
    found = pairing(tmp_path, names, names)
    assert named(found) == [("a", "a"), ("b", "b"), ("c", "c")]
    touch(tmp_path / "truth", "c.nii.gz")  # the scan that c_dseg belongs to
    assert [file.name for file in find_files(tmp_path / "truth")] == ["a", "b", "c"]


def test_phantoms_pair_with_their_own_results(tmp_path: Path) -> None:
    """As `trinat phantom heads` and `trinat predict heads` write them."""
    found = pairing(
        tmp_path,
        ["sub-01_T1w.nii.gz", "sub-01_dseg.nii.gz"],
        ["sub-01_T1w_dseg.nii.gz"],
    )
    assert [pair.truth.path.name for pair in found.pairs] == ["sub-01_dseg.nii.gz"]
    assert not found.truths_alone


def test_what_is_no_participant_in_a_subjects_dir_has_no_label_map(
    tmp_path: Path,
) -> None:
    folders = ("s1", "07", "fsaverage")
    touch(tmp_path, *(f"{folder}/mri/aseg.mgz" for folder in folders), "07/base-tps")
    assert [file.name for file in find_files(tmp_path)] == ["s1"]


@pytest.mark.parametrize("word", ["", "desc-aseg_"])
def test_a_scan_has_its_map_in_a_template_or_with_parcels_only_where_it_has_no_other(
    tmp_path: Path, word: str
) -> None:
    names = (f"space-MNI_{word}dseg", "space-T2w_desc-aseg_dseg", "desc-aparcaseg_dseg")
    touch(
        tmp_path,
        f"sub-1/anat/sub-1_{word}dseg.nii.gz",
        *(f"sub-{k}/anat/sub-{k}_{name}.nii.gz" for k, name in enumerate(names, 1)),
        f"sub-1/anat/sub-1_{names[2]}.nii.gz",
    )
    found = [file.name for file in find_files(tmp_path)]
    assert found == [
        "sub-1_desc-aseg_dseg" if word else "sub-1_desc-aparcaseg_dseg",
        "sub-2_space-T2w_desc-aseg_dseg",
        "sub-3_desc-aparcaseg_dseg",
    ]


def test_each_scan_of_several_datasets_has_one_map_beside_its_other_kinds(
    tmp_path: Path,
) -> None:
    kinds = ("desc-trinat", "seg-parcels", "seg-callosum", "seg-tissues")
    for site in ("A", "B"):
        folder = f"{site}/sub-1/anat"
        touch(tmp_path, *(f"{folder}/sub-1_{kind}_dseg.nii.gz" for kind in kinds))
    touch(tmp_path, "A/x_dseg.nii.gz", "A/y_dseg.nii.gz")
    found = [(file.name, file.participant) for file in find_files(tmp_path)]
    assert found == [
        ("sub-1_desc-trinat_dseg", "A/sub-1"),
        ("sub-1_desc-trinat_dseg", "B/sub-1"),
        ("x", "A/x"),
        ("y", "A/y"),
    ]
    parcels = [file.name for file in find_files(tmp_path, kind="parcels")]
    assert parcels == ["sub-1_seg-parcels_dseg", "sub-1_seg-parcels_dseg", "x", "y"]


def test_the_scans_of_a_subjects_dir_are_found_too(tmp_path: Path) -> None:
    touch(tmp_path, "sub-01/mri/aseg.mgz", "sub-01/mri/T1.mgz", "sub-02/mri/aseg.mgz")
    assert [file.path.name for file in find_files(tmp_path, suffix="T1w")] == ["T1.mgz"]


def test_two_files_pair_as_files(tmp_path: Path) -> None:
    touch(tmp_path, "one.nii", "other.nii")
    found = pair_files(
        find_files(tmp_path / "one.nii"), find_files(tmp_path / "other.nii")
    )
    assert [(pair.how, pair.is_guess) for pair in found.pairs] == [
        ("the two files that were given", False)
    ]


def test_a_file_and_the_only_one_of_a_folder_pair_and_are_to_be_checked(
    tmp_path: Path,
) -> None:
    (tmp_path / "one.nii").touch()
    others = find_files(touch(tmp_path / "folder", "other.nii"))
    found = pair_files(find_files(tmp_path / "one.nii"), others)
    assert found.guesses == [
        "one.nii is compared with other.nii, by being the only files"
    ]


def test_the_only_files_of_two_folders_pair_by_their_names_alone(
    tmp_path: Path,
) -> None:
    assert pairing(tmp_path, ["ann.nii"], ["bo.nii"], guess=True).pairs == ()


@pytest.mark.parametrize(
    "name", ["a.NII.GZ", "a.Nii", "a.MGZ", "a.mgh", "sub-1/anat/sub-1_dseg.NII.GZ"]
)
def test_endings_in_other_letters_are_not_passed_over(
    tmp_path: Path, name: str
) -> None:
    touch(tmp_path, name)
    assert [file.path for file in find_files(tmp_path)] == [tmp_path / name]


def test_an_empty_or_absent_folder_is_said(tmp_path: Path) -> None:
    with refusal(EvaluationError, tmp_path):
        find_files(tmp_path)
    with refusal(ConfigError, tmp_path / "nowhere"):
        find_files(tmp_path / "nowhere")


def test_scans_in_folders_are_found_as_predict_finds_them(tmp_path: Path) -> None:
    for participant in ("p1", "p2"):
        for folder, name in (
            ("scans", "T1"),
            ("results", "T1_dseg"),
            ("scans", "T1_qc_dseg"),
        ):
            (tmp_path / folder / participant).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / participant / f"{name}.nii.gz").touch()
    label_maps = find_files(tmp_path / "results")
    images = find_images(tmp_path / "scans", [file.path for file in label_maps])
    pairs = pair_files(label_maps, images).pairs
    assert [(pair.truth.shown, pair.prediction.shown) for pair in pairs] == [
        ("p1/T1_dseg.nii.gz", "p1/T1.nii.gz"),
        ("p2/T1_dseg.nii.gz", "p2/T1.nii.gz"),
    ]


def test_results_beside_scans_are_no_scans(tmp_path: Path) -> None:
    touch(tmp_path, "p1.nii.gz", "p2.nii.gz", "p1_desc-corrected_dseg.nii.gz")
    touch(tmp_path, "p2_dseg.nii.gz")
    assert [file.path.name for file in find_files(tmp_path, suffix="T1w")] == [
        "p1.nii.gz",
        "p2.nii.gz",
    ]
    results = touch(tmp_path / "results", "a_dseg.nii.gz", "a_brainmask.nii.gz")
    with refusal(EvaluationError, results):
        find_files(results, suffix="T1w")
