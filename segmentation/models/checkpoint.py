"""Model folders: model.yaml, and <view>.safetensors for each view, without any pickle.

There may be two more files: prior.npz, an anatomical template, and the TSV of a user's own label
scheme. model.yaml has the SHA-256 of every other file. `load_model` is the inverse of `save_model`.

A subfolder `parcels` is a model of its own, whose networks divide the cortex into parcels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
import yaml
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError
from torch import Tensor

from trinat.segmentation.errors import LabelError, ModelError, first_mistake
from trinat.segmentation.io.files import atomic_write, new_folder, read_bytes
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme, parse_scheme
from trinat.segmentation.models.architectures import build
from trinat.segmentation.models.base import Network, NetworkConfig
from trinat.segmentation.models.model_info import (
    FORMAT,
    PRIOR_FILE,
    Description,
    ModelInfo,
    Precision,
    Template,
    weights_file,
)
from trinat.segmentation.models.zoo import (
    COPY_AGAIN,
    LESIONS_FILE,
    MODEL_FILE,
    PARCELS_FOLDER,
    PROVENANCE_FILE,
    find_model,
    parcels_folder_of,
    read_model_file,
)
from trinat.segmentation.space.views import View, chosen_views

# Limit far beyond any model's size, because a sparse file may claim to be of any size.
_MAX_FILE_BYTES = 2 << 30
# Maximum size of the header of a safetensors file.
_MAX_HEADER_BYTES = 1 << 20
_DTYPES = {"float32": torch.float32, "float16": torch.float16}
# Batch norm counts its batches, but nothing uses the count, so it is not stored.
_COUNTER = "num_batches_tracked"
_OTHER_ARCHITECTURE = "its architecture in model.yaml is another"


@dataclass(frozen=True, eq=False)
class Model:
    """A model whose files have been checked: networks on the CPU, in float32, in evaluation mode.

    `scheme` has the classes of the model's results. `networks` are those that were loaded, by view.
    `template` is the anatomical template of its prior, if it has one.
    """

    folder: Path
    info: ModelInfo
    scheme: LabelScheme
    networks: Mapping[View, Network]
    template: Template | None = None

    @property
    def name(self) -> str:
        """Name in its model.yaml."""
        return self.info.name

    @property
    def label_table(self) -> Path | None:
        """TSV of the user's own label scheme in the folder; None for a shipped scheme."""
        name = f"{self.info.labels}.tsv"
        if name not in self.info.files:
            return None
        return self.folder / name

    @property
    def parcels(self) -> Path | None:
        """Folder of the model that divides the cortex into parcels, or None."""
        return parcels_folder_of(self.folder)

    @property
    def lesions(self) -> bytes | None:
        """File of the network for lesions of white matter, or None."""
        path = self.folder / LESIONS_FILE
        return read_bytes(path) if path.is_file() else None

    @property
    def provenance(self) -> bytes | None:
        """File that tells how the weights were trained, and on which subjects, or None."""
        path = self.folder / PROVENANCE_FILE
        return read_bytes(path) if path.is_file() else None

    @property
    def not_predicted(self) -> NDArray[np.int64]:
        """Indices of the classes that the model does not predict."""
        names = self.info.not_predicted
        return np.array([self.scheme.names.index(name) for name in names], int)

    def is_merged(self, view: View) -> bool:
        """Return True if the network of a view does not distinguish left from right.

        Its classes are then structures without a side, such as Thalamus.
        """
        return self.info.architectures[view].classes != len(self.scheme)

    def classes_of(self, view: View) -> LabelScheme:
        """Return the scheme of a view's network, whose classes are in the order of its channels."""
        if self.is_merged(view):
            return self.scheme.seen_in(view)
        return self.scheme

    def not_predicted_in(self, view: View) -> NDArray[np.int64]:
        """Return the channels of a view's network whose classes the model does not predict."""
        if self.is_merged(view):
            return np.unique(self.scheme.merged.to_merged[self.not_predicted])
        return self.not_predicted

    def fusion_weights(self, views: Collection[View]) -> dict[View, float]:
        """Return the weight of each of these views from model.yaml, scaled to a sum of 1."""
        return normalised_weights(
            self.info.fusion.weights, views, self.folder / MODEL_FILE
        )


