"""The files of an evaluation: found, paired, and refused before hours of measuring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trinat.pipelines.common.naming import safe_component
from trinat.pipelines.common.ratings import (
    Rating,
    read_given,
    rejected_structures,
    rejections,
)
from trinat.pipelines.common.scanfiles import ScanFile, as_scan, find_files
from trinat.pipelines.common.stored import stored_files
from trinat.pipelines.evaluate.pairing import (
    Mappings,
    Pairing,
    Task,
    pair_files,
    read_mapping,
)
from trinat.pipelines.predict.entry import taught_by_models
from trinat.pipelines.predict.ledger import entries_in
from trinat.pipelines.predict.stale import unfit_results
from trinat.segmentation.data.sources.base import without_suffix
from trinat.segmentation.data.splits import Part
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import ConfigError, EvaluationError
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.labels.folding import load_folding
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.metrics.counted import made_by


@dataclass(frozen=True)
class Settings:
    """What `trinat evaluate` was asked to do."""

    truth: Path  # label maps, or with `part` or `folds` a store
    models: Mapping[str, Path]  # by name, their predictions
    out: Path
    part: Part | None = None
    folds: bool = False  # the test parts of a cross-validation
    labels: str = "quicknat33"
    mapping: Path | None = None
    fold: str | None = None  # the truth's numbering: a folding table's name or file
    fold_pred: tuple[
        str, ...
    ] = ()  # the predictions': one for all, or one for each model
    images: Path | None = None
    resample: bool = False
    trust_affine: TrustAffine | None = None
    jobs: int | None = None
    show_heads: bool = False
    tables_only: bool = False
    latex: bool = False
    csv: bool = False
    not_predicted: tuple[str, ...] = ()
    ratings: Path | None = None
    command: str = ""


@dataclass(frozen=True)
class LedgerNotes:
    """What the ledger beside predictions, if there is one, says of them."""

    models: set[str] = field(default_factory=set)
    structures: set[str] = field(
        default_factory=set
    )  # with a volume: the model knows them
    scans: dict[Path, Path] = field(default_factory=dict)  # label map -> its scan
    taught: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)  # case -> reason


@dataclass(frozen=True, eq=False)
class Inputs:
    """What is read before anything is measured. `settings` are completed from the store."""

    settings: Settings
    scheme: LabelScheme
    store: Store | None
    subjects: tuple[str, ...]  # of the store
    images: list[ScanFile]
    notes: dict[str, LedgerNotes]  # by model
    pairings: dict[str, Pairing]  # by model
    mappings: dict[str, Mappings]  # by model
    unfit: dict[Path, str]  # predictions that cannot be measured, and why
    ratings: list[Rating]


def named_models(predictions: Sequence[Path], names: Sequence[str]) -> dict[str, Path]:
    """Models by the names given, else as the ledgers beside the predictions name them, else by
    folder."""
    if names and len(names) != len(predictions):
        raise ConfigError(
            f"{len(names)} --model-name for {len(predictions)} --pred: give one for each"
        )
    chosen = list(names)
    if not chosen:
        of_ledgers = [sorted(_read_notes(place).models) for place in predictions]
        chosen = [models[0] for models in of_ledgers if len(models) == 1 and models[0]]
        if len(set(chosen)) != len(predictions):
            chosen = [place.resolve().name for place in predictions]
    for name in chosen:
        if chosen.count(name) > 1:
            remedy = "name them with --model-name, one for each --pred"
            raise ConfigError(f"two models are called {name!r}", remedy=remedy)
    return dict(zip(chosen, predictions, strict=True))


def gather(settings: Settings, say: Callable[[str], None]) -> Inputs:
    """Find the files of both sides and pair them; refuse what cannot be measured.

    All that a user can get wrong is refused here: before hours of measuring, not after.
    """
    store: Store | None = None
    subjects: tuple[str, ...] = ()
    if settings.part or settings.folds:
        store = Store(settings.truth)
        subjects = _subjects(store, settings.part)
        trust = settings.trust_affine or store.info.trust_affine
        settings = replace(settings, labels=store.scheme_name, trust_affine=trust)
    scheme = load_scheme(settings.labels)
    mappings = _mappings(settings)
    images: list[ScanFile] = []
    if store is not None:
        truths = stored_files(store, subjects, "labels")
        images = stored_files(store, subjects, "image")
    else:
        truths = find_files(settings.truth)
        if settings.images:
            images = find_files(settings.images, suffix="T1w")
    notes = {model: _read_notes(place) for model, place in settings.models.items()}
    predictions = {
        model: _predictions(place, notes[model])
        for model, place in settings.models.items()
    }
    pairings = {
        model: pair_files(truths, files, guess=True)
        for model, files in predictions.items()
    }
    unfit: dict[Path, str] = {}
    for model, place in settings.models.items():
        paths = [file.path for file in predictions[model]]
        unfit.update(unfit_results(_folder_of(place), paths))
        for case, reason in notes[model].failed.items():
            say(f"{case}, {model}: failed in trinat predict: {reason}")
    for pairing in pairings.values():
        _one_map_a_scan(pairing, settings.truth)
        for guess in pairing.guesses:
            say(f"check it: {guess}")
    ratings = read_given(settings.ratings)
    return Inputs(
        settings,
        scheme,
        store,
        subjects,
        images,
        notes,
        pairings,
        mappings,
        unfit,
        ratings,
    )


def _subjects(store: Store, part: Part | None) -> tuple[str, ...]:
    """Those of a part of the split; without a part, those that a cross-validation tests."""
    if part:
        return store.part(part)
    return store.tested()


def plan_tasks(inputs: Inputs) -> list[Task]:
    """One measurement for each pair of each model."""
    settings = inputs.settings
    rejected = rejections(inputs.ratings)
    rated = rejected_structures(inputs.ratings)
    tasks = []
    for model, pairing in inputs.pairings.items():
        known = inputs.notes[model].structures
        made = made_by(known, rated, inputs.scheme, settings.not_predicted)
        made.left_out(inputs.scheme)  # refuses a wrong name before anything is measured
        mapping = inputs.mappings[model]
        how = (settings.labels, mapping, settings.resample, settings.trust_affine)
        tasks += [Task(model, pair, *how, made, rejected) for pair in pairing.pairs]
    if not tasks:
        raise EvaluationError(
            f"no prediction has a truth: {_why_none(inputs.pairings.values())}",
            where=settings.truth,
            remedy="name both sides alike (sub-01 and sub-01), or give the two files of one scan",
        )
    return tasks


def _mappings(settings: Settings) -> dict[str, Mappings]:
    """How label numbers are read, by model: the truth's are the same for each."""
    mappings = read_mapping(settings.mapping) if settings.mapping else Mappings()
    if settings.fold is not None:
        mappings = replace(mappings, truth_fold=load_folding(settings.fold))
    names = settings.fold_pred
    if not names:
        return dict.fromkeys(settings.models, mappings)
    if len(names) == 1:
        names = names * len(settings.models)
    if len(names) != len(settings.models):
        raise ConfigError(
            f"{len(names)} --fold-pred for {len(settings.models)} --pred",
            remedy="give one for all, or one for each --pred (freesurfer where no table is needed)",
        )
    return {
        model: replace(mappings, prediction_fold=load_folding(name))
        for model, name in zip(settings.models, names, strict=True)
    }


