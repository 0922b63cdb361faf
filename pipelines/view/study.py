"""What the page shows of a folder of results, from its ledgers and tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trinat.pipelines.common.naming import FOLD, Product, safe_component
from trinat.pipelines.common.ratings import (
    RATINGS,
    VERDICTS,
    Rating,
    agreement_table,
    read_ratings,
    save_rating,
)
from trinat.pipelines.common.scanfiles import ScanFile, as_scan, find_files
from trinat.pipelines.predict.entry import Entry
from trinat.pipelines.predict.ledger import entries_in
from trinat.pipelines.predict.outputs import LABEL_TABLE, PLAIN_LABEL_TABLE, WORK
from trinat.segmentation.data.sources.base import natural_order, without_suffix
from trinat.segmentation.errors import ConfigError, InputError
from trinat.segmentation.io.files import read_rows, sha256_of
from trinat.segmentation.labels.scheme import load_scheme

# Of a study's volumes as many quantiles, so that a page of 100,000 scans is not larger.
_QUANTILES = 101
_COLOR = re.compile(r"#[0-9A-Fa-f]{6}")
_DOUBT = ("reject", "look", "done", "failed", "skipped", "pass")


@dataclass(frozen=True)
class Structure:
    number: int  # in label maps
    name: str
    abbreviation: str
    color: str


@dataclass(frozen=True)
class Item:
    """One scan of the list: what the ledger says of it, and its label map."""

    name: str
    folder: Path
    entry: Entry
    labels: Path | None

    @property
    def facts(self) -> dict[str, Any]:
        grade = self.entry.result.get("grade") or self.entry.status
        why = "; ".join(self.entry.result.get("reasons", ())) or self.entry.reason
        return {"name": self.name, "grade": grade, "why": why}

    @property
    def agreement(self) -> float | None:
        value = self.entry.result.get("mean_agreement")
        return value if isinstance(value, float) else None


@dataclass(frozen=True)
class Study:
    """A folder of results, and what to compare them with."""

    folder: Path
    rater: str
    images: Path | None = None
    against: Path | None = None
    labels: str = "quicknat33"

    @cached_property
    def items(self) -> list[Item]:
        """Scans in the order to look at them: the doubtful first."""
        if not self.folder.is_dir():
            remedy = "give the --out of trinat predict"
            raise ConfigError("no such folder", where=self.folder, remedy=remedy)
        items = [
            Item(
                (folder / entry.case).relative_to(self.folder).as_posix(),
                *(folder, entry, output(folder, entry, Product.LABELS)),
            )
            for folder, entry in entries_in(self.folder)
            if entry.status != "skipped" or entry.is_kept
        ]
        items = items or [  # label maps of another origin
            Item(file.name, self.folder, Entry(file.name, "done"), file.path)
            for file in find_files(self.folder)
        ]
        return sorted(items, key=_doubt)

    @cached_property
    def structures(self) -> list[Structure]:
        """What the numbers in the label maps mean, without background."""
        return structures_in(self.folder) or [
            Structure(
                x.fs_id, x.name, x.abbreviation, "#{:02x}{:02x}{:02x}".format(*x.color)
            )
            for x in load_scheme(self.labels).labels[1:]
        ]

    def __getitem__(self, number: int) -> Item:
        if not 0 <= number < len(self.items):
            raise InputError("no such scan in this study")
        return self.items[number]

    def image(self, item: Item) -> Path | None:
        """Its scan, if it is where it was, or among the images that were named."""
        if self.images and not item.entry.input:
            return self._images.get(item.name)
        seen = (
            self.images / item.entry.input
            if self.images
            else item.folder / item.entry.scan
        )
        return seen if seen.is_file() else self._images.get(item.name)

    def other(self, item: Item) -> Path | None:
        """The label map of the same scan in the folder to compare with."""
        return self._others.get(item.name)

    def entropy(self, item: Item) -> Path | None:
        return output(item.folder, item.entry, Product.ENTROPY)

    def overview(self) -> dict[str, Any]:
        """The list of scans and the distribution of each structure's volumes."""
        volumes: dict[str, list[float]] = {x.name: [] for x in self.structures}
        for item in self.items:
            for name, volume in item.entry.result.get("volumes_mm3", {}).items():
                volumes.setdefault(name, []).append(volume)
        ratings = self.ratings()
        mine = {r["scan"]: r for r in ratings if r["mine"] and not r["structure"]}
        return {
            "title": self.folder.resolve().name,
            "rater": self.rater,
            "raters": len({r["rater"] for r in ratings}),
            "against": self.against.resolve().name if self.against else "",
            "verdicts": VERDICTS,
            "structures": [
                {
                    **asdict(x),
                    "volumes": _quantiles(volumes[x.name]),
                    "count": len(volumes[x.name]),
                }
                for x in self.structures
            ],
            "scans": [
                {
                    "number": number,
                    **item.facts,
                    "agreement": item.agreement,
                    "there": bool(item.labels),
                    "rating": mine.get(item.name),
                }
                for number, item in enumerate(self.items)
            ],
        }

    def detail(self, item: Item) -> dict[str, Any]:
        """All that is known of one scan."""
        return {
            **item.facts,
            "result": item.entry.result,
            "sha256": digest(item.labels),
            "scan": bool(self.image(item)),
            "entropy": bool(self.entropy(item)),
            "against": bool(self.other(item)),
            "ratings": [r for r in self.ratings() if r["scan"] == item.name],
        }

    def rate(
        self, item: Item, structure: str, rating: str, remark: str, sha256: str
    ) -> None:
        """Keep the rater's judgement of a label map with this digest."""
        if not sha256 or digest(item.labels) != sha256:
            raise InputError(
                "has changed since it was shown", where=item.name, remedy="reload"
            )
        if structure and structure not in {x.name for x in self.structures}:
            raise InputError(f"no structure {structure!r} in this study")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        judged = (item.name, structure, rating, " ".join(remark.split()))
        saved = Rating(*judged, self.rater, now, sha256)
        save_rating(
            self.folder / RATINGS, saved, lock=self.folder / WORK / "lock.ratings"
        )

    def ratings(self) -> list[dict[str, Any]]:
        """Every rating, whether it is the rater's own, and whether its result has changed."""
        paths = {item.name: item.labels for item in self.items}
        return [
            {
                **asdict(r),
                "mine": r.rater == self.rater,
                "stale": digest(paths.get(r.scan)) != r.sha256,
            }
            for r in read_ratings(self.folder / RATINGS)
        ]

    def raters(self) -> list[dict[str, Any]]:
        """How far each two raters agree; None for a kappa that is not defined."""
        table = agreement_table(read_ratings(self.folder / RATINGS)).astype(object)
        known = table.where(table.notna(), None)
        return [
            dict(zip(known.columns, row, strict=True)) for row in known.values.tolist()
        ]

    @cached_property
    def _images(self) -> Mapping[str, Path]:
        return (
            self._paired(find_files(self.images, suffix="T1w")) if self.images else {}
        )

    @cached_property
    def _others(self) -> Mapping[str, Path]:
        return self._paired(find_files(self.against)) if self.against else {}

    def _paired(self, files: Sequence[ScanFile]) -> dict[str, Path]:
        """By the name of a scan: the one of these files that is of it."""
        from trinat.pipelines.evaluate.pairing import pair_files

        own = {
            item.name: _named(item, item.labels) for item in self.items if item.labels
        }
        names = {id(file): name for name, file in own.items()}
        return {
            names[id(p.truth)]: p.prediction.path
            for p in pair_files(own.values(), files).pairs
        }


