"""The evaluation report: what its page says, from metrics.csv and the table of pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from segmentation.labels import LabelScheme
from segmentation.metrics.definitions import METRICS
from segmentation.metrics.statistics import BOOTSTRAP_SAMPLES, FEWEST_PERSONS
from segmentation.report import evaluation_tables as tables
from segmentation.report import figures, summary
from segmentation.report.figures import Drawing, short_name
from segmentation.report.page import render
from segmentation.report.snippets import snippets
from segmentation.report.viewer import ERROR_COLORS, CaseView

__all__ = ["PAPERS", "Case", "Evaluation", "evaluate_frame", "evaluation_page"]

PAPERS = (
    "Roy, Conjeti, Navab, Wachinger. QuickNAT: A fully convolutional network for quick and "
    "accurate segmentation of neuroanatomy. NeuroImage 186 (2019), 713-727. arXiv:1801.04161",
    "Nikolov et al. Clinically applicable segmentation of head and neck anatomy for radiotherapy. "
    "J Med Internet Res 23 (2021), e26151 (surface Dice). arXiv:1809.04430",
    "Cheng, Girshick, Dollár, Berg, Kirillov. Boundary IoU. CVPR 2021. arXiv:2103.16562",
    "Maier-Hein, Reinke et al. Metrics reloaded: recommendations for image analysis validation. "
    "Nature Methods 21 (2024), 195-212. arXiv:2206.01653",
)

_PLOTTED = ("dice", "hd95", "assd", "surface_dice_1mm", "boundary_iou", "volume_difference")


@dataclass(frozen=True)
class Case:
    """One of the worst scans, ready to be shown."""

    title: str
    text: str
    alt: str
    view: CaseView


@dataclass(frozen=True)
class Evaluation:
    """Everything that a report says, computed once from the table of measurements."""

    frame: pd.DataFrame
    pairs: pd.DataFrame
    statistics: pd.DataFrame
    comparisons: pd.DataFrame
    agreement: pd.DataFrame
    retest: pd.DataFrame

    @property
    def models(self) -> list[str]:
        return summary.models_of(self.frame)

    def statistic(self, model: str, metric: str, structure: str) -> Mapping[str, Any]:
        table = self.statistics
        found = table[
            (table["model"] == model)
            & (table["metric"] == metric)
            & (table["structure"] == structure)
        ]
        return {} if found.empty else dict(found.iloc[0])

    def to_json(self) -> dict[str, Any]:
        """The tables of the report as records; undefined numbers are null."""
        return {
            "statistics": _records(self.statistics),
            "comparisons": _records(self.comparisons),
            "agreement": _records(self.agreement),
            "retest": _records(self.retest),
            "side_swapped": _records(summary.swapped(self.frame)),
            "absences": _records(_absences(self.frame)),
            "pairs": {str(k): int(v) for k, v in self.pairs["status"].value_counts().items()},
        }

    def drawings(self) -> dict[str, list[Drawing]]:
        """The report's figures, by section."""
        present = set(self.frame["metric"].unique())
        structures = summary.structures_of(self.frame)
        shown = [s for s in structures if s.startswith("Left-")] or structures
        compared = [
            figures.comparison_plot(self.comparisons, metric, first, second)
            for first, second in dict.fromkeys(
                zip(
                    self.comparisons.get("first", ()),
                    self.comparisons.get("second", ()),
                    strict=True,
                )
            )
            for metric in ("dice", "hd95")
        ]
        return {
            "structures": [figures.box_plot(self.frame, m) for m in _PLOTTED if m in present],
            "models": _numbered(compared),
            "volumes": _numbered(
                figures.bland_altman_plot(self.frame, model, shown[:16]) for model in self.models
            ),
            "confusions": _numbered(
                figures.confusion_plot(self.frame, model) for model in self.models
            ),
        }

    def heat_maps(self) -> list[Drawing]:
        """Scan x structure, a figure a model; the page has them as tables."""
        maps = []
        for n, model in enumerate(self.models):
            table = summary.by_scan(self.frame, model, "dice").sort_values("group:all")
            table = table[[s for s in summary.structures_of(self.frame) if s in table.columns]]
            drawing = figures.heat_map(table.head(100), f"Dice, {model}")
            maps.append(replace(drawing, name=f"{drawing.name}-{n + 1}"))
        return maps


def evaluate_frame(frame: pd.DataFrame, pairs: pd.DataFrame) -> Evaluation:
    """All statistics of a metrics.csv."""
    return Evaluation(
        frame,
        pairs,
        summary.structure_statistics(frame),
        summary.comparisons(frame),
        summary.agreement(frame),
        summary.retest(frame),
    )


