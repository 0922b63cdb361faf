"""Page of scan-rescan agreement: labels of two scans of a participant, and predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from trinat.pipelines.common.text import count
from trinat.pipelines.report.drawing import (
    INK,
    Drawing,
    as_text,
    canvas,
    model_color,
    name_rows,
)
from trinat.pipelines.report.measurements import is_group
from trinat.pipelines.report.page import (
    Cell,
    Column,
    Columns,
    Table,
    render,
    short_name,
    table,
)
from trinat.segmentation.labels.scheme import LOBES, LabelScheme
from trinat.segmentation.metrics.counted import ALL_STRUCTURES, members_of_groups

__all__ = ["LABELS", "OTHER_LABELS", "PREDICTIONS", "over_participants", "repeat_page"]

# Names of comparisons in the tables.
LABELS = "labels with labels"
OTHER_LABELS = "prediction with the other scan's labels"
PREDICTIONS = "prediction with prediction"

_OF_STRUCTURES = "group:structures"
_OF_PARCELS = "group:parcels"
_GROUP_TITLES = {_OF_STRUCTURES: "Structures", _OF_PARCELS: "Parcels"}
_COLUMNS = (
    "structure",
    "fs_id",
    "model",
    "comparison",
    "participants",
    "dice",
    "absolute_difference_percent",
)
# Column of the page: a comparison and a model ("" for labels with labels).
Kind = tuple[str, str]


def over_participants(frame: pd.DataFrame, scheme: LabelScheme) -> pd.DataFrame:
    """Return the mean over participants of each structure in each comparison.

    `frame` is the table of repeat.csv. Columns of the result: structure, fs_id, model, comparison,
    participants (their number), dice, absolute_difference_percent. Pairs of scans of one
    participant are averaged first.
    Further rows are the means over all structures (`group:structures`) and over all parcels
    (`group:parcels`). To be comparable, they only include structures that have a value in every
    comparison for that participant, and no CSF.
    """
    frame = frame.assign(absolute=frame["difference_percent"].abs())
    keys = ["model", "comparison", "structure", "fs_id"]
    of_participant = frame.groupby(["participant", *keys], sort=False)[
        ["dice", "absolute"]
    ]
    by_participant = of_participant.mean().dropna(subset="dice").reset_index()

    kind = ["model", "comparison"]
    kinds = len(by_participant[kind].drop_duplicates())
    of_structure = by_participant.groupby(["participant", "structure"])["dice"]
    in_all = by_participant[of_structure.transform("size") == kinds]
    members: dict[str, list[str]] = {_OF_STRUCTURES: [], _OF_PARCELS: []}
    for label in members_of_groups(scheme)[ALL_STRUCTURES]:
        group = _OF_PARCELS if label.group in LOBES else _OF_STRUCTURES
        members[group].append(label.name)
    parts = []
    for name, names in members.items():
        rows = in_all[in_all["structure"].isin(names)]
        grouped = rows.groupby(["participant", *kind], sort=False)
        means = grouped[["dice", "absolute"]].mean().reset_index()
        means["structure"] = name
        parts.append(means)
    every = pd.concat([*parts, by_participant])
    grouped = every.groupby(keys, sort=False, dropna=False)
    found = grouped.agg(
        participants=("participant", "nunique"),
        dice=("dice", "mean"),
        absolute_difference_percent=("absolute", "mean"),
    ).reset_index()
    return found.astype({"fs_id": "Int64"})[list(_COLUMNS)]


def repeat_page(
    means: pd.DataFrame,
    frame: pd.DataFrame,
    pairs: pd.DataFrame,
    scheme: LabelScheme,
    provenance: Mapping[str, str],
) -> str:
    """Return the HTML page: agreement of labels with labels as the limit, next to that of models.

    `frame` is the table of repeat.csv, and `means` its means over participants, as
    `over_participants` returns them. `pairs` is the table of pairs.csv. `provenance` is shown at
    the end of the page: the values of facts about the evaluation, by their titles.
    """
    kinds = _comparisons(means)
    participants = frame["participant"].nunique()
    measured = int((pairs["status"] == "measured").sum())
    return render(
        "repeat.html",
        title="How far labels repeat",
        lead=f"{count(measured, 'pair')} of scans of {count(participants, 'participant')} "
        f"({scheme.name}).",
        notices=_notices(kinds, pairs, participants),
        cards=_cards(means, kinds),
        headline=_headline_table(means, kinds),
        plot=dice_plot(means, scheme),
        structures=_structure_table(means, kinds),
        pairs=_pair_table(pairs),
        provenance=provenance,
    )


def _comparisons(means: pd.DataFrame) -> list[Kind]:
    """Return the comparisons that were made, in the order of columns.

    Labels with labels come first, then each model with labels, and with itself.
    """
    compared = set(zip(means["comparison"], means["model"], strict=True))
    models = [model for model in means["model"].unique() if model]
    kinds = [(LABELS, "")]
    for model in models:
        kinds += [(OTHER_LABELS, model), (PREDICTIONS, model)]
    return [kind for kind in kinds if kind in compared]


def _title(kind: Kind) -> str:
    """Return the column title of a comparison."""
    comparison, model = kind
    if comparison == LABELS:
        return "Labels with labels"
    if comparison == PREDICTIONS:
        return f"{model} with {model}"
    return f"{model} with the other scan's labels"


def _notices(kinds: list[Kind], pairs: pd.DataFrame, participants: int) -> list[str]:
    """Return warnings to show above the numbers."""
    notices = []
    comparisons = {comparison for comparison, _ in kinds}
    if LABELS not in comparisons:
        notices.append(
            "No participant has label maps of two scans: there is no limit to compare with."
        )
    failed = int((pairs["status"] == "failed").sum())
    if failed:
        notices.append(
            f"{count(failed, 'pair')} of scans could not be compared; the reasons are below."
        )
    stretched = pairs[pairs["stretch_percent"].fillna(0) != 0]
    notices += [
        f"{row['first']} and {row['second']}: the head differs in size by "
        f"{abs(row['stretch_percent']):.1f} % along one axis. Check the voxel sizes."
        for row in stretched.to_dict("records")
    ]
    if participants < 5:
        notices.append(
            f"Only {count(participants, 'participant')}: take the means as rough."
        )
    return notices


def _cards(means: pd.DataFrame, kinds: list[Kind]) -> list[tuple[str, str, str]]:
    """Return the cards of the mean Dice: title, value and detail.

    The title is the comparison, the value is the mean Dice, and the detail says which structures
    and how many participants were averaged. `kinds` are pairs of comparison and model.
    """
    cards = []
    for group, title in _GROUP_TITLES.items():
        for kind in kinds:
            row = _means_row(means, group, kind)
            if row is not None:
                more = f"Dice, {title.lower()}, {count(int(row['participants']), 'participant')}"
                cards.append((_title(kind), f"{row['dice']:.3f}", more))
    return cards


def _means_row(means: pd.DataFrame, structure: str, kind: Kind) -> pd.Series | None:
    """Return the row of `means` for a structure or group in one comparison; None if it is missing.

    `kind` is the comparison and the model ("" if labels are compared with labels).
    """
    comparison, model = kind
    rows = means[
        (means["structure"] == structure)
        & (means["comparison"] == comparison)
        & (means["model"] == model)
    ]
    return None if rows.empty else rows.iloc[0]


def _structure_cells(
    means: pd.DataFrame, structure: str, kinds: list[Kind]
) -> list[Any]:
    """Return the cells of a structure or group: Dice by kind, then volume difference by kind.

    `kinds` are pairs of comparison and model. A cell is None if `means` has no such row.
    """
    rows = [_means_row(means, structure, kind) for kind in kinds]
    cells: list[Any] = []
    for value in ("dice", "absolute_difference_percent"):
        cells += [None if row is None else float(row[value]) for row in rows]
    return cells


def _columns(first: str, kinds: list[Kind]) -> Columns:
    """Return the columns of a table: `first`, the Dice of each kind, the volume difference of each.

    `first` is the title of the first column, which names the row. `kinds` are pairs of comparison
    and model ("" if labels are compared with labels).
    """
    columns: Columns = [first]
    columns += [Column(f"Dice: {_title(kind)}", 3) for kind in kinds]
    hint = "Mean of |second − first| / mean of both"
    columns += [Column(f"Volume (%): {_title(kind)}", 1, hint) for kind in kinds]
    return columns


def _headline_table(means: pd.DataFrame, kinds: list[Kind]) -> Table:
    """Return the table of the means over structures and over parcels."""
    rows = [
        [title, *_structure_cells(means, group, kinds)]
        for group, title in _GROUP_TITLES.items()
        if group in set(means["structure"])
    ]
    return table(
        "means",
        "Means over participants",
        _columns("Mean of", kinds),
        rows,
        note="Of the structures and parcels that every comparison has, without CSF.",
    )


def _structure_table(means: pd.DataFrame, kinds: list[Kind]) -> Table:
    """Return the table with a row for each structure."""
    rows = []
    names = means.loc[~is_group(means), "structure"].unique()
    for place, name in enumerate(names):
        rows.append(
            [Cell(short_name(name), place), *_structure_cells(means, name, kinds)]
        )
    return table(
        "structures-table",
        "By structure: means over participants",
        _columns("Structure", kinds),
        rows,
    )


def _pair_table(pairs: pd.DataFrame) -> Table:
    """Return the table of pairs of scans: their registration, and what was not compared."""
    columns: Columns = [
        "Participant",
        "First scan",
        "Second scan",
        "Status",
        Column("Likeness", 3, "Correlation of the aligned scans, shading left out"),
        Column("Turned (°)", 1),
        Column("Shifted (mm)", 1, "The middle of the first scan's field"),
        "Note",
    ]
    names = ("participant", "first", "second", "status")
    facts = ("likeness", "turned_deg", "shifted_mm")
    rows = []
    for row in pairs.to_dict("records"):
        texts = [str(row[name]) for name in names]
        rows.append([*texts, *(row[fact] for fact in facts), str(row["note"])])
    return table("pairs-table", "Pairs of scans", columns, rows)


def dice_plot(means: pd.DataFrame, scheme: LabelScheme) -> Drawing:
    """Draw the Dice of each structure, averaged over its two sides.

    A bar is the limit: labels with labels. A full dot is a model with the other scan's labels, a
    ring the model with itself.
    """
    singles = means[~is_group(means)]
    # Structure names without sides; a scheme of one side keeps its names.
    names = list(scheme.names)
    if not scheme.has_unpartnered_sides:
        merged = scheme.merged
        names = [merged.scheme.names[index] for index in merged.to_merged]
    plain = dict(zip(scheme.names, names, strict=True))
    both_sides = singles.assign(pair=singles["structure"].map(plain))
    grouped = both_sides.groupby(["comparison", "model", "pair"], sort=False)["dice"]
    dice = grouped.mean()
    structures = list(dict.fromkeys(both_sides["pair"]))
    place_of = {name: place for place, name in enumerate(structures)}
    kinds = _comparisons(means)
    models = list(dict.fromkeys(model for _, model in kinds if model))
    marks: dict[str, list[str]] = {}
    with canvas(8.6, len(structures) * 0.22 + 1.1) as (figure, axis):
        handles = []
        for order, kind in enumerate(kinds):
            comparison, model = kind
            of_kind = dice[comparison, model]
            places = [place_of[name] for name in of_kind.index]
            look: dict[str, Any] = {"marker": "|", "s": 90, "c": INK, "lw": 1.6}
            if comparison != LABELS:
                color = model_color(models.index(model))
                face = color if comparison == OTHER_LABELS else "none"
                look = {"marker": "o", "s": 24, "fc": face, "ec": color}
            gid = f"kind-{order}"
            dots = axis.scatter(
                of_kind, places, zorder=3, gid=gid, label=as_text(_title(kind)), **look
            )
            handles.append(dots)
            marks[gid] = [
                f"{short_name(name)}, {_title(kind)}: {value:.3f}"
                for name, value in of_kind.items()
            ]
        name_rows(axis, structures)
        axis.set_xlabel("Dice")
        figure.legend(handles=handles, loc="outside upper left", ncols=1, frameon=False)
    return Drawing(
        "repeat",
        figure,
        f"Dice of {len(structures)} structures over two scans of a participant, by comparison",
        marks,
        caption="Means of both sides over participants. A model that comes near the bar is as "
        "good as labels are.",
    )
