"""Names of results: suffixes, BIDS names, names that are safe in a path.

Names from outside (of files, folders, subjects) reach a path of an output only by way of
`safe_component`.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping
from enum import Enum

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
# What is kept of a name that had to change, and the piece of its hash behind a dash.
_PLAIN_LENGTH = 56
_DIGEST_LENGTH = 6
# The order of entities in a file name, by the BIDS schema.
_ORDER = (
    "sub", "tpl", "cohort", "ses", "sample", "task", "tracksys", "acq", "nuc", "voi", "ce", "trc",
    "stain", "rec", "dir", "run", "mod", "echo", "flip", "inv", "mt", "part", "proc", "hemi",
    "space", "split", "recording", "chunk", "atlas", "seg", "scale", "res", "den", "label", "from",
    "to", "mode", "desc",
)  # fmt: skip


class Product(Enum):
    """A file of a case: its suffix, its ending, and its suffix where names are not BIDS.

    `ending` has the dot; `plain` is the same as `suffix` but for the statistics and the mask.
    `description` is the entity `desc` in names of BIDS.
    """

    LABELS = ("dseg", ".nii.gz")
    STATS = ("stats", ".stats", "aseg")
    ENTROPY = ("entropy", ".nii.gz")
    PROBABILITIES = ("probseg", ".nii.gz")
    PICTURE = ("qc", ".png")
    DICOM_SEG = ("seg", ".dcm")
    BRAIN_MASK = ("mask", ".nii.gz", "brainmask", "brain")
    PAGE = ("page", ".html")

    def __init__(
        self,
        suffix: str,
        ending: str,
        plain: str | None = None,
        description: str = "trinat",
    ) -> None:
        self.suffix = suffix
        self.ending = ending
        self.description = description
        self.plain = suffix
        if plain is not None:
            self.plain = plain


# BIDS's word for the scans that are taken unless others are asked for.
T1W = "T1w"
# The folder of each part of a cross-validation, in that of all its models or all its results.
FOLD = "fold-{}"
# Where outputs go that the last attempt at their scan has not made; in the output folder.
ASIDE = ".trinat-stale"
# How the reasons of what is no scan begin, where that is no failure.
LEFT_OUT = "left out: "
# How the names of results end that may be beside scans: ours, and the masks of others.
RESULT_ENDINGS = ("_dseg", "_probseg", "_mask", "_brainmask", "_entropy")


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


def safe_component(name: str) -> str:
    """One part of an output path: letters, digits, dot, dash, underscore; 64 at most.

    A name that had to change gets a piece of the original's hash, so that no two become one.
    """
    if _SAFE.fullmatch(name):
        return name
    # é becomes e and an accent, which is dropped.
    decomposed = unicodedata.normalize("NFKD", name)
    ascii_alone = decomposed.encode("ascii", "ignore").decode()
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", ascii_alone)
    plain = plain.lstrip(".-_")[:_PLAIN_LENGTH].rstrip(".-_")
    if not plain:
        plain = "scan"
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{plain}-{digest[:_DIGEST_LENGTH]}"
