"""Figures of the reports, each drawn from the tables that `summary` and `cohort` make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from trinat.pipelines.common.text import count
from trinat.pipelines.report.cohort import FEWEST_FOR_Z, OUTLIER_Z
from trinat.pipelines.report.drawing import (
    GRID,
    INK,
    MODEL_COLORS,
    WARNING_COLOR,
    Drawing,
    add_legend,
    as_text,
    brief,
    canvas,
    draw_boxes,
    draw_dots,
    model_color,
    name_cells,
    name_rows,
    panels,
)
from trinat.pipelines.report.measurements import (
    by_participant,
    models_of,
    structures_of,
    volumes_by_participant,
    where,
)
from trinat.pipelines.report.page import short_name
from trinat.pipelines.report.summary import confusion
from trinat.segmentation.metrics.definitions import METRICS
from trinat.segmentation.metrics.statistics import bland_altman

# With fewer participants, only dots are drawn, because a box would show less.
_FEWEST_FOR_BOX = 5
_SIGNIFICANT = 0.05
_FARTHEST_Z = 12.0
_DASHES = (0, (4, 3))
_MARGIN = 0.12  # relative to the extent of a panel's marks
_LEAST_ML = 0.01  # smallest extent, for equal volumes
_SHARE = "share of the true structure"
# The name of the figure of robust z-scores.
Z_SCORES = "z-scores"


def box_plot(frame: pd.DataFrame, metric: str) -> Drawing:
    """Draw one metric of each structure as a box over participants, and a dot for each of them.

    `frame` is the table of metrics.csv. A structure has one row; several models are side by side in
    it, each with its colour. Structures without a value of any model are left out. With few
    participants there are dots only.
    """
    definition = METRICS[metric]
    tables = {model: by_participant(frame, model, metric) for model in models_of(frame)}
    measured: set[str] = set()
    for table in tables.values():
        measured.update(table.columns)
    structures = [name for name in structures_of(frame) if name in measured]
    marks: dict[str, list[str]] = {}
    missing = pd.Series(dtype=float)
    band = 0.8 / len(tables)  # of a row's height, for each model
    height = len(structures) * max(0.24, 0.17 * len(tables)) + 0.9
    with canvas(8.6, height) as (figure, axis):
        for number, (model, table) in enumerate(tables.items()):
            middle_band = (len(tables) - 1) / 2
            from_middle_of_row = (number - middle_band) * band
            places = np.arange(len(structures)) + from_middle_of_row
            rows = []
            # The label of each dot, in the order in which they are drawn.
            names = []
            for place, structure in zip(places, structures, strict=True):
                # No values for a structure that the table lacks.
                participants = table.get(structure, missing).dropna()
                rows.append((place, participants.to_numpy()))
                shown = short_name(structure)
                for participant, value in participants.items():
                    names.append(f"{participant}, {shown}, {model}: {value:.3g}")
            boxed = [row for row in rows if len(row[1]) >= _FEWEST_FOR_BOX]
            gid = f"dots-{number}"
            draw_boxes(axis, boxed, band, model_color(number))
            draw_dots(axis, rows, band, model_color(number), gid)
            marks[gid] = names
        name_rows(axis, structures)
        axis.set_xlabel(definition.title_with_unit)
        add_legend(figure, list(tables))
    return Drawing(
        f"boxes-{metric}",
        figure,
        f"{definition.title} of {len(structures)} structures, a box over participants and a dot a "
        "participant",
        marks,
        definition.title,
        definition.definition,
    )


def bland_altman_plot(
    frame: pd.DataFrame, model: str, structures: Sequence[str]
) -> Drawing:
    """Draw Bland-Altman plots of a model, a panel for each structure.

    A panel shows the difference of predicted and true volume over their mean, in ml, a dot for each
    participant, with bias and limits of agreement. `frame` is the table of metrics.csv.
    `structures` are the structures to show, if the model predicted them. Participants without one
    of the two volumes are left out.
    """
    predicted, true = volumes_by_participant(frame, model)
    structures = [name for name in structures if name in predicted.columns]
    marks: dict[str, list[str]] = {}
    with panels(structures, 2.2) as (figure, axes):
        for number, structure in enumerate(structures):
            gid = f"participants-{number}"
            # Rounded to a thousandth of a mm³, because means over participants have meaningless
            # digits.
            true_ml = true[structure].round(3) / 1000
            predicted_ml = predicted[structure].round(3) / 1000
            marks[gid] = _bland_altman_panel(axes[number], true_ml, predicted_ml, gid)
        figure.supxlabel("mean of true and predicted volume (ml)")
        figure.supylabel("predicted − true (ml)")
    label = f"Bland-Altman plots of the volumes of {len(structures)} structures, model {model}"
    return Drawing("bland-altman", figure, label, marks, model)


def _bland_altman_panel(
    axis: Any,
    true: pd.Series,
    predicted: pd.Series,
    gid: str,
) -> list[str]:
    """Draw the Bland-Altman plot of one structure into `axis`; return a label for each dot.

    `true` and `predicted` are the volumes in ml, indexed by participant; `gid` is the id of the
    dots in the SVG.
    """
    true_ml = true.to_numpy()
    predicted_ml = predicted.to_numpy()
    limits = bland_altman(true_ml, predicted_ml)
    color = MODEL_COLORS[0]
    mean = (true_ml + predicted_ml) / 2
    difference = predicted_ml - true_ml
    axis.scatter(mean, difference, s=10, color=color, lw=0, zorder=3, gid=gid)
    axis.axhline(0, color=GRID, lw=1)
    if np.isfinite(limits.bias):
        axis.axhline(limits.bias, color=color, lw=1.2)
    if np.isfinite(limits.sd):
        axis.axhline(limits.lower, color=color, lw=0.9, ls=_DASHES)
        axis.axhline(limits.upper, color=color, lw=0.9, ls=_DASHES)
    axis.tick_params(labelsize=7)
    axis.locator_params(nbins=4)
    axis.margins(x=_MARGIN)
    drawn = np.array([0, limits.lower, limits.upper, *difference])
    low = np.nanmin(drawn)
    high = np.nanmax(drawn)
    # Equal volumes need an axis, too, and its range must not be rounding errors.
    margin = _MARGIN * max(high - low, _LEAST_ML)
    axis.set_ylim(low - margin, high + margin)
    names = []
    for participant, x, y in zip(true.index, true_ml, predicted_ml, strict=True):
        # Only dots that are drawn have a label.
        if np.isfinite(x + y):
            names.append(f"{participant}: {x:.3g} ml true, {y:.3g} ml predicted")
    return names


def comparison_plot(
    table: pd.DataFrame,
    metric: str,
    first: str,
    second: str,
) -> Drawing:
    """Draw the mean paired difference of two models in one metric, with its 95 % interval.

    `table` has the comparisons of all pairs of models, as `summary.comparisons` returns them;
    `first` and `second` are the names of two models. The difference is `second` minus `first`, in
    the unit of the metric. Dots are filled if it is significant after Holm's correction. Structures
    without a difference are left out; structures without an interval have only a dot.
    """
    rows = where(table, metric=metric, first=first, second=second)
    rows = rows.dropna(subset="mean_difference")
    gid = "differences"
    title = METRICS[metric].title_with_unit
    color = MODEL_COLORS[1]
    with canvas(8.6, len(rows) * 0.24 + 0.9) as (figure, axis):
        axis.axvline(0, color=INK, lw=0.8)
        places = np.arange(len(rows))
        known = rows["low"].notna().to_numpy()
        low, high = rows.loc[known, ["low", "high"]].T.to_numpy(float)
        axis.hlines(places[known], low, high, color=color, lw=1.6)
        faces = [color if p < _SIGNIFICANT else "none" for p in rows["p_holm"]]
        axis.scatter(
            rows["mean_difference"],
            places,
            s=26,
            fc=faces,
            ec=color,
            zorder=3,
            gid=gid,
        )
        name_rows(axis, rows["structure"])
        # Centred below the whole figure, because names of models are long.
        figure.supxlabel(as_text(f"{title}: {brief(second)} − {brief(first)}"))
    names = []
    for row in rows.to_dict("records"):
        p = row["p_holm"]
        test = "no test" if np.isnan(p) else f"p = {p:.2g} after Holm"
        names.append(
            f"{short_name(row['structure'])}: {row['mean_difference']:+.3g}, {test}"
        )
    label = f"Difference in {title}, {second} minus {first}, by structure"
    return Drawing(f"comparison-{metric}", figure, label, {gid: names})


def confusion_plot(frame: pd.DataFrame, model: str) -> Drawing:
    """Draw the map of confusions of a model: which structures it labels as which others.

    Rows are true structures, columns are predicted ones. The colour is the share of the true
    structure's volume, on a logarithmic scale; shares of 0 are blank. `frame` is the table of
    metrics.csv.
    """
    from matplotlib.colors import LogNorm

    table = confusion(frame, model)
    names = [short_name(name) for name in table.columns]
    shares = table.where(table > 0).to_numpy(float)
    with canvas(7.6, 6.8) as (figure, axis):
        name_cells(axis, names, names)
        image = axis.imshow(shares, cmap="viridis", norm=LogNorm(1e-4, 1))
        axis.set_xlabel("predicted")
        axis.set_ylabel("true")
        figure.colorbar(image, ax=axis, shrink=0.7, label=_SHARE)
    label = f"Confusion between structures, model {model}"
    title = f"All confusions of {model}"
    return Drawing("confusion", figure, label, title=title)


def z_score_plot(frame: pd.DataFrame, structures: Sequence[str]) -> Drawing:
    """Draw the robust z-score of every volume: a row for each structure, a dot for each scan.

    `frame` is the frame of a `Cohort`. Dots beyond `OUTLIER_Z` have another colour. Dots beyond the
    edge of the figure are drawn on the edge, with the true z-score in their label.
    """
    volumes = frame[(frame["metric"] != "asymmetry_index") & frame["z"].notna()]
    rows = []
    names = []
    for place, structure in enumerate(structures):
        scans = where(volumes, structure=structure)
        rows.append((place, scans["z"].to_numpy(float)))
        for scan in scans.to_dict("records"):
            who = f"{scan['subject']} {scan['session']}"
            unit = scan["unit"].replace("mm3", "mm³")
            names.append(f"{who}: {scan['value']:,.6g} {unit}, z {scan['z']:+.1f}")
    every = np.concatenate([z for _, z in rows])
    colors = np.where(np.abs(every) > OUTLIER_Z, WARNING_COLOR, MODEL_COLORS[0])
    shown = [(place, np.clip(z, -_FARTHEST_Z, _FARTHEST_Z)) for place, z in rows]
    measured = frame[frame["metric"] != "asymmetry_index"]
    known = measured.groupby(["metric", "structure"])["value"].count()
    known = known.groupby("structure").min()
    with canvas(8.6, len(structures) * 0.24 + 0.9) as (figure, axis):
        axis.axvline(-OUTLIER_Z, color=WARNING_COLOR, lw=0.9, ls=_DASHES)
        axis.axvline(OUTLIER_Z, color=WARNING_COLOR, lw=0.9, ls=_DASHES)
        for place, z in rows:
            if not len(z):
                volumes_known = int(known[structures[place]])
                reason = "most volumes are equal"
                if volumes_known < FEWEST_FOR_Z:
                    reason = (
                        f"{count(volumes_known, 'volume')} not rejected: z-scores need "
                        f"{FEWEST_FOR_Z}"
                    )
                axis.text(0, place, reason, ha="center", va="center", fontsize=7)
        draw_dots(axis, shown, 0.8, colors, "scans")
        name_rows(axis, structures)
        figure.supxlabel(f"robust z (shown up to ±{_FARTHEST_Z:g})")
    label = f"Robust z-scores of {len(structures)} measures, a dot a scan"
    return Drawing(Z_SCORES, figure, label, {"scans": names})
