"""Weights of the authors' PyTorch port of QuickNAT, brought into the form of this project."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from trinat.segmentation.errors import ModelError, first_mistake
from trinat.segmentation.models.checkpoint import save_model
from trinat.segmentation.models.model_info import (
    Description,
    ModelInfo,
    Preprocessing,
    Training,
)
from trinat.segmentation.models.quicknat import QuickNat, QuickNatConfig
from trinat.segmentation.models.unpickling import Stub, read_torch_file
from trinat.segmentation.space.views import SliceAxes, View

# The port reads FreeSurfer's conformed orig.mgz: 256 x 256 x 256 voxels of 1 mm whose axes run to
# the Left, Inferior and Anterior. It scales the volume's minimum to 0 and its maximum to 1, and
# makes its slices by transpose((2, 0, 1)) for coronal, ((1, 2, 0)) for axial, none for sagittal.
PORT_PREPROCESSING = Preprocessing(
    axes="LIA",
    shape=(256, 256, 256),
    spacing_mm=1.0,
    scaling="minimum-maximum",
    slices={
        View.CORONAL: SliceAxes(along=2, rows=0, columns=1),
        View.AXIAL: SliceAxes(along=1, rows=2, columns=0),
        View.SAGITTAL: SliceAxes(along=0, rows=1, columns=2),
    },
)

# Its decoders run in this order, the deepest first.
_DECODERS = (4, 1, 2, 3)
_BLOCKS = {
    **{f"encode{i + 1}": f"encoders.{i}" for i in range(4)},
    "bottleneck": "bottleneck",
    **{f"decode{number}": f"decoders.{i}" for i, number in enumerate(_DECODERS)},
}
_PARTS = {
    **{f"conv{i + 1}": f"layers.{i}.convolution" for i in range(3)},
    **{f"batchnorm{i + 1}": f"layers.{i}.norm" for i in range(3)},
    "prelu": "activation",
    # One kind of squeeze-and-excitation stands directly in the block, both in parts of their own.
    **{f"SELayer{part}.fc1": "excitation.channel.0" for part in ("", ".cSE")},
    **{f"SELayer{part}.fc2": "excitation.channel.2" for part in ("", ".cSE")},
    **{f"SELayer{part}.conv": "excitation.spatial" for part in ("", ".sSE")},
}
_COUNTER = "num_batches_tracked"
# Several times what QuickNAT has.
_MAX_MODULES = 1000
_MAX_DEPTH = 8
_MAX_NAME = 64


def import_port(
    file: Path, *, view: View, out: Path, labels: str = "quicknat33", licence: str = ""
) -> ModelInfo:
    """Write the network in `file` as a model of one view; `trinat bundle` joins several."""
    training = Training(
        data="not recorded in the checkpoint",
        licence=licence,
        recipe=f"from {file.name}",
    )
    description = Description(
        name=out.name,
        labels=labels,
        preprocessing=PORT_PREPROCESSING,
        training=training,
    )
    return save_model(out, description, {view: read_port(file)})


def read_port(path: str | Path) -> QuickNat:
    """A network from a checkpoint of the port (whole module or state dict), run by no pickle."""
    path = Path(path)
    content = read_torch_file(path)
    state, dropout = _find_state(content, path)
    state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    if any(re.match(r"model\.\d+\.(submodule\.|layers0\.)", name) for name in state):
        raise ModelError(
            "holds MONAI's Quicknat, which is another network: its convolutions have no biases "
            "and all its blocks share one squeeze-and-excitation",
            where=path,
            remedy="import a checkpoint of the authors' own port, or train with trinat train",
        )
    tensors = {
        _rename(name, path): tensor.float()
        for name, tensor in state.items()
        if not name.endswith(_COUNTER)
    }
    network = QuickNat(_config(tensors, dropout, path))
    expected = {
        n: t for n, t in network.state_dict().items() if not n.endswith(_COUNTER)
    }
    if missing := expected.keys() - tensors.keys():
        raise ModelError(f"lacks what is called {min(missing)} here", where=path)
    for name, tensor in tensors.items():
        if name not in expected:
            raise ModelError(f"has more than QuickNAT: {name}", where=path)
        # The port's channel excitation is linear: (F, C) for (F, C, 1, 1).
        if tensor.ndim == 2:
            tensors[name] = tensor = tensor[:, :, None, None]
        if tensor.shape != expected[name].shape:
            raise ModelError(
                f"{name} has shape {tuple(tensor.shape)} in place of {tuple(expected[name].shape)}",
                where=path,
            )
        if not tensor.isfinite().all():
            raise ModelError(f"{name} has values that are not finite", where=path)
    network.load_state_dict(tensors, strict=False)
    return network.eval()


def _find_state(
    content: Any, path: Path, depth: int = 0
) -> tuple[Mapping[str, Tensor], float | None]:
    """The tensors by name, wherever a training script put them, and the dropout if it is known."""
    if isinstance(content, Stub):
        return _of_module(content, path)
    if isinstance(content, Mapping):
        for key in ("state_dict", "model_state_dict", "model"):
            if key in content and depth < _MAX_DEPTH:
                return _find_state(content[key], path, depth + 1)
        if content and all(isinstance(v, Tensor) for v in content.values()):
            return {str(name): tensor for name, tensor in content.items()}, None
    raise ModelError("holds no network and no state dict", where=path)


def _of_module(network: Stub, path: Path) -> tuple[dict[str, Tensor], Any]:
    """What its `state_dict` would have been; few modules may stand in many places."""
    if network.name.startswith("monai."):
        raise ModelError(f"holds a network of MONAI ({network.name})", where=path)
    tensors, dropout, found = {}, None, [("", network)]
    for prefix, module in found:
        for name, child in _children(module, "_modules"):
            if (
                len(found) == _MAX_MODULES
                or len(name) > _MAX_NAME
                or prefix.count(".") > _MAX_DEPTH
            ):
                raise ModelError(
                    "is no checkpoint of QuickNAT: too many modules", where=path
                )
            if isinstance(child, Stub):
                found.append((f"{prefix}{name}.", child))
        for kind in ("_parameters", "_buffers"):
            for name, tensor in _children(module, kind):
                if isinstance(tensor, Tensor):
                    tensors[prefix + name] = tensor
        if (
            prefix.endswith("drop_out.")
            and dropout is None
            and isinstance(module.state, dict)
        ):
            dropout = module.state.get("p", 0)
    return tensors, dropout


def _children(module: Stub, kind: str) -> list[tuple[str, Any]]:
    state = module.state
    found = state.get(kind) if isinstance(state, dict) else None
    pairs = found.items() if isinstance(found, dict) else ()
    return [(name, value) for name, value in pairs if isinstance(name, str)]


def _rename(name: str, path: Path) -> str:
    if name.startswith("classifier.conv."):
        return name.replace("classifier.conv", "classifier", 1)
    block, _, rest = name.partition(".")
    part, _, tensor = rest.rpartition(".")
    if block not in _BLOCKS or part not in _PARTS:
        raise ModelError(f"is no checkpoint of QuickNAT: it has {name}", where=path)
    return f"{_BLOCKS[block]}.{_PARTS[part]}.{tensor}"


def _config(
    tensors: Mapping[str, Tensor], dropout: float | None, path: Path
) -> QuickNatConfig:
    """The architecture, from the shapes of its weights."""
    try:
        filters, channels, kernel, _ = tensors[
            "encoders.0.layers.0.convolution.weight"
        ].shape
        classes = len(tensors["classifier.weight"])
    except (KeyError, ValueError) as error:
        raise ModelError("is no checkpoint of QuickNAT", where=path) from error
    kinds = ("channel.0", "spatial")
    gates = [
        kind for kind in kinds if f"encoders.0.excitation.{kind}.weight" in tensors
    ]
    settings = {
        "classes": classes,
        "channels": channels,
        "filters": filters,
        "kernel": kernel,
        "excitation": "both"
        if len(gates) == 2
        else "".join(gates).removesuffix(".0") or "none",
    }
    if dropout is not None:
        settings["dropout"] = dropout
    try:
        return QuickNatConfig.model_validate(settings)
    except ValidationError as error:
        raise ModelError(": ".join(first_mistake(error)), where=path) from error
