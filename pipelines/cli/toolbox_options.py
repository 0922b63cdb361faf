"""Options of trinat average, explain, profile and suspects.

Those that commands of several modules have are in `options`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

# trinat average

Runs = Annotated[
    list[Path], typer.Argument(help="Runs of one recipe; after the first also models.")
]
Soup = Annotated[
    bool,
    typer.Option(
        "--soup",
        help="Keep a member only if the validation Dice does not fall with it.",
    ),
]
Batches = Annotated[
    int,
    typer.Option(
        min=1,
        help="Training batches from which the norms' statistics are computed again.",
    ),
]

# trinat explain

Scan = Annotated[Path, typer.Argument(help="T1 scan.")]
Structure = Annotated[
    str, typer.Option(help="Name, abbreviation or FreeSurfer number.")
]
View = Annotated[Literal["coronal", "axial", "sagittal"], typer.Option(help="Network.")]

# trinat profile

Name = Annotated[
    str,
    typer.Argument(
        metavar="MODEL|RECIPE", help="A model's or a recipe's name or path."
    ),
]
Steps = Annotated[
    int, typer.Option(min=1, help="Steps to measure, after one step of warm-up.")
]
Against = Annotated[
    Path | None, typer.Option(help="Folder of an earlier profile to compare with.")
]

# trinat suspects

Store = Annotated[Path, typer.Argument(help="Slice store.")]
Model = Annotated[
    str, typer.Option(help="Model to compare the labels with: a name or a folder.")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Output folder. Default: STORE/suspects."),
]
Every = Annotated[int, typer.Option(min=1, help="Check every n-th slice.")]
Limit = Annotated[
    float, typer.Option(min=0, help="Score above which a subject is excluded.")
]
