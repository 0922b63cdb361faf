"""A model is a folder: model.yaml, and <view>.safetensors for each view. No pickle anywhere."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
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
from trinat.segmentation.io.files import atomic_write, not_written, read_bytes
from trinat.segmentation.io.plain_yaml import parse_yaml
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme, parse_scheme
from trinat.segmentation.models.architectures import build
from trinat.segmentation.models.base import Network, NetworkConfig
from trinat.segmentation.models.model_info import (
    FORMAT,
    PRIOR_FILE,
    Description,
    Fusion,
    ModelInfo,
    Precision,
    Template,
    weights_file,
)
from trinat.segmentation.models.zoo import MODEL_FILE, find_model
from trinat.segmentation.space.views import View, chosen_views

_MAX_YAML_BYTES = 1 << 20
# Far beyond any model's; a sparse file on disk may be of any size.
_MAX_FILE_BYTES = 2 << 30
_MAX_HEADER_BYTES = 1 << 20
_COPY_AGAIN = "copy or download the model again"
_DTYPES = {"float32": torch.float32, "float16": torch.float16}
# Batch norm counts its batches and never reads the count.
_COUNTER = "num_batches_tracked"


@dataclass(frozen=True, eq=False)
class Model:
    """A checked model: networks on the CPU, in float32, in evaluation mode."""

    folder: Path
    info: ModelInfo
    scheme: LabelScheme
    networks: Mapping[View, Network]
    template: Template | None = None

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def label_table(self) -> Path | None:
        """The TSV of a user's own scheme, which `save_model` takes."""
        name = f"{self.info.labels}.tsv"
        return self.folder / name if name in self.info.files else None

    @property
    def not_predicted(self) -> NDArray[np.int64]:
        """Class indices that the model does not predict."""
        return np.array(
            [self.scheme.names.index(name) for name in self.info.not_predicted], int
        )

    def is_merged(self, view: View) -> bool:
        """Whether a view's classes are the scheme's with left and right merged."""
        return self.info.architectures[view].classes != len(self.scheme)

    def classes_of(self, view: View) -> LabelScheme:
        """The classes that a view's network tells apart, in the order of its channels."""
        return self.scheme.seen_in(view) if self.is_merged(view) else self.scheme

    def not_predicted_in(self, view: View) -> NDArray[np.int64]:
        """Of those classes, the ones that the model does not predict."""
        never = self.not_predicted
        return (
            np.unique(self.scheme.merged.to_merged[never])
            if self.is_merged(view)
            else never
        )

    def fusion_weights(self, views: Collection[View]) -> NDArray[np.float32]:
        """(V, K) weights of these views for each class of the scheme; columns sum to 1."""
        return class_weights(
            self.info.fusion, self.scheme, views, self.folder / MODEL_FILE
        )


def class_weights(
    fusion: Fusion, scheme: LabelScheme, views: Collection[View], where: str | Path
) -> NDArray[np.float32]:
    """(V, K) weights of some views for each class of a scheme; `where` they were written."""
    for name in fusion.per_class:
        if name not in scheme.names:
            raise ModelError(f"{name} is no structure of {scheme.name}", where=where)
    columns = [
        [fusion.per_class.get(name, fusion.weights).get(view, 0.0) for view in views]
        for name in scheme.names
    ]
    weights = np.array(columns, np.float32).T
    total = weights.sum(0)
    if not (total > 0).all():
        raise ModelError(
            f"the views {', '.join(v.value for v in views)} have no weight for some structure",
            where=where,
            remedy="run more views, or give them weights under fusion",
        )
    normalised: NDArray[np.float32] = weights / total
    return normalised


def save_model(
    folder: str | Path,
    description: Description,
    networks: Mapping[View, Network],
    *,
    label_table: str | Path | None = None,
    template: Template | None = None,
    precision: Precision = "float32",
    overwrite: bool = False,
) -> ModelInfo:
    """Write a model folder, whole or not at all; `label_table` is the TSV of a user's own scheme.

    With float16, convolutions are stored in half precision (and computed with in float32 again);
    norms, slopes and biases, few and wide in range, stay float32. `overwrite` replaces the whole
    folder.
    """
    final = Path(folder)
    if final.is_dir() and any(final.iterdir()) and not overwrite:
        raise ModelError("is there already", where=final, remedy="choose another name")
    contents = {
        weights_file(view): safetensors.torch.save(_to_store(network, precision, final))
        for view, network in networks.items()
    }
    table = None
    if label_table is not None:
        name = f"{description.labels}.tsv"
        if Path(label_table).name != name:
            raise ModelError(f"the label table is not named {name}", where=label_table)
        table = contents[name] = read_bytes(label_table)
    scheme = _scheme(description.labels, table, final)
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
    _write_folder(final, contents)
    return info


