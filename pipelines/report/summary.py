"""Statistics of an evaluation, computed from metrics.csv alone, without reading label maps.

All statistics are over participants, not scans: `measurements.by_participant` averages a
participant's scans first. So the whole report can be recomputed from metrics.csv.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from natsort import index_natsorted

from trinat.pipelines.report.measurements import (
    by_scan,
    groups_of,
    is_group,
    models_of,
    structures_of,
    volumes_by_participant,
    where,
    without_side,
)
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.counted import members_of_groups
from trinat.segmentation.metrics.definitions import (
    HEADLINE,
    METRICS,
    NOT_PREDICTED,
    OTHER_CSF,
)
from trinat.segmentation.metrics.statistics import (
    bland_altman,
    holm,
    icc_2_1,
    mean_interval,
    paired_test,
    within_subject_cv_percent,
)

# Structures of each group of structures, by the group's name in the tables, such as group:all.
Members = Mapping[str, Sequence[str]]
# Columns of `structure_statistics`.
_STATISTICS = ["participants", "undefined", "mean", "median", "sd", "low", "high"]


def measured_among(metrics: Sequence[str], frame: pd.DataFrame) -> list[str]:
    """Return those of some metrics that `frame`, the table of metrics.csv, has."""
    measured = set(frame["metric"].unique())
    return [metric for metric in metrics if metric in measured]


def structure_statistics(frame: pd.DataFrame, members: Members) -> pd.DataFrame:
    """Return the statistics over participants of each model, metric, and structure or group.

    `frame` is the table of metrics.csv. `members` maps the name of each group of structures, such
    as group:cortical, to its structures. The columns are mean, median, SD and 95 % interval of the
    mean, in the metric's unit, the number of participants, and the number of undefined values.
    """
    metrics = [metric for metric in frame["metric"].unique() if metric in METRICS]
    tables = []
    for model in models_of(frame):
        tables += [_statistics(frame, model, metric, members) for metric in metrics]
    columns = ["model", "metric", "structure", *_STATISTICS]
    if not tables:
        return pd.DataFrame(columns=columns)
    return pd.concat(tables, ignore_index=True)[columns]


def _statistics(
    frame: pd.DataFrame,
    model: str,
    metric: str,
    members: Members,
) -> pd.DataFrame:
    """Return the statistics of one model and metric, a row for each structure or group.

    `frame` is the table of metrics.csv, and `members` maps each group to its structures. Columns:
    model, metric, structure, participants and undefined (numbers of participants and of undefined
    values), mean, median, sd, and the 95 % interval of the mean (low, high), which is clipped to
    the possible range of the metric.
    """
    scans = by_scan(frame, model, metric)
    participants = scans.groupby(level="subject").mean()
    definition = METRICS[metric]
    low, high = mean_interval(
        participants.to_numpy(float), definition.least, definition.most
    )
    # Number of undefined values over structures and scans. A group has the sum of its structures.
    of_each = scans.isna().sum().to_dict()
    undefined = []
    for name in participants.columns:
        parts = [part for part in members.get(name, ()) if part in of_each]
        if not parts:  # a structure, or a number of the whole scan
            parts = [name]
        undefined.append(sum(of_each[part] for part in parts))
    return pd.DataFrame(
        {
            "model": model,
            "metric": metric,
            "structure": participants.columns,
            "participants": participants.notna().sum().to_numpy(),
            "undefined": undefined,
            "mean": participants.mean().to_numpy(),
            "median": participants.median().to_numpy(),
            "sd": participants.std(ddof=1).to_numpy(),
            "low": low,
            "high": high,
        }
    )


def comparisons(frame: pd.DataFrame, members: Members) -> pd.DataFrame:
    """Return the differences between every two models, with Wilcoxon's test and Holm's correction.

    The table has a row for each pair of models, main metric, and structure or group of structures.
    `frame` is the table of metrics.csv, and `members` maps each group to its structures. Only
    values that both models have, of one structure in one scan, are compared. A structure that one
    model misses has no distance from this model; leaving it out of this model's mean alone would
    make the mean look better. The column `left_out` is the number of values that only one of the
    models has.

    p is corrected over structures, for each metric and pair of models. Groups are corrected
    separately, because they consist of structures.
    """
    tables = []
    for first, second in combinations(models_of(frame), 2):
        for metric in measured_among(HEADLINE, frame):
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
    """Compare two models in one metric: a row for each structure that both have, and each group.

    `frame` is the table of metrics.csv, and `members` maps each group of structures to its
    structures. The means of groups are computed over the values that both models have.
    """
    of_first = by_scan(frame, first, metric)
    of_second = by_scan(frame, second, metric)
    known_to_both = set(of_first.columns) & set(of_second.columns)
    names = [name for name in structures_of(frame) if name in known_to_both]
    # Values that only one of the two models has are left out.
    scans = of_first.index.union(of_second.index)
    measured = of_first.columns.union(of_second.columns, sort=False)
    of_first = of_first.reindex(index=scans, columns=measured)
    of_second = of_second.reindex(index=scans, columns=measured)
    in_both = of_first.notna() & of_second.notna()
    left_out = (of_first.notna() ^ of_second.notna()).sum()
    of_first = of_first.where(in_both)
    of_second = of_second.where(in_both)
    # Compute a group's mean again, over the values that both models have.
    structures = [name for name in structures_of(frame) if name in measured]
    for group in groups_of(frame):
        parts = [name for name in structures if name in members.get(group, ())]
        if not parts:
            continue
        of_first[group] = of_first[parts].mean(axis=1)
        of_second[group] = of_second[parts].mean(axis=1)
        left_out[group] = left_out[parts].sum()
        names.append(group)
    participants_of_first = of_first[names].groupby(level="subject").mean()
    participants_of_second = of_second[names].groupby(level="subject").mean()
    return _test_each(participants_of_first, participants_of_second, left_out)


def _test_each(
    first: pd.DataFrame, second: pd.DataFrame, left_out: pd.Series
) -> pd.DataFrame:
    """Return the paired test of two models for each structure and group, a row each.

    `first` and `second` are the tables of the models, with a row for each participant and a column
    for each structure or group. Columns of the result: `structure`, the fields of `PairedTest`
    (`participants`, `mean_difference`, `p`, `effect`, `note`), `left_out` (the number of values
    that only one model has, from the parameter), and the 95 % interval of the mean difference
    (`low`, `high`).
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


