"""IXI: T1 scans of three hospitals, with labels from a SUBJECTS_DIR made of them."""

from __future__ import annotations

import re
from pathlib import Path

from trinat.segmentation.data.sources.base import (
    Exclusion,
    Found,
    Source,
    SourceOptions,
    Subject,
    natural_order,
)
from trinat.segmentation.data.sources.freesurfer import find_image, find_labels

_LICENCE = "CC BY-SA 3.0"

_SCAN = re.compile(
    r"(?P<person>IXI\d{3})-(?P<hospital>\w+)-(?P<number>\d+)-T1\.nii(\.gz)?"
)


def _find(root: Path, options: SourceOptions) -> Found:
    """Scans below `root`. Where FreeSurfer has been over one, its own image goes with its labels:
    they share a grid, which is not the scan's."""
    scans = {
        path.name: path for depth in ("", "*/") for path in root.glob(f"{depth}IXI*")
    }
    for name in sorted(scans, key=natural_order):
        path = scans[name]
        if not path.is_file():
            continue
        match = _SCAN.fullmatch(name)
        if match is None:
            yield Exclusion(name, "not named as an IXI T1 scan")
            continue
        image, labels = path, None
        folder = options.subjects_dir and _results(
            options.subjects_dir, name.partition(".nii")[0]
        )
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
            fold=options.fold,
            licence=_LICENCE,
        )


def _results(subjects_dir: Path, scan: str) -> Path | None:
    """The subject folder of IXI002-Guys-0828-T1: by that name, without -T1, or IXI002 alone."""
    names = (scan, scan.removesuffix("-T1"), scan.partition("-")[0])
    return next(
        (subjects_dir / name for name in names if (subjects_dir / name).is_dir()), None
    )


SOURCE = Source(
    _find,
    "no IXI scan (IXI002-Guys-0828-T1.nii.gz, ...) here",
    "fetch them with `trinat data get ixi`",
    advice="IXI has no labels: make them with `recon-all -s IXI002 -i IXI002-Guys-0828-T1.nii.gz "
    "-all`, or quicker with FastSurfer (--seg_only) or mri_synthseg, and name the folder by "
    "--subjects-dir; --label-with MODEL makes pseudo-labels",
    wanted_member=lambda name: _SCAN.fullmatch(Path(name).name) is not None,
    partly_labelled=True,
)
