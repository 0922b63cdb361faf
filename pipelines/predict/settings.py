"""Settings of a run that each of its workers needs to know.

Imports no torch and no volumes: the command line has them at once.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from trinat.pipelines.common.naming import Product


@dataclass(frozen=True)
class OutputSettings:
    """What changes the results: any change here makes every case of a folder be done again.

    - `views` in the order in which they are computed; empty: all that the model has.
    - `samples` is the number of dropout samples to estimate uncertainty from.
    - `longitudinal` segments the scans of a person together.
    - `mgz` writes label maps as .mgz where the scan is one.
    - The settings `stats`, `picture`, `brain_mask`, `entropy`, `probabilities`, `dicom_seg` and
      `page` each write the `Product` of the same name.
    - `reference` are the normal ranges that pages show: structure, lowest and highest mm³.
    """

    views: tuple[str, ...] = ()
    mirror: bool = False
    samples: int = 0
    clean: bool = False
    format: Literal["aseg", "index"] = "aseg"
    mgz: bool = False
    stats: bool = False
    picture: bool = True
    brain_mask: bool = True
    entropy: bool = False
    probabilities: bool = False
    dicom_seg: bool = False
    page: bool = False
    reference: tuple[tuple[str, float, float], ...] = ()
    fill_nonfinite: bool = False
    trust_affine: Literal["sform", "qform", "header"] | None = None
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    longitudinal: bool = False

    def wants(self, product: Product) -> bool:
        """Whether a product is written: label maps always, others by the setting of its name."""
        if product is Product.LABELS:
            return True
        return bool(getattr(self, product.name.lower()))

    def digest(self) -> str:
        """A hash of all settings and of trinat's version."""
        content = asdict(self)
        content["version"] = version("trinat")
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Options of a run that each of its workers knows; of these `output` alone changes results.

    `timings` asks for the time that the run's processes spend, for its outcome.
    """

    output: OutputSettings = field(default_factory=OutputSettings)
    threads: int | None = None
    batch: int | None = None
    allow_cpu: bool = False
    require_checksum: bool = False
    timings: bool = False


@dataclass(frozen=True)
class RunSettings(WorkerOptions):
    """Everything that a worker needs to know.

    `out` is the output folder, `model` a model's folder. Outputs wait in `staging`, which is on the
    disk of `out` and emptied at start and end. With `bids` names follow BIDS.
    """

    out: Path
    model: Path
    model_sha256: str
    staging: Path
    bids: bool = False
