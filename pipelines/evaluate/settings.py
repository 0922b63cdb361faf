"""Settings of `trinat evaluate` and `trinat report`; their options are these fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, cast, get_args

from trinat.pipelines.common.option import Option, Strict, TrustAffine, as_tuple
from trinat.pipelines.study.participants import COVARIATES
from trinat.pipelines.study.record import EXCLUDED_GRADES
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.labels import DEFAULT_SCHEME, Csf


def _meanings_of_csf(typed: Iterable[str] | None) -> tuple[Csf, ...]:
    """Return the values of --csf-pred; raise ConfigError for an unknown definition of CSF."""
    meanings = []
    for word in as_tuple(typed):
        # Typer cannot check a list of choices given as a Literal.
        if word not in get_args(Csf):
            raise ConfigError(
                f"--csf-pred {word}: unknown definition of CSF",
                remedy=f"give {' or '.join(get_args(Csf))}",
            )
        meanings.append(cast(Csf, word))
    return tuple(meanings)


def _covariates(typed: str | None) -> tuple[str, ...] | None:
    """Return the names in --covariates; raise ConfigError for a word that names no covariate.

    None without the option, and () for "none".
    """
    if typed is None:
        return None
    names = tuple(word.strip().lower() for word in typed.split(",") if word.strip())
    if names == ("none",):
        return ()
    for name in names:
        if name not in COVARIATES:
            raise ConfigError(
                f"--covariates {typed}: {name} is not a covariate",
                remedy=f"name some of {', '.join(COVARIATES)}, or none",
            )
    return names


@dataclass(frozen=True, kw_only=True)
class LabelMapOptions:
    """Options for label maps that `trinat evaluate` and `trinat report` share.

    Scans and structures that people rejected in `ratings`, a file of the viewer, are left out. If
    people have corrected a label map, the correction replaces it, unless `uncorrected` is set.
    """

    trust_affine: TrustAffine = None
    ratings: Annotated[
        Path | None,
        Option(
            "ratings.tsv of trinat view: leave out rejected scans and structures; evaluate and "
            "report also write raters.csv (agreement, Cohen's kappa)."
        ),
    ] = None
    uncorrected: Annotated[
        bool,
        Option("Use predictions, even if there are corrections."),
    ] = False
    jobs: Annotated[
        int | None,
        Option(
            "Number of processes. Default: one per processor.",
            names=("--jobs", "-j"),
            min=1,
        ),
    ] = None
    command: str = ""


@dataclass(frozen=True)
class EvaluationSettings(LabelMapOptions):
    """Settings of `trinat evaluate`.

    `truth` has the manual labels: a folder or file of label maps, or with `part` or `folds` a
    store; `folds` are the test parts of a cross-validation. `models` maps the name of each model to
    the path of its predictions.

    `labels` is the label scheme to compare in. `numbering` is the name or file of the table that
    maps the label numbers of the truth to FreeSurfer's, and `numbering_pred` that of the
    predictions: one for all, or one for each model.

    `csf` is the definition of CSF in the truth; by default the one in a run ledger next to the
    truth, or else FreeSurfer's small region. `csf_pred` is the definition of CSF in predictions
    without a ledger: one for all, or one for each model; by default it is unknown.
    """

    truth: Path | None
    models: Mapping[str, Path]
    out: Annotated[Path, Option("Output folder.", names=("--out", "-o"))]
    part: Literal["train", "validation", "test"] | None = None
    folds: bool = False
    labels: Annotated[
        str, Option("Label scheme to compare in: a name or a TSV file.")
    ] = DEFAULT_SCHEME
    numbering: Annotated[
        str | None,
        Option(
            "Numbering of the true label maps, if not FreeSurfer's: neuromorphometrics, or a "
            "TSV file with columns first, last, name, target. A store has its own numbering.",
        ),
    ] = None
    numbering_pred: Annotated[
        tuple[str, ...],
        Option(
            "The same for predictions, which have FreeSurfer's numbers by default: one for "
            "all, or one for each --pred (freesurfer, neuromorphometrics or a TSV file).",
            typed=list[str] | None,
            parse=as_tuple,
        ),
    ] = ()
    images: Annotated[Path | None, Option("T1 scans, to show the worst cases on.")] = (
        None
    )
    resample: Annotated[
        bool, Option("Resample predictions on another grid to the truth's grid.")
    ] = False
    not_predicted: Annotated[
        tuple[str, ...],
        Option(
            "Structure that the models cannot predict, such as CSF; repeatable. "
            "For predictions made by trinat it is read from their folder.",
            typed=list[str] | None,
            parse=as_tuple,
        ),
    ] = ()
    csf: Annotated[
        Csf | None,
        Option(
            "What the truth calls CSF: a small region, as in aseg (default), or all fluid in "
            "the skull. CSF that is something else is not compared."
        ),
    ] = None
    csf_pred: Annotated[
        tuple[Csf, ...],
        Option(
            "The same for predictions that were not made by trinat: one for all, or one for "
            "each --pred. Default: CSF is compared. Of its own results trinat knows it.",
            typed=list[str] | None,
            parse=_meanings_of_csf,
            metavar="<region|intracranial>",
        ),
    ] = ()
    show_heads: Annotated[
        bool, Option("Show whole heads including faces, not only the brain.")
    ] = False
    tables_only: Annotated[
        bool, Option("Write tables only, without figures and page.")
    ] = False


@dataclass(frozen=True)
class CohortSettings(LabelMapOptions):
    """Settings of `trinat report`.

    `adjust` is the method of adjusting volumes for the intracranial volume. `harmonise` is the
    factor (site) whose effects are removed from the volumes; None to keep them. `covariates` are
    the terms of the linear model that compares groups; None for an automatic choice. All numbers
    leave out scans and structures whose quality grade is in `excluded`.
    """

    predictions: Annotated[
        Path,
        Option("Label maps: a folder, or a BIDS derivative.", is_argument=True),
    ]
    out: Annotated[
        Path,
        Option(
            "Output folder. Default: PREDICTIONS/report.",
            names=("--out", "-o"),
            typed=Path | None,
        ),
    ]
    labels: Annotated[str, Option("Label scheme: a name or a TSV file.")] = (
        DEFAULT_SCHEME
    )
    participants: Annotated[
        Path | None,
        Option(
            "Table with sex, age, group and site: participants.tsv, or IXI's or OASIS's own."
        ),
    ] = None
    strict: Strict = False
    reference: Annotated[
        Path | None,
        Option("Table of `trinat norms`."),
    ] = None
    adjust: Annotated[
        Literal["residual", "proportion"] | None,
        Option(
            "Adjust volumes for the intracranial volume: residual (of a regression over the "
            "group) or proportion."
        ),
    ] = None
    harmonise: Annotated[
        Literal["site"] | None,
        Option(
            "Take effects of sites away from volumes (ComBat), and keep those of age, sex and "
            "group."
        ),
    ] = None
    covariates: Annotated[
        tuple[str, ...] | None,
        Option(
            "Covariates of the linear model: some of age,sex,icv, or none. Group and site are "
            "in it anyway. Default: those known of most participants, if there are enough.",
            typed=str | None,
            parse=_covariates,
        ),
    ] = None
    images: Annotated[Path | None, Option("T1 scans, for pictures.")] = None
    excluded: tuple[str, ...] = EXCLUDED_GRADES
