"""trinat import-weights: a checkpoint of the authors' port becomes a model folder."""

from __future__ import annotations

from pathlib import Path

from segmentation.models.checkpoint import save_model
from segmentation.models.foreign import PORT_PREPROCESSING, read_port
from segmentation.models.model_info import Description, ModelInfo, Training
from segmentation.space.views import View

__all__ = ["import_weights"]


def import_weights(
    file: Path, *, view: View, out: Path, labels: str = "quicknat33", licence: str = ""
) -> ModelInfo:
    """Write the network in `file` as a model of one view; `trinat bundle` joins several."""
    network = read_port(file)
    description = Description(
        name=out.name,
        labels=labels,
        preprocessing=PORT_PREPROCESSING,
        training=Training(
            data="not recorded in the checkpoint", licence=licence, recipe=f"from {file.name}"
        ),
    )
    return save_model(out, description, {view: network})
