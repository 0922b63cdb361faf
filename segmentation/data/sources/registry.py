"""The sources by name: where a dataset's scans are, and which archives it comes in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from segmentation.data.sources import bids, freesurfer, ixi, labelmaps, neurite, oasis, pairs
from segmentation.data.sources.base import Exclusion, Finder, Listing, SourceOptions
from segmentation.errors import ConfigError, DatasetError


@dataclass(frozen=True)
class Source:
    """How to find a dataset's subjects, and which files of its archives are of use."""

    find: Finder
    wanted_member: Callable[[str], bool] = lambda name: False
    member_axes: Callable[[Path], str | None] = lambda path: None
    partly_labelled: bool = False  # whether scans without labels are usual among those with them


SOURCES: Mapping[str, Source] = {
    "oasis1": Source(oasis.find, oasis.wanted_member, oasis.member_axes),
    "neurite": Source(neurite.find, neurite.wanted_member),
    "ixi": Source(ixi.find, ixi.wanted_member, partly_labelled=True),
    "freesurfer": Source(freesurfer.find),
    "bids": Source(bids.find, partly_labelled=True),
    "pairs": Source(pairs.find),
    "labelmaps": Source(labelmaps.find),
}


def list_subjects(
    source: str, root: Path, options: SourceOptions, *, keep_unlabelled: bool = False
) -> Listing:
    """What `source` finds below `root`; raises where names would collide."""
    if source not in SOURCES:
        raise ConfigError(f"no source {source!r}", remedy=f"name one of {', '.join(SOURCES)}")
    if not root.exists():
        raise DatasetError("no such file or folder", where=root, remedy="see --root")
    listing = SOURCES[source].find(root, options)
    # Two names that differ in case alone are one file on some file systems.
    counts = Counter(subject.id.lower() for subject in listing.subjects)
    twice = next((s.id for s in listing.subjects if counts[s.id.lower()] > 1), None)
    if twice:
        raise DatasetError(
            f"two subjects would both be named {twice}", where=root, remedy="rename one"
        )
    if keep_unlabelled:
        return listing
    return _without_unlabelled(listing, broken=not SOURCES[source].partly_labelled)


def _without_unlabelled(listing: Listing, *, broken: bool) -> Listing:
    """Where some subjects have labels, those without are left out; else all serve prediction."""
    if not any(subject.labels for subject in listing.subjects):
        return listing
    lacking = tuple(
        Exclusion(subject.id, "no labels", broken)
        for subject in listing.subjects
        if subject.labels is None
    )
    subjects = tuple(subject for subject in listing.subjects if subject.labels)
    return replace(listing, subjects=subjects, exclusions=(*listing.exclusions, *lacking))
