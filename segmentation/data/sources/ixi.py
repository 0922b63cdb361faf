"""IXI: T1 scans from three hospitals, with labels from a SUBJECTS_DIR made from them.

The dataset's archive, IXI-T1.tar, has all scans in one folder, each with the participant, the
hospital and a number in its name: IXI002-Guys-0828-T1.nii.gz. It has no labels.
"""

from __future__ import annotations

import re
from pathlib import Path

from trinat.segmentation.data.sources.base import (
    Exclusion,
    Listed,
    Source,
    SourceOptions,
    Subject,
    by_name,
    search,
)
from trinat.segmentation.data.sources.freesurfer import find_image, find_labels, note_on

_LICENCE = "CC BY-SA 3.0"

_SCAN = re.compile(
    r"(?P<participant>IXI\d{3})-(?P<hospital>\w+)-(?P<number>\d+)-T1\.nii(\.gz)?"
)


def _find(root: Path, options: SourceOptions) -> Listed:
    """Yield every scan in `root`, or in one of its subfolders, as a subject."""
    scans: dict[str, Path] = {}
    for path in search(root, "IXI*", depth=1):
        scans[path.name] = path

    for path in by_name(scans.values()):
        if not path.is_file():
            continue
        match = _SCAN.fullmatch(path.name)
        if match is None:
            yield Exclusion(path.name, "not named as an IXI T1 scan")
            continue
        image, labels = _image_and_labels(path, options)
        yield Subject(
            id=path.name.partition("-T1")[0],
            participant=match["participant"],
            image=image,
            labels=labels,
            extra=options.extra,
            ignore=options.ignore,
            fold=options.fold,
            licence=_LICENCE,
            note=note_on(image),
        )


def _image_and_labels(scan: Path, options: SourceOptions) -> tuple[Path, Path | None]:
    """Return an image and FreeSurfer's labels on the image's grid; the labels are None if missing.

    FreeSurfer's labels are on the grid of FreeSurfer's own image, which is not that of the scan, so
    that image is returned with them. Without labels the image is the scan itself.
    """
    if options.subjects_dir is None:
        return scan, None
    # The folder is called IXI002-Guys-0828-T1, IXI002-Guys-0828 or IXI002.
    name = scan.name.partition(".nii")[0]
    participant = name.partition("-")[0]
    for candidate in (name, name.removesuffix("-T1"), participant):
        folder = options.subjects_dir / candidate
        if folder.is_dir():
            break
    else:
        return scan, None
    labels = find_labels(folder, options.labels)
    if labels is None:
        return scan, None
    image = find_image(folder, options.image)
    if image is None:
        return scan, labels
    return image, labels


def _is_scan(name: str) -> bool:
    """Return True if a file of the dataset's archive is a T1 scan."""
    return _SCAN.fullmatch(Path(name).name) is not None


SOURCE = Source(
    find=_find,
    uses=("image", "labels", "subjects_dir"),
    nothing="no IXI scan (IXI002-Guys-0828-T1.nii.gz, ...) here",
    remedy="fetch them with `trinat data get ixi`",
    advice="IXI has no labels: make them with `recon-all -s IXI002 -i IXI002-Guys-0828-T1.nii.gz "
    "-all`, or quicker with FastSurfer (--seg_only) or mri_synthseg, and name the folder by "
    "--subjects-dir; --label-with MODEL makes pseudo-labels",
    wanted_member=_is_scan,
    partly_labelled=True,
)
