"""trinat-bids: the common command line of BIDS Apps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from trinat.pipelines.cli import options, run
from trinat.pipelines.cli.fields import Only, with_fields
from trinat.pipelines.predict.settings import PredictRequest
from trinat.segmentation.errors import ConfigError, InputError


@with_fields
def command(
    bids_dir: Annotated[Path, typer.Argument(help="BIDS dataset.")],
    output_dir: Annotated[Path, typer.Argument(help="Folder for the derivatives.")],
    level: Annotated[
        str,
        typer.Argument(help="participant: segment; group: write tables of all."),
    ],
    asked: Annotated[
        Callable[..., PredictRequest],
        Only(
            PredictRequest,
            "suffix",
            "model",
            "devices",
            "precision",
            "longitudinal",
            "strict",
            "samples",
            "stats",
            "brain_mask",
            "entropy",
            "probabilities",
            "tissues",
            "parcels",
            "thickness",
            "callosum",
            "lesions",
            "smallest_lesion_mm3",
            "fmriprep",
            "page",
            "participants_table",
            "fill_nonfinite",
            "trust_affine",
            "overwrite",
            threads=("--n_cpus", "--n-cpus"),
        ),
    ],
    compared: options.ComparedWith,
    left_out: options.LeftOut,
    participant_label: Annotated[
        list[str] | None,
        typer.Option(
            "--participant_label",
            "--participant-label",
            help="Participants to process, such as 01 or sub-01. Jobs of different participants "
            "may share OUTPUT_DIR.",
        ),
    ] = None,
    session_label: Annotated[
        list[str] | None,
        typer.Option(
            "--session_label",
            "--session-label",
            help="Sessions to process, such as a or ses-a. Default: all.",
        ),
    ] = None,
    quiet: options.Quiet = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-v",
            callback=options.show_version,
            is_eager=True,
            help="Print the version.",
        ),
    ] = False,
    skip_bids_validation: Annotated[
        bool,
        typer.Option(
            "--skip_bids_validation",
            "--skip-bids-validation",
            help="Accepted and ignored.",
        ),
    ] = False,
) -> int:
    """Segment the T1w scans (or others: --suffix) of a BIDS dataset into BIDS derivatives.

    Example: trinat-bids data/ derivatives/ participant --participant_label 01 02
    """
    from trinat.pipelines.predict.progress import run_with_progress
    from trinat.pipelines.predict.run import merge
    from trinat.pipelines.study.discovery import is_bids
    from trinat.segmentation.models.zoo import default_model

    if level not in ("participant", "group"):
        raise ConfigError(
            f"unknown analysis level {level!r}", remedy="give participant or group"
        )
    request = asked(
        inputs=[str(bids_dir)],
        out=output_dir,
        participants=participant_label or (),
        sessions=session_label or (),
        excluded=left_out.grades(),
    )
    if level == "group":
        outcome = merge(
            output_dir, overwrite=request.overwrite, excluded=request.excluded
        )
        options.say_merged(outcome, output_dir)
        return outcome.exit
    is_described = (bids_dir / "dataset_description.json").is_file()
    if not is_described or not is_bids(bids_dir):
        what = "not a BIDS dataset with a dataset_description.json"
        raise InputError(
            what, where=bids_dir, remedy="use trinat predict for other folders"
        )
    request = replace(request, model=request.model or default_model(request.devices))
    request = compared.apply_to(request)
    return run_with_progress([request], quiet=quiet).exit


def main() -> NoReturn:
    """Run the command `trinat-bids`."""
    app = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    # BIDS Apps accept `--participant_label 01 02`.
    app.command(cls=options.ListOptions, context_settings=options.HELP)(command)
    run(app)
