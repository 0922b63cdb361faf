"""Linear models that compare groups: volume ~ group + site + age + sex + icv, for each structure.

All differences, slopes, intervals and p values of a report come from these models. They are fitted
to measured volumes: head size (`icv`, the intracranial volume) and site are terms of the model. A
test on volumes that were harmonised or adjusted before would ignore the degrees of freedom that
this took. Group, site and sex are factors; their categories are called levels. Relatives are not
independent: standard errors and degrees of freedom are clustered by family.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from trinat.pipelines.common.text import count
from trinat.pipelines.study.participants import COVARIATES, LEAST_KNOWN
from trinat.segmentation.errors import EvaluationError, some
from trinat.segmentation.metrics.linear_model import (
    Contrast,
    Design,
    Estimate,
    LinearModel,
)
from trinat.segmentation.metrics.statistics import holm

Values = NDArray[np.float64]

FACTORS = ("group", "site", "sex")
# The order in which terms enter as long as the number of participants allows.
_TERMS = ("group", "site", "age", "sex", "icv")
_ORDER_IN_FORMULA = ("group", "age", "sex", "icv", "site")
# A covariate that the user did not name becomes a term if it is known for `LEAST_KNOWN` of the
# participants, for this share of each group ...
_LEAST_KNOWN_OF_GROUP = 0.5
# ... and if at least this number of residual degrees of freedom remains.
_FEWEST_RESIDUAL = 5
# The levels of a factor with more levels than this are not compared.
_MOST_LEVELS = 4
# From this variance inflation on, two terms are hard to separate (a common rule).
_HIGH_INFLATION = 5.0
# A participant whose scans differ in a factor has no value of it.
_OF_SEVERAL = ", or differs between their scans"
# Options that make a term needed.
_OPTION_OF_TERM = {"site": "--harmonise", "icv": "--adjust"}
# Ages of two groups are uneven if their means differ by more than this number of standard
# deviations.
_UNEVEN_AGES = 0.5


@dataclass(frozen=True)
class GroupModel:
    """Comparison of groups of participants: results of one linear model for each structure.

    - `formula` is the model that was fitted, `terms` are its terms. A factor is a term with
      categories, its levels: group, site or sex.
    - `participants` has a row for each participant in the model, with the terms and the `family`.
    - `effects` has a row for each pair of levels of a factor and each structure: the difference of
      the levels.
    - `slopes` has a row for each structure: its change per year of age. It is empty if age is not a
      term.
    - `means` has the expected value of each structure and group at the mean of the other terms.
    - `residuals` has the fitted value and the studentised residual of each participant and
      structure.
    - `relatives` is the number of participants in the model who share a family with another one.
    - `notices` are warnings for the reader, such as terms that cannot be separated.
    """

    formula: str
    terms: tuple[str, ...]
    participants: pd.DataFrame
    effects: pd.DataFrame
    slopes: pd.DataFrame
    means: pd.DataFrame
    residuals: pd.DataFrame
    relatives: int
    notices: tuple[str, ...]

    @property
    def fact(self) -> str:
        """Factor whose levels figures compare: group, else sex, else site; "" if none is a term."""
        for fact in ("group", "sex", "site"):
            if fact in self.terms:
                return fact
        return ""


def fit_groups(
    means: pd.DataFrame,
    response: str,
    covariates: Collection[str] | None = None,
    needed: Collection[str] = (),
) -> GroupModel | None:
    """Fit the model of each structure; None if all have the same group, site, sex and age.

    Parameters
    ----------
    means
        A row for each participant and structure: `subject`, `structure`, `value`, and the facts
        `group`, `site`, `sex`, `family` ("" if not known), `age` in years and `icv` in mm³ (NaN if
        not known). A column `weight` is optional: rows are weighted by it, and standard errors stay
        right whatever the weights.
    response
        The name of the value in the formula.
    covariates
        The covariates of `COVARIATES` to include. By default (None), each one that is known for
        most participants is included, as long as the number of participants allows. Group and
        site are always terms if they are known.
    needed
        Terms that must be in the model.

    Raises
    ------
    EvaluationError
        If a named covariate or a needed term is unknown or the same for all, or if there are too
        few participants for them.
    """
    # Participants without a family are independent of all others.
    alone = "participant " + means["subject"]
    means = means.assign(
        icv=means["icv"] / 1e6,
        family=means["family"].where(means["family"] != "", alone),
        **{fact: means[fact].replace("", np.nan) for fact in FACTORS},
    )
    with_value = means.dropna(subset="value")
    if with_value.empty:
        return None
    by_participant = with_value.groupby("subject", sort=False)
    participants = by_participant[[*_TERMS, "family"]].first()
    terms, notices = _choose_terms(participants, covariates, needed)
    if not set(terms) & {"age", *FACTORS}:
        return None
    complete = participants.dropna(subset=terms)
    notices += _missing_participants(participants, terms)
    notices += _confounding_notices(complete, terms, participants)
    relatives = int(complete["family"].duplicated(keep=False).sum())
    if relatives:
        notices.append(
            f"{relatives} participants share a family with another: standard errors and degrees of "
            "freedom are clustered by family."
        )

    levels = {fact: _levels(complete[fact]) for fact in FACTORS if fact in terms}
    notices += [
        f"{fact} has {len(names)} values: differences are shown for at most {_MOST_LEVELS}."
        for fact, names in levels.items()
        if len(names) > _MOST_LEVELS
    ]
    in_order = [term for term in _ORDER_IN_FORMULA if term in terms]
    formula = f"{response} ~ {' + '.join(in_order)}"
    fits = _fit_structures(with_value.dropna(subset=terms), terms)
    columns = {"formula": formula}
    return GroupModel(
        formula=formula,
        terms=tuple(terms),
        participants=complete,
        effects=_effects(fits, levels).assign(**columns),
        slopes=_slopes(fits).assign(**columns) if "age" in terms else pd.DataFrame(),
        means=_means(fits, levels),
        residuals=_residuals(fits),
        relatives=relatives,
        notices=tuple(notices),
    )


def _choose_terms(
    participants: pd.DataFrame, asked: Collection[str] | None, needed: Collection[str]
) -> tuple[list[str], list[str]]:
    """Choose the terms of the model; also return notices about terms that are left out.

    `participants` has a row for each participant and a column for each possible term. `asked` are
    the covariates that the user named; None for an automatic choice. `needed` are further terms
    that the model must have. EvaluationError is raised if a named or needed term is unknown or the
    same for all, or if there are too few participants for it.
    """
    # Participants of whom nothing is known, such as those without a row in the table, do not count.
    listed = participants.dropna(how="all", subset=["age", *FACTORS])
    if listed.empty:
        listed = participants
    terms: list[str] = []
    left_out: dict[str, list[str]] = {}
    for term in _TERMS:
        is_named = term in needed or (asked is not None and term in asked)
        if participants[term].nunique() < 2:
            if is_named:
                raise EvaluationError(
                    f"{term} cannot be in the model: it is not known, or the same for all "
                    "participants",
                    remedy="check the participants table, or leave the option out",
                )
            continue
        if asked is not None and term in COVARIATES and not is_named:
            continue
        complete = listed.dropna(subset=[*terms, term])
        freedom = 0
        if len(complete):
            freedom = Coding(complete, [*terms, term]).design.residual_freedom
        if is_named and freedom < 1:
            raise EvaluationError(
                f"{len(complete)} participants are too few for the model "
                f"{' + '.join([*terms, term])}",
                remedy="name fewer covariates",
            )
        if is_named and "group" in terms and complete["group"].nunique() < 2:
            remedy = "name other covariates"
            if term in needed:
                remedy = f"leave out {_OPTION_OF_TERM[term]}"
            raise EvaluationError(
                f"{term} cannot be in the model: for the participants of all groups but one it is "
                f"not known{_OF_SEVERAL if term in FACTORS else ''}",
                remedy=remedy,
            )
        fewest = _FEWEST_RESIDUAL if term in COVARIATES else 1
        reason = _too_little_known(listed, terms, term)
        if not reason and freedom < fewest:
            reason = "the participants are too few for more terms"
        if reason and not is_named:
            left_out.setdefault(reason, []).append(term)
        else:
            terms.append(term)
    notices = [
        f"Not in the model: {', '.join(names)} ({reason})."
        for reason, names in left_out.items()
    ]
    known = {*terms, *chain.from_iterable(left_out.values())}
    # The option replaces the automatic choice: it also names the covariates that are terms.
    every = [name for name in COVARIATES if name in known]
    if not set(every) <= set(terms):
        names = ",".join(every)
        notices.append(f"Option to take all covariates: --covariates {names}.")
    return terms, notices


def _too_little_known(
    participants: pd.DataFrame, terms: Sequence[str], term: str
) -> str:
    """Return the number of participants of whom a term is known, if they are too few; else "".

    A covariate must be known for most participants who are in a model of the given `terms`. Half of
    each group must be left, or half of all without groups: the model loses the participants of whom
    any term is not known. Groups of one participant do not count, as they are not compared.
    """
    in_model = participants.dropna(subset=list(terms))
    known = in_model[term].notna()
    what = "known and equal in all scans" if term in FACTORS else "known"
    least = 0.0
    if term in COVARIATES:
        least = LEAST_KNOWN
    elif term != "group" and "group" not in terms:
        least = _LEAST_KNOWN_OF_GROUP
    if known.mean() < least:
        return f"{what} of {known.sum()} of {len(known)} participants"
    left = in_model[known]["group"].value_counts()
    for group, count_of_group in participants["group"].value_counts().items():
        least_left = _LEAST_KNOWN_OF_GROUP * count_of_group
        if count_of_group > 1 and left.get(group, 0) < least_left:
            beside = f" with {' and '.join(terms[1:])}" if terms[1:] else ""
            return (
                f"{what}{beside} of {left.get(group, 0)} of {count_of_group} participants of "
                f"{group}"
            )
    return ""


def _missing_participants(
    participants: pd.DataFrame, terms: Iterable[str]
) -> list[str]:
    """Return notices with the names of the participants whom the model leaves out.

    There is a notice for each term of the model that is unknown for some participants.
    """
    notices = []
    for term in terms:
        lacking = list(participants.index[participants[term].isna()])
        if lacking:
            notices.append(
                f"{count(len(lacking), 'participant')} not in the model, because {term} is not "
                f"known{_OF_SEVERAL if term in FACTORS else ''}: {some(lacking)}."
            )
    return notices


def _confounding_notices(
    complete: pd.DataFrame, terms: Sequence[str], participants: pd.DataFrame
) -> list[str]:
    """Return notices about groups whose difference is confounded with another term, such as site.

    Without groups, the sexes are checked. There is also a notice for a group with a single
    participant or family, and for groups of different ages if age is not a term. `complete` has a
    row for each participant in the model, and `participants` for all participants; the latter are
    used to compare ages.
    """
    fact = next((fact for fact in ("group", "sex") if fact in terms), "")
    if not fact:
        return []
    notices = []
    coding = Coding(complete, terms)
    by_level = complete.groupby(fact)["family"]
    families = by_level.nunique()
    levels = list(families.index[families > 1])
    for level in families.index[families < 2]:
        only = "one participant"
        if by_level.size()[level] > 1:
            only = "participants of one family only"
        notices.append(f"{fact} {level} has {only}, and is not compared.")
    if len(levels) > _MOST_LEVELS:
        return notices
    for first, second in combinations(levels, 2):
        inflation = coding.inflation_of_difference(fact, first, second)
        if inflation > _HIGH_INFLATION:
            partner = _confounder(complete, terms, fact, first, second)
            pair = f"{first} and {second} cannot be compared: {fact} and {partner}"
            if np.isinf(inflation):
                notices.append(
                    f"{pair} cannot be separated. No difference between them is shown."
                )
            else:
                notices.append(
                    f"{fact} and {partner} go together: {first} and {second} can hardly be "
                    f"compared (variance inflation {inflation:.0f})."
                )
        if "age" not in terms:
            ages = participants.groupby(fact)["age"]
            apart = abs(ages.mean()[first] - ages.mean()[second])
            spread = np.sqrt((ages.var()[first] + ages.var()[second]) / 2)
            if apart > _UNEVEN_AGES * spread:
                notices.append(
                    f"{first} and {second} differ in age (mean {ages.mean()[first]:.0f} and "
                    f"{ages.mean()[second]:.0f} years), and age is not in the model."
                )
    return notices


def _confounder(
    complete: pd.DataFrame, terms: Sequence[str], fact: str, first: str, second: str
) -> str:
    """Return the term that is most confounded with the difference between two levels of a factor.

    `fact` is the factor (group or sex), and `first` and `second` are the levels. The confounder is
    the term without which the variance inflation of the difference is smallest. If it is infinite
    without any single term, the reason is several terms, or families. `complete` has a row for each
    participant in the model.
    """
    inflation = {}
    for term in terms:
        if term != fact:
            others = [other for other in terms if other != term]
            coding = Coding(complete, others)
            inflation[term] = coding.inflation_of_difference(fact, first, second)
    if np.isinf(min(inflation.values())):
        return "several terms or families"
    return min(inflation, key=lambda term: inflation[term])


def _levels(values: pd.Series) -> list[str]:
    """Return the distinct values of a factor, such as the names of groups, sorted, without NaN."""
    return sorted(values.dropna().unique())


class Coding:
    """Design matrix of a linear model, with the contrasts that reports use.

    It has an intercept, a column of 0 and 1 for each level of a factor but the first, and centred
    covariates. `participants` has a row for each participant, a column for each of the `terms`, and
    the column `family`; a column `weight` has their weights.
    """

    def __init__(self, participants: pd.DataFrame, terms: Iterable[str]) -> None:
        self._participants = participants
        self._weights = np.ones(len(participants))
        if "weight" in participants:
            weights = np.asarray(participants["weight"], float)
            self._weights = weights / weights.mean()
        columns: dict[tuple[str, str], Values] = {("", ""): np.ones(len(participants))}
        for term in terms:
            of_participants = participants[term]
            if term in FACTORS:
                for level in _levels(of_participants)[1:]:
                    columns[term, level] = np.asarray(of_participants == level, float)
            else:
                values = np.asarray(of_participants, float)
                columns[term, ""] = values - np.average(values, weights=self._weights)
        self._places = {name: place for place, name in enumerate(columns)}
        matrix = np.stack(list(columns.values()), axis=1)
        families = participants["family"].to_numpy()
        self.design = Design(matrix, self._weights, families)

    @cache  # noqa: B019 - a coding lives as long as its report
    def participants_of(self, fact: str, level: str) -> int:
        """Return the number of participants with a level of a factor, such as group "patients"."""
        return int((self._participants[fact] == level).sum())

    @cache  # noqa: B019
    def difference(self, fact: str, first: str, second: str) -> Contrast | None:
        """Return the contrast between two levels of a factor, `first` minus `second`.

        `fact` is the factor: group, site or sex. Returns None if the design does not determine the
        contrast, for example if no participant has one of the levels.
        """
        if not self.participants_of(fact, first) or not self.participants_of(
            fact, second
        ):
            return None
        coefficients = np.zeros(len(self._places))
        for level, sign in ((first, 1.0), (second, -1.0)):
            # The first level of a factor has no column: it is the intercept.
            if (fact, level) in self._places:
                coefficients[self._places[fact, level]] = sign
        return self.design.contrast(coefficients)

    @cache  # noqa: B019
    def slope(self, term: str) -> Contrast | None:
        """Return the contrast for the slope of a covariate, such as age: the change per unit.

        None if the design does not determine it.
        """
        coefficients = np.zeros(len(self._places))
        coefficients[self._places[term, ""]] = 1
        return self.design.contrast(coefficients)

    @cache  # noqa: B019
    def mean(self, fact: str, level: str) -> Contrast | None:
        """Return the contrast for the expected value of a level, at the mean of all other terms.

        `fact` is the factor and `level` one of its levels. Participants in clusters that are fitted
        exactly, such as the only family of a site, have no part in this mean: nothing is known
        about the variance there. Returns None if the design does not determine the contrast.
        """
        rows = self.design.matrix[~self.design.is_in_exact_cluster]
        if not len(rows):
            return None
        coefficients = rows.mean(axis=0)
        for term, other in self._places:
            if term == fact:
                coefficients[self._places[term, other]] = float(other == level)
        return self.design.contrast(coefficients)

    @cache  # noqa: B019
    def inflation_of_difference(self, fact: str, first: str, second: str) -> float:
        """Return the variance inflation of the difference of two levels, caused by the other terms.

        1 means that the other terms add no variance, and inf that the difference cannot be
        determined. `fact` is the factor: group, site or sex.
        """
        contrast = self.difference(fact, first, second)
        if contrast is None:
            return float("inf")
        alone = 0.0
        for level in (first, second):
            alone += 1 / self._weights[self._participants[fact] == level].sum()
        return float(contrast.variance / alone)

    def inflation_of_slope(self, term: str) -> float:
        """Return the variance inflation of a covariate's slope that the other terms cause.

        `term` is the covariate. The result is inf if the slope cannot be determined.
        """
        contrast = self.slope(term)
        if contrast is None:
            return float("inf")
        column = self.design.matrix[:, self._places[term, ""]]
        return float(contrast.variance * (self._weights * column**2).sum())


@dataclass(frozen=True)
class _Fit:
    """The fitted model of one structure.

    `rows` has the value and the terms of each participant. `coding` is the design matrix with its
    contrasts, and `model` has the fitted coefficients.
    """

    structure: str
    rows: pd.DataFrame
    coding: Coding
    model: LinearModel

    @property
    def facts(self) -> dict[str, float]:
        """Columns that describe the fit: number of participants, degrees of freedom, and R²."""
        return {
            "participants": len(self.rows),
            "residual_df": self.coding.design.residual_freedom,
            "r2": self.model.r2,
        }


def _fit_structures(rows: pd.DataFrame, terms: Sequence[str]) -> list[_Fit]:
    """Fit the model of each structure to the participants who have a value of this structure.

    `rows` has a row for each participant and structure. `terms` are the terms of the model.
    """
    fits = []
    codings: dict[tuple[object, ...], Coding] = {}
    for structure, of_structure in rows.groupby("structure", sort=False):
        # The age is that of the scans with a value of this structure.
        facts = of_structure[["subject", *terms]]
        key = tuple(facts.itertuples(index=False, name=None))
        if "weight" in of_structure:
            # Weights differ from structure to structure.
            codings.clear()
        if key not in codings:
            codings[key] = Coding(of_structure, terms)
        coding = codings[key]
        values = of_structure["value"].to_numpy(float)
        model = LinearModel(values, coding.design)
        fits.append(_Fit(str(structure), of_structure, coding, model))
    return fits


def _estimate_columns(estimate: Estimate, name: str) -> dict[str, float]:
    """Return the columns of a table for an estimate: a mapping from column to number.

    The value of the estimate is in the column `name`. The others are its interval (`low`, `high`),
    effect size (`g`, `g_low`, `g_high`), `p`, `standard_error` and degrees of freedom (`df`).
    """
    columns = dict(vars(estimate))
    value = columns.pop("value")
    error = columns.pop("error")
    freedom = columns.pop("freedom")
    return {name: value, **columns, "standard_error": error, "df": freedom}


def _effects(fits: Sequence[_Fit], levels: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Return the differences between every two levels of each factor, a row for each structure.

    `fits` are the fitted models, one for each structure. `levels` maps each factor (group, site or
    sex) to its levels; factors with many levels are left out. Columns: the factor (`fact`), its two
    levels (`first_group`, `second_group`) and their numbers of participants (`first`, `second`),
    `structure`, the estimate of the difference with its interval, effect size and p, the columns of
    `_Fit.facts`, and the variance inflation factor (`vif`). p is corrected over structures by
    Holm's method (`p_holm`).
    """
    tables = []
    for fact, names in levels.items():
        if len(names) > _MOST_LEVELS:
            continue
        for first, second in combinations(names, 2):
            rows = []
            for fit in fits:
                coding = fit.coding
                contrast = coding.difference(fact, first, second)
                estimate = fit.model.estimate(contrast)
                rows.append(
                    {
                        "fact": fact,
                        "first_group": first,
                        "second_group": second,
                        "structure": fit.structure,
                        "first": coding.participants_of(fact, first),
                        "second": coding.participants_of(fact, second),
                        **_estimate_columns(estimate, "difference"),
                        **fit.facts,
                        "vif": coding.inflation_of_difference(fact, first, second),
                    }
                )
            tables.append(_with_corrected_p(rows))
    if not tables:
        return pd.DataFrame()
    return pd.concat(tables, ignore_index=True)


