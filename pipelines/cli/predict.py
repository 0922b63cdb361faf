"""trinat predict: segment scans."""

from __future__ import annotations

import sys
from pathlib import Path

import typer


def command(
    inputs: list[str] = typer.Argument(
        help="Scans, folders, globs, lists (.txt), a BIDS dataset or a SUBJECTS_DIR."
    ),
    out: Path = typer.Option(..., "--out", "-o", help="Folder for everything that is written."),
    model: str = typer.Option(
        "",
        help="A shipped model (trinat models) or a model's folder; "
        "default: quicknat on GPUs once it is shipped, else fast.",
    ),
    device: str = typer.Option(
        "auto", help="auto, cpu, cuda, or several: cuda:0,cuda:1 or cuda:0,1."
    ),
    workers: int = typer.Option(1, min=1, help="Processes, each with a model of its own."),
    threads: int | None = typer.Option(None, min=1, help="Threads a process."),
    batch: int | None = typer.Option(None, min=1, help="Slices at a time."),
    precision: str = typer.Option("auto", help="auto, float32 or bfloat16."),
    views: str = typer.Option("", help="Some of coronal,axial,sagittal; default: all."),
    mirror: bool = typer.Option(False, "--mirror", help="Average with the mirrored scan."),
    uncertainty: int = typer.Option(0, min=0, help="Dropout samples to draw."),
    clean: bool = typer.Option(False, "--clean", help="Largest piece a structure, no holes."),
    format_: str = typer.Option(
        "aseg", "--format", help="aseg: FreeSurfer's numbers; index: 0..K."
    ),
    mgz: bool = typer.Option(False, "--mgz", help="Write .mgz for .mgz."),
    stats: bool = typer.Option(False, "--stats", help="Write aseg.stats for each scan."),
    pictures: bool = typer.Option(True, help="Write a picture of each scan's labels."),
    entropy: bool = typer.Option(False, "--entropy", help="Write entropy maps."),
    probabilities: bool = typer.Option(False, "--probabilities", help="Write probabilities."),
    fill_nonfinite: bool = typer.Option(False, "--fill-nonfinite", help="NaN and infinite are 0."),
    trust_affine: str | None = typer.Option(None, help="sform, qform or header where they differ."),
    require_checksum: bool = typer.Option(
        False, "--require-checksum", help="Refuse scans in formats without one (.nii, .mgh, .hdr)."
    ),
    timeout: float | None = typer.Option(None, min=0.001, help="Seconds for one scan."),
    allow_cpu: bool = typer.Option(False, "--allow-cpu", help="If GPU memory does not do."),
    shard: str | None = typer.Option(None, help="Part K/N; by itself in a SLURM job array."),
    cluster: str | None = typer.Option(
        None, help="local:2, tcp://host:8786, or slurm, pbs, sge, lsf (extra: cluster)."
    ),
    cluster_config: Path | None = typer.Option(None, help="YAML: jobs, cores, memory, walltime."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="One line at the end; fit for logs."),
    json_: bool = typer.Option(False, "--json", help="A line of JSON for each scan."),
) -> int:
    """Segment scans: labels in each scan's own space, volumes, quality; run again to resume.

    Example: trinat predict scans/ --out labels/
    """
    from pipelines.cli.choices import engine_on, output_settings, split_devices
    from pipelines.predict.progress import listener
    from pipelines.predict.run import Plan, Shard, predict
    from segmentation.models.zoo import default_model

    devices = split_devices(device)
    plan = Plan(
        inputs=inputs,
        out=out,
        model=model or default_model(devices),
        output=output_settings(
            views=views,
            precision=precision,
            format_=format_,
            trust_affine=trust_affine,
            mirror=mirror,
            samples=uncertainty,
            clean=clean,
            mgz=mgz,
            stats=stats,
            picture=pictures,
            entropy=entropy,
            probabilities=probabilities,
            fill_nonfinite=fill_nonfinite,
        ),
        devices=devices,
        workers=workers,
        threads=threads,
        batch=batch,
        allow_cpu=allow_cpu,
        timeout_s=timeout,
        require_checksum=require_checksum,
        shard=Shard.parse(shard) if shard else Shard.of_slurm(),
        engine=engine_on(
            cluster, cluster_config, devices=devices, workers=workers, timeout_s=timeout
        )
        if cluster
        else None,
    )
    with listener(quiet=quiet, as_json=json_, interactive=sys.stderr.isatty()) as (
        start,
        entry,
        end,
    ):
        outcome = predict(plan, start, entry)
        end(outcome, out)
    return outcome.exit
