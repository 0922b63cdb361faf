"""Norms of volumes in healthy participants by age, sex and intracranial volume.

The norms follow the LMS method of Cole and Green (Statistics in Medicine 11, 1305, 1992). For
participants of one sex, age and size of head, M is the median volume, S the spread around it and L
the skewness: a volume V has z = ((V / M)^L - 1) / (L S).

Other measures than volumes have norms of the same kind, in their own unit. Imports no numpy, so
that the command line loads norms without delay.
"""

from __future__ import annotations

import csv
import io
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

# Columns of a table of norms.
COLUMNS = (
    "structure",
    "sex",
    "age",
    "participants",
    "participants_near",
    "l",
    "unit",
    "m",
    "s",
    "intracranial_mm3",
    "intracranial_power",
    "intracranial_from",
    "p5",
    "p50",
    "p95",
    "model",
)
SEXES = ("F", "M")
# Sources of intracranial volumes: the scan, or the participants table. Volumes of different sources
# are not comparable.
MEASURED = "measured"
LISTED = "table"
# Intracranial volume of a scan by source, in mm³; None if it is not known.
Heads = Mapping[str, float | None]
# z score of the 95th centile, which tables and pages show.
_Z_OF_95 = NormalDist().inv_cdf(0.95)
# A smaller skewness counts as 0.
NO_SKEWNESS = 1e-6


@dataclass(frozen=True)
class Curve:
    """Norm of one structure and sex, as a function of age.

    At each age of `ages` (years), `skewness`, `median_mm3` and `spread` are L, M and S of the LMS
    method. M applies to a head of `intracranial_mm3`. For another head it is multiplied by the
    ratio of the intracranial volumes to the power of `intracranial_power`. Both are None for norms
    without intracranial volume. `intracranial_from` is its source, `MEASURED` or `LISTED`, or "".
    `participants` is the number of participants behind the curve, and `near` how many of them are
    within five years of each age.
    """

    ages: Sequence[float]
    skewness: Sequence[float]
    median_mm3: Sequence[float]
    spread: Sequence[float]
    near: Sequence[int]
    participants: int
    intracranial_mm3: float | None = None
    intracranial_power: float | None = None
    intracranial_from: str = ""

    def at(self, age: float, intracranial_mm3: float | None) -> Equals:
        """Return the distribution for participants of this age and intracranial volume.

        Raises NormError if the age is outside of the curve's range, or if the norms need an
        intracranial volume and it is None.
        """
        first, last = self.ages[0], self.ages[-1]
        # Ages of the curve are whole years, and the last one lasts until the day before the next
        # birthday.
        if not first <= age < last + 1:
            raise NormError(f"norms are for ages from {first:g} to {last:g}")
        # Linear interpolation between two years.
        place = bisect_right(self.ages, age) - 1
        after = min(place + 1, len(self.ages) - 1)
        share = 0.0
        if after > place:
            share = (age - self.ages[place]) / (self.ages[after] - self.ages[place])
        skewness, median_mm3, spread = (
            values[place] + share * (values[after] - values[place])
            for values in (self.skewness, self.median_mm3, self.spread)
        )
        if self.intracranial_power is not None and self.intracranial_mm3 is not None:
            if intracranial_mm3 is None:
                raise NormError(
                    f"no intracranial volume ({self.intracranial_from}), which norms need"
                )
            ratio = intracranial_mm3 / self.intracranial_mm3
            median_mm3 *= ratio**self.intracranial_power
        return Equals(skewness, median_mm3, spread)


class NormError(ValueError):
    """Reason why norms do not apply to a participant, as a phrase."""


@dataclass(frozen=True)
class Equals:
    """Distribution of a volume in participants who are equal in sex, age and size of head.

    `skewness`, `median_mm3` and `spread` are L, M and S of the LMS method.
    """

    skewness: float
    median_mm3: float
    spread: float

    def z(self, volume_mm3: float) -> float:
        """Return the z score of a volume above 0."""
        logarithm = math.log(volume_mm3 / self.median_mm3)
        if abs(self.skewness) < NO_SKEWNESS:
            return logarithm / self.spread
        return math.expm1(self.skewness * logarithm) / self.skewness / self.spread

    def volume_mm3(self, z: float) -> float:
        """Return the volume at a z score.

        For a z score that no volume has, return 0 if all volumes are above it, infinity if all are
        below.
        """
        if abs(self.skewness) < NO_SKEWNESS:
            return self.median_mm3 * math.exp(self.spread * z)
        power = 1 + self.skewness * self.spread * z
        if power <= 0:
            return 0.0 if self.skewness > 0 else float("inf")
        return float(self.median_mm3 * power ** (1 / self.skewness))


