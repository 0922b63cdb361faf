"""What a run is told, and what it writes under which names (BIDS where the input is BIDS).

Imports no torch: the first scan is read while that loads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trinat.pipelines.common.cases import Case
from trinat.pipelines.common.naming import ASIDE, Product, bids_name, safe_component
from trinat.pipelines.common.ratings import RATINGS
from trinat.pipelines.common.scanfiles import refuse_changed
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.timing import Clock, stage, timed

if TYPE_CHECKING:
    from trinat.segmentation.inference.prediction import Prediction
    from trinat.segmentation.space.conform import Conformed

# What is not finished yet, and locks; in the output folder.
WORK = ".trinat-work"
TABLES = ("summary.tsv", "volumes.tsv", "qc.tsv", "report.html")
# The page has the slices of so many scans, the most doubtful; beside it they are kept for it.
MOST_SHOWN = 5
SLICES = ".trinat-page"
# What the numbers in all label maps mean: of a BIDS dataset, and elsewhere.
LABEL_TABLE = "desc-trinat_dseg.tsv"
PLAIN_LABEL_TABLE = "labels.tsv"


# What BIDS has no names for, and nothing else.
BIDSIGNORE = (
    *("*.jsonl", *TABLES, RATINGS, "report/", "*.bak*"),
    *(
        f"*_{p.suffix}{p.ending}"
        for p in (Product.PICTURE, Product.ENTROPY, Product.STATS)
    ),
    *(f"{WORK}/", f"{SLICES}/", f"{ASIDE}/"),
)


@dataclass(frozen=True)
class OutputSettings:
    """Any change here makes every case of an output folder be done again."""

    views: tuple[str, ...] = ()  # empty: all that the model has
    mirror: bool = False
    samples: int = 0
    clean: bool = False
    format: Literal["aseg", "index"] = "aseg"
    mgz: bool = False  # label maps as .mgz where the scan is
    stats: bool = False
    picture: bool = True
    entropy: bool = False
    probabilities: bool = False
    dicom_seg: bool = False
    fill_nonfinite: bool = False
    trust_affine: Literal["sform", "qform", "header"] | None = None
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"

    def wants(self, product: Product) -> bool:
        """Label maps always; each other product by the setting of its name."""
        return bool(getattr(self, product.name.lower(), True))

    def digest(self) -> str:
        content = {**asdict(self), "version": version("trinat")}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a run is told and each of its workers knows; `output` alone changes what comes out."""

    output: OutputSettings = field(default_factory=OutputSettings)
    threads: int | None = None
    batch: int | None = None
    allow_cpu: bool = False
    require_checksum: bool = False
    timings: bool = False  # of the run's processes, for its outcome


@dataclass(frozen=True)
class RunSettings(Options):
    """All that a worker is told."""

    out: Path
    model: Path
    model_sha256: str
    staging: Path  # on the disk of `out`; emptied at start and end
    bids: bool = False


@dataclass
class Job:
    """A scan on its way: each step adds what the next needs and drops what it does not."""

    case: Case
    volume: Volume | None = None
    digest: str = ""
    conformed: Conformed | None = None
    found: Prediction | None = None
    clock: Clock = field(default_factory=Clock)


def read(case: Case, settings: RunSettings) -> Job:
    job, output = Job(case), settings.output
    with timed(job.clock), stage("read"):
        job.volume = Volume.read(
            case.path,
            series=case.series,
            axes=case.axes,
            trust_affine=output.trust_affine,
            fill_nonfinite=output.fill_nonfinite,
        )
    # Taken while it was read: what is in the ledger is what was segmented.
    job.digest = job.volume.source_sha256 or ""
    refuse_changed(case.sha256, job.digest, case.path)
    return job


def slices_of(case: str) -> str:
    """Where the slices of a case are kept, for as long as it is one of the most doubtful."""
    return f"{SLICES}/{safe_component(case)}.json"


@dataclass(frozen=True)
class CaseNames:
    """Where the files of one case go: beside one another, below `root`."""

    root: Path
    id: str  # folder/stem
    entities: Mapping[str, str]
    bids: bool

    def all(self, output: OutputSettings, scan: Path) -> list[Path]:
        """Every file of the scan, but for the JSON beside some."""
        others = [p for p in Product if p is not Product.LABELS and output.wants(p)]
        return [self.labels(output, scan), *map(self.path, others)]

    def every(self) -> list[str]:
        """Whatever any run may have written of the scan, with any settings."""
        paths = [self.path(product) for product in Product]
        paths.append(self.path(Product.LABELS, ".mgz"))
        paths += [
            self.path(product, ".json")
            for product in (Product.LABELS, Product.PROBABILITIES)
        ]
        return [path.relative_to(self.root).as_posix() for path in paths]

    def labels_in(self, outputs: Mapping[str, str]) -> set[tuple[str, str]]:
        """The label maps among outputs, and their SHA-256."""
        names = {self.path(Product.LABELS), self.path(Product.LABELS, ".mgz")}
        relative = {path.relative_to(self.root).as_posix() for path in names}
        return {(name, digest) for name, digest in outputs.items() if name in relative}

    def labels(self, output: OutputSettings, scan: Path) -> Path:
        mgz = output.mgz and scan.suffix.lower() in (".mgz", ".mgh")
        return self.path(Product.LABELS, ".mgz" if mgz else "")

    def path(self, product: Product, ending: str = "") -> Path:
        folder, _, stem = self.id.rpartition("/")
        suffix = product.plain
        if self.bids:
            stem, suffix = (
                bids_name(self.entities, space="orig", desc="trinat"),
                product.suffix,
            )
        return self.root / folder / f"{stem}_{suffix}{ending or product.ending}"
