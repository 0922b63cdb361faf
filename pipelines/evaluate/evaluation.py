"""trinat evaluate: compare predictions with manual labels; write tables and a report.

pairs.csv has every label map of both sides and its outcome, metrics.csv every value that was
measured. summary.json, structures.csv, the figures and report.html are computed from these.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from trinat.pipelines.common.exits import Exit, batch_exit
from trinat.pipelines.evaluate.gather import Inputs, gather, named_models, plan_tasks
from trinat.pipelines.evaluate.measuring import Done, measure_all, scan_of
from trinat.pipelines.evaluate.settings import EvaluationSettings
from trinat.pipelines.evaluate.shown_scans import lowest_scans
from trinat.pipelines.jobs.lock import claimed, keep_only, refuse_foreign
from trinat.pipelines.jobs.process import cpu_count
from trinat.pipelines.jobs.progress import BatchProgress, no_progress
from trinat.pipelines.report.evaluation import printed
from trinat.pipelines.report.measurements import metrics_frame, write_table
from trinat.pipelines.report.page import Table, provenance
from trinat.pipelines.report.tables import lesion_columns, tables_of_lesions
from trinat.pipelines.study.entry import taught_by_models
from trinat.pipelines.study.files import corrected_among
from trinat.pipelines.study.pairing import Pairing
from trinat.pipelines.study.ratings import agreement_table, use_of_ratings
from trinat.segmentation.errors import EvaluationError
from trinat.segmentation.io.files import sha256_of, write_json, write_whole
from trinat.segmentation.labels.lesions import LesionCounts

if TYPE_CHECKING:
    from trinat.pipelines.report.summary import Evaluation

__all__ = ["EvaluationSettings", "evaluate_predictions", "named_models"]

_log = logging.getLogger(__name__)

_OUTPUTS = (
    "pairs.csv",
    "metrics.csv",
    "lesions.csv",
    "lesion_classes.csv",
    "summary.json",
    "structures.csv",
    "raters.csv",
    "figures",
    "report.html",
)
# Columns of pairs.csv. `_FACTS` are filled only for pairs that were measured or rejected.
_COLUMNS = (
    "subject",
    "session",
    "model",
    "status",
    "note",
    "paired_by",
    "truth",
    "prediction",
)
_FACTS = ("shape", "spacing_mm", "truth_sha256", "prediction_sha256")
_LIBRARIES = ("numpy", "scipy", "nibabel")


def evaluate_predictions(
    settings: EvaluationSettings,
    *,
    progress: BatchProgress = no_progress,
) -> Exit:
    """Compare all predictions with their manual labels, and write the tables and the report.

    `progress(result, done, total)` is called after each pair of label maps. Failures are in the
    tables and the report, and files that were not measured are logged. Returns the exit status, in
    which a true label map without a prediction counts as a failure.
    """
    started = datetime.now(UTC)
    refuse_foreign(settings.out, _OUTPUTS)
    inputs = gather(settings)

    unfit = []
    fit = []
    for task in plan_tasks(inputs):
        reason = task.pair.prediction.unfit
        if task.pair.truth.unfit:
            reason = f"its true label map {task.pair.truth.unfit}"
        if reason:
            unfit.append(Done(task, failure=reason))
        else:
            fit.append(task)
    jobs = settings.jobs or cpu_count()
    done = unfit + measure_all(fit, jobs, progress)

    with claimed(settings.out, _OUTPUTS, within=["figures"]):
        _publish(inputs, done, started)
    unpaired = sum(len(pairing.truths_alone) for pairing in inputs.pairings.values())
    failed = sum(bool(result.failure) for result in done)
    return batch_exit(done=len(done) - failed, failed=failed + unpaired)


def _publish(
    inputs: Inputs,
    done: Sequence[Done],
    started: datetime,
) -> None:
    """Write the tables and the report, and log which pairs were not measured, and why.

    `done` are the outcomes of all pairs, and `started` is the time for the provenance. If no pair
    was measured, write pairs.csv only and raise EvaluationError.
    """
    from trinat.pipelines.report.summary import evaluate_frame

    settings = inputs.settings
    out = settings.out
    pairs = _pairs_table(done, inputs.pairings)
    write_table(out / "pairs.csv", pairs)
    for row in pairs[pairs["status"] != "measured"].to_dict("records"):
        scan = f"{row['subject']} {row['session']}".strip()
        _log.warning("%s, %s: %s", scan, row["model"], row["note"])
    measured = [result for result in done if not result.failure and not result.rejected]
    if not measured:
        keep_only(out, _OUTPUTS, ["pairs.csv"])
        first = done[0].failure or f"rejected by {done[0].rejected}"
        what = f"none of {len(done)} pairs could be measured; the first: {first}"
        raise EvaluationError(what, where=out / "pairs.csv")
    frame = metrics_frame(
        (scan_of(result.task), result.measurements) for result in measured
    )
    write_table(out / "metrics.csv", frame)

    notices = _notices(inputs, done)
    for notice in notices:
        _log.info("%s", notice)
    facts = provenance(started, settings.command, inputs.scheme.name)
    facts["truth"] = str(settings.truth)
    if settings.part:
        facts["truth"] = f"{settings.truth}, part {settings.part}"
    if notices:
        facts["labels made by models"] = " ".join(notices)
    for name, place in settings.models.items():
        facts[f"predictions of {name}"] = str(place)
    versions = [version(library) for library in _LIBRARIES]
    facts[", ".join(_LIBRARIES)] = ", ".join(versions)
    facts["metrics.csv (SHA-256)"] = sha256_of(out / "metrics.csv")

    evaluation = evaluate_frame(frame, pairs, inputs.scheme)
    summary = {"provenance": facts, **evaluation.to_json()}
    write_json(out / "summary.json", summary)
    write_table(out / "structures.csv", printed(evaluation))
    written = ["pairs.csv", "metrics.csv", "summary.json", "structures.csv"]
    lesion_tables = []
    if inputs.scheme.kind == "lesions":
        lesion_tables = _write_lesions(out, measured)
        written += ["lesions.csv", "lesion_classes.csv"]
    if settings.ratings:
        seen = {result.rated_sha256 for result in done}
        write_table(out / "raters.csv", agreement_table(inputs.ratings, seen))
        written.append("raters.csv")
    if not settings.tables_only:
        _write_page(inputs, evaluation, measured, facts, notices, lesion_tables)
        written += ["figures", "report.html"]
    keep_only(out, _OUTPUTS, written)


def _write_lesions(out: Path, measured: Sequence[Done]) -> list[Table]:
    """Write lesions.csv and lesion_classes.csv; return the tables of lesions for the page.

    `measured` are the outcomes of pairs of masks of lesions.
    """
    scans = []
    classes = []
    # Counts of all scans together by model, kind of class and class.
    pooled: dict[tuple[str, str, str], LesionCounts] = defaultdict(LesionCounts)
    for result in measured:
        scan = scan_of(result.task)
        values = {
            row.metric: row.value
            for row in result.measurements
            if row.fs_id is not None
        }
        # Voxels of lesions that are too small to be counted belong to these volumes, too.
        volumes = {
            "true_mm3": values["truth_volume"],
            "predicted_mm3": values["volume"],
            "difference_mm3": values["volume"] - values["truth_volume"],
            "difference_percent": values["volume_difference"],
        }
        for (by, name), counts in result.lesions.items():
            pooled[scan["model"], by, name] += counts
            columns = lesion_columns(counts)
            if by == "all":
                scans.append({**scan, "dice": values["dice"], **columns, **volumes})
            else:
                classes.append({**scan, "by": by, "class": name, **columns})
    table = pd.DataFrame(scans)
    write_table(out / "lesions.csv", table)
    write_table(out / "lesion_classes.csv", pd.DataFrame(classes))
    of_classes = [
        {"model": model, "by": by, "class": name, **lesion_columns(counts)}
        for (model, by, name), counts in pooled.items()
    ]
    return tables_of_lesions(table, pd.DataFrame(of_classes))


def _pairs_table(done: Iterable[Done], pairings: Mapping[str, Pairing]) -> pd.DataFrame:
    """Return the table of pairs.csv: a row for each pair, and for each label map without a partner.

    `done` are the outcomes of the pairs; `pairings` has the label maps without a partner, by the
    model's name. Columns: subject, session, model, status (measured, failed, rejected, no truth, no
    prediction), note, paired_by, the file names truth and prediction, and the columns `_FACTS`:
    shape, spacing_mm and the SHA-256 of both files.
    """
    rows = []
    for result in done:
        pair = result.task.pair
        status = "measured"
        note = result.note
        if result.failure:
            status = "failed"
            note = result.failure
        elif result.rejected:
            status = "rejected"
            note = f"rejected by {result.rejected}"
        row = scan_of(result.task)
        row["truth"] = pair.truth.path.name
        row["prediction"] = pair.prediction.path.name
        row["paired_by"] = pair.how
        row["status"] = status
        row["note"] = note
        for fact in _FACTS:
            row[fact] = result.facts.get(fact, "")
        rows.append(row)
    for model, pairing in pairings.items():
        alone = [(file, "truth", "prediction") for file in pairing.truths_alone]
        alone += [(file, "prediction", "truth") for file in pairing.predictions_alone]
        for file, side, other in alone:
            row = {
                "subject": file.participant,
                "session": file.session,
                "model": model,
                side: file.path.name,
                "status": f"no {other}",
                "note": pairing.doubts.get(file.path, f"no {other} found"),
            }
            rows.append(row)
    return pd.DataFrame(rows, columns=[*_COLUMNS, *_FACTS]).fillna("")


def _notices(inputs: Inputs, done: Sequence[Done]) -> list[str]:
    """Return sentences for the report on how labels and predictions were made.

    They say which predictions were corrected by hand, which models were trained on labels made by
    models, how the ratings were used, and whether the manual labels are in fact the output of a
    model.
    """
    lines: set[str] = set()
    for study in inputs.studies.values():
        lines.update(taught_by_models(study.entries))
    for model in inputs.pairings:
        measured = [
            result.task.pair.prediction for result in done if result.task.model == model
        ]
        corrected = corrected_among(measured)
        if corrected:
            lines.add(f"{model}: {corrected}.")
    notices = sorted(lines)
    if inputs.settings.ratings:
        # Maps by their SHA-256, and rejected structures that were measured as a part of another.
        seen = set()
        in_part = set()
        for result in done:
            digest = result.rated_sha256
            seen.add(digest)
            if result.rejected:  # the whole map is rejected
                continue
            rejected = result.task.rejected.get(digest, {})
            made = result.task.made
            for structure in made.rejected_but_measured(inputs.scheme, rejected):
                in_part.add((digest, structure))
        notices.append(use_of_ratings(inputs.ratings, seen, in_part))
    if inputs.store is not None:
        models = inputs.store.pseudo_labels(inputs.subjects)
        if models:
            notices.insert(0, f"The truth is no truth: it is {models}.")
    return notices


def _write_page(
    inputs: Inputs,
    evaluation: Evaluation,
    measured: Sequence[Done],
    facts: Mapping[str, str],
    notices: Sequence[str],
    lesions: Sequence[Table],
) -> None:
    """Write report.html and its figures.

    `measured` are the outcomes of the pairs that were measured. `facts` maps titles to texts for
    the section on provenance, such as the command and the date. `notices` are sentences to show
    above the results, and `lesions` are the tables of lesions, if masks of lesions were compared.
    """
    from trinat.pipelines.report.evaluation import drawings, evaluation_page

    settings = inputs.settings
    folder = settings.out / "figures"
    plots = drawings(evaluation)
    keep_only(settings.out, ["figures"], [])
    for of_section in plots.values():
        for drawing in of_section:
            drawing.save(folder)
    lowest, more_notices = lowest_scans(inputs, evaluation.frame, measured)
    for number, scan in enumerate(lowest, start=1):
        write_whole(folder / f"worst-{number}.png", scan.view.still_png)
    faces = ""
    if inputs.images:
        faces = "Scans are black away from the brain, so that no face is shown."
        if settings.show_heads:
            faces = "Whole heads are shown, as asked for."
    page = evaluation_page(
        evaluation,
        plots,
        lowest,
        inputs.scheme,
        facts,
        faces=faces,
        notices=[*notices, *more_notices],
        lesions=lesions,
    )
    write_whole(settings.out / "report.html", page)
