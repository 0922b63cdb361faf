"""The files that a run writes, and their names (BIDS where the input is BIDS)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trinat.pipelines.common.ratings import RATINGS
from trinat.pipelines.predict.settings import OutputSettings
from trinat.pipelines.scans.naming import ASIDE, Product, bids_name
from trinat.segmentation.data.sources.base import safe_component

# What is not finished yet, and locks; in the output folder.
WORK = ".trinat-work"
TABLES = ("summary.tsv", "volumes.tsv", "qc.tsv", "report.html")
# Of a run with --longitudinal: changes of persons, the volumes that they are of, their page.
CHANGES = ("changes.tsv", "timepoints.tsv", "changes.html")
# The page shows slices of this many scans, the most doubtful; they are kept beside it.
MOST_SHOWN = 5
SLICES = ".trinat-page"
# What the numbers in all label maps mean: of a BIDS dataset, and elsewhere.
LABEL_TABLE = "desc-trinat_dseg.tsv"
PLAIN_LABEL_TABLE = "labels.tsv"
_NOT_IN_BIDS = [product for product in Product if not product.is_in_bids]
# What BIDS has no names for, and nothing else.
BIDSIGNORE = (
    "*.jsonl",
    *TABLES,
    *CHANGES,
    RATINGS,
    "report/",
    "*.bak*",
    *(f"*_{product.suffix}{product.ending}" for product in _NOT_IN_BIDS),
    f"{WORK}/",
    f"{SLICES}/",
    f"{ASIDE}/",
)


def slices_of(case: str) -> str:
    """Where the slices of a case are kept, for as long as it is one of the most doubtful."""
    return f"{SLICES}/{safe_component(case)}.json"


@dataclass(frozen=True)
class CaseNames:
    """Where the files of one case go: beside one another, below `root`.

    `id` is the case's, folder/stem. `entities` are those of its BIDS name, used with `bids` alone.
    """

    root: Path
    id: str
    entities: Mapping[str, str]
    bids: bool

    def all(self, output: OutputSettings, scan: Path) -> list[Path]:
        """Every file that these settings write of a scan, except the JSON beside some."""
        others = [product for product in Product if product is not Product.LABELS]
        wanted = [product for product in others if output.wants(product)]
        paths = [self.path(product) for product in wanted]
        return [self.labels(output, scan), *paths]

    def every(self) -> list[str]:
        """Whatever any run may have written of the scan, with any settings; relative to `root`."""
        paths = []
        for product in Product:
            paths.append(self.path(product))
            paths += [self.path(product, ending) for ending in product.further]
        return [self._relative(path) for path in paths]

    def labels_in(self, outputs: Mapping[str, str]) -> set[tuple[str, str]]:
        """The label maps among outputs (path -> SHA-256), with their SHA-256."""
        names = {
            self._relative(self.path(Product.LABELS)),
            self._relative(self.path(Product.LABELS, ".mgz")),
        }
        return {(name, digest) for name, digest in outputs.items() if name in names}

    def labels(self, output: OutputSettings, scan: Path) -> Path:
        """The label map of a scan; its type may follow that of the scan."""
        is_mgz = output.mgz and scan.suffix.lower() in (".mgz", ".mgh")
        return self.path(Product.LABELS, ".mgz" if is_mgz else "")

    def path(self, product: Product, ending: str = "") -> Path:
        """The file of a product, with another ending than its own if one is given."""
        folder, _, stem = self.id.rpartition("/")
        suffix = product.plain
        if self.bids:
            space = self.entities.get("space", "orig")
            stem = bids_name(self.entities, space=space, desc=product.description)
            suffix = product.suffix
        return self.root / folder / f"{stem}_{suffix}{ending or product.ending}"

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()
