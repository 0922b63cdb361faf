"""Export of a model for other programs, as ONNX files or as a MONAI bundle.

ONNX files are compared with the networks that they were made from. A MONAI bundle is a folder
that `python -m monai.bundle` runs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trinat.pipelines.jobs.lock import claimed
from trinat.pipelines.models.quantisation import (
    Slices,
    calibration_slices,
    quantise,
    write_list,
)
from trinat.pipelines.site.export import export_site, write_onnx
from trinat.segmentation.errors import ConfigError, ModelError
from trinat.segmentation.io.files import atomic_path, new_folder, read_text
from trinat.segmentation.models.base import Network
from trinat.segmentation.models.checkpoint import Model, load_model
from trinat.segmentation.space.views import View

# Minimum share of voxels that must get the same label in ONNX Runtime.
SAME_LABELS = 0.9999
_SIDE = 64  # side of the slices for tracing and comparing the graph

# Schema by which `monai.bundle verify_metadata` checks metadata.json.
_SCHEMA = (
    "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/"
    "meta_schema_20240725.json"
)
# Side of the random volume that verify_net_in_out uses, in voxels.
_MONAI_SIDE = 96
# MONAI's `load` and MONAI Label treat a bundle without this file as one without a network.
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


def export_model(
    models: Sequence[str], out: Path, *, format_: str = "onnx", int8: bool = False
) -> list[Path]:
    """Write models in another format; return the files written.

    - "onnx": <view>.onnx for each view of one model. A file maps slices (N, C, H, W), with H and W
      multiples of the network's downsampling, to logits (N, K, H, W).
    - "monai-bundle": a MONAI bundle of one model.
    - "web": a site that segments in the browser with any of the models.

    `models` are names of shipped models, or folders. With `int8`, the networks of ONNX files are
    quantised; `predict` finds them only if `out` is the folder `int8` of the model. Raises
    ModelError, and leaves no file, if ONNX Runtime gives other labels than torch.
    """
    if format_ not in ("onnx", "monai-bundle", "web"):
        raise ConfigError(
            f"--format {format_} is not known", remedy="give onnx, monai-bundle or web"
        )
    if int8 and format_ != "onnx":
        raise ConfigError(f"--int8 is for --format onnx, not {format_}")
    if format_ == "web":
        return export_site([load_model(model) for model in models], out)
    if len(models) != 1:
        raise ConfigError(
            f"--format {format_} is for one model",
            remedy="give one, or --format web",
        )
    loaded = load_model(models[0])
    if format_ == "monai-bundle":
        return _export_bundle(loaded, out)
    paths = {view: out / f"{view.value}.onnx" for view in loaded.networks}
    with claimed(out, [path.name for path in paths.values()]):
        batches = calibration_slices(loaded) if int8 else {}
        for view, path in paths.items():
            _export_onnx(loaded, view, path, batches.get(view))
        if int8:
            return [*paths.values(), write_list(loaded, paths, out)]
    return list(paths.values())


def _export_onnx(
    model: Model, view: View, path: Path, batches: list[Slices] | None
) -> None:
    """Write the network of a view to a file, which appears only after it was compared with torch.

    `batches` of slices (N, C, H, W) are used to quantise it; None for a network in float32.
    """
    network = model.networks[view]
    with atomic_path(path) as temporary:
        export_network(network.fold(), temporary, metadata_of(model, view))
        same = share_of_equal_labels(network, temporary)
        if same < SAME_LABELS:
            raise ModelError(
                f"ONNX Runtime gives the same label to {same:.4%} of voxels only: not written",
                where=path,
            )
        if batches is not None:
            quantise(temporary, batches)


def share_of_equal_labels(network: Network, path: Path) -> float:
    """Return the share of voxels that get the same label from torch and from an ONNX file.

    The random slices differ in number and size from those that the file was traced with.
    """
    import onnxruntime

    generator = torch.Generator().manual_seed(0)
    shape = (2, network.config.channels, 2 * _SIDE, _SIDE)
    slices = torch.rand(shape, generator=generator)
    with torch.inference_mode():
        expected = network.fold()(slices).argmax(1).numpy()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"slices": slices.numpy()})
    found = np.asarray(logits).argmax(1)
    return float((found == expected).mean())


def metadata_of(model: Model, view: View) -> dict[str, str]:
    """Return the metadata of a view's ONNX file, such as its classes and the preprocessing."""
    classes = model.classes_of(view)
    numbers: list[Any] = [label.fs_id for label in classes.labels]
    if model.is_merged(view):
        # A class that merges both sides has the numbers of both.
        numbers = [list(label.numbers) for label in classes.labels]
    return {
        "model": model.name,
        "view": view.value,
        "classes": json.dumps(list(classes.names)),
        "freesurfer": json.dumps(numbers),
        "preprocessing": model.info.preprocessing.model_dump_json(),
        "licence": model.info.training.licence,
        "trinat": version("trinat"),
    }