def _slopes(fits: Sequence[_Fit]) -> pd.DataFrame:
    """Return the slope of each structure over age, in the structure's unit per year.

    `fits` are the fitted models, one for each structure. Columns: `structure`, `mean`, the estimate
    of the slope with its interval, effect size and p, the columns of `_Fit.facts`, and the variance
    inflation factor (`vif`). p is corrected over structures by Holm's method (`p_holm`). The table
    is empty if no slope is determined.
    """
    rows = []
    for fit in fits:
        estimate = fit.model.estimate(fit.coding.slope("age"))
        rows.append(
            {
                "structure": fit.structure,
                "mean": fit.rows["value"].mean(),
                **_estimate_columns(estimate, "slope"),
                **fit.facts,
                "vif": fit.coding.inflation_of_slope("age"),
            }
        )
    table = _with_corrected_p(rows)
    if table["slope"].isna().all():
        return pd.DataFrame()
    return table


def _means(fits: Sequence[_Fit], levels: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Return the expected value of each structure and group at the mean of the other terms.

    Columns: `structure`, `group`, `participants` (their number), `mean`, and its 95 % interval
    (`low`, `high`). `levels` maps each factor to its levels.
    """
    rows = []
    for fit in fits:
        for level in levels.get("group", ()):
            participants = fit.coding.participants_of("group", level)
            if not participants:
                continue
            estimate = fit.model.estimate(fit.coding.mean("group", level))
            rows.append(
                {
                    "structure": fit.structure,
                    "group": level,
                    "participants": participants,
                    "mean": estimate.value,
                    "low": estimate.low,
                    "high": estimate.high,
                }
            )
    return pd.DataFrame(rows)


def _residuals(fits: Sequence[_Fit]) -> pd.DataFrame:
    """Return a table of residuals, a row for each structure and participant.

    Columns: `structure`, `subject`, the `fitted` value and the studentised `residual`.
    """
    tables = []
    for fit in fits:
        table = fit.rows[["structure", "subject"]].assign(
            fitted=fit.model.fitted, residual=fit.model.studentised_residuals
        )
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def _with_corrected_p(rows: Sequence[Mapping[str, object]]) -> pd.DataFrame:
    """Return a table of rows, with a column `p_holm` after `p`: p after Holm's correction."""
    table = pd.DataFrame(list(rows))
    corrected = holm(table["p"].to_numpy(float))
    table.insert(list(table.columns).index("p") + 1, "p_holm", corrected)
    return table
