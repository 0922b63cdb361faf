"""Report section that compares groups of participants by the linear model of each structure.

It has forest plots, tables, residuals and a text for the methods section of a paper.
"""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
import pandas as pd
from scipy import stats

from trinat.pipelines.common.text import count
from trinat.pipelines.report.drawing import (
    GRID,
    INK,
    MODEL_COLORS,
    Drawing,
    add_legend,
    as_text,
    canvas,
    name_rows,
)
from trinat.pipelines.report.group_model import GroupModel
from trinat.pipelines.report.page import (
    Cell,
    Column,
    Columns,
    NamedColumns,
    Table,
    interval,
    number,
    p_value,
    record_table,
    short_name,
    table,
)

# Names of the figures.
FOREST = "effects"
RESIDUALS = "residuals"
_SIGNIFICANT = 0.05
# Vertical offset of a side's mark from the middle of its row.
_OFFSETS = {"left": -0.17, "right": 0.17, "midline": 0.0}
_SIDES = {"L ": "left", "R ": "right"}


def forest_plots(model: GroupModel, name: str = FOREST) -> list[Drawing]:
    """Draw forest plots of standardised differences (Hedges' g), one for each pair of groups.

    Each plot has a row for each structure with g and its 95 % interval, from `model.effects`; left
    and right sides share a row. Without groups of participants, the pairs are those of sexes, else
    of sites. `name` is the name of the figure, followed by a number if there are several. Returns
    [] if the model compares nothing.
    """
    if model.effects.empty:
        return []
    effects = model.effects[model.effects["fact"] == model.fact].dropna(subset="g")
    pairs = list(effects.groupby(["first_group", "second_group"], sort=False))
    drawings = []
    for place, ((first, second), rows) in enumerate(pairs, start=1):
        of_pair = name if len(pairs) == 1 else f"{name}-{place}"
        drawings.append(_forest(rows, str(first), str(second), of_pair))
    return drawings


def _forest(rows: pd.DataFrame, first: str, second: str, name: str) -> Drawing:
    """Draw the forest plot of one pair of groups: Hedges' g of each structure with its interval.

    `rows` are the rows of `GroupModel.effects` for this pair, one for each structure. `first` and
    `second` are the names of the groups, and `name` is the name of the figure.
    """
    shown = rows["structure"].map(short_name)
    sides = shown.str[:2].map(_SIDES).fillna("midline")
    structures = shown.str.replace("^[LR] ", "", regex=True)
    order = list(dict.fromkeys(structures))
    places = structures.map(order.index)
    marks = {}
    with canvas(7.2, 0.27 * len(order) + 1.3) as (figure, axis):
        axis.axvline(0, color=INK, lw=0.8)
        drawn = [side for side in _OFFSETS if (sides == side).any()]
        for color, side in enumerate(drawn):
            of_side = rows[sides == side]
            heights = places[of_side.index] + _OFFSETS[side]
            ink = MODEL_COLORS[color]
            axis.hlines(heights, of_side["g_low"], of_side["g_high"], color=ink, lw=1.4)
            is_found = of_side["p_holm"] < _SIGNIFICANT
            gid = f"{name}-{side}"
            axis.scatter(
                of_side["g"],
                heights,
                s=22,
                marker="osD"[color],
                facecolors=[ink if found else "none" for found in is_found],
                edgecolors=ink,
                zorder=3,
                gid=gid,
            )
            marks[gid] = [
                f"{short_name(row['structure'])}: g {row['g']:+.2f} "
                f"({row['g_low']:+.2f} to {row['g_high']:+.2f}), p = {row['p_holm']:.2g} after Holm"
                for row in of_side.to_dict("records")
            ]
        name_rows(axis, order)
        figure.supxlabel(as_text(f"{first} − {second}, in residual SD"))
        add_legend(figure, drawn)
    return Drawing(
        name,
        figure,
        f"Standardised differences of {len(order)} structures, {first} minus {second}, with 95 % "
        "intervals, left and right side by side",
        marks,
        f"{first} − {second}",
        "Hedges' g with its 95 % interval, from the linear model. Filled: p below 0.05 after "
        "Holm's correction over structures.",
        for_print=True,
    )


