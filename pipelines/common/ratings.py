"""What people say of results: ratings.tsv, a line for each result or structure that one judged.

A rating is of the bytes of a label map, by their SHA-256: once they change it is stale.
"""

from __future__ import annotations

import csv
import io
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import astuple, dataclass, fields
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from trinat.pipelines.common.lock import run_lock
from trinat.segmentation.errors import ConfigError, DatasetError, LockedError
from trinat.segmentation.io.files import read_text, write_tsv
from trinat.segmentation.report.page import count

if TYPE_CHECKING:
    import pandas as pd

RATINGS = "ratings.tsv"
VERDICTS = ("pass", "look", "reject")
_PATIENCE_S = 5.0


@dataclass(frozen=True)
class Rating:
    """`structure` is empty for the whole scan, `rating` for a judgement that is taken back."""

    scan: str
    structure: str
    rating: str
    remark: str
    rater: str
    rated: str  # when, ISO 8601
    sha256: str  # of the label map that was judged


_COLUMNS = tuple(field.name for field in fields(Rating))
_JUDGED = ("scan", "structure", "sha256")


def read_ratings(path: Path) -> list[Rating]:
    """All lines; none where there is no such file."""
    if not path.exists():
        return []
    reader = csv.DictReader(
        io.StringIO(read_text(path, "utf-8-sig")), delimiter="\t", restval=""
    )
    if missing := [name for name in _COLUMNS if name not in (reader.fieldnames or ())]:
        raise DatasetError(f"has no column {missing[0]!r}", where=path)
    ratings = [Rating(*(_plain(row[name]) for name in _COLUMNS)) for row in reader]
    if strange := next((r.rating for r in ratings if r.rating not in VERDICTS), ""):
        remedy = f"use {', '.join(VERDICTS)}"
        raise DatasetError(f"has a rating {strange!r}", where=path, remedy=remedy)
    return ratings


def save_rating(path: Path, rating: Rating, *, lock: Path) -> None:
    """Put a rating in the place of the same rater's one before; all others stay."""
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with run_lock(lock):
                others = [r for r in read_ratings(path) if _key(r) != _key(rating)]
                kept = [*others, *([rating] if rating.rating else [])]
                rows = [[value or None for value in astuple(r)] for r in kept]
                write_tsv(path, _COLUMNS, rows)
                return
        except LockedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def rejections(ratings: Iterable[Rating]) -> dict[str, dict[str, str]]:
    """By the SHA-256 of a label map: what of it was rejected ("" is all of it), and by whom."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for rating in ratings:
        if rating.rating == "reject":
            known = found[rating.sha256]
            raters = filter(None, (known.get(rating.structure), rating.rater))
            known[rating.structure] = ", ".join(raters)
    return dict(found)


def rejected_structures(ratings: Iterable[Rating]) -> set[str]:
    """Names of all structures that someone rejected in some scan."""
    return {r.structure for r in ratings if r.rating == "reject" and r.structure}


def read_given(path: Path | None) -> list[Rating]:
    """The ratings of a file that a user named; none where none was."""
    if path and not path.is_file():
        raise ConfigError(
            "no such file", where=path, remedy="rate results with `trinat view`"
        )
    return read_ratings(path) if path else []


def use_of_ratings(
    ratings: Collection[Rating],
    seen: Collection[str],
    in_part: Collection[tuple[str, str]],
) -> str:
    """What became of ratings, given the SHA-256 of the label maps that were looked at.

    `in_part`: rejected structures (SHA-256, name) that the label scheme has no structure for, or
    only one with other parts, so that they were measured.
    """
    fresh = [rating for rating in ratings if rating.sha256 in seen]
    rejected = {(r.sha256, r.structure) for r in fresh if r.rating == "reject"}
    scans = sum(not structure for _, structure in rejected)
    measured = len(rejected & set(in_part))
    structures = len(rejected) - scans - measured
    text = (
        f"Left out by ratings: {count(scans, 'scan')}, {count(structures, 'structure')}."
        f" Of other or changed label maps: {count(len(ratings) - len(fresh), 'rating')}."
    )
    if measured:
        text += (
            f" Rejected but measured, as a part of a larger structure of this label scheme: "
            f"{count(measured, 'structure')}."
        )
    return text


def agreement_table(ratings: Iterable[Rating]) -> pd.DataFrame:
    """Each two raters on what both judged: share of equal ratings in percent, and Cohen's kappa."""
    import pandas as pd  # with SciPy too slow for the start of the page

    from trinat.segmentation.metrics.statistics import cohen_kappa

    given = pd.DataFrame([astuple(rating) for rating in ratings], columns=_COLUMNS)
    given = given.drop_duplicates([*_JUDGED, "rater"], keep="last")
    # A row for each scan or structure, a column for each rater.
    table = given.pivot(index=list(_JUDGED), columns="rater", values="rating")
    of_structures = table.index.get_level_values("structure") != ""
    rows = []
    for one, two in combinations(table.columns, 2):
        for of, judged in (
            ("scans", table[~of_structures]),
            ("structures", table[of_structures]),
        ):
            both = judged[[one, two]].dropna()
            if len(both):
                same = 100 * (both[one] == both[two]).sum() / len(both)
                kappa = cohen_kappa(both[one].tolist(), both[two].tolist())
                rows.append((of, one, two, len(both), same, kappa))
    columns = ["of", "rater", "other_rater", "rated_by_both", "same_percent", "kappa"]
    return pd.DataFrame(rows, columns=columns)


def _key(rating: Rating) -> tuple[str, str, str]:
    return rating.scan, rating.structure, rating.rater


def _plain(cell: str) -> str:
    """A cell as it was before `write_tsv` made it safe for spreadsheets."""
    if cell == "n/a":
        return ""
    return cell[1:] if cell[:1] == "'" and cell[1:2] in tuple("=+-@") else cell
