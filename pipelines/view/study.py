"""What the page shows of a folder of results, from its ledgers and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.common.discovery import ScanFile, as_scan, find_files
from pipelines.common.naming import FOLD, Product, safe_component
from pipelines.common.ratings import RATINGS, VERDICTS, Rating, read_ratings, save_rating
from pipelines.predict.ledger import Entry, entries_in
from pipelines.predict.outputs import LABEL_TABLE, PLAIN_LABEL_TABLE, WORK
from segmentation.data.sources.base import natural_order, without_suffix
from segmentation.errors import ConfigError, InputError
from segmentation.io.files import read_rows, sha256_of
from segmentation.labels.scheme import load_scheme

__all__ = ["Item", "Structure", "Study", "structures_in"]

# Of a study's volumes as many quantiles, so that a page of 100,000 scans is not larger.
_QUANTILES = 101


@dataclass(frozen=True)
class Structure:
    number: int  # in label maps
    name: str
    abbreviation: str
    color: str


@dataclass(frozen=True)
class Item:
    """One scan of the list: what the ledger says of it, and its files."""

    name: str
    folder: Path
    entry: Entry
    labels: Path | None = None

    @property
    def grade(self) -> str:
        return self.entry.result.get("grade") or self.entry.status

    @property
    def why(self) -> str:
        return "; ".join(self.entry.result.get("reasons", ())) or self.entry.reason

    def output(self, product: Product) -> Path | None:
        """One of its files, which lies in the folder whatever the ledger says."""
        ending = f"_{product.suffix}"
        for name in self.entry.outputs:
            path = self.folder / name
            inside = path.resolve().is_relative_to(self.folder.resolve())
            if inside and path.suffix != ".json" and without_suffix(path).endswith(ending):
                return path
        return None


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
            raise ConfigError(
                "no such folder", where=self.folder, remedy="give the --out of trinat predict"
            )
        items = []
        for folder, entry in entries_in(self.folder):
            place = folder.relative_to(self.folder).as_posix()
            name = entry.case if place == "." else f"{place}/{entry.case}"
            item = Item(name, folder, entry)
            if entry.status != "skipped" or entry.is_kept:
                items.append(Item(name, folder, entry, item.output(Product.LABELS)))
        if not items:  # label maps of another origin
            items = [
                Item(file.name, self.folder, Entry(file.name, "done"), file.path)
                for file in find_files(self.folder)
            ]
        return sorted(items, key=_doubt)

    @cached_property
    def structures(self) -> list[Structure]:
        """What the numbers in the label maps mean, without background."""
        return structures_in(self.folder) or [
            Structure(x.fs_id, x.name, x.abbreviation, "#{:02x}{:02x}{:02x}".format(*x.color))
            for x in load_scheme(self.labels).labels[1:]
        ]

    def __getitem__(self, number: int) -> Item:
        if not 0 <= number < len(self.items):
            raise InputError("no such scan in this study")
        return self.items[number]

    def image(self, item: Item) -> Path | None:
        """Its scan, if it is where it was, or among the images that were named."""
        if self.images:
            named = self.images / item.entry.input
            return named if item.entry.input and named.is_file() else self._images.get(item.name)
        path = item.folder / item.entry.scan
        return path if item.entry.scan and path.is_file() else None

    def other(self, item: Item) -> Path | None:
        """The label map of the same scan in the folder to compare with."""
        return self._others.get(item.name)

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
            "against": self.against.resolve().name if self.against else "",
            "verdicts": VERDICTS,
            "structures": [
                {
                    **{"name": x.name, "abbreviation": x.abbreviation, "color": x.color},
                    "volumes": _quantiles(volumes[x.name]),
                    "count": len(volumes[x.name]),
                }
                for x in self.structures
            ],
            "scans": [
                {
                    **{"name": item.name, "grade": item.grade, "why": item.why},
                    "agreement": item.entry.result.get("mean_agreement"),
                    "there": bool(item.labels),
                    "rating": mine.get(item.name),
                }
                for item in self.items
            ],
        }

    def detail(self, item: Item) -> dict[str, Any]:
        """All that is known of one scan."""
        result = item.entry.result
        measures = ("agreement", "iou", "pairwise_dice", "volume_cv")
        return {
            **{"name": item.name, "grade": item.grade, "why": item.why},
            "notes": list(result.get("notes", ())),
            "model": result.get("model", ""),
            "brain_mm3": result.get("total_brain_mm3"),
            "volumes": result.get("volumes_mm3", {}),
            "grades": result.get("structure_grades", {}),
            **{name: result.get(name, {}) for name in measures},
            "labels": bool(item.labels),
            "scan": bool(self.image(item)),
            "entropy": bool(item.output(Product.ENTROPY)),
            "against": bool(self.other(item)),
            "ratings": [r for r in self.ratings() if r["scan"] == item.name],
        }

    def rate(self, item: Item, structure: str, rating: str, remark: str) -> None:
        """Keep the rater's judgement of what is there now."""
        if item.labels is None:
            raise InputError("has no result to judge", where=item.name)
        if structure and structure not in {x.name for x in self.structures}:
            raise InputError(f"no structure {structure!r} in this study")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        judged = Rating(
            *(item.name, structure, rating, " ".join(remark.split())),
            *(self.rater, now, _digest(item.labels)),
        )
        save_rating(self.folder / RATINGS, judged, lock=self.folder / WORK / "lock.ratings")

    def ratings(self) -> list[dict[str, Any]]:
        """Every rating, whether it is the rater's own, and whether its result has changed."""
        paths = {item.name: item.labels for item in self.items}
        rows = []
        for r in read_ratings(self.folder / RATINGS):
            path = paths.get(r.scan)
            rows.append(
                {
                    **{"scan": r.scan, "structure": r.structure, "rating": r.rating},
                    **{"remark": r.remark, "rater": r.rater, "rated": r.rated},
                    "mine": r.rater == self.rater,
                    "stale": path is None or _digest(path) != r.sha256,
                }
            )
        return rows

    @cached_property
    def _images(self) -> Mapping[str, Path]:
        return self._paired(find_files(self.images, suffix="T1w")) if self.images else {}

    @cached_property
    def _others(self) -> Mapping[str, Path]:
        return self._paired(find_files(self.against)) if self.against else {}

    def _paired(self, files: Sequence[ScanFile]) -> dict[str, Path]:
        """By the name of a scan: the one of these files that is of it."""
        from pipelines.evaluate.pairing import pair_files

        own = {item.name: _named(item) for item in self.items if item.labels}
        names = {id(file): name for name, file in own.items()}
        return {
            names[id(p.truth)]: p.prediction.path for p in pair_files(own.values(), files).pairs
        }