def update_info(folder: Path, **changes: object) -> None:
    """Change what model.yaml says, such as fusion, quality or metrics; the networks stay."""
    updated = read_info(folder).model_copy(update=changes)
    with atomic_write(folder / MODEL_FILE) as file:
        file.write(_to_yaml(updated))


def load_model(
    name_or_folder: str | Path, views: Iterable[View | str] | str | None = None
) -> Model:
    """Read a shipped model or a model folder, or some views, and check everything that can be.

    >>> trinat.load_model("fast", views=["axial"]).info.name
    'fast'
    """
    folder = find_model(name_or_folder)
    info = read_info(folder)
    wanted = chosen_views(views) or tuple(info.architectures)
    for view in wanted:
        if view not in info.architectures:
            raise ModelError(f"has no {view.value} network", where=folder)
    table = folder / f"{info.labels}.tsv"
    if table.name in info.files:
        scheme = _scheme(info.labels, _read(folder, table.name, info), table)
    else:
        scheme = _scheme(info.labels, None, folder / MODEL_FILE)
    if _fingerprint(scheme) != info.labels_sha256:
        raise ModelError(
            f"was trained with other labels than the scheme {info.labels} has now",
            where=folder / MODEL_FILE,
            remedy="use the version of trinat named there under versions",
        )
    _check_labels(info, scheme, folder)
    networks = {}
    for view in wanted:
        path, config = folder / weights_file(view), info.architectures[view]
        networks[view] = _load_network(
            path, _read(folder, path.name, info), config, info.precision
        )
    template = None
    if info.prior is not None:
        data = _read(folder, PRIOR_FILE, info)
        template = Template.from_bytes(data, len(scheme), folder / PRIOR_FILE)
    return Model(folder, info, scheme, networks, template)


def read_info(folder: str | Path) -> ModelInfo:
    """What model.yaml says, checked by itself; quick, since no weights are read."""
    path = Path(folder) / MODEL_FILE
    if not path.is_file():
        raise ModelError(
            f"no model here ({MODEL_FILE} is missing)",
            where=folder,
            remedy="give a folder that trinat train, bundle or import-weights wrote",
        )
    if path.stat().st_size > _MAX_YAML_BYTES:
        raise ModelError("is too large to be a model's description", where=path)
    try:
        content = parse_yaml(read_bytes(path), aliases=False)
    except ValueError as error:
        raise ModelError(str(error), where=path, remedy=_COPY_AGAIN) from error
    if not isinstance(content, dict):
        raise ModelError("is not a model's description", where=path)
    if content.get("format") != FORMAT:
        raise ModelError(
            f"has model format {content.get('format')}, and this version reads {FORMAT}",
            where=path,
            remedy="update trinat",
        )
    try:
        return ModelInfo.model_validate(content)
    except ValidationError as error:
        key, message = first_mistake(error)
        raise ModelError(f"{key}: {message}" if key else message, where=path) from error


def _to_yaml(info: ModelInfo) -> bytes:
    text: str = yaml.safe_dump(
        info.model_dump(mode="json"), sort_keys=False, allow_unicode=True
    )
    return text.encode()


def _scheme(name: str, table: bytes | None, where: Path) -> LabelScheme:
    try:
        return load_scheme(name) if table is None else parse_scheme(name, table, where)
    except LabelError as error:
        raise ModelError(f"label scheme {name}: {error.what}", where=where) from error


def _fingerprint(scheme: LabelScheme) -> str:
    """SHA-256 of what the classes mean; colours may change."""
    classes = [
        [x.index, x.name, x.fs_id, x.partner, list(x.numbers)] for x in scheme.labels
    ]
    return _sha256(json.dumps(classes).encode())


