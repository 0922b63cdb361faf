"""trinat phantom: its files, its seeds, and what it will not overwrite."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers.refusals import refusal
from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.pipelines.demo import write_phantoms
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.io.volume import Volume

COARSE = (4.0, 4.0, 4.0)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_command_writes_pairs_in_the_geometry_asked_for(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app,
        ["phantom", str(tmp_path / "new" / "heads"), "--subjects", "2", "--seed", "3",
         "--spacing", "4", "4.5", "5", "--orientation", "lia", "--oblique", "12"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "new" / "heads").iterdir()) == [
        "sub-01_T1w.nii.gz",
        "sub-01_dseg.nii.gz",
        "sub-02_T1w.nii.gz",
        "sub-02_dseg.nii.gz",
    ]
    image = Volume.read(tmp_path / "new" / "heads" / "sub-02_T1w.nii.gz")
    assert image.axcodes == "LIA"
    assert image.spacing_mm == pytest.approx((4, 4.5, 5), abs=1e-5)
    assert np.abs(np.diag(image.affine[:3, :3] / image.spacing_mm)).max() < np.cos(
        np.radians(5)
    )
    assert len(done.output.splitlines()) == 2


def test_the_truth_is_a_label_map_of_freesurfer_numbers(tmp_path: Path) -> None:
    list(write_phantoms(tmp_path, subjects=1, seed=0, spacing_mm=COARSE))
    header = nib.load(tmp_path / "sub-01_dseg.nii.gz").header
    assert header.get_intent()[0] == "label"
    truth = Volume.read(tmp_path / "sub-01_dseg.nii.gz", labels=True)
    assert {2, 3, 41, 42, 60} <= set(np.unique(truth.data).tolist())


def test_a_subject_does_not_depend_on_how_many_there_are(tmp_path: Path) -> None:
    list(write_phantoms(tmp_path / "two", subjects=2, seed=5, spacing_mm=COARSE))
    list(write_phantoms(tmp_path / "three", subjects=3, seed=5, spacing_mm=COARSE))
    two, three = contents(tmp_path / "two"), contents(tmp_path / "three")
    assert two == {name: three[name] for name in two}
    assert two["sub-01_dseg.nii.gz"] != two["sub-02_dseg.nii.gz"]


def test_another_seed_gives_other_subjects(tmp_path: Path) -> None:
    for seed in (0, 1):
        list(
            write_phantoms(
                tmp_path / str(seed), subjects=1, seed=seed, spacing_mm=COARSE
            )
        )
    first, second = contents(tmp_path / "0"), contents(tmp_path / "1")
    assert first["sub-01_dseg.nii.gz"] != second["sub-01_dseg.nii.gz"]


def test_present_files_are_kept_unless_forced(tmp_path: Path) -> None:
    kept = tmp_path / "sub-02_dseg.nii.gz"
    kept.write_bytes(b"mine")
    with refusal(ConfigError, kept, remedy="--force") as refused:
        list(write_phantoms(tmp_path, subjects=2, seed=0, spacing_mm=COARSE))
    assert refused.value.where == str(kept)
    assert contents(tmp_path) == {kept.name: b"mine"}
    list(write_phantoms(tmp_path, subjects=2, seed=0, spacing_mm=COARSE, force=True))
    assert len(contents(tmp_path)) == 4
    assert Volume.read(kept, labels=True).data.any()


def test_an_impossible_geometry_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="orientation"):
        list(write_phantoms(tmp_path / "heads", subjects=1, seed=0, orientation="RAR"))
    assert not (tmp_path / "heads").exists()
