"""Ratings of label maps: ratings.tsv, a row for each label map or structure that a rater judged.

A rating contains the SHA-256 of the label map that was judged. If the file has changed since, the
rating is stale.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import asdict, astuple, dataclass, fields
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from trinat.pipelines.common.text import count
from trinat.pipelines.study.shared_table import replace_row
from trinat.segmentation.errors import ConfigError, DatasetError, some
from trinat.segmentation.io.files import read_rows

if TYPE_CHECKING:
    import pandas as pd

RATINGS = "ratings.tsv"
VERDICTS = ("pass", "look", "reject")


@dataclass(frozen=True)
class Rating:
    """A rater's verdict on the label map of a scan, or on one structure of it.

    `structure` is "" for the whole scan. `rating` is one of `VERDICTS`, or "" for a withdrawn
    verdict.
    """

    scan: str
    structure: str
    rating: str
    remark: str
    rater: str
    rated: str  # time, ISO 8601
    sha256: str  # hash of the label map that was judged


_COLUMNS = tuple(field.name for field in fields(Rating))
_JUDGED = ("scan", "structure", "sha256")
# Columns by which an earlier rating is replaced.
_RATED_BY = ("scan", "structure", "rater")


def read_ratings(path: Path) -> list[Rating]:
    """Read all ratings in a table; return an empty list if the file does not exist.

    Raises DatasetError for a file that is no table or has an unknown verdict.
    """
    if not path.exists():
        return []
    ratings = []
    for row in read_rows(path, required=_COLUMNS, names=_COLUMNS):
        rating = Rating(**{name: _plain(row[name]) for name in _COLUMNS})
        if rating.rating and rating.rating not in VERDICTS:
            what = f"has a rating {rating.rating!r}"
            remedy = f"use {', '.join(VERDICTS)}"
            raise DatasetError(what, where=path, remedy=remedy)
        ratings.append(rating)
    return ratings


def save_rating(path: Path, rating: Rating, *, lock: Path) -> None:
    """Write a rating to the table `path`, in place of an earlier one of the same item and rater.

    A rating with an empty verdict only deletes the earlier one. The whole file is written while the
    file `lock` is locked; if another process holds it, this waits up to five seconds.
    """
    replace_row(
        path, asdict(rating), key=_RATED_BY, is_kept=bool(rating.rating), lock=lock
    )


def rejections(ratings: Iterable[Rating]) -> dict[str, dict[str, str]]:
    """Return which structures of which label maps were rejected, and by which raters.

    Keys are SHA-256 of label maps. Values map the name of each rejected structure ("" for the whole
    map) to the names of the raters, separated by commas.
    """
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for rating in ratings:
        if rating.rating != "reject":
            continue
        raters_of = found[rating.sha256]
        before = raters_of.get(rating.structure)
        raters = [name for name in (before, rating.rater) if name]
        raters_of[rating.structure] = ", ".join(raters)
    return dict(found)


def rejected_structures(ratings: Iterable[Rating]) -> set[str]:
    """Return the names of all structures that any rater rejected in any scan."""
    rejected = {rating.structure for rating in ratings if rating.rating == "reject"}
    return rejected - {""}


def read_given(path: Path | None) -> list[Rating]:
    """Return the ratings in a file that the user named; an empty list if `path` is None.

    ConfigError is raised if the file is missing: a typing error must not count as no ratings.
    """
    if path is None:
        return []
    if not path.is_file():
        remedy = "rate results with `trinat view`"
        raise ConfigError("no such file", where=path, remedy=remedy)
    return read_ratings(path)


def use_of_ratings(
    ratings: Collection[Rating],
    seen: Collection[str],
    in_part: Collection[tuple[str, str]],
) -> str:
    """Return sentences for a report on how many scans and structures the ratings excluded.

    `seen` has the SHA-256 of all label maps that were read; ratings of other maps are stale.
    `in_part` has pairs (SHA-256, structure) of rejected structures that were measured nevertheless,
    because the label scheme has no structure of the same extent.
    """
    fresh = [rating for rating in ratings if rating.sha256 in seen]
    rejected = {
        (rating.sha256, rating.structure)
        for rating in fresh
        if rating.rating == "reject"
    }
    scans = sum(structure == "" for _, structure in rejected)
    measured = rejected & set(in_part)
    structures = len(rejected) - scans - len(measured)
    text = (
        f"Excluded as rejected by raters: {count(scans, 'scan')} and "
        f"{count(structures, 'structure')}."
    )
    stale = len(ratings) - len(fresh)
    if stale:
        text += (
            f" Ignored, because the label map has changed or is not in this folder: "
            f"{count(stale, 'rating')}."
        )
    if measured:
        names = some(sorted({structure for _, structure in measured}))
        text += (
            " Rejected but still measured, because this label scheme has them only as part of a "
            f"larger structure, or not at all: {count(len(measured), 'structure')} ({names})."
        )
    return text


def agreement_table(ratings: Iterable[Rating], seen: Collection[str]) -> pd.DataFrame:
    """Return the agreement of each pair of raters: equal ratings in percent, and Cohen's kappa.

    There is a row for scans and a row for structures; the column `of` says which. The other columns
    are the two raters, `rated_by_both` (number of items), `same_percent` and `kappa`. If a rater
    judged the same item twice, the last verdict counts; an empty one withdraws it. The table is
    empty if no two raters judged the same item. `seen` has the SHA-256 of all label maps; ratings
    of other maps are stale and do not count.
    """
    import pandas as pd  # with SciPy too slow to import when the page starts

    from trinat.segmentation.metrics.statistics import cohen_kappa

    fresh = [astuple(rating) for rating in ratings if rating.sha256 in seen]
    given = pd.DataFrame(fresh, columns=_COLUMNS)
    given = given.drop_duplicates([*_JUDGED, "rater"], keep="last")
    given = given[given["rating"] != ""]
    # One row per scan or structure, one column per rater.
    table = given.pivot(index=list(_JUDGED), columns="rater", values="rating")
    of_structures = table.index.get_level_values("structure") != ""
    rows = []
    for one, two in combinations(table.columns, 2):
        pair = table[[one, two]]
        kinds = {"scans": pair[~of_structures], "structures": pair[of_structures]}
        for kind, judged in kinds.items():
            both = judged.dropna()
            if both.empty:
                continue
            equal = (both[one] == both[two]).sum()
            same = 100 * equal / len(both)
            kappa = cohen_kappa(both[one].tolist(), both[two].tolist())
            rows.append((kind, one, two, len(both), same, kappa))
    columns = ["of", "rater", "other_rater", "rated_by_both", "same_percent", "kappa"]
    return pd.DataFrame(rows, columns=columns)


def _plain(cell: str) -> str:
    """Return a cell as it was before `write_tsv` made it safe for spreadsheets."""
    if cell.startswith(("'=", "'+", "'-", "'@")):
        return cell[1:]
    return cell
