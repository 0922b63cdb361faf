"""trinat models, bundle, calibrate, export, fuse-weights and import-weights: model folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import typer

from pipelines.cli.options import Device, Json, Quiet, Threads, TrustAffine


def models(json_: Json = False) -> int:
    """List the shipped models: size, speed, scores, and what is not available yet.

    Example: trinat models
    """
    from pipelines.models.shipped import run

    return run(as_json=json_)


def bundle(
    sources: list[Path] = typer.Argument(help="Run folders of trinat train, or model folders."),
    out: Path = typer.Option(..., "--out", "-o", help="Model folder to write."),
    name: str = typer.Option(None, help="Name of the model. Default: name of the folder."),
    weights: str = typer.Option(
        None, help="File written by trinat fuse-weights, or: default. Default: from the sources."
    ),
    licence: str = typer.Option("", help="Licence of the weights, where a source states none."),
    prior: Path = typer.Option(
        None, help="Folder of label maps to make the model's anatomical prior from."
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace the model in --out."),
) -> int:
    """Combine views that were trained separately, and their fusion weights, into one model.

    Example: trinat bundle runs/coronal runs/axial runs/sagittal --out models/own
    """
    from pipelines.models.bundle import bundle

    info = bundle(
        sources,
        out,
        name=name,
        weights=weights,
        licence=licence,
        label_maps=prior,
        overwrite=overwrite,
    )
    typer.echo(f"{out}: {', '.join(view.value for view in info.architectures)}")
    for structure in info.not_predicted:
        untaught = [v.value for v, o in info.origins.items() if structure in o.not_predicted]
        if len(untaught) < len(info.origins):
            typer.echo(f"{structure} is not predicted: not taught to {', '.join(untaught)}")
    return 0


def calibrate(
    model: str = typer.Argument(help="Model folder."),
    scans: list[Path] = typer.Argument(
        None, help="FreeSurfer subject folders to test the limits on; they set no limits."
    ),
    picture: Path = typer.Option(None, "--picture", help="Plot all structures to this PNG file."),
    device: Device = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Find the quality limits of a model's structures on phantoms; write them to model.yaml.

    Example: trinat calibrate models/own
    """
    from pipelines.common.process import prepare_process
    from pipelines.models.calibrate import calibrate

    prepare_process(threads)
    for line in calibrate(model, scans or (), picture=picture, device=device, say=_say(quiet)):
        typer.echo(line)


def export(
    model: str = typer.Argument(help="Name of a shipped model, or a model folder."),
    out: Path = typer.Option(..., "--out", "-o", help="Output folder; one file per view."),
    format_: str = typer.Option("onnx", "--format", help="onnx"),
) -> int:
    """Write a model's networks as ONNX, and check that they give the same labels.

    Example: trinat export fast --format onnx --out fast-onnx/
    """
    from pipelines.models.export import export_model

    for path in export_model(model, out, format_=format_):
        typer.echo(path)
    return 0


def fuse_weights(
    model: str = typer.Argument(help="Model folder; with --out also a shipped model's name."),
    scans: Path = typer.Option(..., "--scans", "-i", help="T1 scans not used in training."),
    truth: Path = typer.Option(..., "--truth", help="Their true label maps."),
    out: Path = typer.Option(
        None, "--out", "-o", help="Write the weights to this file; do not change the model."
    ),
    mapping: Path = typer.Option(
        None,
        "--mapping",
        help="TSV that translates label numbers which are not FreeSurfer's. "
        "Columns: number, freesurfer.",
    ),
    trust_affine: TrustAffine = None,
    device: Device = "auto",
    threads: Threads = None,
    seed: int = typer.Option(0, min=0, help="Random seed of the sampled voxels."),
    quiet: Quiet = False,
) -> int:
    """Fit how views are fused, their weights and the kind of mean; kept only where Dice rises.

    Example: trinat fuse-weights models/own --scans t1/ --truth manual/
    """
    from pipelines.common.process import prepare_process
    from pipelines.models.fuse_weights import BEFORE, Settings, fuse_weights

    prepare_process(threads)
    settings = Settings(model, scans, truth, out, mapping, trust_affine, device, seed)
    found = fuse_weights(settings, _say(quiet))
    for line in found.lines():
        typer.echo(line)
    outcome = f"{model}: {'unchanged' if found.chosen == BEFORE else 'updated'}"
    typer.echo(outcome if out is None else out)
    return found.exit


def import_weights(
    file: Path = typer.Argument(exists=True, dir_okay=False, help="File written by torch.save."),
    view: Literal["coronal", "axial", "sagittal"] = typer.Option(
        ..., help="View that it was trained on."
    ),
    out: Path = typer.Option(..., "--out", "-o", help="Model folder to write."),
    labels: str = typer.Option("quicknat33", help="Label scheme of its classes."),
    licence: str = typer.Option("", help="Licence of the weights."),
) -> None:
    """Convert a checkpoint of the authors' PyTorch port to a model folder, without running it.

    Example: trinat import-weights coronal.pth.tar --view coronal --out models/port-coronal
    """
    from pipelines.models.import_weights import import_weights
    from segmentation.space.views import View

    info = import_weights(file, view=View(view), out=out, labels=labels, licence=licence)
    (config,) = info.architectures.values()
    typer.echo(
        f"{out}: {view}, {config.classes} classes, {config.filters} filters, "
        f"squeeze-and-excitation {config.model_dump()['excitation']}"
    )


def _say(quiet: bool) -> Callable[[str], None]:
    """Progress goes to stderr, results to stdout."""
    return (lambda line: None) if quiet else (lambda line: typer.echo(line, err=True))
