"""trinat-bids: the command line that BIDS Apps share."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import typer

from trinat.pipelines.cli import options, run
from trinat.pipelines.cli.options import show_version


def command(
    bids_dir: Path = typer.Argument(help="BIDS dataset."),
    output_dir: Path = typer.Argument(help="Folder for the derivatives."),
    level: str = typer.Argument(
        help="participant: segment; group: write tables of all."
    ),
    participant_label: list[str] = typer.Option(
        [],
        "--participant_label",
        "--participant-label",
        help="Participants to process, such as 01 or sub-01. Jobs of different participants may "
        "share OUTPUT_DIR.",
    ),
    session_label: list[str] = typer.Option(
        [],
        "--session_label",
        "--session-label",
        help="Sessions to process, such as a or ses-a. Default: all.",
    ),
    model: options.Model = "",
    device: str = typer.Option(
        "auto", envvar="TRINAT_DEVICE", help="auto, cpu, cuda or cuda:0,1."
    ),
    n_cpus: int | None = typer.Option(
        None,
        "--n_cpus",
        "--n-cpus",
        min=1,
        envvar="TRINAT_THREADS",
        help="Number of CPU threads.",
    ),
    uncertainty: options.Uncertainty = 0,
    stats: options.Stats = False,
    entropy: options.Entropy = False,
    probabilities: options.Probabilities = False,
    fill_nonfinite: options.FillNonfinite = False,
    trust_affine: options.TrustAffine = None,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
    _version: bool = typer.Option(
        False,
        "--version",
        "-v",
        callback=show_version,
        is_eager=True,
        help="Print the version.",
    ),
    skip_bids_validation: bool = typer.Option(
        False,
        "--skip_bids_validation",
        "--skip-bids-validation",
        help="Accepted and ignored.",
    ),
) -> int:
    """Segment the T1w scans of a BIDS dataset into BIDS derivatives.

    Example: trinat-bids data/ derivatives/ participant --participant_label 01 02
    """
    from trinat.pipelines.cli.choices import split_devices
    from trinat.pipelines.predict.merge import merge
    from trinat.pipelines.predict.progress import run_with_progress
    from trinat.pipelines.predict.request import PredictRequest
    from trinat.pipelines.predict.settings import OutputSettings
    from trinat.segmentation.errors import ConfigError, InputError
    from trinat.segmentation.models.zoo import default_model

    if level not in ("participant", "group"):
        raise ConfigError(
            f"unknown analysis level {level!r}", remedy="give participant or group"
        )
    if level == "group":
        return merge(output_dir, overwrite=overwrite).exit
    if not (bids_dir / "dataset_description.json").is_file():
        what = "not a BIDS dataset: dataset_description.json is missing"
        raise InputError(
            what, where=bids_dir, remedy="use trinat predict for other folders"
        )
    devices = split_devices(device)
    output = OutputSettings(
        samples=uncertainty,
        stats=stats,
        entropy=entropy,
        probabilities=probabilities,
        fill_nonfinite=fill_nonfinite,
        trust_affine=trust_affine,
    )
    request = PredictRequest(
        inputs=[str(bids_dir)],
        out=output_dir,
        model=model or default_model(devices),
        output=output,
        devices=devices,
        threads=n_cpus,
        overwrite=overwrite,
        participants=participant_label,
        sessions=session_label,
    )
    return run_with_progress([request], quiet=quiet).exit


def main() -> NoReturn:
    """The command `trinat-bids`."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    # BIDS Apps take `--participant_label 01 02`.
    app.command(cls=options.ListOptions, context_settings=options.HELP)(command)
    run(app)
