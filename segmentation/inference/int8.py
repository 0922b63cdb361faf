"""Networks quantised to int8, run by OpenVINO on a processor.

A model's folder holds them as ONNX graphs in its folder `int8`, which `trinat export --int8` writes
(`pipelines/models/quantisation.py`). They map slices (N, C, H, W) to logits (N, K, H, W).
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import platform
from importlib.util import find_spec
from io import BytesIO

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from trinat.segmentation.errors import (
    ConfigError,
    DeviceError,
    ModelError,
    extra_remedy,
)
from trinat.segmentation.inference.runtime import NEVER
from trinat.segmentation.io.files import read_bytes
from trinat.segmentation.models.checkpoint import Model
from trinat.segmentation.models.model_info import weights_file
from trinat.segmentation.space.views import View

FOLDER = "int8"
# File that lists the graphs: the SHA-256 of each, and of the weights from which it was made.
LIST = "graphs.json"


class Int8Runtime:
    """Runtime that computes a view's quantised network with OpenVINO, on the CPU."""

    device = torch.device("cpu")

    def __init__(self, model: Model, view: View) -> None:
        if find_spec("openvino") is None:
            raise ConfigError(
                "int8 needs the package openvino", remedy=extra_remedy("fast-cpu")
            )
        import openvino
        from openvino import opset13

        core = openvino.Core()
        graph = core.read_model(BytesIO(read_graph(model, view)))
        logits = graph.output(0).node.input_value(0)
        never = model.not_predicted_in(view)
        if len(never):
            offset = np.zeros((model.networks[view].config.classes, 1, 1), np.float32)
            offset[never] = NEVER
            logits = opset13.add(logits, offset).output(0)
        classes_last = opset13.transpose(logits, np.array([0, 2, 3, 1]))
        probabilities = opset13.softmax(classes_last, -1)
        graph = openvino.Model([probabilities], graph.get_parameters())
        compiled = core.compile_model(
            graph,
            "CPU",
            {
                "INFERENCE_NUM_THREADS": torch.get_num_threads(),
                "NUM_STREAMS": 1,
                # Pinned threads of several processes would share the first cores.
                "ENABLE_CPU_PINNING": False,
                # Layers that are not quantised, such as the softmax, stay in float32.
                "INFERENCE_PRECISION_HINT": "f32",
            },
        )
        self._tensor = openvino.Tensor
        self._request = compiled.create_infer_request()
        self._multiple = model.networks[view].config.multiple
        self._classes = model.networks[view].config.classes

    def __call__(self, slices: Tensor) -> Tensor:
        """Map slices (N, C, H, W) float32 to probabilities (N, H, W, K) float32."""
        count, _, rows, columns = slices.shape
        missing_rows = -rows % self._multiple
        missing_columns = -columns % self._multiple
        padded = pad(slices, (0, missing_columns, 0, missing_rows)).contiguous()
        shape = (count, rows + missing_rows, columns + missing_columns, self._classes)
        found = torch.empty(shape)
        # OpenVINO reads and writes torch's memory.
        self._request.set_input_tensor(self._tensor(padded.numpy(), shared_memory=True))
        self._request.set_output_tensor(self._tensor(found.numpy(), shared_memory=True))
        self._request.infer()
        return found[:, :rows, :columns]

    def set_dropout(self, is_on: bool) -> None:
        """Raise DeviceError if dropout is to be on: a quantised network has none."""
        if is_on:
            raise DeviceError(
                "int8 networks have no dropout to draw samples with",
                remedy="use another precision",
            )

    def release(self) -> None:
        """Free the memory of activations, which OpenVINO keeps for each network separately."""
        self._request.get_compiled_model().release_memory()
        if platform.libc_ver()[0] == "glibc":
            # glibc would keep what was freed: commands tune it to do so.
            ctypes.CDLL(None).malloc_trim(0)


def read_graph(model: Model, view: View) -> bytes:
    """Return the content of the ONNX file of a view's quantised network.

    Raises ModelError if there is none, or if the hashes in graphs.json do not match.
    """
    folder = model.folder / FOLDER
    remedy = f"trinat export {model.folder} --int8 --out {folder} makes them"
    path = folder / f"{view.value}.onnx"
    try:
        listed = json.loads(read_bytes(folder / LIST))[path.name]
        data = read_bytes(path)
    except (FileNotFoundError, KeyError) as error:
        raise ModelError(
            f"has no int8 network for {view.value}", where=model.folder, remedy=remedy
        ) from error
    if listed != entry(model, view, data):
        raise ModelError(
            "is damaged or was made from other weights", where=path, remedy=remedy
        )
    return data


def entry(model: Model, view: View, data: bytes) -> dict[str, str]:
    """Return the entry of an ONNX file in graphs.json: its SHA-256 and that of its weights.

    `data` are the bytes of the file.
    """
    return {
        "sha256": hashlib.sha256(data).hexdigest(),
        "weights": model.info.files[weights_file(view)],
    }
