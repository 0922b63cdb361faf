"""Simulated raw scans: the same place in other voxels, in a SUBJECTS_DIR like the first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benches.raw import made_raw, run
from helpers.overfitted import miniature
from nibabel.affines import apply_affine

from trinat.segmentation.io.volume import Volume


def test_a_head_made_raw_keeps_its_place_in_other_voxels() -> None:
    scan, truth = miniature("LIA")
    raw, labels = made_raw(scan, truth)
    assert raw.axcodes == labels.axcodes == "LPS"
    assert raw.spacing_mm == pytest.approx((0.94, 0.94, 1.2))
    assert raw.data.dtype == np.int16
    for number in (2, 41):
        middles = [
            apply_affine(v.affine, np.argwhere(v.data == number)).mean(0)
            for v in (truth, labels)
        ]
        np.testing.assert_allclose(*middles, atol=0.6)
    white = raw.data[np.isin(labels.data, (2, 41))]
    assert np.median(white) == pytest.approx(500, rel=0.05)
    # The field of view lies within that of the head, so that both show the same.
    assert all(
        a * b <= c
        for a, b, c in zip(raw.shape, raw.spacing_mm, (40, 48, 44), strict=True)
    )


def test_a_subjects_dir_becomes_another(tmp_path: Path) -> None:
    for number, image in enumerate(("T1.mgz", "brainmask.mgz")):
        folder = tmp_path / f"in/sub-{number}/mri"
        folder.mkdir(parents=True)
        scan, truth = miniature("LIA", seed=number + 1)
        scan.write(folder / image)
        truth.write(folder / "aseg.mgz", labels=True)
    run(str(tmp_path / "in"), str(tmp_path / "out"))
    found = sorted(
        p.relative_to(tmp_path / "out").as_posix() for p in tmp_path.glob("out/*/*/*")
    )
    assert found == [
        "sub-0/mri/T1.mgz",
        "sub-0/mri/aseg.mgz",
        "sub-1/mri/aseg.mgz",
        "sub-1/mri/brainmask.mgz",
    ]
    raw = Volume.read(tmp_path / "out/sub-0/mri/T1.mgz")
    labels = Volume.read(tmp_path / "out/sub-0/mri/aseg.mgz", labels=True)
    assert raw.shape == labels.shape
    np.testing.assert_allclose(raw.affine, labels.affine)


def test_a_folder_without_heads_is_told(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no subject"):
        run(str(tmp_path), str(tmp_path / "out"))
