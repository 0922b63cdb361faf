"""Names of results: suffixes and BIDS names.

External names (of files, folders, subjects) enter output paths only through `safe_component` in
`segmentation/data/sources/base.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

# Order of entities in a file name, by the schema of BIDS 1.11.
_ORDER = (
    "sub", "tpl", "ses", "cohort", "sample", "task", "tracksys", "acq", "nuc", "voi", "ce", "trc",
    "stain", "rec", "dir", "run", "mod", "echo", "flip", "inv", "mt", "part", "proc", "hemi",
    "space", "split", "recording", "chunk", "atlas", "seg", "scale", "res", "den", "label", "from",
    "to", "mode", "desc",
)  # fmt: skip


@dataclass(frozen=True)
class _Facts:
    """Properties of a product; see `Product`."""

    suffix: str
    ending: str
    plain: str = ""
    seg: str = ""
    label: str = ""
    desc: str = "trinat"
    further: tuple[str, ...] = ()
    is_in_bids: bool = True
    download: str = ""
    media_type: str = ""
    setting: str = ""
    for_fmriprep: bool = False


def _tissue(label: str) -> _Facts:
    """Return the properties of a tissue's probability map, by its label in BIDS."""
    return _Facts(
        "probseg",
        ".nii.gz",
        plain=f"{label}_probseg",
        seg="tissues",
        label=label,
        desc="",
        further=(".json",),
        setting="tissues",
    )


def _for_fmriprep(suffix: str, *, label: str = "", desc: str = "") -> _Facts:
    """Return the properties of a file that fMRIPrep looks for by this name in its derivatives."""
    return _Facts(
        suffix,
        ".nii.gz",
        label=label,
        desc=desc,
        further=(".json",),
        setting="fmriprep",
        for_fmriprep=True,
    )


class Product(Enum):
    """A file of a scan, and what follows from it: names, .bidsignore, deletion, downloads.

    - `suffix` is that of its name, `ending` has the dot. `own_entities` are those that names of
      BIDS have of it: `seg`, `label` and `desc`. `plain` is its suffix where names are not BIDS.
    - `further` are endings of what may be there as well: in its place, or the JSON beside it.
    - `is_in_bids` is whether BIDS has a name for it; else .bidsignore lists it.
    - `download` is what clients of the service call it, and `media_type` what they are told that it
      is; "" where the service has none.
    - `setting` is the field of `OutputSettings` that asks for it: of its name in small letters, if
      no other is given.
    - `for_fmriprep` is whether it is there for fMRIPrep to find: in BIDS datasets alone, without
      the entity `space`.

    A product is written by the function for it in `CaseFiles.write_all`.
    """

    LABELS = _Facts(
        "dseg",
        ".nii.gz",
        further=(".mgz", ".json"),
        download="labels.nii.gz",
        media_type="application/gzip",
    )
    BRAIN_MASK = _Facts(
        "mask",
        ".nii.gz",
        plain="brainmask",
        desc="brain",
        further=(".json",),
        download="brainmask.nii.gz",
        media_type="application/gzip",
    )
    DICOM_SEG = _Facts(
        "seg", ".dcm", download="seg.dcm", media_type="application/dicom"
    )
    PROBABILITIES = _Facts("probseg", ".nii.gz", further=(".json",))
    TISSUES = _Facts(
        "dseg",
        ".nii.gz",
        plain="tissues",
        seg="tissues",
        desc="",
        further=(".json",),
    )
    PARCELS = _Facts(
        "dseg",
        ".nii.gz",
        plain="parcels",
        seg="parcels",
        desc="",
        further=(".json",),
        download="parcels.nii.gz",
        media_type="application/gzip",
    )
    CALLOSUM = _Facts(
        "dseg",
        ".nii.gz",
        plain="callosum",
        seg="callosum",
        desc="",
        further=(".json",),
    )
    GREY_MATTER = _tissue("GM")
    WHITE_MATTER = _tissue("WM")
    FLUID = _tissue("CSF")
    FMRIPREP_MASK = _for_fmriprep("mask", desc="brain")
    FMRIPREP_TISSUES = _for_fmriprep("dseg")
    FMRIPREP_GREY_MATTER = _for_fmriprep("probseg", label="GM")
    FMRIPREP_WHITE_MATTER = _for_fmriprep("probseg", label="WM")
    FMRIPREP_FLUID = _for_fmriprep("probseg", label="CSF")
    PICTURE = _Facts(
        "qc", ".png", is_in_bids=False, download="qc.png", media_type="image/png"
    )
    ENTROPY = _Facts("entropy", ".nii.gz", is_in_bids=False)
    STATS = _Facts("stats", ".stats", plain="aseg", is_in_bids=False)
    PARCEL_STATS = _Facts("parcelstats", ".stats", plain="parcels", is_in_bids=False)
    THICKNESS = _Facts("thickness", ".nii.gz", is_in_bids=False)
    LEFT_CORTEX_STATS = _Facts(
        "lhaparc", ".stats", plain="lh.aparc", is_in_bids=False, setting="cortex_stats"
    )
    RIGHT_CORTEX_STATS = _Facts(
        "rhaparc", ".stats", plain="rh.aparc", is_in_bids=False, setting="cortex_stats"
    )
    PAGE = _Facts(
        "page", ".html", is_in_bids=False, download="page.html", media_type="text/html"
    )

    def __init__(self, facts: _Facts) -> None:
        self.suffix = facts.suffix
        self.ending = facts.ending
        self.plain = facts.plain or facts.suffix
        own = {"seg": facts.seg, "label": facts.label, "desc": facts.desc}
        self.own_entities = {entity: value for entity, value in own.items() if value}
        self.further = facts.further
        self.is_in_bids = facts.is_in_bids
        self.download = facts.download
        self.media_type = facts.media_type
        self.setting = facts.setting or self.name.lower()
        self.for_fmriprep = facts.for_fmriprep

    def entities(self, of_scan: Mapping[str, str]) -> dict[str, str]:
        """The entities that its name in BIDS has beside those of the scan, or in their place."""
        if self.for_fmriprep:
            return self.own_entities
        return {"space": of_scan.get("space", "orig"), **self.own_entities}

    def among(self, names: Collection[str]) -> str | None:
        """The first of these files, by their names, that is this product; None without one."""
        # A .json beside another file says how that was made.
        endings = [self.ending, *(end for end in self.further if end != ".json")]
        either = "|".join(re.escape(ending) for ending in endings)
        own = "".join(
            f"_{entity}-{value}" for entity, value in self.own_entities.items()
        )
        in_bids = f"_space-[^/]*{own}_{self.suffix}"
        for named in (in_bids, f"_{self.plain}"):
            is_mine = re.compile(f"{named}({either})$")
            found = next((name for name in names if is_mine.search(name)), None)
            if found is not None:
                return found
        return None


