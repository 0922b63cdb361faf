"""BIDS datasets: raw T1w images, and labels from their derivatives.

An image is sub-01/anat/sub-01_T1w.nii.gz or sub-01/ses-a/anat/sub-01_ses-a_T1w.nii.gz, perhaps
with more entities in its name. Each pipeline has its own folder below derivatives/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from trinat.segmentation.data.sources.base import (
    Exclusion,
    Listed,
    Source,
    SourceOptions,
    Subject,
    by_name,
    safe_name,
    without_suffix,
)
from trinat.segmentation.data.sources.freesurfer import find_image, find_labels, note_on
from trinat.segmentation.errors import DatasetError

# Values of the entity `part`: the image shows no anatomy, unlike a magnitude image (`mag`).
_OTHER_PARTS = ("phase", "real", "imag")
_ENTITY = re.compile(r"([a-zA-Z0-9]+)-([a-zA-Z0-9+]+)")
# Entities that distinguish the scans of a participant; a scan's label map has the same values.
_SCAN_ENTITIES = ("sub", "ses", "run", "acq", "ce", "rec")
# An image in one of these spaces was not resampled to a template, and a label map is on the grid of
# its T1w image.
OWN_SPACES = frozenset({None, "orig", "T1w", "individual"})
# Values for cortical parcellations and other maps that do not segment structures.
_NOT_STRUCTURES = frozenset({"aparcaseg", "carpet", "ribbon"})
# Values of `desc` of a label map that was corrected by hand, and of one that trinat predicted.
_CORRECTED = "corrected"
_PREDICTED = "trinat"
# Entities that distinguish segmentations of one scan: `seg` since BIDS 1.11, `desc` before.
_SEGMENTATION_ENTITIES = ("seg", "desc")


def _find(root: Path, options: SourceOptions) -> Listed:
    """Yield each raw T1w image as a subject, with labels from its derivatives.

    Labels are the `_dseg` of the same scan or those of a FreeSurfer folder. If several pipelines
    have labels, `options.labels` names the one to use (derivatives/<name>). Label maps that trinat
    has predicted are no ground truth, and are used only if their pipeline is named.
    """
    scans = by_name(anat_files(root, "T1w"))
    if not scans:
        return
    # Use the pipeline with the name `options.labels`, or all pipelines.
    derivatives = root / "derivatives"
    pipelines = []
    if options.labels is not None:
        named = derivatives / options.labels
        if not named.is_dir():
            raise DatasetError("no such folder of derivatives", where=named)
        pipelines = [named]
    elif derivatives.is_dir():
        pipelines = sorted(path for path in derivatives.iterdir() if path.is_dir())
    for path in scans:
        name = without_suffix(path)
        reason = naming_problem(path, root)
        if reason:
            yield Exclusion(name, reason, broken=True)
            continue
        own = entities(name.removesuffix("_T1w"))
        reason = why_left_out(own)
        if reason:
            yield Exclusion(name, reason)
            continue
        pairs: set[tuple[Path, Path]] = set()
        for pipeline in pipelines:
            pairs.update(_image_label_pairs(path, own, pipeline))
        if options.labels is None:
            pairs = {pair for pair in pairs if _desc(pair[1]) != _PREDICTED}
        if len(pairs) > 1:
            names = ", ".join(sorted(labels.name for _, labels in pairs))
            yield Exclusion(name, f"several label maps: {names}", broken=True)
            continue
        image: Path = path
        labels: Path | None = None
        if pairs:
            image, labels = pairs.pop()
        yield Subject(
            id=safe_name(name.removesuffix("_T1w")),
            participant=f"sub-{own['sub']}",
            session=own.get("ses"),
            image=image,
            labels=labels,
            extra=options.extra,
            ignore=options.ignore,
            fold=options.fold,
            note=note_on(image),
        )


def anat_files(root: Path, suffix: str) -> Iterator[Path]:
    """Yield the images `*_<suffix>.nii[.gz]` of all subjects and sessions of a dataset.

    `suffix` is the BIDS suffix of an image, such as T1w. The order is that of the file system. Only
    the folders sub-*/anat and sub-*/ses-*/anat are searched.
    """
    for folder in ("sub-*/anat", "sub-*/ses-*/anat"):
        for path in root.glob(f"{folder}/*"):
            if _is_image(path, suffix):
                yield path


def _is_image(path: Path, suffix: str) -> bool:
    """Return True for the name of an image with a BIDS suffix, such as T1w.

    Its ending may be in upper or lower case, as everywhere in trinat.
    """
    is_nifti = path.name.lower().endswith((".nii.gz", ".nii"))
    return is_nifti and without_suffix(path).endswith(f"_{suffix}")


def entities(name: str) -> dict[str, str]:
    """Return the entities of a BIDS file name without its ending: {"sub": "01", "ses": "a", ...}.

    Values are text, so "01" and "1" differ. Parts that are no entity, such as the suffix, are left
    out. If a key occurs twice, the last value is returned.
    """
    found: dict[str, str] = {}
    for part in name.split("_"):
        match = _ENTITY.fullmatch(part)
        if match is not None:
            found[match[1]] = match[2]
    return found


def why_left_out(own: Mapping[str, str]) -> str:
    """Return the reason why an image is no scan of its participant, or "" if it is one.

    `own` has the BIDS entities of the image.
    """
    if own.get("part") in _OTHER_PARTS:
        return "no magnitude image"
    space = own.get("space")
    if space not in OWN_SPACES:
        return f"resampled to the space {space}"
    return ""


def naming_problem(path: Path, root: Path) -> str:
    """Return the reason why an image's name and folder do not identify it, or "" if they do.

    `root` is the dataset's folder, above sub-*. The reason is a phrase for the table of results.
    Such an image is refused, so that it is not assigned to the wrong participant.
    """
    parts = without_suffix(path).split("_")[:-1]
    own = entities("_".join(parts))
    if "sub" not in own or len(own) < len(parts):
        return "its name is not made of BIDS entities"
    folders = [f"{key}-{own[key]}" for key in ("sub", "ses") if key in own]
    folders.append("anat")
    if path.parent.relative_to(root).parts != tuple(folders):
        return "its name is of another subject or session than its folder"
    return ""


def _image_label_pairs(
    scan: Path, own: Mapping[str, str], pipeline: Path
) -> Iterator[tuple[Path, Path]]:
    """Yield the pairs (image, labels) of one pipeline for a scan; both files are on one grid.

    `scan` is the raw T1w image, `own` has its BIDS entities, and `pipeline` is a folder in
    derivatives/. That the grids are the same is inferred from the names.
    """
    pair = _freesurfer_pair(scan, own, pipeline)
    if pair is not None:
        yield pair
        return
    participant = _participant_folder(scan, own)
    anat = pipeline / scan.parent.relative_to(participant.parent)
    found = [
        labels
        for labels in sorted(anat.glob("*_dseg.nii*"))
        if _is_segmentation_of(labels, own)
    ]
    # A correction by hand replaces the label map that it corrects.
    corrected = [labels for labels in found if _desc(labels) == _CORRECTED]
    for labels in corrected or found:
        # fMRIPrep resamples the scan, and stores the resampled image next to the labels.
        stem = "_".join(f"{key}-{value}" for key, value in own.items())
        preprocessed = next(anat.glob(f"{stem}_desc-preproc_T1w.nii*"), None)
        image = scan if preprocessed is None else preprocessed
        yield image, labels


def _desc(labels: Path) -> str | None:
    """Return the BIDS entity `desc` of a label map; None if its name has none."""
    return entities(without_suffix(labels)).get("desc")


def _participant_folder(scan: Path, own: Mapping[str, str]) -> Path:
    """Return the folder sub-01 of a scan in sub-01/anat/ or sub-01/ses-a/anat/.

    `own` has the BIDS entities of the scan.
    """
    return scan.parents[2] if "ses" in own else scan.parents[1]


def _freesurfer_pair(
    scan: Path, own: Mapping[str, str], pipeline: Path
) -> tuple[Path, Path] | None:
    """Return (image, labels) from the FreeSurfer folder of this scan, or None if there is none.

    The folder is sub-01_ses-a or sub-01 in `pipeline`, and `own` has the BIDS entities of the scan.
    If the session, or the participant, has several scans, the folder belongs to the first of them.
    The labels are on the grid of FreeSurfer's own image, so that image is returned; if it is
    missing, the scan itself.
    """
    participant = _participant_folder(scan, own)
    # FreeSurfer folders, each with the folder whose scans it may have been made from.
    candidates = [(pipeline / participant.name, scan.parent)]
    if "ses" in own:
        of_session = pipeline / f"{participant.name}_ses-{own['ses']}"
        candidates = [
            (of_session, scan.parent),
            (pipeline / participant.name, participant),
        ]
    for folder, scans in candidates:
        labels = find_labels(folder)
        of_folder = [
            path
            for path in scans.rglob("*")
            if _is_image(path, "T1w")
            and not why_left_out(entities(without_suffix(path)))
        ]
        if labels is None or scan != by_name(of_folder)[0]:
            continue
        image = find_image(folder)
        if image is None:
            return scan, labels
        return image, labels
    return None


def _is_segmentation_of(labels: Path, own: Mapping[str, str]) -> bool:
    """Return True if a `_dseg` file has structures of this scan, on the scan's grid.

    `own` has the BIDS entities of the scan. Only the name of the file is examined.
    """
    theirs = entities(without_suffix(labels))
    if any(theirs.get(key) != own.get(key) for key in _SCAN_ENTITIES):
        return False
    if theirs.get("space") not in OWN_SPACES:
        return False
    return kind_of_labels(labels) == "" and not is_cortical_parcellation(labels)


def is_cortical_parcellation(labels: Path) -> bool:
    """Return True if the name of a derivative's `_dseg` says that it is a cortical parcellation."""
    theirs = entities(without_suffix(labels))
    kinds = {theirs.get(entity) for entity in _SEGMENTATION_ENTITIES}
    return not kinds.isdisjoint(_NOT_STRUCTURES)


def kind_of_labels(labels: Path) -> Literal["", "tissues", "parcels", "callosum"]:
    """Return the kind of labels in a derivative's `_dseg`, judged by its name; "" for structures.

    trinat's own maps have a `seg` or `desc` entity. A map without either is assumed to be
    fMRIPrep's map of tissues.
    """
    theirs = entities(without_suffix(labels))
    kinds = [theirs[entity] for entity in _SEGMENTATION_ENTITIES if entity in theirs]
    if not kinds or kinds[0] == "tissues":
        return "tissues"
    if kinds[0] == "parcels":
        return "parcels"
    if kinds[0] == "callosum":
        return "callosum"
    return ""


SOURCE = Source(
    find=_find,
    uses=("labels",),
    nothing="no sub-*/[ses-*/]anat/*_T1w.nii[.gz] here",
    remedy="--root is a BIDS dataset",
    advice="no labels were found under derivatives/, where trinat's own results count only if "
    "--label-maps names their folder: only images for prediction can be prepared",
    partly_labelled=True,
    participants="participants.tsv",
)