def export_network(
    network: Network, path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write a network as ONNX, for any number of slices of any allowed size.

    The input is `slices` (N, C, H, W), the output `logits` (N, K, H, W). Sides must be multiples of
    the network's downsampling. The file contains the weights and `metadata`.
    """
    example = torch.zeros(2, network.config.channels, _SIDE, _SIDE)
    # Sizes are symbolic multiples of the downsampling, so that the graph is valid for any of
    # them.
    unit = network.config.multiple
    number = torch.export.Dim("n")
    rows = unit * torch.export.Dim("rows", min=1)
    columns = unit * torch.export.Dim("columns", min=1)
    sizes = {0: number, 2: rows, 3: columns}
    write_onnx(
        network,
        (example,),
        path,
        names=("slices",),
        results=("logits",),
        sizes=(sizes,),
        facts=metadata,
    )


def _export_bundle(model: Model, out: Path) -> list[Path]:
    """Write a MONAI bundle, completely or not at all; return its files.

    Raises OutputError if `out` already contains files.
    """
    texts = {
        "configs/metadata.json": json.dumps(_metadata(model), indent=4) + "\n",
        "docs/README.md": _readme(model),
        "docs/data_license.txt": _data_licence(model),
        "LICENSE": _licence(model),
    }
    with new_folder(out) as new:
        for name in ("configs", "docs"):
            (new / name).mkdir()
        shutil.copytree(
            model.folder, new / "models", ignore=shutil.ignore_patterns(".*")
        )
        here = Path(__file__).parent
        for name in ("inference.json", "logging.conf"):
            shutil.copyfile(here / name, new / "configs" / name)
        for name, text in texts.items():
            (new / name).write_text(text, encoding="utf-8")
        # Empty, because `network_def` has its weights from safetensors.
        torch.save({}, new / _WEIGHTS_OF_MONAI)
    return sorted(path for path in out.rglob("*") if path.is_file())


def _metadata(model: Model) -> dict[str, Any]:
    """Return the content of metadata.json, as MONAI's schema requires it."""
    versions = {name: version(name) for name in ("trinat", "nibabel", "safetensors")}
    classes = ", ".join(label.name for label in model.scheme.labels[1:])
    scans = _kind_of_scans(model)
    whole_scan = {
        "type": "image",
        "format": "magnitude",
        "modality": "MR",
        "num_channels": 1,
        "spatial_shape": [_MONAI_SIDE, _MONAI_SIDE, _MONAI_SIDE],
        "dtype": "float32",
        "value_range": [],
        "is_patch_data": False,
        "channel_def": {"0": scans},
    }
    # `channel_def` names the values of the label channel, as other MONAI bundles do.
    label_map = {
        "type": "image",
        "format": "segmentation",
        "num_channels": 1,
        "spatial_shape": [_MONAI_SIDE, _MONAI_SIDE, _MONAI_SIDE],
        "dtype": "float32",
        "value_range": [0, max(label.fs_id for label in model.scheme.labels)],
        "is_patch_data": False,
        "channel_def": {str(label.fs_id): label.name for label in model.scheme.labels},
    }
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
            "inputs": {"image": whole_scan},
            "outputs": {"pred": label_map},
        },
    }


def _kind_of_scans(model: Model) -> str:
    """Describe the kind of scans that a model is for, such as "T1-weighted MRI"."""
    if model.info.contrast == "any":
        return "MRI of any contrast"
    return f"{model.info.contrast}-weighted MRI"


def _readme(model: Model) -> str:
    """Return the README of a bundle: how to run it, what it needs, and the model's own card."""
    needed = f"version {version('trinat')}"
    text = f"""\
# {model.name}

Brain structures in {_kind_of_scans(model)}, segmented by trinat.

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
    """Return the text of the licence of the weights."""
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
    """Return a text on training data, pseudo-labels (if any) and the licence of the weights.

    What the model does not tell is "not stated".
    """
    training = model.info.training
    lines = [f"Training data: {training.data or 'not stated'}"]
    if training.pseudo_labels:
        lines.append(f"Labels: {training.pseudo_labels}")
    lines.append(f"Licence of the weights: {training.licence or 'not stated'}")
    lines.append("No scan and no label map is part of this bundle.")
    return "\n".join(lines) + "\n"
