"""Sections of the report page about participants: volumes over age, head size, and sites."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from trinat.pipelines.report.cohort import Adjustment, Cohort, groups_of
from trinat.pipelines.report.drawing import (
    INK,
    MODEL_COLORS,
    Drawing,
    add_legend,
    as_text,
    canvas,
    model_color,
    name_rows,
    panels,
)
from trinat.pipelines.report.harmonised import Harmonisation
from trinat.pipelines.report.page import Column, NamedColumns, Table, record_table

# The name of the figure of sites.
SITES = "sites"
# Number of decimals of a value, by its unit.
DIGITS = {"mm³": 0, "mm": 3, "%": 3, "": 2}
_TICK = 7
_FEWEST_FOR_LINE = 4
_PLACES_OF_BAND = 20

Values = NDArray[np.float64]
_NOT_KNOWN = "not known"


def adjustment_table(adjustment: Adjustment | None) -> Table | None:
    """Return the table of regression lines that adjust volumes for head size, by structure.

    None if volumes were not adjusted, or if they were divided by the intracranial volume.
    """
    if adjustment is None or adjustment.coefficients.empty:
        return None
    columns: NamedColumns = {
        "structure": "Structure",
        "scans": Column("Scans", 0),
        "slope_of_ml": Column(
            "Slope (mm³ per ml)", 3, "Per ml of intracranial volume", sign=True
        ),
        "intercept": Column("Intercept (mm³)", 0, sign=True),
        "r2": Column("R²", 2, "Share of the variance that the line explains"),
    }
    lines = adjustment.coefficients.reset_index(names="structure")
    lines["slope_of_ml"] = 1000 * lines["slope"]
    rows = lines.to_dict("records")
    caption = "Coefficients: volume over intracranial volume"
    return record_table("adjustment-table", caption, columns, rows, in_order=True)


def site_tables(harmonisation: Harmonisation) -> list[Table]:
    """Return two tables of site effects before and after harmonisation: by site and structure."""
    effects = harmonisation.effects
    effects = effects.assign(
        before=effects["percent_before"].abs(), after=effects["percent_after"].abs()
    )
    columns: NamedColumns = {
        "before": Column(
            "Before (%)", 1, "Mean distance from all sites, in percent of the volume"
        ),
        "after": Column("After (%)", 1, "The same of harmonised volumes"),
        "most_before": Column("Largest before (%)", 1),
        "most_after": Column("Largest after (%)", 1),
    }
    summary = {
        "before": ("before", "mean"),
        "after": ("after", "mean"),
        "most_before": ("before", "max"),
        "most_after": ("after", "max"),
        "scale": ("scale", "median"),
    }
    of_sites = effects.groupby("site", sort=False).agg(**summary).reset_index()
    of_sites["participants"] = of_sites["site"].map(harmonisation.participants)
    of_structures = effects.groupby("structure", sort=False).agg(**summary)
    return [
        record_table(
            "site-effect-table",
            "Sites before and after: mean over structures",
            {
                "site": "Site",
                "participants": Column("Participants", 0),
                **columns,
                "scale": Column(
                    "Scale", 2, "Of the spread, before: 1 is that of all sites"
                ),
            },
            of_sites.to_dict("records"),
        ),
        record_table(
            "structure-effect-table",
            "Structures before and after: mean over sites",
            {"structure": "Structure", **columns},
            of_structures.reset_index().to_dict("records"),
            in_order=True,
        ),
    ]


def site_plot(harmonisation: Harmonisation) -> Drawing:
    """Draw the effects of sites on volumes: a row for each structure, a colour for each site.

    An effect is the difference of a site from all sites, in percent of the volume. A ring is the
    effect before harmonisation, a dot the effect after it.
    """
    effects = harmonisation.effects.dropna(subset="percent_before")
    structures = list(effects["structure"].unique())
    sites = list(harmonisation.participants)
    rows = effects["structure"].map(structures.index)
    marks: dict[str, list[str]] = {}
    with canvas(8.6, len(structures) * 0.24 + 1.2) as (figure, axis):
        axis.axvline(0, color=INK, lw=0.7)
        for color, site in enumerate(sites):
            of_site = effects[effects["site"] == site]
            for when, face in (("before", "none"), ("after", model_color(color))):
                percent = of_site[f"percent_{when}"]
                gid = f"sites-{when}-{color}"
                axis.scatter(
                    percent,
                    rows[of_site.index],
                    s=16,
                    edgecolors=model_color(color),
                    facecolors=face,
                    lw=0.9,
                    zorder=3,
                    gid=gid,
                )
                marks[gid] = [f"{site}, {when}: {value:+.2f} %" for value in percent]
        name_rows(axis, structures)
        figure.supxlabel(
            "site − all sites (% of the volume), participants being equal; ring: before, dot: after"
        )
        add_legend(figure, sites)
    label = (
        f"Effects of {len(sites)} sites on the volumes of {len(structures)} structures, before and "
        "after harmonisation"
    )
    return Drawing(SITES, figure, label, marks)


def participants_plot(cohort: Cohort) -> Drawing | None:
    """Draw the volumes of participants: a panel for each structure, a dot for each participant.

    `cohort` has the mean volumes, ages and groups of the participants. The horizontal axis is age
    or, if no age is known, the group; if neither is known, None is returned. Colours are groups,
    else sexes, if there are enough colours. Over age, participants of one colour have a regression
    line with the 95 % band of its mean, if they are four or more.
    """
    participants = cohort.participants
    fact, groups = _fact_to_draw(participants)
    over_age = bool(participants["age"].notna().any())
    if not over_age and not fact:
        return None
    names = [group or _NOT_KNOWN for group in groups]
    marks: dict[str, list[str]] = {}
    with panels(cohort.structures, 1.9, 0.5) as (figure, axes):
        for place, structure in enumerate(cohort.structures):
            of_structure = participants[participants["structure"] == structure]
            for color, group in enumerate(groups):
                chosen = of_structure
                if fact:
                    chosen = of_structure[of_structure[fact] == group]
                gid = f"participants-{place}-{color}"
                marks[gid] = _draw_participants(
                    axes[place], chosen, color, gid, over_age, cohort.unit
                )
            axes[place].tick_params(labelsize=_TICK)
            if not over_age:
                axes[place].set_xticks(range(len(names)), map(as_text, names))
                axes[place].set_xlim(-0.6, len(names) - 0.4)
        figure.supxlabel("age (years)" if over_age else fact)
        title = "% of intracranial volume"
        if cohort.unit != "%":
            title = "volume (ml)"
            if cohort.adjustment is not None:
                title = "adjusted volume (ml)"
        if cohort.harmonisation is not None:
            title = f"{title}, harmonised"
        figure.supylabel(title)
        add_legend(figure, names)
    label = f"Volumes of {len(cohort.structures)} structures, a panel each, a dot a participant"
    caption = ""
    if over_age:
        caption = (
            "A straight line through the participants of a colour, with the 95 % band of its mean. "
            "Nothing else is taken into account."
        )
    return Drawing(
        "participants", figure, label, marks, caption=caption, for_print=True
    )


def _fact_to_draw(participants: pd.DataFrame) -> tuple[str, list[str]]:
    """Return the column that decides the colour of the dots, group or sex, and its distinct values.

    Such a column has two or more values, but not more than there are colours. Participants without
    a value are a group of their own, "". Returns "" and [""] if neither column is suitable.
    """
    for fact in ("group", "sex"):
        groups = groups_of(participants, fact)
        if len(groups) < 2:
            continue
        if (participants[fact] == "").any():
            groups = [*groups, ""]
        if len(groups) <= len(MODEL_COLORS):
            return fact, groups
    return "", [""]


def _draw_line(axis: Any, x: Values, y: Values, color: str) -> None:
    """Draw the regression line of y over x, with the 95 % band of its mean.

    Nothing is drawn for fewer than four points, or if all x are equal.
    """
    from statsmodels.api import OLS, add_constant

    known = np.isfinite(x) & np.isfinite(y)
    if known.sum() < _FEWEST_FOR_LINE or np.ptp(x[known]) == 0:
        return
    fit = OLS(y[known], add_constant(x[known])).fit()
    along = np.linspace(x[known].min(), x[known].max(), _PLACES_OF_BAND)
    expected = fit.get_prediction(add_constant(along))
    low, high = expected.conf_int().T
    axis.fill_between(along, low, high, color=color, alpha=0.15, lw=0)
    axis.plot(along, expected.predicted_mean, color=color, lw=1)


def _draw_participants(
    axis: Any,
    participants: pd.DataFrame,
    color: int,
    gid: str,
    over_age: bool,
    unit: str,
) -> list[str]:
    """Draw a dot for each participant of one group into `axis`; return a label for each dot.

    The horizontal axis is age if `over_age`, else the group. `color` is the number of the group,
    for its colour and position. `gid` is the id of the dots in the SVG. `unit` is the unit of the
    values; mm³ are drawn in ml.
    """
    x = participants["age"].to_numpy(float)
    if not over_age:
        x = np.full(len(participants), float(color))
    y = participants["value"].to_numpy(float)
    if unit == "mm³":
        y = y / 1000
    axis.scatter(x, y, s=10, color=model_color(color), lw=0, zorder=3, gid=gid)
    if over_age:
        _draw_line(axis, x, y, model_color(color))
    names = []
    for participant, age, value in zip(participants["subject"], x, y, strict=True):
        # Only dots that are drawn have a label.
        if np.isfinite(age + value):
            shown_unit = "ml" if unit == "mm³" else unit
            names.append(f"{participant}: {value:.4g} {shown_unit}")
    return names
