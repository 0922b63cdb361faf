"""Brains painted from labels: what is bright and dark in them, and a whole measurement."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.overfitted import miniature, overfitted_model

from bench.painted import BRIGHTNESS, paint, painted_scans, run
from trinat.segmentation.io.volume import Volume

# A block of each of these, by FreeSurfer's numbers.
WHITE_MATTER, VENTRICLE, CORTEX, PARCEL, PALLIDUM = 2, 4, 3, 1011, 13
BLOCK = 12


def blocks() -> np.ndarray:
    """Blocks side by side, with 10 empty voxels around."""
    row = np.repeat([WHITE_MATTER, VENTRICLE, CORTEX, PARCEL, PALLIDUM], BLOCK)
    numbers = np.broadcast_to(row[:, None, None], (len(row), BLOCK, BLOCK))
    return np.pad(numbers, 10).astype(np.int32)


@pytest.mark.parametrize("name", list(BRIGHTNESS))
def test_each_structure_has_its_own_brightness(name: str) -> None:
    numbers = blocks()
    image = paint(numbers, name, np.random.default_rng(0))
    white, fluid, cortex = BRIGHTNESS[name][:3]
    expected = {
        WHITE_MATTER: white,
        VENTRICLE: fluid,
        CORTEX: cortex,
        PARCEL: cortex,
        PALLIDUM: BRIGHTNESS[name][7],
    }
    for number, brightness in expected.items():
        # The bias field moves a block by 0.08, one in three times by more.
        mean = np.median(image[numbers == number])
        assert mean == pytest.approx(brightness, rel=0.25)
    assert (image[:5] == 0).all()


def test_t2_is_there_in_thick_slices_too() -> None:
    truth = Volume(blocks(), np.eye(4))
    scans = dict(painted_scans(truth))
    assert list(scans) == ["T2", "T2, slices of 5 mm", *list(BRIGHTNESS)[1:]]
    assert scans["T2, slices of 5 mm"].spacing_mm == (1, 1, 5)


@pytest.mark.slow
def test_each_scan_is_segmented_as_it_is_and_turned_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sub-0/mri"
    folder.mkdir(parents=True)
    miniature("LIA")[1].write(folder / "aparc+aseg.mgz", labels=True)
    (tmp_path / "no-subject").mkdir()
    run(str(overfitted_model()), str(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    rows = len(BRIGHTNESS) + 1
    assert len(lines) == 2 * rows
    # Of one subject the means are its own; a model for T1 turns nothing round.
    assert [line.split()[1:] for line in lines[:rows]] == [
        line.split()[1:] for line in lines[rows:]
    ]
    assert all(line.split()[-1] == line.split()[-2] for line in lines)
