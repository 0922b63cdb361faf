"""`import trinat` is quick and light, and accepts scans in all types that users have."""

from __future__ import annotations

import inspect
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers.overfitted import miniature, random_model
from helpers.refusals import refusal
from helpers.serial import small_scan, write_scans

import trinat
from trinat.pipelines.predict.settings import OutputSettings
from trinat.segmentation.errors import (
    ConfigError,
    FormatError,
    GeometryError,
    IntegrityError,
)
from trinat.segmentation.segmenter import ScanOptions
from trinat.segmentation.space.views import View

ROOT = Path(__file__).parents[2]


def test_what_users_import_is_pinned() -> None:
    classes = ["OpenedStore", "Result", "Segmenter", "Surface"]
    classes += ["TrainedRun", "TrinatError"]
    classes += ["View", "Volume"]
    functions = ["evaluate", "load_model", "open_store", "phantom", "segment"]
    functions += ["segment_many", "train"]
    assert trinat.__all__ == [*classes, *functions]
    assert set(trinat.__all__) <= set(dir(trinat))
    assert trinat.View is View
    with pytest.raises(
        AttributeError, match="module 'trinat' has no attribute 'segmnt'"
    ):
        _ = trinat.segmnt


def test_importing_takes_nothing_heavy() -> None:
    probe = "import sys, trinat; print({'torch', 'numpy', 'nibabel', 'typer'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", probe],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout == "set()\n"
    (line,) = (line for line in done.stderr.splitlines() if line.endswith("| trinat"))
    assert int(line.split("|")[1]) < 200_000  # microseconds


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.parametrize("own", [None, "ACTIVE"])
def test_in_python_too_waiting_threads_leave_processors_to_others(
    own: str | None,
) -> None:
    probe = "import os, trinat; trinat.segment; print(os.environ['OMP_WAIT_POLICY'])"
    given = {
        name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"
    }
    done = subprocess.run(
        [sys.executable, "-c", probe],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=given | ({"OMP_WAIT_POLICY": own} if own else {}),
    )
    assert done.stdout.split() == [own or "PASSIVE"]


