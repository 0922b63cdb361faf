"""The tables and the report of an evaluation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from trinat.pipelines.common.ratings import (
    agreement_table,
    use_of_ratings,
)
from trinat.pipelines.common.scanfiles import ScanFile
from trinat.pipelines.evaluate.gather import Inputs, Settings
from trinat.pipelines.evaluate.pairing import (
    Done,
    Pairing,
    pair_files,
    read_pair,
    scan_of,
)
from trinat.segmentation.errors import EvaluationError, TrinatError
from trinat.segmentation.io.files import sha256_of, write_whole
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.common_grid import on_grid_of
from trinat.segmentation.report.measurements import metrics_frame, write_table
from trinat.segmentation.report.page import provenance
from trinat.segmentation.report.paper import latex, printed

if TYPE_CHECKING:
    from trinat.segmentation.report.evaluation import Case


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
_FACTS = ("shape", "spacing_mm", "truth_sha256", "prediction_sha256")


def publish(
    inputs: Inputs, done: Sequence[Done], started: datetime, say: Callable[[str], None]
) -> None:
    """Write the tables and the report, and say what was not measured."""
    settings = inputs.settings
    pairs = _pairs_table(done, inputs.pairings)
    write_table(settings.out / "pairs.csv", pairs)
    for row in pairs[pairs["status"] != "measured"].to_dict("records"):
        scan = f"{row['subject']} {row['session']}".strip()
        say(f"{scan}, {row['model']}: {row['note']}")
    measured = [result for result in done if not result.failure and not result.rejected]
    if not measured:
        first = done[0].failure or f"rejected by {done[0].rejected}"
        what = f"none of {len(done)} pairs could be measured; the first: {first}"
        raise EvaluationError(what, where=settings.out / "pairs.csv")
    frame = metrics_frame(
        (scan_of(result.task), result.measurements) for result in measured
    )
    write_table(settings.out / "metrics.csv", frame)
    notices = _notices(inputs, done)
    for notice in notices:
        say(notice)
    _write_report(
        settings, inputs.scheme, frame, pairs, measured, inputs.images, notices, started
    )


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
        write_table(inputs.settings.out / "raters.csv", agreement_table(inputs.ratings))
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
        digest = result.facts.get("prediction_sha256", "")
        rejected = result.task.rejected.get(digest, {})
        if result.rejected:  # all of the map
            continue
        for structure in result.task.made.measured_though_rejected(scheme, rejected):
            found.add((digest, structure))
    return found


def _pairs_table(done: Iterable[Done], pairings: Mapping[str, Pairing]) -> pd.DataFrame:
    """Every file of both sides: measured, failed, or without a partner."""
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
        rows += [
            _row_alone(file, model, pairing, "truth", "prediction")
            for file in pairing.truths_alone
        ]
        rows += [
            _row_alone(file, model, pairing, "prediction", "truth")
            for file in pairing.predictions_alone
        ]
    columns = [
        "subject",
        "session",
        "model",
        "status",
        "note",
        "paired_by",
        "truth",
        "prediction",
    ]
    return pd.DataFrame(rows, columns=[*columns, *_FACTS]).fillna("")


def _row_alone(
    file: ScanFile, model: str, pairing: Pairing, side: str, other: str
) -> dict[str, str]:
    """A file of one side (truth or prediction) to which the other side has none."""
    return {
        "subject": file.subject,
        "session": file.scan,
        "model": model,
        side: file.path.name,
        "status": f"no {other}",
        "note": pairing.doubts.get(file.path, f"no {other} found"),
    }


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
    from trinat.segmentation.report.evaluation import (
        drawings,
        evaluation_page,
        heat_maps,
    )
    from trinat.segmentation.report.summary import evaluate_frame

    done = {
        **provenance(started, settings.command, scheme.name),
        "truth": ", part ".join(filter(None, (str(settings.truth), settings.part))),
        **({"labels made by models": " ".join(notices)} if notices else {}),
        **{
            f"predictions of {name}": str(place)
            for name, place in settings.models.items()
        },
        "numpy, scipy, nibabel": ", ".join(
            version(n) for n in ("numpy", "scipy", "nibabel")
        ),
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
    faces = (
        "Scans are black away from the brain, so that no face is shown."
        if images
        else ""
    )
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
    from trinat.segmentation.report.case_view import view_case
    from trinat.segmentation.report.evaluation import Case
    from trinat.segmentation.report.page import short_name
    from trinat.segmentation.report.summary import worst_scans

    by_scan = {tuple(scan_of(result.task).values()): result.task for result in measured}
    truths = {
        result.task.pair.truth.name: result.task.pair.truth for result in measured
    }
    pairing = pair_files(truths.values(), images)
    scans = {pair.truth.name: pair.prediction for pair in pairing.pairs}
    missing = len(pairing.truths_alone) if images else 0
    notices = (
        [f"{missing} of {len(truths)} scans have no image to be shown on."]
        if missing
        else []
    )
    cases = []
    for row in worst_scans(frame).to_dict("records"):
        task = by_scan[row["subject"], row["session"], row["model"]]
        truth, true, predicted, _ = read_pair(task)
        image = None
        if scan_file := scans.get(task.pair.truth.name):
            try:
                read = Volume.read(
                    scan_file.path,
                    axes=scan_file.axes,
                    trust_affine=settings.trust_affine,
                )
                image = on_grid_of(read, truth)[0]
            except (TrinatError, OSError) as error:
                notices.append(f"shown without its scan: {error}")
        scan = f"{row['subject']} {row['session']}".strip()
        worst = f"{short_name(row['worst_structure'])} ({row['worst_value']:.2f})"
        text = f"Lowest Dice: {worst}. The first slices shown pass through most of its errors."
        maps = Volume(true, truth.affine), Volume(predicted, truth.affine)
        focus = scheme.names.index(row["worst_structure"])
        view = view_case(
            *maps, scheme, image=image, focus=focus, show_head=settings.show_heads
        )
        cases.append(
            Case(
                f"{scan}, {row['model']}: mean Dice {row['value']:.3f}",
                "No voxel differs." if np.array_equal(true, predicted) else text,
                f"Truth, prediction and errors of {scan} in three planes",
                view,
            )
        )
    return cases, notices
