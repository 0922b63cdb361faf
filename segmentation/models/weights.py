"""A network's weights as a safetensors file, and back: only tensors, no code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from trinat.segmentation.errors import ModelError
from trinat.segmentation.models.architectures import build
from trinat.segmentation.models.base import Network, NetworkConfig
from trinat.segmentation.models.model_info import Precision

_MAX_HEADER_BYTES = 1 << 20
_DTYPES = {"float32": torch.float32, "float16": torch.float16}
# Batch norm counts its batches and never reads the count.
_COUNTER = "num_batches_tracked"
_OTHER_ARCHITECTURE = "its architecture in model.yaml is another"


def to_safetensors(network: Network, precision: Precision, where: Path) -> bytes:
    """The weights of a network as bytes of a file.

    With float16, convolutions are stored in half precision; norms, slopes and biases, few and wide
    in range, stay float32. Values that are not finite then are refused; `where` is what the error
    names.
    """
    tensors = {}
    for name, tensor in network.state_dict().items():
        if name.endswith(_COUNTER):
            continue
        dtype = _stored_dtype(tensor, precision)
        stored = tensor.detach().cpu().to(dtype).contiguous()
        if not stored.isfinite().all():
            raise ModelError(
                f"{name} has values that {precision} cannot hold", where=where
            )
        tensors[name] = stored
    data: bytes = safetensors.torch.save(tensors)
    return data


def from_safetensors(
    data: bytes,
    config: NetworkConfig,
    precision: Precision,
    path: Path,
) -> Network:
    """The network of a configuration with the weights in a file's bytes.

    It is on the CPU, in float32 and in evaluation mode. Weights of other names, shapes or types
    than `config` and `precision` say are refused; `path` is what the errors name.
    """
    tensors = _parse(data, path)
    # No random weights are made, since they would be replaced at once.
    with torch.device("meta"):
        network = build(config)
    expected = {}
    counters = {}
    for name, tensor in network.state_dict().items():
        if name.endswith(_COUNTER):
            counters[name] = torch.tensor(0)
        else:
            expected[name] = tensor
    _check_names(tensors, expected, path)
    for name in sorted(expected):
        _check_tensor(name, tensors[name], expected[name], precision, path)
        tensors[name] = tensors[name].float()
    network.load_state_dict({**tensors, **counters}, assign=True)
    network.arrange(torch.channels_last)
    return network.eval().requires_grad_(False)


def _parse(data: bytes, path: Path) -> dict[str, Tensor]:
    """The tensors in a file's bytes, by name."""
    try:
        # Hundreds of thousands of names would take minutes.
        if int.from_bytes(data[:8], "little") > _MAX_HEADER_BYTES:
            raise SafetensorError("its header is too large")
        tensors: dict[str, Tensor] = safetensors.torch.load(data)
    # A KeyError is a type that torch does not have.
    except (SafetensorError, KeyError) as error:
        raise ModelError(
            "is not a safetensors file",
            where=path,
            remedy="copy or download the model again",
        ) from error
    return tensors


def _check_names(
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    path: Path,
) -> None:
    """A file has the tensors of its network, all of them and no others."""
    missing = expected.keys() - tensors.keys()
    if missing:
        raise ModelError(
            f"lacks {min(missing)}", where=path, remedy=_OTHER_ARCHITECTURE
        )
    unexpected = tensors.keys() - expected.keys()
    if unexpected:
        raise ModelError(
            f"has {min(unexpected)} unexpectedly",
            where=path,
            remedy=_OTHER_ARCHITECTURE,
        )


def _check_tensor(
    name: str,
    tensor: Tensor,
    expected: Tensor,
    precision: Precision,
    path: Path,
) -> None:
    """A tensor has the shape of the network's, the stored type, and finite values."""
    if tensor.shape != expected.shape:
        raise ModelError(
            f"{name} has shape {tuple(tensor.shape)} in place of {tuple(expected.shape)}",
            where=path,
            remedy=_OTHER_ARCHITECTURE,
        )
    if tensor.dtype != _stored_dtype(tensor, precision):
        raise ModelError(
            f"{name} is stored as {tensor.dtype}, not {precision}", where=path
        )
    if not tensor.isfinite().all():
        raise ModelError(f"{name} has values that are not finite", where=path)


def _stored_dtype(tensor: Tensor, precision: Precision) -> torch.dtype:
    """Convolutions, of four axes, are stored in the model's precision, all else in float32."""
    if tensor.ndim == 4:
        return _DTYPES[precision]
    return torch.float32