# BIDS's word for the scans that are taken unless others are asked for.
T1W = "T1w"
# The folder of each part of a cross-validation, in that of all its models or all its results.
FOLD = "fold-{}"
# What is not finished yet, and locks; in the output folder.
WORK = ".trinat-work"
# What the numbers in all label maps mean: of a BIDS dataset, and elsewhere.
LABEL_TABLE = "desc-trinat_dseg.tsv"
PLAIN_LABEL_TABLE = "labels.tsv"
# The same of maps with parcels.
PARCEL_TABLE = "seg-parcels_dseg.tsv"
PLAIN_PARCEL_TABLE = "parcel_labels.tsv"
# The same of maps of the corpus callosum.
CALLOSUM_TABLE = "seg-callosum_dseg.tsv"
PLAIN_CALLOSUM_TABLE = "callosum_labels.tsv"
# Where outputs go that the last attempt at their scan has not made; in the output folder.
# What names of corrected label maps have, in BIDS in the place of `desc-trinat`.
CORRECTED = "_desc-corrected"
# The table of all corrections in a folder of results.
CORRECTIONS = "corrections.tsv"
# How the reasons of what is no scan begin, where that is no failure.
LEFT_OUT = "left out: "
# How the names of results end that may be beside scans: ours, and the masks of others.
RESULT_ENDINGS = (
    *("_dseg", "_tissues", "_parcels", "_callosum", "_probseg"),
    *("_mask", "_brainmask", "_entropy", "_thickness"),
)


def bids_name(entities: Mapping[str, str], **added: str) -> str:
    """A derivative's name without its suffix: the source's entities and ours, as sub-1_desc-x."""
    merged = {**entities, **added}
    ordered = sorted(merged, key=_rank)
    return "_".join(f"{entity}-{merged[entity]}" for entity in ordered)


def _rank(entity: str) -> int:
    """Where an entity stands in a name.

    Unknown entities keep their order, before the ones that tell derivatives apart.
    """
    if entity in _ORDER:
        return _ORDER.index(entity)
    return _ORDER.index("hemi")
