"""What `trinat fuse-weights` and `fit-odds` are asked to do; their options are these fields."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from trinat.pipelines.common.option import (
    Device,
    ModelOut,
    Option,
    OverwriteModel,
    Threads,
    TrustAffine,
)

_Truth = Annotated[Path, Option("Their true label maps.")]
_Mapping = Annotated[
    Path | None,
    Option(
        "TSV that translates label numbers which are not FreeSurfer's. "
        "Columns: number, freesurfer."
    ),
]


@dataclass(frozen=True)
class FuseSettings:
    """What `trinat fuse-weights` was asked for.

    `out` is a file for the weights; without it the model itself is brought up to date. `mapping`
    translates label numbers of the truths. `seed` chooses the voxels that weights are fitted to.
    """

    model: Annotated[
        str,
        Option(
            "Model folder; with --out also a shipped model's name.", is_argument=True
        ),
    ]
    scans: Annotated[
        Path, Option("T1 scans not used in training.", names=("--scans", "-i"))
    ]
    truth: _Truth
    out: Annotated[
        Path | None,
        Option(
            "Write the weights to this file; do not change the model.",
            names=("--out", "-o"),
        ),
    ] = None
    mapping: _Mapping = None
    trust_affine: TrustAffine = None
    device: Device = "auto"
    threads: Threads = None
    seed: Annotated[int, Option("Random seed of the sampled voxels.", min=0)] = 0


@dataclass(frozen=True)
class OddsSettings:
    """What `trinat fit-odds` was asked for.

    `out` is the folder of the new model. `mapping` translates label numbers of the truths, which
    have the `numbering` of a folding table, or FreeSurfer's.
    """

    model: Annotated[
        str, Option("Model: name of a shipped model, or a folder.", is_argument=True)
    ]
    scans: Annotated[
        Path, Option("Scans not used in training.", names=("--scans", "-i"))
    ]
    truth: _Truth
    out: ModelOut
    mapping: _Mapping = None
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
