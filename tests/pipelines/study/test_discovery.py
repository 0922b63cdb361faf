"""All ways to specify scans, and all names that a scan may have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers.files import touch
from helpers.refusals import refusal

from trinat.pipelines.study.cases import Case, Found
from trinat.pipelines.study.discovery import find_bids, find_cases
from trinat.segmentation.errors import ConfigError, InputError


def ids(found: Found) -> list[str]:
    return [case.id for case in found.cases]


def refused(found: Found) -> dict[str, str]:
    return {refusal.shown: refusal.reason for refusal in found.refusals}


def test_one_file_is_named_after_itself(tmp_path: Path) -> None:
    touch(tmp_path, "head.nii.gz")
    assert ids(find_cases([tmp_path / "head.nii.gz"])) == ["head"]


def test_a_folder_is_mirrored_in_natural_order_without_hidden_files(
    tmp_path: Path,
) -> None:
    touch(
        tmp_path,
        "b/s10.nii",
        "b/s2.mgz",
        "a/x.nii.gz",
        ".h/y.nii",
        "._z.nii",
        "notes.txt",
    )
    assert ids(find_cases([tmp_path])) == ["a/x", "b/s2", "b/s10"]


def test_the_output_folder_is_no_input(tmp_path: Path) -> None:
    touch(tmp_path, "x.nii", "out/x_dseg.nii.gz")
    assert ids(find_cases([tmp_path], exclude=tmp_path / "out")) == ["x"]


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    touch(tmp_path, "a/x.nii")
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    assert ids(find_cases([tmp_path])) == ["a/x"]


def test_a_folder_reached_by_a_link_too_has_its_own_name(tmp_path: Path) -> None:
    touch(tmp_path, "n/x.nii")
    for link in "abcdefxyz":
        (tmp_path / link).symlink_to("n")
    assert ids(find_cases([tmp_path])) == ["n/x"]


@pytest.mark.parametrize("names", [("s1", "s01", "s001"), ("s01", "s001", "s1")])
def test_names_with_equal_numbers_have_one_order(names: tuple[str, ...]) -> None:
    cases = [Case(name, Path(name), name) for name in names]
    assert ids(Found.of(cases, [])) == ["s001", "s01", "s1"]


def test_equal_scans_linked_to_one_file_are_two_cases(tmp_path: Path) -> None:
    touch(tmp_path / "store", "blob.nii")
    (tmp_path / "in").mkdir()
    for name in ("a.nii", "b.nii"):
        (tmp_path / "in" / name).symlink_to(tmp_path / "store" / "blob.nii")
    assert ids(find_cases([tmp_path / "in"])) == ["a", "b"]


def test_a_glob_mirrors_from_its_fixed_part(tmp_path: Path) -> None:
    touch(tmp_path, "s1/T1.nii", "s2/T1.nii", "s2/T2.nii")
    assert ids(find_cases([f"{tmp_path}/*/T1.nii"])) == ["s1/T1", "s2/T1"]


@pytest.mark.parametrize("pattern", ["*", "**"])
def test_folders_that_match_a_glob_are_searched(tmp_path: Path, pattern: str) -> None:
    touch(tmp_path, "p1/a/T1.nii", "p2/T1.nii", "x.nii", "none/notes.txt")
    found = find_cases([f"{tmp_path}/{pattern}"], exclude=tmp_path / "p2")
    assert ids(found) == ["p1/a/T1", "x"]
    empty = [f"{tmp_path}/none"] if pattern == "*" else []
    assert list(refused(found)) == empty


def test_a_file_whose_name_looks_like_a_glob_is_a_file(tmp_path: Path) -> None:
    touch(tmp_path, "scan[1].nii", "scan1.nii")
    (case,) = find_cases([tmp_path / "scan[1].nii"]).cases
    assert case.path.name == "scan[1].nii"


def test_a_list_is_relative_to_itself_and_missing_files_are_told(
    tmp_path: Path,
) -> None:
    touch(tmp_path, "in/a.nii", "in/b.nii")
    (tmp_path / "list.txt").write_text("# mine\nin/a.nii\n\nin/b.nii\nin/c.nii\n")
    found = find_cases([tmp_path / "list.txt"])
    assert ids(found) == ["a", "b"]
    assert refused(found) == {"c.nii": "no such file"}


def test_a_list_in_utf_16_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("a.nii\n", "utf-16")
    assert list(refused(find_cases([path]))) == [str(path)]


def test_a_scan_in_a_list_may_be_called_like_a_result(tmp_path: Path) -> None:
    touch(tmp_path, "a_mask.nii", "b.nii")
    (tmp_path / "list.txt").write_text("a_mask.nii\nb.nii\n")
    assert ids(find_cases([tmp_path / "list.txt"])) == ["a_mask", "b"]


def test_a_pipe_is_no_file_and_does_not_pass_for_a_missing_one(tmp_path: Path) -> None:
    touch(tmp_path, "a.nii.gz")
    os.mkfifo(tmp_path / "pipe.nii.gz")
    found = find_cases([tmp_path])
    assert ids(found) == ["a"]
    assert refused(found) == {"pipe.nii.gz": "not a regular file"}


def test_the_same_file_twice_is_done_once(tmp_path: Path) -> None:
    touch(tmp_path, "a.nii")
    found = find_cases([tmp_path / "a.nii", f"{tmp_path}/../{tmp_path.name}/a.nii"])
    assert ids(found) == ["a"]
    assert [(r.reason, r.harmless) for r in found.refusals] == [("given twice", True)]


def test_nii_beside_nii_gz_refuses_both_and_only_them(tmp_path: Path) -> None:
    touch(tmp_path, "x.nii", "x.nii.gz", "y.nii")
    found = find_cases([tmp_path])
    assert ids(found) == ["y"]
    assert set(refused(found)) == {"x.nii", "x.nii.gz"}
    assert "x.nii.gz beside it" in refused(found)["x.nii"]


def test_results_beside_scans_are_passed_over(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "s1_T1w.nii",
        "s1_dseg.nii",
        "s1_label-x_probseg.nii.gz",
        "s1_MASK.mgz",
    )
    for given in (tmp_path, f"{tmp_path}/*"):
        found = find_cases([given])
        assert ids(found) == ["s1_T1w"]
        assert set(refused(found)) == {
            "s1_dseg.nii",
            "s1_label-x_probseg.nii.gz",
            "s1_MASK.mgz",
        }
        assert all(refusal.harmless for refusal in found.refusals)


def test_a_file_named_by_itself_is_taken_whatever_its_name(tmp_path: Path) -> None:
    touch(tmp_path, "s1_T1w.nii", "s1_mask.nii")
    found = find_cases([tmp_path / "s1_T1w.nii", tmp_path / "s1_mask.nii"])
    assert ids(found) == ["s1_T1w", "s1_mask"]


def test_equal_names_in_two_folders_are_kept_apart(tmp_path: Path) -> None:
    touch(tmp_path, "a/T1.nii", "b/T1.nii")
    assert ids(find_cases([tmp_path / "a/T1.nii", tmp_path / "b/T1.nii"])) == [
        "a/T1",
        "b/T1",
    ]


@pytest.mark.parametrize(
    "name", ["a b", "Äpfel", "line\nbreak", "-rf", "日本", "x" * 80]
)
def test_odd_names_become_safe_and_stay_distinct(tmp_path: Path, name: str) -> None:
    touch(tmp_path, f"{name}.nii", "a_b.nii")
    odd, plain = sorted(find_cases([tmp_path]).cases, key=lambda case: case.id == "a_b")
    assert plain.id == "a_b"
    assert odd.path.name == f"{name}.nii"
    assert odd.id.isascii()
    assert odd.id.isprintable()
    assert odd.id[0] not in ".-"
    assert len(odd.id) <= 64
    assert "/" not in odd.id


def test_a_pair_of_header_and_image_is_one_case(tmp_path: Path) -> None:
    touch(tmp_path, "x.hdr", "x.img")
    (case,) = find_cases([tmp_path]).cases
    assert [path.name for path in case.files] == ["x.hdr", "x.img"]


@pytest.mark.parametrize("names", [("x.img", "x.hdr"), ("X.IMG", "X.HDR")])
def test_header_and_image_named_both_are_one_case(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    touch(tmp_path, *names)
    found = find_cases([tmp_path / name for name in names])
    assert len(found.cases) == 1
    assert found.refusals[0].harmless


def test_bids_keeps_sessions_runs_and_entities_and_takes_only_t1w(
    tmp_path: Path,
) -> None:
    touch(
        tmp_path,
        "dataset_description.json",
        "sub-02/anat/sub-02_T1w.nii",
        "sub-10/ses-a/anat/sub-10_ses-a_acq-hi_run-2_T1w.nii.gz",
        "sub-10/ses-a/anat/sub-10_ses-a_T2w.nii.gz",
        "derivatives/p/sub-02/anat/sub-02_desc-preproc_T1w.nii.gz",
    )
    found = find_cases([tmp_path])
    assert ids(found) == [
        "sub-02/anat/sub-02",
        "sub-10/ses-a/anat/sub-10_ses-a_acq-hi_run-2",
    ]
    assert found.cases[1].entities == {"sub": "10", "ses": "a", "acq": "hi", "run": "2"}
    assert found.bids_root == tmp_path


def test_bids_leaves_out_what_is_no_magnitude(tmp_path: Path) -> None:
    anat = "sub-01/anat"
    parts = ("mag", "phase", "real", "imag")
    touch(tmp_path, *(f"{anat}/sub-01_part-{part}_T1w.nii.gz" for part in parts))
    touch(tmp_path, "sub-02/anat/sub-02_part-phase_T1w.nii.gz")
    found = find_bids(tmp_path, ["01"], [])
    assert ids(found) == [f"{anat}/sub-01_part-mag"]
    assert list(refused(found)) == [
        f"{anat}/sub-01_part-{part}_T1w.nii.gz" for part in ("imag", "phase", "real")
    ]
    assert all(refusal.harmless for refusal in found.refusals)


def test_bids_leaves_out_what_is_in_the_space_of_a_template(tmp_path: Path) -> None:
    anat = "sub-01/anat/sub-01"
    in_template = f"{anat}_space-MNI152NLin2009cAsym_desc-preproc_T1w.nii.gz"
    touch(tmp_path, f"{anat}_desc-preproc_T1w.nii.gz", in_template)
    found = find_cases([tmp_path])
    assert ids(found) == [f"{anat}_desc-preproc"]
    (refusal,) = found.refusals
    assert (refusal.shown, refusal.harmless) == (in_template, True)


def test_of_a_bids_dataset_scans_of_another_suffix_are_taken_if_asked_for(
    tmp_path: Path,
) -> None:
    touch(
        tmp_path,
        "sub-02/anat/sub-02_T1w.nii",
        "sub-02/anat/sub-02_T2w.nii",
        "sub-10/ses-a/anat/sub-10_ses-a_acq-hi_T2w.nii.gz",
        "sub-11/anat/sub-11_FLAIR.nii.gz",
    )
    found = find_cases([tmp_path], suffix="T2w")
    assert ids(found) == [
        "sub-02/anat/sub-02_space-T2w",
        "sub-10/ses-a/anat/sub-10_ses-a_acq-hi_space-T2w",
    ]
    assert found.cases[0].entities == {"sub": "02", "space": "T2w"}
    missing = find_cases([tmp_path], suffix="T2w", participants=["11"])
    assert refused(missing) == {"sub-11": "no such participant with a T2w scan"}


def test_two_bids_scans_whose_results_would_have_one_name_are_not_mixed(
    tmp_path: Path,
) -> None:
    names = ("desc-preproc_T1w", "space-orig_desc-preproc_T1w", "acq-b_T1w")
    touch(tmp_path, *(f"sub-01/anat/sub-01_{name}.nii" for name in names))
    found = find_cases([tmp_path])
    assert ids(found) == ["sub-01/anat/sub-01_acq-b"]
    assert len(found.refusals) == 2


@pytest.mark.parametrize("suffix", ["", "run-1_T2w", "../T2w"])
def test_a_suffix_is_one_word(tmp_path: Path, suffix: str) -> None:
    touch(tmp_path, "sub-01/anat/sub-01_run-1_T2w.nii")
    with pytest.raises(ConfigError, match="no suffix of BIDS"):
        find_cases([tmp_path], suffix=suffix)


def test_a_suffix_is_for_bids_datasets_alone(tmp_path: Path) -> None:
    touch(tmp_path, "a.nii", "sub-01/anat/sub-01_T1w.nii")
    for inputs in ([tmp_path / "a.nii"], [tmp_path], [tmp_path, tmp_path / "a.nii"]):
        with refusal(ConfigError, remedy="--suffix"):
            find_cases(inputs, suffix="PDw")


def test_participants_are_chosen_with_and_without_prefix_and_missing_ones_told(
    tmp_path: Path,
) -> None:
    touch(tmp_path, *(f"sub-{n}/anat/sub-{n}_T1w.nii" for n in ("01", "02", "03")))
    found = find_cases([tmp_path], participants=["01", "sub-03", "09"])
    assert ids(found) == ["sub-01/anat/sub-01", "sub-03/anat/sub-03"]
    assert list(refused(found)) == ["sub-09"]


def test_subjects_dir_takes_the_least_processed_image(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "s1/mri/T1.mgz",
        "s1/mri/orig.mgz",
        "s2/mri/wm.mgz",
        "s2/surf/lh.white",
    )
    found = find_cases([tmp_path])
    assert [(case.id, case.path.name) for case in found.cases] == [
        ("s1/s1", "orig.mgz")
    ]
    assert list(refused(found)) == ["s2"]


def test_a_subjects_dir_in_derivatives_is_no_raw_dataset(tmp_path: Path) -> None:
    touch(tmp_path, "dataset_description.json", "sub-01/mri/orig.mgz")
    assert ids(find_cases([tmp_path])) == ["sub-01/sub-01"]


def test_refused_inputs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    touch(tmp_path, "p1/scan.zip", "p2/scan.zip")
    found = find_cases([tmp_path / "p1/scan.zip", tmp_path / "p2/scan.zip"])
    assert set(refused(found)) == {"p1/scan.zip", "p2/scan.zip"}


def test_templates_bases_and_scans_that_are_there_twice_are_passed_over(
    tmp_path: Path,
) -> None:
    folders = ("fsaverage", "07", "07_tp1", "07_tp1.long.07", "08.long.08base")
    touch(tmp_path, *(f"{folder}/mri/orig.mgz" for folder in folders), "07/base-tps")
    found = find_cases([tmp_path])
    assert ids(found) == ["07_tp1/07_tp1", "08.long.08base/08.long.08base"]
    assert found.remarks == (
        "07: not segmented, since it is a longitudinal base: an average of sessions, not a scan",
        "07_tp1.long.07: not segmented, since it is the scan of 07_tp1 once more",
        "fsaverage: not segmented, since it is a template, not a participant",
    )


def test_a_folder_without_scans_is_told(tmp_path: Path) -> None:
    assert "no scan in this folder" in refused(find_cases([tmp_path]))[str(tmp_path)]


def test_a_bids_dataset_without_t1w_is_an_error(tmp_path: Path) -> None:
    touch(tmp_path, "dataset_description.json", "sub-01/anat/sub-01_T2w.nii.gz")
    with pytest.raises(InputError, match="T1w"):
        find_cases([tmp_path])


def test_several_datasets_at_once_are_refused(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "bids/sub-01/anat/sub-01_T1w.nii",
        "fs/s1/mri/orig.mgz",
        "fs/s1/mri/aseg.mgz",
    )
    touch(tmp_path, "scans/x.nii")
    for dataset in ("bids", "fs"):
        with pytest.raises(ConfigError, match=f"{dataset}: .* only input"):
            find_cases([tmp_path / "scans", tmp_path / dataset])


@pytest.mark.parametrize(
    ("given", "dataset", "file"),
    [
        ("in", "in/fs", "in/fs/anna/mri/orig.mgz"),
        ("in/fs/anna/mri", "in/fs", "in/fs/anna/mri/orig.mgz"),
        ("in", "in/bids", "in/bids/dataset_description.json"),
        ("in/sub-01", "in/sub-01", "in/dataset_description.json"),
        ("in/sub-01/anat", "in/sub-01/anat", "in/sub-01/anat/sub-01_T1w.nii"),
    ],
)
def test_datasets_in_a_folder_and_parts_of_datasets_are_refused(
    tmp_path: Path, given: str, dataset: str, file: str
) -> None:
    touch(tmp_path, file, f"{given}/x.nii")
    with refusal(ConfigError, tmp_path / dataset):
        find_cases([tmp_path / given])


def test_a_part_of_a_bids_dataset_with_t1w_scans_only_is_segmented(
    tmp_path: Path,
) -> None:
    scans = ("sub-01/anat/sub-01_T1w.nii", "sub-01/anat/sub-01_T1w.json")
    touch(tmp_path, "dataset_description.json", *scans)
    assert ids(find_cases([tmp_path / "sub-01"])) == ["anat/sub-01_T1w"]


def test_earlier_results_of_a_bids_dataset_are_no_dataset(tmp_path: Path) -> None:
    results = ("run.jsonl", "dataset_description.json", "sub-01/anat/sub-01_dseg.nii")
    touch(tmp_path, "x.nii", *(f"results/{name}" for name in results))
    assert ids(find_cases([tmp_path])) == ["x"]


def test_a_folder_named_mri_is_no_subjects_dir(tmp_path: Path) -> None:
    touch(tmp_path, "p1/mri/T1.nii", "p2/T1.nii")
    assert ids(find_cases([tmp_path])) == ["p1/mri/T1", "p2/T1"]


def test_of_a_freesurfer_subject_only_its_image_is_a_scan(tmp_path: Path) -> None:
    touch(
        tmp_path,
        *(f"s{n}/mri/{name}.mgz" for n in (1, 2) for name in ("T1", "aseg", "wm")),
    )
    assert ids(find_cases([tmp_path / "s1"])) == ["s1/s1"]
    assert ids(find_cases([tmp_path / "s1", tmp_path / "s2"])) == ["s1/s1", "s2/s2"]


def test_subjects_given_one_by_one_are_those_of_their_subjects_dir(
    tmp_path: Path,
) -> None:
    folders = ("anna", "anna.long.base", "base", "fsaverage", "otto")
    touch(tmp_path, *(f"{folder}/mri/orig.mgz" for folder in folders), "base/base-tps")
    together = find_cases([tmp_path])
    one_by_one = find_cases(sorted(tmp_path.iterdir()))
    assert ids(together) == ids(one_by_one) == ["anna/anna", "otto/otto"]
    assert together.remarks == one_by_one.remarks


@pytest.mark.parametrize(
    "scan", ["x.nii", "sub-01/anat/sub-01_T1w.nii", "s1/mri/orig.mgz"]
)
def test_an_output_folder_that_is_the_input_is_told(tmp_path: Path, scan: str) -> None:
    touch(tmp_path, scan)
    with refusal(ConfigError, tmp_path, remedy="--out"):
        find_cases([tmp_path], exclude=tmp_path)


def test_an_empty_path_is_not_the_current_folder() -> None:
    with refusal(ConfigError):
        find_cases([""])


def test_a_glob_leaves_the_output_folder_out(tmp_path: Path) -> None:
    touch(tmp_path, "a/x.nii", "out/a/x_entropy.nii.gz", "out/a/x_copy.nii")
    pattern = f"{tmp_path}/**/*.nii*"
    assert ids(find_cases([pattern], exclude=tmp_path / "out")) == ["a/x"]
    # Results in the searched folder itself are recognised by their names.
    assert ids(find_cases([f"{tmp_path}/out/a/*"], exclude=tmp_path / "out")) == [
        "x_copy"
    ]


def test_a_bids_scan_in_anothers_folder_is_refused(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "sub-01/anat/sub-01_acq-a+b_T1w.nii",
        "sub-01/anat/sub-02_T1w.nii",
        "sub-02/ses-a/anat/sub-02_ses-b_T1w.nii",
        "sub-03 copy/anat/sub-03_T1w.nii",
    )
    found = find_cases([tmp_path])
    assert ids(found) == ["sub-01/anat/sub-01_acq-a+b"]
    assert found.cases[0].entities["acq"] == "a+b"
    assert len(refused(found)) == 3


def test_what_is_wrong_with_other_participants_is_no_matter_of_one(
    tmp_path: Path,
) -> None:
    touch(tmp_path, "sub-01/anat/sub-01_T1w.nii", "sub-02/anat/sub-2_T1w.nii")
    assert not find_bids(tmp_path, ["01"], []).refusals
    assert len(find_bids(tmp_path, ["02"], []).refusals) == 2
    touch(tmp_path, "sub-01/ses-a/anat/sub-1_ses-a_T1w.nii")
    assert not find_bids(tmp_path, ["01"], ["b"]).refusals
    assert len(find_bids(tmp_path, ["01"], ["a"]).refusals) == 1


def test_zips_in_a_folder_are_counted_with_how_to_give_them(tmp_path: Path) -> None:
    touch(tmp_path / "study", "a.nii.gz", "b.zip", "c.ZIP")
    found = find_cases([tmp_path / "study"])
    assert ids(found) == ["a"]
    assert found.remarks == (
        "study/: zips in a folder are not opened: 2; give them by name, such as study/*.zip",
    )


def test_images_of_other_kinds_are_named(tmp_path: Path) -> None:
    touch(tmp_path / "study", "a.nii.gz", "b.nrrd", "c.MNC", "notes.txt")
    found = find_cases([tmp_path / "study"])
    assert ids(found) == ["a"]
    (remark,) = found.remarks
    assert remark.startswith("study/: images of kinds that are not read: ")
    assert "b.nrrd" in remark
    assert "c.MNC" in remark


def test_half_a_pair_is_a_case_that_will_fail(tmp_path: Path) -> None:
    touch(tmp_path, "whole.hdr", "whole.img", "half.img")
    assert ids(find_cases([tmp_path])) == ["half", "whole"]


def test_scans_beside_freesurfers_subjects_are_named(tmp_path: Path) -> None:
    touch(tmp_path, "s1/mri/orig.mgz", "p1.nii.gz", "more/p2.nii.gz", "more/x.txt")
    found = find_cases([tmp_path])
    assert ids(found) == ["s1/s1"]
    (remark,) = found.remarks
    assert remark.endswith("are not read: p1.nii.gz, p2.nii.gz")


def test_scans_of_a_dataset_that_are_not_where_bids_has_them_are_named(
    tmp_path: Path,
) -> None:
    misplaced = [
        "sub-02/sub-02_T1w.nii.gz",
        "sub-03/ses-1/sub-03_ses-1_T1w.nii.gz",
        "sub-04/anat/sub-04_T1W.nii.gz",
    ]
    touch(tmp_path, "sub-01/anat/sub-01_T1w.nii.gz", *misplaced)
    touch(tmp_path, "sub-01/anat/sub-01_T2w.nii.gz", "sub-01/anat/sub-01_T1w.json")
    found = find_cases([tmp_path])
    assert ids(found) == ["sub-01/anat/sub-01"]
    (remark,) = found.remarks
    assert remark == (
        f"not read, since BIDS has [ses-*/]anat/*_T1w.nii[.gz]: {', '.join(misplaced)}"
    )
