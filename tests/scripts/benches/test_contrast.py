"""Simulated contrasts: their curves, and a whole measurement of a miniature."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benches.contrast import CURVES, run, turned_scans, with_contrast
from helpers.overfitted import miniature, overfitted_model

from trinat.segmentation.io.volume import Volume


def test_the_curve_of_t1_changes_nothing() -> None:
    values = np.arange(256, dtype=np.uint8)
    np.testing.assert_allclose(with_contrast(values, CURVES["T1"]), values)


@pytest.mark.parametrize("name", ["T2-like", "T2-like, flat", "PD-like"])
def test_elsewhere_white_matter_is_darkest_and_fluid_brightest(name: str) -> None:
    """Fluid, cortex and white matter have 25, 70 and 110 in T1."""
    fluid, cortex, white = with_contrast(np.array([25, 70, 110]), CURVES[name])
    assert fluid > cortex > white


def test_thick_slices_are_axial_and_where_their_voxels_were() -> None:
    """Ten planes along S with the value of their height; the axes run L, I, A."""
    data = np.zeros((2, 10, 3), np.float32) + np.arange(10)[::-1, None]
    affine = np.array([[-1, 0, 0, 1], [0, 0, 1, 0], [0, -1, 0, 9], [0, 0, 0, 1.0]])
    name, slices = list(turned_scans(Volume(data, affine)))[-2]
    assert name == "T1, slices of 5 mm"
    assert slices.data.shape == (2, 3, 2)
    # Heights 0 to 4 and 5 to 9, and their means.
    np.testing.assert_allclose(slices.affine[:3, 3], [0, 0, 2])
    np.testing.assert_allclose(slices.affine[:3, 2], [0, 0, 5])
    np.testing.assert_allclose(slices.data[0, 0], [2, 7])


@pytest.mark.slow
@pytest.mark.important
def test_each_subject_has_a_line_for_each_contrast_and_the_means_follow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):
        folder = tmp_path / f"sub-{number}/mri"
        folder.mkdir(parents=True)
        scan, truth = miniature("LIA", seed=number)
        scan.write(folder / "T1.mgz")
        truth.write(folder / "aparc+aseg.mgz", labels=True)
    (tmp_path / "no-subject").mkdir()
    run(str(overfitted_model()), str(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    rows = len(CURVES) + 2
    assert len(lines) == 3 * rows
    first, second = (float(lines[place].split()[-2]) for place in (0, rows))
    mean = float(lines[2 * rows].split()[-1])
    assert mean == pytest.approx((first + second) / 2, abs=0.001)