def structures_in(folder: Path) -> list[Structure]:
    """The structures of a folder's own label table; none where it has no table."""
    own = (folder / PLAIN_LABEL_TABLE, folder / LABEL_TABLE)
    places = (*own, *sorted(folder.glob(FOLD.format(f"*/{PLAIN_LABEL_TABLE}"))))
    table = next((place for place in places if place.is_file()), None)
    rows = read_rows(table, required=("index", "name", "color")) if table else []
    return [
        Structure(
            int(row["index"]), row["name"], row.get("abbreviation", ""), row["color"]
        )
        for row in rows
        if row["index"].isdecimal()
        and row["index"] != "0"
        and _COLOR.fullmatch(row["color"])
    ]


def output(folder: Path, entry: Entry, product: Product) -> Path | None:
    """One of a scan's files, which lies in the folder whatever the ledger says."""
    for path in map(folder.joinpath, entry.outputs):
        fits = path.suffix != ".json" and without_suffix(path).endswith(
            f"_{product.suffix}"
        )
        if fits and path.resolve().is_relative_to(folder.resolve()):
            return path
    return None


def _doubt(item: Item) -> tuple[int, float, Any]:
    grade, agreement = item.facts["grade"], item.agreement
    order = _DOUBT.index(grade) if grade in _DOUBT else len(_DOUBT)
    return order, 1.0 if agreement is None else agreement, natural_order(item.name)


def _named(item: Item, labels: Path) -> ScanFile:
    """Its label map, under its scan's own name where that had to be made safe."""
    (file,), scan = find_files(labels), Path(item.entry.input)
    return (
        as_scan(file, scan)
        if safe_component(without_suffix(scan)) == file.name
        else file
    )


def _quantiles(values: Sequence[float]) -> list[float]:
    if len(values) <= _QUANTILES:
        return sorted(values)
    return [float(v) for v in np.quantile(values, np.linspace(0, 1, _QUANTILES))]


def digest(path: Path | None) -> str:
    """SHA-256 of a label map as it is now; "" of one that is gone."""
    if path is None or not path.is_file():
        return ""
    status = path.stat()
    return _digest_of(path, status.st_mtime_ns, status.st_size, status.st_ino)


@cache
def _digest_of(path: Path, *_: int) -> str:
    return sha256_of(path)
