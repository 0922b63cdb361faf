"""trinat evaluate: predictions against truths, as tables and as a report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from trinat.pipelines.common.exits import Exit, batch_exit
from trinat.pipelines.common.lock import claimed, refuse_foreign
from trinat.pipelines.common.naming import safe_component
from trinat.pipelines.common.process import cpu_count
from trinat.pipelines.common.ratings import (
    agreement_table,
    read_given,
    rejected_structures,
    rejections,
    use_of_ratings,
)
from trinat.pipelines.common.scanfiles import ScanFile, as_scan, find_files
from trinat.pipelines.common.stored import stored_files
from trinat.pipelines.evaluate.pairing import (
    Done,
    Mappings,
    Pairing,
    Task,
    measure_all,
    pair_files,
    read_mapping,
    read_pair,
    scan_of,
)
from trinat.pipelines.predict.ledger import entries_in, taught_by_models, unfit_results
from trinat.segmentation.data.sources.base import without_suffix
from trinat.segmentation.data.splits import Part
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import ConfigError, EvaluationError, TrinatError
from trinat.segmentation.io.files import sha256_of, write_whole
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.folding import load_folding
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.metrics.common_grid import on_grid_of
from trinat.segmentation.metrics.counted import made_by
from trinat.segmentation.report.page import provenance
from trinat.segmentation.report.tables import latex, metrics_frame, printed, write_table

if TYPE_CHECKING:
    from trinat.segmentation.report.evaluation import Case


@dataclass(frozen=True)
class Settings:
    truth: Path  # label maps, or with `part` or `folds` a store
    models: Mapping[str, Path]  # by name, their predictions
    out: Path
    part: Part | None = None
    folds: bool = False  # the test parts of a cross-validation
    labels: str = "quicknat33"
    mapping: Path | None = None
    fold: str | None = None  # the truth's numbering: a folding table's name or file
    fold_pred: tuple[str, ...] = ()  # the predictions': one for all, or one for each model
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


def named_models(predictions: Sequence[Path], names: Sequence[str]) -> dict[str, Path]:
    """Models by the names given, else as the ledgers beside the predictions name them, else by
    folder."""
    if names and len(names) != len(predictions):
        raise ConfigError(
            f"{len(names)} --model-name for {len(predictions)} --pred: give one for each"
        )
    told = [sorted(_told_of(place).models) for place in predictions]
    known = [models[0] for models in told if len(models) == 1 and models[0]]
    own = len(set(known)) == len(predictions)
    chosen = names or (known if own else [place.resolve().name for place in predictions])
    if twice := next((name for name in chosen if chosen.count(name) > 1), ""):
        remedy = "name them with --model-name, one for each --pred"
        raise ConfigError(f"two models are called {twice!r}", remedy=remedy)
    return dict(zip(chosen, predictions, strict=True))


def evaluate(
    settings: Settings,
    *,
    progress: Callable[[Done, int, int], object] = lambda result, done, total: None,
    say: Callable[[str], None] = lambda line: None,
) -> Exit:
    """Measure every pair, write the tables and the report; failures are in both.

    `progress(result, done, total)` is called after each pair, `say` with a line for each file
    that was not measured.
    """
    started = datetime.now(UTC)
    if settings.jobs is not None and settings.jobs < 1:
        raise ConfigError(f"{settings.jobs} jobs: use at least 1")
    refuse_foreign(settings.out, _OUTPUTS)
    store = Store(settings.truth) if settings.part or settings.folds else None
    subjects: tuple[str, ...] = ()
    if store:
        subjects = store.part(settings.part) if settings.part else store.tested()
        trust = settings.trust_affine or store.info.trust_affine
        settings = replace(settings, labels=store.scheme_name, trust_affine=trust)
    scheme = load_scheme(settings.labels)
    mappings = _mappings(settings)
    images: list[ScanFile] = []
    if store:
        truths, images = (stored_files(store, subjects, kind) for kind in ("labels", "image"))
    else:
        truths = find_files(settings.truth)
        if settings.images:
            images = find_files(settings.images, suffix="T1w")
    told = {model: _told_of(place) for model, place in settings.models.items()}
    predictions = {
        model: _predictions(place, told[model]) for model, place in settings.models.items()
    }
    pairings = {
        model: pair_files(truths, files, guess=True) for model, files in predictions.items()
    }
    unfit: dict[Path, str] = {}
    for model, place in settings.models.items():
        paths = [file.path for file in predictions[model]]
        unfit.update(unfit_results(_folder_of(place), paths))
        for case, reason in told[model].failed.items():
            say(f"{case}, {model}: failed in trinat predict: {reason}")
    # Before hours of measuring, not after.
    for pairing in pairings.values():
        _one_map_a_scan(pairing, settings.truth)
        for guess in pairing.guesses:
            say(f"check it: {guess}")
    ratings = read_given(settings.ratings)
    rejected = rejections(ratings)
    rated = rejected_structures(ratings)
    tasks = []
    for model, pairing in pairings.items():
        made = made_by(told[model].structures, rated, scheme, settings.not_predicted)
        made.left_out(scheme)  # refuses a wrong name before anything is measured
        how = (settings.labels, mappings[model], settings.resample, settings.trust_affine)
        tasks += [Task(model, pair, *how, made, rejected) for pair in pairing.pairs]
    if not tasks:
        raise EvaluationError(
            f"no prediction has a truth: {_why_none(pairings.values())}",
            where=settings.truth,
            remedy="name both sides alike (sub-01 and sub-01), or give the two files of one scan",
        )
    fit = [task for task in tasks if task.pair.prediction.path not in unfit]
    stale = [task for task in tasks if task.pair.prediction.path in unfit]
    done = [Done(task, failure=unfit[task.pair.prediction.path]) for task in stale]
    done += measure_all(fit, settings.jobs or cpu_count(), progress)
    with claimed(settings.out, _OUTPUTS, within=["figures"]):
        pairs = _pairs_table(done, pairings)
        write_table(settings.out / "pairs.csv", pairs)
        for row in pairs[pairs["status"] != "measured"].to_dict("records"):
            scan = f"{row['subject']} {row['session']}".strip()
            say(f"{scan}, {row['model']}: {row['note']}")
        measured = [result for result in done if not result.failure and not result.rejected]
        if not measured:
            first = done[0].failure or f"rejected by {done[0].rejected}"
            what = f"none of {len(done)} pairs could be measured; the first: {first}"
            raise EvaluationError(what, where=settings.out / "pairs.csv")
        frame = metrics_frame((scan_of(result.task), result.measurements) for result in measured)
        write_table(settings.out / "metrics.csv", frame)
        notices = sorted({line for of_model in told.values() for line in of_model.taught})
        if settings.ratings:
            seen = {result.facts.get("prediction_sha256", "") for result in done}
            notices.append(use_of_ratings(ratings, seen, _rejected_in_part(done, scheme)))
            write_table(settings.out / "raters.csv", agreement_table(ratings))
        if store and (pseudo := store.pseudo_labels(subjects)):
            notices.insert(0, f"The truth is no truth: it is {pseudo}.")
        for notice in notices:
            say(notice)
        _write_report(settings, scheme, frame, pairs, measured, images, notices, started)
        unpaired = sum(len(pairing.truths_alone) for pairing in pairings.values())
        failed = sum(bool(result.failure) for result in done)
        return batch_exit(done=len(done) - failed, failed=failed + unpaired)


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


@dataclass(frozen=True)
class _Told:
    """What the ledger beside predictions, if there is one, says of them."""

    models: set[str] = field(default_factory=set)
    structures: set[str] = field(default_factory=set)  # with a volume: the model knows them
    scans: dict[Path, Path] = field(default_factory=dict)  # label map -> its scan
    taught: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)  # case -> reason


def _folder_of(predictions: Path) -> Path:
    return predictions if predictions.is_dir() else predictions.parent


def _told_of(predictions: Path) -> _Told:
    told = _Told()
    for place, entry in entries_in(_folder_of(predictions)):
        if entry.status == "failed":
            told.failed[entry.case] = entry.reason
        if entry.outputs:
            told.models.add(entry.result.get("model", ""))
        told.structures.update(entry.result.get("volumes_mm3", ()))
        told.scans.update({place / output: Path(entry.input) for output in entry.outputs})
        told.taught.update(taught_by_models([entry]))
    return told


def _predictions(place: Path, told: _Told) -> list[ScanFile]:
    """Label maps; those of a run whose names had to be made safe, under their scans' own names."""

    def own_name(file: ScanFile) -> ScanFile:
        scan = told.scans.get(file.path)
        if scan is None or safe_component(without_suffix(scan)) != file.name:
            return file
        return as_scan(file, scan)

    return [own_name(file) for file in find_files(place)]


