"""Settings of `trinat learn`; its fields are the options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from trinat.pipelines.common.option import (
    Device,
    ModelOut,
    Option,
    OverwriteModel,
    Threads,
    TrustAffine,
)

DEFAULT_RECIPE = "learn"
# Settings of `LearnSettings` for label maps of structures.
FOR_STRUCTURES = ("numbering", "method", "recipe", "seconds")


@dataclass(frozen=True)
class LearnSettings:
    """Settings of `trinat learn`.

    `labels` is a folder of label maps, or with `lesions` of masks of lesions, that were made or
    corrected elsewhere. With `lesions`, the lesion network of the model is improved instead of its
    networks for structures. `numbering` is the name or file of the table that maps their numbers to
    FreeSurfer's; None if they are FreeSurfer's. `model` is the model to improve, by default the
    shipped model that made the results. `recipe` and `seconds` (the time limit) apply only if
    networks are trained. The settings in `FOR_STRUCTURES` do not apply with `lesions`.
    """

    results: Annotated[
        Path,
        Option(
            "Results of trinat predict, with corrected label maps.", is_argument=True
        ),
    ]
    out: ModelOut
    lesions: Annotated[
        bool,
        Option(
            "Learn the network for lesions from corrected lesions (or masks in --labels), and "
            "leave the networks for structures as they are."
        ),
    ] = False
    labels: Annotated[
        Path | None,
        Option(
            "Folder of label maps that were corrected elsewhere; they replace those in RESULTS."
        ),
    ] = None
    numbering: Annotated[
        str | None,
        Option(
            "Numbering of --labels, if not FreeSurfer's: neuromorphometrics, or a TSV file with "
            "columns first, last, name, target."
        ),
    ] = None
    images: Annotated[
        Path | None,
        Option("Folder of the scans, if they are not where they were read."),
    ] = None
    model: Annotated[
        str | None,
        Option(
            "Model to improve: name of a shipped model, or a folder. Default: the shipped one "
            "that made the results."
        ),
    ] = None
    method: Annotated[
        Literal["auto", "factors", "training"],
        Option(
            "factors of structures, training of the networks, or auto: factors, and from three "
            "participants on also training, whichever is better."
        ),
    ] = "auto"
    recipe: Annotated[
        str, Option("Recipe to train with: a YAML file, or a shipped recipe's name.")
    ] = DEFAULT_RECIPE
    seconds: Annotated[
        float | None,
        Option("Train for this wall time instead of the recipe's steps.", min=1),
    ] = None
    trust_affine: TrustAffine = None
    device: Device = "auto"
    threads: Threads = None
    overwrite: OverwriteModel = False
