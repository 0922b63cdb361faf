"""Names of what is written: safe, free of collisions, and BIDS where the input is BIDS."""

from __future__ import annotations

import hashlib
import re
import unicodedata

__all__ = ["bids_name", "safe_component", "split_entities"]

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_ENTITY = re.compile(r"([a-zA-Z0-9]+)-([a-zA-Z0-9+]+)")
# The order of entities in a file name, by the BIDS schema.
_ORDER = (
    *("sub", "tpl", "cohort", "ses", "sample", "task", "tracksys", "acq", "nuc", "voi", "ce"),
    *("trc", "stain", "rec", "dir", "run", "mod", "echo", "flip", "inv", "mt", "part", "proc"),
    *("hemi", "space", "split", "recording", "chunk", "atlas", "seg", "scale", "res", "den"),
    *("label", "from", "to", "mode", "desc"),
)


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


def split_entities(stem: str) -> dict[str, str]:
    """{"sub": "01", "run": "1"} of "sub-01_run-1"; empty if any part is no entity."""
    matches = [_ENTITY.fullmatch(part) for part in stem.split("_")]
    return {m[1]: m[2] for m in matches if m} if all(matches) else {}


def bids_name(entities: dict[str, str], suffix: str, **added: str) -> str:
    """A derivative's file name without its ending: the source's entities, ours added."""
    merged = entities | added
    rank = {entity: position for position, entity in enumerate(_ORDER)}
    # Unknown entities keep their order, before the ones that tell derivatives apart.
    ordered = sorted(merged, key=lambda entity: rank.get(entity, rank["hemi"]))
    return "_".join([*(f"{entity}-{merged[entity]}" for entity in ordered), suffix])
