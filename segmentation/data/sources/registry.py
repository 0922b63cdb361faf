"""The sources by name: where a dataset's scans are, and which archives it comes in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trinat.segmentation.data.sources import (
    bids,
    freesurfer,
    ixi,
    malc,
    neurite,
    oasis,
    pairs,
)
from trinat.segmentation.data.sources.base import (
    Exclusion,
    Listing,
    Source,
    SourceOptions,
)
from trinat.segmentation.errors import ConfigError, DatasetError

SOURCES: Mapping[str, Source] = {
    "oasis1": oasis.SOURCE,
    "neurite": neurite.SOURCE,
    "ixi": ixi.SOURCE,
    "malc": malc.SOURCE,
    "freesurfer": freesurfer.SOURCE,
    "bids": bids.SOURCE,
    "pairs": pairs.PAIRS,
    "labelmaps": pairs.LABEL_MAPS,
}


def list_subjects(
    source: str, root: Path, options: SourceOptions, *, keep_unlabelled: bool = False
) -> Listing:
    """What `source` finds below `root`; raises where names would collide."""
    if source not in SOURCES:
        raise ConfigError(
            f"no source {source!r}", remedy=f"name one of {', '.join(SOURCES)}"
        )
    if not root.exists():
        raise DatasetError("no such file or folder", where=root, remedy="see --root")
    kind = SOURCES[source]
    if kind.fixed_numbers and options.fold is not None:
        raise ConfigError(
            f"the label numbers of {source} are known",
            remedy="leave out the folding table (fold)",
        )
    found = list(kind.find(root, options))
    if not found and kind.nothing:
        raise DatasetError(kind.nothing, where=root, remedy=kind.remedy)
    listing = Listing.of(found, kind.advice)
    # Two names that differ in case alone are one file on some file systems.
    counts = Counter(subject.id.lower() for subject in listing.subjects)
    twice = next((s.id for s in listing.subjects if counts[s.id.lower()] > 1), None)
    if twice:
        raise DatasetError(
            f"two subjects would both be named {twice}", where=root, remedy="rename one"
        )
    # Where some subjects have labels, those without are left out; else all serve prediction.
    if keep_unlabelled or not any(subject.labels for subject in listing.subjects):
        return listing
    lacking = tuple(
        Exclusion(subject.id, "no labels", broken=not kind.partly_labelled)
        for subject in listing.subjects
        if subject.labels is None
    )
    subjects = tuple(subject for subject in listing.subjects if subject.labels)
    return replace(
        listing, subjects=subjects, exclusions=(*listing.exclusions, *lacking)
    )
