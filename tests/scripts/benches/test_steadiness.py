"""Heads acquired anew: the place of their voxels, what counts as a change, a whole measurement."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benches.steadiness import (
    acquired_anew,
    changed_scans,
    changes,
    moved_by,
    run,
    with_iron,
)
from helpers.overfitted import miniature, overfitted_model
from scipy import ndimage
from scipy.spatial.transform import Rotation

from trinat.segmentation.grid import moved
from trinat.segmentation.io.volume import Volume


def ball() -> Volume:
    """Return a ball around (3, -2, 4) mm; the axes run L, I, A."""
    affine = np.array([[-1, 0, 0, 20], [0, 0, 1, -20], [0, -1, 0, 20], [0, 0, 0, 1.0]])
    places = moved(np.moveaxis(np.indices((40, 40, 40)), 0, -1), affine)
    distance = np.linalg.norm(places - [3, -2, 4], axis=-1)
    return Volume((distance < 10).astype(np.float32), affine)


@pytest.mark.parametrize("spacing_mm", [0.8, 1.2, 2.0])
@pytest.mark.parametrize("degrees", [0, 20])
def test_a_head_stays_where_and_as_large_as_it_was(
    spacing_mm: float, degrees: float
) -> None:
    turn = Rotation.from_euler("z", degrees, degrees=True).as_matrix()
    scan = acquired_anew(ball(), spacing_mm, turn)
    assert scan.spacing_mm == pytest.approx((spacing_mm,) * 3)
    centre = moved(ndimage.center_of_mass(scan.data), scan.affine)
    np.testing.assert_allclose(centre, [3, -2, 4], atol=0.1)
    # 4/3 π 10³ mm³
    assert scan.data.sum() * spacing_mm**3 == pytest.approx(4189, rel=0.02)


def test_a_head_that_is_moved_in_its_array_stays_where_it_is() -> None:
    scan = moved_by(ball(), 2)
    assert scan.data.sum() == ball().data.sum()
    centre = moved(ndimage.center_of_mass(scan.data), scan.affine)
    np.testing.assert_allclose(centre, [3, -2, 4], atol=1e-6)
    before = ndimage.center_of_mass(ball().data)
    np.testing.assert_allclose(
        np.subtract(ndimage.center_of_mass(scan.data), before), 2
    )


def test_iron_changes_structures_alone_as_a_share_of_white_matter() -> None:
    labels = np.zeros((40, 40, 40), np.int16)
    labels[:20] = 2
    labels[24:36, 14:26, 14:26] = 12
    labels[24:36, 2:8, 14:26] = 17
    scan = Volume(np.where(labels == 2, 200, 150).astype(np.float32), np.eye(4))
    changed = dict(with_iron(scan, Volume(labels, np.eye(4))))
    difference = changed["deep grey brighter"].data - scan.data
    assert difference[30, 20, 20] == pytest.approx(0.08 * 200, rel=1e-3)
    assert difference[24, 20, 20] < difference[25, 20, 20] < 16
    assert (difference[labels == 17] == 0).all()
    assert (difference[labels == 2] == 0).all()
    assert changed["deep grey darker, 2 mm"].spacing_mm == pytest.approx((2.0,) * 3)


def test_a_change_is_told_in_per_cent_of_what_is_large_enough() -> None:
    before = {"Left-Putamen": 4000.0, "Left-Accumbens-area": 500.0, "CSF": 90000.0}
    after = {"Left-Putamen": 3900.0, "Left-Accumbens-area": 900.0, "CSF": 1.0}
    assert changes(before, after) == pytest.approx({"Left-Putamen": -2.5})


@pytest.mark.slow
@pytest.mark.important
def test_each_subject_has_a_line_for_each_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sub-1/mri"
    folder.mkdir(parents=True)
    scan, labels = miniature("LIA")
    scan.write(folder / "T1.mgz")
    labels.write(folder / "aseg.mgz")
    run(str(overfitted_model()), str(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    names = [name for name, _ in changed_scans(scan)]
    names += [name for name, _ in with_iron(scan, labels)]
    assert len(lines) == len(names)
    for line, name in zip(lines, names, strict=True):
        assert line.startswith(f"sub-1  {name}")
