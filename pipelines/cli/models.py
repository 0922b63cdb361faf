"""Model folders: trinat models, bundle, fit, export and others."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trinat.pipelines.cli import options
from trinat.pipelines.cli.fields import with_fields
from trinat.pipelines.common.exits import batch_exit
from trinat.pipelines.common.option import ModelOut, OverwriteModel
from trinat.pipelines.jobs.process import prepare_process
from trinat.pipelines.jobs.progress import log_lines
from trinat.pipelines.models.settings import FitSettings
from trinat.segmentation.errors import ConfigError, TrinatError, one_line, reason_of
from trinat.segmentation.labels import DEFAULT_SCHEME

if TYPE_CHECKING:
    from trinat.segmentation.models.model_info import ModelInfo


def models(
    show: Annotated[
        Literal["show"] | None,
        typer.Argument(help="show: print one model. By default all are listed."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Argument(help="Name of a shipped model, or a model folder, to show."),
    ] = None,
    json_: options.Json = False,
) -> int:
    """List the shipped models, or show one: its data, its licence, and how it was trained.

    Example: trinat models show runs/own/model
    """
    if show is not None:
        if model is None:
            remedy = "name one, or a folder"
            raise ConfigError("trinat models show requires a model", remedy=remedy)
        _show_model(model, json_)
        return 0
    from trinat.segmentation.models.checkpoint import read_info
    from trinat.segmentation.models.zoo import NOT_YET, shipped_models

    shipped = shipped_models()
    found = []
    broken = []
    for name, folder in shipped.items():
        try:
            found.append(_describe_as_json(name, folder, read_info(folder)))
        except (TrinatError, OSError) as error:
            # The other models remain usable.
            broken.append(reason_of(error))
    for reason in broken:
        typer.echo(f"trinat: {reason}", err=True)
    missing = {name: why for name, why in NOT_YET.items() if name not in shipped}
    if json_:
        listed = {"available": found, "not_yet": missing}
        typer.echo(json.dumps(listed, indent=2))
    else:
        _print_models(found, missing)
    return batch_exit(done=len(found), failed=len(broken))


def _show_model(name: str, json_: bool) -> None:
    """Print a model's description, and the calls that trained it; with `json_` as JSON."""
    from trinat.pipelines.train.provenance import origins, read_provenance
    from trinat.segmentation.models.checkpoint import read_info
    from trinat.segmentation.models.zoo import find_model

    folder = find_model(name)
    if json_:
        info = read_info(folder)
        found = _describe_as_json(info.name, folder, info)
        found["training"] = info.training.model_dump(mode="json")
        found["versions"] = info.versions
        found["jobs"] = read_provenance(folder)
        typer.echo(json.dumps(found, indent=2))
        return
    for line in origins(folder):
        # Model descriptions are untrusted text: escape terminal control characters.
        typer.echo(line[: len(line) - len(line.lstrip())] + one_line(line.lstrip()))


