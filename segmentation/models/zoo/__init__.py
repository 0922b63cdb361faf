"""Models that come with the software: one folder each, found by name."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinat.segmentation.errors import ModelError, TrinatError
from trinat.segmentation.io.files import read_bytes
from trinat.segmentation.io.plain_yaml import parse_yaml
from trinat.segmentation.labels import DEFAULT_SCHEME

if TYPE_CHECKING:
    from trinat.segmentation.labels.scheme import LabelScheme

# Defined here and not in checkpoint.py, so that finding a model does not import torch.
MODEL_FILE = "model.yaml"
# Subfolder of a model with the model that divides its cortex into parcels.
PARCELS_FOLDER = "parcels"
# File in a model's folder with the network that segments lesions of white matter.
LESIONS_FILE = "lesions.safetensors"
# File in a model's folder on how its weights were trained, and on which subjects.
PROVENANCE_FILE = "provenance.json"
# Remedy for a damaged file of a model.
COPY_AGAIN = "copy or download the model again"
_MAX_BYTES = 1 << 20  # maximum size of a model.yaml

# Licence of trinat itself; no notice is shown for weights with this licence.
OWN_LICENCE = "Apache-2.0"

# Names of models without weights, and what exists of them.
NOT_YET = {
    "quicknat": "the published architecture, as a recipe (trinat train quicknat) and an importer "
    "of its authors' weights (trinat import-weights)"
}


def shipped_models() -> dict[str, Path]:
    """Return the folders of the models that come with trinat, by name."""
    here = Path(__file__).parent
    folders = [path.parent for path in sorted(here.glob(f"*/{MODEL_FILE}"))]
    return {folder.name: folder for folder in folders}


def default_model(devices: Iterable[str] = ("auto",)) -> str:
    """Return the default model: quicknat if it exists and all devices are GPUs, else fast."""
    if "quicknat" in shipped_models() and all(_is_gpu(device) for device in devices):
        return "quicknat"
    return "fast"


def _is_gpu(device: str) -> bool:
    """Return True if a device, by its name, is a GPU; "auto" is one if the machine has any."""
    if device != "auto":
        return device.startswith("cuda")
    import torch

    return torch.cuda.is_available()


def find_model(name_or_folder: str | Path) -> Path:
    """Return the folder of a shipped model by its name, or a user's folder that has a model.

    Raises ModelError if it is neither. For a name in NOT_YET, the message says what exists of the
    model. The weights are not read here.
    """
    if not isinstance(name_or_folder, str | os.PathLike):
        kind = type(name_or_folder).__name__
        raise TypeError(
            f"cannot use {kind} as a model: give a model's name or its folder"
        )
    shipped = shipped_models()
    # A shipped name takes precedence over a folder of that name, so that it means the same in every
    # working directory.
    name = str(name_or_folder)
    if name in shipped:
        return shipped[name]
    folder = Path(name_or_folder)
    if (folder / MODEL_FILE).is_file():
        return folder
    known = ", ".join(shipped) or "none"
    remedy = f"shipped: {known}; or give a folder with {MODEL_FILE}"
    if name in NOT_YET:
        raise ModelError(
            f"{name} has no weights here: it is {NOT_YET[name]}", remedy=remedy
        )
    raise ModelError("no such model", where=folder, remedy=remedy)


def parcels_folder_of(folder: Path) -> Path | None:
    """Return the folder of the parcels model in a model's folder, or None if there is none."""
    of_parcels = folder / PARCELS_FOLDER
    return of_parcels if (of_parcels / MODEL_FILE).is_file() else None


def find_parcels_folder(folder: Path) -> Path:
    """Return the folder of the parcels model in a model's folder; raise ModelError without one."""
    of_parcels = parcels_folder_of(folder)
    if of_parcels is None:
        raise ModelError(
            "has no networks for parcels of the cortex",
            where=folder,
            remedy=f"train them into its folder {PARCELS_FOLDER} (docs/parcels.md), "
            "or segment without parcels",
        )
    return of_parcels


