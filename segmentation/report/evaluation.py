"""The evaluation report: what its page says, from metrics.csv and the table of pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from trinat.segmentation.io.files import spreadsheet_safe
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.definitions import METRICS
from trinat.segmentation.metrics.statistics import FEWEST_PERSONS
from trinat.segmentation.report import figures, summary, tables
from trinat.segmentation.report.drawing import Drawing
from trinat.segmentation.report.page import asset, count, render, short_name
from trinat.segmentation.report.pictures import ERROR_COLORS, CaseView
from trinat.segmentation.report.summary import HEADLINE, Evaluation

_HEAT = HEADLINE[:4]
_PLOTTED = (*_HEAT, "assd", "boundary_iou", "volume_difference")


@dataclass(frozen=True)
class Case:
    """One of the worst scans, ready to be shown."""

    title: str
    text: str
    alt: str
    view: CaseView
    palette: None = None  # one for all

    @property
    def still(self) -> str:
        return self.view.still


def drawings(evaluation: Evaluation) -> dict[str, list[Drawing]]:
    """The report's figures, by section."""
    frame, models, table = evaluation.frame, evaluation.models, evaluation.comparisons
    present = set(frame["metric"].unique())
    structures = summary.structures_of(frame)
    compared: Any = [] if table.empty else table.groupby(["first", "second"], sort=False).groups
    return {
        "structures": [figures.box_plot(frame, m) for m in _PLOTTED if m in present],
        "models": _numbered(
            figures.comparison_plot(table, metric, first, second)
            for first, second in compared
            for metric in ("dice", "hd95")
        ),
        "volumes": _numbered(figures.bland_altman_plot(frame, m, structures) for m in models),
        "confusions": _numbered(figures.confusion_plot(frame, m) for m in models),
    }


def heat_maps(evaluation: Evaluation) -> list[Drawing]:
    """Scan x structure, a figure for each metric and model; the page has them as tables."""
    frame = evaluation.frame
    return [
        drawing
        for metric in _HEAT
        for drawing in _numbered(figures.heat_map(frame, m, metric) for m in evaluation.models)
    ]


def evaluation_page(
    evaluation: Evaluation,
    plots: Mapping[str, Sequence[Drawing]],
    cases: Sequence[Case],
    scheme: LabelScheme,
    provenance: Mapping[str, str],
    *,
    faces: str = "",
    notices: Sequence[str] = (),
) -> str:
    """The HTML file."""
    frame, models, compared = evaluation.frame, evaluation.models, evaluation.comparisons
    few = not compared.empty and compared["p"].isna().all()
    untested = (
        f"Fewer than {FEWEST_PERSONS} persons have both: differences are shown, but not tested."
    )
    persons = frame["subject"].nunique()
    scans = len(frame[["subject", "session"]].drop_duplicates())
    return render(
        "evaluation.html",
        title="Segmentation evaluation",
        lead=f"{' and '.join(models)} against the truth: {count(scans, 'scan')} of "
        f"{count(persons, 'person')}, {len(summary.structures_of(frame))} structures "
        f"({scheme.name}).",
        provenance=provenance,
        notices=[*notices, *_notices(evaluation, persons)],
        cards=_cards(evaluation, models[0]),
        headline=tables.headline(evaluation),
        groups=tables.groups(evaluation),
        plots=plots,
        structures=tables.structures(evaluation),
        heat={
            METRICS[m].title: [tables.heat(evaluation, model, m, scheme) for model in models]
            for m in _HEAT
        },
        not_predicted=tables.not_predicted(evaluation),
        comparison_notices=[untested] if few else [],
        comparison=tables.comparison(evaluation),
        agreement=tables.agreement(evaluation),
        retest=tables.retest(evaluation),
        confusions=tables.confusions(frame),
        cases=cases,
        faces=faces,
        palette={
            "colors": [list(label.color) for label in scheme.labels],
            "names": [short_name(label.name) for label in scheme.labels],
            "errors": ERROR_COLORS,
        },
        pairs=tables.pairs(evaluation.pairs),
        definitions=tables.definitions(),
        again=code_of(models[0]),
    )


def code_of(model: str) -> str:
    """Python that computes the statistics of a model's structures again, from metrics.csv."""
    # Written apart from `summary.py`, and a test compares.
    return asset("evaluation-again.txt").replace("MODEL", repr(spreadsheet_safe(model)))


def _notices(evaluation: Evaluation, persons: int) -> list[str]:
    """What a reader must know before believing a number."""
    notices = []
    status = evaluation.pairs["status"].value_counts()
    texts = {
        "failed": ("pair", "could not be measured; the reasons are below."),
        "no prediction": ("true label map", "without a prediction."),
        "no truth": ("prediction", "without a truth, not counted."),
    }
    for kind, number in status.items():
        if kind in texts:
            noun, text = texts[kind]
            notices.append(f"{count(number, noun)} {text}")
    for row in summary.swapped(evaluation.frame).to_dict("records"):
        scan = f"{row['subject']} {row['session']}".strip()
        notices.append(
            f"{scan}: {row['model']} has left and right exchanged "
            f"({row['value']:.0%} of the paired overlap is on the wrong side)."
        )
    absences = summary.absences(evaluation.frame)
    sums = absences.groupby(["model", "absence"])["count"].sum().reset_index()
    for model, absence, number in sums.itertuples(index=False):
        if absence != "absent from both":
            notices.append(f"{model}: {count(number, 'structure')} {absence} over all scans.")
    for row in evaluation.not_predicted.to_dict("records"):
        name = short_name(row["structure"])
        notices.append(f"{name} is not predicted by {row['model']}: it is in no mean.")
    notices += _different_means(evaluation)
    if persons < FEWEST_PERSONS:
        notices.append(
            f"Only {count(persons, 'person')}: intervals are rough, and a test needs at least "
            f"{FEWEST_PERSONS}."
        )
    paired_by_order = evaluation.pairs["paired_by"].str.startswith("natural order")
    if paired_by_order.any():
        notices.append("Files were paired by their order, because no names match: check the table.")
    measured = evaluation.pairs[evaluation.pairs["status"] == "measured"]
    for note, number in measured["note"].replace("", pd.NA).value_counts().items():
        notices.append(f"{count(int(number), 'prediction')}: {note}.")
    return notices


def _different_means(evaluation: Evaluation) -> list[str]:
    """Models whose means over all structures must not be compared, and in which metrics."""
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
            f"The means of {first} and {second} are not over the same scans and structures. "
            f"Values that only one of the two has: {', '.join(metrics)}. “Models compared” leaves "
            "them out."
        )
    return notices


def _cards(evaluation: Evaluation, model: str) -> list[tuple[str, str, str]]:
    """What, its value, and more of it."""
    cards = []
    for metric in HEADLINE:
        found = evaluation.statistic(model, metric, "group:all")
        if not found or np.isnan(found["mean"]):
            continue
        what = METRICS[metric]
        title = f"{what.title}, {model}" if len(evaluation.models) > 1 else what.title
        unit = f" {what.unit}" if what.unit else ""
        mean, low, high = (
            f"{found[key]:.{tables.digits_of(metric)}f}" for key in ("mean", "low", "high")
        )
        several = not np.isnan(found["low"])
        more = f"95 % interval {low} to {high}" if several else "one person: no interval"
        cards.append((title, mean + unit, more))
    return cards


def _numbered(drawings: Iterable[Drawing]) -> list[Drawing]:
    """Names of their own for figures of several models: they become files in one folder."""
    return [replace(d, name=f"{d.name}-{n}") for n, d in enumerate(drawings, start=1)]
