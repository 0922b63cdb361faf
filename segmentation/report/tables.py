"""The tables of an evaluation: metrics.csv, one number a row, and those of its page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from trinat.segmentation.io.files import atomic_text, spreadsheet_safe
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.definitions import METRICS, Metric
from trinat.segmentation.metrics.pair import Measurement
from trinat.segmentation.report import summary
from trinat.segmentation.report.page import Cell, Column, Columns, Table, number, short_name, table
from trinat.segmentation.report.summary import HEADLINE, Evaluation

_MOST_SCANS = 200  # in the tables by scan; metrics.csv has them all
_MOST_CONFUSIONS = 25
# The shade is full where the value is perfect; a distance of this has none.
_FAR_MM = 10.0

_PRINTED = HEADLINE[:4]
_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)

_UNDEFINED = (
    "Values that do not exist, one a structure and scan: of what is missed, invented, rejected or "
    "in neither map"
)
_LEFT_OUT = "Values that only one of the two models has, one a structure and scan: not compared"

_HEADLINE_COLUMNS: Columns = [
    Column(METRICS[metric].title_with_unit, 0, METRICS[metric].definition) for metric in HEADLINE
]

METRICS_COLUMNS = (
    *("subject", "session", "model", "structure", "fs_id"),
    *("metric", "value", "unit", "note"),
)


def metrics_frame(scans: Iterable[tuple[Mapping[str, str], Iterable[Measurement]]]) -> pd.DataFrame:
    """One table of all scans' measurements; each scan brings its subject, session and model."""
    rows = [
        (*whose, m.structure, m.fs_id, m.metric, m.value, m.unit, m.note)
        for scan, measurements in scans
        for whose in [(scan["subject"], scan["session"], scan["model"])]
        for m in measurements
    ]
    frame = pd.DataFrame(rows, columns=list(METRICS_COLUMNS))
    return frame.astype({"fs_id": "Int64", "value": float})


def write_table(path: Path, frame: pd.DataFrame) -> None:
    """Write a CSV whole or not at all; undefined numbers are empty cells."""
    safe = frame.copy()
    for column in safe.columns[[not pd.api.types.is_numeric_dtype(t) for t in safe.dtypes]]:
        safe[column] = [spreadsheet_safe(v) if isinstance(v, str) else v for v in safe[column]]
    with atomic_text(path) as file:
        safe.to_csv(file, index=False, lineterminator="\n")


def printed(evaluation: Evaluation) -> pd.DataFrame:
    """What a paper says of each model and structure: mean, SD and 95 % interval, rounded."""
    names = [*summary.structures_of(evaluation.frame), *summary.groups_of(evaluation.frame)]
    rows = []
    for model in evaluation.models:
        for structure in names:
            found = {m: evaluation.statistic(model, m, structure) for m in _PRINTED}
            if not found["dice"]:
                continue
            row = {"model": model, "structure": short_name(structure)}
            row["persons"] = str(found["dice"]["persons"])
            for metric, values in found.items():
                for key in ("mean", "sd", "low", "high"):
                    value = values.get(key, np.nan)
                    text = "" if np.isnan(value) else f"{value:.{digits_of(metric)}f}"
                    row[f"{metric}_{key}"] = text
                row[f"{metric}_undefined"] = str(values["undefined"]) if values else ""
            rows.append(row)
    return pd.DataFrame(rows)


def latex(table: pd.DataFrame) -> str:
    """`printed` as tables for LaTeX's booktabs, one a model."""
    texts = []
    for model, rows in table.groupby("model", sort=False):
        names = [name.translate(_LATEX) for name in rows["structure"]]
        shown = pd.DataFrame({"Structure": names, "Persons": rows["persons"].to_numpy()})
        for metric in _PRINTED:
            title = METRICS[metric].title_with_unit.translate(_LATEX)
            pairs = zip(rows[f"{metric}_mean"], rows[f"{metric}_sd"], strict=True)
            shown[title] = [rf"{mean} $\pm$ {sd}" if sd else mean for mean, sd in pairs]
        caption = rf"{str(model).translate(_LATEX)}: mean $\pm$ SD over persons."
        if undefined := _undefined_in_all(rows):
            caption += f" Undefined values are left out: {undefined.translate(_LATEX)}."
        columns = "lr" + len(_PRINTED) * "l"
        texts.append(shown.to_latex(index=False, column_format=columns, caption=caption))
    return "% needs \\usepackage{booktabs}\n" + "\n".join(texts)


def _undefined_in_all(rows: pd.DataFrame) -> str:
    """How many values of single structures are undefined, by metric, in `printed` of a model."""
    of_all = rows[rows["structure"] == short_name("group:all")]
    found = []
    for metric in _PRINTED:
        number = "".join(of_all[f"{metric}_undefined"])
        if number not in ("", "0"):
            found.append(f"{METRICS[metric].title} {number}")
    return ", ".join(found)


