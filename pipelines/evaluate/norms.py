"""trinat norms: a lab's own controls, as a table that other scans are compared with."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from trinat.pipelines.common.exits import Exit, batch_exit
from trinat.pipelines.evaluate.cohort import MeasuredGroup, measure_group
from trinat.pipelines.evaluate.measuring import MapVolumes
from trinat.pipelines.evaluate.settings import CohortSettings
from trinat.pipelines.evaluate.user_tables import is_of_norms
from trinat.segmentation.errors import ConfigError, EvaluationError, OutputError
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.metrics.norms import SEXES, Norms, rows_of
from trinat.segmentation.metrics.norms_fit import (
    FEWEST_OF_SEX,
    FEWEST_PERSONS,
    Controls,
    fit_curves,
)
from trinat.segmentation.report.cohort import cohort_of
from trinat.segmentation.report.page import count

# What is known of a person beside volumes.
_FACTS = ("age", "sex", "intracranial_mm3")
# If more persons than this have no intracranial volume, norms know nothing of heads.
_MOST_WITHOUT_HEAD = 0.2


def make_norms(
    settings: CohortSettings,
    out: Path,
    group: str | None,
    progress: Callable[[MapVolumes, int, int], object],
    say: Callable[[str], None],
) -> Exit:
    """Measure the label maps of controls, and write their norms; `say` hears who is left out.

    `group` is what the table calls controls; without it all persons are. EvaluationError where
    these are too few, ConfigError where they may be patients, or have volumes of several models.
    """
    _refuse_other_files(out)
    measured = measure_group(settings, progress, say)
    persons = _persons(measured, group, say)
    model = _model_of(measured, settings.predictions)
    with_heads = bool(persons["intracranial_mm3"].notna().any())
    if with_heads:
        lacking = persons["intracranial_mm3"].isna()
        if lacking.mean() > _MOST_WITHOUT_HEAD:
            say(
                f"{lacking.sum()} of {len(persons)} persons have no intracranial volume: the "
                "norms know nothing of heads"
            )
            with_heads = False
        else:
            _say_left_out(persons, lacking, "without an intracranial volume", say)
            persons = persons[~lacking]

    rows: list[dict[str, object]] = []
    refused = []
    for structure in persons.columns.difference(list(_FACTS), sort=False):
        known = _counted(persons[persons[structure] > 0])
        if known.empty:
            refused.append(structure)
            continue
        heads = None
        if with_heads:
            heads = known["intracranial_mm3"].to_numpy(float)
        controls = Controls(
            known[structure].to_numpy(float),
            known["age"].to_numpy(float),
            np.array(known["sex"] == "M", float),
            heads,
        )
        for sex, curve in fit_curves(controls).items():
            rows += rows_of(structure, sex, curve, model)
    if not rows:
        sexes = ", ".join(f"{(persons['sex'] == sex).sum()} {sex}" for sex in SEXES)
        raise EvaluationError(
            f"{count(len(persons), 'person')} left ({sexes}), and norms need "
            f"{FEWEST_PERSONS}, of these {FEWEST_OF_SEX} of a sex",
            where=settings.predictions,
        )
    if refused:
        say(
            f"no norms of {len(refused)} structures, which fewer than {FEWEST_PERSONS} persons "
            f"have: {_some(refused)}"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, Norms.of(rows).table)
    return batch_exit(done=len(measured.chosen.scans), failed=len(measured.failures))


def _refuse_other_files(out: Path) -> None:
    """Raise OutputError where `out` is there, and is no table of norms."""
    if os.path.lexists(out) and not (out.is_file() and is_of_norms(out)):
        raise OutputError(
            "is no table of norms and would be replaced",
            where=out,
            remedy="give another --out",
        )


def _persons(
    measured: MeasuredGroup,
    group: str | None,
    say: Callable[[str], None],
) -> pd.DataFrame:
    """Make a row for each control: age, sex, intracranial volume, and each structure's volume.

    Those of several scans have the mean. Who has no age or sex is left out, and who is of a sex
    that has too few.
    """
    cohort = cohort_of(measured.chosen.scans, measured.known.scheme)
    frame = cohort.frame[cohort.frame["metric"] == "volume"]
    table = measured.known.table
    groups = sorted(set(frame["group"]) - {""})
    if group is None and len(groups) > 1:
        raise ConfigError(
            f"has the groups {', '.join(groups)}, and norms are of healthy persons",
            where=table,
            remedy="give --group with the one that is healthy",
        )
    if group is not None:
        if group not in groups:
            known = ", ".join(groups) or "none"
            raise ConfigError(
                f"has no group {group!r}", where=table, remedy=f"known groups: {known}"
            )
        frame = frame[frame["group"] == group]
    by_person = frame.groupby("subject", sort=False)
    facts = by_person.agg(
        age=("age", "mean"),
        sex=("sex", "first"),
        intracranial_mm3=("intracranial_mm3", "mean"),
    )
    volumes = frame.pivot_table(
        index="subject", columns="structure", values="value", aggfunc="mean", sort=False
    )
    persons = facts.join(volumes)
    unknown = persons["age"].isna() | (persons["sex"] == "")
    _say_left_out(persons, unknown, "without an age or a sex", say)
    persons = persons[~unknown]
    for sex in SEXES:
        is_of_sex = persons["sex"] == sex
        if 0 < is_of_sex.sum() < FEWEST_OF_SEX:
            few = f"of sex {sex}, which has fewer than {FEWEST_OF_SEX}"
            _say_left_out(persons, is_of_sex, few, say)
            persons = persons[~is_of_sex]
    return persons


def _counted(persons: pd.DataFrame) -> pd.DataFrame:
    """Keep the persons whose sex has enough, if these are enough; else nobody."""
    counts = persons["sex"].map(persons["sex"].value_counts())
    enough = persons[counts >= FEWEST_OF_SEX]
    if len(enough) < FEWEST_PERSONS:
        return enough.iloc[:0]
    return enough


def _say_left_out(
    persons: pd.DataFrame, are_left_out: pd.Series, why: str, say: Callable[[str], None]
) -> None:
    """Name persons who are in no norms."""
    names = list(persons.index[are_left_out])
    if names:
        say(f"left out: {count(len(names), 'person')} {why}: {_some(names)}")


def _some(names: Sequence[str]) -> str:
    """List the first names, and say how many more there are."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _model_of(measured: MeasuredGroup, folder: Path) -> str:
    """Find the hash of the model that made the label maps; "" where no ledger says it."""
    models = {
        entry.model
        for entry in measured.ledger.entries
        if entry.status == "done" and entry.model
    }
    if len(models) > 1:
        raise ConfigError(
            f"has results of {len(models)} models, whose volumes differ",
            where=folder,
            remedy="segment all controls with one",
        )
    return models.pop() if models else ""
