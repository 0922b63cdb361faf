"""Participant and session of a scan, from names and folders."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from trinat.segmentation.data.identity import (
    Identity,
    Named,
    clash_among,
    identify,
    identity_of,
)


def identity(path: str) -> Identity | None:
    *folders, name = path.split("/")
    return identity_of(name, folders)


@pytest.mark.parametrize(
    ("path", "participant", "session"),
    [
        ("sub-01_ses-2_run-1_T1w", "sub-01", "ses-2"),
        ("sub-01", "sub-01", ""),
        ("sub-01_ses-2.auto", "sub-01", "ses-2"),
        ("OAS1_0001_MR2", "OAS1_0001", "MR2"),
        ("OASIS_OAS1_0001_MR1", "OAS1_0001", "MR1"),
        ("OAS1_0001_MR1_mpr_n4_anon_111_t88_masked_gfc", "OAS1_0001", "MR1"),
        ("OAS2_0014_MR3", "OAS2_0014", "MR3"),
        ("OAS30001_MR_d0129", "OAS30001", "MR_d0129"),
        ("IXI002-Guys-0828-T1", "IXI002", ""),
        ("002_S_0413_MR_MPRAGE", "002_S_0413", ""),
        ("ADNI_002_S_0413_MR_MPR-R__GradWarp_Br_2007_S1_I45112", "002_S_0413", ""),
        ("ADNI/002_S_0413/MPRAGE/2006-05-02/S1/scan", "002_S_0413", ""),
        ("100307_3T_T1w_MPR2", "100307", ""),
        ("1234567_20252_2_0", "1234567", "20252_2"),
        ("1234567_20252_3_0_T1_brain", "1234567", "20252_3"),
        ("07_V2", "07", "V2"),
        ("07_tp2", "07", "tp2"),
        ("07.long.base", "07", ""),
        ("sub-1_ses-b.long.sub-1", "sub-1", "ses-b"),
        # The folders complete what the name leaves open.
        ("sub-01/ses-2/T1", "sub-01", "ses-2"),
        ("disc1/OAS1_0001_MR2/mpr-1", "OAS1_0001", "MR2"),
        ("sub-01/OAS1_0001_MR2", "OAS1_0001", "MR2"),
    ],
)
def test_names_and_folders_say_participant_and_session(
    path: str, participant: str, session: str
) -> None:
    found = identity(path)
    assert found is not None
    assert (found.participant, found.session) == (participant, session)


@pytest.mark.parametrize(
    "path", ["T1", "case_1", "p1/T1", "MR1", "subject/x", "IXI2", "123456_1"]
)
def test_other_names_say_nothing(path: str) -> None:
    assert identity(path) is None


def test_scans_of_a_session_are_told_apart_by_the_rest_of_their_names() -> None:
    scans = [identity("OAS1_0001_MR2"), identity("OAS1_0001_MR2_b")]
    assert [scan and scan.scan for scan in scans] == ["MR2", "MR2_b"]


def test_scans_of_cohorts_without_sessions_in_their_names_are_told_apart() -> None:
    scans = [identity(f"100307_3T_T1w_MPR{run}") for run in (1, 2)]
    assert [scan and scan.scan for scan in scans] == ["3T_T1w_MPR1", "3T_T1w_MPR2"]


def identities(*paths: str) -> list[Identity]:
    named = []
    for path in paths:
        *folders, name = path.split("/")
        named.append(Named(name, tuple(folders)))
    return identify(named)


def participants(*paths: str) -> list[str]:
    return [scan.participant for scan in identities(*paths)]


def test_accents_in_either_unicode_form_are_of_one_participant() -> None:
    folder = "Jose\N{COMBINING ACUTE ACCENT}"
    assert (
        participants("Jos\xe9_V1", f"{folder}_V2", f"{folder}_V3/x") == ["Jos\xe9"] * 3
    )


def test_participants_of_two_sites_stay_apart() -> None:
    paths = ("A/sub-01_T1w", "B/sub-01_T1w", "A/sub-02_T1w", "C/sub-03_T1w")
    assert participants(*paths) == ["A/sub-01", "B/sub-01", "A/sub-02", "sub-03"]
    inside = ("A/sub-01/anat/sub-01_T1w", "B/sub-01/anat/sub-01_T1w")
    assert participants(*inside) == ["A/sub-01", "B/sub-01"]


@pytest.mark.parametrize(
    "folders", [("baseline", "followup"), ("ses-1", "ses-2"), ("visit1", "visit2")]
)
def test_folders_that_are_sessions_are_no_sites(folders: tuple[str, str]) -> None:
    assert (
        participants(*(f"{folder}/sub-01_T1w" for folder in folders)) == ["sub-01"] * 2
    )


def test_dicom_series_are_of_the_participant_whose_folder_they_are_in() -> None:
    scans = identities(
        "0012/baseline/series-5-0123abcd",
        "0012/followup/series-89abcdef",
        "0034/series-5-4567abcd",
        "V1/0034/series-6-4567abce",
    )
    assert [scan.participant for scan in scans] == ["0012", "0012", "0034", "0034"]
    assert [scan.session for scan in scans] == ["baseline", "followup", "", "V1"]


def test_dicom_series_of_folders_of_one_name_are_of_several_participants() -> None:
    paths = ("A/07/series-5-0123abcd", "B/07/series-5-89abcdef", "A/08/series-4567abcd")
    assert participants(*paths) == ["A/07", "B/07", "A/08"]


@pytest.mark.parametrize("name", ["series-5-0123abcd", "baseline/series-5-0123abcd"])
def test_a_dicom_series_without_a_folder_is_a_participant_of_its_own(name: str) -> None:
    assert participants(name) == ["series-5-0123abcd"]


def test_two_sessions_in_two_folders_are_of_one_participant() -> None:
    assert (
        participants("disc1/OAS1_0001_MR1", "disc2/OAS1_0001_MR2") == ["OAS1_0001"] * 2
    )


@pytest.mark.parametrize("second", ["sub-01_acq-mprage_T1w", "sub-01_ses-1"])
def test_participants_of_two_sites_stay_apart_whatever_follows_their_names(
    second: str,
) -> None:
    scans = identities("A/sub-01_T1w", f"B/{second}")
    assert [scan.participant for scan in scans] == ["A/sub-01", "B/sub-01"]
    assert "A/sub-01" in clash_among(scan.participant for scan in scans)


def test_a_name_that_says_no_session_is_the_participants_and_clashes_like_others() -> (
    None
):
    assert participants("anna/anat/anna", "ben/anat/ben") == ["anna", "ben"]
    assert participants("A/anna", "A/ben", "B/anna") == ["A/anna", "A/ben", "B/anna"]
    assert participants("a/T1", "b/T1") == ["a/T1", "b/T1"]


@pytest.mark.parametrize(
    ("first", "second"),
    [("v1", "v2"), ("baseline", "followup"), ("visit1", "visit-2"), ("TP1", "TP2")],
)
def test_sessions_are_the_same_words_in_names_and_folders(
    first: str, second: str
) -> None:
    assert participants(f"P01_{first}", f"P01_{second}") == ["P01", "P01"]
    assert participants(f"P01_{first}_T1", f"P01_{second}_T1") == ["P01", "P01"]
    assert participants(f"{first}/P01", f"{second}/P01") == ["P01", "P01"]


def test_a_word_with_a_number_behind_a_session_may_be_the_participant() -> None:
    names = ("TRIAL_V1_P01", "TRIAL_V1_P02", "TRIAL_V2_P01")
    assert participants(*names) == ["TRIAL_P01", "TRIAL_P02", "TRIAL_P01"]
    assert participants("07_V1_T1", "07_V1_T2", "07_V2_run-01") == ["07"] * 3


def test_a_number_of_three_digits_is_no_session() -> None:
    assert participants("study_MR000", "study_MR001") == ["study_MR000", "study_MR001"]


def test_a_date_behind_a_session_is_not_the_participants() -> None:
    names = ("P1_V1_20160115", "P1_V2_20170115", "P2_V1_20160201", "P2_V2_20170201")
    assert participants(*names) == ["P1", "P1", "P2", "P2"]
    assert participants("X_V1_20200101", "X_V1_20200102", "X_V2_20210101") == ["X"] * 3


def test_numbers_of_files_in_a_folder_of_a_session_are_not_the_participants() -> None:
    assert participants("P1_V1/img1", "P1_V1/img2") == ["P1", "P1"]
    several = [f"P{one}_V1/00{number}" for one in (1, 2) for number in (1, 2, 3)]
    assert participants(*several) == ["P1"] * 3 + ["P2"] * 3


def test_a_repeated_scan_splits_no_other_unique_participant() -> None:
    repeated = ["w1/OAS1_0001_MR1", "w2/OAS1_0001_MR1"]
    others = ["w1/OAS1_0002_MR1", "w2/OAS1_0002_MR2"]
    assert participants(*repeated, *others) == [
        *("w1/OAS1_0001", "w2/OAS1_0001"),
        *("OAS1_0002", "OAS1_0002"),
    ]
    assert participants("w1/07", "w2/07", *others)[2:] == ["OAS1_0002", "OAS1_0002"]


def test_numbers_that_do_not_recur_within_a_session_are_not_the_participants() -> None:
    assert participants("X_V1_001", "X_V2_002", "X_V3_003") == ["X"] * 3


def test_numbers_behind_a_session_mean_the_same_in_all_sites() -> None:
    large = [f"S1_V1_00{number}" for number in range(4)]
    small = ["S2_V1_000", "S2_V1_001"]
    assert len(set(participants(*large, *small))) == 6


def test_a_number_behind_a_session_is_the_participants() -> None:
    assert participants("TRIAL_V1_000", "TRIAL_V1_001", "TRIAL_V2_000") == [
        "TRIAL_000",
        "TRIAL_001",
        "TRIAL_000",
    ]
    # Runs of different participants with the same numbers.
    assert (
        participants("07_V1_1", "07_V1_2", "08_V1_1", "08_V1_2")
        == ["07"] * 2 + ["08"] * 2
    )
    assert participants("OAS1_0001_MR1_1", "OAS1_0001_MR1_2") == ["OAS1_0001"] * 2


def test_a_single_repeated_scan_among_others_is_of_one_participant() -> None:
    others = [f"P0{number}_V1" for number in (1, 2, 3, 4, 5)]
    found = participants(*others, "P07_V1_1", "P07_V1_2")
    assert found == ["P01", "P02", "P03", "P04", "P05", "P07", "P07"]
    # Unique identifiers are no names that numbers could follow.
    unique = ["OAS1_0001_MR1", "OAS1_0002_MR1", "OAS1_0003_MR1"]
    assert participants(*unique, "TRIAL_V1_000", "TRIAL_V1_001")[3:] == [
        "TRIAL_000",
        "TRIAL_001",
    ]


@pytest.mark.parametrize("folders", [("V1", "V2"), ("baseline", "followup")])
def test_files_named_after_participants_in_folders_of_sessions(
    folders: tuple[str, str],
) -> None:
    paths = [f"{folder}/P0{n}" for folder in folders for n in range(2)]
    scans = identities(*paths)
    assert [scan.participant for scan in scans] == ["P00", "P01", "P00", "P01"]
    assert [scan.scan for scan in scans] == [
        *(folders[0], folders[0]),
        *(folders[1], folders[1]),
    ]
    assert not clash_among(scan.participant for scan in scans)


# Trees as in the BIDS project's examples (7t_trt, ds001, ds114, ds000117, synthetic,
# qmri_mp2rage, eeg_ds000117): the folder sub-* names the participant, ses-* the session.
_BIDS_EXAMPLES = (
    "7t_trt/sub-01/ses-1/anat/sub-01_ses-1_T1map",
    "7t_trt/sub-22/ses-1/anat/sub-22_ses-1_T1w",
    "ds001/sub-16/anat/sub-16_T1w",
    "ds001/sub-16/anat/sub-16_inplaneT2",
    "ds114/sub-10/ses-retest/anat/sub-10_ses-retest_T1w",
    "ds114/sub-10/ses-test/anat/sub-10_ses-test_T1w",
    "ds000117/sub-01/ses-mri/anat/sub-01_ses-mri_acq-mprage_T1w",
    "ds000117/sub-01/ses-mri/anat/sub-01_ses-mri_run-1_echo-1_FLASH",
    "synthetic/sub-05/ses-02/anat/sub-05_ses-02_T1w",
    "qmri_mp2rage/sub-1/anat/sub-1_inv-1_part-mag_MP2RAGE",
    "ds003/sub-13/anat/sub-13_T1w",
    "ds052/sub-14/anat/sub-14_run-02_T1w",
    "ds051/sub-13/anat/sub-13_run-01_T1w",
    "ds210/sub-15/anat/sub-15_T1w",
    "hcp_example_bids/sub-100307/anat/sub-100307_T1w",
    "ieeg_epilepsy/sub-ecog01/ses-presurgery/anat/sub-ecog01_ses-presurgery_T1w",
    "pet001/sub-01/ses-01/anat/sub-01_ses-01_T1w",
    "micr_SEM/sub-01/sub-01_sample-01_SEM",
)


@pytest.mark.parametrize("path", _BIDS_EXAMPLES)
def test_names_of_the_bids_examples(path: str) -> None:
    parts = PurePosixPath(path).parts
    participant = next(part for part in parts if part.startswith("sub-"))
    session = next((part for part in parts if part.startswith("ses-")), "")
    found = identity(path)
    assert found is not None
    assert (found.participant, found.session) == (participant, session)
    assert found.site == parts[:1]
