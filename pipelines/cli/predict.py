"""trinat predict, merge and demo: segmenting scans."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

from trinat.pipelines.cli import options
from trinat.pipelines.cli.choices import engine_on, split_devices, split_views
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.timing import as_table, stage, time_process


def predict(
    inputs: list[str] = typer.Argument(
        None,
        help="Scans, folders, glob patterns, lists (.txt), DICOM files or zips, a BIDS dataset "
        "or a SUBJECTS_DIR.",
    ),
    out: Path = typer.Option(..., "--out", "-o", help="Output folder."),
    model: options.Model = "",
    store: options.StoreOption = None,
    part: options.Part = "test",
    folds: options.Folds = False,
    device: str = typer.Option(
        "auto",
        envvar="TRINAT_DEVICE",
        help="auto, cpu, cuda, or several GPUs: cuda:0,cuda:1 or cuda:0,1.",
    ),
    workers: int = typer.Option(
        1, min=1, help="Number of processes; each loads the model."
    ),
    threads: options.Threads = None,
    batch: int | None = typer.Option(None, min=1, help="Number of slices per batch."),
    precision: Literal["auto", "float32", "bfloat16", "float16"] = typer.Option(
        "auto", help="Floating-point type that the networks compute in."
    ),
    views: str = typer.Option(
        "", help="Views to use, such as coronal,axial. Default: all views of the model."
    ),
    mirror: bool = typer.Option(
        False, "--mirror", help="Average with the prediction of the mirrored scan."
    ),
    uncertainty: options.Uncertainty = 0,
    clean: bool = typer.Option(
        False,
        "--clean",
        help="Keep the largest component of each structure and fill holes.",
    ),
    format_: Literal["aseg", "index"] = typer.Option(
        "aseg", "--format", help="Label numbers: aseg (FreeSurfer's) or index (0 to K)."
    ),
    mgz: bool = typer.Option(
        False, "--mgz", help="Write .mgz label maps for .mgz scans."
    ),
    stats: options.Stats = False,
    pictures: bool = typer.Option(True, help="Write a picture of each scan's labels."),
    entropy: options.Entropy = False,
    probabilities: options.Probabilities = False,
    dicom_seg: bool = typer.Option(
        False,
        "--dicom-seg",
        help="Write a DICOM SEG of each scan that was given as DICOM.",
    ),
    fill_nonfinite: options.FillNonfinite = False,
    trust_affine: options.TrustAffine = None,
    require_checksum: bool = typer.Option(
        False,
        "--require-checksum",
        help="Refuse scans in formats without a checksum (.nii, .mgh, .hdr).",
    ),
    timeout: float | None = typer.Option(
        None,
        min=0,
        help="Time limit per scan, in seconds; 0: none. Default: two hours for each pass of the "
        "networks.",
    ),
    overwrite: options.Overwrite = False,
    allow_cpu: bool = typer.Option(
        False, "--allow-cpu", help="Continue on the CPU if the GPU runs out of memory."
    ),
    shard: str | None = typer.Option(
        None,
        metavar="K/N",
        help="Process part K of N of the scans, as a task of scripts/slurm/array.sh does.",
    ),
    cluster: str | None = typer.Option(
        None, help="Dask cluster: local:2, tcp://host:8786, slurm, pbs, sge or lsf."
    ),
    cluster_config: Path | None = typer.Option(
        None, help="YAML file with the cluster's jobs, cores, memory and walltime."
    ),
    timings: options.Timings = False,
    quiet: bool = typer.Option(
        False,
        "--quiet",
        "-q",
        help="Print only failures, scans with changed results, and the last line.",
    ),
    json_: options.Json = False,
) -> int:
    """Segment scans: label maps in each scan's own space, volumes and quality grades.

    Run the same command again to resume.

    Example: trinat predict scans/ --out labels/
    """
    clock = time_process() if timings else None
    with stage("start"):
        from trinat.pipelines.predict.progress import run_with_progress
        from trinat.pipelines.predict.request import PredictRequest, Shard
        from trinat.pipelines.predict.settings import OutputSettings
        from trinat.segmentation.models.zoo import default_model

    devices = split_devices(device)
    _check_source(inputs, model, store, folds=folds)
    stored = None
    if store is not None:
        from trinat.pipelines.predict.stored_scans import StoredScans

        stored = StoredScans.find(store, part, folds=folds)
    output = OutputSettings(
        views=split_views(views),
        precision=precision,
        format=format_,
        trust_affine=trust_affine,
        mirror=mirror,
        samples=uncertainty,
        clean=clean,
        mgz=mgz,
        stats=stats,
        picture=pictures,
        entropy=entropy,
        probabilities=probabilities,
        dicom_seg=dicom_seg,
        fill_nonfinite=fill_nonfinite,
    )
    part_of_scans = Shard.parse(shard) if shard else None
    engine = None
    if cluster:
        engine = engine_on(cluster, cluster_config, devices, workers, timeout)
    request = PredictRequest(
        inputs=inputs or (),
        out=out,
        model=model or default_model(devices),
        output=output,
        devices=devices,
        workers=workers,
        threads=threads,
        batch=batch,
        allow_cpu=allow_cpu,
        timeout_s=timeout,
        require_checksum=require_checksum,
        timings=timings,
        overwrite=overwrite,
        shard=part_of_scans,
        engine=engine,
    )
    requests = [request] if stored is None else stored.requests(request)
    outcome = run_with_progress(requests, quiet=quiet, as_json=json_)
    if clock is not None:
        typer.echo(as_table(outcome.spent, clock.take()), err=True)
    has_results = outcome.done + outcome.skipped > 0
    if store is not None and has_results and not quiet and not json_:
        tested = ("--folds",) if folds else ("--part", part)
        options.say_next(
            "evaluate", "--store", store, *tested, "--pred", out, "--out", "report"
        )
    return outcome.exit


def _check_source(
    inputs: list[str] | None, model: str, store: Path | None, *, folds: bool
) -> None:
    """ConfigError unless scans are given in one of the two ways, and folds have their models."""
    if bool(inputs) == (store is not None):
        raise ConfigError(
            "what is to be segmented is one of two", remedy="give INPUTS or --store"
        )
    if folds and (store is None or not model):
        raise ConfigError("--folds needs --store and --model", remedy="give both")


def merge(
    out: Path = typer.Argument(help="The --out of the sharded trinat predict."),
    overwrite: options.Overwrite = False,
) -> int:
    """Join the ledgers of shards: summary.tsv, volumes.tsv, qc.tsv and report.html.

    Example: trinat merge labels/
    """
    from trinat.pipelines.predict.merge import merge

    outcome = merge(out, overwrite=overwrite)
    typer.echo(f"{outcome.done} done, {outcome.failed} failed: {out / 'report.html'}")
    return outcome.exit


def demo(
    out: Path = typer.Option(
        Path("demo"), "--out", "-o", help="Output folder.", file_okay=False
    ),
    seed: int = typer.Option(0, min=0, help="Random seed of the heads."),
    model: str = typer.Option(
        "fast", help="Name of a shipped model, or a model folder."
    ),
) -> int:
    """Make three synthetic heads in unusual geometries, segment and evaluate them.

    Example: trinat demo --out demo
    """
    import time

    from trinat.pipelines.common.process import prepare_process
    from trinat.pipelines.demo import run_demo

    prepare_process()
    start = time.monotonic()

    def say(step: str) -> None:
        typer.echo(f"{time.monotonic() - start:5.0f} s  {step}")

    status = run_demo(out, seed=seed, model=model, say=say)
    if not status:
        say(f"done; open {out / 'report' / 'report.html'}")
    return status
