"""trinat export --format monai-bundle: a model as a folder that `python -m monai.bundle` runs."""

from __future__ import annotations

import json
import secrets
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from trinat.segmentation.errors import ModelError
from trinat.segmentation.io.files import not_written, read_text
from trinat.segmentation.models.checkpoint import Model, load_model

# `monai.bundle verify_metadata` checks metadata.json against this.
_SCHEMA = (
    "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/"
    "meta_schema_20240725.json"
)
# Of the voxels that verify_net_in_out makes up.
_SIDE = 96
# MONAI's `load` and MONAI Label take a bundle for one without a network where this is missing.
_WEIGHTS_OF_MONAI = "models/model.pt"
_APACHE = """\
Licensed under the Apache License, Version 2.0 (the "License"); you may not use these files except
in compliance with the License. You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software distributed under the License is
distributed on an "AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or
implied. See the License for the specific language governing permissions and limitations under the
License.
"""


def export_bundle(name_or_folder: str, out: Path) -> list[Path]:
    """Write the folder `out`, whole or not at all; the files in it.

    Raises ModelError for a model that cannot be used, and where `out` holds anything already.
    """
    model = load_model(name_or_folder)
    is_empty_folder = out.is_dir() and not any(out.iterdir())
    if out.exists() and not is_empty_folder:
        raise ModelError("is there already", where=out, remedy="choose another name")
    new = out.parent / f".trinat-{secrets.token_hex(8)}.tmp"
    try:
        try:
            _write(model, new)
            new.replace(out)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        raise not_written(out, error) from error
    return sorted(path for path in out.rglob("*") if path.is_file())


def _write(model: Model, folder: Path) -> None:
    """All files of a bundle below `folder`, which is not there yet."""
    for name in ("configs", "docs"):
        (folder / name).mkdir(parents=True)
    shutil.copytree(
        model.folder, folder / "models", ignore=shutil.ignore_patterns(".*")
    )
    here = Path(__file__).parent
    texts = {
        "configs/inference.json": (here / "inference.json").read_text(encoding="utf-8"),
        "configs/logging.conf": (here / "logging.conf").read_text(encoding="utf-8"),
        "configs/metadata.json": json.dumps(_metadata(model), indent=4) + "\n",
        "docs/README.md": _readme(model),
        "docs/data_license.txt": _data_licence(model),
        "LICENSE": _licence(model),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    # `network_def` has its weights from safetensors: there are none to load over them.
    torch.save({}, folder / _WEIGHTS_OF_MONAI)


def _metadata(model: Model) -> dict[str, Any]:
    """What metadata.json says, by the schema of MONAI."""
    versions = {name: version(name) for name in ("trinat", "nibabel", "safetensors")}
    classes = ", ".join(label.name for label in model.scheme.labels[1:])
    scans = _scans(model)
    return {
        "schema": _SCHEMA,
        "version": "1.0.0",
        "changelog": {"1.0.0": f"made by trinat {versions['trinat']}"},
        "monai_version": version("monai"),
        "pytorch_version": version("torch"),
        "numpy_version": version("numpy"),
        "required_packages_version": versions,
        "name": model.name,
        "task": f"Segmentation of brain structures in {scans}",
        "description": (
            "2D networks, one for each anatomical view, whose probabilities are fused;"
            " labels are restored to the scan's own space"
        ),
        "authors": "the makers of the model",
        "copyright": "see LICENSE",
        "data_source": model.info.training.data or "not stated",
        "data_type": "nibabel",
        "image_classes": f"{scans}: one scan of any intensities, resolution and orientation",
        "label_classes": "FreeSurfer's numbers",
        "pred_classes": classes,
        "eval_metrics": dict(model.info.metrics),
        "intended_use": "research; not for diagnosis",
        "references": ["Guha Roy et al., QuickNAT, NeuroImage 2019, arXiv:1801.04161"],
        "network_data_format": {
            "inputs": {"image": _input_format(scans)},
            "outputs": {"pred": _output_format(model)},
        },
    }


def _scans(model: Model) -> str:
    """What kind of scans a model is for."""
    if model.info.contrast == "any":
        return "MRI of any contrast"
    return f"{model.info.contrast}-weighted MRI"


def _input_format(scans: str) -> dict[str, Any]:
    """What the network takes: a whole scan."""
    return {
        "type": "image",
        "format": "magnitude",
        "modality": "MR",
        "num_channels": 1,
        "spatial_shape": [_SIDE, _SIDE, _SIDE],
        "dtype": "float32",
        "value_range": [],
        "is_patch_data": False,
        "channel_def": {"0": scans},
    }


def _output_format(model: Model) -> dict[str, Any]:
    """What the network gives: a label map of the scan, in one channel.

    As in MONAI's bundles with one channel of labels, `channel_def` names the values.
    """
    numbers = {str(label.fs_id): label.name for label in model.scheme.labels}
    return {
        "type": "image",
        "format": "segmentation",
        "num_channels": 1,
        "spatial_shape": [_SIDE, _SIDE, _SIDE],
        "dtype": "float32",
        "value_range": [0, max(label.fs_id for label in model.scheme.labels)],
        "is_patch_data": False,
        "channel_def": numbers,
    }


def _readme(model: Model) -> str:
    """How to run the bundle, what it needs, and the model's own card."""
    needed = f"version {version('trinat')}"
    text = f"""\
# {model.name}

Brain structures in {_scans(model)}, segmented by trinat.

The bundle holds the weights (`models/`, safetensors) and their configuration. The code that
computes with them is trinat's ({needed}), which must be installed, and `monai[fire]`, which runs
bundles.

Label maps of all `.nii` and `.nii.gz` files of a folder, in each scan's own space, with the
numbers of FreeSurfer:

    python -m monai.bundle run --config_file configs/inference.json \\
        --bundle_root . --dataset_dir SCANS --output_dir LABELS

They are those of `trinat predict SCANS --model models`, which also writes volumes and grades.

`network_def` takes scans (N, 1, X, Y, Z) as MetaTensors and gives label maps of that shape.

`{_WEIGHTS_OF_MONAI}` is an empty state dictionary, without weights: MONAI and MONAI Label ask for a
file of this name. `network_def` reads the weights from the safetensors beside it. MONAI Label warns
that the keys of `model.pt` differ from those of the network: that is expected.
"""
    card = model.folder / "MODEL_CARD.md"
    if card.is_file():
        text += f"\n{read_text(card)}"
    return text


def _licence(model: Model) -> str:
    """What may be done with the weights."""
    own = model.folder / "LICENSE.txt"
    if own.is_file():
        return read_text(own)
    stated = model.info.training.licence
    if stated == "Apache-2.0":
        return _APACHE
    if stated:
        return f"The weights in models/ are licensed under: {stated}\n"
    return "The makers of the model state no licence of its weights: ask them.\n"


def _data_licence(model: Model) -> str:
    """What the model was trained on, and the licence of that as far as it is stated."""
    training = model.info.training
    lines = [f"Training data: {training.data or 'not stated'}"]
    if training.pseudo_labels:
        lines.append(f"Labels: {training.pseudo_labels}")
    lines.append(f"Licence of the weights: {training.licence or 'not stated'}")
    lines.append("No scan and no label map is part of this bundle.")
    return "\n".join(lines) + "\n"