def _rejected_in_part(done: Iterable[Done], scheme: LabelScheme) -> set[tuple[str, str]]:
    """Rejected structures that were measured as a part of another: map (SHA-256), structure."""
    found: set[tuple[str, str]] = set()
    for result in done:
        digest = result.facts.get("prediction_sha256", "")
        rejected = result.task.rejected.get(digest, {})
        if result.rejected:  # all of the map
            continue
        for structure in result.task.made.measured_though_rejected(scheme, rejected):
            found.add((digest, structure))
    return found


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
            what = (
                f"{other.name} and {file.path.name} are both of {file.subject} {file.scan}".strip()
            )
            remedy = "keep one true label map a scan in that folder"
            raise EvaluationError(what, where=truth, remedy=remedy)


_OUTPUTS = (
    *("pairs.csv", "metrics.csv", "summary.json", "structures.csv", "structures.tex"),
    *("raters.csv", "figures", "report.html"),
)
_FACTS = ("shape", "spacing_mm", "truth_sha256", "prediction_sha256")


def _pairs_table(done: Iterable[Done], pairings: Mapping[str, Pairing]) -> pd.DataFrame:
    """Every file of both sides: measured, failed, or without a partner."""
    rows = []
    for result in done:
        pair, status, note = result.task.pair, "measured", result.note
        if result.failure:
            status, note = "failed", result.failure
        elif result.rejected:
            status, note = "rejected", f"rejected by {result.rejected}"
        rows.append(
            {
                **scan_of(result.task),
                "truth": pair.truth.path.name,
                "prediction": pair.prediction.path.name,
                "paired_by": pair.how,
                "status": status,
                "note": note,
                **{key: result.facts.get(key, "") for key in _FACTS},
            }
        )
    for model, pairing in pairings.items():
        for side, other, files in (
            ("truth", "prediction", pairing.truths_alone),
            ("prediction", "truth", pairing.predictions_alone),
        ):
            rows += [
                {"subject": file.subject, "session": file.scan, "model": model}
                | {side: file.path.name, "status": f"no {other}"}
                | {"note": pairing.doubts.get(file.path, f"no {other} found")}
                for file in files
            ]
    columns = ["subject", "session", "model", "status", "note", "paired_by", "truth", "prediction"]
    return pd.DataFrame(rows, columns=[*columns, *_FACTS]).fillna("")


