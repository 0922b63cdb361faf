"""Registry of the sources by name: the location of a dataset's scans, and its archives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
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
    Subject,
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

# Options of `SourceOptions` that not all sources use, as they are called on the command line.
_OPTIONS = {
    "image": "--image",
    "labels": "--label-maps",
    "subjects_dir": "--subjects-dir",
}


def list_subjects(
    source: str,
    root: Path,
    options: SourceOptions,
    *,
    keep_unlabelled: bool = False,
) -> Listing:
    """Return the subjects that a source finds in `root`, and its entries that cannot be used.

    `source` is the name of a dataset or format, and `root` a folder or a table. If some subjects
    have labels, those without labels are excluded, unless `keep_unlabelled`. Raises ConfigError for
    an unknown source or for options that the source does not support, and DatasetError if nothing
    is found, if no subject has the labels that an option names, or if two subjects get the same
    name.
    """
    if source not in SOURCES:
        raise ConfigError(
            f"no source {source!r}", remedy=f"name one of {', '.join(SOURCES)}"
        )
    if not root.exists():
        raise DatasetError("no such file or folder", where=root, remedy="see --root")
    dataset = SOURCES[source]
    changes_numbers = options.fold is not None or options.extra or options.ignore
    if dataset.fixed_numbers and changes_numbers:
        raise ConfigError(
            f"the label numbers of {source} are known",
            remedy="leave out numbering, extra and ignore",
        )
    for name, option in _OPTIONS.items():
        if getattr(options, name) is not None and name not in dataset.uses:
            raise ConfigError(f"{option} does not apply to the source {source}")
    found = list(dataset.find(root, options))
    if not found and dataset.nothing:
        raise DatasetError(dataset.nothing, where=root, remedy=dataset.remedy)
    subjects = tuple(entry for entry in found if isinstance(entry, Subject))
    exclusions = tuple(entry for entry in found if isinstance(entry, Exclusion))
    # Names that differ only in case are the same file on some file systems.
    counts = Counter(subject.id.lower() for subject in subjects)
    for subject in subjects:
        if counts[subject.id.lower()] > 1:
            raise DatasetError(
                f"two subjects would both be named {subject.id}",
                where=root,
                remedy="rename one",
            )

    labelled = tuple(subject for subject in subjects if subject.labels)
    wanted = options.labels or options.subjects_dir
    if wanted and subjects and not labelled:
        raise DatasetError(
            f"no subject has labels in {wanted}",
            where=root,
            remedy="check --label-maps and --subjects-dir, or leave them out",
        )
    # If no subject has labels, all are kept, for prediction.
    if keep_unlabelled or not labelled:
        return Listing(subjects, exclusions, "" if labelled else dataset.advice)
    lacking = tuple(
        Exclusion(subject.id, "no labels", broken=not dataset.partly_labelled)
        for subject in subjects
        if not subject.labels
    )
    return Listing(labelled, exclusions + lacking)