def structures_in(folder: Path) -> list[Structure]:
    """The structures of a folder's own label table; none where it has no table."""
    own = (folder / PLAIN_LABEL_TABLE, folder / LABEL_TABLE)
    places = (*own, *sorted(folder.glob(FOLD.format(f"*/{PLAIN_LABEL_TABLE}"))))
    table = next((place for place in places if place.is_file()), None)
    rows = read_rows(table, required=("index", "name", "color")) if table else []
    return [
        Structure(int(row["index"]), row["name"], row.get("abbreviation", ""), row["color"])
        for row in rows
        if row["index"].isdecimal() and row["index"] != "0"
    ]


def _doubt(item: Item) -> tuple[int, float, Any]:
    order = ("reject", "look", "done", "failed", "skipped", "pass")
    grade = order.index(item.grade) if item.grade in order else len(order)
    agreement = item.entry.result.get("mean_agreement")
    return grade, 1.0 if agreement is None else agreement, natural_order(item.name)


def _named(item: Item) -> ScanFile:
    """Its label map, under its scan's own name where that had to be made safe."""
    assert item.labels is not None
    (file,), scan = find_files(item.labels), Path(item.entry.input)
    return as_scan(file, scan) if safe_component(without_suffix(scan)) == file.name else file


def _quantiles(values: Sequence[float]) -> list[float]:
    if len(values) <= _QUANTILES:
        return sorted(values)
    return [float(v) for v in np.quantile(values, np.linspace(0, 1, _QUANTILES))]


def _digest(path: Path) -> str:
    """SHA-256 of a label map as it is now; "" of one that is gone."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return _digest_of(path, status.st_mtime_ns, status.st_size, status.st_ino)


@cache
def _digest_of(path: Path, *_: int) -> str:
    return sha256_of(path)
