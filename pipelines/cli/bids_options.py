"""Options and arguments of trinat-bids, with the names that BIDS Apps share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trinat.pipelines.cli.options import show_version

BidsDir = Annotated[Path, typer.Argument(help="BIDS dataset.")]
OutputDir = Annotated[Path, typer.Argument(help="Folder for the derivatives.")]
Level = Annotated[
    str, typer.Argument(help="participant: segment; group: write tables of all.")
]
ParticipantLabel = Annotated[
    list[str] | None,
    typer.Option(
        "--participant_label",
        "--participant-label",
        help="Participants to process, such as 01 or sub-01. Jobs of different participants may "
        "share OUTPUT_DIR.",
    ),
]
SessionLabel = Annotated[
    list[str] | None,
    typer.Option(
        "--session_label",
        "--session-label",
        help="Sessions to process, such as a or ses-a. Default: all.",
    ),
]
Device = Annotated[
    str, typer.Option(envvar="TRINAT_DEVICE", help="auto, cpu, cuda or cuda:0,1.")
]
NCpus = Annotated[
    int | None,
    typer.Option(
        "--n_cpus",
        "--n-cpus",
        min=1,
        envvar="TRINAT_THREADS",
        help="Number of CPU threads.",
    ),
]
Version = Annotated[
    bool,
    typer.Option(
        "--version",
        "-v",
        callback=show_version,
        is_eager=True,
        help="Print the version.",
    ),
]
SkipBidsValidation = Annotated[
    bool,
    typer.Option(
        "--skip_bids_validation", "--skip-bids-validation", help="Accepted and ignored."
    ),
]
