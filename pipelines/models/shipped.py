"""trinat models: the shipped models with what their descriptions say of them."""

from __future__ import annotations

import json
import sys
from typing import Any

from pipelines.common.exits import Exit
from segmentation.models.checkpoint import read_info
from segmentation.models.zoo import NOT_YET, shipped_models

__all__ = ["describe_all", "run"]


def describe_all() -> list[dict[str, Any]]:
    """Name, views, labels, size in MB and metrics of each model, read from its model.yaml."""
    found = []
    for name, folder in shipped_models().items():
        info = read_info(folder)
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        found.append(
            {
                "name": name,
                "views": [view.value for view in info.architectures],
                "labels": info.labels,
                "megabytes": round(size / 1e6, 1),
                "metrics": dict(info.metrics),
            }
        )
    return found


def run(*, as_json: bool) -> Exit:
    models = describe_all()
    missing = {name: why for name, why in NOT_YET.items() if name not in shipped_models()}
    if as_json:
        content = {"available": models, "not_yet": missing}
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
        return Exit.OK
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for header in ("name", "views", "labels", "MB", "measured"):
        table.add_column(header, overflow="fold")
    for model in models:
        measured = ", ".join(f"{key} {_short(value)}" for key, value in model["metrics"].items())
        table.add_row(
            model["name"],
            " ".join(model["views"]),
            model["labels"],
            f"{model['megabytes']:.1f}",
            measured,
        )
    console = Console()
    console.print(table if models else "No model is shipped with this version.")
    for name, why in missing.items():
        console.print(f"{name} is not available yet: {why}.", markup=False)
    return Exit.OK


def _short(value: Any) -> str:
    """A metric on one line; those made of parts are for --json."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return "(see --json)" if isinstance(value, dict | list) else str(value)