def headline(evaluation: Evaluation) -> Table:
    rows = [
        [
            model,
            evaluation.statistic(model, "dice", "group:all").get("persons"),
            *(_interval(evaluation, model, m) for m in HEADLINE),
        ]
        for model in evaluation.models
    ]
    columns: Columns = ["Model", Column("Persons", 0), *_HEADLINE_COLUMNS]
    caption = "All structures: mean over persons, with its 95 % interval"
    return table("headline", caption, columns, rows, kind="intervals")


def not_predicted(evaluation: Evaluation) -> Table | None:
    if evaluation.not_predicted.empty:
        return None
    note = "The model does not know these structures: they are in no mean and in no worst case."
    columns = {"structure": Column("Structure"), "model": Column("Model")}
    caption = "Not predicted by this model"
    return _records("unknown-table", caption, columns, evaluation.not_predicted, note=note)


def groups(evaluation: Evaluation) -> Table:
    known = set(evaluation.statistics["structure"])
    rows = [
        [short_name(group), model, *(_interval(evaluation, model, m, group) for m in HEADLINE)]
        for model in evaluation.models
        for group in summary.groups_of(evaluation.frame)
        if group != "group:all" and group in known
    ]
    columns: Columns = ["Group", Column("Model", pick=True), *_HEADLINE_COLUMNS]
    caption = "Groups of structures: mean over persons, with its 95 % interval"
    return table("groups", caption, columns, rows, kind="intervals")


def structures(evaluation: Evaluation) -> Table:
    interval = "Interval of the mean over persons"
    columns: Columns = [
        "Structure",
        Column("Metric", pick=True),
        "Model",
        Column("Persons", 0, "Persons with a value"),
        Column("Undefined", 0, _UNDEFINED),
        Column("Mean", 0),
        Column("95 % low", 0, interval),
        Column("95 % high", 0, interval),
        Column("Median", 0),
        Column("SD", 0),
    ]
    names = [*summary.structures_of(evaluation.frame), *evaluation.frame["structure"].unique()]
    place = {name: n for n, name in enumerate(dict.fromkeys(names))}
    order = list(METRICS)
    records = sorted(
        evaluation.statistics.to_dict("records"),
        key=lambda row: (order.index(row["metric"]), place[row["structure"]]),
    )
    rows = [
        [
            Cell(short_name(row["structure"]), place[row["structure"]]),
            METRICS[row["metric"]].title_with_unit,
            *(row[key] for key in ("model", "persons", "undefined")),
            *_numbers(row, "mean", "low", "high", "median", "sd"),
        ]
        for row in records
    ]
    return table("structure-table", "Every structure, group and metric", columns, rows)


def heat(evaluation: Evaluation, model: str, metric: str, scheme: LabelScheme) -> Table:
    """Every scan in one metric, the worst first."""
    what = METRICS[metric]
    scans = summary.by_scan(evaluation.frame, model, metric)
    scans = scans.sort_values("group:all", ascending=what.better == "higher")
    abbreviations = {label.name: label.abbreviation for label in scheme.labels}
    singles = [name for name in scans.columns if name in abbreviations]
    columns: Columns = [
        "Scan",
        Column("All", 2, "Mean over all structures"),
        *(Column(abbreviations[name], 2, short_name(name)) for name in singles),
    ]
    shown = scans.head(_MOST_SCANS)
    rows = [
        [
            f"{subject} {session}".strip(),
            *(_shaded(what, s, values[s]) for s in ("group:all", *singles)),
        ]
        for (subject, session), (_, values) in zip(shown.index, shown.iterrows(), strict=True)
    ]
    left_out = len(scans) > len(rows)
    return table(
        f"heat-{metric}-{evaluation.models.index(model)}",
        f"{what.title_with_unit} of every scan and structure, {model}; the worst first",
        columns,
        rows,
        note=f"The {_MOST_SCANS} worst of {len(scans)}; metrics.csv has all." if left_out else "",
        kind="heat",
    )


def comparison(evaluation: Evaluation) -> Table:
    columns: Columns = [
        "Structure",
        Column("Metric", pick=True),
        Column("Models", pick=True),
        Column("Persons", 0),
        Column("Difference", 0, "Mean of second minus first over persons"),
        Column("95 % low", 0),
        Column("95 % high", 0),
        Column("Effect", 2, "Matched-pairs rank-biserial correlation", sign=True),
        Column("Left out", 0, _LEFT_OUT),
        Column("p", 3, "Wilcoxon's signed-rank test, uncorrected"),
        Column("p (Holm)", 3, "Corrected by Holm's method over structures within a metric"),
        "Note",
    ]
    rows = [
        [
            short_name(row["structure"]),
            METRICS[row["metric"]].title,
            f"{row['second']} − {row['first']}",
            row["persons"],
            *_numbers(row, "mean_difference", "low", "high", sign=True),
            row["effect"],
            row["left_out"],
            _p(row["p"]),
            _p(row["p_holm"]),
            row["note"],
        ]
        for row in evaluation.comparisons.to_dict("records")
    ]
    return table("comparison-table", "Paired differences", columns, rows)


