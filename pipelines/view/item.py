"""One scan of a study, and which files belong to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trinat.pipelines.common.naming import Product, safe_component
from trinat.pipelines.common.scanfiles import ScanFile, as_scan, find_files
from trinat.pipelines.predict.entry import Entry
from trinat.segmentation.data.sources.base import natural_order, without_suffix
from trinat.segmentation.io.files import sha256_of

# Grades and statuses, in the order in which scans are listed.
_MOST_DOUBTFUL_FIRST = ("reject", "look", "done", "failed", "skipped", "pass")


@dataclass(frozen=True)
class Item:
    """One scan of the list: what the ledger says of it, and its label map.

    `folder` is the output folder of its ledger: the study's own, or that of a fold.
    """

    name: str
    folder: Path
    entry: Entry
    labels: Path | None

    @property
    def facts(self) -> dict[str, Any]:
        """What the list says of it; without a grade its status, as "failed"."""
        result = self.entry.result
        reasons = "; ".join(result.get("reasons", ()))
        return {
            "name": self.name,
            "grade": result.get("grade") or self.entry.status,
            "why": reasons or self.entry.reason,
        }

    @property
    def agreement(self) -> float | None:
        """Mean agreement of the views; None where it was not measured."""
        value = self.entry.result.get("mean_agreement")
        if isinstance(value, float):
            return value
        return None

    @property
    def place_in_list(self) -> tuple[int, float, Any]:
        """The key by which scans are sorted: grade, then agreement of views, then name."""
        grade = self.facts["grade"]
        rank = len(_MOST_DOUBTFUL_FIRST)
        if grade in _MOST_DOUBTFUL_FIRST:
            rank = _MOST_DOUBTFUL_FIRST.index(grade)
        agreement = 1.0
        if self.agreement is not None:
            agreement = self.agreement
        return rank, agreement, natural_order(self.name)


def output(folder: Path, entry: Entry, product: Product) -> Path | None:
    """One of a scan's output files, by the ledger; None where it has none.

    A path that leads out of the folder is none of its files, whatever the ledger says.
    """
    for name in entry.outputs:
        path = folder / name
        if path.suffix == ".json":
            continue
        endings = (f"_{product.suffix}", f"_{product.plain}")
        if not without_suffix(path).endswith(endings):
            continue
        if path.resolve().is_relative_to(folder.resolve()):
            return path
    return None


def files_of_items(items: Sequence[Item], files: Sequence[ScanFile]) -> dict[str, Path]:
    """Which of these files is of which item, by the item's name.

    Files are paired with the items' label maps as `trinat evaluate` pairs predictions with truths.
    """
    from trinat.pipelines.evaluate.pairing import pair_files

    label_maps: list[ScanFile] = []
    # By the id() of a label map's ScanFile, the name of its item.
    item_of: dict[int, str] = {}
    for item in items:
        if item.labels is not None:
            label_map = _named_as_scan(item, item.labels)
            label_maps.append(label_map)
            item_of[id(label_map)] = item.name
    found = {}
    for pair in pair_files(label_maps, files).pairs:
        found[item_of[id(pair.truth)]] = pair.prediction.path
    return found


def _named_as_scan(item: Item, labels: Path) -> ScanFile:
    """An item's label map, under its scan's own name where that had to be made safe."""
    (file,) = find_files(labels)
    scan = Path(item.entry.input)
    if safe_component(without_suffix(scan)) == file.name:
        return as_scan(file, scan)
    return file


def digest(path: Path | None) -> str:
    """SHA-256 of a label map as it is now; "" of one that is gone.

    A file is read again only where its time, size or inode has changed.
    """
    if path is None or not path.is_file():
        return ""
    status = path.stat()
    return _digest_of(path, status.st_mtime_ns, status.st_size, status.st_ino)


@cache
def _digest_of(path: Path, *_: int) -> str:
    """Kept as long as the facts of the file, which come behind its path, stay the same."""
    return sha256_of(path)