def normalised_weights(
    weights: Mapping[View, float], views: Collection[View], where: str | Path
) -> dict[View, float]:
    """Return the weight of each of these views, scaled to a sum of 1.

    `weights` has the weights that are set; a view without one gets 0. Raises ModelError, with the
    file `where`, if all of them are 0.
    """
    given = np.array([weights.get(view, 0.0) for view in views], np.float32)
    total = given.sum()
    if total <= 0:
        names = ", ".join(view.value for view in views)
        raise ModelError(
            f"the views {names} have no weight",
            where=where,
            remedy="run more views, or give them weights under fusion",
        )
    return dict(zip(views, (given / total).tolist(), strict=True))


def save_model(
    folder: str | Path,
    description: Description,
    networks: Mapping[View, Network],
    *,
    label_table: str | Path | None = None,
    template: Template | None = None,
    parcels: Path | None = None,
    lesions: bytes | None = None,
    provenance: bytes | None = None,
    precision: Precision = "float32",
    overwrite: bool = False,
) -> ModelInfo:
    """Write a model folder atomically and return the contents of its model.yaml.

    `label_table` is the TSV of a user's own scheme. `parcels` is the folder of a model that divides
    the cortex; its files are copied unchanged. `lesions` is the file of a lesion network, and
    `provenance` the file on the training of the weights. With `precision` float16 the weights of
    convolutions are stored in half precision, and computed with in float32 again. `overwrite`
    replaces the whole folder; without it a folder that contains anything is refused.
    """
    final = Path(folder)
    contents = {}
    for view, network in networks.items():
        contents[weights_file(view)] = _to_safetensors(network, precision, final)
    table = None
    if label_table is not None:
        table_name = f"{description.labels}.tsv"
        if Path(label_table).name != table_name:
            raise ModelError(
                f"the label table is not named {table_name}", where=label_table
            )
        table = read_bytes(label_table)
        contents[table_name] = table
    scheme = _parse_or_load_scheme(description.labels, table, final)
    if template is not None:
        contents[PRIOR_FILE] = template.to_bytes()
    info = ModelInfo(
        **dict(description),
        labels_sha256=_fingerprint(scheme),
        precision=precision,
        architectures={view: network.config for view, network in networks.items()},
        versions={name: version(name) for name in ("trinat", "torch")},
        files={name: _sha256(data) for name, data in contents.items()},
    )
    _check_labels(info, scheme, final)
    contents[MODEL_FILE] = _to_yaml(info)
    if parcels is not None:
        for path in parcels.iterdir():
            if path.is_file():
                contents[f"{PARCELS_FOLDER}/{path.name}"] = read_bytes(path)
    if lesions is not None:
        contents[LESIONS_FILE] = lesions
    if provenance is not None:
        contents[PROVENANCE_FILE] = provenance
    with new_folder(final, replacing=overwrite) as new:
        for name, data in contents.items():
            path = new / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
    return info


def update_info(folder: Path, **changes: object) -> None:
    """Change entries of model.yaml, such as fusion, quality or metrics, and keep the networks."""
    updated = read_info(folder).model_copy(update=changes)
    with atomic_write(folder / MODEL_FILE) as file:
        file.write(_to_yaml(updated))


def load_model(
    name_or_folder: str | Path, views: Iterable[View | str] | str | None = None
) -> Model:
    """Read a model and check its files completely.

    Parameters
    ----------
    name_or_folder : str or path
        Name of a shipped model, or a model folder.
    views : list of str, optional
        Some of "coronal", "axial" and "sagittal". Default: all views of the model.

    Returns
    -------
    Model
        Its description `info`, its label `scheme`, and a network for each view, on the CPU.

    Raises
    ------
    ModelError
        If there is no such model, a file is missing or damaged, or a view is missing.
    ConfigError
        If a view is unknown.

    Examples
    --------
    >>> trinat.load_model("fast", views=["axial"]).info.name
    'fast'
    """
    folder = find_model(name_or_folder)
    info = read_info(folder)
    wanted = chosen_views(views) or tuple(info.architectures)
    for view in wanted:
        if view not in info.architectures:
            raise ModelError(f"has no {view.value} network", where=folder)
    scheme = _read_scheme(folder, info)
    networks = {}
    for view in wanted:
        path = folder / weights_file(view)
        data = _read_checked_file(folder, path.name, info)
        config = info.architectures[view]
        networks[view] = _from_safetensors(data, config, info.precision, path)
    template = None
    if info.prior is not None:
        data = _read_checked_file(folder, PRIOR_FILE, info)
        template = Template.from_bytes(data, len(scheme), folder / PRIOR_FILE)
    return Model(folder, info, scheme, networks, template)