@dataclass(frozen=True)
class NormPosition:
    """Position of a volume in the distribution for a participant's sex, age and size of head.

    `z` is its z score and `percentile` its centile, 0 to 100. `low_mm3`, `median_mm3` and
    `high_mm3` are the 5th, 50th and 95th centile of the distribution. `participants` is the number
    of participants behind the norms.
    """

    z: float
    percentile: float
    low_mm3: float
    median_mm3: float
    high_mm3: float
    participants: int


@dataclass(frozen=True)
class Norms:
    """A table of norms, and the curves in it.

    `table` is the text of the table: TSV with the columns `COLUMNS`.
    """

    table: str

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, object]]) -> Norms:
        """Create norms from rows that have the columns `COLUMNS`. The rows are not checked."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: row[name] for name in COLUMNS} for row in rows)
        return cls(text.getvalue())

    @cached_property
    def _rows(self) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.table), delimiter="\t"))

    @property
    def model(self) -> str:
        """SHA-256 of the model that measured the volumes; "" if not known. The same in all rows."""
        return self._rows[0]["model"]

    @cached_property
    def curves(self) -> dict[tuple[str, str], Curve]:
        """Curves by structure and sex ("F" or "M")."""
        of_curve = defaultdict(list)
        for row in self._rows:
            of_curve[row["structure"], row["sex"]].append(row)
        return {key: _curve_of(rows) for key, rows in of_curve.items()}

    def place(
        self,
        structure: str,
        volume_mm3: float,
        sex: str | None,
        age: float | None,
        heads_mm3: Heads,
    ) -> NormPosition:
        """Return the position of a volume in the norms for a participant.

        `sex` is "F" or "M", `age` is in years; None means not known. `heads_mm3` has the
        intracranial volumes by source; the volume from the source of the norms is used. Raises
        NormError, with the reason, if no norm applies or if the volume is 0.
        """
        if age is None or not sex:
            raise NormError("age and sex are not known")
        curve = self.curves.get((structure, sex))
        if curve is None:
            raise NormError(f"norms have no {structure} of sex {sex}")
        equals = curve.at(age, heads_mm3.get(curve.intracranial_from))
        if volume_mm3 <= 0:
            raise NormError("nothing was found")
        z = equals.z(volume_mm3)
        return NormPosition(
            z,
            100 * NormalDist().cdf(z),
            equals.volume_mm3(-_Z_OF_95),
            equals.median_mm3,
            equals.volume_mm3(_Z_OF_95),
            curve.participants,
        )


def _curve_of(rows: Iterable[Mapping[str, str]]) -> Curve:
    """Read the curve of one structure and sex from its rows."""
    rows = list(rows)
    columns = {
        name: [float(row[name]) for row in rows]
        for name in ("age", "l", "m", "s", "participants_near")
    }
    first = rows[0]
    head = power = None
    source = ""
    if first["intracranial_power"]:
        head = float(first["intracranial_mm3"])
        power = float(first["intracranial_power"])
        source = first["intracranial_from"]
    return Curve(
        columns["age"],
        columns["l"],
        columns["m"],
        columns["s"],
        [int(near) for near in columns["participants_near"]],
        int(first["participants"]),
        head,
        power,
        source,
    )


def rows_of(
    structure: str, sex: str, curve: Curve, model: str, unit: str = "mm3"
) -> list[dict[str, object]]:
    """Format a curve as rows of a table of norms: one row, by column, for each age of the curve.

    `model` is the SHA-256 of the model that measured, and `unit` the unit of the measured values.
    """
    rows = []
    for place, age in enumerate(curve.ages):
        equals = Equals(
            curve.skewness[place], curve.median_mm3[place], curve.spread[place]
        )
        head: object = ""
        power: object = ""
        source = ""
        if curve.intracranial_power is not None and curve.intracranial_mm3 is not None:
            head = round(curve.intracranial_mm3)
            power = f"{curve.intracranial_power:.6g}"
            source = curve.intracranial_from
        values = (
            structure,
            sex,
            f"{age:g}",
            curve.participants,
            curve.near[place],
            f"{equals.skewness:.6g}",
            unit,
            f"{equals.median_mm3:.7g}",
            f"{equals.spread:.6g}",
            head,
            power,
            source,
            *(f"{equals.volume_mm3(z):.7g}" for z in (-_Z_OF_95, 0.0, _Z_OF_95)),
            model,
        )
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows
