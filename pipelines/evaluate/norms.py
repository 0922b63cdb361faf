"""trinat norms: normative volumes from a lab's own controls, as a table to compare scans with.

Each structure has a curve of centiles over age. At each age, volumes V are described by their
median M, spread S and skewness L: log M is a natural cubic spline of age, a step between the sexes,
and a multiple of the logarithm of the intracranial volume; log S is a straight line over age; L is
a number (see `metrics/norms.py`). All are fitted together, by maximum likelihood, to one structure
of all participants.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import interpolate, ndimage, optimize

from trinat.pipelines.common.exits import Exit, batch_exit
from trinat.pipelines.common.text import count
from trinat.pipelines.evaluate.cohort import (
    Known,
    MeasuredGroup,
    measure_group,
    read_known,
)
from trinat.pipelines.evaluate.sections import cohort_of_output
from trinat.pipelines.evaluate.settings import CohortSettings
from trinat.pipelines.jobs.progress import BatchProgress
from trinat.pipelines.report.cohort import cohort_of
from trinat.pipelines.study.record import FURTHER, unit_of
from trinat.segmentation.errors import ConfigError, EvaluationError, OutputError, some
from trinat.segmentation.io.files import read_table, write_whole
from trinat.segmentation.metrics.norms import (
    NO_SKEWNESS,
    SEXES,
    Curve,
    Norms,
    rows_of,
)

_log = logging.getLogger(__name__)

Values = NDArray[np.float64]

# Columns of participants that are not volumes.
_FACTS = ("age", "sex", "intracranial_mm3")
# If the intracranial volume is missing for more than this share of the participants, norms are
# fitted without it.
_MOST_WITHOUT_HEAD = 0.2
# A measure that is 0 in more than this share of the participants has no norms.
_MOST_ZEROS = 0.05
# Smallest number of participants for centiles: in all, of one sex, and near an age.
FEWEST_PARTICIPANTS = 80
FEWEST_OF_SEX = 20
FEWEST_NEAR = 5
# Distance in years within which a participant's age is near an age of the curve.
NEAR_YEARS = 5.0
# Knots of the spline as quantiles of age, by the smallest number of participants for which they are
# used. The youngest and oldest age are knots, too.
_KNOTS = {0: (0, 1 / 3, 2 / 3, 1), 200: (0, 1 / 4, 1 / 2, 3 / 4, 1)}
# Limits of the skewness: 1 is a normal distribution, 0 a log-normal one.
_SKEWNESS = (-3.0, 4.0)


def make_norms(
    settings: CohortSettings,
    out: Path,
    group: str | None,
    progress: BatchProgress,
) -> Exit:
    """Measure the label maps of healthy controls and write centile curves by age and sex to `out`.

    `group` is the name of the controls in the column `group` of the participants table; None means
    that all participants are controls. `progress(result, done, total)` is called after each label
    map. Participants who are left out are logged. Raises EvaluationError if there are too few
    controls, ConfigError if they may be patients or have volumes of several models, and OutputError
    if `out` exists and is no table of norms.
    """
    are_norms = out.is_file() and {"l", "m", "s", "unit"} <= set(read_table(out).titles)
    if os.path.lexists(out) and not are_norms:
        raise OutputError(
            "exists and is not a table of norms, so it is not replaced",
            where=out,
            remedy="give another --out",
        )
    known = read_known(settings)
    _refuse_few(known, group, settings)
    measured = measure_group(settings, known, progress)
    participants, ages, heads_mm3 = _participants(measured, settings, group)
    model = _model_of(measured, settings.predictions)
    with_heads = bool(participants["intracranial_mm3"].notna().any())
    if with_heads:
        lacking = participants["intracranial_mm3"].isna()
        if lacking.mean() > _MOST_WITHOUT_HEAD:
            _log.warning(
                "%d of %d participants have no intracranial volume: the norms do not correct for "
                "it",
                lacking.sum(),
                len(participants),
            )
            with_heads = False
        else:
            _log_left_out(participants, lacking, "without an intracranial volume")
            participants = participants[~lacking]

    rows: list[dict[str, object]] = []
    refused = defaultdict(list)
    has_norms = pd.Series(False, index=participants.index)
    for structure in participants.columns.difference(list(_FACTS), sort=False):
        # Only a sex with enough participants is fitted, and only if enough participants remain.
        having = participants[participants[structure] > 0]
        number_of_sex = having["sex"].map(having["sex"].value_counts())
        chosen = having[number_of_sex >= FEWEST_OF_SEX]
        why = ""
        if len(chosen) < FEWEST_PARTICIPANTS:
            why = f"which fewer than {FEWEST_PARTICIPANTS} participants have"
        elif (participants[structure].dropna() == 0).mean() > _MOST_ZEROS:
            # A curve is of values above 0: it would leave out healthy participants with 0.
            why = f"which are 0 in more than {_MOST_ZEROS:.0%} of the participants"
        if why:
            refused[why].append(structure)
            continue
        heads = None
        if with_heads:
            heads = heads_mm3.loc[chosen.index, structure].to_numpy(float)
        controls = Controls(
            chosen[structure].to_numpy(float),
            ages.loc[chosen.index, structure].to_numpy(float),
            np.array(chosen["sex"] == "M", float),
            heads,
        )
        for sex, fitted in fit_curves(controls).items():
            curve = replace(fitted, intracranial_from=measured.heads_from)
            unit = unit_of(structure) or "mm3"
            rows += rows_of(structure, sex, curve, model, unit)
            is_reached = participants["age"].between(
                curve.ages[0], curve.ages[-1] + 1, inclusive="left"
            )
            has_norms |= is_reached & (participants["sex"] == sex)
    for why, structures in refused.items():
        _log.warning(
            "no norms of %s, %s: %s",
            count(len(structures), "measure"),
            why,
            some(structures, most=5),
        )
    if not rows:
        raise _too_few(participants, settings)
    without = list(participants.index[~has_norms])
    if without:
        _log.warning(
            "no norms of the ages of %s (%s): they are of the longest run of years that %d "
            "participants are near to",
            count(len(without), "participant"),
            some(without, most=5),
            FEWEST_NEAR,
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, Norms.of(rows).table)
    return batch_exit(done=len(measured.scans), failed=len(measured.failures))


def _participants(
    measured: MeasuredGroup,
    settings: CohortSettings,
    group: str | None,
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return a table with a row for each control: age, sex, intracranial volume, and all measures.

    Columns of measures are named by structures, or by measures of thickness, callosum and lesions.
    Values of several scans of a participant are averaged. Participants without age or sex are left
    out, and so are all participants of a sex that has too few. `group` is the name of the controls
    in the participants table; None if all are controls.

    The second and third table have the age and the intracranial volume for each measure: the means
    over the scans that have it, or over all scans of the participant if they are not known there.
    """
    cohort = cohort_of(measured.scans, measured.known.scheme)
    frame = cohort.frame[cohort.frame["metric"] == "volume"]
    frame = _select_group(frame, group, measured.known.table)
    # The first known sex among a participant's scans.
    with_sex = frame.assign(sex=frame["sex"].where(frame["sex"] != ""))
    by_participant = with_sex.groupby("subject", sort=False)
    facts = by_participant.agg(
        age=("age", "mean"),
        sex=("sex", "first"),
        intracranial_mm3=("intracranial_mm3", "mean"),
    )
    tables = [frame]
    for name in FURTHER:
        further = cohort_of_output(name, measured.counted, settings.excluded)
        if further is not None:
            of_output = further.frame[further.frame["metric"] == name]
            if group is not None:
                of_output = of_output[_is_of_group(of_output, group)]
            tables.append(of_output)
    values = pd.concat(tables).dropna(subset="value")
    by_measure = values.groupby(["subject", "structure"], sort=False)
    means = by_measure[["value", "age", "intracranial_mm3"]].mean().unstack()
    in_order = values["structure"].unique()
    participants = facts.join(means["value"][in_order])
    ages = means["age"].apply(lambda of_measure: of_measure.fillna(facts["age"]))
    heads_mm3 = means["intracranial_mm3"].apply(
        lambda of_measure: of_measure.fillna(facts["intracranial_mm3"])
    )
    unknown = participants["age"].isna() | participants["sex"].isna()
    _log_left_out(participants, unknown, "without an age or a sex")
    participants = participants[~unknown]
    for sex in SEXES:
        is_of_sex = participants["sex"] == sex
        if 0 < is_of_sex.sum() < FEWEST_OF_SEX:
            few = f"of sex {sex}, which has fewer than {FEWEST_OF_SEX}"
            _log_left_out(participants, is_of_sex, few)
            participants = participants[~is_of_sex]
    return participants, ages, heads_mm3