def test_importing_trinat_sets_no_environment_variable() -> None:
    probe = "import os; before = dict(os.environ); import trinat; print(before == dict(os.environ))"
    done = subprocess.run(
        [sys.executable, "-c", probe],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout == "True\n"


def test_python_m_trinat_is_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trinat", "--version"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout.split()[0]) == (0, "trinat")
    done = subprocess.run(
        [sys.executable, "-m", "trinat", "doctor", "--no-such-option"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.stderr.endswith(": see trinat doctor --help\n")


def test_an_mgh_image_and_wide_numbers_are_taken() -> None:
    scan, _ = miniature()
    wide = trinat.Volume.of_array(scan.data.astype(np.float64), scan.affine)
    mgh = trinat.Volume.of_image(
        nib.MGHImage(scan.data.astype(np.float32), scan.affine)
    )
    for volume in (wide, mgh):
        assert volume.data.dtype == np.float32
        np.testing.assert_array_equal(volume.data, scan.data)
        np.testing.assert_allclose(volume.affine, scan.affine, atol=1e-6)


@pytest.mark.parametrize("segment", [trinat.segment, trinat.segment_many])
def test_a_model_of_another_licence_warns(
    tmp_path: Path, segment: Callable[..., object]
) -> None:
    folder = tmp_path / "bound"
    shutil.copytree(random_model(), folder)
    said = (folder / "model.yaml").read_text()
    assert "licence: ''" in said
    (folder / "model.yaml").write_text(said.replace("licence: ''", "licence: mine"))
    scan = small_scan()
    with pytest.warns(UserWarning, match="weights of bound are licensed under mine"):
        segment(scan, model=folder)


def test_images_in_memory_are_not_mixed_with_a_bids_dataset(tmp_path: Path) -> None:
    raw = write_scans(tmp_path / "raw", "sub-01/anat/sub-01_T1w.nii.gz")
    with refusal(ConfigError, raw):
        trinat.segment_many([raw, small_scan()], model=random_model(), progress=False)


def test_a_scan_is_cleaned_and_mirrored_as_the_command_line_does() -> None:
    scan = small_scan()
    segmenter = trinat.Segmenter(random_model(), device="cpu")
    plain = segmenter.segment(scan)
    cleaned = trinat.segment(scan, model=random_model(), clean=True)
    expected, _ = plain.cleaned()
    assert np.array_equal(cleaned.labels.data, expected.labels.data)
    assert not np.array_equal(cleaned.labels.data, plain.labels.data)
    mirrored = trinat.segment([scan], model=random_model(), mirror=True)
    assert not np.array_equal(mirrored[0].fused, plain.fused)


def test_what_a_scan_is_segmented_with_has_the_names_of_the_command_lines_settings() -> (
    None
):
    settings = {field.name: field for field in fields(OutputSettings)}
    parameters = inspect.signature(trinat.Segmenter.segment).parameters
    only_in_python = {"self", "volume", "image", "seed", "progress"}
    for name, parameter in parameters.items():
        if name not in only_in_python:
            assert parameter.default == settings[name].default, name
    assert set(ScanOptions.__annotations__) == set(parameters) - {
        "self",
        "volume",
        "progress",
    }


def test_progress_hears_the_stages_and_nothing_is_said_without_it(
    capfd, tmp_path: Path
) -> None:
    scan = small_scan()
    segmenter = trinat.Segmenter(random_model(), device="cpu", views=["axial"])
    segmenter.segment(scan)
    assert capfd.readouterr() == ("", "")
    heard: list[str] = []
    segmenter.segment(scan, progress=heard.append)
    assert heard[0] == "reading"
    assert "axial" in heard
    # As a user would read it; for a file the checksum is tested.
    scan.write(tmp_path / "scan.nii.gz")
    heard.clear()
    segmenter.segment(tmp_path / "scan.nii.gz", progress=heard.append)
    assert heard[:2] == ["reading", "checksum"]
    heard.clear()
    trinat.segment([scan], model=random_model(), views=["axial"], progress=heard.append)
    assert "1/1: axial" in heard


def test_a_shipped_model_is_loaded_by_name() -> None:
    assert trinat.load_model("fast", [View.AXIAL]).info.name == "fast"


@pytest.mark.parametrize("scan", [None, 3, b"scan.nii", (1, 2, 3)])
def test_anything_else_is_refused_with_what_is_taken(scan: object) -> None:
    with pytest.raises(
        TypeError, match=r"give a path, an image of nibabel, .* \(array, affine\)"
    ):
        trinat.segment(scan)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "setting",
    [
        {"views": "frontal"},
        {"samples": -1},
        {"precision": "banana"},
        {"trust_affine": "banana"},
    ],
)
@pytest.mark.parametrize("segment", [trinat.segment, trinat.segment_many])
def test_a_setting_with_an_unknown_value_is_refused(
    segment: Callable[..., object], setting: dict[str, object]
) -> None:
    with refusal(ConfigError):
        segment(small_scan(), model=random_model(), **setting)


@pytest.mark.parametrize("batch", [0, -1])
def test_a_batch_has_at_least_one_slice(batch: int) -> None:
    with refusal(ConfigError):
        trinat.Segmenter(random_model(), batch=batch)


def unplaced() -> nib.Nifti1Image:
    image = nib.Nifti1Image(np.ones((32, 32, 32), np.int16), np.eye(4))
    image.set_sform(None, 0)
    return image


@pytest.mark.parametrize(
    ("scan", "error", "message"),
    [
        (
            (np.zeros((32, 32)), np.eye(4)),
            FormatError,
            r"array: float64 \(32, 32\) with an affine",
        ),
        ((np.zeros((32, 32, 32), bool), np.eye(4)), FormatError, "array: bool"),
        ((np.zeros((32, 32, 32)), np.eye(4)), FormatError, "image: all voxels are 0"),
        ((np.full((32, 32, 32), np.nan), np.eye(4)), IntegrityError, "image: .* NaN"),
        (
            (np.ones((32, 32, 32)), np.zeros((4, 4))),
            GeometryError,
            "image: impossible voxel",
        ),
        (unplaced(), GeometryError, "image: no orientation in its header"),
        (
            nib.Spm99AnalyzeImage(np.ones((32, 32, 32)), np.eye(4)),
            FormatError,
            "cannot use Spm",
        ),
    ],
)
def test_an_image_in_memory_is_checked_as_a_file_is(scan, error, message: str) -> None:
    with pytest.raises(error, match=message):
        trinat.segment(scan)


@pytest.mark.slow
@pytest.mark.important
def test_a_forked_process_computes_after_its_parent_did() -> None:
    # Threads that wait in the parent do not exist in the forked child.
    probe = """
import os, torch, trinat
torch.set_num_threads(2)
many = torch.zeros(2**22)
many.exp()
child = os.fork()
if child == 0:
    many.exp()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.Popen(
        [sys.executable, "-c", probe],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        said, _ = done.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(done.pid, signal.SIGKILL)
        raise
    assert said == "7\n"


def test_a_segmenter_is_made_of_a_name_a_folder_or_a_loaded_model() -> None:
    folder = random_model()
    given = (folder, str(folder), trinat.load_model(folder))
    made = [trinat.Segmenter(model, device="cpu") for model in given]
    assert {segmenter.model.name for segmenter in made} == {
        trinat.load_model(folder).name
    }
    assert trinat.Segmenter("fast", device="cpu", views="axial").views == (View.AXIAL,)
