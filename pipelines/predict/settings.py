"""Request and settings of a run of trinat predict, and the names of the files that it writes.

A `PredictRequest` is the whole request, checked and typed. Its `RunSettings` are passed to each
worker, and its `OutputSettings` determine the results.

Imports no torch and no volumes, so that the command line starts quickly.
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

from trinat.pipelines.common.extras import require_extra
from trinat.pipelines.common.option import Option, as_tuple, split_devices
from trinat.pipelines.jobs.process import cpu_count
from trinat.pipelines.study.cases import Case, Found
from trinat.pipelines.study.naming import (
    CORRECTIONS,
    T1W,
    WORK,
    Product,
    bids_name,
)
from trinat.pipelines.study.ratings import RATINGS
from trinat.pipelines.study.record import EXCLUDED_GRADES, FURTHER
from trinat.segmentation.data.sources.base import safe_component
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.metrics.norms import Norms

# Sections of the help of trinat predict.
INPUT = "Input"
SEGMENTATION = "Segmentation"
FILES = "Output files"
MACHINE = "Machine"

# Views in the order of computation.
_VIEWS = ("coronal", "axial", "sagittal")
TABLES = (
    *("summary.tsv", "volumes.tsv", "qc.tsv", "report.html"),
    "parcels.tsv",
    *(f"{name}.tsv" for name in FURTHER),
)


def changes_table(name: str) -> str:
    """Return the name of the table of changes of an output: thickness, callosum or lesions."""
    return f"{name}_changes.tsv"


# Table of single lesions over time; `lesions_changes.tsv` has their volumes.
LESION_CHANGES = "lesions_over_time.tsv"
# Files of a run with --longitudinal: changes, their volumes, their page, and changes of further
# outputs.
CHANGES = (
    *("changes.tsv", "timepoints.tsv", "changes.html"),
    *map(changes_table, FURTHER),
    LESION_CHANGES,
)
# Folder next to the page, with its slices of the most doubtful scans.
SLICES = ".trinat-page"
_NOT_IN_BIDS = [product for product in Product if not product.is_in_bids]
# Exactly the files for which BIDS has no names.
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
# Seconds for each pass of the networks; a scan that takes longer counts as hung.
_LIMIT_OF_PASS_S = 7200.0


def split_views(text: str) -> tuple[str, ...]:
    """Parse a text such as "axial, coronal" into views, sorted into the order of computation.

    ConfigError for an unknown view.
    """
    chosen = [word.strip() for word in text.split(",") if word.strip()]
    for view in chosen:
        if view not in _VIEWS:
            what = f"--views {text}: unknown view {view!r}"
            raise ConfigError(what, remedy=f"choose from {', '.join(_VIEWS)}")
    return tuple(view for view in _VIEWS if view in chosen)


@dataclass(frozen=True)
class OutputSettings:
    """Settings that affect the results: after any change, every case of a folder is done again.

    `views` are in the order of computation; empty: all views of the model. The settings from
    `stats` to `page` write files: each is the `setting` of some `Product`. Label maps are always
    written, and the files of `fmriprep` only in BIDS datasets. Volumes on pages are compared with
    the norms (centiles by age and sex) in `reference`; None for no comparison.
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
        Literal["auto", "float32", "bfloat16", "float16", "int8"],
        Option(
            "Number type that the networks compute in; int8 needs the extra fast-cpu.",
            panel=SEGMENTATION,
        ),
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
            "Segment the scans of each participant together; write changes.tsv and changes.html.",
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
    lesions: Annotated[
        bool,
        Option(
            "Find lesions of white matter: write a map and a list of them for each scan, and "
            "lesions.tsv.",
            panel=FILES,
        ),
    ] = False
    smallest_lesion_mm3: Annotated[
        float,
        Option(
            "With --lesions: leave out lesions smaller than this volume in mm³.",
            names=("--smallest-lesion",),
            min=0,
            panel=FILES,
        ),
    ] = 3.0
    fmriprep: Annotated[
        bool,
        Option(
            "Also write derivatives for this program (fmriprep), from a BIDS dataset.",
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
    reference: Norms | None = None
    fill_nonfinite: Annotated[
        bool, Option("Replace NaN and infinite voxels by 0.", panel=INPUT)
    ] = False
    trust_affine: Annotated[
        Literal["sform", "qform", "header"] | None,
        Option("Affine to use if the header's two forms disagree.", panel=INPUT),
    ] = None

    @property
    def parcel_stats(self) -> bool:
        """True if the volumes of parcels are written in FreeSurfer's format."""
        return self.stats and self.parcels

    @property
    def cortex_stats(self) -> bool:
        """True if thickness, area and volume of parcels are written in FreeSurfer's format."""
        return self.stats and self.thickness

    def wants(self, product: Product) -> bool:
        """Return True if a kind of output file is written. Label maps are always written."""
        if product is Product.LABELS:
            return True
        return bool(getattr(self, product.setting))


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Options of a run that each worker receives; only `output` affects the results.

    With `timings`, the counts of the run come with the time that its processes spend.
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
    """Settings of a worker.

    - `out` is the output folder, `model` the folder of a model, `model_sha256` the hash of the
      model.
    - Outputs are first written to `staging`, which is on the disk of `out` and emptied at start and
      end.
    - With `bids`, names of files follow BIDS.
    - `further_models` has the hashes of the further models that results depend on: `parcels`, which
      divides the cortex, `stripper`, which strips whole heads, and `lesions`.
    """

    out: Path
    model: Path
    model_sha256: str
    staging: Path
    bids: bool = False
    further_models: Mapping[str, str] = field(default_factory=dict)

    def digest(self, case: Case) -> str:
        """Return a hash of everything that results of a case depend on, except scan and model.

        These are trinat's version, the output settings, further models, and the age and sex of the
        participant if volumes are compared with norms. Settings with their default value are left
        out, so that a new setting does not make existing results outdated.
        """
        defaults = asdict(type(self.output)())
        changed = {
            name: value
            for name, value in asdict(self.output).items()
            if value != defaults[name]
        }
        content = [
            version("trinat"),
            changed,
            self.further_models,
            None if case.facts is None else asdict(case.facts),
        ]
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


# Returns an `Engine`; typed as Any because the engine module is slow to import for a command line
# that only shows its help.
EngineMaker = Callable[[RunSettings], Any]


@dataclass(frozen=True)
class Shard:
    """Part K of N of a list of cases; K counts from 1.

    The shards of a list are disjoint, together contain all cases, and are the same on every
    machine.
    """

    part: int
    of: int

    @classmethod
    def parse(cls, text: str | None) -> Shard | None:
        """Parse "K/N"; return None for None or an empty text. ConfigError for an invalid part."""
        if not text:
            return None
        part, slash, of = text.partition("/")
        are_numbers = bool(slash) and part.isdecimal() and of.isdecimal()
        if not are_numbers or not 1 <= int(part) <= int(of):
            raise ConfigError(
                f"--shard {text}: not a valid shard",
                remedy="give K/N, as 1/10 to 10/10",
            )
        return cls(int(part), int(of))

    def __str__(self) -> str:
        """Return the suffix of the names of this shard's ledger, lock and staging folder."""
        return f".shard-{self.part}-of-{self.of}"

    @classmethod
    def of_part(cls, text: str) -> Shard | None:
        """Parse the suffix of a shard's files, such as .shard-1-of-10; None for any other text."""
        match = re.fullmatch(r"\.shard-(\d+)-of-(\d+)", text)
        if match is None:
            return None
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True)
class PredictRequest(WorkerOptions):
    """Complete request of a run.

    - `model` is a name or a folder, `devices` are one or more device names.
    - `timeout_s` is for one scan; 0 is no limit, None the default of `limit_s`.
    - `participants` and `sessions` select scans of a BIDS dataset; empty: all. `suffix` is the BIDS
      suffix of its scans.
    - `participants_table` has the age and sex of participants. They are needed to compare volumes
      with the norms `output.reference`. Default: participants.tsv of a BIDS dataset.
    - `sessions_table` assigns scans to participants, for `output.longitudinal`. No change is
      computed from scans and structures whose grade is in `excluded`.
    - `found` are cases that were found already; `inputs` are then not used.
    - `engine` creates an engine from the settings, in place of processes on this machine.
    """

    inputs: Annotated[
        Sequence[str],
        Option(
            "Scans, folders, glob patterns, lists (.txt, .list), DICOM files or zips, a BIDS "
            "dataset or a SUBJECTS_DIR.",
            is_argument=True,
            typed=list[str] | None,
            parse=as_tuple,
        ),
    ]
    out: Annotated[Path, Option("Output folder.", names=("--out", "-o"))]
    model: Annotated[
        str,
        Option(
            "Name of a shipped model (see trinat models), or a model folder. Default: fast.",
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
    participants_table: Annotated[
        Path | None,
        Option(
            "Table with age and sex of each participant, for the norms of --reference. Default: "
            "participants.tsv of a BIDS dataset.",
            names=("--participants",),
            is_file=True,
            panel=INPUT,
        ),
    ] = None
    sessions_table: Annotated[
        Path | None,
        Option(
            "Table (.tsv or .csv) with columns scan, participant and date, for --longitudinal. "
            "Default: from BIDS, or from names such as OAS1_0001_MR2.",
            names=("--sessions",),
            is_file=True,
            panel=INPUT,
        ),
    ] = None
    strict: Annotated[
        bool,
        Option(
            "Stop if anything in a participants table is not understood (`trinat participants "
            "TABLE`).",
            panel=INPUT,
        ),
    ] = False
    excluded: tuple[str, ...] = EXCLUDED_GRADES
    found: Found | None = None
    engine: EngineMaker | None = None

    @property
    def part(self) -> str:
        """Name of the part of the work that this request does; "" if it does all of it.

        It is the suffix of the part's ledger and lock. A part is a shard, or a selection of
        participants or sessions. Jobs of one participant each, as BIDS Apps are run, can thus share
        an output folder.
        """
        if self.shard is not None:
            return str(self.shard)
        parts = []
        if self.participants:
            parts.append("sub-" + _strip_prefix(self.participants, "sub-"))
        if self.sessions:
            parts.append("ses-" + _strip_prefix(self.sessions, "ses-"))
        if not parts:
            return ""
        return "." + safe_component("_".join(parts))

    def check(self) -> None:
        """Raise ConfigError for options that contradict each other, or lack what they require."""
        reads_participants = self.output.reference is not None
        if reads_participants and not self.output.page:
            raise ConfigError(
                "--reference has no effect without --page", remedy="give --page too"
            )
        if self.participants_table is not None and not reads_participants:
            raise ConfigError(
                "--participants has no effect without --reference",
                remedy="give --reference with a table of trinat norms, or leave it out",
            )
        if self.strict and not (self.output.longitudinal or reads_participants):
            raise ConfigError(
                "--strict is for --longitudinal and norms, which read participants tables",
                remedy="leave it out",
            )
        if self.output.samples < 0:
            raise ConfigError(
                f"{self.output.samples} samples (--uncertainty)",
                remedy="give 0 or more",
            )
        if not self.output.smallest_lesion_mm3 >= 0:
            raise ConfigError(
                f"lesions of {self.output.smallest_lesion_mm3} mm³ (--smallest-lesion)",
                remedy="give 0 or more",
            )
        if self.output.dicom_seg:
            require_extra("dicom", "pydicom", "highdicom")
        if self.output.thickness and not self.output.parcels:
            raise ConfigError("--thickness requires --parcels", remedy="add --parcels")
        if self.output.samples and self.output.precision == "int8":
            raise ConfigError(
                "--precision int8 cannot be combined with --uncertainty",
                remedy="use another precision",
            )
        if not self.output.longitudinal:
            return
        if self.output.samples:
            raise ConfigError(
                "--longitudinal cannot be combined with --uncertainty",
                remedy="leave one of them out",
            )
        if self.sessions:
            raise ConfigError(
                "--longitudinal cannot be combined with --session_label: it needs all sessions",
                remedy="leave --session_label out",
            )

    def settings(
        self,
        model: Path,
        staging: Path,
        *,
        bids: bool = False,
    ) -> RunSettings:
        """Return the settings of each worker.

        `model` is the model's folder. Outputs are first written to `staging`. With `bids`, names of
        files follow BIDS.
        """
        from trinat.segmentation.models.zoo import (
            MODEL_FILE,
            find_lesions_file,
            find_parcels_folder,
            stripper_of,
        )

        options = {
            option.name: getattr(self, option.name) for option in fields(WorkerOptions)
        }
        # A custom engine chooses the number of threads for its own machines.
        if self.threads is None and self.engine is None:
            options["threads"] = max(1, cpu_count() // len(self.worker_devices))
        digest = sha256_of(model / MODEL_FILE)
        further = {}
        if self.output.parcels:
            further["parcels"] = sha256_of(find_parcels_folder(model) / MODEL_FILE)
        stripper = stripper_of(model)
        if stripper is not None:
            further["stripper"] = sha256_of(stripper / MODEL_FILE)
        if self.output.lesions:
            further["lesions"] = sha256_of(find_lesions_file(model))
        return RunSettings(self.out, model, digest, staging, bids, further, **options)

    @property
    def limit_s(self) -> float:
        """Time limit for a scan, in seconds; by default two hours for each pass of the networks."""
        if self.timeout_s is not None:
            return self.timeout_s
        passes = 1 + self.output.samples
        if self.output.mirror:
            passes *= 2
        return _LIMIT_OF_PASS_S * passes

    @property
    def worker_devices(self) -> list[str]:
        """Device of each worker process, such as "cpu" or "cuda:0".

        There are at least `workers` processes, and one for each of `devices`; the devices are
        assigned in turn.
        """
        count = max(self.workers, len(self.devices))
        return [self.devices[number % len(self.devices)] for number in range(count)]


def _strip_prefix(labels: Iterable[str], prefix: str) -> str:
    """Join labels such as sub-01 without their prefix, by hyphens: unique, in natural order."""
    short = {label.removeprefix(prefix) for label in labels}
    return "-".join(natsorted(short))


def slices_of(case: str) -> str:
    """Return the path of the file with a scan's slices for the page of the run.

    It is relative to the output folder. The file exists only while the scan is among the most
    doubtful. `case` is the id of its case.
    """
    return f"{SLICES}/{safe_component(case)}.json"


@dataclass(frozen=True)
class CaseNames:
    """Paths of the output files of a scan, which are all in one folder below `root`.

    `id` is the id of the case, folder/stem. `entities` are the BIDS entities of its scan, used only
    with `bids`.
    """

    root: Path
    id: str
    entities: Mapping[str, str]
    bids: bool

    def all(self, output: OutputSettings, scan: Path) -> list[Path]:
        """Return the paths of all output files that a scan gets with these settings.

        JSON sidecars are not included. `scan` is the path of the scan, whose format that of the
        label map may follow.
        """
        others = [product for product in Product if product is not Product.LABELS]
        wanted = [product for product in others if output.wants(product)]
        paths = [self.path(product) for product in wanted]
        return [self.labels(output, scan), *paths]

    def every(self) -> list[str]:
        """Return the paths of all files that any run may write for the scan, relative to `root`."""
        paths = []
        for product in Product:
            if product.for_fmriprep and not self.bids:
                continue
            paths.append(self.path(product))
            paths += [self.path(product, ending) for ending in product.further]
        return [self._relative(path) for path in paths]

    def labels_in(self, outputs: Mapping[str, str]) -> set[tuple[str, str]]:
        """Return the label maps among the output files of a scan, as pairs of path and SHA-256.

        `outputs` maps the paths of output files, relative to `root`, to their SHA-256.
        """
        names = {
            self._relative(self.path(Product.LABELS)),
            self._relative(self.path(Product.LABELS, ".mgz")),
        }
        return {(name, digest) for name, digest in outputs.items() if name in names}

    def labels(self, output: OutputSettings, scan: Path) -> Path:
        """Return the path of the scan's label map: .mgz for such scans with the setting `mgz`.

        `scan` is the path of the scan. Other label maps are .nii.gz.
        """
        is_mgz = output.mgz and scan.suffix.lower() in (".mgz", ".mgh")
        return self.path(Product.LABELS, ".mgz" if is_mgz else "")

    def path(self, product: Product, ending: str = "") -> Path:
        """Return the path of one kind of output file; `ending` replaces its default ending."""
        folder, _, stem = self.id.rpartition("/")
        suffix = product.plain
        if self.bids:
            stem = bids_name(self.entities, **product.entities(self.entities))
            suffix = product.suffix
        return self.root / folder / f"{stem}_{suffix}{ending or product.ending}"

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()
