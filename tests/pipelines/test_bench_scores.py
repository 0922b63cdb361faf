"""Scores on heads with FreeSurfer's labels: tables by hand, and the whole on a miniature head."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from nibabel.affines import apply_affine
from overfitted import miniature, overfitted_model

from pipelines.bench.scores import Score, made_raw, run, score, tables
from segmentation.labels import load_scheme

SCHEME = load_scheme("quicknat33")


def test_dice_and_sides_are_those_worked_out_by_hand() -> None:
    left, right = (
        SCHEME.names.index(f"{side}-Cerebral-White-Matter") for side in ("Left", "Right")
    )
    truth, found = np.zeros((2, 2, 2, 2), np.uint8)  # each 2×2×2
    truth[0], truth[1], found[0], found[1] = left, right, left, right
    found[1, 0, 0] = left  # one of the right's four voxels is called left
    told = score(truth, found, SCHEME, ("CSF",))
    assert told.dice["Left-Cerebral-White-Matter"] == pytest.approx(2 * 4 / (4 + 5))
    assert told.dice["Right-Cerebral-White-Matter"] == pytest.approx(2 * 3 / (4 + 3))
    assert told.mean == pytest.approx((8 / 9 + 6 / 7) / 2)
    assert told.swapped == pytest.approx(1 / 8)
    assert "CSF" not in told.dice
    assert len(told.dice) == 31


def test_a_head_made_raw_keeps_its_place_in_other_voxels() -> None:
    scan, truth = miniature("LIA")
    raw, labels = made_raw(scan, truth)
    assert raw.axcodes == labels.axcodes == "LPS"
    assert raw.spacing_mm == pytest.approx((0.94, 0.94, 1.2))
    assert raw.data.dtype == np.int16
    for number in (2, 41):
        middles = [
            apply_affine(v.affine, np.argwhere(v.data == number)).mean(0) for v in (truth, labels)
        ]
        np.testing.assert_allclose(*middles, atol=0.6)
    white = raw.data[np.isin(labels.data, (2, 41))]
    assert np.median(white) == pytest.approx(500, rel=0.05)
    # No field beyond the head's own, so that neither loses any of it.
    assert all(a * b <= c for a, b, c in zip(raw.shape, raw.spacing_mm, (40, 48, 44), strict=True))


def test_tables_tell_means_sides_and_losses() -> None:
    def scores(fused: float, raw: float) -> dict[str, Score]:
        names = {"Left-Putamen": -0.1, "Right-Putamen": 0.1, "Brain-Stem": 0.0}
        return {
            "sagittal": Score({"Putamen": 0.5, "Brain-Stem": 0.7}, None),
            "fused": Score({n: fused + d for n, d in names.items()}, 0.01),
            "raw again": Score({n: raw + d for n, d in names.items()}, 0.02),
        }

    lines = tables({"a": scores(0.8, 0.79), "b": scores(0.6, 0.55)}, SCHEME)
    assert lines[0] == "| scan | sagittal (merged structures) | fused | raw again |"
    assert lines[2:5] == [
        "| a | 0.600 | 0.800 | 0.790 |",
        "| b | 0.600 | 0.600 | 0.550 |",
        "| mean | 0.600 | 0.700 | 0.670 |",
    ]
    assert lines[6].endswith("label: fused 0.0100, raw again 0.0200.")
    assert "lose 0.0300 in the mean and 0.0500 at most (b)" in lines[7]
    assert "| Putamen | 0.70 | 0.67 | 0.60, 0.80 |" in lines
    assert "| Brain-Stem | 0.70 | 0.67 |  |" in lines


@pytest.mark.usefixtures("one_thread")
def test_heads_of_a_subjects_dir_are_scored(tmp_path: Path, capsys) -> None:
    for number, image in enumerate(("T1.mgz", "brainmask.mgz")):
        folder = tmp_path / f"sub-{number}/mri"
        folder.mkdir(parents=True)
        scan, truth = miniature("LIA", seed=number + 1)
        scan.write(folder / image)
        truth.write(folder / "aseg.mgz", labels=True)
    figures = tmp_path / "figures.json"
    run(str(overfitted_model()), str(tmp_path), "--raw", "--device", "cpu", "--json", str(figures))
    heads = json.loads(figures.read_text())["heads"]
    assert set(heads) == {"sub-0", "sub-1"}
    for scores in heads.values():
        assert list(scores) == ["coronal", "axial", "sagittal", "fused", "raw again"]
        for column in ("coronal", "axial", "fused"):
            assert scores[column]["dice"]["Left-Cerebral-White-Matter"] > 0.85
            assert scores[column]["swapped"] < 0.05
        assert scores["sagittal"]["dice"]["Cerebral-White-Matter"] > 0.85
        assert scores["sagittal"]["swapped"] is None
    assert "| sub-1 |" in capsys.readouterr().out


@pytest.mark.usefixtures("one_thread")
def test_a_folder_without_heads_is_told(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no subject"):
        run(str(overfitted_model()), str(tmp_path), "--device", "cpu")
