"""trinat export: a model's networks as ONNX files, checked against what they were made from.

The other format, a MONAI bundle, is written by `monai_bundle.py`.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from trinat.pipelines.models.monai_bundle import export_bundle
from trinat.segmentation.errors import ConfigError, ModelError
from trinat.segmentation.io.files import atomic_path
from trinat.segmentation.models.base import Network
from trinat.segmentation.models.checkpoint import Model, load_model
from trinat.segmentation.space.views import View

# The share of voxels whose label must be the same in ONNX Runtime.
SAME_LABELS = 0.9999
_OPSET = 20
_SIDE = 64  # of the slices that the exported graph is traced and checked with


def export_model(model: str, out: Path, *, format_: str = "onnx") -> list[Path]:
    """Write <view>.onnx for each view, or with `format_` monai-bundle a bundle; the files.

    An ONNX file takes slices (N, C, H, W), H and W multiples of 16, to logits (N, K, H, W). Raises
    ModelError where ONNX Runtime gives other labels than torch; no such file is left.
    """
    if format_ == "monai-bundle":
        return export_bundle(model, out)
    if format_ != "onnx":
        raise ConfigError(
            f"--format {format_} is not known", remedy="give onnx or monai-bundle"
        )
    loaded = load_model(model)
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for view, network in loaded.networks.items():
        path = out / f"{view.value}.onnx"
        # A file appears under its name only after it has been compared.
        with atomic_path(path) as temporary:
            export_network(network.fold(), temporary, facts_of(loaded, view))
            same = share_of_equal_labels(network, temporary)
            if same < SAME_LABELS:
                raise ModelError(
                    f"ONNX Runtime gives the same label to {same:.4%} of voxels only: not written",
                    where=path,
                )
        written.append(path)
    return written


def share_of_equal_labels(network: Network, path: Path) -> float:
    """Share of voxels that torch and an ONNX file label alike.

    The slices are random, and of another number and size than the file was traced with.
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


def facts_of(model: Model, view: View) -> dict[str, str]:
    """What the file of a view says of itself: its classes, and how its slices are to be made."""
    classes = model.classes_of(view)
    return {
        "model": model.name,
        "view": view.value,
        "classes": json.dumps(list(classes.names)),
        "freesurfer": json.dumps([label.fs_id for label in classes.labels]),
        "preprocessing": model.info.preprocessing.model_dump_json(),
        "licence": model.info.training.licence,
        "trinat": version("trinat"),
    }


def export_network(
    network: Network, path: Path, facts: Mapping[str, str] | None = None
) -> None:
    """Write a network as ONNX, for any number of slices of any size that it allows.

    The input is `slices` (N, C, H, W), the output `logits` (N, K, H, W). The sides must be
    multiples of what the network halves. The weights are inside the file, and `facts` are its
    metadata.
    """
    example = torch.zeros(2, network.config.channels, _SIDE, _SIDE)
    # Sizes are counted in what the network halves, so that the graph holds for any allowed one.
    unit = network.config.multiple
    number = torch.export.Dim("n")
    rows = unit * torch.export.Dim("rows", min=1)
    columns = unit * torch.export.Dim("columns", min=1)
    sizes = {0: number, 2: rows, 3: columns}
    # The exporter reports on itself at length; what matters is checked afterwards.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            network,
            (example,),
            dynamo=True,
            input_names=["slices"],
            output_names=["logits"],
            dynamic_shapes=(sizes,),
            opset_version=_OPSET,
            verbose=False,
        )
        assert program is not None
        program.model.metadata_props.update(facts or {})
        # Weights inside: one file a view.
        program.save(path, external_data=False)
