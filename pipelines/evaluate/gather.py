"""Input files of `trinat evaluate`: found, paired and validated before hours of measuring.

The ground truth (manual labels) is a folder of label maps or a part of a store. For predictions
made by trinat, the run ledger next to them has their scans, the scans that failed, and the
structures that the model predicts.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from trinat.pipelines.evaluate.measuring import Task
from trinat.pipelines.evaluate.settings import EvaluationSettings
from trinat.pipelines.study.files import (
    ScanFile,
    find_images,
    two_maps_of_a_scan,
)
from trinat.pipelines.study.naming import Product
from trinat.pipelines.study.pairing import Pairing, pair_files
from trinat.pipelines.study.ratings import (
    Rating,
    read_given,
    rejected_structures,
    rejections,
)
from trinat.pipelines.study.stored import stored_files
from trinat.pipelines.study.study import Study
from trinat.segmentation.data.identity import clash_among
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import ConfigError, EvaluationError
from trinat.segmentation.labels.folding import FoldingTable, load_folding
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.metrics.counted import Made, made_by

_log = logging.getLogger(__name__)

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs of an evaluation: the paired files and tables, read before anything is measured.

    - `settings` are those of the user; label scheme and `trust_affine` come from the store, if
      there is one.
    - `truth` is the folder, file or store with the ground truth, and `truth_numbering` maps its
      label numbers to FreeSurfer's; None if they are FreeSurfer's.
    - `scheme` is the label scheme to compare in.
    - `store` is None if the ground truth is not in a store; else `subjects` are the names of the
      subjects to evaluate.
    - `images` are the scans to show in the report.
    - `studies` (predictions with run ledgers), `pairings` (pairs of files) and `numberings` (of
      label numbers) have an item for each model, by the model's name. A model whose label numbers
      are FreeSurfer's has no item in `numberings`.
    - `ratings` are the judgements of people from ratings.tsv.
    """

    settings: EvaluationSettings
    truth: Path
    scheme: LabelScheme
    store: Store | None
    subjects: tuple[str, ...]
    images: list[ScanFile]
    studies: dict[str, Study]
    pairings: dict[str, Pairing]
    truth_numbering: FoldingTable | None
    numberings: dict[str, FoldingTable | None]
    ratings: list[Rating]


def named_models(predictions: Sequence[Path], names: Sequence[str]) -> dict[str, Path]:
    """Return the folder or file of each model's predictions, by the model's name.

    Names are the given `names`; without them, the models' names in the run ledgers next to the
    predictions; and if these are missing or not different, the names of the folders. Raises
    ConfigError if two models have the same name, or for another number of names than of
    predictions.
    """
    if names and len(names) != len(predictions):
        raise ConfigError(
            f"{len(names)} --model-name for {len(predictions)} --pred: give one for each"
        )
    chosen = list(names)
    if not chosen:
        for place in predictions:
            entries = Study(place).entries
            models = {entry.result.model for entry in entries if entry.outputs}
            # A ledger with no model or with several does not give a name for these predictions.
            if len(models) == 1 and "" not in models:
                chosen += models
        if len(set(chosen)) != len(predictions):
            chosen = [place.resolve().name for place in predictions]
    for name in chosen:
        if chosen.count(name) > 1:
            remedy = "name them with --model-name, one for each --pred"
            raise ConfigError(f"two models are called {name!r}", remedy=remedy)
    return dict(zip(chosen, predictions, strict=True))


def gather(settings: EvaluationSettings) -> Inputs:
    """Find the label maps of ground truth and predictions, pair them, and read all tables.

    All errors in the user's input are raised here, before hours of measuring. Unclear pairs are
    logged.
    """
    truth = settings.truth
    if truth is None:
        raise ConfigError("one of --truth and --store is needed", remedy="give either")
    store: Store | None = None
    subjects: tuple[str, ...] = ()
    if settings.part or settings.folds:
        store = Store(truth)
        # Without a part, use the subjects that a cross-validation tests.
        subjects = store.part(settings.part) if settings.part else store.tested()
        trust = settings.trust_affine or store.info.trust_affine
        settings = replace(settings, labels=store.scheme_name, trust_affine=trust)
    scheme = load_scheme(settings.labels)
    truth_numbering = None
    if settings.numbering is not None:
        truth_numbering = load_folding(settings.numbering)
    tables = one_each(settings.numbering_pred, settings.models, "--numbering-pred")
    numberings = {model: load_folding(table) for model, table in tables.items()}

    images: list[ScanFile] = []
    if store is not None:
        truths = stored_files(store, subjects, "labels")
        images = stored_files(store, subjects, "image")
    else:
        of_truth = Study(truth)
        truths = of_truth.checked(of_truth.label_maps(kind=scheme.kind))
        if settings.images is not None:
            images = find_images(settings.images, [file.path for file in truths])
    clash = clash_among(file.participant for file in truths)
    if clash:
        _log.warning("%s", clash)

    studies = {model: Study(place) for model, place in settings.models.items()}
    pairings: dict[str, Pairing] = {}
    for model, study in studies.items():
        label_maps = study.label_maps(
            kind=scheme.kind, corrected=not settings.uncorrected
        )
        predictions = study.checked(label_maps)
        for entry in study.failed:
            _log.warning(
                "%s, %s: failed in trinat predict: %s", entry.case, model, entry.reason
            )
        pairings[model] = pair_files(truths, predictions, guess=True)
    for pairing in pairings.values():
        twice = two_maps_of_a_scan(pair.truth for pair in pairing.pairs)
        if twice:
            remedy = "keep one true label map a scan in that folder"
            raise EvaluationError(twice, where=truth, remedy=remedy)
        for guess in pairing.guesses:
            _log.warning("check it: %s", guess)
    return Inputs(
        settings=settings,
        truth=truth,
        scheme=scheme,
        store=store,
        subjects=subjects,
        images=images,
        studies=studies,
        pairings=_with_joint_participants(pairings),
        truth_numbering=truth_numbering,
        numberings=numberings,
        ratings=read_given(settings.ratings),
    )


