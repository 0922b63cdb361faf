"""Tables of the page of `trinat evaluate`, and their cells."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd

from trinat.pipelines.report import measurements, summary
from trinat.pipelines.report.page import (
    Cell,
    Column,
    Columns,
    NamedColumns,
    Table,
    number,
    p_value,
    record_table,
    short_name,
    table,
)
from trinat.pipelines.report.summary import Evaluation
from trinat.segmentation.labels.lesions import LesionCounts
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.definitions import DIGITS, HEADLINE, METRICS, Metric

_MOST_SCANS = 200  # in the tables by scan; metrics.csv and lesions.csv have all
_MOST_CONFUSIONS = 25
# A cell has the strongest background for a perfect value, and none for this distance or more.
_FAR_MM = 10.0

_UNDEFINED = (
    "Values that do not exist, one a structure and scan: of what is missed, invented, rejected or "
    "in neither map"
)
_LEFT_OUT = (
    "Values that only one of the two models has, one a structure and scan: not compared"
)


def _headline_columns(evaluation: Evaluation) -> Columns:
    """Return a column for each main metric that was measured."""
    return [
        Column(METRICS[metric].title_with_unit, 0, METRICS[metric].definition)
        for metric in evaluation.measured(HEADLINE)
    ]


def headline(evaluation: Evaluation) -> Table:
    """Return the table of means over all structures, a row for each model.

    It has a column for each main metric (`HEADLINE`): the mean over participants with its 95 %
    interval, in the metric's unit. The numbers are those in `evaluation.statistics`.
    """
    rows = []
    for model in evaluation.models:
        participants = evaluation.statistic(model, "dice", "group:all").get(
            "participants"
        )
        intervals = [
            _mean_with_interval(evaluation, model, metric)
            for metric in evaluation.measured(HEADLINE)
        ]
        rows.append([model, participants, *intervals])
    columns: Columns = [
        "Model",
        Column("Participants", 0),
        *_headline_columns(evaluation),
    ]
    caption = "All structures: mean over participants, with its 95 % interval"
    return table("headline", caption, columns, rows, kind="intervals")


def not_predicted(evaluation: Evaluation) -> Table | None:
    """Return the table of structures that a model does not predict, with the model.

    They are those in `evaluation.not_predicted`; None if there are none.
    """
    if evaluation.not_predicted.empty:
        return None
    note = "Structures that the model does not predict are excluded from means and worst cases."
    columns: NamedColumns = {"structure": "Structure", "model": "Model"}
    caption = "Not predicted by this model"
    rows = evaluation.not_predicted.to_dict("records")
    return record_table("unknown-table", caption, columns, rows, note=note)


def groups(evaluation: Evaluation) -> Table:
    """Return the table of means over groups of structures, a row for each group and model.

    It has a column for each main metric (`HEADLINE`): the mean over participants with its 95 %
    interval, from `evaluation.statistics`. Groups without statistics have no row; the group of all
    structures is in `headline`.
    """
    known = set(evaluation.statistics["structure"])
    shown = [
        group
        for group in measurements.groups_of(evaluation.frame)
        if group != "group:all" and group in known
    ]
    rows = []
    for model in evaluation.models:
        for group in shown:
            intervals = [
                _mean_with_interval(evaluation, model, metric, group)
                for metric in evaluation.measured(HEADLINE)
            ]
            rows.append([short_name(group), model, *intervals])
    columns: Columns = [
        "Group",
        Column("Model", pick=True),
        *_headline_columns(evaluation),
    ]
    caption = "Groups of structures: mean over participants, with its 95 % interval"
    return table("groups", caption, columns, rows, kind="intervals")


def structures(evaluation: Evaluation) -> Table:
    """Return the table of all statistics: a row for each metric, structure or group, and model.

    A group is a group of structures. The numbers are those in `evaluation.statistics`. Rows are
    sorted by metric, then by structure in the order of the label scheme. On the page, readers can
    filter them by metric.
    """
    interval = "Interval of the mean over participants"
    columns: NamedColumns = {
        "structure": "Structure",
        "metric": Column("Metric", pick=True),
        "model": "Model",
        "participants": Column("Participants", 0, "Participants with a value"),
        "undefined": Column("Undefined", 0, _UNDEFINED),
        "mean": Column("Mean", 0),
        "low": Column("95 % low", 0, interval),
        "high": Column("95 % high", 0, interval),
        "median": Column("Median", 0),
        "sd": Column("SD", 0),
    }
    place = _places_of_structures(evaluation)
    metrics = list(METRICS)

    def metric_then_structure(row: Mapping[Any, Any]) -> tuple[int, int]:
        return metrics.index(row["metric"]), place[row["structure"]]

    records = evaluation.statistics.to_dict("records")
    rows = []
    for row in sorted(records, key=metric_then_structure):
        cells = {
            "structure": Cell(short_name(row["structure"]), place[row["structure"]]),
            "metric": METRICS[row["metric"]].title_with_unit,
            **_number_cells(row, "mean", "low", "high", "median", "sd"),
        }
        rows.append(row | cells)
    caption = "Every structure, group and metric"
    return record_table("structure-table", caption, columns, rows)


def _places_of_structures(evaluation: Evaluation) -> dict[str, int]:
    """Return the row number of each structure in tables, by its name; groups come last.

    The names are those in `evaluation.frame`, the table of metrics.csv.
    """
    names = [
        *measurements.structures_of(evaluation.frame),
        *evaluation.frame["structure"].unique(),
    ]
    places: dict[str, int] = {}
    for name in names:
        places.setdefault(name, len(places))
    return places


def heat(evaluation: Evaluation, model: str, metric: str, scheme: LabelScheme) -> Table:
    """Return the table of one metric of a model: a row for each scan, the worst first.

    The first column is the mean over all structures; then there is a column for each structure,
    under its abbreviation in `scheme`. The values are those in `evaluation.frame`, the table of
    metrics.csv. If there are many scans only the worst are shown; a note says so. The better a
    value is, the stronger is the background of its cell.
    """
    definition = METRICS[metric]
    scans = measurements.by_scan(evaluation.frame, model, metric)
    scans = scans.sort_values("group:all", ascending=definition.better == "higher")
    abbreviations = {label.name: label.abbreviation for label in scheme.labels}
    singles = [name for name in scans.columns if name in abbreviations]
    columns: Columns = ["Scan", Column("All", 2, "Mean over all structures")]
    for name in singles:
        columns.append(Column(abbreviations[name], 2, short_name(name)))
    shown_names = ["group:all", *singles]
    shown = scans.head(_MOST_SCANS)
    rows = []
    for (subject, session), values in zip(
        shown.index, shown.to_dict("records"), strict=True
    ):
        cells = [_shaded_cell(definition, name, values[name]) for name in shown_names]
        rows.append([f"{subject} {session}".strip(), *cells])
    note = ""
    if len(scans) > len(rows):
        note = f"The {_MOST_SCANS} worst of {len(scans)}; metrics.csv has all."
    return table(
        f"heat-{metric}-{evaluation.models.index(model)}",
        f"{definition.title_with_unit} of every scan and structure, {model}; the worst first",
        columns,
        rows,
        note=note,
        kind="heat",
    )


def comparison(evaluation: Evaluation) -> Table:
    """Return the table of differences between every two models, with their tests.

    It has a row for each pair of models, metric, and structure or group of structures, as in
    `evaluation.comparisons`. Differences are in the metric's unit. If a test was not possible, the
    column of notes has the reason.
    """
    columns: NamedColumns = {
        "structure": "Structure",
        "metric": Column("Metric", pick=True),
        "models": Column("Models", pick=True),
        "participants": Column("Participants", 0),
        "mean_difference": Column(
            "Difference", 0, "Mean of second minus first over participants"
        ),
        "low": Column("95 % low", 0),
        "high": Column("95 % high", 0),
        "effect": Column(
            "Effect", 2, "Matched-pairs rank-biserial correlation", sign=True
        ),
        "left_out": Column("Left out", 0, _LEFT_OUT),
        "p": Column("p", 3, "Wilcoxon's signed-rank test, uncorrected"),
        "p_holm": Column(
            "p (Holm)", 3, "Corrected by Holm's method over structures within a metric"
        ),
        "note": "Note",
    }
    rows = []
    for row in evaluation.comparisons.to_dict("records"):
        cells = {
            "metric": METRICS[row["metric"]].title_with_unit,
            "models": f"{row['second']} − {row['first']}",
            **_number_cells(row, "mean_difference", "low", "high", sign=True),
            "p": p_value(row["p"]),
            "p_holm": p_value(row["p_holm"]),
        }
        rows.append(row | cells)
    return record_table("comparison-table", "Paired differences", columns, rows)


def agreement(evaluation: Evaluation) -> Table:
    """Return the table of agreement between predicted and true volumes: Bland-Altman and ICC.

    It has a row for each structure and model, as in `evaluation.agreement`. The columns Lower limit
    and Upper limit are the limits of agreement, at 1.96 standard deviations of the difference.
    """
    columns: NamedColumns = {
        "structure": "Structure",
        "model": Column("Model", pick=True),
        "participants": Column("Participants", 0),
        "bias": Column("Bias (mm³)", 0, "Mean of predicted minus true", sign=True),
        "sd": Column("SD (mm³)", 0),
        "lower": Column("Lower limit", 0, "Bias − 1.96 SD", sign=True),
        "upper": Column("Upper limit", 0, "Bias + 1.96 SD", sign=True),
        "icc": Column("ICC(2,1)", 3),
    }
    caption = "Predicted against true volumes"
    rows = evaluation.agreement.to_dict("records")
    return record_table("agreement-table", caption, columns, rows)


def retest(evaluation: Evaluation) -> Table | None:
    """Return the table of differences between two scans of a participant; None if nobody has two.

    It has a row for each structure, model, and predicted or true volume, as in `evaluation.retest`.
    The rows of true volumes show which part of the difference the model does not cause.
    """
    if evaluation.retest.empty:
        return None
    columns: NamedColumns = {
        "structure": "Structure",
        "metric": Column("Volume", pick=True),
        "model": Column("Model", pick=True),
        "participants": Column("Participants", 0),
        "cv_percent": Column("Within-subject CV (%)", 2),
        "icc": Column("ICC(2,1)", 3),
    }
    titles = {"volume": "predicted", "truth_volume": "true"}
    shown = evaluation.retest.assign(metric=evaluation.retest["metric"].map(titles))
    caption = "Volumes of two scans of a participant"
    return record_table("retest-table", caption, columns, shown.to_dict("records"))


def confusions(frame: pd.DataFrame) -> Table:
    """Return the table of the largest confusions: structures that a model labelled as another one.

    Each row has the true structure, the predicted structure, the model, and the share of the true
    structure's volume. Confusions with background are included. `frame` is the table of
    metrics.csv.
    """
    rows = []
    for model in measurements.models_of(frame):
        shares = summary.confusion(frame, model).drop(index="background")
        found = []
        for true, row in shares.iterrows():
            wrong = row[(row.index != true) & (row > 0)]
            found += [
                (str(true), str(predicted), share) for predicted, share in wrong.items()
            ]
        for true, predicted, share in nlargest(_MOST_CONFUSIONS, found, itemgetter(2)):
            percent = 100 * share
            rows.append([short_name(true), short_name(predicted), model, percent])
    columns: Columns = [
        "True structure",
        "Labelled as",
        Column("Model", pick=True),
        Column("Share of the truth (%)", 2),
    ]
    return table(
        "confusion-table",
        "Structures labelled as another",
        columns,
        rows,
        note=f"The {_MOST_CONFUSIONS} largest of each model; the plots below show all.",
    )


def pairs(pairs: pd.DataFrame) -> Table:
    """Return the table of all label maps, true and predicted, from the table of pairs.csv.

    Label maps without a partner are listed, too, with the reason in the note. The column Grid has
    the shape and the voxel size.
    """
    columns: NamedColumns = {
        "subject": "Subject",
        "session": "Session",
        "model": "Model",
        "status": "Status",
        "note": "Note",
        "paired_by": "Paired by",
        "truth": "Truth",
        "prediction": "Prediction",
        "grid": "Grid",
    }
    grid = pairs["shape"] + ", " + pairs["spacing_mm"] + " mm"
    shown = pairs.assign(grid=grid.where(pairs["shape"] != "", ""))
    note = "Checksums (SHA-256) of all files are in pairs.csv."
    rows = shown.to_dict("records")
    caption = "Every file of both sides"
    return record_table("pair-table", caption, columns, rows, note=note)


def lesion_columns(counts: LesionCounts) -> dict[str, float]:
    """Return the counts of lesions by column of lesions.csv and lesion_classes.csv."""
    return {
        "true_lesions": counts.true,
        "found_lesions": counts.found,
        "predicted_lesions": counts.predicted,
        "false_lesions": counts.predicted - counts.right,
        "true_mm3": counts.true_mm3,
        "predicted_mm3": counts.predicted_mm3,
        "recall": counts.recall,
        "precision": counts.precision,
        "f1": counts.f1,
    }


def tables_of_lesions(scans: pd.DataFrame, classes: pd.DataFrame) -> list[Table]:
    """Return the tables of the page: lesions by size and region over all scans, and by scan.

    `scans` is the table of lesions.csv, and `classes` has a row for each model and class of size or
    region.
    """
    shares: NamedColumns = {
        "f1": Column("Lesion F1", 2),
        "recall": Column("Lesion recall", 2, "Found of true"),
        "precision": Column("Lesion precision", 2, "Right of predicted"),
    }
    counts: NamedColumns = {
        "true_lesions": Column("True", 0),
        "found_lesions": Column("Found", 0, "True lesions that were found"),
        "predicted_lesions": Column("Predicted", 0),
        "false_lesions": Column("False", 0, "Predicted lesions without a true lesion"),
        "true_mm3": Column("True volume (mm³)", 0),
        "predicted_mm3": Column("Predicted volume (mm³)", 0),
    }
    by_class = record_table(
        "lesion-class-table",
        "Lesions of all scans together, by size and region",
        {
            "by": "By",
            "class": "Class",
            "model": Column("Model", pick=True),
            **shares,
            **counts,
        },
        classes.to_dict("records"),
        note="A lesion counts in the class of its own size and region.",
    )
    note = ""
    if len(scans) > _MOST_SCANS:
        note = f"The {_MOST_SCANS} worst of {len(scans)}; lesions.csv has all."
    worst = scans.sort_values("f1", na_position="last").head(_MOST_SCANS)
    by_scan = record_table(
        "lesion-scan-table",
        "Lesions of every scan, the worst first",
        {
            "subject": "Subject",
            "session": "Session",
            "model": Column("Model", pick=True),
            "dice": Column("Dice", 2),
            **shares,
            **counts,
            "difference_percent": Column("Volume difference (%)", 1, sign=True),
        },
        worst.to_dict("records"),
        note=note,
    )
    return [by_class, by_scan]


def definitions() -> Table:
    """Return the table that defines the metrics, and their values for structures that are absent.

    It is the same on every page.
    """
    columns: NamedColumns = {
        "title": "Metric",
        "shown_unit": "Unit",
        "better": "Better",
        "definition": "Definition",
        "if_absent_from_both": "Absent from both",
        "if_missed": "Missed",
        "if_invented": "Invented",
    }
    better = {"higher": "higher", "lower": "lower", "zero": "near 0", "none": ""}
    rows = []
    for metric in METRICS.values():
        row = {key: getattr(metric, key) for key in columns}
        rows.append({**row, "better": better[metric.better]})
    caption = "T is the truth, P the prediction"
    return record_table("definition-table", caption, columns, rows)


def digits_of(metric: str) -> int:
    """Return the number of decimals to show for a metric, which depends on its unit."""
    return DIGITS[METRICS[metric].unit]


def _number_cells(
    row: Mapping[Any, Any], *keys: str, sign: bool = False
) -> dict[str, Cell]:
    """Return the numbers of a row in the columns `keys` as cells, formatted for the row's metric.

    `row` has the name of the metric in `metric`. With `sign`, positive numbers have a plus sign.
    """
    digits = digits_of(row["metric"])
    return {key: number(row[key], digits, sign=sign) for key in keys}


def _mean_with_interval(
    evaluation: Evaluation,
    model: str,
    metric: str,
    structure: str = "group:all",
) -> Cell:
    """Return the mean of a metric over participants with its 95 % interval as a cell.

    `structure` is a structure or a group of structures, by default all. The cell is a dash if there
    is no mean.
    """
    found = evaluation.statistic(model, metric, structure)
    if not found or np.isnan(found["mean"]):
        return number(None)
    mean, low, high = _number_cells(found, "mean", "low", "high").values()
    # A line may break before the interval, but not within it.
    text = f"{mean.text} [{low.text},\N{NO-BREAK SPACE}{high.text}]"
    hint = ""
    if found["undefined"]:
        hint = f"undefined values: {int(found['undefined'])}"
    return Cell(text, float(found["mean"]), hint=hint)


def _shaded_cell(metric: Metric, structure: str, value: float) -> Cell:
    """Return a number as a cell with a background that is stronger the better the value is.

    `metric` decides what is good: near 1 if higher is better, otherwise near 0 mm. The name of the
    structure is shown at the pointer.
    """
    cell = number(value, 2)
    shade = None
    if not np.isnan(value):
        goodness = 1 - value / _FAR_MM
        if metric.better == "higher":
            goodness = value
        shade = round(20 * float(np.clip(goodness, 0, 1)))
    hint = f"{short_name(structure)}: {cell.hint or cell.text}"
    return Cell(cell.text, cell.order, shade, hint)
