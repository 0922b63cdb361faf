"""From metrics.csv to the numbers of a report; nothing here looks at a voxel.

The unit is the person: `by_person` averages a person's scans first. Everything else is a
reduction of its tables, so the whole report can be recomputed from metrics.csv.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.counted import members_of_groups
from trinat.segmentation.metrics.definitions import METRICS, NOT_PREDICTED
from trinat.segmentation.metrics.statistics import (
    bland_altman,
    holm,
    icc_2_1,
    mean_interval,
    paired_test,
    within_subject_cv_percent,
)

# The structures of each group, by its name in the tables.
Members = Mapping[str, Sequence[str]]
# What a reader wants first, and on which models are compared: few, so that the tests stay few.
HEADLINE = (*("dice", "iou", "hd95", "surface_dice_1mm"), *("assd", "absolute_volume_difference"))


def models_of(frame: pd.DataFrame) -> list[str]:
    """Models in the order of the command line."""
    return [str(model) for model in frame["model"].unique()]


def structures_of(frame: pd.DataFrame) -> list[str]:
    """Single structures in the order of the label scheme, left and right side by side."""
    every = frame.loc[~_is_group(frame), "structure"].unique()
    names = [str(name) for name in every if name != "background"]
    place = {name.removeprefix("Left-"): n for n, name in reversed(list(enumerate(names)))}
    return sorted(names, key=lambda name: place[name.removeprefix("Left-").removeprefix("Right-")])


def groups_of(frame: pd.DataFrame) -> list[str]:
    return [str(name) for name in frame.loc[_is_group(frame), "structure"].unique()]


def where(table: pd.DataFrame, **values: str) -> pd.DataFrame:
    """The rows with these values in these columns."""
    chosen = np.ones(len(table), bool)
    for column, value in values.items():
        chosen &= (table[column] == value).to_numpy()
    return table[chosen]


def _in_order(table: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Columns as in `structures_of`, then groups."""
    names = (*structures_of(frame), *groups_of(frame))
    return table[[name for name in names if name in table.columns]]


def by_person(frame: pd.DataFrame, model: str, metric: str) -> pd.DataFrame:
    """Persons x structures and groups; a person's scans averaged, undefined ones left out."""
    rows = where(frame, model=model, metric=metric)
    return _in_order(rows.groupby(["subject", "structure"])["value"].mean().unstack(), frame)


def by_scan(frame: pd.DataFrame, model: str, metric: str) -> pd.DataFrame:
    """(subject, session) x structures and groups."""
    rows = where(frame, model=model, metric=metric)
    return _in_order(rows.set_index(["subject", "session", "structure"])["value"].unstack(), frame)


def structure_statistics(frame: pd.DataFrame, members: Members) -> pd.DataFrame:
    """Mean, median, SD and 95 % interval of the mean over persons, over how many, and what is
    undefined."""
    known = [m for m in frame["metric"].unique() if m in METRICS]
    tables = [
        _statistics(frame, model, metric, members) for model in models_of(frame) for metric in known
    ]
    columns = ["model", "metric", "structure", *_STATISTICS]
    return (
        pd.concat(tables, ignore_index=True)[columns] if tables else pd.DataFrame(columns=columns)
    )


_STATISTICS = ["persons", "undefined", "mean", "median", "sd", "low", "high"]


def _statistics(frame: pd.DataFrame, model: str, metric: str, members: Members) -> pd.DataFrame:
    persons = by_person(frame, model, metric)
    what = METRICS[metric]
    low, high = np.clip(mean_interval(persons.to_numpy(float)), what.least, what.most)
    undefined = _undefined(by_scan(frame, model, metric), members)
    return pd.DataFrame(
        {
            "model": model,
            "metric": metric,
            "structure": persons.columns,
            "persons": persons.notna().sum().to_numpy(),
            "undefined": [undefined[structure] for structure in persons.columns],
            "mean": persons.mean().to_numpy(),
            "median": persons.median().to_numpy(),
            "sd": persons.std(ddof=1).to_numpy(),
            "low": low,
            "high": high,
        }
    )


def _undefined(scans: pd.DataFrame, members: Members) -> dict[str, int]:
    """How many values are undefined, one a structure and scan; a group's are its structures'."""
    of_each = scans.isna().sum()
    undefined = {}
    for name in scans.columns:
        parts = [part for part in members.get(name, ()) if part in of_each]
        if not parts:  # a structure, or a number of the whole scan
            parts = [name]
        undefined[name] = int(of_each[parts].sum())
    return undefined