def _folder_of(predictions: Path) -> Path:
    if predictions.is_dir():
        return predictions
    return predictions.parent


def _read_notes(predictions: Path) -> LedgerNotes:
    notes = LedgerNotes()
    for place, entry in entries_in(_folder_of(predictions)):
        if entry.status == "failed":
            notes.failed[entry.case] = entry.reason
        if entry.outputs:
            notes.models.add(entry.result.get("model", ""))
        notes.structures.update(entry.result.get("volumes_mm3", ()))
        notes.scans.update(
            {place / output: Path(entry.input) for output in entry.outputs}
        )
        notes.taught.update(taught_by_models([entry]))
    return notes


def _predictions(place: Path, notes: LedgerNotes) -> list[ScanFile]:
    """Label maps; those of a run whose names had to be made safe, under their scans' own names."""

    def own_name(file: ScanFile) -> ScanFile:
        scan = notes.scans.get(file.path)
        if scan is None or safe_component(without_suffix(scan)) != file.name:
            return file
        return as_scan(file, scan)

    return [own_name(file) for file in find_files(place)]


def _why_none(pairings: Iterable[Pairing]) -> str:
    """Why there are no pairs at all: what stood in the way of the first file, if anything did."""
    for pairing in pairings:
        for file in pairing.truths_alone:
            if file.path in pairing.doubts:
                return f"{file.shown}: {pairing.doubts[file.path]}"
    return "no names match"


def _one_map_a_scan(pairing: Pairing, truth: Path) -> None:
    """Two maps of one scan would count as one person's two scans without names."""
    seen: dict[tuple[str, str], Path] = {}
    for pair in pairing.pairs:
        file = pair.truth
        other = seen.setdefault((file.subject, file.scan), file.path)
        if other != file.path:
            both = f"{other.name} and {file.path.name}"
            what = f"{both} are both of {file.subject} {file.scan}".strip()
            remedy = "keep one true label map a scan in that folder"
            raise EvaluationError(what, where=truth, remedy=remedy)
