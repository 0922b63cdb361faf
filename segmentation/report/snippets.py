"""Code that a report prints: every number on its page again, from metrics.csv by pandas.

Written apart from `summary.py`, which made the page: a test runs each of them in the report's
folder and compares. Each stands by itself, so that it can be copied from the page and run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from segmentation.report.tables import neutral

__all__ = ["snippets"]

_START = """\
import numpy as np, pandas as pd
table = pd.read_csv("metrics.csv", dtype=str, keep_default_na=False)
table["value"] = table.value.replace("", "nan").astype(float)
"""

# 95 % bootstrap intervals of the mean over the rows of `persons`, from two persons on.
_INTERVAL = """\
drawn = np.random.default_rng(0).integers(len(persons), size=(10_000, len(persons)))
counts = np.array([np.bincount(d, minlength=len(persons)) for d in drawn])
means = (counts @ persons.fillna(0)) / (counts @ persons.notna().astype(int))
interval = means.quantile([0.025, 0.975]).T[persons.count() > 1]
"""

_STATISTICS = f"""\
{_START}
rows = table[(table.model == MODEL) & (table.metric == "dice")]  # or another
persons = rows.groupby(["subject", "structure"]).value.mean().unstack()  # over sessions
{_INTERVAL}print(persons.describe().T.join(interval).to_string())
"""

_ABSENCES = f"""\
{_START}
rows = table[(table.metric == "dice") & ~table.structure.str.startswith("group:")]
print(rows[rows.note != ""].groupby(["model", "structure", "note"]).size().to_string())
sides = table[(table.metric == "side_swap") & (table.structure == "group:all")]
print(sides[sides.value > 0.5].to_string())  # left and right exchanged
"""

_SCANS = f"""\
{_START}
rows = table[(table.model == MODEL) & (table.metric == "dice")]
scans = rows.pivot(index=["subject", "session"], columns="structure", values="value")
print(scans.sort_values("group:all").to_string())
"""

_PAIRED = f"""\
{_START}
rows = table[table.metric == "dice"].groupby(["model", "subject", "structure"]).value  # or another
persons = rows.mean().unstack().loc[SECOND] - rows.mean().unstack().loc[FIRST]
changed = persons[persons != 0]
"""

_DIFFERENCES = f"""\
{_PAIRED}{_INTERVAL}ranks = changed.abs().rank()
effect = ((ranks * np.sign(changed)).sum() / ranks.sum()).fillna(0)[persons.count() > 0]
print(persons.agg(["count", "mean"]).T.join(interval).assign(effect=effect).to_string())
"""

_TESTS = f"""\
from scipy.stats import wilcoxon
{_PAIRED}exact = (changed.count() <= 50) & (changed.abs().nunique() == changed.count())
p = {{s: wilcoxon(d.dropna(), method="exact" if exact[s] else "approx").pvalue if d.any() else 1.0
     for s, d in changed.items() if persons[s].count() >= 6}}
p = pd.Series(p, dtype=float).sort_values()
families = p.groupby(lambda structure: structure.startswith("group:"))
holm = families.transform(lambda p: (p * np.arange(len(p), 0, -1)).cummax().clip(upper=1))
print(pd.DataFrame({{"p": p, "holm": holm}}).to_string())
"""

_ICC = """\
between, rest = 2 * middle.var(), change.var() / 2
icc = (between - rest) / (between + rest + bias**2 - 2 * rest / change.count())
"""

_VOLUMES = f"""\
{_START}
rows = table[(table.model == MODEL) & table.metric.isin(["truth_volume", "volume"])]
persons = rows.groupby(["metric", "subject", "structure"]).value.mean().unstack()
true, predicted = persons.loc["truth_volume"], persons.loc["volume"]
middle, change = (true + predicted) / 2, predicted - true
bias, margin = change.mean(), 1.96 * change.std()
{_ICC}limits = {{"bias": bias, "lower": bias - margin, "upper": bias + margin}}
print(pd.DataFrame(limits).assign(sd=change.std(), icc=icc).to_string())
"""

_RETEST = f"""\
{_START}
rows = table[(table.model == MODEL) & (table.metric == "volume")]  # or "truth_volume"
scans = rows.pivot(index=["subject", "session"], columns="structure", values="value")
first, second = (scans.groupby("subject").nth(n).droplevel("session") for n in (0, 1))
middle, change = (first + second) / 2, second - first
bias, cv = change.mean(), (change**2 / 2 / middle.where(middle > 0) ** 2).mean() ** 0.5
{_ICC}print(pd.DataFrame({{"cv_percent": 100 * cv, "icc": icc}}).to_string())
"""

_CONFUSIONS = f"""\
{_START}
rows = table[(table.model == MODEL) & table.metric.str.startswith("labelled_as:")]
cells = rows.groupby(["structure", "metric"]).value.sum().unstack(fill_value=0)
cells.columns = cells.columns.str.removeprefix("labelled_as:")
shares = 100 * cells.div(cells.sum(axis=1), axis=0).drop(index="background", errors="ignore")
shares = shares.stack()
taken = [structure != label for structure, label in shares.index]
print(shares[taken].sort_values(ascending=False).to_string())
"""

_WORST = f"""\
{_START}
scan, dice = ["subject", "session", "model"], table[table.metric == "dice"]
means = dice[dice.structure == "group:all"].nsmallest(5, "value")
single = dice[~dice.structure.str.startswith("group:")].dropna(subset="value")
lowest = single.loc[single.groupby(scan).value.idxmin(), [*scan, "structure", "value"]]
means = means[[*scan, "value"]].merge(lowest, on=scan, suffixes=("", "_lowest"))
print(means.to_string())
"""

_ALL = {
    "absences": _ABSENCES,
    "statistics": _STATISTICS,
    "scans": _SCANS,
    "differences": _DIFFERENCES,
    "tests": _TESTS,
    "volumes": _VOLUMES,
    "retest": _RETEST,
    "confusions": _CONFUSIONS,
    "worst": _WORST,
}


def snippets(models: Sequence[str]) -> dict[str, str]:
    """Each part's code, for the first model, or the first two where models are compared."""
    names = {"MODEL": models[0], "FIRST": models[0], "SECOND": models[-1 if len(models) < 2 else 1]}

    def named(mark: re.Match[str]) -> str:
        # As it stands in the table.
        return repr(neutral(names[mark[0]]))

    # All marks at once: a model's own name may hold one of them.
    return {part: re.sub("|".join(names), named, code) for part, code in _ALL.items()}
