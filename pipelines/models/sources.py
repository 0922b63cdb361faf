"""What the commands that make and measure models share: where models are, and where they may go."""

from __future__ import annotations

from pathlib import Path

from segmentation.errors import ConfigError, ModelError
from segmentation.inference.segmenter import Segmenter
from segmentation.models.zoo import MODEL_FILE, find_model, shipped_models


def check_out(out: Path, overwrite: bool) -> None:
    """Nothing but a model is replaced, and that only when asked for."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / MODEL_FILE).is_file():
        raise ModelError("is there already, and is no model", where=out, remedy="choose another")
    if not overwrite:
        raise ModelError(
            "is there already", where=out, remedy="choose another name, or add --overwrite"
        )


def find_source(given: Path) -> Path:
    """The model folder of a run, or a model folder."""
    if (given / "model" / MODEL_FILE).is_file() and not (given / MODEL_FILE).is_file():
        return given / "model"
    if not given.is_dir():
        raise ModelError("no such folder", where=given, remedy="give runs or model folders")
    return given


def load_views(model: str, device: str, instead: str, *, changed: bool = True) -> Segmenter:
    """A model of several views that may be changed; `instead` says what to do where it may not."""
    folder = find_model(model)
    if changed and folder in shipped_models().values():
        raise ConfigError(f"{model} comes with the software and is not changed", remedy=instead)
    segmenter = Segmenter.load(folder, device=device)
    if len(segmenter.views) < 2:
        raise ConfigError(
            f"has the {segmenter.views[0].value} view alone, and views are compared",
            where=folder,
            remedy="join views with trinat bundle first",
        )
    return segmenter