def evaluation_page(
    evaluation: Evaluation,
    drawings: Mapping[str, Sequence[Drawing]],
    cases: Sequence[Case],
    scheme: LabelScheme,
    provenance: Mapping[str, str],
    *,
    faces: str = "",
    notices: Sequence[str] = (),
) -> str:
    """The HTML file."""
    frame, models = evaluation.frame, evaluation.models
    persons, scans = (
        frame["subject"].nunique(),
        len(frame[["subject", "session"]].drop_duplicates()),
    )
    compared = _plots(drawings["models"])
    contents = [
        ("glance", "At a glance"),
        ("structures", "By structure"),
        ("scans", "By scan"),
        *([("models", "Models compared")] if compared else []),
        ("volumes", "Volumes"),
        ("confusions", "Confusions"),
        ("worst", "Worst cases"),
        ("files", "Scans and failures"),
        ("definitions", "Definitions"),
        ("again", "Compute it again"),
        ("provenance", "What was done"),
    ]
    return render(
        "evaluation.html",
        title="Segmentation evaluation",
        lead=f"{_listed(models)} against the truth: {_count(scans, 'scan')} of "
        f"{_count(persons, 'person')}, {len(summary.structures_of(frame))} structures "
        f"({scheme.name}).",
        contents=contents,
        provenance=provenance,
        notices=[*notices, *_notices(evaluation, persons)],
        cards=_cards(evaluation, models[0]),
        headline=tables.headline(evaluation),
        groups=tables.groups(evaluation),
        plots=_plots(drawings["structures"], _plot_captions(drawings["structures"])),
        structures=tables.structures(evaluation),
        heat=[tables.heat(frame, model, scheme) for model in models],
        comparison_plots=compared,
        comparison_notices=_comparison_notices(evaluation),
        comparison=tables.comparison(evaluation),
        agreement_plots=_plots(drawings["volumes"], titles=models),
        agreement=tables.agreement(evaluation),
        retest=tables.retest(evaluation),
        confusions=tables.confusions(frame),
        confusion_plots=_plots(
            drawings["confusions"], titles=[f"All confusions of {m}" for m in models]
        ),
        cases=cases,
        faces=faces,
        palette={
            "colors": [list(label.color) for label in scheme.labels],
            "names": [short_name(label.name) for label in scheme.labels],
            "errors": ERROR_COLORS,
        },
        pairs=tables.pairs(evaluation.pairs),
        definitions=tables.definitions(),
        samples=f"{BOOTSTRAP_SAMPLES:,}",
        again=snippets(models),
        facts=list(provenance.items()),
        papers=PAPERS,
    )


def _notices(evaluation: Evaluation, persons: int) -> list[str]:
    """What a reader must know before believing a number."""
    notices = []
    status = evaluation.pairs["status"].value_counts()
    for kind, count in status.items():
        if kind == "failed":
            notices.append(f"{_count(count, 'pair')} could not be measured; the reasons are below.")
        elif kind == "no prediction":
            notices.append(f"{_count(count, 'true label map')} without a prediction.")
        elif kind == "no truth":
            notices.append(f"{_count(count, 'prediction')} without a truth, not counted.")
    for row in summary.swapped(evaluation.frame).to_dict("records"):
        scan = f"{row['subject']} {row['session']}".strip()
        notices.append(
            f"{scan}: {row['model']} has left and right exchanged "
            f"({row['value']:.0%} of the paired overlap is on the wrong side)."
        )
    absences = _absences(evaluation.frame)
    sums = absences.groupby(["model", "absence"])["count"].sum().reset_index()
    for row in sums.to_dict("records"):
        if row["absence"] != "absent from both":
            structures = _count(row["count"], "structure")
            notices.append(f"{row['model']}: {structures} {row['absence']} over all scans.")
    if persons < FEWEST_PERSONS:
        notices.append(
            f"Only {_count(persons, 'person')}: intervals are rough, and fewer than "
            f"{FEWEST_PERSONS} allow no test."
        )
    paired_by_order = evaluation.pairs["paired_by"].str.startswith("natural order")
    if paired_by_order.any():
        notices.append("Files were paired by their order, since no names match: check the table.")
    measured = evaluation.pairs[evaluation.pairs["status"] == "measured"]
    for note, count in measured["note"].replace("", pd.NA).value_counts().items():
        notices.append(f"{_count(int(count), 'prediction')}: {note}.")
    return notices


def _cards(evaluation: Evaluation, model: str) -> list[dict[str, str]]:
    cards = []
    for metric in tables.HEADLINE:
        found = evaluation.statistic(model, metric, "group:all")
        if not found or np.isnan(found["mean"]):
            continue
        what = METRICS[metric]
        digits = tables.digits_of(metric)
        unit = f" {what.unit}" if what.unit else ""
        cards.append(
            {
                "what": f"{what.title}" + (f", {model}" if len(evaluation.models) > 1 else ""),
                "value": f"{found['mean']:.{digits}f}{unit}",
                "more": f"95 % interval {found['low']:.{digits}f} to {found['high']:.{digits}f}",
            }
        )
    return cards


def _comparison_notices(evaluation: Evaluation) -> list[str]:
    table = evaluation.comparisons
    if table.empty or table["p"].notna().any():
        return []
    return [
        f"Fewer than {FEWEST_PERSONS} persons have both: differences are shown, none is tested."
    ]


def _absences(frame: pd.DataFrame) -> pd.DataFrame:
    """How often each structure is missed, invented or absent from both."""
    rows = frame[(frame["metric"] == "dice") & (frame["note"] != "")]
    rows = rows[~rows["structure"].str.startswith("group:")]
    counts = rows.groupby(["model", "structure", "note"]).size()
    return counts.rename("count").reset_index().rename(columns={"note": "absence"})


def _numbered(drawings: Iterable[Drawing]) -> list[Drawing]:
    """Names of their own for figures of several models: they become files in one folder."""
    return [replace(d, name=f"{d.name}-{n}") for n, d in enumerate(drawings, start=1)]


def _plots(
    drawings: Iterable[Drawing], captions: Sequence[str] = (), *, titles: Sequence[str] = ()
) -> list[dict[str, str]]:
    return [
        {
            "svg": d.inline(),
            "caption": captions[n] if captions else "",
            "title": titles[n]
            if titles
            else METRICS[d.name.partition("-")[2]].title
            if d.name.startswith("boxes-")
            else d.label,
        }
        for n, d in enumerate(drawings)
    ]


def _plot_captions(drawings: Iterable[Drawing]) -> list[str]:
    return [METRICS[d.name.removeprefix("boxes-")].definition for d in drawings]


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {str(k): None if isinstance(v, float) and not np.isfinite(v) else v for k, v in row.items()}
        for row in table.to_dict("records")
    ]


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