def effect_tables(model: GroupModel, unit: str, digits: int) -> list[Table]:
    """Return a table for each pair of groups, sexes or sites, with a row for each structure.

    Columns are the difference between the two with its interval, Hedges' g, and p, from
    `model.effects`. `unit` is the unit of the differences, "" if units of structures differ, and
    `digits` the number of their decimals.
    """
    in_unit = f" ({unit})" if unit else ""
    columns: NamedColumns = {
        "structure": "Structure",
        "participants": Column("Participants", 0),
        "difference": Column(
            f"Difference{in_unit}", digits, "Where the covariates are equal", sign=True
        ),
        "interval": "95 % interval",
        "g": Column("Hedges' g", 2, "Difference in residual SD", sign=True),
        "interval_of_g": "95 % interval of g",
        "p_holm": Column("p (Holm)", 3, "Corrected for the number of structures"),
        "r2": Column("R²", 2, "Share of the variance that the whole model explains"),
    }
    if model.effects.empty:
        return []
    tables = []
    known = model.effects.dropna(subset="p")
    pairs = known.groupby(["fact", "first_group", "second_group"], sort=False)
    for place, ((fact, first, second), of_pair) in enumerate(pairs):
        rows = []
        for row in of_pair.to_dict("records"):
            participants = f"{row['first']} + {row['second']}"
            cells = {
                "participants": Cell(participants, row["first"] + row["second"]),
                "interval": interval(row["low"], row["high"], digits),
                "interval_of_g": interval(row["g_low"], row["g_high"], 2),
                "p_holm": p_value(row["p_holm"]),
            }
            rows.append(row | cells)
        freedom = of_pair["df"].median()
        inflation = of_pair["vif"].max()
        note = (
            f"{model.formula}. Degrees of freedom of t: {freedom:.1f} (median). Variance inflation "
            f"by the other terms: {inflation:.1f}."
        )
        caption = f"{first} − {second}, by {fact}"
        identity = f"effect-table-{place}"
        tables.append(
            record_table(
                identity,
                caption,
                columns,
                rows,
                in_order=True,
                kind="intervals",
                note=note,
            )
        )
    return tables


def slope_table(model: GroupModel, unit: str, digits: int) -> Table | None:
    """Return the table of the change of each structure per year of age, between participants.

    `unit` is the unit of the structures' values, "" if their units differ, and `digits` the number
    of decimals. Returns None if age is not a term of the model.
    """
    if model.slopes.empty:
        return None
    per_year = f"{unit} a year".strip()
    columns: NamedColumns = {
        "structure": "Structure",
        "participants": Column("Participants", 0),
        "slope": Column(f"Slope ({per_year})", digits, sign=True),
        "interval": "95 % interval",
        "share": Column(
            "% a year", 2, "Slope in percent of the mean volume", sign=True
        ),
        "p_holm": Column("p (Holm)", 3, "Corrected for the number of structures"),
    }
    rows = []
    for row in model.slopes.dropna(subset="p").to_dict("records"):
        cells = {
            "interval": interval(row["low"], row["high"], digits),
            "share": 100 * row["slope"] / row["mean"] if row["mean"] else np.nan,
            "p_holm": p_value(row["p_holm"]),
        }
        rows.append(row | cells)
    caption = "Age: difference per year"
    return record_table(
        "trend-table",
        caption,
        columns,
        rows,
        in_order=True,
        kind="intervals",
        note=model.formula,
    )


def change_table(model: GroupModel) -> Table | None:
    """Return the table of the expected longitudinal change per year in each group of participants.

    It has a row for each structure and the 95 % intervals. `model` is fitted to changes per year
    (`compare_changes`). Returns None if groups are not a term of the model.
    """
    known = model.means.dropna() if len(model.means) else model.means
    if known.empty:
        return None
    groups = list(dict.fromkeys(known["group"]))
    columns: Columns = ["Structure"]
    for group in groups:
        columns.append(Column(f"{group} (% a year)", 2, sign=True))
        columns.append("95 % interval")
    rows = []
    of_structures = known.groupby("structure", sort=False)
    for place, (structure, of_structure) in enumerate(of_structures):
        by_group = of_structure.set_index("group").to_dict("index")
        cells: list[Cell] = [Cell(short_name(str(structure)), place)]
        for group in groups:
            if group not in by_group:
                cells += [Cell(""), Cell("")]
                continue
            row = by_group[group]
            participants = count(row["participants"], "participant")
            cells.append(number(row["mean"], 2, sign=True, hint=participants))
            cells.append(interval(row["low"], row["high"], 2))
        rows.append(cells)
    return table(
        "change-means-table",
        "Change a year by group, at the mean of the other terms",
        columns,
        rows,
        kind="intervals",
        note=model.formula,
    )


