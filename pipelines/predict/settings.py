"""What a run is told: the part that decides what its outputs are, and the part that does not."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Literal

__all__ = ["OutputSettings", "RunSettings"]


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
