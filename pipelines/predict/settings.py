"""What a run of trinat predict is asked for, and the files that it writes.

A `PredictRequest` is everything, checked and typed; of it `RunSettings` are what each worker needs
to know, and `OutputSettings` what changes results.

Imports no torch and no volumes: the command line has them at once.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

from natsort import natsorted

from trinat.pipelines.common.option import Option, as_tuple, split_devices
from trinat.pipelines.jobs.process import cpu_count
from trinat.pipelines.study.cases import Found, Work
from trinat.pipelines.study.naming import (
    CORRECTIONS,
    T1W,
    WORK,
    Product,
    bids_name,
)
from trinat.pipelines.study.ratings import RATINGS
from trinat.pipelines.study.record import EXCLUDED_GRADES
from trinat.segmentation.data.sources.base import safe_component
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.metrics.norms import Norms

# Parts of the help of trinat predict.
INPUT = "Input"
SEGMENTATION = "Segmentation"
FILES = "Output files"
MACHINE = "Machine"

# In the order in which they are computed.
_VIEWS = ("coronal", "axial", "sagittal")
TABLES = (
    *("summary.tsv", "volumes.tsv", "qc.tsv", "report.html"),
    *("parcels.tsv", "thickness.tsv", "callosum.tsv"),
)
# Of a run with --longitudinal: changes of persons, the volumes that they are of, their page.
CHANGES = (
    *("changes.tsv", "timepoints.tsv", "changes.html"),
    "thickness_changes.tsv",
)
# The page shows slices of the most doubtful scans; they are kept beside it.
SLICES = ".trinat-page"
_NOT_IN_BIDS = [product for product in Product if not product.is_in_bids]
# What BIDS has no names for, and nothing else.
BIDSIGNORE = (
    "*.jsonl",
    *TABLES,
    *CHANGES,
    RATINGS,
    CORRECTIONS,
    "report/",
    *(f"*_{product.suffix}{product.ending}" for product in _NOT_IN_BIDS),
    f"{WORK}/",
    f"{SLICES}/",
)
# A scan that takes longer than this for each pass of the networks hangs.
_LIMIT_OF_PASS_S = 7200.0


def split_views(text: str) -> tuple[str, ...]:
    """The views of "axial, coronal", in the order in which they are computed."""
    chosen = [word.strip() for word in text.split(",") if word.strip()]
    for view in chosen:
        if view not in _VIEWS:
            what = f"--views {text}: unknown view {view!r}"
            raise ConfigError(what, remedy=f"choose from {', '.join(_VIEWS)}")
    return tuple(view for view in _VIEWS if view in chosen)


# Settings that the hash of a result has always had. A new one is not added here.
_IN_EVERY_DIGEST = frozenset(
    (
        *("views", "precision", "mirror", "samples", "clean", "longitudinal"),
        *("format", "mgz", "stats", "picture", "brain_mask", "entropy"),
        *("probabilities", "dicom_seg", "page", "reference"),
        *("fill_nonfinite", "trust_affine"),
    )
)


@dataclass(frozen=True)
class OutputSettings:
    """What changes the results: any change here makes every case of a folder be done again.

    `views` are in the order in which they are computed; empty: all that the model has. The settings
    from `stats` to `page` write files: those `Product`s that name them as their `setting`. Label
    maps are always written, and what `fmriprep` asks for in BIDS datasets alone. `reference` is
    what pages compare volumes with: norms, or normal ranges (structure, lowest and highest mm³).
    """

    views: Annotated[
        tuple[str, ...],
        Option(
            "Views to use, such as coronal,axial. Default: all views of the model.",
            typed=str,
            default="",
            parse=split_views,
            panel=SEGMENTATION,
        ),
    ] = ()
    precision: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Option("Floating-point type that the networks compute in.", panel=SEGMENTATION),
    ] = "auto"
    mirror: Annotated[
        bool,
        Option("Average with the prediction of the mirrored scan.", panel=SEGMENTATION),
    ] = False
    samples: Annotated[
        int,
        Option(
            "Number of dropout samples to estimate uncertainty from.",
            names=("--uncertainty",),
            min=0,
            panel=SEGMENTATION,
        ),
    ] = 0
    clean: Annotated[
        bool,
        Option(
            "Keep the largest component of each structure and fill holes.",
            panel=SEGMENTATION,
        ),
    ] = False
    longitudinal: Annotated[
        bool,
        Option(
            "Segment the scans of each person together; write changes.tsv and changes.html.",
            panel=SEGMENTATION,
        ),
    ] = False
    format: Annotated[
        Literal["aseg", "index"],
        Option("Label numbers: aseg (FreeSurfer's) or index (0 to K).", panel=FILES),
    ] = "aseg"
    mgz: Annotated[
        bool, Option("Write .mgz label maps for .mgz scans.", panel=FILES)
    ] = False
    stats: Annotated[bool, Option("Write aseg.stats for each scan.", panel=FILES)] = (
        False
    )
    picture: Annotated[
        bool,
        Option(
            "Write a picture of each scan's labels.",
            names=("--pictures/--no-pictures",),
            panel=FILES,
        ),
    ] = True
    brain_mask: Annotated[
        bool, Option("Write a mask of what lies inside the skull.", panel=FILES)
    ] = True
    entropy: Annotated[bool, Option("Write entropy maps.", panel=FILES)] = False
    probabilities: Annotated[bool, Option("Write probability maps.", panel=FILES)] = (
        False
    )
    tissues: Annotated[
        bool,
        Option(
            "Write maps of grey matter, white matter and CSF: one of each probability, and one of "
            "the most probable (1, 2, 3).",
            panel=FILES,
        ),
    ] = False
    parcels: Annotated[
        bool,
        Option(
            "Divide the cortex into parcels: write label maps with them and parcels.tsv.",
            panel=FILES,
        ),
    ] = False
    thickness: Annotated[
        bool,
        Option(
            "With --parcels: measure the thickness of the cortex, write maps in mm and "
            "thickness.tsv.",
            panel=FILES,
        ),
    ] = False
    callosum: Annotated[
        bool,
        Option(
            "Write maps of the corpus callosum in five parts, and its volumes, area, length and "
            "thickness: callosum.tsv.",
            panel=FILES,
        ),
    ] = False
    fmriprep: Annotated[
        bool,
        Option(
            "Of a BIDS dataset, write also what this program takes by --derivatives: fmriprep.",
            names=("--for",),
            typed=Literal["fmriprep"] | None,
            parse=bool,
            panel=FILES,
        ),
    ] = False
    dicom_seg: Annotated[
        bool,
        Option("Write a DICOM SEG of each scan that was given as DICOM.", panel=FILES),
    ] = False
    page: Annotated[
        bool,
        Option("Write a page for each scan (HTML), to read and to print.", panel=FILES),
    ] = False
    reference: tuple[tuple[str, float, float], ...] | Norms = ()
    fill_nonfinite: Annotated[
        bool, Option("Replace NaN and infinite voxels by 0.", panel=INPUT)
    ] = False
    trust_affine: Annotated[
        Literal["sform", "qform", "header"] | None,
        Option("Affine to use if the header's two forms disagree.", panel=INPUT),
    ] = None

    @property
    def parcel_stats(self) -> bool:
        """Whether the volumes of parcels are written as FreeSurfer has them."""
        return self.stats and self.parcels

    @property
    def cortex_stats(self) -> bool:
        """Whether thickness, area and volume of parcels are written as FreeSurfer has them."""
        return self.stats and self.thickness

    def wants(self, product: Product) -> bool:
        """Whether a product is written: label maps always, others by their setting."""
        if product is Product.LABELS:
            return True
        return bool(getattr(self, product.setting))

    def digest(self) -> str:
        """A hash of trinat's version and of all settings, those that came later where they are set.

        So results from before a setting stay.
        """
        usual = asdict(OutputSettings())
        content = {
            name: value
            for name, value in asdict(self).items()
            if name in _IN_EVERY_DIGEST or value != usual[name]
        }
        content["version"] = version("trinat")
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Options of a run that each of its workers knows; of these `output` alone changes results.

    `timings` asks for the time that the run's processes spend, for its outcome.
    """

    output: OutputSettings = field(default_factory=OutputSettings)
    threads: Annotated[
        int | None,
        Option("Number of CPU threads.", min=1, envvar="TRINAT_THREADS", panel=MACHINE),
    ] = None
    batch: Annotated[
        int | None, Option("Number of slices per batch.", min=1, panel=MACHINE)
    ] = None
    allow_cpu: Annotated[
        bool,
        Option("Continue on the CPU if the GPU runs out of memory.", panel=MACHINE),
    ] = False
    require_checksum: Annotated[
        bool,
        Option(
            "Refuse scans in formats without a checksum (.nii, .mgh, .hdr).",
            panel=INPUT,
        ),
    ] = False
    timings: Annotated[bool, Option("Print where wall and processor time went.")] = (
        False
    )