def comparisons(frame: pd.DataFrame, members: Members) -> pd.DataFrame:
    """Every two models on the persons that both have; Holm within metric and pair of models.

    Only values that both models have, for one structure in one scan, are compared: a structure
    that one misses has no distance, and must not make its mean the better one. `left_out` says
    how many values only one of the two has. Groups are corrected among themselves: they are made
    of structures, not more of them.
    """
    tables = []
    for first, second in combinations(models_of(frame), 2):
        for metric in HEADLINE:
            table = _comparison(frame, first, second, metric, members)
            if not table.empty:
                tables.append(table.assign(first=first, second=second, metric=metric))
    if not tables:
        return pd.DataFrame()
    table = pd.concat(tables, ignore_index=True).astype({"p": float}).assign(p_holm=np.nan)
    families = table.groupby(["first", "second", "metric", _is_group(table)])
    for index in families.groups.values():
        table.loc[index, "p_holm"] = holm(table.loc[index, "p"].to_numpy(float))
    return table


def _comparison(
    frame: pd.DataFrame, first: str, second: str, metric: str, members: Members
) -> pd.DataFrame:
    """One row for each structure that both models know, and for each group."""
    one, other = by_scan(frame, first, metric), by_scan(frame, second, metric)
    every = structures_of(frame)
    known = [name for name in every if name in one.columns and name in other.columns]
    one, other, left_out = _shared(one, other)
    for group in groups_of(frame):
        parts = [part for part in every if part in members.get(group, ()) and part in one.columns]
        if parts:
            one[group] = one[parts].mean(axis=1)
            other[group] = other[parts].mean(axis=1)
            left_out[group] = left_out[parts].sum()
            known.append(group)
    one, other = (table[known].groupby(level="subject").mean() for table in (one, other))
    low, high = mean_interval((other - one).to_numpy(float))
    rows = []
    for place, name in enumerate(known):
        test = paired_test(one[name].to_numpy(), other[name].to_numpy())
        row = {"structure": name, **asdict(test), "left_out": int(left_out[name])}
        rows.append(row | {"low": low[place], "high": high[place]})
    return pd.DataFrame(rows)


def _shared(one: pd.DataFrame, other: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, pd.Series]:
    """Two models' values by scan where both have one, and how many of each only one has."""
    scans = one.index.union(other.index)
    structures = one.columns.union(other.columns, sort=False)
    one, other = (table.reindex(index=scans, columns=structures) for table in (one, other))
    both = one.notna() & other.notna()
    alone = one.notna() ^ other.notna()
    return one.where(both), other.where(both), alone.sum()


def agreement(frame: pd.DataFrame) -> pd.DataFrame:
    """Predicted against true volumes: Bland-Altman in mm3 and ICC(2,1), a structure a row."""
    rows = []
    for model in models_of(frame):
        predicted, true = (by_person(frame, model, m) for m in ("volume", "truth_volume"))
        for structure in predicted.columns:
            pair = true[structure].to_numpy(), predicted[structure].to_numpy()
            limits = bland_altman(*pair)
            icc = icc_2_1(np.stack(pair, 1))
            rows.append({"model": model, "structure": structure, **asdict(limits), "icc": icc})
    return pd.DataFrame(rows)


def retest(frame: pd.DataFrame) -> pd.DataFrame:
    """Two scans of a person: within-subject CV and ICC(2,1) of predicted and of true volumes.

    A real difference between the scans counts too; the truth's own row shows how large it is.
    """
    rows = []
    for model in models_of(frame):
        for metric in ("volume", "truth_volume"):
            scans = by_scan(frame, model, metric)
            for structure in scans.columns:
                known = scans[structure].dropna().groupby(level="subject")
                pairs = np.array([of.to_numpy()[:2] for _, of in known if len(of) > 1])
                if not len(pairs):
                    continue
                cv = within_subject_cv_percent(pairs[:, 0], pairs[:, 1])
                rows.append((model, metric, structure, len(pairs), cv, icc_2_1(pairs)))
    columns = ["model", "metric", "structure", "persons", "cv_percent", "icc"]
    return pd.DataFrame(rows, columns=columns)


