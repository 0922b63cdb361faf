"""OASIS-1, cross-sectional: discs of images with FSL tissue labels, and FreeSurfer discs.

Per session, `discN/OAS1_0001_MR1/` holds Analyze 7.5 files. Their headers have no orientation.
`AXES` has it, from the dataset's documentation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from trinat.segmentation.data.sources.base import (
    Exclusion,
    Listed,
    Source,
    SourceOptions,
    Subject,
    natural_order,
    search,
)
from trinat.segmentation.data.sources.freesurfer import find_image, find_labels, note_on
from trinat.segmentation.errors import ConfigError, DatasetError
from trinat.segmentation.io.files import read_text

_SESSION = re.compile(r"(?P<participant>OAS1_\d{4})_(?P<session>MR\d)")
_LICENCE = "OASIS data use agreement"

# Directions in which voxel axes increase: Anterior, Superior, Left in the scanner's and the
# subject's own space; Left, Anterior, Superior in the atlas space T88.
AXES = {"RAW": "ASL", "SUBJ_111": "ASL", "T88_111": "LAS", "FSL_SEG": "LAS"}

# FreeSurfer numbers of FSL's tissue numbers.
TISSUES = {1: 24, 2: 220, 3: 219}

_SUBJ = "PROCESSED/MPRAGE/SUBJ_111/{s}_mpr_n?_anon_sbj_111"
_T88 = "PROCESSED/MPRAGE/T88_111/{s}_mpr_n?_anon_111_t88"
_FSL = "FSL_SEG/{s}_mpr_n?_anon_111_t88_masked_gfc_fseg"


@dataclass(frozen=True)
class _Image:
    """Location of an image below its session's folder, its voxel axes and its labels.

    `pattern` is a glob pattern without file ending: `{s}` is replaced by the session, and `n?`
    matches n3 to n6. `labels` is such a pattern for tissue labels on the same grid; None if there
    are none.
    """

    pattern: str
    axes: str
    labels: str | None = None


IMAGES = {
    "t88-masked": _Image(f"{_T88}_masked_gfc", AXES["T88_111"], _FSL),
    "t88": _Image(f"{_T88}_gfc", AXES["T88_111"], _FSL),
    "subj111": _Image(_SUBJ, AXES["SUBJ_111"]),
    "raw": _Image("RAW/{s}_mpr-1_anon", AXES["RAW"]),
}


def _find(root: Path, options: SourceOptions) -> Listed:
    """Return the sessions of OASIS-1 below the folder `root`, each as a subject, sorted by name.

    A session that lacks a file is returned as an `Exclusion` with the reason. `options.image` says
    which image of a session to use: a key of IMAGES, or "freesurfer" for FreeSurfer's orig.mgz and
    its labels. The default depends on the label scheme: t88-masked for tissue4, because this image
    has FSL's tissue labels, and freesurfer for all others. Raises ConfigError for another name of
    an image, and DatasetError if a session exists twice.
    """
    usual = "t88-masked" if options.scheme == "tissue4" else "freesurfer"
    kind = options.image or usual
    if kind not in IMAGES and kind != "freesurfer":
        raise ConfigError(
            f"oasis1 has no images called {kind!r}",
            remedy=f"name one of freesurfer, {', '.join(IMAGES)}",
        )
    place = root
    if kind == "freesurfer" and options.subjects_dir is not None:
        place = options.subjects_dir
    found: dict[str, Subject | Exclusion] = {}
    # Sessions are in the folder itself, in its discs, or in the folders of unpacked archives.
    for folder in search(place, "OAS1_*", depth=2):
        if not (folder.is_dir() and _SESSION.fullmatch(folder.name)):
            continue
        entry = _subject_or_exclusion(folder, kind)
        earlier = found.get(folder.name)
        if isinstance(earlier, Subject) and isinstance(entry, Subject):
            raise DatasetError(
                f"session {folder.name} exists twice",
                where=root,
                remedy="an archive here is unpacked by itself: move either of the two away",
            )
        # Discs of images and of FreeSurfer results have folders of the same name: use the
        # folder that has the requested files.
        if not isinstance(earlier, Subject):
            found[folder.name] = entry
    return [found[name] for name in sorted(found, key=natural_order)]


def wanted_member(name: str) -> bool:
    """Return True for a file of a disc that is used.

    These are images, label maps and the sheets of age and sex. `name` is a path within the archive.
    Other files of a disc are not unpacked.
    """
    path = Path(name)
    if "/mri/" in f"/{name}":
        return path.name in {"orig.mgz", "aseg.mgz", "aparc+aseg.mgz"}
    if _SESSION.fullmatch(path.stem) and path.suffix == ".txt":
        return True
    folders = {"T88_111", "SUBJ_111", "FSL_SEG"}
    return path.suffix in {".hdr", ".img"} and path.parent.name in folders


def _subject_or_exclusion(folder: Path, kind: str) -> Subject | Exclusion:
    """Return a session as a subject with image and labels, or the reason why it cannot be used.

    `folder` is the session's folder; `kind` is a key of IMAGES or "freesurfer". A session that
    lacks a file is excluded.
    """
    session = folder.name
    match = _SESSION.fullmatch(session)
    assert match is not None  # other folders are not passed
    image: Path | None
    labels: Path | None
    try:
        if kind == "freesurfer":
            image = find_image(folder)
            labels = find_labels(folder)
            if image is None:
                return Exclusion(session, "no mri/orig.mgz", broken=True)
            if labels is None:
                return Exclusion(session, "no mri/aseg.mgz", broken=True)
        else:
            layout = IMAGES[kind]
            image = _only_image(folder, layout.pattern.format(s=session))
            labels = None
            # Not every layout has tissue labels.
            if layout.labels is not None:
                labels = _only_image(folder, layout.labels.format(s=session))
    except _LacksFileError as error:
        return Exclusion(session, str(error), broken=True)

    extra: dict[int, int] = {}
    if kind != "freesurfer" and labels is not None:
        extra = TISSUES
    age, sex = _age_and_sex(folder / f"{session}.txt")
    return Subject(
        id=session,
        participant=match["participant"],
        session=match["session"],
        image=image,
        labels=labels,
        image_axes=_voxel_axes(image, kind),
        labels_axes=_voxel_axes(labels, kind),
        extra=extra,
        age=age,
        sex=sex,
        licence=_LICENCE,
        note=note_on(image),
    )


class _LacksFileError(Exception):
    """Raised if a session lacks a file; the message names it."""


def _only_image(folder: Path, pattern: str) -> Path:
    """Return the only image below `folder` whose path matches a glob pattern without file ending.

    This is a NIfTI file, if the image was converted, or else the header of an Analyze pair. Raises
    _LacksFileError if there is no image, more than one, or half of a pair.
    """
    name = Path(pattern).name
    converted = sorted(folder.glob(f"{pattern}.nii.gz"))
    headers = sorted(folder.glob(f"{pattern}.hdr"))
    images = sorted(folder.glob(f"{pattern}.img"))
    if len(converted) > 1 or len(headers) > 1:
        raise _LacksFileError(f"more than one {name}")
    if converted:
        return converted[0]
    if not headers and not images:
        raise _LacksFileError(f"no {name}")
    if not images:
        raise _LacksFileError(f"{headers[0].name} lacks its .img half")
    if not headers:
        raise _LacksFileError(f"{images[0].name} lacks its .hdr half")
    return headers[0]


def _voxel_axes(path: Path | None, kind: str) -> str | None:
    """Return the voxel axes of an Analyze file of this kind.

    None for converted files, whose headers have the axes, and for a `path` of None.
    """
    if path is None or path.suffix != ".hdr":
        return None
    return IMAGES[kind].axes


def _age_and_sex(sheet: Path) -> tuple[float | None, str | None]:
    """Return the age in years and the sex (M or F) from a session's text sheet; None where missing.

    The sheet has lines such as `AGE: 74` and `M/F: Female`.
    """
    if not sheet.is_file():
        return None, None
    text = read_text(sheet, errors="replace")
    age = re.search(r"^AGE:\s*(\d+)", text, re.MULTILINE)
    sex = re.search(r"^M/F:\s*([MF])", text, re.MULTILINE)
    return float(age[1]) if age else None, sex[1] if sex else None


SOURCE = Source(
    find=_find,
    uses=("image", "subjects_dir"),
    nothing="no OASIS-1 session (OAS1_0001_MR1, ...) here",
    remedy="fetch a disc with `trinat data get oasis1`",
    wanted_member=wanted_member,
    member_axes=lambda path: AXES.get(path.parent.name),
    fixed_numbers=True,
)