def _select_group(frame: pd.DataFrame, group: str | None, table: Path) -> pd.DataFrame:
    """Return the rows of `frame` whose column `group` is the controls' group.

    If `group` is None, all rows are returned, but ConfigError is raised if there are several
    groups, or a group and participants without one. It is also raised if no row has the named
    group. `table` is the path of the participants table, for messages.
    """
    groups = sorted(set(frame["group"]) - {""})
    if group is None:
        if len(set(frame["group"])) > 1:
            what = f"has the groups {', '.join(groups)}"
            if len(groups) < len(set(frame["group"])):
                what += " and participants without one"
            raise ConfigError(
                f"{what}, and norms are of healthy participants",
                where=table,
                remedy="give --group with the one that is healthy",
            )
        return frame
    of_group = _is_of_group(frame, group)
    if not of_group.any():
        known = ", ".join(groups) or "none"
        raise ConfigError(
            f"has no group {group!r}", where=table, remedy=f"known groups: {known}"
        )
    return frame[of_group]


def _is_of_group(frame: pd.DataFrame, group: str) -> pd.Series:
    """Return True for the rows of `frame` whose column `group` has this group."""
    # Spellings of a group were unified when the table was read.
    return frame["group"].str.casefold() == group.strip().casefold()


def _refuse_few(known: Known, group: str | None, settings: CohortSettings) -> None:
    """Raise EvaluationError if too few participants of the controls' group have an age and a sex.

    `known` has the participants. Nothing has been measured yet.
    """
    controls = _select_group(known.facts, group, known.table).groupby("subject")
    facts = controls.agg(age=("age", "mean"), sex=("sex", "max"))
    participants = facts[facts["age"].notna() & (facts["sex"] != "")]
    of_sex = participants["sex"].value_counts()
    if of_sex[of_sex >= FEWEST_OF_SEX].sum() < FEWEST_PARTICIPANTS:
        raise _too_few(participants, settings)


def _too_few(participants: pd.DataFrame, settings: CohortSettings) -> EvaluationError:
    """Return the error for a group with too few participants for norms."""
    sexes = ", ".join(f"{(participants['sex'] == sex).sum()} {sex}" for sex in SEXES)
    return EvaluationError(
        f"{count(len(participants), 'participant')} left ({sexes}), and norms need "
        f"{FEWEST_PARTICIPANTS}, of these {FEWEST_OF_SEX} of a sex",
        where=settings.predictions,
    )


def _log_left_out(
    participants: pd.DataFrame, are_left_out: pd.Series, why: str
) -> None:
    """Log the participants who are left out of the norms, and why.

    `participants` is indexed by their names. `are_left_out` is a series of True and False for its
    rows; `why` is the reason, for the message.
    """
    names = list(participants.index[are_left_out])
    if names:
        participants_out = count(len(names), "participant")
        _log.info("left out: %s %s: %s", participants_out, why, some(names, most=5))


def _model_of(measured: MeasuredGroup, folder: Path) -> str:
    """Return the SHA-256 of the model that made the label maps; "" if it is not known.

    Raises ConfigError for label maps of several models.
    """
    models = measured.known.study.models
    if len(models) > 1:
        raise ConfigError(
            f"has results of {len(models)} models, whose volumes differ",
            where=folder,
            remedy="segment all controls with one",
        )
    return models.pop() if models else ""


@dataclass(frozen=True)
class Controls:
    """Healthy participants and their volumes of one structure, each (N,).

    `age` is in years. `is_male` is 1 for men, 0 for women. `intracranial_mm3` is None if norms are
    fitted without it.
    """

    volume_mm3: Values
    age: Values
    is_male: Values
    intracranial_mm3: Values | None = None