def residual_plot(model: GroupModel) -> Drawing | None:
    """Draw the residuals of the linear models of all structures in two panels.

    Left: studentised residuals over fitted values. Right: their quantiles over those of a normal
    distribution. They are those in `model.residuals`. Returns None for fewer than two residuals.
    """
    residuals = model.residuals.dropna()
    if len(residuals) < 2:
        return None
    fitted = residuals.groupby("structure")["fitted"]
    spread = fitted.transform("std").replace(0, np.nan)
    standard = (residuals["fitted"] - fitted.transform("mean")) / spread
    ordered = np.sort(residuals["residual"].to_numpy())
    chances = (np.arange(len(ordered)) + 0.5) / len(ordered)
    expected = stats.norm.ppf(chances)
    with canvas(7.2, 2.9, 1, 2) as (figure, (left, right)):
        # Dots are rasterised within the figure, because 1,000 participants have 32,000 of them.
        marks = {"s": 6, "lw": 0, "alpha": 0.5, "color": MODEL_COLORS[0]}
        left.scatter(standard, residuals["residual"], rasterized=True, **marks)
        left.axhline(0, color=GRID, lw=1)
        left.set_xlabel("fitted value (in SD of its structure)")
        left.set_ylabel("studentised residual")
        right.scatter(expected, ordered, rasterized=True, **marks)
        ends = [expected[0], expected[-1]]
        right.plot(ends, ends, color=INK, lw=0.8)
        right.set_xlabel("expected of a normal distribution")
    return Drawing(
        RESIDUALS,
        figure,
        "Residuals of the linear models over fitted values, and their quantiles beside those of a "
        "normal distribution",
        caption="Left: a funnel would mean that variances differ, which the robust standard errors "
        "allow for. Right: dots far off the line are participants whom the model does not "
        "describe.",
    )


def methods_text(
    model: GroupModel, response: str, scans_left_out: int, structures_left_out: int
) -> str:
    """Return sentences that describe the comparison of groups, for the methods section of a paper.

    `response` is the subject of the sentence on the model, such as "The volumes". `scans_left_out`
    is the number of scans that were left out after quality control, and `structures_left_out` that
    of single structures of other scans.
    """
    structures = count(_analysed(model), "structure")
    tested = _tested(model)
    participants = _participants_in(model)
    units = {"age": "age in years", "icv": "icv: intracranial volume in litres"}
    explained = [units[term] for term in model.terms if term in units]
    explanation = f"; {', '.join(explained)}" if explained else ""
    sentences = [
        f"Brain structures were segmented and measured with trinat {version('trinat')}.",
        f"{response} of {structures} were analysed in {participants} with a linear model for each "
        f"structure ({model.formula}{explanation}), fitted by ordinary least squares with "
        f"statsmodels {version('statsmodels')}. Repeated scans of a participant were averaged.",
    ]
    if tested:
        errors = (
            "Standard errors are heteroscedasticity-consistent (HC2), and the t distribution has "
            "Bell and McCaffrey's degrees of freedom (Imbens and Kolesár, 2016)."
        )
        if model.relatives:
            errors = (
                f"Standard errors are clustered by family (CR2; {model.relatives} participants "
                "share a family with another), and the t distribution has Bell and McCaffrey's "
                "degrees of freedom (Pustejovsky and Tipton, 2018)."
            )
        sentences += [
            errors,
            "Standardised differences are Hedges' g in residual standard deviations, with "
            "intervals from the noncentral t distribution.",
            f"P values are two-sided and were corrected for {count(tested, 'structure')} by Holm's "
            "method.",
        ]
    left_out = []
    if scans_left_out:
        left_out.append(count(scans_left_out, "scan"))
    if structures_left_out:
        left_out.append(f"{count(structures_left_out, 'single value')} of other scans")
    if left_out:
        sentences.append(f"Left out after quality control: {', '.join(left_out)}.")
    return " ".join(sentences)


def change_methods_text(model: GroupModel) -> str:
    """Return sentences on the comparison of longitudinal changes, to follow `methods_text`."""
    structures = count(_analysed(model), "structure")
    return (
        f"Changes per year of {structures} were compared in {_participants_in(model)} with two "
        "or more dated scans. The slope of a line through the volumes of a participant, in percent "
        f"of their mean, is one value of the linear model ({model.formula}). It is weighted by "
        "s / (s + median of s), where s is the sum of squared deviations of the participant's "
        "times from their mean. Standard errors, degrees of freedom, and correction for the number "
        "of structures are as above."
    )


def _analysed(model: GroupModel) -> int:
    """Return the number of structures that have residuals: their values differ."""
    return int(model.residuals.dropna(subset="residual")["structure"].nunique())


def _tested(model: GroupModel) -> int:
    """Return the number of structures that have a p value."""
    tables = [table for table in (model.effects, model.slopes) if not table.empty]
    if not tables:
        return 0
    tests = pd.concat(tables)
    return int(tests.dropna(subset="p")["structure"].nunique())


def _participants_in(model: GroupModel) -> str:
    """Return a text such as "60 participants (controls: 30, patients: 30)" on those in a model."""
    participants = count(len(model.participants), "participant")
    if "group" not in model.terms:
        return participants
    counts = model.participants["group"].value_counts().sort_index()
    by_group = ", ".join(f"{level}: {number}" for level, number in counts.items())
    return f"{participants} ({by_group})"
