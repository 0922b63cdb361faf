"""The tables of the evaluation page, one function each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from segmentation.labels import LabelScheme
from segmentation.metrics.definitions import METRICS
from segmentation.report import summary
from segmentation.report.figures import short_name
from segmentation.report.page import UNDEFINED, Cell, Column, Table, number

if TYPE_CHECKING:
    from segmentation.report.evaluation import Evaluation

__all__ = [
    "HEADLINE",
    "agreement",
    "comparison",
    "confusions",
    "definitions",
    "digits_of",
    "groups",
    "headline",
    "heat",
    "pairs",
    "retest",
    "structures",
]

# What a reader wants first, one metric of each kind.
HEADLINE = ("dice", "hd95", "assd", "surface_dice_1mm", "absolute_volume_difference")
_MOST_SCANS = 200  # in the table by scan; metrics.csv has them all
_MOST_CONFUSIONS = 25


def headline(evaluation: Evaluation) -> Table:
    columns = [Column("Model"), Column("Persons", True), Column("Generalised Dice", True)]
    columns += [Column(_unit_title(m), True, METRICS[m].definition) for m in HEADLINE]
    rows = []
    for model in evaluation.models:
        dice = evaluation.statistic(model, "dice", "group:all")
        cells = [Cell(model), number(dice.get("persons"), 0)]
        cells.append(_interval(evaluation.statistic(model, "generalised_dice", "group:all")))
        cells += [_interval(evaluation.statistic(model, m, "group:all")) for m in HEADLINE]
        rows.append(cells)
    caption = "All structures: mean over persons, with its 95 % interval"
    return Table("headline", caption, tuple(columns), rows)


def groups(evaluation: Evaluation) -> Table:
    statistics = evaluation.statistics
    groups = [
        str(s)
        for s in evaluation.frame["structure"].unique()
        if str(s).startswith("group:") and s != "group:all"
    ]
    columns = [Column("Group"), Column("Model", pick=True)]
    columns += [Column(_unit_title(m), True, METRICS[m].definition) for m in HEADLINE]
    rows = [
        [
            Cell(short_name(group)),
            Cell(model),
            *(_interval(evaluation.statistic(model, m, group)) for m in HEADLINE),
        ]
        for model in evaluation.models
        for group in groups
        if group in set(statistics["structure"])
    ]
    return Table(
        "groups", "Groups of structures: mean over persons, 95 % interval", tuple(columns), rows
    )


def structures(evaluation: Evaluation) -> Table:
    columns = (
        Column("Structure"),
        Column("Metric", pick=True),
        Column("Model"),
        Column("Persons", True, "Persons with a value"),
        Column("Undefined", True, "Persons without a value: missed, invented or absent"),
        Column("Mean", True),
        Column("95 % low", True, "Bootstrap interval of the mean over persons"),
        Column("95 % high", True, "Bootstrap interval of the mean over persons"),
        Column("Median", True),
        Column("SD", True),
    )
    names = [*summary.structures_of(evaluation.frame), *evaluation.frame["structure"].unique()]
    place = {name: n for n, name in enumerate(dict.fromkeys(names))}
    order = {metric: n for n, metric in enumerate(METRICS)}
    records = sorted(
        evaluation.statistics.to_dict("records"),
        key=lambda row: (order[row["metric"]], place[row["structure"]]),
    )
    rows = []
    for row in records:
        digits = digits_of(row["metric"])
        rows.append(
            [
                Cell(short_name(row["structure"]), place[row["structure"]]),
                Cell(_unit_title(row["metric"])),
                Cell(row["model"]),
                number(row["persons"], 0),
                number(row["undefined"], 0),
                *(number(row[k], digits) for k in ("mean", "low", "high", "median", "sd")),
            ]
        )
    return Table("structure-table", "Every structure, group and metric", columns, rows)


def heat(frame: pd.DataFrame, model: str, scheme: LabelScheme) -> Table:
    table = summary.by_scan(frame, model, "dice").sort_values("group:all")
    abbreviations = {label.name: label.abbreviation for label in scheme.labels}
    singles = [name for name in table.columns if name in abbreviations]
    columns = (
        Column("Scan"),
        Column("All", True, "Mean over all structures"),
        *(Column(abbreviations[name], True, short_name(name)) for name in singles),
    )
    rows = []
    shown = table.head(_MOST_SCANS)
    names = [f"{subject} {session}".strip() for subject, session in shown.index]
    for name, (_, values) in zip(names, shown.iterrows(), strict=True):
        cells = [Cell(name)]
        for structure in ("group:all", *singles):
            value = values[structure]
            shade = None if np.isnan(value) else round(20 * float(np.clip(value, 0, 1)))
            cell = number(value, 2)
            hint = f"{short_name(structure)}: {cell.hint or cell.text}"
            cells.append(Cell(cell.text, cell.order, shade, hint))
        rows.append(cells)
    left_out = len(table) - len(rows)
    note = f"The {_MOST_SCANS} lowest of {len(table)}; metrics.csv has all." if left_out else ""
    return Table(
        f"heat-{scheme.name}-{summary.models_of(frame).index(model)}",
        f"Dice of every scan and structure, {model}; the lowest first",
        columns,
        rows,
        note,
        "heat",
    )


def comparison(evaluation: Evaluation) -> Table:
    columns = (
        Column("Structure"),
        Column("Metric", pick=True),
        Column("Models", pick=True),
        Column("Persons", True),
        Column("Difference", True, "Mean of second minus first over persons"),
        Column("95 % low", True),
        Column("95 % high", True),
        Column("Effect", True, "Matched-pairs rank-biserial correlation"),
        Column("p", True, "Wilcoxon's signed-rank test, uncorrected"),
        Column("p (Holm)", True, "Corrected over structures within a metric"),
        Column("Note"),
    )
    rows = []
    for row in evaluation.comparisons.to_dict("records"):
        digits = digits_of(row["metric"])
        rows.append(
            [
                Cell(short_name(row["structure"])),
                Cell(METRICS[row["metric"]].title),
                Cell(f"{row['second']} − {row['first']}"),
                number(row["persons"], 0),
                *(number(row[k], digits, sign=True) for k in ("mean_difference", "low", "high")),
                number(row["effect"], 2, sign=True),
                _p(row["p"]),
                _p(row["p_holm"]),
                Cell(row["note"]),
            ]
        )
    return Table("comparison-table", "Paired differences", columns, rows)


def agreement(evaluation: Evaluation) -> Table:
    columns = (
        Column("Structure"),
        Column("Model", pick=True),
        Column("Persons", True),
        Column("Bias (mm³)", True, "Mean of predicted minus true"),
        Column("SD (mm³)", True),
        Column("Lower limit", True, "Bias − 1.96 SD"),
        Column("Upper limit", True, "Bias + 1.96 SD"),
        Column("ICC(2,1)", True),
    )
    rows = [
        [
            Cell(short_name(row["structure"])),
            Cell(row["model"]),
            number(row["persons"], 0),
            *(number(row[k], 0, sign=k != "sd") for k in ("bias", "sd", "lower", "upper")),
            number(row["icc"], 3),
        ]
        for row in evaluation.agreement.to_dict("records")
    ]
    return Table("agreement-table", "Predicted against true volumes", columns, rows)


def retest(evaluation: Evaluation) -> Table | None:
    if evaluation.retest.empty:
        return None
    columns = (
        Column("Structure"),
        Column("Volume", pick=True),
        Column("Model", pick=True),
        Column("Persons", True),
        Column("Within-subject CV (%)", True),
        Column("ICC(2,1)", True),
    )
    titles = {"volume": "predicted", "truth_volume": "true"}
    rows = [
        [
            Cell(short_name(row["structure"])),
            Cell(titles[row["metric"]]),
            Cell(row["model"]),
            number(row["persons"], 0),
            number(row["cv_percent"], 2),
            number(row["icc"], 3),
        ]
        for row in evaluation.retest.to_dict("records")
    ]
    return Table("retest-table", "Volumes of two scans of a person", columns, rows)


def confusions(frame: pd.DataFrame) -> Table:
    columns = (
        Column("True structure"),
        Column("Labelled as"),
        Column("Model", pick=True),
        Column("Share of the truth (%)", True),
    )
    rows = []
    for model in summary.models_of(frame):
        table = summary.confusion(frame, model).drop(index="background")
        shares = table.to_numpy(float, copy=True)
        shares[np.array(table.index)[:, None] == np.array(table.columns)] = 0
        largest = np.argsort(-np.nan_to_num(shares), axis=None)[:_MOST_CONFUSIONS]
        for true, predicted in zip(*np.unravel_index(largest, shares.shape), strict=True):
            if shares[true, predicted] > 0:
                names = table.index[true], table.columns[predicted]
                share = number(100 * float(shares[true, predicted]), 2)
                rows.append([*(Cell(short_name(n)) for n in names), Cell(model), share])
    note = f"The {_MOST_CONFUSIONS} largest of each model; the plots below show all."
    return Table("confusion-table", "What was taken for what", columns, rows, note)


def pairs(pairs: pd.DataFrame) -> Table:
    columns = (
        Column("Subject"),
        Column("Session"),
        Column("Model", pick=True),
        Column("Status", pick=False),
        Column("Note"),
        Column("Paired by"),
        Column("Truth"),
        Column("Prediction"),
        Column("Grid"),
    )
    rows = [
        [
            *(Cell(str(row[k])) for k in ("subject", "session", "model", "status", "note")),
            *(Cell(str(row[k])) for k in ("paired_by", "truth", "prediction")),
            Cell(f"{row['shape']}, {row['spacing_mm']} mm" if row["shape"] else ""),
        ]
        for row in pairs.to_dict("records")
    ]
    note = "Checksums (SHA-256) of all files are in pairs.csv."
    return Table("pair-table", "Every file of both sides", columns, rows, note)


def definitions() -> Table:
    columns = (
        Column("Metric"),
        Column("Unit"),
        Column("Better"),
        Column("Definition"),
        Column("Absent from both"),
        Column("Missed"),
        Column("Invented"),
    )
    rows = [
        [
            Cell(m.title),
            Cell({"mm3": "mm³"}.get(m.unit, m.unit)),
            Cell({"none": "", "zero": "near 0"}.get(m.better, m.better)),
            Cell(m.definition),
            Cell(m.if_absent_from_both),
            Cell(m.if_missed),
            Cell(m.if_invented),
        ]
        for m in METRICS.values()
    ]
    return Table("definition-table", "T is the truth, P the prediction", columns, rows)


def _interval(found: Mapping[str, Any]) -> Cell:
    if not found or np.isnan(found["mean"]):
        return number(None)
    digits = digits_of(str(found["metric"]))
    mean, low, high = (number(found[k], digits).text for k in ("mean", "low", "high"))
    undefined = int(found["undefined"])
    hint = f"without a value: {undefined}" if undefined else ""
    return Cell(f"{mean} [{low}, {high}]", float(found["mean"]), hint=hint)


def _p(value: float) -> Cell:
    if np.isnan(value):
        return Cell("–", UNDEFINED, hint="no test")
    return Cell("< 0.001" if value < 0.001 else f"{value:.3f}", float(value))


def digits_of(metric: str) -> int:
    return {"": 3, "mm": 2, "%": 1, "mm3": 0}[METRICS[metric].unit]


def _unit_title(metric: str) -> str:
    unit = {"mm3": "mm³"}.get(METRICS[metric].unit, METRICS[metric].unit)
    return f"{METRICS[metric].title} ({unit})" if unit else METRICS[metric].title
