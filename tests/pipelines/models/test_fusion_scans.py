"""Scans and truths that are fitted to: what is guessed and what is doubted is said."""

from __future__ import annotations

from pathlib import Path

from trinat.pipelines.models.fusion_scans import pair_scans, without_partner


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


def test_a_pair_of_which_one_side_says_less_is_named(tmp_path: Path) -> None:
    scans = touch(tmp_path / "scans", "sub-01_ses-2_T1w.nii")
    truths = touch(tmp_path / "truths", "sub-01_dseg.nii")
    said: list[str] = []
    assert len(pair_scans(scans, truths, said.append).pairs) == 1
    (line,) = said
    assert line.startswith("check it: sub-01_dseg.nii is compared with sub-01_ses-2")


def test_pairs_by_name_need_no_check_and_others_say_why_they_have_none(
    tmp_path: Path,
) -> None:
    scans = touch(tmp_path / "scans", "sub-01_ses-1.nii", "sub-01_ses-2.nii", "b.nii")
    truths = touch(tmp_path / "truths", "sub-01.nii", "sub-01_ses-1.nii", "c.nii")
    said: list[str] = []
    pairing = pair_scans(scans, truths, said.append)
    assert [pair.truth.name for pair in pairing.pairs] == ["sub-01_ses-1"]
    assert said == []
    doubtful, other = without_partner(pairing, pairing.truths_alone, "scan")
    if doubtful.startswith("c"):
        doubtful, other = other, doubtful
    assert doubtful.startswith("sub-01: not unique")
    assert other == "c: no scan"
    unused = without_partner(pairing, pairing.predictions_alone, "truth")
    assert "b: no truth" in unused
