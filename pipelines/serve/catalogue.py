"""What a model folder says of its labels and metrics, read without torch.

The models themselves are loaded by the workers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trinat.segmentation.io.files import read_bytes
from trinat.segmentation.io.plain_yaml import parse_yaml
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme, parse_scheme
from trinat.segmentation.models.zoo import MODEL_FILE, shipped_models


def read_scheme(model: Path) -> LabelScheme:
    """The label scheme of a model folder: its own table, or the shipped one that it names."""
    name = _read_model_file(model)["labels"]
    table = model / f"{name}.tsv"
    if table.is_file():
        return parse_scheme(name, read_bytes(table), table)
    return load_scheme(name)


def describe_models(in_use: str) -> list[dict[str, Any]]:
    """The shipped models; `in_use` is the name or folder of the one at work."""
    descriptions = []
    for name, folder in shipped_models().items():
        info = _read_model_file(folder)
        descriptions.append(
            {
                "name": name,
                "in_use": name == in_use,
                "labels": info["labels"],
                "metrics": info.get("metrics"),
            }
        )
    return descriptions


def describe_labels(scheme: LabelScheme) -> list[dict[str, Any]]:
    """Each label of a scheme, background first."""
    return [
        {
            "number": label.fs_id,
            "name": label.name,
            "abbreviation": label.abbreviation,
            "color": label.color,
        }
        for label in scheme.labels
    ]


def _read_model_file(folder: Path) -> Any:
    return parse_yaml(read_bytes(folder / MODEL_FILE), aliases=False)
