"""Export of a model for other programs, as ONNX files or as a page for the browser.

ONNX files are compared with the networks that they were made from.
"""

from __future__ import annotations

import json
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
from trinat.segmentation.io.files import atomic_path
from trinat.segmentation.models.base import Network
from trinat.segmentation.models.checkpoint import Model, load_model
from trinat.segmentation.space.views import View

# Minimum share of voxels that must get the same label in ONNX Runtime.
SAME_LABELS = 0.9999
_SIDE = 64  # side of the slices for tracing and comparing the graph


def export_model(
    models: Sequence[str], out: Path, *, format_: str = "onnx", int8: bool = False
) -> list[Path]:
    """Write models as ONNX files, or as a web page that segments; return the paths of the files.

    - "onnx": <view>.onnx for each view of one model. A file maps slices (N, C, H, W), with H and W
      multiples of the network's downsampling, to logits (N, K, H, W).
    - "web": a site that segments in the browser with any of the models.

    `models` are names of shipped models, or folders. With `int8`, the networks of ONNX files are
    quantised; `predict` finds them only if `out` is the folder `int8` of the model. Raises
    ModelError, and leaves no file, if ONNX Runtime gives other labels than torch.
    """
    if format_ not in ("onnx", "web"):
        raise ConfigError(f"--format {format_} is not known", remedy="give onnx or web")
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
    """Write the network of a view as ONNX, if ONNX Runtime and torch give the same labels.

    `batches` of slices (N, C, H, W) are used to quantise it to int8; None for a network in float32.
    ModelError is raised, and no file is written, if labels differ.
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
    """Return the share of voxels, 0 to 1, that get the same label from torch and from an ONNX file.

    The slices that are compared are random, and differ in number and size from those that the file
    was traced with.
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
    """Return the metadata of a view's ONNX file: classes, preprocessing, licence and so on.

    Keys are model, view, classes, freesurfer (numbers of the classes), preprocessing, licence and
    trinat (the version). Classes, numbers and preprocessing are JSON.
    """
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