def confusion(frame: pd.DataFrame, model: str) -> pd.DataFrame:
    """What each true structure was labelled as, share of its true volume over all scans."""
    rows = where(frame, model=model)
    rows = rows[rows["metric"].str.startswith("labelled_as:")]
    predicted = rows["metric"].str.removeprefix("labelled_as:")
    table = rows.assign(predicted=predicted).pivot_table(
        index="structure", columns="predicted", values="value", aggfunc="sum", fill_value=0.0
    )
    order = ["background", *structures_of(frame)]
    table = table.reindex(index=order, columns=order, fill_value=0.0)
    return table.div(table.sum(axis=1).replace(0, np.nan), axis=0)


def swapped(frame: pd.DataFrame) -> pd.DataFrame:
    """Scans whose left and right are exchanged: most of the paired overlap is on the wrong side."""
    swap = where(frame, metric="side_swap", structure="group:all")
    return swap.loc[swap["value"] > 0.5, ["subject", "session", "model", "value"]]


def absences(frame: pd.DataFrame) -> pd.DataFrame:
    """How often each structure is missed, invented or absent from both."""
    rows = frame[(frame["metric"] == "dice") & (frame["note"] != "") & ~_is_group(frame)]
    counts = rows.groupby(["model", "structure", "note"]).size()
    return counts.rename("count").reset_index().rename(columns={"note": "absence"})


def worst_scans(frame: pd.DataFrame, count: int = 5) -> pd.DataFrame:
    """Scans with the lowest mean Dice over all structures, and each one's worst structure."""
    scan = ["subject", "session", "model"]
    dice = where(frame, metric="dice").dropna(subset="value")
    worst = where(dice, structure="group:all").nsmallest(count, "value")[[*scan, "value"]]
    single = dice[~_is_group(dice)]
    lowest = single.loc[single.groupby(scan)["value"].idxmin(), [*scan, "structure", "value"]]
    lowest = lowest.rename(columns={"structure": "worst_structure", "value": "worst_value"})
    return worst.merge(lowest, on=scan, how="left")


@dataclass(frozen=True)
class Evaluation:
    """Everything that a report says, computed once from the table of measurements."""

    frame: pd.DataFrame
    pairs: pd.DataFrame
    statistics: pd.DataFrame
    comparisons: pd.DataFrame
    agreement: pd.DataFrame
    retest: pd.DataFrame
    not_predicted: pd.DataFrame  # model, structure: these are not in `frame`

    @property
    def models(self) -> list[str]:
        return models_of(self.frame)

    def statistic(self, model: str, metric: str, structure: str) -> Mapping[str, Any]:
        found = where(self.statistics, model=model, metric=metric, structure=structure)
        return {} if found.empty else dict(found.iloc[0])

    def to_json(self) -> dict[str, Any]:
        """The tables of the report as records; undefined numbers are null."""
        named = {
            "statistics": self.statistics,
            "comparisons": self.comparisons,
            "agreement": self.agreement,
            "retest": self.retest,
            "not_predicted": self.not_predicted,
            "side_swapped": swapped(self.frame),
            "absences": absences(self.frame),
        }
        pairs = {str(k): int(v) for k, v in self.pairs["status"].value_counts().items()}
        return {**{key: _records(table) for key, table in named.items()}, "pairs": pairs}


def evaluate_frame(frame: pd.DataFrame, pairs: pd.DataFrame, scheme: LabelScheme) -> Evaluation:
    """All statistics of a metrics.csv, whose structures are those of `scheme`."""
    members = {
        f"group:{group}": [label.name for label in labels]
        for group, labels in members_of_groups(scheme).items()
    }
    not_predicted = frame.loc[frame["note"] == NOT_PREDICTED, ["model", "structure"]]
    not_predicted = not_predicted.drop_duplicates(ignore_index=True)
    keys = pd.MultiIndex.from_frame(frame[["model", "structure"]])
    frame = frame[~keys.isin(pd.MultiIndex.from_frame(not_predicted))]
    statistics = structure_statistics(frame, members)
    compared = comparisons(frame, members)
    agreed, again = agreement(frame), retest(frame)
    return Evaluation(frame, pairs, statistics, compared, agreed, again, not_predicted)


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {str(k): None if isinstance(v, float) and not np.isfinite(v) else v for k, v in row.items()}
        for row in table.to_dict("records")
    ]


def _is_group(frame: pd.DataFrame) -> pd.Series:
    return frame["structure"].str.startswith("group:").rename("is_group")
