"""Quantised ONNX files: the labels of the network, in OpenVINO as in ONNX Runtime; nothing sent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.refusals import refusal

from trinat.pipelines.models import quantisation
from trinat.pipelines.models.other_formats import export_model, export_network
from trinat.pipelines.models.quantisation import quantise
from trinat.segmentation.errors import ConfigError, ModelError
from trinat.segmentation.models.quicknat import QuickNat, QuickNatConfig

pytest.importorskip("nncf")

# Quantises with an audit hook that names each attempt to reach the network.
_HEARD = """
import sys
asked = []
sys.addaudithook(lambda event, _: event.startswith("socket.") and asked.append(event))
import numpy as np
from pathlib import Path
from trinat.pipelines.models import quantisation
quantisation.SAME_LABELS = 0
quantisation.quantise(Path(sys.argv[1]), [np.ones((1, 1, 16, 16), np.float32)])
reaching = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}
print(sorted(reaching & set(asked)))
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    network = QuickNat(
        QuickNatConfig(classes=3, filters=8, kernel=3, depth=1, excitation="none")
    )
    path = tmp_path_factory.mktemp("network") / "coronal.onnx"
    export_network(network.fold(), path)
    return path


@pytest.mark.slow
def test_labels_stay_and_weights_become_int8(exported: Path, tmp_path: Path) -> None:
    import onnx
    import onnxruntime

    path = tmp_path / "coronal.onnx"
    path.write_bytes(exported.read_bytes())
    # A bright square on black: two labels with a border.
    slices = np.zeros((2, 1, 32, 32), np.float32)
    slices[:, :, 8:24, 8:24] = 1
    (before,) = onnxruntime.InferenceSession(path).run(None, {"slices": slices})
    quantise(path, [slices])
    (after,) = onnxruntime.InferenceSession(path).run(None, {"slices": slices})
    assert (before.argmax(1) == after.argmax(1)).mean() > 0.98
    weights = onnx.load(path).graph.initializer
    assert onnx.TensorProto.INT8 in {tensor.data_type for tensor in weights}
    import openvino

    compiled = openvino.Core().compile_model(path, "CPU")
    found = compiled([slices])[0]
    assert (found.argmax(1) == after.argmax(1)).mean() > 0.98


@pytest.mark.slow
def test_a_network_whose_labels_change_is_refused(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "coronal.onnx"
    path.write_bytes(exported.read_bytes())
    # In noise, some classes are nearly as probable as others.
    shape = (1, 1, 64, 64)
    noise = np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)
    quantise(path, [noise])
    monkeypatch.setattr(quantisation, "SAME_LABELS", 1)
    path.write_bytes(exported.read_bytes())
    with refusal(ModelError, path):
        quantise(path, [noise])


@pytest.mark.slow
def test_nothing_is_sent(exported: Path, tmp_path: Path) -> None:
    path = tmp_path / "coronal.onnx"
    path.write_bytes(exported.read_bytes())
    done = subprocess.run(
        [sys.executable, "-c", _HEARD, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={"HOME": str(tmp_path), "PATH": ""},
    )
    assert done.stdout.strip() == "[]"


def test_int8_is_for_onnx_only(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        export_model(["fast"], tmp_path, format_="web", int8=True)
