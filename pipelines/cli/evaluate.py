"""trinat evaluate and report: label maps with and without a truth, as tables and as a page."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from trinat.pipelines.cli.options import Folds, Part, Quiet, StoreOption, TrustAffine

RatingsFile = Annotated[
    Path | None,
    typer.Option(
        "--ratings",
        help="ratings.tsv of trinat view: leave out rejected scans and structures, and write "
        "raters.csv (agreement, Cohen's kappa).",
    ),
]
Jobs = Annotated[
    int | None, typer.Option(help="Number of processes. Default: one per processor.")
]


def evaluate(
    truth: Path = typer.Option(
        None, "--truth", help="True label maps: a folder or a file."
    ),
    pred: list[Path] = typer.Option(
        ..., "--pred", "-i", help="Predicted label maps; repeat it to compare models."
    ),
    out: Path = typer.Option(..., "--out", "-o", help="Output folder."),
    store: StoreOption = None,
    part: Part = "test",
    folds: Folds = False,
    model_name: list[str] = typer.Option(
        [], "--model-name", help="Display name of a model, one for each --pred."
    ),
    labels: str = typer.Option(
        "quicknat33",
        "--labels",
        help="Label scheme to compare in: a name or a TSV file.",
    ),
    mapping: Path | None = typer.Option(
        None,
        "--mapping",
        help="TSV that translates label numbers which are not FreeSurfer's. Columns: number, "
        "freesurfer, and optionally of (truth, prediction or both).",
    ),
    fold: str | None = typer.Option(
        None,
        "--fold",
        help="Numbering of the true label maps, if not FreeSurfer's: neuromorphometrics, or a TSV "
        "file with columns first, last, name, target. A store has its own numbering.",
    ),
    fold_pred: list[str] = typer.Option(
        [],
        "--fold-pred",
        help="The same for predictions, which have FreeSurfer's numbers by default: one for all, "
        "or one for each --pred (freesurfer, neuromorphometrics or a TSV file).",
    ),
    images: Path | None = typer.Option(
        None, "--images", help="T1 scans, to show the worst cases on."
    ),
    resample: bool = typer.Option(
        False,
        "--resample",
        help="Resample predictions on another grid to the truth's grid.",
    ),
    trust_affine: TrustAffine = None,
    not_predicted: list[str] = typer.Option(
        [],
        "--not-predicted",
        help="Structure that the models cannot predict, such as CSF; repeatable. "
        "For predictions made by trinat it is read from their folder.",
    ),
    ratings: RatingsFile = None,
    jobs: Jobs = None,
    show_heads: bool = typer.Option(
        False,
        "--show-heads",
        help="Show whole heads including faces, not only the brain.",
    ),
    tables_only: bool = typer.Option(
        False, "--tables-only", help="Write tables only, without figures and page."
    ),
    latex: bool = typer.Option(
        False,
        "--latex",
        help="Also write structures.tex: Dice, IoU and distances for a paper.",
    ),
    csv: bool = typer.Option(
        False, "--csv", help="Also write structures.csv: the numbers of structures.tex."
    ),
    quiet: Quiet = False,
) -> int:
    """Compare label maps with the truth: Dice, IoU, surface distances, volumes, statistics.

    Example: trinat evaluate --truth manual/ --pred out/ --out report/
    """
    from trinat.pipelines.common.progress import batch_progress
    from trinat.pipelines.evaluate.run import (
        EvaluationSettings,
        evaluate_predictions,
        named_models,
    )

    _check_truth(truth, store, fold, folds=folds)
    part_of_store = None
    if store is not None and not folds:
        part_of_store = part
    settings = EvaluationSettings(
        truth=truth if store is None else store,
        part=part_of_store,
        folds=folds,
        models=named_models(pred, model_name),
        out=out,
        labels=labels,
        mapping=mapping,
        fold=fold,
        fold_pred=tuple(fold_pred),
        images=images,
        resample=resample,
        trust_affine=trust_affine,
        jobs=jobs,
        show_heads=show_heads,
        tables_only=tables_only,
        latex=latex,
        csv=csv,
        not_predicted=tuple(not_predicted),
        ratings=ratings,
        command=_command(),
    )
    with batch_progress(quiet) as progress:
        status = evaluate_predictions(
            settings, progress=progress, say=partial(typer.echo, err=True)
        )
    if not quiet:
        result = "metrics.csv" if tables_only else "report.html"
        typer.echo(out / result)
    return status


def _check_truth(
    truth: Path | None, store: Path | None, fold: str | None, *, folds: bool
) -> None:
    """ConfigError unless there is one truth, and options that fit it."""
    from trinat.segmentation.errors import ConfigError

    if (truth is None) == (store is None):
        raise ConfigError("one of --truth and --store is needed", remedy="give either")
    if folds and store is None:
        raise ConfigError(
            "--folds without --store", remedy="name the store that was split"
        )
    if fold is not None and store is not None:
        raise ConfigError(
            "--fold with --store", remedy="leave it out: a store knows its numbers"
        )


def report(
    predictions: Path = typer.Argument(
        ..., help="Label maps: a folder, or a BIDS derivative."
    ),
    out: Path = typer.Option(
        None, "--out", "-o", help="Output folder. Default: PREDICTIONS/report."
    ),
    labels: str = typer.Option(
        "quicknat33", help="Label scheme: a name or a TSV file."
    ),
    participants: Path | None = typer.Option(
        None,
        "--participants",
        help="Table with sex, age and site: participants.tsv, or IXI's or OASIS's own.",
    ),
    reference: Path | None = typer.Option(
        None,
        "--reference",
        help="TSV of normal volumes. Columns: structure, low_mm3, high_mm3, and optionally sex, "
        "age_from, age_to.",
    ),
    images: Path | None = typer.Option(
        None, "--images", help="T1 scans, for pictures."
    ),
    trust_affine: TrustAffine = None,
    ratings: RatingsFile = None,
    jobs: Jobs = None,
    quiet: Quiet = False,
) -> int:
    """Volumes, asymmetry and outliers of a group of segmentations, without a truth.

    Example: trinat report out/ --participants participants.tsv
    """
    from trinat.pipelines.common.progress import batch_progress
    from trinat.pipelines.evaluate.cohort import CohortSettings, report_cohort

    settings = CohortSettings(
        predictions=predictions,
        out=predictions / "report" if out is None else out,
        labels=labels,
        participants=participants,
        reference=reference,
        images=images,
        trust_affine=trust_affine,
        jobs=jobs,
        ratings=ratings,
        command=_command(),
    )
    with batch_progress(quiet) as progress:
        status = report_cohort(
            settings, progress=progress, say=partial(typer.echo, err=True)
        )
    if not quiet:
        typer.echo(settings.out / "report.html")
    return status


def _command() -> str:
    """The line that was typed, for the pages that it makes."""
    return shlex.join(["trinat", *sys.argv[1:]])
