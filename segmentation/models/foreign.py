"""Import of weights of the authors' PyTorch port of QuickNAT.

A checkpoint of the port is a pickled module or a state dict. It is read without running its code,
its tensors are renamed as in trinat, and the architecture is derived from their shapes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from trinat.segmentation.errors import ModelError, first_mistake
from trinat.segmentation.labels import DEFAULT_SCHEME
from trinat.segmentation.models.blocks import Recalibration
from trinat.segmentation.models.checkpoint import check_tensors, save_model
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

# Names of the port's blocks and of their parts, and the names in trinat.
_BLOCKS = {
    "encode1": "encoders.0",
    "encode2": "encoders.1",
    "encode3": "encoders.2",
    "encode4": "encoders.3",
    "bottleneck": "bottleneck",
    # Decoders in the order in which they run, the deepest first.
    "decode4": "decoders.0",
    "decode1": "decoders.1",
    "decode2": "decoders.2",
    "decode3": "decoders.3",
}
_PARTS = {
    "conv1": "layers.0.convolution",
    "conv2": "layers.1.convolution",
    "conv3": "layers.2.convolution",
    "batchnorm1": "layers.0.norm",
    "batchnorm2": "layers.1.norm",
    "batchnorm3": "layers.2.norm",
    "prelu": "activation",
    # A single kind of squeeze-and-excitation is directly in the block; two kinds have a submodule
    # each.
    "SELayer.fc1": "excitation.channel.0",
    "SELayer.cSE.fc1": "excitation.channel.0",
    "SELayer.fc2": "excitation.channel.2",
    "SELayer.cSE.fc2": "excitation.channel.2",
    "SELayer.conv": "excitation.spatial",
    "SELayer.sSE.conv": "excitation.spatial",
}
# Names of tensors in MONAI's network, which is also called QuickNAT.
_MONAI_NAMES = re.compile(r"model\.\d+\.(submodule\.|layers0\.)")
_COUNTER = "num_batches_tracked"
_OTHER_NETWORK = (
    "import a QuickNAT of the authors' port; tensors have trinat's names here"
)
# Several times the number of modules of QuickNAT.
_MAX_MODULES = 1000
_MAX_DEPTH = 8
_MAX_NAME = 64


def import_port(
    file: Path,
    *,
    view: View,
    out: Path,
    labels: str = DEFAULT_SCHEME,
    licence: str = "",
) -> ModelInfo:
    """Write the network in a checkpoint as a model of one view; `trinat bundle` joins several.

    `labels` is the scheme that the network was trained with, and `licence` is the licence of the
    weights; a checkpoint contains neither. The model is written to the folder `out`.
    """
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
    """Read a network from a checkpoint of QuickNAT's PyTorch port, without running code from it.

    The file may hold a whole pickled module or a state dict. The network is on the CPU, in float32
    and in evaluation mode. Raises ModelError, which names the mismatch, for a checkpoint of another
    network or with weights that do not fit.
    """
    path = Path(path)
    state, dropout = _find_state(read_torch_file(path), path)
    tensors = _renamed_tensors(state, path)
    network = QuickNat(_config_from_shapes(tensors, dropout, path))
    state_of_ours = network.state_dict()
    expected = {
        name: tensor
        for name, tensor in state_of_ours.items()
        if not name.endswith(_COUNTER)
    }
    check_tensors(tensors, expected, path, _OTHER_NETWORK)
    network.load_state_dict(tensors, strict=False)
    return network.eval()


def _renamed_tensors(state: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return the tensors of the port by their names in trinat, in float32."""
    # Networks that were trained on several GPUs have the prefix "module.".
    plain = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    if any(_MONAI_NAMES.match(name) for name in plain):
        raise ModelError(
            "holds MONAI's Quicknat, which is another network: its convolutions have no biases "
            "and all its blocks share one squeeze-and-excitation",
            where=path,
            remedy="import a checkpoint of the authors' own port, or train with trinat train",
        )
    tensors = {}
    for name, tensor in plain.items():
        if name.endswith(_COUNTER):
            continue
        ours = _name_in_trinat(name, path)
        # The port's channel excitation is a linear layer (F, C); here it is a convolution (F, C, 1,
        # 1).
        if tensor.ndim == 2:
            tensor = tensor[:, :, None, None]
        tensors[ours] = tensor.float()
    return tensors