def _write_report(
    settings: Settings,
    scheme: LabelScheme,
    frame: pd.DataFrame,
    pairs: pd.DataFrame,
    measured: Sequence[Done],
    images: Sequence[ScanFile],
    notices: Sequence[str],
    started: datetime,
) -> None:
    from trinat.segmentation.report.evaluation import drawings, evaluation_page, heat_maps
    from trinat.segmentation.report.summary import evaluate_frame

    done = {
        **provenance(started, settings.command, scheme.name),
        "truth": ", part ".join(filter(None, (str(settings.truth), settings.part))),
        **({"labels made by models": " ".join(notices)} if notices else {}),
        **{f"predictions of {name}": str(place) for name, place in settings.models.items()},
        "numpy, scipy, nibabel": ", ".join(version(n) for n in ("numpy", "scipy", "nibabel")),
        "metrics.csv (SHA-256)": sha256_of(settings.out / "metrics.csv"),
    }
    evaluation = evaluate_frame(frame, pairs, scheme)
    summary = json.dumps({"provenance": done, **evaluation.to_json()}, indent=1)
    write_whole(settings.out / "summary.json", summary + "\n")
    if settings.csv or settings.latex:
        table = printed(evaluation)
        if settings.csv:
            write_table(settings.out / "structures.csv", table)
        if settings.latex:
            write_whole(settings.out / "structures.tex", latex(table))
    if settings.tables_only:
        return
    plots = drawings(evaluation)
    folder = settings.out / "figures"
    for drawing in (*chain.from_iterable(plots.values()), *heat_maps(evaluation)):
        drawing.save(folder)
    cases, more = _worst_cases(settings, scheme, evaluation.frame, measured, images)
    for number, case in enumerate(cases, start=1):
        write_whole(folder / f"worst-{number}.png", case.view.still_png)
    faces = "Scans are black away from the brain, so that no face is shown." if images else ""
    if images and settings.show_heads:
        faces = "Whole heads are shown, as asked for."
    page = evaluation_page(
        evaluation, plots, cases, scheme, done, faces=faces, notices=[*notices, *more]
    )
    write_whole(settings.out / "report.html", page)


