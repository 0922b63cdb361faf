"""A BIDS dataset: raw T1w images, and labels from its derivatives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from trinat.segmentation.data.sources.base import (
    Exclusion,
    Facts,
    Found,
    Source,
    SourceOptions,
    Subject,
    natural_order,
    read_participants,
    safe_name,
    without_suffix,
)
from trinat.segmentation.data.sources.freesurfer import find_image, find_labels
from trinat.segmentation.errors import DatasetError

_ENTITY = re.compile(r"([a-zA-Z0-9]+)-([a-zA-Z0-9+]+)")
# What tells the scans of a person apart; a label map has the same.
_OF_A_SCAN = ("sub", "ses", "run", "acq", "ce", "rec")
# A label map in these spaces lies on its T1w image's grid.
_OWN_SPACES = frozenset({None, "orig", "T1w", "individual"})


def _find(root: Path, options: SourceOptions) -> Found:
    """One subject per raw T1w; labels: `_dseg` of the same scan, else a FreeSurfer folder.

    With several pipelines' labels, `options.labels` names the one (derivatives/<name>) to take.
    """
    scans = sorted(anat_files(root, "T1w"), key=lambda path: natural_order(path.name))
    if not scans:
        return
    people = read_participants(root / "participants.tsv")
    pipelines = list(_pipelines(root, options.labels))
    for path in scans:
        name = without_suffix(path).removesuffix("_T1w")
        if reason := misnamed(path, root):
            yield Exclusion(without_suffix(path), reason, broken=True)
            continue
        own = entities(name)
        pairs = {
            pair for pipeline in pipelines for pair in _labels_of(path, own, pipeline)
        }
        if len(pairs) > 1:
            names = ", ".join(sorted(labels.name for _, labels in pairs))
            yield Exclusion(
                without_suffix(path), f"several label maps: {names}", broken=True
            )
            continue
        image, labels = pairs.pop() if pairs else (path, None)
        person = f"sub-{own['sub']}"
        facts = people.get(person, Facts())
        yield Subject(
            id=safe_name(name),
            person=person,
            session=own.get("ses"),
            image=image,
            labels=labels,
            extra=options.extra,
            ignore=options.ignore,
            fold=options.fold,
            family=facts.family,
            age=facts.age,
            sex=facts.sex,
        )


def anat_files(root: Path, suffix: str) -> Iterator[Path]:
    """The images `*_<suffix>.nii[.gz]` of every subject and session of a dataset."""
    for folder in ("sub-*/anat", "sub-*/ses-*/anat"):
        for path in root.glob(f"{folder}/*"):
            # Endings in any letters, as everywhere: a.NII.GZ must not be passed over.
            known = path.name.lower().endswith((".nii.gz", ".nii"))
            if known and without_suffix(path).endswith(f"_{suffix}"):
                yield path


def entities(name: str) -> dict[str, str]:
    """{"sub": "01", "ses": "a", ...} of a BIDS file's name without its ending."""
    matches = (_ENTITY.fullmatch(part) for part in name.split("_"))
    return {match[1]: match[2] for match in matches if match}


def misnamed(path: Path, root: Path) -> str:
    """Why an image's name and folder do not identify it; empty where they do."""
    parts = without_suffix(path).split("_")[:-1]
    own = entities("_".join(parts))
    if "sub" not in own or len(own) < len(parts):
        return "its name is not made of BIDS entities"
    folders = [f"{key}-{own[key]}" for key in ("sub", "ses") if key in own]
    if path.parent.relative_to(root).parts != (*folders, "anat"):
        return "its name is of another subject or session than its folder"
    return ""


def _pipelines(root: Path, name: str | None) -> Iterator[Path]:
    folder = root / "derivatives"
    if name is not None:
        if not (folder / name).is_dir():
            raise DatasetError("no such folder of derivatives", where=folder / name)
        yield folder / name
    elif folder.is_dir():
        yield from sorted(path for path in folder.iterdir() if path.is_dir())


def _labels_of(
    scan: Path, own: dict[str, str], pipeline: Path
) -> Iterator[tuple[Path, Path]]:
    """(image, labels) that a pipeline has for a scan, on one grid as far as names can tell."""
    session = f"_ses-{own['ses']}" if "ses" in own else ""
    person = scan.parents[1 + ("ses" in own)]
    # FreeSurfer's folder: its own image goes with its labels, they share a grid. It is of one scan,
    # the first where there are several.
    for name, folder in (
        (f"{person.name}{session}", scan.parent),
        (person.name, person),
    ):
        labels = find_labels(pipeline / name)
        if labels and scan == min(folder.rglob("*_T1w.nii*")):
            yield find_image(pipeline / name) or scan, labels
            return
    anat = pipeline / scan.parent.relative_to(scan.parents[2 + ("ses" in own)])
    for labels in sorted(anat.glob("*_dseg.nii*")):
        theirs = entities(without_suffix(labels))
        same = all(theirs.get(key) == own.get(key) for key in _OF_A_SCAN)
        # Tissue maps and cortical parcellations are other things than a segmentation.
        if not same or theirs.get("space") not in _OWN_SPACES or "desc" not in theirs:
            continue
        if theirs["desc"] in {"aparcaseg", "carpet", "ribbon"}:
            continue
        # fMRIPrep resamples the scan and stores what it segmented beside the labels.
        stem = "_".join(f"{key}-{own[key]}" for key in own)
        preprocessed = next(anat.glob(f"{stem}_desc-preproc_T1w.nii*"), None)
        yield preprocessed or scan, labels


SOURCE = Source(
    _find,
    "no sub-*/[ses-*/]anat/*_T1w.nii[.gz] here",
    "--root is a BIDS dataset",
    advice="no labels were found under derivatives/: only images for prediction can be prepared",
    partly_labelled=True,
)
