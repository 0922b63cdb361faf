"""trinat predict, merge and demo: segmenting scans."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from trinat.pipelines.cli import options, predict_options
from trinat.pipelines.cli.choices import (
    check_longitudinal,
    engine_on,
    excluded_grades,
    split_devices,
    split_views,
)
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.timing import as_table, stage, time_process

if TYPE_CHECKING:
    from trinat.pipelines.predict.request import PredictRequest

Part = Literal["train", "validation", "test"]


def predict(
    *,
    inputs: predict_options.Inputs = None,
    out: options.Out,
    model: options.Model = "",
    store: options.StoreOption = None,
    part: options.Part = "test",
    folds: options.Folds = False,
    device: predict_options.Device = "auto",
    workers: options.Workers = 1,
    threads: options.Threads = None,
    batch: predict_options.Batch = None,
    precision: predict_options.Precision = "auto",
    views: predict_options.Views = "",
    mirror: predict_options.Mirror = False,
    uncertainty: options.Uncertainty = 0,
    clean: predict_options.Clean = False,
    longitudinal: options.Longitudinal = False,
    persons: predict_options.Persons = None,
    strict: options.Strict = False,
    include_rejected: options.IncludeRejected = False,
    exclude: options.Exclude = None,
    suffix: options.Suffix = "T1w",
    format_: predict_options.Format = "aseg",
    mgz: predict_options.Mgz = False,
    stats: options.Stats = False,
    pictures: predict_options.Pictures = True,
    brain_mask: options.BrainMask = True,
    entropy: options.Entropy = False,
    probabilities: options.Probabilities = False,
    dicom_seg: predict_options.DicomSeg = False,
    page: predict_options.Page = False,
    reference: predict_options.Reference = None,
    fill_nonfinite: options.FillNonfinite = False,
    trust_affine: options.TrustAffine = None,
    require_checksum: predict_options.RequireChecksum = False,
    timeout: predict_options.Timeout = None,
    overwrite: options.Overwrite = False,
    allow_cpu: predict_options.AllowCpu = False,
    shard: predict_options.Shard = None,
    cluster: predict_options.Cluster = None,
    cluster_config: predict_options.ClusterConfig = None,
    timings: options.Timings = False,
    quiet: predict_options.Quiet = False,
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
    if store is not None and suffix != "T1w":
        raise ConfigError("--suffix is for a BIDS dataset, not for --store")
    model = model or default_model(devices)
    if persons is not None and not longitudinal:
        raise ConfigError("--persons is for --longitudinal", remedy="give both")
    if longitudinal:
        check_longitudinal(uncertainty=uncertainty, store=store)
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
        brain_mask=brain_mask,
        entropy=entropy,
        probabilities=probabilities,
        dicom_seg=dicom_seg,
        page=page,
        reference=_normal_ranges(reference, model, page=page),
        fill_nonfinite=fill_nonfinite,
        longitudinal=longitudinal,
    )
    engine = None
    if cluster:
        engine = engine_on(cluster, cluster_config, devices, workers, timeout)
    request = PredictRequest(
        inputs=inputs or (),
        out=out,
        model=model,
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
        persons=persons,
        strict=strict,
        excluded=excluded_grades(include_rejected=include_rejected, exclude=exclude),
        suffix=suffix,
        shard=Shard.parse(shard) if shard else None,
        engine=engine,
    )
    requests = _requests(request, store, part, folds=folds)
    outcome = run_with_progress(requests, quiet=quiet, as_json=json_)
    if clock is not None:
        typer.echo(as_table(outcome.spent, clock.take()), err=True)
    has_results = outcome.done + outcome.skipped > 0
    if store is not None and has_results and not quiet and not json_:
        _say_evaluation(store, part, out, folds=folds)
    return outcome.exit


def _check_source(
    inputs: list[str] | None,
    model: str,
    store: Path | None,
    *,
    folds: bool,
) -> None:
    """ConfigError unless scans are given in one of the two ways, and folds have their models."""
    if bool(inputs) == (store is not None):
        raise ConfigError(
            "what is to be segmented is one of two", remedy="give INPUTS or --store"
        )
    if folds and (store is None or not model):
        raise ConfigError("--folds needs --store and --model", remedy="give both")


def _normal_ranges(
    reference: Path | None, model: str, *, page: bool
) -> tuple[tuple[str, float, float], ...]:
    """The ranges of a table that hold for everyone: sex and age of a person are not known here.

    ConfigError without --page, and where the table has no such range.
    """
    if reference is None:
        return ()
    if not page:
        raise ConfigError("--reference is for pages", remedy="give --page too")
    from trinat.pipelines.evaluate.ranges import read_ranges
    from trinat.pipelines.serve.catalogue import read_scheme
    from trinat.segmentation.models.zoo import find_model

    scheme = read_scheme(find_model(model))
    found = tuple(
        (limits.structure, limits.low_mm3, limits.high_mm3)
        for limits in read_ranges(reference, scheme)
        if not limits.is_for_some
    )
    if not found:
        raise ConfigError(
            "every range is for one sex or some ages, which are not known of a scan",
            where=reference,
            remedy="give ranges without sex and age, or use trinat report",
        )
    return found


def _requests(
    request: PredictRequest,
    store: Path | None,
    part: Part,
    *,
    folds: bool,
) -> list[PredictRequest]:
    """The request itself, or with a store those of the scans of its split, one for each fold."""
    if store is None:
        return [request]
    from trinat.pipelines.predict.stored_scans import StoredScans

    return StoredScans.find(store, part, folds=folds).requests(request)


def _say_evaluation(store: Path, part: Part, out: Path, *, folds: bool) -> None:
    """Print the command that compares the results in `out` with the labels of a store."""
    tested = ("--folds",) if folds else ("--part", part)
    options.say_next(
        "evaluate", "--store", store, *tested, "--pred", out, "--out", "report"
    )


def merge(
    out: predict_options.MergeOut,
    include_rejected: options.IncludeRejected = False,
    exclude: options.Exclude = None,
    overwrite: options.Overwrite = False,
) -> int:
    """Join the ledgers of shards: summary.tsv, volumes.tsv, qc.tsv and report.html.

    Example: trinat merge labels/
    """
    from trinat.pipelines.predict.merge import merge

    excluded = excluded_grades(include_rejected=include_rejected, exclude=exclude)
    outcome = merge(out, overwrite=overwrite, excluded=excluded)
    options.say_merged(outcome, out)
    return outcome.exit


def demo(
    out: predict_options.DemoOut = Path("demo"),
    seed: predict_options.Seed = 0,
    model: predict_options.Model = "fast",
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
        say(f"done; open {out / 'report' / 'report.html'} in a browser")
        options.say_next("predict", "YOUR_SCAN.nii.gz", "--out", "results")
    return status
