"""trinat-bids: the command line that BIDS Apps share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal, NoReturn

import typer

from pipelines.cli import run
from pipelines.cli.lists import ListOptions


def _say_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"trinat {version('trinat')}")
        raise typer.Exit


def command(
    bids_dir: Path = typer.Argument(help="A BIDS dataset."),
    output_dir: Path = typer.Argument(help="Folder for the derivatives."),
    level: str = typer.Argument(help="participant: segment; group: tables of all."),
    participant_label: list[str] = typer.Option(
        [],
        "--participant_label",
        "--participant-label",
        help="Some, as 01 or sub-01; jobs of some each may share OUTPUT_DIR.",
    ),
    model: str = typer.Option(
        "",
        help="A shipped model or a model's folder; "
        "default: quicknat on GPUs once it is shipped, else fast.",
    ),
    device: str = typer.Option("auto", help="auto, cpu, cuda or cuda:0,1."),
    n_cpus: int | None = typer.Option(None, "--n_cpus", "--n-cpus", min=1, help="Threads."),
    fill_nonfinite: bool = typer.Option(False, "--fill-nonfinite", help="NaN and infinite are 0."),
    trust_affine: Literal["sform", "qform", "header"] | None = typer.Option(
        None, help="What to believe where a header's two forms disagree."
    ),
    _version: bool = typer.Option(
        False, "--version", "-v", callback=_say_version, is_eager=True, help="Print the version."
    ),
    skip_bids_validation: bool = typer.Option(
        False, "--skip_bids_validation", "--skip-bids-validation", help="Taken and not needed."
    ),
) -> int:
    """Segment the T1w scans of a BIDS dataset into BIDS derivatives.

    Example: trinat-bids data/ derivatives/ participant --participant_label 01 02
    """
    from pipelines.cli.choices import split_devices
    from pipelines.predict.merge import merge
    from pipelines.predict.progress import listener
    from pipelines.predict.run import Plan, predict
    from pipelines.predict.settings import OutputSettings
    from segmentation.errors import ConfigError, InputError
    from segmentation.models.zoo import default_model

    if level not in ("participant", "group"):
        raise ConfigError(f"{level!r} is no level of analysis", remedy="participant or group")
    if level == "group":
        return merge(output_dir).exit
    if not (bids_dir / "dataset_description.json").is_file():
        raise InputError(
            "no BIDS dataset: dataset_description.json is missing",
            where=bids_dir,
            remedy="use trinat predict for other folders",
        )
    devices = split_devices(device)
    plan = Plan(
        inputs=[str(bids_dir)],
        out=output_dir,
        model=model or default_model(devices),
        output=OutputSettings(fill_nonfinite=fill_nonfinite, trust_affine=trust_affine),
        devices=devices,
        threads=n_cpus,
        participants=participant_label,
    )
    with listener(quiet=False, as_json=False, interactive=sys.stderr.isatty()) as parts:
        start, entry, end = parts
        outcome = predict(plan, start, entry)
        end(outcome, output_dir)
    return outcome.exit


def main() -> NoReturn:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    # BIDS Apps take `--participant_label 01 02`.
    app.command(cls=ListOptions)(command)
    run(app)
