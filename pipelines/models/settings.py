"""Settings of `trinat fit`; the options of the command are made from these fields."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from trinat.pipelines.common.option import (
    Device,
    Option,
    OverwriteModel,
    Threads,
    TrustAffine,
)

Step = Literal["weights", "odds", "limits"]


@dataclass(frozen=True)
class FitSettings:
    """Settings of `trinat fit`.

    `out` is the folder of the new model; without it the model itself is changed. `only` is the
    single step to do; None for all. `numbering` is the name or the file of the table that converts
    the label numbers of the true label maps to FreeSurfer's; None if they are FreeSurfer's already.
    """

    model: Annotated[
        str,
        Option(
            "Model folder; with --out also a shipped model's name.", is_argument=True
        ),
    ]
    scans: Annotated[
        Path | None, Option("Scans not used in training.", names=("--scans", "-i"))
    ] = None
    truth: Annotated[Path | None, Option("Their true label maps.")] = None
    out: Annotated[
        Path | None,
        Option(
            "Write a new model to this folder; do not change the old one.",
            names=("--out", "-o"),
        ),
    ] = None
    only: Annotated[
        Step | None,
        Option(
            "Fit only this: weights of the views, odds of structures, or limits of the grade."
        ),
    ] = None
    numbering: Annotated[
        str | None,
        Option(
            "Numbering of the true label maps, if not FreeSurfer's: neuromorphometrics, or a "
            "TSV file with columns first, last, name, target."
        ),
    ] = None
    trust_affine: TrustAffine = None
    device: Device = "auto"
    threads: Threads = None
    overwrite: OverwriteModel = False
