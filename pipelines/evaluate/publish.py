"""The tables and the report of an evaluation.

pairs.csv has every file of both sides and what became of it, metrics.csv every value that was
measured. From these follow summary.json, the tables for papers, the figures and report.html.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

import pandas as pd

from trinat.pipelines.common.ratings import agreement_table, use_of_ratings
from trinat.pipelines.evaluate.gather import EvaluationSettings, Inputs
from trinat.pipelines.evaluate.measuring import Done, scan_of
from trinat.pipelines.evaluate.pairing import Pairing
from trinat.pipelines.evaluate.worst import worst_cases
from trinat.pipelines.scans.files import ScanFile
from trinat.segmentation.errors import EvaluationError
from trinat.segmentation.io.files import sha256_of, write_whole
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.report.measurements import metrics_frame, write_table
from trinat.segmentation.report.page import provenance
from trinat.segmentation.report.paper import latex, printed

if TYPE_CHECKING:
    from trinat.segmentation.report.summary import Evaluation

OUTPUTS = (
    "pairs.csv",
    "metrics.csv",
    "summary.json",
    "structures.csv",
    "structures.tex",
    "raters.csv",
    "figures",
    "report.html",
)
# Columns of pairs.csv; the facts are of the pairs that were measured or rejected.
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


def publish(
    inputs: Inputs,
    done: Sequence[Done],
    started: datetime,
    say: Callable[[str], None],
) -> None:
    """Write the tables and the report, and say what was not measured.

    Where nothing was measured there is pairs.csv alone, and an EvaluationError.
    """
    out = inputs.settings.out
    pairs = _pairs_table(done, inputs.pairings)
    write_table(out / "pairs.csv", pairs)
    for row in pairs[pairs["status"] != "measured"].to_dict("records"):
        scan = f"{row['subject']} {row['session']}".strip()
        say(f"{scan}, {row['model']}: {row['note']}")
    measured = [result for result in done if not result.failure and not result.rejected]
    if not measured:
        first = done[0].failure or f"rejected by {done[0].rejected}"
        what = f"none of {len(done)} pairs could be measured; the first: {first}"
        raise EvaluationError(what, where=out / "pairs.csv")
    frame = metrics_frame(
        (scan_of(result.task), result.measurements) for result in measured
    )
    write_table(out / "metrics.csv", frame)
    notices = _notices(inputs, done)
    for notice in notices:
        say(notice)
    _write_report(inputs, frame, pairs, measured, notices, started)


def _notices(inputs: Inputs, done: Sequence[Done]) -> list[str]:
    """What a reader has to know of the labels; writes the table of raters, if there are any."""
    lines: set[str] = set()
    for of_model in inputs.notes.values():
        lines.update(of_model.taught)
    notices = sorted(lines)
    if inputs.settings.ratings:
        seen = {result.facts.get("prediction_sha256", "") for result in done}
        in_part = _rejected_in_part(done, inputs.scheme)
        notices.append(use_of_ratings(inputs.ratings, seen, in_part))
        raters = agreement_table(inputs.ratings)
        write_table(inputs.settings.out / "raters.csv", raters)
    if inputs.store is not None:
        models = inputs.store.pseudo_labels(inputs.subjects)
        if models:
            notices.insert(0, f"The truth is no truth: it is {models}.")
    return notices


def _rejected_in_part(
    done: Iterable[Done], scheme: LabelScheme
) -> set[tuple[str, str]]:
    """Rejected structures that were measured as a part of another: map (SHA-256), structure."""
    found: set[tuple[str, str]] = set()
    for result in done:
        if result.rejected:  # all of the map
            continue
        digest = result.facts.get("prediction_sha256", "")
        rejected = result.task.rejected.get(digest, {})
        for structure in result.task.made.measured_though_rejected(scheme, rejected):
            found.add((digest, structure))
    return found


def _pairs_table(done: Iterable[Done], pairings: Mapping[str, Pairing]) -> pd.DataFrame:
    """Every file of both sides: measured, failed, rejected, or without a partner."""
    rows = [_row_of_pair(result) for result in done]
    for model, pairing in pairings.items():
        rows += [
            _row_alone(file, model, pairing, "truth", "prediction")
            for file in pairing.truths_alone
        ]
        rows += [
            _row_alone(file, model, pairing, "prediction", "truth")
            for file in pairing.predictions_alone
        ]
    return pd.DataFrame(rows, columns=[*_COLUMNS, *_FACTS]).fillna("")


def _row_of_pair(result: Done) -> dict[str, str]:
    """A pair, what became of it, and the facts of its files."""
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
    return row


def _row_alone(
    file: ScanFile,
    model: str,
    pairing: Pairing,
    side: str,
    other: str,
) -> dict[str, str]:
    """A file of one side (truth or prediction) to which the other side has none."""
    return {
        "subject": file.person,
        "session": file.visit,
        "model": model,
        side: file.path.name,
        "status": f"no {other}",
        "note": pairing.doubts.get(file.path, f"no {other} found"),
    }


def _write_report(
    inputs: Inputs,
    frame: pd.DataFrame,
    pairs: pd.DataFrame,
    measured: Sequence[Done],
    notices: Sequence[str],
    started: datetime,
) -> None:
    """Everything but the two long tables: the summary, tables for papers, figures and the page."""
    from trinat.segmentation.report.summary import evaluate_frame

    settings = inputs.settings
    facts = _provenance(settings, inputs.scheme, notices, started)
    evaluation = evaluate_frame(frame, pairs, inputs.scheme)
    summary = {"provenance": facts, **evaluation.to_json()}
    text = json.dumps(summary, indent=1) + "\n"
    write_whole(settings.out / "summary.json", text)
    _write_printed(settings, evaluation)
    if not settings.tables_only:
        _write_page(inputs, evaluation, measured, facts, notices)


def _provenance(
    settings: EvaluationSettings,
    scheme: LabelScheme,
    notices: Sequence[str],
    started: datetime,
) -> dict[str, str]:
    """How the evaluation was made, for the end of the page and the summary."""
    truth = str(settings.truth)
    if settings.part:
        truth = f"{truth}, part {settings.part}"
    facts = provenance(started, settings.command, scheme.name)
    facts["truth"] = truth
    if notices:
        facts["labels made by models"] = " ".join(notices)
    for name, place in settings.models.items():
        facts[f"predictions of {name}"] = str(place)
    versions = [version(library) for library in _LIBRARIES]
    facts[", ".join(_LIBRARIES)] = ", ".join(versions)
    facts["metrics.csv (SHA-256)"] = sha256_of(settings.out / "metrics.csv")
    return facts


def _write_printed(settings: EvaluationSettings, evaluation: Evaluation) -> None:
    """The table of structures as it is printed in papers, where it was asked for."""
    if not settings.csv and not settings.latex:
        return
    table = printed(evaluation)
    if settings.csv:
        write_table(settings.out / "structures.csv", table)
    if settings.latex:
        write_whole(settings.out / "structures.tex", latex(table))


def _write_page(
    inputs: Inputs,
    evaluation: Evaluation,
    measured: Sequence[Done],
    facts: Mapping[str, str],
    notices: Sequence[str],
) -> None:
    """report.html and the figures beside it."""
    from trinat.segmentation.report.evaluation import (
        drawings,
        evaluation_page,
        heat_maps,
    )

    settings = inputs.settings
    folder = settings.out / "figures"
    plots = drawings(evaluation, inputs.scheme)
    for of_section in plots.values():
        for drawing in of_section:
            drawing.save(folder)
    for drawing in heat_maps(evaluation):
        drawing.save(folder)
    cases, more_notices = worst_cases(
        settings, inputs.scheme, evaluation.frame, measured, inputs.images
    )
    for number, case in enumerate(cases, start=1):
        write_whole(folder / f"worst-{number}.png", case.view.still_png)
    page = evaluation_page(
        evaluation,
        plots,
        cases,
        inputs.scheme,
        facts,
        faces=_note_on_faces(inputs),
        notices=[*notices, *more_notices],
    )
    write_whole(settings.out / "report.html", page)


def _note_on_faces(inputs: Inputs) -> str:
    """Whether the page's pictures show faces; empty where there are no scans to show."""
    if not inputs.images:
        return ""
    if inputs.settings.show_heads:
        return "Whole heads are shown, as asked for."
    return "Scans are black away from the brain, so that no face is shown."
