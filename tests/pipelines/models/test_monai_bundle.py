"""A model as a MONAI bundle: the content of its files, and MONAI gives the labels of trinat."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers.refusals import refusal
from helpers.service import quick_model

from trinat.pipelines.models.other_formats import export_model
from trinat.segmentation.errors import OutputError
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.models.checkpoint import load_model, save_model
from trinat.segmentation.models.model_info import Contrast, Description
from trinat.segmentation.space.views import View

# Required by the schema that metadata.json names.
REQUIRED = {
    *("schema", "version", "monai_version", "pytorch_version", "numpy_version"),
    *("task", "description", "authors", "copyright", "network_data_format"),
    "required_packages_version",
}
REQUIRED_OF_DATA = {
    *("type", "format", "num_channels", "spatial_shape", "dtype", "value_range"),
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "quick-bundle"
    export_model([str(quick_model())], folder, format_="monai-bundle")
    return folder


def test_a_bundle_has_the_files_that_monai_names(bundle: Path) -> None:
    names = {
        path.relative_to(bundle).as_posix()
        for path in bundle.rglob("*")
        if path.is_file()
    }
    assert names == {
        "LICENSE",
        "configs/inference.json",
        "configs/logging.conf",
        "configs/metadata.json",
        "docs/README.md",
        "docs/data_license.txt",
        "models/coronal.safetensors",
        "models/model.pt",
        "models/model.yaml",
    }
    assert not list(bundle.parent.glob(".trinat-*"))
    assert "no licence" in (bundle / "LICENSE").read_text()


def test_model_pt_holds_no_weights(bundle: Path) -> None:
    """MONAI Label builds the network if the file exists, and loads it over the network."""
    assert torch.load(bundle / "models/model.pt", weights_only=True) == {}
    assert "empty state dictionary" in (bundle / "docs/README.md").read_text()


def test_monai_loads_the_network_with_its_weights(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from monai.bundle import load

    monkeypatch.chdir(bundle)
    with pytest.warns(UserWarning, match="from a source you trust"):
        network = load(
            bundle.name,
            bundle_dir=bundle.parent,
            workflow_type="inference",
            device="cpu",
        )
    expected = load_model(quick_model()).networks[View.CORONAL].state_dict()
    found = network.views["coronal"].state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_the_models_of_a_bundle_are_a_model_of_trinat(bundle: Path) -> None:
    assert load_model(str(bundle / "models")).networks.keys() == {View.CORONAL}


def test_metadata_has_what_the_schema_asks_for(bundle: Path) -> None:
    metadata = json.loads((bundle / "configs/metadata.json").read_text())
    assert set(metadata) >= REQUIRED
    formats = metadata["network_data_format"]
    assert set(formats["inputs"]["image"]) >= REQUIRED_OF_DATA
    assert set(formats["outputs"]["pred"]) >= REQUIRED_OF_DATA
    assert formats["outputs"]["pred"]["channel_def"]["17"] == "Left-Hippocampus"


@pytest.mark.parametrize(
    ("contrast", "scans"),
    [("T1", "T1-weighted MRI"), ("any", "MRI of any contrast")],
)
def test_a_bundle_says_for_which_scans_it_is(
    tmp_path: Path, contrast: Contrast, scans: str
) -> None:
    networks = load_model(quick_model()).networks
    description = Description(name="own", contrast=contrast)
    save_model(tmp_path / "own", description, networks)
    export_model([str(tmp_path / "own")], tmp_path / "out", format_="monai-bundle")
    metadata = json.loads((tmp_path / "out/configs/metadata.json").read_text())
    image = metadata["network_data_format"]["inputs"]["image"]
    assert image["channel_def"] == {"0": scans}
    readme = (tmp_path / "out/docs/README.md").read_text()
    assert f"Brain structures in {scans}, segmented" in readme


def test_a_folder_that_holds_anything_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("mine")
    with refusal(OutputError, tmp_path):
        export_model([str(quick_model())], tmp_path, format_="monai-bundle")
    assert [path.name for path in tmp_path.iterdir()] == ["own.txt"]


@pytest.mark.slow
@pytest.mark.important
def test_monai_runs_a_bundle_to_the_labels_of_trinat(
    bundle: Path, tmp_path: Path
) -> None:
    """An oblique scan with axes SLA, by `monai.bundle run` in a process of its own."""
    scan = oblique_scan(tmp_path / "scans/head.nii.gz")
    out = tmp_path / "labels"
    said = run_bundle(
        bundle,
        config_file="configs/inference.json",
        bundle_root=".",
        dataset_dir=str(scan.parent),
        output_dir=str(out),
    )
    assert "1/1 head.nii.gz: segmenting\n" in said
    assert "1/1 head.nii.gz: done\n" in said
    expected = Predictor(quick_model(), device="cpu").segment(Volume.read(scan)).labels
    found = nib.load(out / "head_dseg.nii.gz")
    assert np.allclose(found.affine, expected.affine, atol=1e-4)
    labels = np.asarray(found.dataobj)
    assert 0 < (labels > 0).mean() < 1
    assert (labels == expected.data).mean() >= 0.9999


def oblique_scan(path: Path) -> Path:
    from helpers.miniatures import head_image, head_labels

    cos, sin = np.cos(0.2), np.sin(0.2)
    turn = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])
    affine = np.eye(4)
    affine[:3, :3] = turn @ np.array([[0, -4, 0], [0, 0, 4], [5, 0, 0]])
    affine[:3, 3] = 11, -23, 7
    path.parent.mkdir()
    head = head_image(head_labels()[::2, ::2, ::2], 0).transpose(2, 0, 1)
    Volume(head[:, ::-1], affine).write(path)
    return path


def run_bundle(bundle: Path, **options: str) -> str:
    """Run `python -m monai.bundle run` in the folder of a bundle, and return its stderr."""
    given = [f"--{key}={value}" for key, value in options.items()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "monai.bundle", "run", *given],
        cwd=bundle,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stderr
