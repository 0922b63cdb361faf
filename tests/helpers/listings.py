"""Short listings of a source."""

from __future__ import annotations

from trinat.segmentation.data.sources.base import Listing, SourceOptions

DEFAULT = SourceOptions()


def ids(listing: Listing) -> list[str]:
    return [subject.id for subject in listing.subjects]


def reasons(listing: Listing) -> dict[str, str]:
    return {exclusion.name: exclusion.reason for exclusion in listing.exclusions}
