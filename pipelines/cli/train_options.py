"""Options of trinat train and runs.

Those that commands of several modules have are in `options`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# trinat train

Config = Annotated[
    str, typer.Argument(help="Recipe: a YAML file, or a shipped recipe's name (fast).")
]
View = Annotated[
    str,
    typer.Option(help="coronal, axial, sagittal, or all (all views of the recipe)."),
]
Start = Annotated[
    str | None,
    typer.Option(
        "--start", help="Model to start from: name of a shipped model, or a folder."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Override a recipe setting, such as stages.0.batch=4; repeatable."
    ),
]
TrainOut = Annotated[
    Path | None, typer.Option("--out", "-o", help="Run folder. Default: runs/NAME.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")]
Device = Annotated[
    str,
    typer.Option(
        help="auto, cpu, cuda, cuda:1, mps; cuda:0,1,2 trains a view on each at once."
    ),
]
Nproc = Annotated[
    int,
    typer.Option(
        min=1, help="Processes that share each batch: one per GPU, or one per CPU core."
    ),
]
Seconds = Annotated[
    float | None,
    typer.Option(
        min=1,
        help="Train for this wall time instead of the recipe's steps or epochs; "
        "with --resume, for the rest of the schedule.",
    ),
]

# trinat runs

Runs = Annotated[
    list[Path], typer.Argument(help="Run folders; the first is the reference.")
]
RunsOut = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Also write curves and tables to this HTML page."),
]