def agreement(evaluation: Evaluation) -> Table:
    columns = {
        "structure": Column("Structure"),
        "model": Column("Model", pick=True),
        "persons": Column("Persons", 0),
        "bias": Column("Bias (mm³)", 0, "Mean of predicted minus true", sign=True),
        "sd": Column("SD (mm³)", 0),
        "lower": Column("Lower limit", 0, "Bias − 1.96 SD", sign=True),
        "upper": Column("Upper limit", 0, "Bias + 1.96 SD", sign=True),
        "icc": Column("ICC(2,1)", 3),
    }
    caption = "Predicted against true volumes"
    return _records("agreement-table", caption, columns, evaluation.agreement)


def retest(evaluation: Evaluation) -> Table | None:
    if evaluation.retest.empty:
        return None
    columns = {
        "structure": Column("Structure"),
        "metric": Column("Volume", pick=True),
        "model": Column("Model", pick=True),
        "persons": Column("Persons", 0),
        "cv_percent": Column("Within-subject CV (%)", 2),
        "icc": Column("ICC(2,1)", 3),
    }
    titles = {"volume": "predicted", "truth_volume": "true"}
    shown = evaluation.retest.assign(metric=evaluation.retest["metric"].map(titles))
    return _records("retest-table", "Volumes of two scans of a person", columns, shown)


def confusions(frame: pd.DataFrame) -> Table:
    rows = []
    for model in summary.models_of(frame):
        shares = summary.confusion(frame, model).drop(index="background")
        values = np.nan_to_num(shares.to_numpy(float, copy=True))
        values[np.array(shares.index)[:, None] == np.array(shares.columns)] = 0
        largest = np.argsort(-values, axis=None)[:_MOST_CONFUSIONS]
        for true, predicted in zip(*np.unravel_index(largest, values.shape), strict=True):
            if values[true, predicted] > 0:
                names = short_name(shares.index[true]), short_name(shares.columns[predicted])
                rows.append([*names, model, 100 * float(values[true, predicted])])
    columns: Columns = ["True structure", "Labelled as", Column("Model", pick=True)]
    return table(
        "confusion-table",
        "Structures labelled as another",
        [*columns, Column("Share of the truth (%)", 2)],
        rows,
        note=f"The {_MOST_CONFUSIONS} largest of each model; the plots below show all.",
    )


def pairs(pairs: pd.DataFrame) -> Table:
    keys = ("subject", "session", "model", "status", "note", "paired_by", "truth", "prediction")
    columns = {key: Column(key.replace("_", " ").capitalize()) for key in (*keys, "grid")}
    grid = pairs["shape"] + ", " + pairs["spacing_mm"] + " mm"
    shown = pairs.assign(grid=grid.where(pairs["shape"] != "", ""))
    note = "Checksums (SHA-256) of all files are in pairs.csv."
    return _records("pair-table", "Every file of both sides", columns, shown, note=note)


def definitions() -> Table:
    columns: Columns = ["Metric", "Unit", "Better", "Definition"]
    columns += ["Absent from both", "Missed", "Invented"]
    rows = [
        [
            m.title,
            m.shown_unit,
            {"none": "", "zero": "near 0"}.get(m.better, m.better),
            *(m.definition, m.if_absent_from_both, m.if_missed, m.if_invented),
        ]
        for m in METRICS.values()
    ]
    return table("definition-table", "T is the truth, P the prediction", columns, rows)


def _records(
    id: str, caption: str, columns: Mapping[str, Column], records: pd.DataFrame, *, note: str = ""
) -> Table:
    """A table of records, its columns by their keys."""
    rows = [
        [short_name(row[key]) if key == "structure" else row[key] for key in columns]
        for row in records.to_dict("records")
    ]
    return table(id, caption, list(columns.values()), rows, note=note)


def _numbers(row: Mapping[Any, Any], *keys: str, sign: bool = False) -> list[Cell]:
    """Numbers of a metric, with as many digits as its unit has use for."""
    return [number(row[key], digits_of(row["metric"]), sign=sign) for key in keys]


def _interval(
    evaluation: Evaluation, model: str, metric: str, structure: str = "group:all"
) -> Cell:
    found = evaluation.statistic(model, metric, structure)
    if not found or np.isnan(found["mean"]):
        return number(None)
    mean, low, high = (cell.text for cell in _numbers(found, "mean", "low", "high"))
    undefined = int(found["undefined"])
    hint = f"undefined values: {undefined}" if undefined else ""
    # A line breaks before the interval, never within it.
    return Cell(f"{mean} [{low},\N{NO-BREAK SPACE}{high}]", float(found["mean"]), hint=hint)


def _shaded(metric: Metric, structure: str, value: float) -> Cell:
    cell = number(value, 2)
    good = value if metric.better == "higher" else 1 - value / _FAR_MM
    shade = None if np.isnan(value) else round(20 * float(np.clip(good, 0, 1)))
    return Cell(cell.text, cell.order, shade, f"{short_name(structure)}: {cell.hint or cell.text}")


def _p(value: float) -> Cell:
    if np.isnan(value):
        return number(None, hint="no test")
    return Cell("< 0.001" if value < 0.001 else f"{value:.3f}", float(value))


def digits_of(metric: str) -> int:
    return {"": 3, "mm": 2, "%": 1, "mm3": 0}[METRICS[metric].unit]