def agreement(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the agreement of predicted with true volumes: Bland-Altman (mm³) and ICC(2,1).

    The table has a row for each model and structure. Participants with several scans count once,
    with their mean. The ICC is two-way, single-measure, for absolute agreement. The table is empty
    without predicted volumes. `frame` is the table of metrics.csv.
    """
    rows = []
    for model in models_of(frame):
        predicted, true = volumes_by_participant(frame, model)
        for structure in predicted.columns:
            true_mm3 = true[structure].to_numpy()
            predicted_mm3 = predicted[structure].to_numpy()
            limits = bland_altman(true_mm3, predicted_mm3)
            icc = icc_2_1(np.stack((true_mm3, predicted_mm3), axis=1))
            rows.append(
                {"model": model, "structure": structure, **asdict(limits), "icc": icc}
            )
    return pd.DataFrame(rows)


def retest(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the differences of volumes between two scans of a participant: CV and ICC(2,1).

    The table has a row for each model, structure, and predicted or true volume. A real difference
    between the scans counts, too: the row of the true volumes shows how large it is. Of more than
    two sessions, the first two are used. `frame` is the table of metrics.csv.
    """
    rows = []
    for model in models_of(frame):
        for metric in ("volume", "truth_volume"):
            scans = by_scan(frame, model, metric)
            # Natural order: the second session before the tenth.
            sessions = scans.index.get_level_values("session")
            scans = scans.iloc[index_natsorted(sessions)]
            for structure in scans.columns:
                participants = scans[structure].dropna().groupby(level="subject")
                first_two = [
                    values.to_numpy()[:2]
                    for _, values in participants
                    if len(values) > 1
                ]
                pairs = np.array(first_two)
                if not len(pairs):
                    continue
                cv = within_subject_cv_percent(pairs[:, 0], pairs[:, 1])
                rows.append((model, metric, structure, len(pairs), cv, icc_2_1(pairs)))
    columns = ["model", "metric", "structure", "participants", "cv_percent", "icc"]
    return pd.DataFrame(rows, columns=columns)


def confusion(frame: pd.DataFrame, model: str) -> pd.DataFrame:
    """Return which share of each true structure's volume was labelled as which structure.

    `frame` is the table of metrics.csv; volumes are summed over all scans of `model`. The result is
    square: rows are true structures, columns are predicted ones, background is first. Structures
    that are not compared, such as the CSF of many pairs, come last, with an empty row, because
    other structures may have been labelled as these.
    """
    rows = where(frame, model=model)
    rows = rows[rows["metric"].str.startswith("labelled_as:")]
    predicted = rows["metric"].str.removeprefix("labelled_as:")
    table = rows.assign(predicted=predicted).pivot_table(
        index="structure",
        columns="predicted",
        values="value",
        aggfunc="sum",
        fill_value=0.0,
    )
    compared = ["background", *structures_of(frame)]
    order = [*compared, *table.columns.difference(compared)]
    table = table.reindex(index=order, columns=order, fill_value=0.0)
    sums = table.sum(axis=1).replace(0, np.nan)
    return table.div(sums, axis=0)


def swapped(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the scans in which a model has exchanged left and right.

    In these, more than half of the overlap of paired structures is on the wrong side. Columns:
    subject, session, model, and `value`, this share. `frame` is the table of metrics.csv.
    """
    swap = where(frame, metric="side_swap", structure="group:all")
    is_swapped = swap["value"] > 0.5
    return swap.loc[is_swapped, ["subject", "session", "model", "value"]]


def absences(frame: pd.DataFrame) -> pd.DataFrame:
    """Count in how many scans each structure is missed, invented or absent from both label maps.

    The columns are model, structure, absence and count. Counts of 0 have no row. `frame` is the
    table of metrics.csv.
    """
    is_dice = frame["metric"] == "dice"
    has_note = frame["note"] != ""
    rows = frame[is_dice & has_note & ~is_group(frame)]
    counts = rows.groupby(["model", "structure", "note"]).size()
    return counts.rename("count").reset_index().rename(columns={"note": "absence"})


def absent_everywhere(frame: pd.DataFrame) -> list[str]:
    """Return the structures that no true or predicted label map has, on either side.

    Tissue schemes and label maps of parts of a head lack some structures, so there is nothing to
    measure.
    """
    rows = frame[(frame["metric"] == "dice") & ~is_group(frame)]
    present = rows.loc[rows["note"] != "absent from both", "structure"].unique()
    pairs_present = {without_side(name) for name in present}
    names = structures_of(frame)
    return [name for name in names if without_side(name) not in pairs_present]


def worst_scans(frame: pd.DataFrame, count: int = 5) -> pd.DataFrame:
    """Return the scans with the lowest mean Dice over all structures, the lowest first.

    There are at most `count` rows for all models together. Columns: subject, session, model,
    `value` (the mean Dice), and the structure with the lowest Dice of this scan, `worst_structure`,
    with its Dice, `worst_value`. `frame` is the table of metrics.csv.
    """
    scan = ["subject", "session", "model"]
    dice = where(frame, metric="dice").dropna(subset="value")
    worst = where(dice, structure="group:all").nsmallest(count, "value")
    worst = worst[[*scan, "value"]]
    single = dice[~is_group(dice)]
    row_of_lowest = single.groupby(scan)["value"].idxmin()
    lowest = single.loc[row_of_lowest, [*scan, "structure", "value"]]
    lowest = lowest.rename(
        columns={"structure": "worst_structure", "value": "worst_value"}
    )
    return worst.merge(lowest, on=scan, how="left")


@dataclass(frozen=True)
class Evaluation:
    """All tables of an evaluation, computed once from metrics.csv.

    `frame` is the table of metrics.csv, and `pairs` that of pairs.csv. `not_predicted` and
    `other_csf` have a model and a structure in each row. These are not in `frame`: the model does
    not predict the structure, or its CSF has another definition than the CSF of the truth.

    `statistics` has the statistics of each model, metric and structure, and `comparisons` the tests
    of every two models. `agreement` compares predicted with true volumes, and `retest` the volumes
    of two scans of a participant.
    """

    frame: pd.DataFrame
    pairs: pd.DataFrame
    statistics: pd.DataFrame
    comparisons: pd.DataFrame
    agreement: pd.DataFrame
    retest: pd.DataFrame
    not_predicted: pd.DataFrame
    other_csf: pd.DataFrame

    @property
    def models(self) -> list[str]:
        """The evaluated models, in the order of the command line."""
        return models_of(self.frame)

    def measured(self, metrics: Sequence[str]) -> list[str]:
        """Return those of some metrics that were measured."""
        return measured_among(metrics, self.frame)

    def without_absent(self) -> Evaluation:
        """Return a copy without the structures that no label map of the evaluation has.

        Groups of structures that consist only of these are removed, too. If all structures are
        absent, nothing is removed.
        """
        absent = set(absent_everywhere(self.frame))
        if len(absent) == len(structures_of(self.frame)):
            return self
        dice = where(self.statistics, metric="dice")
        measured = dice.loc[dice["participants"] > 0, "structure"].unique()
        # Tables are sorted by the mean of all structures, even if it is empty.
        absent.update(set(groups_of(self.frame)) - {*measured, "group:all"})

        def present(table: pd.DataFrame) -> pd.DataFrame:
            """Return the rows of the remaining structures; an empty table stays as it is."""
            if table.empty:
                return table
            return table[~table["structure"].isin(absent)]

        return replace(
            self,
            frame=present(self.frame),
            statistics=present(self.statistics),
            comparisons=present(self.comparisons),
            agreement=present(self.agreement),
            retest=present(self.retest),
        )

    def statistic(self, model: str, metric: str, structure: str) -> Mapping[str, Any]:
        """Return a row of `statistics` for a model, metric and structure; {} if there is none.

        The row maps names of columns to values. `structure` may also be a group of structures, such
        as group:all.
        """
        return self._statistic_of.get((model, metric, structure), {})

    @cached_property
    def _statistic_of(self) -> dict[tuple[str, str, str], dict[str, Any]]:
        """Rows of `statistics` by model, metric and structure.

        A report reads a thousand of them; to search the table for each takes seconds.
        """
        found = {}
        for row in self.statistics.to_dict("records"):
            key = (row["model"], row["metric"], row["structure"])
            found[key] = {str(name): value for name, value in row.items()}
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the tables for summary.json as lists of records; undefined numbers are null.

        Numbers are not rounded. `pairs` has the number of pairs by status.
        """
        pairs = {
            str(status): int(number)
            for status, number in self.pairs["status"].value_counts().items()
        }
        return {
            "statistics": _json_records(self.statistics),
            "comparisons": _json_records(self.comparisons),
            "agreement": _json_records(self.agreement),
            "retest": _json_records(self.retest),
            "not_predicted": _json_records(self.not_predicted),
            "other_csf": _json_records(self.other_csf),
            "side_swapped": _json_records(swapped(self.frame)),
            "absences": _json_records(absences(self.frame)),
            "pairs": pairs,
        }


def evaluate_frame(
    frame: pd.DataFrame, pairs: pd.DataFrame, scheme: LabelScheme
) -> Evaluation:
    """Compute all statistics of an evaluation from the table of metrics.csv.

    `pairs` is the table of pairs.csv, and `scheme` the label scheme of both tables. Structures that
    a model does not predict, and CSF that is not compared, are removed first, so that no mean or
    test includes them.
    """
    members: dict[str, list[str]] = {}
    for group, labels in members_of_groups(scheme).items():
        members[f"group:{group}"] = [label.name for label in labels]
    not_predicted = _with_note(frame, NOT_PREDICTED)
    other_csf = _with_note(frame, OTHER_CSF)
    keys = pd.MultiIndex.from_frame(frame[["model", "structure"]])
    left_out = pd.concat([not_predicted, other_csf])
    frame = frame[~keys.isin(pd.MultiIndex.from_frame(left_out))]
    return Evaluation(
        frame=frame,
        pairs=pairs,
        statistics=structure_statistics(frame, members),
        comparisons=comparisons(frame, members),
        agreement=agreement(frame),
        retest=retest(frame),
        not_predicted=not_predicted,
        other_csf=other_csf,
    )


def _with_note(frame: pd.DataFrame, note: str) -> pd.DataFrame:
    """Return the model and structure of the rows whose note is `note`, each pair once."""
    found = frame.loc[frame["note"] == note, ["model", "structure"]]
    return found.drop_duplicates(ignore_index=True)


def _json_records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as JSON records; a number that is not finite becomes null."""
    records = []
    for row in table.to_dict("records"):
        record = {}
        for key, value in row.items():
            is_undefined = isinstance(value, float) and not np.isfinite(value)
            record[str(key)] = None if is_undefined else value
        records.append(record)
    return records
