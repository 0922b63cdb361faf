"""trinat predict, merge and demo: segmenting scans."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from trinat.pipelines.cli import options
from trinat.pipelines.common.naming import FOLD
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.timing import as_table, stage, time_process

if TYPE_CHECKING:
    from trinat.pipelines.common.cases import Found
    from trinat.pipelines.predict.run import EngineMaker, Outcome

_DEVICE = re.compile(r"auto|cpu|mps|cuda(:[0-9]+)?")
_VIEWS = ("coronal", "axial", "sagittal")


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
        False, "--quiet", "-q", help="Print one summary line only."
    ),
    json_: options.Json = False,
) -> int:
    """Segment scans: label maps in each scan's own space, volumes and quality grades.

    Run the same command again to resume.

    Example: trinat predict scans/ --out labels/
    """
    clock = time_process() if timings else None
    with stage("start"):
        from trinat.pipelines.predict.outputs import OutputSettings
        from trinat.pipelines.predict.progress import listener
        from trinat.pipelines.predict.run import Plan, Shard, predict
        from trinat.segmentation.models.zoo import default_model

    devices = split_devices(device)
    # What is found, by its folder below --out (and with --folds below --model).
    runs: dict[str, Found | None] = {"": None}
    if bool(inputs) == (store is not None):
        raise ConfigError(
            "what is to be segmented is one of two", remedy="give INPUTS or --store"
        )
    if folds and (store is None or not model):
        raise ConfigError("--folds needs --store and --model", remedy="give both")
    if store is not None:
        from trinat.pipelines.common.stored import stored_cases
        from trinat.segmentation.data.store import Store

        opened = Store(store)
        if folds:
            tested = {
                FOLD.format(n): opened.part("test", s)
                for n, s in enumerate(opened.folds)
            }
        else:
            tested = {"": opened.part(part)}
        runs = {place: stored_cases(opened, names) for place, names in tested.items()}
        trust_affine = trust_affine or opened.info.trust_affine
        fill_nonfinite = fill_nonfinite or opened.info.fill_nonfinite
    plan = Plan(
        inputs=inputs or (),
        out=out,
        model=model or default_model(devices),
        output=OutputSettings(
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
        ),
        devices=devices,
        workers=workers,
        threads=threads,
        batch=batch,
        allow_cpu=allow_cpu,
        timeout_s=timeout,
        require_checksum=require_checksum,
        timings=timings,
        overwrite=overwrite,
        shard=Shard.parse(shard) if shard else None,
        engine=engine_on(cluster, cluster_config, devices, workers, timeout)
        if cluster
        else None,
    )
    outcomes: list[Outcome] = []
    for place, found in runs.items():
        plan = replace(plan, found=found, out=out / place)
        if folds:
            plan = replace(plan, model=f"{model}/{place}/model")
        with listener(
            quiet=quiet, as_json=json_, interactive=sys.stderr.isatty()
        ) as parts:
            start, entry, end = parts
            outcomes.append(predict(plan, start, entry))
            end(outcomes[-1], plan.out)
        if outcomes[-1].interrupted:
            break
    if clock:
        typer.echo(
            as_table(*(outcome.spent for outcome in outcomes), clock.take()), err=True
        )
    whole = replace(
        outcomes[-1],
        done=sum(outcome.done for outcome in outcomes),
        skipped=sum(outcome.skipped for outcome in outcomes),
        failed=sum(outcome.failed for outcome in outcomes),
    )
    if store is not None and whole.done + whole.skipped and not (quiet or json_):
        which = ["--folds"] if folds else ["--part", part]
        options.say_next(
            "evaluate", "--store", store, *which, "--pred", out, "--out", "report"
        )
    return whole.exit


def merge(
    out: Path = typer.Argument(help="The --out of the sharded trinat predict."),
    overwrite: options.Overwrite = False,
) -> int:
    """Join the ledgers of shards: summary.tsv, volumes.tsv, qc.tsv and report.html.

    Example: trinat merge labels/
    """
    from trinat.pipelines.predict.run import merge

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


def split_views(text: str) -> tuple[str, ...]:
    """The views of "axial, coronal", in the order in which they are computed."""
    chosen = [word.strip() for word in text.split(",") if word.strip()]
    for view in chosen:
        if view not in _VIEWS:
            what = f"--views {text}: unknown view {view!r}"
            raise ConfigError(what, remedy=f"choose from {', '.join(_VIEWS)}")
    return tuple(view for view in _VIEWS if view in chosen)


def split_devices(text: str) -> tuple[str, ...]:
    """ "cuda:0,1" is cuda:0 and cuda:1."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ConfigError("--device is empty", remedy="give auto, cpu or cuda:0")
    kind = words[0].partition(":")[0]
    names = [f"{kind}:{word}" if word.isdecimal() else word for word in words]
    for name in names:
        if not _DEVICE.fullmatch(name):
            what = f"--device {text}: unknown device {name}"
            raise ConfigError(what, remedy="give auto, cpu, cuda or cuda:0,1")
    return tuple(names)


def engine_on(
    cluster: str,
    config: Path | None,
    devices: tuple[str, ...] = ("auto",),
    workers: int = 1,
    timeout_s: float | None = None,
) -> EngineMaker:
    """Makes the engine of a run on a cluster; options that the cluster decides are refused."""
    from trinat.pipelines.predict.cluster import DaskEngine, is_cluster

    if not is_cluster(cluster):
        remedy = "give local:2, tcp://host:8786, slurm, pbs, sge or lsf"
        raise ConfigError(f"--cluster {cluster}: unknown cluster", remedy=remedy)
    if len(devices) > 1:
        what = f"--device {','.join(devices)} with --cluster: a worker has one device"
        raise ConfigError(
            what, remedy="give one, as cuda, and start a worker for each GPU"
        )
    if workers > 1:
        what = f"--workers {workers} with --cluster: the cluster sets the number of workers"
        raise ConfigError(what, remedy=f"remove it, or give --cluster local:{workers}")
    if timeout_s is not None:
        what = "--timeout with --cluster: a scan on another machine cannot be stopped from here"
        remedy = "remove it; the walltime in --cluster-config ends a job that hangs"
        raise ConfigError(what, remedy=remedy)
    if importlib.util.find_spec("distributed") is None:
        raise ConfigError(
            "--cluster needs more packages", remedy="pip install 'trinat[cluster]'"
        )
    return lambda settings: DaskEngine(settings, cluster, config, device=devices[0])
