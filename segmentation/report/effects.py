"""Differences between the persons of a group: by sex, group and site, and over age.

A person's value is the mean over their scans: intervals count persons, not scans.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd

from trinat.segmentation.metrics.groups import group_difference, trend
from trinat.segmentation.metrics.statistics import holm

# What persons are distinguished by.
FACTS = ("sex", "group", "site")
# Pairs of more groups than this are not compared: their table has all means.
MOST_GROUPS = 4


def effects_of(persons: pd.DataFrame) -> pd.DataFrame:
    """A row for each fact, pair of groups and structure: the fields of a `GroupDifference`.

    `persons` are those of `persons_of`. Columns `fact`, `first_group`, `second_group` and
    `structure` say of what it is. `p_holm` is p after Holm over the structures of a pair. Empty
    where there are no two groups.
    """
    tables = []
    for fact in FACTS:
        groups = groups_of(persons, fact)
        if len(groups) > MOST_GROUPS:
            continue
        for first, second in combinations(groups, 2):
            rows = []
            for structure, values in persons.groupby("structure", sort=False):
                found = group_difference(
                    values.loc[values[fact] == first, "value"].to_numpy(float),
                    values.loc[values[fact] == second, "value"].to_numpy(float),
                )
                rows.append({"structure": structure, **vars(found)})
            table = pd.DataFrame(rows)
            table.insert(0, "fact", fact)
            table.insert(1, "first_group", first)
            table.insert(2, "second_group", second)
            table["p_holm"] = holm(table["p"].to_numpy(float))
            tables.append(table)
    if not tables:
        return pd.DataFrame()
    return pd.concat(tables, ignore_index=True)


def trends_of(persons: pd.DataFrame) -> pd.DataFrame:
    """A row for each structure: the fields of its `Trend` over age in years, and the mean.

    `persons` are those of `persons_of`. `p_holm` is p after Holm over structures. Empty where
    fewer than four persons have an age.
    """
    rows = []
    for structure, values in persons.groupby("structure", sort=False):
        ages = values["age"].to_numpy(float)
        found = trend(ages, values["value"].to_numpy(float))
        mean = values.loc[np.isfinite(ages), "value"].mean()
        rows.append({"structure": structure, **vars(found), "mean": mean})
    table = pd.DataFrame(rows)
    if table.empty or table["slope"].isna().all():
        return pd.DataFrame()
    table["p_holm"] = holm(table["p"].to_numpy(float))
    return table


def groups_of(persons: pd.DataFrame, fact: str) -> list[str]:
    """The groups of persons by one fact, sorted; a fact that is not known is no group."""
    return sorted(set(persons[fact]) - {""})


def persons_of(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """A row for each person and structure: `value`, mean `age`, and the facts of their first scan.

    `frame` is that of a `Cohort`, and values are of one metric of it. In the order of the
    structures; those of persons without a value have NaN.
    """
    values = frame[frame["metric"] == metric]
    by = values.groupby(["structure", "subject"], sort=False)
    facts = {fact: (fact, "first") for fact in FACTS}
    found = by.agg(value=("value", "mean"), age=("age", "mean"), **facts)
    return found.reset_index()