def fit_curves(controls: Controls) -> dict[str, Curve]:
    """Fit the centile curves of one structure over age; return them by sex, "F" and "M".

    A sex without controls has no curve. There must be as many controls as `FEWEST_PARTICIPANTS` and
    `FEWEST_OF_SEX` require, with volumes above 0. A curve has a value for each year of age. It ends
    where fewer than `FEWEST_NEAR` controls are near this age, and does not go beyond the youngest
    and oldest control of its sex.
    """
    model = _Model.of(controls)
    found = optimize.minimize(
        model.loss, model.start(), method="L-BFGS-B", jac=True, bounds=model.bounds()
    )
    curves = {}
    for number, sex in enumerate(SEXES):
        if (controls.is_male == number).any():
            curves[sex] = model.curve(found.x, number)
    return curves


@dataclass(frozen=True)
class _Model:
    """Statistical model of the volume of one structure over age, fitted by maximum likelihood.

    M, S and L are median, spread and skewness (see the module). The parameters are the P
    coefficients of log M, two of log S (level and slope over age), and L, in this order. `design`
    (N, P) is the design matrix of log M: a spline of age with `knots`, then sex if there are both,
    then the centred logarithm of the intracranial volume if it is known. `middle_age` is the mean
    age, and `log_head` the mean of that logarithm; None without intracranial volumes.
    """

    controls: Controls
    knots: Values
    design: Values
    middle_age: float
    log_head: float | None

    @classmethod
    def of(cls, controls: Controls) -> _Model:
        """Build the model for these controls."""
        count = len(controls.age)
        quantiles = max(
            (least, places) for least, places in _KNOTS.items() if count >= least
        )[1]
        knots = np.unique(np.quantile(controls.age, quantiles))
        columns = [_spline(knots, controls.age)]
        if np.ptp(controls.is_male):
            columns.append(controls.is_male[:, None])
        log_head = None
        if controls.intracranial_mm3 is not None:
            logarithms = np.log(controls.intracranial_mm3)
            log_head = float(logarithms.mean())
            columns.append((logarithms - log_head)[:, None])
        return cls(
            controls,
            knots,
            np.hstack(columns),
            float(controls.age.mean()),
            log_head,
        )

    @property
    def _decades(self) -> Values:
        """Ages of the controls minus the mean age, in decades."""
        return (self.controls.age - self.middle_age) / 10

    def start(self) -> Values:
        """Return the initial parameters: log M by least squares, a constant spread, L = 0.5."""
        logarithms = np.log(self.controls.volume_mm3)
        found, *_ = np.linalg.lstsq(self.design, logarithms, rcond=None)
        spread = (logarithms - self.design @ found).std()
        return np.append(found, [np.log(max(spread, 1e-6)), 0.0, 0.5])

    def bounds(self) -> list[tuple[float | None, float | None]]:
        """Return the lower and upper bound of each parameter; only L is bounded."""
        free = [(None, None)] * (self.design.shape[1] + 2)
        return [*free, _SKEWNESS]

    def loss(self, parameters: Values) -> tuple[float, Values]:
        """Return the mean negative log likelihood per participant, and its gradient.

        With y = log(V / M) and u = (exp(L y) - 1) / L, a participant contributes log S + (u / S)^2
        / 2 - L y. V, M, S and L are volume, median, spread and skewness.
        """
        logarithm = np.log(self.controls.volume_mm3) - self.design @ parameters[:-3]
        level, slope, skewness = parameters[-3:]
        log_spread = level + slope * self._decades
        spread = np.exp(log_spread)
        if abs(skewness) < NO_SKEWNESS:
            skewness = NO_SKEWNESS
        power = np.exp(np.clip(skewness * logarithm, -50, 50))
        u = (power - 1) / skewness
        z = u / spread
        value = (log_spread + z**2 / 2 - skewness * logarithm).mean()

        # The derivative of u with respect to y is `power`; y falls with log M.
        by_logarithm = z * power / spread - skewness
        by_spread = 1 - z**2
        u_by_skewness = (logarithm * power - u) / skewness
        by_skewness = z / spread * u_by_skewness - logarithm
        gradient = np.concatenate(
            [
                -(self.design * by_logarithm[:, None]).mean(0),
                [by_spread.mean(), (by_spread * self._decades).mean()],
                [by_skewness.mean()],
            ]
        )
        return float(value), gradient

    def curve(self, parameters: Values, sex: int) -> Curve:
        """Compute the centile curve of one sex (0 for women, 1 for men) from the fitted parameters.

        The curve has a point for each year of the longest range of ages with enough controls of
        either sex near each age, between the youngest and the oldest control of its sex. Its spread
        is widened for participants who were not among the controls.
        """
        controls = self.controls
        of_sex = controls.age[controls.is_male == sex]
        ages = np.arange(np.floor(of_sex.min()), np.floor(of_sex.max()) + 1)
        apart = np.abs(controls.age[None] - ages[:, None])
        near = (apart <= NEAR_YEARS).sum(1)
        kept = _longest_run(near >= FEWEST_NEAR)
        ages = ages[kept]
        near = near[kept]

        design = self._design_at(ages, sex)
        level, slope, skewness = parameters[-3:]
        spread = np.exp(level) * self._relative_spread(ages, slope)
        # The fitted spread is too small for new participants. Correct it for the number of fitted
        # parameters and for the uncertainty of the median.
        participants = len(controls.age)
        freedom = participants - len(parameters)
        leverage = self._leverage(design, ages, slope)
        spread = spread * np.sqrt(participants / freedom * (1 + leverage))
        head = power = None
        if self.log_head is not None:
            head = float(np.exp(self.log_head))
            power = float(parameters[self.design.shape[1] - 1])
        return Curve(
            ages.tolist(),
            [float(skewness)] * len(ages),
            np.exp(design @ parameters[:-3]).tolist(),
            spread.tolist(),
            near.tolist(),
            participants,
            head,
            power,
        )

    def _design_at(self, ages: Values, sex: int) -> Values:
        """Return rows of the design matrix at given ages, (A, P), for a head of mean size.

        `ages` is (A,), and `sex` is the sex of all rows: 0 for women, 1 for men.
        """
        columns = [_spline(self.knots, ages)]
        if np.ptp(self.controls.is_male):
            columns.append(np.full((len(ages), 1), float(sex)))
        if self.log_head is not None:
            columns.append(np.zeros((len(ages), 1)))
        return np.hstack(columns)

    def _relative_spread(self, ages: Values, slope: float) -> Values:
        """Return the spread at these ages, divided by the spread at the mean age.

        `slope` is the change of the logarithm of the spread in ten years.
        """
        return np.exp(slope * (ages - self.middle_age) / 10)

    def _leverage(self, design: Values, ages: Values, slope: float) -> Values:
        """Return the variance of the fitted median relative to that of a participant, (A,).

        `design` (A, P) has the rows of the design matrix for these `ages` (A,). `slope` is the
        change of the logarithm of the spread in ten years.
        """
        of_controls = self._relative_spread(self.controls.age, slope)
        weighted = self.design / of_controls[:, None]
        inverse = np.linalg.pinv(weighted.T @ weighted)
        rows = design / self._relative_spread(ages, slope)[:, None]
        return np.asarray(np.einsum("ap,pq,aq->a", rows, inverse, rows))


def _spline(knots: Values, ages: Values) -> Values:
    """Return the values of basis functions of natural cubic splines at A ages, (A, knots).

    `knots` are the ages at which the pieces of a spline meet. Each basis function is 1 at one knot
    and 0 at the others.
    """
    if len(knots) == 1:
        return np.ones((len(ages), 1))
    if len(knots) == 2:
        share = (ages - knots[0]) / (knots[1] - knots[0])
        return np.stack([1 - share, share], axis=1)
    found = interpolate.CubicSpline(knots, np.eye(len(knots)), bc_type="natural")
    return np.asarray(found(ages))


def _longest_run(flags: NDArray[np.bool_]) -> slice:
    """Return the range of the longest run of true flags; an empty slice if there is none."""
    numbered, _ = ndimage.label(flags)
    runs = [run for (run,) in ndimage.find_objects(numbered)]
    return max(runs, key=lambda run: run.stop - run.start, default=slice(0, 0))