def read_info(folder: str | Path) -> ModelInfo:
    """Read and validate model.yaml; fast, because no weights are read.

    Raises ModelError for a file that is missing or damaged, for another format, and for a key that
    is unknown or has an invalid value; the message names the key. The weights are not checked.
    """
    path = Path(folder) / MODEL_FILE
    content = read_model_file(path.parent)
    if content.get("format") != FORMAT:
        raise ModelError(
            f"has model format {content.get('format')}, and this version reads {FORMAT}",
            where=path,
            remedy="update trinat",
        )
    try:
        return ModelInfo.model_validate(content)
    except ValidationError as error:
        raise ModelError(first_mistake(error), where=path) from error


def _to_yaml(info: ModelInfo) -> bytes:
    """Convert the description to the bytes of model.yaml."""
    text: str = yaml.safe_dump(
        info.model_dump(mode="json"), sort_keys=False, allow_unicode=True
    )
    return text.encode()


def _read_scheme(folder: Path, info: ModelInfo) -> LabelScheme:
    """Return the label scheme of a model folder.

    Raises ModelError unless the model was trained with this scheme.
    """
    table_path = folder / f"{info.labels}.tsv"
    if table_path.name in info.files:
        table = _read_checked_file(folder, table_path.name, info)
        scheme = _parse_or_load_scheme(info.labels, table, table_path)
    else:
        scheme = _parse_or_load_scheme(info.labels, None, folder / MODEL_FILE)
    if _fingerprint(scheme) != info.labels_sha256:
        raise ModelError(
            f"was trained with other labels than the scheme {info.labels} has now",
            where=folder / MODEL_FILE,
            remedy="use the version of trinat named there under versions",
        )
    _check_labels(info, scheme, folder)
    return scheme


def _parse_or_load_scheme(name: str, table: bytes | None, where: Path) -> LabelScheme:
    """Return the label scheme `name`: parsed from the bytes of its table, or a shipped scheme.

    It is a shipped scheme if `table` is None. Raises ModelError, with the file `where`.
    """
    try:
        if table is None:
            return load_scheme(name)
        return parse_scheme(name, table, where)
    except LabelError as error:
        raise ModelError(f"label scheme {name}: {error.what}", where=where) from error


def _fingerprint(scheme: LabelScheme) -> str:
    """Return the SHA-256 of indices, names, numbers and partners of the classes.

    Colours are not part of it, so that they may change.
    """
    classes = []
    for label in scheme.labels:
        numbers = list(label.numbers)
        classes.append([label.index, label.name, label.fs_id, label.partner, numbers])
    return _sha256(json.dumps(classes).encode())


def _check_labels(info: ModelInfo, scheme: LabelScheme, folder: Path) -> None:
    """Raise ModelError unless scheme, description and networks have the same classes.

    The network of a view that does not distinguish sides may have fewer: one for both sides of a
    structure.
    """
    where = folder / MODEL_FILE
    if scheme.names[0] in info.not_predicted:
        raise ModelError(
            f"{scheme.names[0]} is always predicted, not_predicted names it",
            where=where,
        )
    named = [*info.not_predicted, *info.fusion.class_odds]
    if info.prior is not None:
        named.extend(info.prior.per_class)
    for name in named:
        if name not in scheme.names:
            raise ModelError(f"{name} is no structure of {info.labels}", where=where)
    for view, architecture in info.architectures.items():
        allowed = {len(scheme)}
        if not scheme.has_unpartnered_sides:
            allowed.add(len(scheme.seen_in(view)))
        if architecture.classes not in allowed:
            counts = " or ".join(str(count) for count in sorted(allowed))
            raise ModelError(
                f"the {view.value} network has {architecture.classes} classes, "
                f"{info.labels} {counts}",
                where=where,
            )


