"""Two models compared, person by person, over the values that both have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from trinat.segmentation.metrics.definitions import HEADLINE
from trinat.segmentation.metrics.statistics import holm, mean_interval, paired_test
from trinat.segmentation.report.frames import (
    by_scan,
    groups_of,
    is_group,
    models_of,
    structures_of,
)

# The structures of each group, by its name in the tables.
Members = Mapping[str, Sequence[str]]


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
    table = pd.concat(tables, ignore_index=True).astype({"p": float})
    table["p_holm"] = np.nan
    families = table.groupby(["first", "second", "metric", is_group(table)])
    for index in families.groups.values():
        p_values = table.loc[index, "p"].to_numpy(float)
        table.loc[index, "p_holm"] = holm(p_values)
    return table


def _comparison(
    frame: pd.DataFrame,
    first: str,
    second: str,
    metric: str,
    members: Members,
) -> pd.DataFrame:
    """Two models by one metric: a row for each structure that both know, then for each group."""
    of_first = by_scan(frame, first, metric)
    of_second = by_scan(frame, second, metric)
    known_to_both = set(of_first.columns) & set(of_second.columns)
    names = [name for name in structures_of(frame) if name in known_to_both]
    of_first, of_second, left_out = _shared(of_first, of_second)
    # A group's mean is computed again: over the values that both models have.
    for group, parts in _parts_of_groups(frame, members, of_first.columns).items():
        of_first[group] = of_first[parts].mean(axis=1)
        of_second[group] = of_second[parts].mean(axis=1)
        left_out[group] = left_out[parts].sum()
        names.append(group)
    persons_of_first = of_first[names].groupby(level="subject").mean()
    persons_of_second = of_second[names].groupby(level="subject").mean()
    return _test_each(persons_of_first, persons_of_second, left_out)


def _parts_of_groups(
    frame: pd.DataFrame, members: Members, measured: pd.Index
) -> dict[str, list[str]]:
    """The measured structures of each group; groups without any are left out."""
    structures = [name for name in structures_of(frame) if name in measured]
    parts_of_groups = {}
    for group in groups_of(frame):
        of_group = members.get(group, ())
        parts = [name for name in structures if name in of_group]
        if parts:
            parts_of_groups[group] = parts
    return parts_of_groups


def _test_each(
    first: pd.DataFrame, second: pd.DataFrame, left_out: pd.Series
) -> pd.DataFrame:
    """Each column of two models' tables (persons x structures and groups) compared, a row each.

    A row has the fields of `PairedTest`, `left_out` as given for the column, and the 95 % interval
    of the mean difference (`low`, `high`).
    """
    low, high = mean_interval((second - first).to_numpy(float))
    rows = []
    for place, name in enumerate(first.columns):
        test = paired_test(first[name].to_numpy(), second[name].to_numpy())
        row: dict[str, Any] = {"structure": name}
        row |= asdict(test)
        row["left_out"] = int(left_out[name])
        row["low"] = low[place]
        row["high"] = high[place]
        rows.append(row)
    return pd.DataFrame(rows)


def _shared(
    one: pd.DataFrame, other: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame, pd.Series]:
    """Two models' values by scan where both have one, and how many of each only one has."""
    scans = one.index.union(other.index)
    structures = one.columns.union(other.columns, sort=False)
    one = one.reindex(index=scans, columns=structures)
    other = other.reindex(index=scans, columns=structures)
    in_both = one.notna() & other.notna()
    only_in_one = one.notna() ^ other.notna()
    return one.where(in_both), other.where(in_both), only_in_one.sum()
