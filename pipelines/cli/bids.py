"""trinat-bids: the command line that BIDS Apps share."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import typer

from trinat.pipelines.cli import bids_options, options, run
from trinat.segmentation.errors import ConfigError, InputError


def command(
    bids_dir: bids_options.BidsDir,
    output_dir: bids_options.OutputDir,
    level: bids_options.Level,
    participant_label: bids_options.ParticipantLabel = None,
    session_label: bids_options.SessionLabel = None,
    suffix: options.Suffix = "T1w",
    model: options.Model = "",
    device: bids_options.Device = "auto",
    n_cpus: bids_options.NCpus = None,
    longitudinal: options.Longitudinal = False,
    include_rejected: options.IncludeRejected = False,
    exclude: options.Exclude = None,
    uncertainty: options.Uncertainty = 0,
    stats: options.Stats = False,
    brain_mask: options.BrainMask = True,
    entropy: options.Entropy = False,
    probabilities: options.Probabilities = False,
    fill_nonfinite: options.FillNonfinite = False,
    trust_affine: options.TrustAffine = None,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
    _version: bids_options.Version = False,
    skip_bids_validation: bids_options.SkipBidsValidation = False,
) -> int:
    """Segment the T1w scans (or others: --suffix) of a BIDS dataset into BIDS derivatives.

    Example: trinat-bids data/ derivatives/ participant --participant_label 01 02
    """
    from trinat.pipelines.cli.choices import (
        check_longitudinal,
        excluded_grades,
        split_devices,
    )
    from trinat.pipelines.predict.merge import merge
    from trinat.pipelines.predict.progress import run_with_progress
    from trinat.pipelines.predict.request import PredictRequest
    from trinat.pipelines.predict.settings import OutputSettings
    from trinat.segmentation.models.zoo import default_model

    _check_level(level)
    excluded = excluded_grades(include_rejected=include_rejected, exclude=exclude)
    if level == "group":
        outcome = merge(output_dir, overwrite=overwrite, excluded=excluded)
        options.say_merged(outcome, output_dir)
        return outcome.exit
    _check_dataset(bids_dir)
    if longitudinal:
        check_longitudinal(uncertainty=uncertainty, sessions=session_label)
    devices = split_devices(device)
    output = OutputSettings(
        samples=uncertainty,
        stats=stats,
        brain_mask=brain_mask,
        entropy=entropy,
        probabilities=probabilities,
        fill_nonfinite=fill_nonfinite,
        trust_affine=trust_affine,
        longitudinal=longitudinal,
    )
    request = PredictRequest(
        inputs=[str(bids_dir)],
        out=output_dir,
        model=model or default_model(devices),
        output=output,
        devices=devices,
        threads=n_cpus,
        overwrite=overwrite,
        participants=participant_label or (),
        sessions=session_label or (),
        suffix=suffix,
        excluded=excluded,
    )
    return run_with_progress([request], quiet=quiet).exit


def _check_level(level: str) -> None:
    """ConfigError unless a word is one of the two levels of analysis."""
    if level not in ("participant", "group"):
        raise ConfigError(
            f"unknown analysis level {level!r}", remedy="give participant or group"
        )


def _check_dataset(folder: Path) -> None:
    """InputError unless a folder is the top of a BIDS dataset."""
    if not (folder / "dataset_description.json").is_file():
        what = "not a BIDS dataset: dataset_description.json is missing"
        raise InputError(
            what, where=folder, remedy="use trinat predict for other folders"
        )


def main() -> NoReturn:
    """The command `trinat-bids`."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    # BIDS Apps take `--participant_label 01 02`.
    app.command(cls=options.ListOptions, context_settings=options.HELP)(command)
    run(app)
