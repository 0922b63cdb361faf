"""The numbers of an evaluation as a paper prints them: rounded, as text, and as LaTeX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from trinat.segmentation.metrics.definitions import METRICS, PRINTED
from trinat.segmentation.report import measurements
from trinat.segmentation.report.page import short_name
from trinat.segmentation.report.summary import Evaluation
from trinat.segmentation.report.tables import digits_of

_LATEX = str.maketrans(
    {
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
)


def printed(evaluation: Evaluation) -> pd.DataFrame:
    """What a paper says of each model and structure: mean, SD and 95 % interval, rounded.

    All cells are text. Structures without a Dice value, as those that a model does not predict,
    have no row. An evaluation without any gives an empty table.
    """
    names = [
        *measurements.structures_of(evaluation.frame),
        *measurements.groups_of(evaluation.frame),
    ]
    rows = []
    for model in evaluation.models:
        for structure in names:
            dice = evaluation.statistic(model, "dice", structure)
            if not dice:
                continue
            row = {
                "model": model,
                "structure": short_name(structure),
                "persons": str(dice["persons"]),
            }
            for metric in PRINTED:
                row |= _printed_metric(
                    metric, evaluation.statistic(model, metric, structure)
                )
            rows.append(row)
    return pd.DataFrame(rows)


def _printed_metric(metric: str, statistic: Mapping[str, Any]) -> dict[str, str]:
    """The columns of one metric, as text; empty where a number is undefined."""
    columns = {}
    for key in ("mean", "sd", "low", "high"):
        value = statistic.get(key, np.nan)
        text = ""
        if not np.isnan(value):
            text = f"{value:.{digits_of(metric)}f}"
        columns[f"{metric}_{key}"] = text
    columns[f"{metric}_undefined"] = str(statistic["undefined"]) if statistic else ""
    return columns


def latex(table: pd.DataFrame) -> str:
    """`printed` as tables for LaTeX's booktabs, one a model.

    Signs that LaTeX reads as commands are escaped. The first line, a comment, names the package
    that it needs.
    """
    texts = []
    for model, rows in table.groupby("model", sort=False):
        names = [name.translate(_LATEX) for name in rows["structure"]]
        shown = pd.DataFrame(
            {"Structure": names, "Persons": rows["persons"].to_numpy()}
        )
        for metric in PRINTED:
            title = METRICS[metric].title_with_unit.translate(_LATEX)
            cells = []
            for mean, sd in zip(
                rows[f"{metric}_mean"], rows[f"{metric}_sd"], strict=True
            ):
                cells.append(rf"{mean} $\pm$ {sd}" if sd else mean)
            shown[title] = cells
        caption = rf"{str(model).translate(_LATEX)}: mean $\pm$ SD over persons."
        # How many values of single structures are undefined, by metric.
        of_all = rows[rows["structure"] == short_name("group:all")]
        undefined = []
        for metric in PRINTED:
            number = "".join(of_all[f"{metric}_undefined"])
            if number not in ("", "0"):
                undefined.append(f"{METRICS[metric].title} {number}")
        if undefined:
            listed = ", ".join(undefined).translate(_LATEX)
            caption += f" Undefined values are left out: {listed}."
        columns = "lr" + len(PRINTED) * "l"
        texts.append(
            shown.to_latex(index=False, column_format=columns, caption=caption)
        )
    return "% needs \\usepackage{booktabs}\n" + "\n".join(texts)
