"""A request: everything that a run of trinat predict is asked for, checked and typed."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from natsort import natsorted

from trinat.pipelines.common.option import Option, as_tuple, split_devices
from trinat.pipelines.jobs.process import cpu_count
from trinat.pipelines.predict.entry import EXCLUDED_GRADES
from trinat.pipelines.predict.settings import INPUT, MACHINE, RunSettings, WorkerOptions
from trinat.pipelines.scans.cases import Found
from trinat.pipelines.scans.naming import T1W
from trinat.segmentation.data.sources.base import safe_component
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.io.files import sha256_of

# A scan that takes longer than this for each pass of the networks hangs.
_LIMIT_OF_PASS_S = 7200.0

# Returns an `Engine`, whose module takes too long to import for a command line that shows its help.
EngineMaker = Callable[[RunSettings], Any]


@dataclass(frozen=True)
class Shard:
    """Part K of N of a list of cases, 1 to N; the same cases wherever it is computed.

    Shards of one list have no case in common, and have all cases together.
    """

    part: int
    of: int

    @classmethod
    def parse(cls, text: str | None) -> Shard | None:
        """The shard of "K/N", none of None; ConfigError where that is not a part."""
        if not text:
            return None
        part, slash, of = text.partition("/")
        are_numbers = bool(slash) and part.isdecimal() and of.isdecimal()
        if not are_numbers or not 1 <= int(part) <= int(of):
            raise ConfigError(
                f"--shard {text}: not a part", remedy="give K/N, as 1/10 to 10/10"
            )
        return cls(int(part), int(of))

    def __str__(self) -> str:
        """What the names of its ledger, lock and staging folder have in addition."""
        return f".shard-{self.part}-of-{self.of}"

    @classmethod
    def of_part(cls, text: str) -> Shard | None:
        """The shard whose `str` is `text`; None for the name of another part."""
        match = re.fullmatch(r"\.shard-(\d+)-of-(\d+)", text)
        if match is None:
            return None
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True)
class PredictRequest(WorkerOptions):
    """Everything that a run is asked for.

    - `model` is a name or a folder, `devices` are one or more device names.
    - `timeout_s` is for one scan; 0 is no limit, None the default of `limit_s`.
    - `participants` and `sessions` select from a BIDS dataset; empty: all. `suffix` is BIDS's word
      for the kind of its scans.
    - `persons` is a table that says whose each scan is, for `output.longitudinal`. Results of the
      `excluded` grades are in no change.
    - `found` are cases that were found already, in place of `inputs`.
    - `engine` makes another engine than processes on this machine.
    """

    inputs: Annotated[
        Sequence[str],
        Option(
            "Scans, folders, glob patterns, lists (.txt), DICOM files or zips, a BIDS dataset "
            "or a SUBJECTS_DIR.",
            is_argument=True,
            typed=list[str] | None,
            parse=as_tuple,
        ),
    ]
    out: Annotated[Path, Option("Output folder.", names=("--out", "-o"))]
    model: Annotated[
        str,
        Option(
            "Name of a shipped model (see trinat models), or a model folder. "
            "Default: quicknat on GPUs once it is shipped, otherwise fast.",
            typed=str,
            default="",
        ),
    ] = "fast"
    devices: Annotated[
        tuple[str, ...],
        Option(
            "auto, cpu, cuda, or several GPUs: cuda:0,cuda:1 or cuda:0,1.",
            names=("--device",),
            typed=str,
            default="auto",
            parse=split_devices,
            envvar="TRINAT_DEVICE",
            panel=MACHINE,
        ),
    ] = ("auto",)
    workers: Annotated[
        int,
        Option("Number of processes; each loads the model.", min=1, panel=MACHINE),
    ] = 1
    timeout_s: Annotated[
        float | None,
        Option(
            "Time limit per scan, in seconds; 0: none. Default: two hours for each pass of the "
            "networks.",
            names=("--timeout",),
            min=0,
            panel=MACHINE,
        ),
    ] = None
    overwrite: Annotated[
        bool, Option("Replace files that trinat did not write; keep a copy (.bak).")
    ] = False
    shard: Annotated[
        Shard | None,
        Option(
            "Process part K of N of the scans, as a task of scripts/slurm/array.sh does.",
            typed=str | None,
            parse=Shard.parse,
            metavar="K/N",
            panel=MACHINE,
        ),
    ] = None
    participants: Collection[str] = ()
    sessions: Collection[str] = ()
    suffix: Annotated[
        str,
        Option(
            "Suffix of the scans to take of a BIDS dataset, such as T2w, FLAIR or PDw. Scans "
            "other than T1w need a model such as any.",
            panel=INPUT,
        ),
    ] = T1W
    persons: Annotated[
        Path | None,
        Option(
            "Table (.tsv or .csv) with columns scan, person and date, for --longitudinal. "
            "Default: from BIDS, or from names such as OAS1_0001_MR2.",
            is_file=True,
            panel=INPUT,
        ),
    ] = None
    strict: Annotated[
        bool,
        Option(
            "Stop if anything in a table of persons is not understood (`trinat people TABLE`).",
            panel=INPUT,
        ),
    ] = False
    excluded: tuple[str, ...] = EXCLUDED_GRADES
    found: Found | None = None
    engine: EngineMaker | None = None

    @property
    def part(self) -> str:
        """The name of this part of the work, in the names of its ledger and lock; "" for all.

        Jobs of one participant each, as BIDS Apps are run, may share an output folder so.
        """
        if self.shard is not None:
            return str(self.shard)
        parts = []
        if self.participants:
            parts.append("sub-" + _joined(self.participants, "sub-"))
        if self.sessions:
            parts.append("ses-" + _joined(self.sessions, "ses-"))
        if not parts:
            return ""
        return "." + safe_component("_".join(parts))

    def settings(
        self,
        model: Path,
        staging: Path,
        *,
        bids: bool = False,
    ) -> RunSettings:
        """What each worker needs to know.

        `model` is the model's folder; outputs wait in `staging`; with `bids` names follow BIDS.
        """
        from trinat.segmentation.models.zoo import MODEL_FILE

        options = {
            option.name: getattr(self, option.name) for option in fields(WorkerOptions)
        }
        # Another engine knows its own machines.
        if self.threads is None and self.engine is None:
            options["threads"] = max(1, cpu_count() // len(self.worker_devices))
        digest = sha256_of(model / MODEL_FILE)
        return RunSettings(self.out, model, digest, staging, bids, **options)

    @property
    def limit_s(self) -> float:
        """Time limit for a scan, in seconds: two hours for each pass of the networks."""
        if self.timeout_s is not None:
            return self.timeout_s
        passes = 1 + self.output.samples
        if self.output.mirror:
            passes *= 2
        return _LIMIT_OF_PASS_S * passes

    @property
    def worker_devices(self) -> list[str]:
        """A device for each process: GPUs in turn, and on the CPU as many as there are workers."""
        count = max(self.workers, len(self.devices))
        return [self.devices[number % len(self.devices)] for number in range(count)]


def _joined(labels: Iterable[str], prefix: str) -> str:
    """Labels such as 01 or sub-01 without their prefix, each once and in natural order."""
    short = {label.removeprefix(prefix) for label in labels}
    return "-".join(natsorted(short))