def _print_models(
    found: Sequence[Mapping[str, Any]], missing: Mapping[str, str]
) -> None:
    """Print a table of models, and a message for each model without weights.

    `found` are descriptions of models from `_describe_as_json`; `missing` maps the names of models
    without weights to the reasons.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for header in ("name", "views", "labels", "MB", "licence"):
        table.add_column(header, overflow="fold")
    for model in found:
        cells = (
            model["name"],
            " ".join(model["views"]),
            model["labels"],
            f"{model['megabytes']:.1f}",
            model["licence"],
        )
        # Model descriptions are untrusted text: no markup, and control characters are escaped.
        table.add_row(*(Text(one_line(cell)) for cell in cells))
    console = Console()
    console.print(table if found else "No model is shipped with this version.")
    for model in found:
        metrics = [f"{key} {_short(value)}" for key, value in model["metrics"].items()]
        measured = one_line(f"{model['name']}: {', '.join(metrics)}")
        console.print(Text(measured), soft_wrap=False)
    for name, why in missing.items():
        console.print(f"{name} has no weights here: it is {why}.", markup=False)


def _describe_as_json(name: str, folder: Path, info: ModelInfo) -> dict[str, Any]:
    """Return name, views, label scheme, size in MB, licence and metrics of a model as JSON values.

    `folder` is the model's folder, and `info` its metadata.
    """
    from trinat.segmentation.models.model_info import PRIOR_FILE, weights_file

    files = [weights_file(view) for view in info.architectures]
    if info.prior is not None:
        files.append(PRIOR_FILE)
    size = sum((folder / name).stat().st_size for name in files)
    return {
        "name": name,
        "views": [view.value for view in info.architectures],
        "labels": info.labels,
        "megabytes": round(size / 1e6, 1),
        "licence": info.training.licence,
        "metrics": dict(info.metrics),
    }


def _short(value: Any) -> str:
    """Return a metric as text on one line; a metric with several values is shown by --json only."""
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, dict | list):
        return "(see --json)"
    return str(value)


@with_fields
def bundle(
    sources: Annotated[
        list[Path],
        typer.Argument(help="Runs, model folders or names of shipped models."),
    ],
    out: ModelOut,
    name: Annotated[
        str | None, typer.Option(help="Name of the model. Default: name of the folder.")
    ] = None,
    default_weights: Annotated[
        bool,
        typer.Option(
            "--default-weights",
            help="Use the default view weights instead of the sources' weights.",
        ),
    ] = False,
    licence: Annotated[
        str, typer.Option(help="Licence of the weights, if a source states none.")
    ] = "",
    prior: Annotated[
        Path | None,
        typer.Option(
            help="Folder of label maps to make the model's anatomical prior from."
        ),
    ] = None,
    overwrite: OverwriteModel = False,
) -> None:
    """Combine views that were trained separately into one model.

    Example: trinat bundle runs/coronal runs/axial runs/sagittal --out models/own
    """
    from trinat.pipelines.common.models import print_licences
    from trinat.pipelines.models.bundle import bundle

    info = bundle(
        sources,
        out,
        name=name,
        default_weights=default_weights,
        licence=licence,
        label_maps=prior,
        overwrite=overwrite,
    )
    print_licences([str(out)])
    typer.echo(f"{out}: {', '.join(view.value for view in info.architectures)}")
    for structure in info.not_predicted:
        untaught = []
        for view, origin in info.origins.items():
            if structure in origin.not_predicted:
                untaught.append(view.value)
        if len(untaught) < len(info.origins):
            views = ", ".join(untaught)
            typer.echo(f"{structure} is not predicted: missing in {views}")


def export(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Name of a shipped model, or a model folder; several for web."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write to.")],
    format_: Annotated[str, typer.Option("--format", help="onnx or web.")] = "onnx",
    int8: Annotated[
        bool,
        typer.Option(
            "--int8",
            help="Quantise the ONNX networks: predict --precision int8 reads them from "
            "the folder int8 of a model folder.",
        ),
    ] = False,
) -> None:
    """Write a model as ONNX, or as a page that segments in the browser.

    Example: trinat export fast --format onnx --out fast-onnx/
    """
    from trinat.pipelines.common.models import print_licences
    from trinat.pipelines.models.other_formats import export_model

    print_licences(models)
    files = export_model(models, out, format_=format_, int8=int8)
    if format_ == "web":
        typer.echo(out)
        typer.echo(f"open it with: trinat web {shlex.quote(str(out))}", err=True)
        return
    for path in files:
        typer.echo(path)


@with_fields
def fit(settings: FitSettings, quiet: options.Quiet = False) -> int:
    """Fit a model to your own labels without training; find the limits of its grades.

    Example: trinat fit fast --scans t1/ --truth manual/ --out own
    """
    from trinat.pipelines.common.models import print_licences
    from trinat.pipelines.models.fit import fit

    prepare_process(settings.threads)
    print_licences([settings.model])
    with log_lines(quiet):
        found = fit(settings)
    for line in found.lines:
        typer.echo(line)
    if found.changed:
        typer.echo(settings.out or f"{settings.model}: updated")
    else:
        typer.echo("nothing is changed, and no model is written")
    return found.exit


@with_fields
def import_weights(
    file: Annotated[
        Path,
        typer.Argument(exists=True, dir_okay=False, help="File written by torch.save."),
    ],
    view: Annotated[
        Literal["coronal", "axial", "sagittal"],
        typer.Option(help="View that it was trained on."),
    ],
    out: ModelOut,
    labels: Annotated[
        str, typer.Option(help="Label scheme of its classes.")
    ] = DEFAULT_SCHEME,
    licence: Annotated[str, typer.Option(help="Licence of the weights.")] = "",
) -> None:
    """Convert a checkpoint of the authors' PyTorch port to a model folder, without executing it.

    Example: trinat import-weights coronal.pth.tar --view coronal --out models/port-coronal
    """
    from trinat.segmentation.models.foreign import import_port
    from trinat.segmentation.space.views import View

    info = import_port(file, view=View(view), out=out, labels=labels, licence=licence)
    (config,) = info.architectures.values()
    typer.echo(
        f"{out}: {view}, {config.classes} classes, {config.filters} filters, "
        f"squeeze-and-excitation {config.model_dump()['excitation']}"
    )


def labels(
    format_: Annotated[
        Literal["freesurfer", "itksnap", "slicer", "fsleyes"],
        typer.Option("--format", help="Program to write for."),
    ] = "freesurfer",
    scheme: Annotated[
        str, typer.Option("--labels", help="Label scheme: a name or TSV file.")
    ] = DEFAULT_SCHEME,
    index: Annotated[
        bool,
        typer.Option(
            "--index",
            help="Numbers 0 to K, as trinat predict --format index writes them.",
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write. Default: print.")
    ] = None,
) -> None:
    """Print names and colours of the labels for FreeView, ITK-SNAP, 3D Slicer or FSLeyes.

    Example: trinat labels --format itksnap --out labels.txt
    """
    from trinat.segmentation.io.files import write_whole
    from trinat.segmentation.labels.scheme import load_scheme, viewer_table

    table = viewer_table(load_scheme(scheme), format_, by_index=index)
    if out is None:
        typer.echo(table, nl=False)
    else:
        write_whole(out, table)
