"""trinat predict, merge and demo: segmenting scans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from trinat.pipelines.cli import options
from trinat.pipelines.cli.fields import with_fields
from trinat.pipelines.jobs.process import prepare_process
from trinat.pipelines.predict.settings import PredictRequest
from trinat.pipelines.study.naming import T1W
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.timing import as_table, stage, time_process


@with_fields
def predict(
    request: PredictRequest,
    scans: options.OfStore,
    left_out: options.LeftOut,
    compared: options.ComparedWith,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            "-q",
            help="Print only failures and the last line.",
        ),
    ] = False,
    json_: options.Json = False,
) -> int:
    """Segment scans: label maps in each scan's own space, volumes and quality grades.

    Run the same command again to resume.

    Example: trinat predict scans/ --out labels/
    """
    clock = time_process() if request.timings else None
    with stage("start"):
        from trinat.pipelines.predict.progress import run_with_progress
        from trinat.segmentation.models.zoo import default_model

    if request.inputs and scans.store is not None:
        raise ConfigError(
            "INPUTS and --store cannot be combined", remedy="give one of them"
        )
    if not request.inputs and scans.store is None:
        raise ConfigError("INPUTS are missing", remedy="name scans, or give --store")
    if scans.folds and (scans.store is None or not request.model):
        raise ConfigError("--folds needs --store and --model", remedy="give both")
    if scans.store is not None and request.suffix != T1W:
        raise ConfigError(
            "--suffix cannot be combined with --store: it selects "
            "scans of a BIDS dataset"
        )
    if request.sessions_table is not None and not request.output.longitudinal:
        raise ConfigError(
            "--sessions has no effect without --longitudinal", remedy="give both"
        )
    if scans.store is not None and request.output.longitudinal:
        raise ConfigError(
            "--longitudinal cannot be combined with --store", remedy="give the scans"
        )
    request = replace(
        request,
        model=request.model or default_model(request.devices),
        excluded=left_out.grades(),
    )
    request = compared.apply_to(request)
    requests = [request]
    if scans.store is not None:
        from trinat.pipelines.predict.stored_scans import stored_requests
        from trinat.pipelines.train.leakage import (
            refuse_leaky_folds,
            refuse_trained_participants,
        )
        from trinat.segmentation.data.store import Store

        store = Store(scans.store)
        requests = stored_requests(request, store, scans.part, folds=scans.folds)
        if scans.folds:
            refuse_leaky_folds(store, Path(str(request.model)))
        else:
            refuse_trained_participants(store, scans.part, str(request.model))
    outcome = run_with_progress(requests, quiet=quiet, as_json=json_)
    if clock is not None:
        typer.echo(as_table(outcome.spent, clock.take()), err=True)
    has_results = outcome.done + outcome.skipped > 0
    if scans.store is not None and has_results and not quiet and not json_:
        tested = ("--folds",) if scans.folds else ("--part", scans.part)
        where = ("--store", scans.store, *tested, "--pred", request.out)
        options.say_next("evaluate", *where, "--out", "report")
    return outcome.exit


@with_fields
def merge(
    out: Annotated[
        Path, typer.Argument(help="The --out of the sharded trinat predict.")
    ],
    left_out: options.LeftOut,
    overwrite: options.Overwrite = False,
    json_: options.Json = False,
) -> int:
    """Join the ledgers of shards: summary.tsv, volumes.tsv, qc.tsv and report.html.

    Example: trinat merge labels/
    """
    from trinat.pipelines.predict.progress import say_outcome_as_json
    from trinat.pipelines.predict.run import merge

    outcome = merge(out, overwrite=overwrite, excluded=left_out.grades())
    if json_:
        say_outcome_as_json(outcome, out)
    else:
        options.say_merged(outcome, out)
    return outcome.exit


def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Output folder.", file_okay=False)
    ] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the heads.")] = 0,
    model: Annotated[
        str, typer.Option(help="Name of a shipped model, or a model folder.")
    ] = "fast",
) -> int:
    """Make three synthetic heads in unusual geometries, segment and evaluate them.

    Example: trinat demo --out demo
    """
    import time

    from trinat.pipelines.demo import run_demo

    prepare_process()
    start = time.monotonic()

    def show_step(step: str) -> None:
        typer.echo(f"{time.monotonic() - start:5.0f} s  {step}")

    status = run_demo(out, seed=seed, model=model, on_step=show_step)
    if not status:
        show_step(f"done; open {out / 'report' / 'report.html'} in a browser")
        options.say_next("predict", "YOUR_SCAN.nii.gz", "--out", "results")
    return status
