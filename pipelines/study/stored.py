"""Files that a slice store was made from: scans to segment, and label maps to compare with.

A store knows their paths and SHA-256, so that readers can report a file that is missing or has
changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trinat.pipelines.study.cases import Case, Found, Refusal
from trinat.pipelines.study.files import ScanFile, StoreRecord, parse_name
from trinat.segmentation.errors import DatasetError, InputError

if TYPE_CHECKING:
    from trinat.segmentation.data.store import Original, Store

_AGAIN = "put it back, or run `trinat prepare` again with its new place"


def refuse_changed(known: str, digest: str | None, where: Path) -> None:
    """Raise InputError if a file has changed since a store was made from it.

    `known` is the SHA-256 in the store, "" for files that are in no store; `digest` is the SHA-256
    of the file as it was read, and `where` is its path.
    """
    if known and digest != known:
        remedy = "run `trinat prepare` again"
        raise InputError(
            "was changed since the store was made", where=where, remedy=remedy
        )


def stored_cases(store: Store, subjects: Iterable[str]) -> Found:
    """Return the original scans of subjects of a slice store, as cases with the subjects' names.

    Missing scans become refusals. DatasetError is raised if all scans are missing, or if the store
    does not have the path of a subject's scan.
    """
    cases: list[Case] = []
    refusals: list[Refusal] = []
    for name in subjects:
        scan = _original(store, name, "image")
        if scan.path.is_file():
            case = Case(name, scan.path, name, axes=scan.axes, sha256=scan.sha256)
            cases.append(case)
        else:
            refusals.append(Refusal(name, f"{scan.path} is no longer there: {_AGAIN}"))
    if not cases:
        what = "none of the scans is where it was"
        raise DatasetError(what, where=store.root, remedy=_AGAIN)
    return Found.of(cases, refusals)


def stored_files(store: Store, subjects: Iterable[str], kind: str) -> list[ScanFile]:
    """Return the files that subjects of a slice store were made from, in the order of `subjects`.

    `kind` is "labels" for label maps or "image" for scans. The files have the store's label numbers
    and axes, so that they are read as `trinat prepare` read them. No file is opened. Raises
    DatasetError for label maps with a mask, because they are no ground truth outside it.
    """
    participant_of = {
        metadata.subject: metadata.participant for metadata in store.metadata
    }
    files = []
    for name in subjects:
        original = _original(store, name, kind)
        entry = store.info.subjects[name]
        if kind == "labels" and entry.has_mask:
            raise DatasetError(
                f"a mask leaves out voxels of {name}, which would be measured too",
                where=store.root,
                remedy="set both label maps to 0 outside the mask, and give files, not --store",
            )
        numbers = dict(entry.extra)
        numbers.update(dict.fromkeys(entry.ignore, 0))
        # CSF that `trinat prepare --csf-with` has added is in the slices only, not in this map.
        csf = store.info.csf if entry.pseudo is not None else "region"
        record = StoreRecord(
            axes=original.axes,
            sha256=original.sha256,
            numbers=numbers,
            fold=store.info.fold,
            csf=csf,
            fill_nonfinite=store.info.fill_nonfinite,
        )
        # Identify the map as its prediction `ID_dseg.nii.gz` would be, so that the two are paired.
        # The participant is the one in the store, which the user may have corrected.
        parsed = parse_name(Path(f"{name}_dseg.nii.gz"))
        participant = participant_of[name]
        session = name.removeprefix(participant).strip("_-")
        if not parsed.entities:
            parsed = replace(parsed, subject=participant, session=session)
        file = ScanFile(original.path, parsed, participant, session, stored=record)
        files.append(file)
    return files


def _original(store: Store, subject: str, kind: str) -> Original:
    """Return the file that a subject's slices were made from.

    `kind` is "labels" or "image". DatasetError is raised if the store does not have its path.
    """
    entry = store.info.subjects[subject]
    original = entry.labels
    if kind == "image":
        original = entry.image
    if original is None:
        what = f"no {kind} of {subject} is known but its slices"
        remedy = "give files, not --store"
        raise DatasetError(what, where=store.root, remedy=remedy)
    return original
