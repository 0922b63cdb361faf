"""The files that a store was made from: scans to segment, label maps to compare with.

A store knows where they were and what they were, by their SHA-256: whoever reads them can say that
a file is gone, or has changed since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from trinat.pipelines.scans.cases import Case, Found, Refusal
from trinat.pipelines.scans.files import ScanFile, as_scan
from trinat.segmentation.data.store import Original, Store
from trinat.segmentation.errors import DatasetError

_AGAIN = "put it back, or run `trinat prepare` again with its new place"


def stored_cases(store: Store, subjects: Iterable[str]) -> Found:
    """The scans of subjects, called as their subjects are; those that are gone are refused.

    Raises DatasetError if all are gone, or the store knows no scan of a subject.
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
    """The label maps of subjects (or kind "image" their scans), with whose they are.

    In the order of `subjects`. They have the store's own label numbers and axes, so that they are
    read as `trinat prepare` read them. No map is opened.
    """
    people = {
        participant.subject: participant.person for participant in store.participants
    }
    files = []
    for name in subjects:
        original = _original(store, name, kind)
        entry = store.info.subjects[name]
        numbers = dict(entry.extra)
        numbers.update(dict.fromkeys(entry.ignore, 0))
        file = ScanFile(
            name=name,
            path=original.path,
            subject=name,
            axes=original.axes,
            sha256=original.sha256,
            numbers=numbers,
            fold=store.info.fold,
        )
        # Named as what trinat predicts of it.
        file = as_scan(file, Path(f"{name}_dseg.nii.gz"))
        if not file.identity:
            session = name.removeprefix(people[name]).strip("_-")
            file = replace(file, subject=people[name], session=session)
        files.append(replace(file, person=file.subject, visit=file.scan))
    return files


def _original(store: Store, subject: str, kind: str) -> Original:
    """The file that a subject's slices were made from; DatasetError where the store has none."""
    entry = store.info.subjects[subject]
    original = entry.labels
    if kind == "image":
        original = entry.image
    if original is None:
        what = f"no {kind} of {subject} is known but its slices"
        remedy = "give files, not --store"
        raise DatasetError(what, where=store.root, remedy=remedy)
    return original
