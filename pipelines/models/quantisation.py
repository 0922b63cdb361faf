"""trinat export --int8: quantise a model's networks for CPUs.

NNCF quantises the exported ONNX graphs. The ranges of activations are measured on slices of
phantoms, preprocessed as for the model's networks.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trinat.pipelines.common.extras import require_extra
from trinat.segmentation.errors import ModelError
from trinat.segmentation.inference.int8 import LIST, entry
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.files import write_json
from trinat.segmentation.models.checkpoint import Model
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.phantom import phantom

Slices = NDArray[np.float32]

# Seeds of the phantoms. Every fourth batch of their slices is used.
_PHANTOMS = (0, 1)
_EVERY = 4
# Least share of pixels of the phantoms whose label stays the same.
SAME_LABELS = 0.98


def calibration_slices(model: Model) -> dict[View, list[Slices]]:
    """Return slices of two phantoms as each network of a model sees them, to measure activations.

    For each view they are batches (N, C, H, W). Rows and columns are padded with zeros to multiples
    of the network's downsampling.
    """
    predictor = Predictor(model, device="cpu", precision="float32")
    batches: dict[View, list[Slices]] = {view: [] for view in predictor.views}
    for seed in _PHANTOMS:
        scan, _ = phantom(seed)
        image = predictor.image_of(predictor.prepare(scan))
        region = predictor.find_brain(image)
        for view, found in predictor.batches(image, region):
            multiple = model.networks[view].config.multiple
            _, _, rows, columns = found.shape
            padding = ((0, 0), (0, 0), (0, -rows % multiple), (0, -columns % multiple))
            batches[view].append(np.pad(found.numpy(), padding))
    return {view: some[_EVERY // 2 :: _EVERY] for view, some in batches.items()}


def quantise(path: Path, batches: list[Slices]) -> None:
    """Quantise an exported network to 8-bit integers, in place.

    `path` is the ONNX file. `batches` are slices of scans, on which the ranges of activations are
    measured. Raises ModelError if too many labels change.
    """
    require_extra("quantise", "nncf", "onnx", "onnxruntime")
    import nncf
    import onnx
    from nncf.quantization.advanced_parameters import (
        AdvancedQuantizationParameters,
        OverflowFix,
    )

    nncf.set_log_level(logging.ERROR)
    network = onnx.load(path)
    convolutions = [node.name for node in network.graph.node if node.op_type == "Conv"]
    # Progress bars are printed whatever the log level.
    with contextlib.redirect_stdout(io.StringIO()):
        quantised = nncf.quantize(
            network,
            nncf.Dataset([{"slices": batch} for batch in batches]),
            preset=nncf.QuantizationPreset.MIXED,
            target_device=nncf.TargetDevice.CPU,
            # The first and the last stay in float32, which halves the number of labels that change
            # (docs/notes/speed.md).
            ignored_scope=nncf.IgnoredScope(names=[convolutions[0], convolutions[-1]]),
            subset_size=len(batches),
            # Weights use half of their range: processors without VNNI add products in 16 bits,
            # which would overflow. So all processors compute the same.
            advanced_parameters=AdvancedQuantizationParameters(
                overflow_fix=OverflowFix.ENABLE
            ),
        )
    expected = _predicted_classes(path, batches)
    onnx.save(quantised, path)
    same = float(np.mean(expected == _predicted_classes(path, batches)))
    if same < SAME_LABELS:
        raise ModelError(
            f"int8 changes {1 - same:.2%} of the labels of phantoms: not written",
            where=path,
            remedy="use the model without int8",
        )


def _predicted_classes(path: Path, batches: list[Slices]) -> NDArray[np.uint8]:
    """Return the classes that an ONNX file gives for all pixels of some batches, (pixels,)."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = []
    for batch in batches:
        (logits,) = session.run(None, {"slices": batch})
        found.append(np.asarray(logits).argmax(1).astype(np.uint8).ravel())
    return np.concatenate(found)


def write_list(model: Model, paths: Mapping[View, Path], folder: Path) -> Path:
    """Write the list of a model's quantised ONNX files in `folder`; return its path.

    `paths` has the ONNX file of each view. `read_graph` checks the files by this list.
    """
    listed = {
        path.name: entry(model, view, path.read_bytes()) for view, path in paths.items()
    }
    write_json(folder / LIST, listed)
    return folder / LIST
