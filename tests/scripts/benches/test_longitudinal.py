"""Simulated sessions, in which all changes are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from benches._sessions import Protocol, change_of, deformation, session
from benches.longitudinal import differences, icc_interval, pooled, run, slope_of
from helpers.miniatures import freesurfer_subject
from helpers.ratings import SHROUT_FLEISS
from helpers.sessions import head_of

from trinat.segmentation.io.volume import Volume


def ball() -> np.ndarray:
    x, y, z = np.indices((40, 40, 40)) - 20
    return x**2 + y**2 + z**2 <= 8**2


@pytest.mark.parametrize("share", [-0.02, 0.03])
def test_a_structure_changes_by_the_share(share: float) -> None:
    assert change_of(ball(), deformation(ball(), share)) == pytest.approx(share)


def test_what_is_far_away_stays() -> None:
    field = deformation(ball(), -0.02)
    assert np.abs(field[:, 0, 0, 0]).max() < 0.1 * np.abs(field).max()


def test_a_session_is_another_acquisition_each_time() -> None:
    draw = np.random.default_rng(0)
    head = head_of()
    head = type(head)(head.data / 200, head.affine)
    first, second = (session(head, None, Protocol(), draw) for _ in range(2))
    assert first.shape != second.shape or not np.allclose(first.affine, second.affine)


def test_voxels_have_the_sizes_that_are_named_in_turn(tmp_path: Path) -> None:
    freesurfer_subject(tmp_path / "heads", "a", image="T1.mgz")
    out = tmp_path / "out"
    run(
        "sessions",
        str(tmp_path / "heads"),
        str(out),
        "hippocampus",
        "1",
        "0,0",
        "1,1.2",
    )
    sizes = [Volume.read(out / f"a_MR{n}.nii.gz").grid.spacing_mm for n in (1, 2)]
    assert sizes[0] == pytest.approx((1, 1, 1))
    assert sizes[1] == pytest.approx((1.2, 1.2, 1.2))


def test_differences_are_of_the_mean_of_both_scans() -> None:
    participants = pd.DataFrame(
        {"scan": ["a.nii.gz", "b.nii.gz"], "participant": ["p", "p"]}
    )
    volumes = pd.DataFrame({"Hippocampus": [95.0, 105.0]}, index=["a", "b"])
    assert differences(participants, volumes).loc["Hippocampus", "mean"] == 10


def test_the_slope_of_what_is_found_at_half_is_a_half() -> None:
    true = np.array([0.0, 0, 1, 2, 3])
    assert slope_of(true, true / 2) == pytest.approx(0.5)


def test_both_sides_of_a_structure_have_one_noise() -> None:
    sds = pd.Series({"Left-Caudate": 1.0, "Right-Caudate": 7.0, "Brain-Stem": 2.0})
    assert pooled(sds, 2) == [
        ("Left-Caudate", 5.0, 4),
        ("Right-Caudate", 5.0, 4),
        ("Brain-Stem", 2.0, 2),
    ]


def test_the_interval_of_the_icc_of_the_published_example() -> None:
    # R's psych gives 0.019 to 0.76.
    low, high = icc_interval(SHROUT_FLEISS)
    assert low == pytest.approx(0.019, abs=0.001)
    assert high == pytest.approx(0.76, abs=0.005)


def test_the_icc_of_scans_whose_names_are_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pd.DataFrame(
        {
            "participant": ["a", "a", "b", "b", "c", "c"],
            "case": ["001", "002", "003", "004", "005", "006"],
            # As in the tests of `icc_2_1`: 1, 2, 3 and one more each.
            "Left-Caudate_mm3": [1, 2, 2, 3, 3, 4],
        }
    )
    table.to_csv(tmp_path / "timepoints.tsv", sep="\t", index=False)
    run("icc", str(tmp_path))
    participants, _, caudate = capsys.readouterr().out.splitlines()
    assert participants == "3 participants"
    assert caudate.startswith("Left-Caudate\t0.667\t")
