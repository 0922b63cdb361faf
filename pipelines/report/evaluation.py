"""Page of `trinat evaluate`, and the table of results for a paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from trinat.pipelines.common.text import count
from trinat.pipelines.report import figures, measurements, summary, tables
from trinat.pipelines.report.case_view import ERROR_COLORS, CaseView, Palette
from trinat.pipelines.report.drawing import Drawing
from trinat.pipelines.report.page import Table, render, short_name
from trinat.pipelines.report.summary import Evaluation
from trinat.pipelines.report.tables import digits_of
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.definitions import HEADLINE, METRICS, PLOTTED, PRINTED
from trinat.segmentation.metrics.statistics import (
    FEWEST_PARTICIPANTS,
    fewest_participants_for,
)
from trinat.segmentation.rendering.pictures import data_uri


@dataclass(frozen=True)
class WorstScan:
    """One of the scans with the lowest mean Dice, as it is shown on the page.

    `title` names the scan, `text` says what is wrong with it, `alt` describes the picture for
    readers who cannot see it. `view` is the data of the slice viewer.
    """

    title: str
    text: str
    alt: str
    view: CaseView

    @property
    def still(self) -> str:
        """The PNG for print, as a data URI."""
        return data_uri("png", self.view.still_png)


def drawings(evaluation: Evaluation) -> dict[str, list[Drawing]]:
    """Return the figures of the page in lists, by the name of their section.

    They are drawn from the tables in `evaluation`. Sections are structures, models (comparisons of
    two models, with several only), volumes and confusions. Metrics that were not measured have no
    figure. Structures that are absent from all label maps are not shown.
    """
    evaluation = evaluation.without_absent()
    frame = evaluation.frame
    models = evaluation.models
    structures = measurements.structures_of(frame)
    boxes = [figures.box_plot(frame, metric) for metric in evaluation.measured(PLOTTED)]
    volumes = [figures.bland_altman_plot(frame, model, structures) for model in models]
    confusions = [figures.confusion_plot(frame, model) for model in models]
    # Every two models are compared in overlap and in distance.
    compared = []
    table = evaluation.comparisons
    if not table.empty:
        pairs: Any = table.groupby(["first", "second"], sort=False).groups
        for first, second in pairs:
            compared.append(figures.comparison_plot(table, "dice", first, second))
            compared.append(figures.comparison_plot(table, "hd95", first, second))
    return {
        "structures": boxes,
        "models": _with_unique_names(compared),
        "volumes": _with_unique_names(volumes),
        "confusions": _with_unique_names(confusions),
    }


def evaluation_page(
    evaluation: Evaluation,
    plots: Mapping[str, Sequence[Drawing]],
    worst: Sequence[WorstScan],
    scheme: LabelScheme,
    provenance: Mapping[str, str],
    *,
    faces: str = "",
    notices: Sequence[str] = (),
    lesions: Sequence[Table] = (),
) -> str:
    """Return the page of an evaluation as HTML.

    - `plots` maps each section of the page to its figures, as `drawings` returns them.
    - `worst` are the scans for the slice viewer.
    - `scheme` is the label scheme, for names and colours.
    - `provenance` is shown at the end: texts such as program version, date and command, by title.
    - `faces` is a sentence on whether the pictures show faces.
    - `notices` are shown before the warnings that the page derives from the numbers.
    - `lesions` are the tables of lesions, if masks of lesions were compared.
    """
    every_notice = [*notices, *_notices(evaluation)]
    evaluation = evaluation.without_absent()
    frame = evaluation.frame
    scans = len(frame[["subject", "session"]].drop_duplicates())
    participants = frame["subject"].nunique()
    structures = len(measurements.structures_of(frame))
    lead = (
        f"{' and '.join(evaluation.models)} against the truth: {count(scans, 'scan')} of "
        f"{count(participants, 'participant')}, {count(structures, 'structure')} ({scheme.name})."
    )
    # Tables by the metric's title, one for each model.
    heat = {}
    for metric in evaluation.measured(PRINTED):
        heat[METRICS[metric].title] = [
            tables.heat(evaluation, model, metric, scheme)
            for model in evaluation.models
        ]
    # Colours of classes and errors in the page's slice viewer.
    palette = {
        **Palette.of(scheme).model_dump(),
        "errors": ERROR_COLORS,
    }
    return render(
        "evaluation.html",
        title="Segmentation evaluation",
        lead=lead,
        provenance=provenance,
        notices=every_notice,
        cards=_cards(evaluation),
        headline=tables.headline(evaluation),
        groups=tables.groups(evaluation),
        plots=plots,
        lesions=lesions,
        structures=tables.structures(evaluation),
        heat=heat,
        not_predicted=tables.not_predicted(evaluation),
        comparison_notices=_comparison_notices(evaluation.comparisons),
        comparison=tables.comparison(evaluation),
        agreement=tables.agreement(evaluation),
        retest=tables.retest(evaluation),
        confusions=tables.confusions(frame),
        cases=worst,
        faces=faces,
        palette=palette,
        pairs=tables.pairs(evaluation.pairs),
        definitions=tables.definitions(),
    )


def _comparison_notices(compared: pd.DataFrame) -> list[str]:
    """Return notices on tests between models that are impossible or cannot become significant.

    `compared` is the table of `summary.comparisons`. Too few participants are the reason in both
    cases.
    """
    if compared.empty:
        return []
    if compared["p"].isna().all():
        return [
            f"Differences are not tested: fewer than {FEWEST_PARTICIPANTS} participants have both "
            "values."
        ]
    structures = compared[~measurements.is_group(compared) & compared["p"].notna()]
    if structures.empty:
        return []
    tests = structures["structure"].nunique()
    participants = int(structures["participants"].max())
    needed = fewest_participants_for(tests)
    if participants >= needed:
        return []
    least = min(1.0, tests * 2 / 2**participants)
    return [
        f"With {participants} participants and {tests} structures no single structure can be "
        f"significant: p after Holm is at least {least:.2f}. It takes {needed} participants."
    ]


def _notices(evaluation: Evaluation) -> list[str]:
    """Return the warnings that the page shows above the numbers, one sentence each.

    They are about label maps that were not measured, exchanged sides, absent structures, means that
    must not be compared, and few participants. All follow from the tables in `evaluation`.
    """
    # Words for the warnings about label maps that were not measured, by their status.
    texts = {
        "failed": ("pair", "could not be measured; the reasons are below."),
        "no prediction": ("true label map", "without a prediction."),
        "no truth": ("prediction", "without a truth, not counted."),
    }
    notices = []
    for status, number in evaluation.pairs["status"].value_counts().items():
        if status in texts:
            noun, text = texts[status]
            notices.append(f"{count(number, noun)} {text}")
    for row in summary.swapped(evaluation.frame).to_dict("records"):
        scan = f"{row['subject']} {row['session']}".strip()
        notices.append(
            f"{scan}: {row['model']} has left and right exchanged "
            f"({row['value']:.0%} of the paired overlap is on the wrong side)."
        )
    notices += _absent_structures(evaluation)
    notices += _different_means(evaluation)
    participants = evaluation.frame["subject"].nunique()
    if participants < FEWEST_PARTICIPANTS:
        notices.append(
            f"Only {count(participants, 'participant')}: intervals are rough, and a test needs at "
            f"least {FEWEST_PARTICIPANTS}."
        )
    # Notes on the steps that were needed to make files comparable.
    pairs = evaluation.pairs
    measured = pairs[pairs["status"] == "measured"]
    notes = measured["note"].replace("", pd.NA)
    for note, number in notes.value_counts().items():
        notices.append(f"{count(int(number), 'prediction')}: {note}.")
    return notices


def _absent_structures(evaluation: Evaluation) -> list[str]:
    """Return warnings about structures that are missed, invented, absent or not compared.

    They are counted in `evaluation.frame`, the table of metrics.csv.
    """
    notices = []
    absences = summary.absences(evaluation.frame)
    sums = absences.groupby(["model", "absence"])["count"].sum().reset_index()
    for model, absence, number in sums.itertuples(index=False):
        if absence != "absent from both":
            notices.append(
                f"{model}: {count(number, 'structure')} {absence} over all scans."
            )
    absent = summary.absent_everywhere(evaluation.frame)
    if absent:
        # If both sides of a pair are absent, name the structure once.
        pairs = dict.fromkeys(
            short_name(measurements.without_side(name)) for name in absent
        )
        notices.append(
            f"{count(len(absent), 'structure')} not shown, because no true or predicted label map "
            f"has it: {', '.join(pairs)}."
        )
    for row in evaluation.not_predicted.to_dict("records"):
        name = short_name(row["structure"])
        notices.append(
            f"{name} is not predicted by {row['model']} and excluded from its means."
        )
    for row in evaluation.other_csf.to_dict("records"):
        name = short_name(row["structure"])
        notices.append(
            f"{name} of {row['model']} is not compared, because its definition differs from that "
            "of the truth: one is all fluid inside the skull, the other a small region."
        )
    return notices


def _different_means(evaluation: Evaluation) -> list[str]:
    """Return a warning for each two models whose means must not be compared.

    Their means are over different scans and structures, because a metric is undefined for one of
    the models. A warning lists the metrics, with the number of such values, from
    `evaluation.comparisons`.
    """
    table = evaluation.comparisons
    if table.empty:
        return []
    table = table[(table["structure"] == "group:all") & (table["left_out"] > 0)]
    notices = []
    for (first, second), rows in table.groupby(["first", "second"], sort=False):
        metrics = [
            f"{METRICS[metric].title} ({number})"
            for metric, number in zip(rows["metric"], rows["left_out"], strict=True)
        ]
        notices.append(
            f"The means of {first} and {second} cover different scans and structures. "
            f"Values of only one of the models: {', '.join(metrics)}. “Models compared” excludes "
            "them."
        )
    return notices


def _cards(evaluation: Evaluation) -> list[tuple[str, str, str]]:
    """Return the boxes at the top of the page, each with a title, a value and a detail.

    A box shows the mean of one metric over all structures, from `evaluation.statistics`, and its
    95 % interval. With several models, each has a row of boxes with fewer metrics.
    """
    metrics = HEADLINE if len(evaluation.models) == 1 else PRINTED
    cards = []
    for model, metric in product(evaluation.models, metrics):
        found = evaluation.statistic(model, metric, "group:all")
        if not found or np.isnan(found["mean"]):
            continue
        definition = METRICS[metric]
        title = definition.title
        if len(evaluation.models) > 1:
            title += f", {model}"
        digits = digits_of(metric)
        value = f"{found['mean']:.{digits}f}"
        if definition.unit:
            value += f" {definition.unit}"
        more = "one participant: no interval"
        if not np.isnan(found["low"]):
            low = f"{found['low']:.{digits}f}"
            high = f"{found['high']:.{digits}f}"
            more = f"95 % interval {low} to {high}"
        cards.append((title, value, more))
    return cards


def _with_unique_names(drawings: Iterable[Drawing]) -> list[Drawing]:
    """Return copies of figures whose names end with a number, because they share a folder."""
    numbered = []
    for number, drawing in enumerate(drawings, start=1):
        numbered.append(replace(drawing, name=f"{drawing.name}-{number}"))
    return numbered


def printed(evaluation: Evaluation) -> pd.DataFrame:
    """Return the table of results for a paper, with a row for each model and structure or group.

    A group is a group of structures. Columns are `model`, `structure`, `participants` (their
    number) and, for each metric, the rounded mean, SD and 95 % interval and the number of undefined
    values. All cells are text, "" if a number is undefined. Structures without a Dice value, such
    as those that a model does not predict, have no row. An evaluation without any Dice value gives
    an empty table.
    """
    names = [
        *measurements.structures_of(evaluation.frame),
        *measurements.groups_of(evaluation.frame),
    ]
    metrics = evaluation.measured(PRINTED)
    rows = []
    for model in evaluation.models:
        for structure in names:
            dice = evaluation.statistic(model, "dice", structure)
            if not dice:
                continue
            row = {
                "model": model,
                "structure": short_name(structure),
                "participants": str(dice["participants"]),
            }
            for metric in metrics:
                statistic = evaluation.statistic(model, metric, structure)
                for key in ("mean", "sd", "low", "high"):
                    value = statistic.get(key, np.nan)
                    text = ""
                    if not np.isnan(value):
                        text = f"{value:.{digits_of(metric)}f}"
                    row[f"{metric}_{key}"] = text
                undefined = str(statistic["undefined"]) if statistic else ""
                row[f"{metric}_undefined"] = undefined
            rows.append(row)
    return pd.DataFrame(rows)