def _with_joint_participants(pairings: Mapping[str, Pairing]) -> dict[str, Pairing]:
    """Name truths by the participants of a joint segmentation, in the pairs of all models alike.

    The names of scans that `trinat predict --longitudinal --sessions` has segmented together may
    not tell that they are of one participant.
    """
    together = {}
    for pairing in pairings.values():
        for pair in pairing.pairs:
            if pair.prediction.entry.result.longitudinal is not None:
                together[pair.truth.path] = pair.prediction

    def named(truth: ScanFile) -> ScanFile:
        file = together.get(truth.path, truth)
        return replace(truth, participant=file.participant, session=file.session)

    renamed = {}
    for model, pairing in pairings.items():
        pairs = tuple(replace(pair, truth=named(pair.truth)) for pair in pairing.pairs)
        alone = tuple(map(named, pairing.truths_alone))
        renamed[model] = replace(pairing, pairs=pairs, truths_alone=alone)
    return renamed


def plan_tasks(inputs: Inputs) -> list[Task]:
    """Return a measurement to carry out for each pair of files of each model.

    Raises EvaluationError if there is no pair, and ConfigError for a structure in --not-predicted
    that the label scheme lacks.
    """
    settings = inputs.settings
    rejected = rejections(inputs.ratings)
    rated = rejected_structures(inputs.ratings)
    csf_pred = one_each(settings.csf_pred, settings.models, "--csf-pred")
    tasks = []
    for model, pairing in inputs.pairings.items():
        # The ledger says which structures the model predicts and how it defines CSF.
        study = inputs.studies[model]
        made = made_by(
            study.measured(inputs.scheme),
            rated,
            inputs.scheme,
            settings.not_predicted,
            study.csf or csf_pred.get(model),
        )
        if inputs.scheme.kind == "lesions":
            # The ledger has the structures of the model, of which lesions are none.
            made = Made()
        # Raises ConfigError for a structure that the scheme lacks, before anything is measured.
        made.left_out(inputs.scheme)
        for pair in pairing.pairs:
            # Unless the options, a ledger or the store say otherwise, CSF of the truth is the small
            # region of FreeSurfer, not all fluid inside the skull.
            truth = pair.truth
            truth_csf = settings.csf or truth.entry.result.csf or truth.stored.csf
            task = Task(
                model=model,
                pair=pair,
                scheme=settings.labels,
                truth_numbering=inputs.truth_numbering,
                numbering=inputs.numberings.get(model),
                resample=settings.resample,
                trust_affine=settings.trust_affine,
                made=made,
                rejected=rejected,
                truth_csf=truth_csf,
                structures=pair.prediction.output(Product.LABELS),
            )
            tasks.append(task)
    if not tasks:
        # Report the first doubt about an unpaired file, if there is any.
        reasons = [
            f"{file.shown}: {pairing.doubts[file.path]}"
            for pairing in inputs.pairings.values()
            for file in pairing.truths_alone
            if file.path in pairing.doubts
        ]
        why = reasons[0] if reasons else "no names match"
        raise EvaluationError(
            f"no prediction has a truth: {why}",
            where=inputs.truth,
            remedy="name both sides alike (sub-01 and sub-01), or give the two files of one scan",
        )
    return tasks


def one_each(
    given: tuple[ValueT, ...], models: Collection[str], option: str
) -> dict[str, ValueT]:
    """Return the values of an option by the name of the model; {} if the option was not given.

    `given` has one value, which then holds for all models, or one for each in the order of
    `models`. `option` is the option's name for the error message. Raises ConfigError for another
    number of values.
    """
    if not given:
        return {}
    if len(given) == 1:
        given = given * len(models)
    if len(given) != len(models):
        raise ConfigError(
            f"{len(given)} {option} for {len(models)} --pred",
            remedy="give one for all, or one for each --pred",
        )
    return dict(zip(models, given, strict=True))