def _worst_cases(
    settings: Settings,
    scheme: LabelScheme,
    frame: pd.DataFrame,
    measured: Sequence[Done],
    images: Sequence[ScanFile],
) -> tuple[list[Case], list[str]]:
    """The five lowest scans with their voxels; a scan whose image is unfit is shown without it."""
    from trinat.segmentation.report.evaluation import Case
    from trinat.segmentation.report.page import short_name
    from trinat.segmentation.report.pictures import view_case
    from trinat.segmentation.report.summary import worst_scans

    by_scan = {tuple(scan_of(result.task).values()): result.task for result in measured}
    truths = {result.task.pair.truth.name: result.task.pair.truth for result in measured}
    pairing = pair_files(truths.values(), images)
    scans = {pair.truth.name: pair.prediction for pair in pairing.pairs}
    missing = len(pairing.truths_alone) if images else 0
    notices = [f"{missing} of {len(truths)} scans have no image to be shown on."] if missing else []
    cases = []
    for row in worst_scans(frame).to_dict("records"):
        task = by_scan[row["subject"], row["session"], row["model"]]
        truth, true, predicted, _ = read_pair(task)
        image = None
        if scan_file := scans.get(task.pair.truth.name):
            try:
                read = Volume.read(
                    scan_file.path, axes=scan_file.axes, trust_affine=settings.trust_affine
                )
                image = on_grid_of(read, truth)[0]
            except (TrinatError, OSError) as error:
                notices.append(f"shown without its scan: {error}")
        scan = f"{row['subject']} {row['session']}".strip()
        worst = f"{short_name(row['worst_structure'])} ({row['worst_value']:.2f})"
        text = f"Lowest Dice: {worst}. The first slices shown pass through most of its errors."
        maps = Volume(true, truth.affine), Volume(predicted, truth.affine)
        focus = scheme.names.index(row["worst_structure"])
        view = view_case(*maps, scheme, image=image, focus=focus, show_head=settings.show_heads)
        cases.append(
            Case(
                f"{scan}, {row['model']}: mean Dice {row['value']:.3f}",
                "No voxel differs." if np.array_equal(true, predicted) else text,
                f"Truth, prediction and errors of {scan} in three planes",
                view,
            )
        )
    return cases, notices
