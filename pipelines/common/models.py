"""Paths of models for the commands that read or write them, and licence notices."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from trinat.pipelines.common.config import check
from trinat.segmentation.errors import ModelError, one_line
from trinat.segmentation.models.zoo import (
    MODEL_FILE,
    find_model,
    licence_notice,
    shipped_models,
)

if TYPE_CHECKING:
    from trinat.segmentation.models.checkpoint import Model
    from trinat.segmentation.models.model_info import Description


def check_out(out: Path, overwrite: bool) -> None:
    """Raise ModelError if a model must not be written to a folder.

    A missing or empty folder is always accepted. Only a model is replaced, and only with
    `overwrite`.
    """
    if not out.exists():
        return
    if out.is_dir() and not any(out.iterdir()):
        return
    if not (out / MODEL_FILE).is_file():
        raise ModelError(
            "exists already and is not a model", where=out, remedy="choose another"
        )
    if not overwrite:
        raise ModelError(
            "exists already",
            where=out,
            remedy="choose another name, or add --overwrite",
        )


def find_source(given: Path) -> Path:
    """Return the model folder for a shipped model's name, a training run or a model folder.

    Any other existing folder is returned unchanged. Raises ModelError if there is no such folder.
    """
    shipped = shipped_models().get(str(given))
    if shipped is not None:
        return shipped
    is_model = (given / MODEL_FILE).is_file()
    model_of_run = given / "model"
    if not is_model and (model_of_run / MODEL_FILE).is_file():
        return model_of_run
    if not given.is_dir():
        raise ModelError(
            "no such model",
            where=given,
            remedy="give runs, model folders or names of shipped models",
        )
    return given


def description_of(model: Model, out: Path) -> Description:
    """Return the metadata of a model, with the name of the folder `out` as the model's name.

    Raises ConfigError if this is not a valid name for a model.
    """
    from trinat.segmentation.models.model_info import Description

    content = {field: getattr(model.info, field) for field in Description.model_fields}
    content["name"] = out.resolve().name
    return check(Description, content, out)


def save_copy(
    model: Model,
    out: Path,
    *,
    beside: Model | None = None,
    lesions: bytes | None = None,
    overwrite: bool = False,
    **changed: object,
) -> None:
    """Save a model in the folder `out`, under the folder's name, with changed metadata.

    `changed` are fields of its `Description`. The networks for parcels and for lesions are those of
    the model `beside`, by default its own; `lesions` is the file of another network for lesions.
    `overwrite` replaces the whole folder; without it a folder that contains anything is refused.
    """
    from trinat.segmentation.models.checkpoint import save_model

    if beside is None:
        beside = model
    save_model(
        out,
        description_of(model, out).model_copy(update=changed),
        model.networks,
        label_table=model.label_table,
        template=model.template,
        parcels=beside.parcels,
        lesions=beside.lesions if lesions is None else lesions,
        provenance=model.provenance,
        precision=model.info.precision,
        overwrite=overwrite,
    )


def print_licences(models: Iterable[str]) -> None:
    """Print to stderr the licence of each model that differs from trinat's, each licence once.

    `models` are names or folders. It is printed even with --quiet.
    """
    notices = [licence_notice(find_model(model)) for model in models]
    for notice in dict.fromkeys(notices):
        if notice:
            sys.stderr.write(f"trinat: {one_line(notice)}\n")
