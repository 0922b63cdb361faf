"""Names of results: suffixes and BIDS names.

External names (of files, folders, subjects) enter output paths only through `safe_component` in
`segmentation/data/sources/base.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache

# Order of entities in a file name, by the schema of BIDS 1.11.
_ORDER = (
    "sub", "tpl", "ses", "cohort", "sample", "task", "tracksys", "acq", "nuc", "voi", "ce", "trc",
    "stain", "rec", "dir", "run", "mod", "echo", "flip", "inv", "mt", "part", "proc", "hemi",
    "space", "split", "recording", "chunk", "atlas", "seg", "scale", "res", "den", "label", "from",
    "to", "mode", "desc",
)  # fmt: skip


@dataclass(frozen=True)
class _Spec:
    """Definition of a member of `Product`, which explains the fields."""

    suffix: str
    ending: str
    plain: str = ""
    seg: str = ""
    label: str = ""
    desc: str = "trinat"
    further: tuple[str, ...] = ()
    is_in_bids: bool = True
    download: str = ""
    setting: str = ""
    for_fmriprep: bool = False


def _tissue(label: str) -> _Spec:
    """Return how the probability map of a tissue (GM, WM or CSF) is named and requested."""
    return _Spec(
        "probseg",
        ".nii.gz",
        plain=f"{label}_probseg",
        seg="tissues",
        label=label,
        desc="",
        further=(".json",),
        setting="tissues",
    )


def _for_fmriprep(suffix: str, *, label: str = "", desc: str = "") -> _Spec:
    """Return how a file that fMRIPrep looks for in its derivatives is named and requested."""
    return _Spec(
        suffix,
        ".nii.gz",
        label=label,
        desc=desc,
        further=(".json",),
        setting="fmriprep",
        for_fmriprep=True,
    )


class Product(Enum):
    """A kind of output file of a scan, such as its label map or its brain mask.

    It determines names, .bidsignore, deletion and downloads.

    - `suffix` is the BIDS suffix of its name, such as dseg; `ending` is that of the file, such as
      .nii.gz. `own_entities` are the entities `seg`, `label` and `desc` that its BIDS name has.
      `plain` is the suffix of names that do not follow BIDS; by default `suffix`.
    - `further` are other possible endings: of the same file in another format, or of its JSON
      sidecar.
    - `is_in_bids` is True if BIDS has a name for it; else .bidsignore lists it.
    - `download` is its name for clients of the service; "" if the service does not offer it.
    - `setting` is the field of `OutputSettings` that requests it; by default its own name in lower
      case.
    - `for_fmriprep` is True for files that only fMRIPrep looks for: they exist in BIDS datasets
      only, without the entity `space`.

    A product is written by the function for it in `CaseFiles.write_all`.
    """

    LABELS = _Spec(
        "dseg",
        ".nii.gz",
        further=(".mgz", ".json"),
        download="labels.nii.gz",
    )
    BRAIN_MASK = _Spec(
        "mask",
        ".nii.gz",
        plain="brainmask",
        desc="brain",
        further=(".json",),
        download="brainmask.nii.gz",
    )
    DICOM_SEG = _Spec("seg", ".dcm", download="seg.dcm")
    PROBABILITIES = _Spec("probseg", ".nii.gz", further=(".json",))
    TISSUES = _Spec(
        "dseg",
        ".nii.gz",
        plain="tissues",
        seg="tissues",
        desc="",
        further=(".json",),
    )
    PARCELS = _Spec(
        "dseg",
        ".nii.gz",
        plain="parcels",
        seg="parcels",
        desc="",
        further=(".json",),
        download="parcels.nii.gz",
    )
    CALLOSUM = _Spec(
        "dseg",
        ".nii.gz",
        plain="callosum",
        seg="callosum",
        desc="",
        further=(".json",),
    )
    LESIONS = _Spec(
        "mask", ".nii.gz", plain="lesions", label="lesion", desc="", further=(".json",)
    )
    LESION_LIST = _Spec("lesions", ".tsv", is_in_bids=False, setting="lesions")
    GREY_MATTER = _tissue("GM")
    WHITE_MATTER = _tissue("WM")
    FLUID = _tissue("CSF")
    FMRIPREP_MASK = _for_fmriprep("mask", desc="brain")
    FMRIPREP_TISSUES = _for_fmriprep("dseg")
    FMRIPREP_GREY_MATTER = _for_fmriprep("probseg", label="GM")
    FMRIPREP_WHITE_MATTER = _for_fmriprep("probseg", label="WM")
    FMRIPREP_FLUID = _for_fmriprep("probseg", label="CSF")
    PICTURE = _Spec("qc", ".png", is_in_bids=False, download="qc.png")
    ENTROPY = _Spec("entropy", ".nii.gz", is_in_bids=False)
    STATS = _Spec("stats", ".stats", plain="aseg", is_in_bids=False)
    PARCEL_STATS = _Spec("parcelstats", ".stats", plain="parcels", is_in_bids=False)
    THICKNESS = _Spec("thickness", ".nii.gz", is_in_bids=False)
    LEFT_CORTEX_STATS = _Spec(
        "lhaparc", ".stats", plain="lh.aparc", is_in_bids=False, setting="cortex_stats"
    )
    RIGHT_CORTEX_STATS = _Spec(
        "rhaparc", ".stats", plain="rh.aparc", is_in_bids=False, setting="cortex_stats"
    )
    PAGE = _Spec("page", ".html", is_in_bids=False, download="page.html")

    def __init__(self, spec: _Spec) -> None:
        self.suffix = spec.suffix
        self.ending = spec.ending
        self.plain = spec.plain or spec.suffix
        own = {"seg": spec.seg, "label": spec.label, "desc": spec.desc}
        self.own_entities = {entity: value for entity, value in own.items() if value}
        self.further = spec.further
        self.is_in_bids = spec.is_in_bids
        self.download = spec.download
        self.setting = spec.setting or self.name.lower()
        self.for_fmriprep = spec.for_fmriprep

    def entities(self, of_scan: Mapping[str, str]) -> dict[str, str]:
        """Return the BIDS entities by which the name of this output differs from that of the scan.

        For example {"space": "orig", "desc": "trinat"} for a label map. `of_scan` are the entities
        of the scan.
        """
        if self.for_fmriprep:
            return self.own_entities
        return {"space": of_scan.get("space", "orig"), **self.own_entities}

    def among(self, names: Collection[str]) -> str | None:
        """Return the first of some file names that is a name of this output; None without one.

        Sidecars (.json) beside the file itself do not count.
        """
        for pattern in _patterns_of(self):
            found = next((name for name in names if pattern.search(name)), None)
            if found is not None:
                return found
        return None


@cache
def _patterns_of(product: Product) -> tuple[re.Pattern[str], ...]:
    """Return the patterns of the names of an output, in BIDS datasets and in plain folders."""
    # A .json beside another file is its sidecar, not the product.
    endings = [product.ending, *(end for end in product.further if end != ".json")]
    either = "|".join(re.escape(ending) for ending in endings)
    own = "".join(
        f"_{entity}-{value}" for entity, value in product.own_entities.items()
    )
    in_bids = f"_space-[^/]*{own}_{product.suffix}"
    return tuple(
        re.compile(f"{named}({either})$") for named in (in_bids, f"_{product.plain}")
    )


# Default suffix of the scans in a BIDS dataset.
T1W = "T1w"
# Folder of a fold of a cross-validation, in the folder of all its models or results.
FOLD = "fold-{}"
# Pattern of the ledgers of runs and shards.
LEDGERS = "run*.jsonl"
# Folder of unfinished files and locks, in the output folder.
WORK = ".trinat-work"
# Tables that explain the numbers of all label maps, in plain folders.
PLAIN_LABEL_TABLE = "labels.tsv"
PLAIN_PARCEL_TABLE = "parcel_labels.tsv"
# Label maps that the viewer shows in place of the structures.
LAYERS = {
    "parcels": Product.PARCELS,
    "callosum": Product.CALLOSUM,
    "lesions": Product.LESIONS,
}
# Label maps of the structures ("") and layers whose numbers a table explains: the product, and the
# names of the table in plain folders and in BIDS datasets. Lesions are a mask.
LABEL_TABLES = {
    "": (Product.LABELS, PLAIN_LABEL_TABLE, "desc-trinat_dseg.tsv"),
    "parcels": (Product.PARCELS, PLAIN_PARCEL_TABLE, "seg-parcels_dseg.tsv"),
    "callosum": (Product.CALLOSUM, "callosum_labels.tsv", "seg-callosum_dseg.tsv"),
}
# Part of the names of corrected label maps; in BIDS it replaces `desc-trinat`.
CORRECTED = "_desc-corrected"
# Table of all corrections in a folder of results.
CORRECTIONS = "corrections.tsv"
# Prefix of the reason of a refusal that is no failure, because the file is no scan to segment.
LEFT_OUT = "left out: "
# Endings of names of results that may be beside scans: our results, and masks of other programs.
RESULT_ENDINGS = (
    *("_dseg", "_tissues", "_parcels", "_callosum", "_probseg"),
    "_lesions",
    *("_mask", "_brainmask", "_entropy", "_thickness"),
)


def bids_name(entities: Mapping[str, str], **added: str) -> str:
    """Join BIDS entities, in the order of BIDS, to the beginning of a file name: sub-1_desc-x.

    Suffix and ending are not included. `added` entities extend `entities` or replace them.
    """
    merged = {**entities, **added}
    # Unknown entities get the position of `hemi`, before the entities of derivatives.
    ordered = sorted(
        merged, key=lambda entity: _ORDER.index(entity if entity in _ORDER else "hemi")
    )
    return "_".join(f"{entity}-{merged[entity]}" for entity in ordered)