def _find_state(
    content: Any, path: Path, depth: int = 0
) -> tuple[Mapping[str, Tensor], float | None]:
    """Find the tensors in a checkpoint; return them by name, and the dropout rate or None.

    Training scripts store them in different places: a module, a state dict, or a mapping with one
    of these, to a depth of `_MAX_DEPTH`.
    """
    if isinstance(content, Stub):
        return _state_of_module(content, path)
    if isinstance(content, Mapping):
        for key in ("state_dict", "model_state_dict", "model"):
            if key in content and depth < _MAX_DEPTH:
                return _find_state(content[key], path, depth + 1)
        if content and all(isinstance(value, Tensor) for value in content.values()):
            return {str(name): tensor for name, tensor in content.items()}, None
    raise ModelError("holds no network and no state dict", where=path)


def _state_of_module(network: Stub, path: Path) -> tuple[dict[str, Tensor], Any]:
    """Return the tensors of a module as in its `state_dict`, and its dropout rate or None.

    A checkpoint may refer to one module in many places, so the number of visited modules is
    limited.
    """
    if network.name.startswith("monai."):
        raise ModelError(f"holds a network of MONAI ({network.name})", where=path)
    tensors = {}
    dropout = None
    for prefix, module in _modules(network, path):
        for kind in ("_parameters", "_buffers"):
            for name, tensor in _children(module, kind):
                if isinstance(tensor, Tensor):
                    tensors[prefix + name] = tensor
        is_dropout = prefix.endswith("drop_out.") and isinstance(module.state, dict)
        if is_dropout and dropout is None:
            dropout = module.state.get("p", 0)
    return tensors, dropout


def _modules(network: Stub, path: Path) -> list[tuple[str, Stub]]:
    """List a module and all modules in it, breadth first.

    Each has the prefix of its tensors' names, such as "encode1.conv1.".
    """
    found = [("", network)]
    # The list grows during the iteration.
    for prefix, module in found:
        for name, child in _children(module, "_modules"):
            is_too_deep = prefix.count(".") > _MAX_DEPTH
            if len(found) == _MAX_MODULES or len(name) > _MAX_NAME or is_too_deep:
                raise ModelError(
                    "is no checkpoint of QuickNAT: too many modules", where=path
                )
            if isinstance(child, Stub):
                found.append((f"{prefix}{name}.", child))
    return found


def _children(module: Stub, kind: str) -> list[tuple[str, Any]]:
    """List the "_modules", "_parameters" or "_buffers" of a module, each with its name."""
    if not isinstance(module.state, dict):
        return []
    found = module.state.get(kind)
    if not isinstance(found, dict):
        return []
    return [(name, value) for name, value in found.items() if isinstance(name, str)]


def _name_in_trinat(name: str, path: Path) -> str:
    """Return the name in trinat of a tensor of the port."""
    if name.startswith("classifier.conv."):
        return name.replace("classifier.conv", "classifier", 1)
    block, _, rest = name.partition(".")
    part, _, tensor = rest.rpartition(".")
    if block not in _BLOCKS or part not in _PARTS:
        raise ModelError(f"is no checkpoint of QuickNAT: it has {name}", where=path)
    return f"{_BLOCKS[block]}.{_PARTS[part]}.{tensor}"


def _config_from_shapes(
    tensors: Mapping[str, Tensor], dropout: float | None, path: Path
) -> QuickNatConfig:
    """Derive the configuration from the shapes of the weights, which have trinat's names.

    `dropout` is the rate in the checkpoint; None means the default.
    """
    try:
        first = tensors["encoders.0.layers.0.convolution.weight"]
        filters, channels, kernel, _ = first.shape
        classes = len(tensors["classifier.weight"])
    except (KeyError, ValueError) as error:
        raise ModelError("is no checkpoint of QuickNAT", where=path) from error
    settings: dict[str, Any] = {
        "classes": classes,
        "channels": channels,
        "filters": filters,
        "kernel": kernel,
        "excitation": _kind_of_excitation(tensors),
    }
    if dropout is not None:
        settings["dropout"] = dropout
    try:
        return QuickNatConfig.model_validate(settings)
    except ValidationError as error:
        raise ModelError(first_mistake(error), where=path) from error


def _kind_of_excitation(tensors: Mapping[str, Tensor]) -> Recalibration:
    """Return the kind of squeeze-and-excitation of the first encoder."""
    has_channel = "encoders.0.excitation.channel.0.weight" in tensors
    has_spatial = "encoders.0.excitation.spatial.weight" in tensors
    if has_channel and has_spatial:
        return "both"
    if has_channel:
        return "channel"
    if has_spatial:
        return "spatial"
    return "none"
