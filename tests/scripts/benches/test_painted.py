"""Brains painted from labels: what is bright and dark in them, and a whole measurement."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benches import painted
from benches.painted import BRIGHTNESS, paint, painted_scans, run
from helpers.overfitted import miniature, overfitted_model

from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.inference.preparation import Reversal
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
def test_each_structure_has_its_own_brightness(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variation in ("_BIAS", "_MOTTLE", "_NOISE"):
        monkeypatch.setattr(painted, variation, 0.0)
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
        # The middle of a block, where its neighbours do not show.
        assert np.median(image[numbers == number]) == pytest.approx(brightness, abs=0.5)
    assert (image[:5] == 0).all()


def test_t2_is_there_in_thick_slices_too() -> None:
    truth = Volume(blocks(), np.eye(4))
    scans = dict(painted_scans(truth))
    assert list(scans) == ["T2", "T2, slices of 5 mm", *list(BRIGHTNESS)[1:]]
    assert scans["T2, slices of 5 mm"].spacing_mm == (1, 1, 5)


@pytest.mark.slow
def test_each_scan_is_segmented_as_it_is_and_as_the_model_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sub-0/mri"
    folder.mkdir(parents=True)
    miniature("LIA")[1].write(folder / "aparc+aseg.mgz", labels=True)
    (tmp_path / "no-subject").mkdir()
    turn = Reversal(white_matter=0.4)
    monkeypatch.setattr(Predictor, "find_reversal", lambda predictor, image: turn)
    run(str(overfitted_model()), str(tmp_path))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = len(BRIGHTNESS) + 1
    # Of one subject the means are its own.
    assert [line[1:] for line in lines[:rows]] == [line[1:] for line in lines[rows:]]
    as_it_is, by_itself = zip(*(line[-2:] for line in lines), strict=True)
    assert as_it_is != by_itself
