"""What a run writes: by which settings, and under which names (BIDS where the input is BIDS)."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Literal

__all__ = [
    "BIDSIGNORE",
    "LABEL_TABLE",
    "RESULT_ENDINGS",
    "TABLES",
    "WORK",
    "CaseNames",
    "OutputSettings",
    "Product",
    "RunSettings",
    "bids_name",
    "safe_component",
]

# What is not finished yet, and locks; in the output folder.
WORK = ".trinat-work"
TABLES = ("summary.tsv", "volumes.tsv", "qc.tsv", "report.html")
# Of a BIDS dataset: what the numbers in all its label maps mean.
LABEL_TABLE = "desc-trinat_dseg.tsv"


class Product(Enum):
    """A file of a case: its suffix, its ending, and its suffix where names are not BIDS."""

    LABELS = ("dseg", ".nii.gz")
    STATS = ("stats", ".stats", "aseg")
    ENTROPY = ("entropy", ".nii.gz")
    PROBABILITIES = ("probseg", ".nii.gz")
    PICTURE = ("qc", ".png")

    def __init__(self, suffix: str, ending: str, plain: str = "") -> None:
        self.suffix, self.ending, self.plain = suffix, ending, plain or suffix


# How the names of results end that may lie beside scans: ours, and the masks of others.
RESULT_ENDINGS = ("_dseg", "_probseg", "_mask", "_entropy")
# What BIDS has no names for, and nothing else.
BIDSIGNORE = (
    *("*.jsonl", *TABLES, "report/", "*.bak*"),
    *(f"*_{p.suffix}{p.ending}" for p in (Product.PICTURE, Product.ENTROPY, Product.STATS)),
    f"{WORK}/",
)

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
# The order of entities in a file name, by the BIDS schema.
_ORDER = (
    *("sub", "tpl", "cohort", "ses", "sample", "task", "tracksys", "acq", "nuc", "voi", "ce"),
    *("trc", "stain", "rec", "dir", "run", "mod", "echo", "flip", "inv", "mt", "part", "proc"),
    *("hemi", "space", "split", "recording", "chunk", "atlas", "seg", "scale", "res", "den"),
    *("label", "from", "to", "mode", "desc"),
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
    fill_nonfinite: bool = False
    trust_affine: Literal["sform", "qform", "header"] | None = None
    precision: Literal["auto", "float32", "bfloat16"] = "auto"

    def wants(self, product: Product) -> bool:
        """Label maps always; each other product by the setting of its name."""
        return bool(getattr(self, product.name.lower(), True))

    def digest(self) -> str:
        content = {**asdict(self), "version": version("trinat")}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class RunSettings:
    """Where and with what; devices and processes do not change what comes out."""

    out: Path
    model: Path
    model_sha256: str
    staging: Path  # on the disk of `out`; emptied at start and end
    output: OutputSettings = field(default_factory=OutputSettings)
    bids: bool = False
    threads: int | None = None
    batch: int | None = None
    allow_cpu: bool = False
    require_checksum: bool = False


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

    def labels(self, output: OutputSettings, scan: Path) -> Path:
        mgz = output.mgz and scan.suffix.lower() in (".mgz", ".mgh")
        return self.path(Product.LABELS, ".mgz" if mgz else "")

    def path(self, product: Product, ending: str = "") -> Path:
        folder, _, stem = self.id.rpartition("/")
        suffix = product.plain
        if self.bids:
            stem, suffix = bids_name(self.entities, space="orig", desc="trinat"), product.suffix
        return self.root / folder / f"{stem}_{suffix}{ending or product.ending}"


def bids_name(entities: Mapping[str, str], **added: str) -> str:
    """A derivative's name without its suffix: the source's entities and ours."""
    merged = {**entities, **added}
    rank = {entity: position for position, entity in enumerate(_ORDER)}
    # Unknown entities keep their order, before the ones that tell derivatives apart.
    ordered = sorted(merged, key=lambda entity: rank.get(entity, rank["hemi"]))
    return "_".join(f"{entity}-{merged[entity]}" for entity in ordered)


def safe_component(name: str) -> str:
    """One part of an output path: letters, digits, dot, dash, underscore; 64 at most.

    A name that had to change gets a piece of the original's hash, so that no two become one.
    """
    if _SAFE.fullmatch(name):
        return name
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", plain).lstrip(".-_")[:56].rstrip(".-_")
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:6]
    return f"{plain or 'scan'}-{digest}"
