"""OASIS-1, cross-sectional: discs of images with FSL tissue labels, and FreeSurfer discs.

Per session, `discN/OAS1_0001_MR1/` holds Analyze 7.5 files. Their headers say nothing of how the
person lies in them; the dataset's documentation does, and `AXES` says it here, once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
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
from trinat.segmentation.errors import ConfigError, DatasetError
from trinat.segmentation.io.files import read_text

_SESSION = re.compile(r"(?P<person>OAS1_\d{4})_(?P<session>MR\d)")
_LICENCE = "OASIS data use agreement"

# Voxel axes grow to: Anterior, Superior, Left in the scanner's and the subject's own space;
# Left, Anterior, Superior in the atlas space T88.
AXES = {"RAW": "ASL", "SUBJ_111": "ASL", "T88_111": "LAS", "FSL_SEG": "LAS"}

# FSL's numbers, as FreeSurfer numbers of the same tissue.
TISSUES = {1: 24, 2: 220, 3: 219}

_T88 = "PROCESSED/MPRAGE/T88_111/{s}_mpr_n?_anon_111_t88"
_FSL = "FSL_SEG/{s}_mpr_n?_anon_111_t88_masked_gfc_fseg"


@dataclass(frozen=True)
class _Image:
    """Where an image stands below its session: `{s}` is the session, `n?` n3 to n6."""

    pattern: str
    axes: str
    labels: str | None  # its tissue labels, which lie on the same grid


IMAGES = {
    "t88-masked": _Image(f"{_T88}_masked_gfc", AXES["T88_111"], _FSL),
    "t88": _Image(f"{_T88}_gfc", AXES["T88_111"], _FSL),
    "subj111": _Image(
        "PROCESSED/MPRAGE/SUBJ_111/{s}_mpr_n?_anon_sbj_111", AXES["SUBJ_111"], None
    ),
    "raw": _Image("RAW/{s}_mpr-1_anon", AXES["RAW"], None),
}


def _find(root: Path, options: SourceOptions) -> Found:
    """Sessions below `root`; tissue4 takes the tissue labels, other schemes FreeSurfer's."""
    kind = options.image or (
        "t88-masked" if options.scheme == "tissue4" else "freesurfer"
    )
    if kind not in {*IMAGES, "freesurfer"}:
        raise ConfigError(
            f"oasis1 has no images called {kind!r}",
            remedy=f"name one of freesurfer, {', '.join(IMAGES)}",
        )
    found: dict[str, Subject | Exclusion] = {}
    for folder in _sessions(
        options.subjects_dir or root if kind == "freesurfer" else root
    ):
        entry = _entry(folder, kind)
        # Discs of images and of FreeSurfer results name their folders alike: the one that has
        # what is asked for counts.
        if isinstance(found.get(folder.name), Subject) and isinstance(entry, Subject):
            raise DatasetError(
                f"session {folder.name} is there twice",
                where=root,
                remedy="an archive here is unpacked by itself: move either of the two away",
            )
        if not isinstance(found.get(folder.name), Subject):
            found[folder.name] = entry
    return [found[name] for name in sorted(found, key=natural_order)]


def wanted_member(name: str) -> bool:
    """Whether a disc's file is one that we use: images, labels and the sheet of age and sex."""
    path = Path(name)
    if "/mri/" in f"/{name}":
        return path.name in {"orig.mgz", "aseg.mgz", "aparc+aseg.mgz"}
    if _SESSION.fullmatch(path.stem) and path.suffix == ".txt":
        return True
    folders = {"T88_111", "SUBJ_111", "FSL_SEG"}
    return path.suffix in {".hdr", ".img"} and path.parent.name in folders


def _sessions(root: Path) -> Iterator[Path]:
    """Session folders in `root`, in its discs, or in the folders of unpacked archives."""
    for depth in ("", "*/", "*/*/"):
        for path in sorted(root.glob(f"{depth}OAS1_*")):
            if path.is_dir() and _SESSION.fullmatch(path.name):
                yield path


def _entry(folder: Path, kind: str) -> Subject | Exclusion:
    session, axes = folder.name, None
    image: Path | str
    labels: Path | str | None
    if kind == "freesurfer":
        image = find_image(folder) or "no mri/orig.mgz"
        labels = find_labels(folder) or "no mri/aseg.mgz"
    else:
        layout = IMAGES[kind]
        axes = layout.axes
        image = _one(folder, layout.pattern.format(s=session))
        labels = (
            _one(folder, layout.labels.format(s=session)) if layout.labels else None
        )
    if isinstance(image, str):
        return Exclusion(session, image, broken=True)
    if isinstance(labels, str):
        return Exclusion(session, labels, broken=True)
    match = _SESSION.fullmatch(session)
    assert match is not None  # _sessions saw to it
    age, sex = _age_and_sex(folder / f"{session}.txt")
    return Subject(
        id=session,
        person=match["person"],
        session=match["session"],
        image=image,
        labels=labels,
        # Files that we have converted carry their axes; only Analyze files need ours.
        image_axes=axes if image.suffix == ".hdr" else None,
        labels_axes=axes if labels and labels.suffix == ".hdr" else None,
        extra=TISSUES if axes and labels else {},
        age=age,
        sex=sex,
        licence=_LICENCE,
    )


def _one(folder: Path, pattern: str) -> Path | str:
    """The one file of this name, converted or with both Analyze halves; else the reason why not."""
    converted = sorted(folder.glob(f"{pattern}.nii.gz"))
    headers, images = (sorted(folder.glob(pattern + half)) for half in (".hdr", ".img"))
    if len(converted) > 1 or len(headers) > 1:
        return f"more than one {Path(pattern).name}"
    if converted:
        return converted[0]
    if not headers and not images:
        return f"no {Path(pattern).name}"
    if not headers or not images:
        missing, there = (".img", headers) if headers else (".hdr", images)
        return f"{there[0].name} lacks its {missing} half"
    return headers[0]


def _age_and_sex(sheet: Path) -> tuple[float | None, str | None]:
    """From lines `AGE: 74` and `M/F: Female` of the session's text sheet, where it is there."""
    if not sheet.is_file():
        return None, None
    text = read_text(sheet, errors="replace")
    age = re.search(r"^AGE:\s*(\d+)", text, re.MULTILINE)
    sex = re.search(r"^M/F:\s*([MF])", text, re.MULTILINE)
    return float(age[1]) if age else None, sex[1] if sex else None


SOURCE = Source(
    _find,
    "no OASIS-1 session (OAS1_0001_MR1, ...) here",
    "fetch a disc with `trinat data get oasis1`",
    wanted_member=wanted_member,
    member_axes=lambda path: AXES.get(
        path.parent.name
    ),  # by the folder that a file stands in
    fixed_numbers=True,
)
