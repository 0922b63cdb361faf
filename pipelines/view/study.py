"""What the page shows of a folder of results, from its ledgers and tables.

No voxel is read here: a study of 100,000 scans is listed by its ledgers. Label maps are hashed one
by one, when a scan is looked at or a rating of it is listed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trinat.pipelines.common.naming import Product
from trinat.pipelines.common.ratings import (
    RATINGS,
    VERDICTS,
    Rating,
    agreement_table,
    read_ratings,
    save_rating,
)
from trinat.pipelines.common.scanfiles import find_files, find_images
from trinat.pipelines.predict.doubt import counted_volumes
from trinat.pipelines.predict.entry import Entry
from trinat.pipelines.predict.ledger import entries_in
from trinat.pipelines.predict.outputs import WORK
from trinat.pipelines.view.item import Item, digest, files_of_items, output
from trinat.pipelines.view.structures import (
    Structure,
    structures_in,
    structures_of_scheme,
)
from trinat.segmentation.errors import ConfigError, InputError

# Of a structure's volumes at most this many are sent, so that the page of 100,000 scans is small.
_QUANTILES = 101


@dataclass(frozen=True)
class Study:
    """A folder of results, and what to compare them with.

    `rater` is the name under which ratings are saved. `images` has the scans where they are not
    where they were read; `against` has other label maps. `labels` names the scheme of label maps
    whose folder has no label table.
    """

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
        items: list[Item] = []
        for folder, entry in entries_in(self.folder):
            if entry.status == "skipped" and not entry.is_kept:
                continue
            name = (folder / entry.case).relative_to(self.folder).as_posix()
            labels = output(folder, entry, Product.LABELS)
            items.append(Item(name, folder, entry, labels))
        if not items:
            # Label maps of another origin.
            for file in find_files(self.folder):
                entry = Entry(file.name, "done")
                items.append(Item(file.name, self.folder, entry, file.path))
        return sorted(items, key=lambda item: item.place_in_list)

    @cached_property
    def structures(self) -> list[Structure]:
        """What the numbers in the label maps mean, without background."""
        return structures_in(self.folder) or structures_of_scheme(self.labels)

    def __getitem__(self, number: int) -> Item:
        """A scan by its place in the list; InputError where there is none."""
        if not 0 <= number < len(self.items):
            raise InputError("no such scan in this study")
        return self.items[number]

    def image(self, item: Item) -> Path | None:
        """Its scan: where `trinat predict` read it, or among `images`; None if it is not there."""
        if self.images is None:
            path = item.folder / item.entry.scan
        elif item.entry.input:
            path = self.images / item.entry.input
        else:
            # A label map of another origin: no ledger says where its scan was.
            return self._images.get(item.name)
        if path.is_file():
            return path
        return self._images.get(item.name)

    def other(self, item: Item) -> Path | None:
        """The label map of the same scan in the folder to compare with."""
        return self._others.get(item.name)

    def entropy(self, item: Item) -> Path | None:
        """Its map of voxel entropy, if one was asked for."""
        return output(item.folder, item.entry, Product.ENTROPY)

    def mask(self, item: Item) -> Path | None:
        """Its brain mask, if one was written."""
        return output(item.folder, item.entry, Product.BRAIN_MASK)

    def overview(self) -> dict[str, Any]:
        """The list of scans and the distribution of each structure's volumes."""
        ratings = self.ratings()
        against = ""
        if self.against:
            against = self.against.resolve().name
        return {
            "title": self.folder.resolve().name,
            "rater": self.rater,
            "raters": len({rating["rater"] for rating in ratings}),
            "against": against,
            "verdicts": VERDICTS,
            "structures": self._structure_rows(),
            "scans": self._scan_rows(ratings),
        }

    def _structure_rows(self) -> list[dict[str, Any]]:
        """The structures, each with the distribution of its volumes over the study.

        Those of rejected scans and structures are not in it.
        """
        volumes: dict[str, list[float]] = defaultdict(list)
        for item in self.items:
            for name, volume in counted_volumes(item.entry.result).items():
                volumes[name].append(volume)
        rows = []
        for structure in self.structures:
            row = asdict(structure)
            row["volumes"] = _quantiles(volumes[structure.name])
            row["count"] = len(volumes[structure.name])
            rows.append(row)
        return rows

    def _scan_rows(self, ratings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The scans of the list, each with the rater's own rating of the whole scan."""
        own_ratings = {}
        for rating in ratings:
            if rating["mine"] and not rating["structure"]:
                own_ratings[rating["scan"]] = rating
        rows = []
        for number, item in enumerate(self.items):
            row: dict[str, Any] = {"number": number}
            row |= item.facts
            row["agreement"] = item.agreement
            row["there"] = item.labels is not None
            row["rating"] = own_ratings.get(item.name)
            rows.append(row)
        return rows

    def detail(self, item: Item) -> dict[str, Any]:
        """All that is known of one scan."""
        ratings = [rating for rating in self.ratings() if rating["scan"] == item.name]
        return {
            **item.facts,
            "result": item.entry.result,
            "sha256": digest(item.labels),
            "scan": self.image(item) is not None,
            "entropy": self.entropy(item) is not None,
            "mask": self.mask(item) is not None,
            "against": self.other(item) is not None,
            "ratings": ratings,
            "counted": list(counted_volumes(item.entry.result)),
        }

    def rate(
        self,
        item: Item,
        structure: str,
        rating: str,
        remark: str,
        sha256: str,
    ) -> None:
        """Keep the rater's judgement of a label map with this digest.

        InputError if the label map has changed since, or the study has no such structure.
        """
        if not sha256 or digest(item.labels) != sha256:
            what = "has changed since it was shown"
            raise InputError(what, where=item.name, remedy="reload")
        known = [each.name for each in self.structures]
        if structure and structure not in known:
            raise InputError(f"no structure {structure!r} in this study")
        saved = Rating(
            scan=item.name,
            structure=structure,
            rating=rating,
            remark=" ".join(remark.split()),
            rater=self.rater,
            rated=datetime.now(UTC).isoformat(timespec="seconds"),
            sha256=sha256,
        )
        lock = self.folder / WORK / "lock.ratings"
        save_rating(self.folder / RATINGS, saved, lock=lock)

    def ratings(self) -> list[dict[str, Any]]:
        """Every rating, whether it is the rater's own, and whether its result has changed."""
        label_maps = {item.name: item.labels for item in self.items}
        rows = []
        for rating in read_ratings(self.folder / RATINGS):
            row = asdict(rating)
            row["mine"] = rating.rater == self.rater
            row["stale"] = digest(label_maps.get(rating.scan)) != rating.sha256
            rows.append(row)
        return rows

    def raters(self) -> list[dict[str, Any]]:
        """How far each two raters agree; None for a kappa that is not defined."""
        table = agreement_table(read_ratings(self.folder / RATINGS)).astype(object)
        known = table.where(table.notna(), None)
        rows = known.values.tolist()
        return [dict(zip(known.columns, row, strict=True)) for row in rows]

    @cached_property
    def _images(self) -> Mapping[str, Path]:
        """The scans among `images`, by name."""
        if self.images is None:
            return {}
        label_maps = [item.labels for item in self.items if item.labels is not None]
        return files_of_items(self.items, find_images(self.images, label_maps))

    @cached_property
    def _others(self) -> Mapping[str, Path]:
        """The label maps among `against`, by the name of their scan."""
        if self.against is None:
            return {}
        return files_of_items(self.items, find_files(self.against))


def _quantiles(values: Sequence[float]) -> list[float]:
    """The values themselves in order, or, of many, quantiles from the least to the largest."""
    if len(values) <= _QUANTILES:
        return sorted(values)
    shares = np.linspace(0, 1, _QUANTILES)
    return [float(value) for value in np.quantile(values, shares)]
