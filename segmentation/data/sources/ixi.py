"""IXI: T1 scans of three hospitals, with labels from a SUBJECTS_DIR made of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from segmentation.data.sources.base import (
    Exclusion,
    Listing,
    SourceOptions,
    Subject,
    natural_order,
)
from segmentation.data.sources.freesurfer import find_image, find_labels
from segmentation.errors import DatasetError

_LICENCE = "CC BY-SA 3.0"
_ADVICE = (
    "IXI has no labels: make them with `recon-all -s IXI002 -i IXI002-Guys-0828-T1.nii.gz -all`, "
    "or quicker with FastSurfer (--seg_only) or mri_synthseg, and name the folder by "
    "--subjects-dir; --label-with MODEL makes pseudo-labels"
)

_SCAN = re.compile(r"(?P<person>IXI\d{3})-(?P<hospital>\w+)-(?P<number>\d+)-T1\.nii(\.gz)?")


def find(root: Path, options: SourceOptions) -> Listing:
    """Scans below `root`. Where FreeSurfer has been over one, its own image goes with its labels:
    they share a grid, which is not the scan's."""
    nothing = DatasetError(
        "no IXI scan (IXI002-Guys-0828-T1.nii.gz, ...) here",
        where=root,
        remedy="fetch them with `trinat data get ixi`",
    )
    return Listing.of(_entries(root, options), nothing, _ADVICE)


def _entries(root: Path, options: SourceOptions) -> Iterator[Subject | Exclusion]:
    scans = {path.name: path for depth in ("", "*/") for path in root.glob(f"{depth}IXI*")}
    for name in sorted(scans, key=natural_order):
        path = scans[name]
        if not path.is_file():
            continue
        match = _SCAN.fullmatch(name)
        if match is None:
            yield Exclusion(name, "not named as an IXI T1 scan")
            continue
        image, labels = path, None
        folder = options.subjects_dir and _results(options.subjects_dir, name.partition(".nii")[0])
        if folder:
            labels = find_labels(folder, options.labels)
            if labels:
                image = find_image(folder, options.image) or path
        yield Subject(
            id=name.partition("-T1")[0],
            person=match["person"],
            image=image,
            labels=labels,
            extra=options.extra,
            ignore=options.ignore,
            licence=_LICENCE,
        )


def wanted_member(name: str) -> bool:
    return _SCAN.fullmatch(Path(name).name) is not None


def _results(subjects_dir: Path, scan: str) -> Path | None:
    """The subject folder of IXI002-Guys-0828-T1: by that name, without -T1, or IXI002 alone."""
    names = (scan, scan.removesuffix("-T1"), scan.partition("-")[0])
    return next((subjects_dir / name for name in names if (subjects_dir / name).is_dir()), None)