@dataclass(frozen=True)
class RunSettings(WorkerOptions):
    """Everything that a worker needs to know.

    `out` is the output folder, `model` a model's folder. Outputs wait in `staging`, which is on the
    disk of `out` and emptied at start and end. With `bids` names follow BIDS. `parcels_sha256` is
    that of the model's own model of parcels, where these are asked for, and `stripper_sha256` that
    of the model which strips whole heads, if the model has one.
    """

    out: Path
    model: Path
    model_sha256: str
    staging: Path
    bids: bool = False
    parcels_sha256: str = ""
    stripper_sha256: str = ""

    def digest(self, case: Work) -> str:
        """A hash of all that results of a case depend on, besides scan and model."""
        further: list[Any] = []
        if self.parcels_sha256:
            further.append(self.parcels_sha256)
        if self.stripper_sha256:
            further.append(self.stripper_sha256)
        if case.facts is not None:
            further.append(asdict(case.facts))
        digest = self.output.digest()
        if not further:
            return digest
        text = json.dumps([digest, *further], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


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
    - `people` is a table of participants, for `output.reference` if these are norms.
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
        bool,
        Option("Replace files that trinat did not write, or that were changed since."),
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
    people: Annotated[
        Path | None,
        Option(
            "Table with age and sex of each person, for the norms of --reference. Default: "
            "participants.tsv of a BIDS dataset.",
            names=("--participants",),
            is_file=True,
            panel=INPUT,
        ),
    ] = None
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

    def check(self) -> None:
        """ConfigError for options that do not go together, or not without one another."""
        reads_persons = isinstance(self.output.reference, Norms)
        if self.output.reference and not self.output.page:
            raise ConfigError("--reference is for pages", remedy="give --page too")
        if self.people is not None and not reads_persons:
            raise ConfigError(
                "--participants is for norms",
                remedy="give --reference with a table of trinat norms, or leave it out",
            )
        if self.strict and not (self.output.longitudinal or reads_persons):
            raise ConfigError(
                "--strict is for --longitudinal and norms, which read tables of persons",
                remedy="leave it out",
            )
        if self.output.thickness and not self.output.parcels:
            raise ConfigError(
                "--thickness measures parcels of the cortex", remedy="add --parcels"
            )
        if not self.output.longitudinal:
            return
        if self.output.samples:
            raise ConfigError(
                "--longitudinal has no --uncertainty", remedy="leave one of them out"
            )
        if self.sessions:
            raise ConfigError(
                "--longitudinal takes all sessions of a person together",
                remedy="leave --session_label out",
            )

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
        from trinat.segmentation.models.zoo import (
            MODEL_FILE,
            find_parcels_folder,
            stripper_of,
        )

        options = {
            option.name: getattr(self, option.name) for option in fields(WorkerOptions)
        }
        # Another engine knows its own machines.
        if self.threads is None and self.engine is None:
            options["threads"] = max(1, cpu_count() // len(self.worker_devices))
        digest = sha256_of(model / MODEL_FILE)
        of_parcels = ""
        if self.output.parcels:
            of_parcels = sha256_of(find_parcels_folder(model) / MODEL_FILE)
        of_stripper = ""
        stripper = stripper_of(model)
        if stripper is not None:
            of_stripper = sha256_of(stripper / MODEL_FILE)
        return RunSettings(
            self.out,
            model,
            digest,
            staging,
            bids,
            of_parcels,
            of_stripper,
            **options,
        )

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
            if product.for_fmriprep and not self.bids:
                continue
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
            stem = bids_name(self.entities, **product.entities(self.entities))
            suffix = product.suffix
        return self.root / folder / f"{stem}_{suffix}{ending or product.ending}"

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()