def _check_labels(info: ModelInfo, scheme: LabelScheme, folder: Path) -> None:
    """The scheme has what the description names, and each network as many classes as it."""
    where = folder / MODEL_FILE
    weighed = info.prior.per_class if info.prior else {}
    if scheme.names[0] in info.not_predicted:
        raise ModelError(
            f"{scheme.names[0]} is always predicted, not_predicted names it",
            where=where,
        )
    for name in (*info.not_predicted, *info.fusion.per_class, *weighed):
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


def _to_store(network: Network, precision: Precision, where: Path) -> dict[str, Tensor]:
    tensors = {}
    for name, tensor in network.state_dict().items():
        if name.endswith(_COUNTER):
            continue
        stored = tensor.detach().cpu().to(_stored_dtype(tensor, precision)).contiguous()
        if not stored.isfinite().all():
            raise ModelError(
                f"{name} has values that {precision} cannot hold", where=where
            )
        tensors[name] = stored
    return tensors


def _stored_dtype(tensor: Tensor, precision: Precision) -> torch.dtype:
    return _DTYPES[precision] if tensor.ndim == 4 else torch.float32


def _load_network(
    path: Path, data: bytes, config: NetworkConfig, precision: Precision
) -> Network:
    try:
        # Hundreds of thousands of names would take minutes.
        if int.from_bytes(data[:8], "little") > _MAX_HEADER_BYTES:
            raise SafetensorError("its header is too large")
        tensors = safetensors.torch.load(data)
    except (SafetensorError, KeyError) as error:  # a type that torch has not
        raise ModelError(
            "is not a safetensors file", where=path, remedy=_COPY_AGAIN
        ) from error
    # No random weights are made, since they would be replaced at once.
    with torch.device("meta"):
        network = build(config)
    expected = network.state_dict()
    counters = {name: torch.tensor(0) for name in expected if name.endswith(_COUNTER)}
    names = expected.keys() - counters.keys()
    for problem, some in (
        ("lacks", names - tensors.keys()),
        ("has", tensors.keys() - names),
    ):
        if some:
            raise ModelError(
                f"{problem} {min(some)}"
                + (" unexpectedly" if problem == "has" else ""),
                where=path,
                remedy="its architecture in model.yaml is another",
            )
    for name in sorted(names):
        tensor = tensors[name]
        if tensor.shape != expected[name].shape:
            raise ModelError(
                f"{name} has shape {tuple(tensor.shape)} in place of {tuple(expected[name].shape)}",
                where=path,
                remedy="its architecture in model.yaml is another",
            )
        if tensor.dtype != _stored_dtype(tensor, precision):
            raise ModelError(
                f"{name} is stored as {tensor.dtype}, not {precision}", where=path
            )
        if not tensor.isfinite().all():
            raise ModelError(f"{name} has values that are not finite", where=path)
        tensors[name] = tensor.float()
    network.load_state_dict({**tensors, **counters}, assign=True)
    network.arrange(torch.channels_last)
    return network.eval().requires_grad_(False)


def _read(folder: Path, name: str, info: ModelInfo) -> bytes:
    """A file's bytes, the very ones whose hash was checked."""
    path = folder / name
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ModelError("is too large for a model's file", where=path)
        data = read_bytes(path)
    except FileNotFoundError as error:
        raise ModelError("is missing", where=path, remedy=_COPY_AGAIN) from error
    if _sha256(data) != info.files[name]:
        raise ModelError(
            "is not the file that was saved", where=path, remedy=_COPY_AGAIN
        )
    return data


def _write_folder(final: Path, contents: Mapping[str, bytes]) -> None:
    """Write beside, then rename; a killed process may leave a `.trinat-*.tmp` folder."""
    new, old = (final.parent / f".trinat-{secrets.token_hex(8)}.tmp" for _ in range(2))
    try:
        new.mkdir(parents=True)
        try:
            for name, data in contents.items():
                with (new / name).open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            if final.exists():
                final.replace(old)
            try:
                new.replace(final)
            except OSError:
                if old.exists():
                    old.replace(final)
                raise
        finally:
            for left in (new, old):
                shutil.rmtree(left, ignore_errors=True)
    except OSError as error:
        raise not_written(final, error) from error


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