def find_lesions_file(folder: Path) -> Path:
    """Return the file of the lesion network in a model's folder.

    Raises ModelError if the model has none.
    """
    path = folder / LESIONS_FILE
    if not path.is_file():
        raise ModelError(
            "has no network for lesions of white matter",
            where=folder,
            remedy="take the model `any`, or make one with `trinat learn --lesions`",
        )
    return path


def read_model_file(folder: Path) -> dict[str, Any]:
    """Return the contents of a model's model.yaml without validating them.

    Raises ModelError if the file is missing, too large or no mapping in YAML.
    """
    path = folder / MODEL_FILE
    if not path.is_file():
        raise ModelError(
            f"no model here ({MODEL_FILE} is missing)",
            where=folder,
            remedy="give a folder that trinat train, bundle or import-weights wrote",
        )
    if path.stat().st_size > _MAX_BYTES:
        raise ModelError("is too large to be a model's description", where=path)
    try:
        content = parse_yaml(read_bytes(path), aliases=False)
    except ValueError as error:
        raise ModelError(str(error), where=path, remedy=COPY_AGAIN) from error
    if not isinstance(content, dict):
        raise ModelError("is not a model's description", where=path)
    return content


def read_scheme(folder: Path) -> LabelScheme:
    """Return the label scheme of a model folder: its own table or a shipped scheme.

    torch is not imported, and the scheme is not compared with the scheme of the model's training,
    as `load_model` does.
    """
    # Imported here so that finding a model does not import numpy and scipy.
    from trinat.segmentation.labels.scheme import load_scheme, parse_scheme

    name = read_model_file(folder).get("labels", DEFAULT_SCHEME)
    if not isinstance(name, str):
        raise ModelError(
            f"labels is {name!r}, not the name of a scheme", where=folder / MODEL_FILE
        )
    table = folder / f"{name}.tsv"
    if table.is_file():
        return parse_scheme(name, read_bytes(table), table)
    return load_scheme(name)


def licence_of(folder: Path) -> str:
    """Return the licence of a model's weights; "" if its model.yaml has none or cannot be read.

    Errors in a model are reported when it is loaded.
    """
    training = _read_metadata(folder).get("training")
    licence = training.get("licence") if isinstance(training, dict) else None
    return licence if isinstance(licence, str) else ""


def is_for_any_contrast(folder: Path) -> bool:
    """Return True if model.yaml says that a model is for scans of any contrast, not T1 only."""
    return _read_metadata(folder).get("contrast") == "any"


def stripper_of(folder: Path) -> Path | None:
    """Return the folder of the model that strips whole heads for the model in `folder`, or None."""
    name = _read_metadata(folder).get("stripped_by")
    return None if name is None else find_stripper(str(name), folder)


def find_stripper(name: str, folder: Path) -> Path:
    """Return the folder of the shipped model `name`, which strips heads for the model in `folder`.

    Raises ModelError, with the folder, if there is no such shipped model.
    """
    shipped = shipped_models()
    if name not in shipped:
        raise ModelError(
            f"is stripped_by {name}, which does not come with trinat",
            where=folder / MODEL_FILE,
            remedy=f"name one of {', '.join(shipped)}, or leave it out",
        )
    return shipped[name]


def _read_metadata(folder: Path) -> dict[str, Any]:
    """Return the contents of a model's model.yaml without validating them.

    They are {} if the file cannot be read.
    """
    try:
        return read_model_file(folder)
    except (TrinatError, OSError):
        return {}


def licence_notice(folder: Path) -> str:
    """Return a line about the licence of a model's weights.

    It is "" if the licence is unknown or trinat's own.
    """
    licence = licence_of(folder)
    if licence in ("", OWN_LICENCE):
        return ""
    return f"the weights of {folder.name} are licensed under {licence}"


@cache
def warn_of_licence(folder: Path) -> None:
    """Issue a Python warning, once per model, if its licence is not trinat's own.

    The commands print the line instead.
    """
    notice = licence_notice(folder)
    if notice:
        warnings.warn(notice, stacklevel=3)