def _read_checked_file(folder: Path, name: str, info: ModelInfo) -> bytes:
    """Read a file of a model folder; return its bytes after checking their hash."""
    path = folder / name
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ModelError("is too large for a model's file", where=path)
        data = read_bytes(path)
    except FileNotFoundError as error:
        raise ModelError("is missing", where=path, remedy=COPY_AGAIN) from error
    if _sha256(data) != info.files[name]:
        raise ModelError(
            "is not the file that was saved", where=path, remedy=COPY_AGAIN
        )
    return data


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _to_safetensors(network: Network, precision: Precision, where: Path) -> bytes:
    """Return the weights of a network as the bytes of a safetensors file.

    With float16, convolutions are stored in half precision; norms, slopes and biases, which are few
    and have a wide range, stay float32. Raises ModelError, with the file `where`, if a value is
    then not finite.
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


def _from_safetensors(
    data: bytes,
    config: NetworkConfig,
    precision: Precision,
    path: Path,
) -> Network:
    """Build the network of a configuration with the weights in the bytes of a safetensors file.

    The network is on the CPU, in float32 and in evaluation mode. Raises ModelError, with the file
    `path`, if names, shapes or types of the weights differ from `config` and `precision`.
    """
    try:
        # A header with hundreds of thousands of names would take minutes to parse.
        if int.from_bytes(data[:8], "little") > _MAX_HEADER_BYTES:
            raise SafetensorError("its header is too large")
        tensors: dict[str, Tensor] = safetensors.torch.load(data)
    # safetensors raises KeyError for a type that torch does not have.
    except (SafetensorError, KeyError) as error:
        raise ModelError(
            "is not a safetensors file", where=path, remedy=COPY_AGAIN
        ) from error
    # On the device `meta` weights are not initialised; they would be overwritten at once.
    with torch.device("meta"):
        network = build(config)
    expected = {}
    counters = {}
    for name, tensor in network.state_dict().items():
        if name.endswith(_COUNTER):
            counters[name] = torch.tensor(0)
        else:
            expected[name] = tensor
    # Types come first, because torch cannot tell which numbers of some types are finite.
    for name, tensor in tensors.items():
        wanted = _stored_dtype(tensor, precision)
        if tensor.dtype != wanted:
            raise ModelError(
                f"{name} is stored as {tensor.dtype}, not {wanted}", where=path
            )
    check_tensors(tensors, expected, path, _OTHER_ARCHITECTURE)
    weights = {name: tensor.float() for name, tensor in tensors.items()}
    network.load_state_dict({**weights, **counters}, assign=True)
    network.arrange(torch.channels_last)
    return network.eval().requires_grad_(False)


def check_tensors(
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    path: Path,
    remedy: str,
) -> None:
    """Raise ModelError unless tensors have the names and shapes of `expected`, and finite values.

    `path` is the file that they are from; `remedy` is for another network's names or shapes.
    """
    missing = expected.keys() - tensors.keys()
    if missing:
        raise ModelError(f"lacks {min(missing)}", where=path, remedy=remedy)
    unexpected = tensors.keys() - expected.keys()
    if unexpected:
        raise ModelError(
            f"has {min(unexpected)} unexpectedly", where=path, remedy=remedy
        )
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        wanted = tuple(expected[name].shape)
        if shape != wanted:
            raise ModelError(
                f"{name} has shape {shape} in place of {wanted}",
                where=path,
                remedy=remedy,
            )
        if not tensor.isfinite().all():
            raise ModelError(f"{name} has values that are not finite", where=path)


def _stored_dtype(tensor: Tensor, precision: Precision) -> torch.dtype:
    """Return the type in which a tensor is stored.

    It is `precision` for the weights of convolutions (four axes), else float32.
    """
    if tensor.ndim == 4:
        return _DTYPES[precision]
    return torch.float32
