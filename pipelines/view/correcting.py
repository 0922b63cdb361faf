"""Corrections sent by the page: changed voxels, drafts that survive their tab, and saving.

Changes are relative to the label map that was shown. They consist of two little-endian arrays. The
first has the indices of n changed voxels as uint32, for RAS axes with the first axis fastest. The
second has the new structure of each voxel as uint8: its position in the study's table of
structures, from 1; 0 for none. Voxels that were not edited keep their number, even if it is not in
the table. The layer "lesions" is corrected in the same way; it has one structure.

Drafts are stored on the server rather than in the browser. Browser storage is bound to the address
of the page, whose port changes with each start of `trinat view`. Each time that a tab begins to
correct a scan, it has a draft of its own, so that it overwrites nothing that was painted before or
in another tab.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import FiniteFloat, TypeAdapter, ValidationError

from trinat.pipelines.study.corrections import (
    ABANDONED_S,
    Correction,
    Saving,
    correction_of,
    is_same_scan,
    newest,
    save_correction,
)
from trinat.pipelines.study.files import ScanFile
from trinat.pipelines.study.naming import WORK, Product
from trinat.pipelines.study.study import digest
from trinat.pipelines.view.viewed import LESIONS, ViewedStudy, structures_in
from trinat.pipelines.view.voxels import Voxels
from trinat.segmentation.errors import (
    GeometryError,
    InputError,
    OutputError,
    TrinatError,
    reason_of,
)
from trinat.segmentation.io.files import read_bytes, remove_leftovers, write_whole
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.metrics.common_grid import on_grid_of
from trinat.segmentation.space.views import reoriented

# Maps that can be corrected: of the structures ("") and of lesions.
LAYERS_WITH_BRUSH = {"": Product.LABELS, "lesions": Product.LESIONS}
# Maximum size of a request in bytes: room for 13 million changed voxels.
MAX_CHANGES = 1 << 26
_BYTES_A_VOXEL = 5
_SCAN_CHANGED = (
    "the scan was changed since it was segmented, so corrections would not count: run trinat "
    "predict, and start the viewer again"
)


@dataclass(frozen=True)
class Painted:
    """Changes of a label map that a rater painted in a tab of the browser.

    `content` has the indices of the changed voxels and their new structures, as bytes. `builds_on`
    is the SHA-256 of the label map that they are relative to, `minutes` the time spent on them, and
    `tab` the id of their draft. `layer` is the map that was painted, one of `LAYERS_WITH_BRUSH`.
    """

    content: bytes
    builds_on: str
    minutes: float
    tab: str
    layer: str = ""


@dataclass(frozen=True)
class _DraftHeader:
    """Header of a draft file, a line of JSON before the changes.

    `scan` and `rater` are names, `builds_on` is the SHA-256 of the label map that the changes are
    relative to, `minutes` the time spent, and `at` the time of saving. `scan_sha256` is the hash of
    the scan; "" if unknown.
    """

    scan: str
    rater: str
    builds_on: str
    minutes: FiniteFloat
    at: str
    scan_sha256: str = ""


_DRAFT_HEADER = TypeAdapter(_DraftHeader)


class Corrections:
    """Corrections and drafts of a study for the page; scans are given by their number.

    `layer` is always the map that is corrected, one of `LAYERS_WITH_BRUSH`.
    """

    def __init__(self, study: ViewedStudy, voxels: Voxels) -> None:
        self._study = study
        self._voxels = voxels

    def facts(self, scan: ScanFile, layer: str) -> dict[str, Any]:
        """Return what the page shows of a scan's correction and of the rater's unfinished drafts.

        All values are JSON values. `builds_on` is the SHA-256 of the map to correct; "" if the scan
        has none. `correction` is None if there is none; for a label map of another program most
        values are empty. `drafts` are sorted from newest to oldest. `unreadable` has a message for
        each file that cannot be used, and for a scan that was changed since.
        """
        drafts: list[dict[str, Any]] = []
        unreadable: list[str] = []
        try:
            paths = sorted(
                self._draft_folder(scan).glob(
                    f"{self._draft_prefix(scan, layer)}-*.draft"
                )
            )
        except OutputError as error:
            paths = []
            unreadable.append(_client_reason(error))
        for path in paths:
            try:
                known, changes = self._read_draft(path, scan)
            except InputError as error:
                unreadable.append(_client_reason(error))
                continue
            tab = path.stem.rpartition("-")[2]
            voxels = len(changes) // _BYTES_A_VOXEL
            drafts.append({"tab": tab, "voxels": voxels, **asdict(known)})
        drafts.sort(key=lambda draft: draft["at"], reverse=True)
        if scan.entry.is_scan_changed(scan.folder):
            unreadable.append(_SCAN_CHANGED)
        correction = None
        shown = None
        result = _predicted(scan, layer)
        if result is not None:
            shown = newest(result, scan.entry.input_sha256)
            found = correction_of(result)
            if found is not None and found.fault:
                unreadable.append(found.fault)
            elif found is not None and found.is_of(scan.entry.input_sha256):
                correction = self._correction_data(found)
        return {
            "builds_on": digest(shown),
            "correction": correction,
            "drafts": drafts,
            "unreadable": unreadable,
        }

    def _correction_data(self, correction: Correction) -> dict[str, Any]:
        """Return a correction as JSON values for the page."""
        said: dict[str, Any] = {
            "file": correction.path.name,
            "by": "",
            "at": "",
            "minutes": None,
            "voxels": None,
            "stale": False,
        }
        if correction.sidecar is not None:
            last = correction.sidecar.savings[-1]
            said["by"] = last.by
            said["at"] = last.at
            said["minutes"] = correction.sidecar.minutes
            said["voxels"] = correction.sidecar.changed_voxels
            said["stale"] = correction.is_of_earlier_run
        return said

    def draft(self, number: int, tab: str, layer: str) -> bytes:
        """Return the changes in a tab's draft, as bytes; raise InputError if it does not exist.

        `number` is that of the scan.
        """
        scan = self._study[number]
        path = self._draft_path(scan, tab, layer)
        if not path.is_file():
            raise InputError("no such draft: saved or dropped meanwhile")
        return self._read_draft(path, scan)[1]

    def keep(self, number: int, painted: Painted) -> None:
        """Store the changes of a tab of the browser as its draft, before they are saved.

        `number` is that of the scan.
        """
        scan = self._study[number]
        _parse_changes(painted.content)
        known = _DraftHeader(
            scan.case,
            self._study.corrector,
            painted.builds_on,
            painted.minutes,
            _now("milliseconds"),
            scan.entry.input_sha256,
        )
        path = self._draft_path(scan, painted.tab, painted.layer)
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent, older_than_s=ABANDONED_S)
        head = json.dumps(asdict(known)).encode()
        write_whole(path, head + b"\n" + painted.content)
        self._study.on_draft_saved(scan)

    def drop(self, number: int, tab: str, layer: str, at: str) -> None:
        """Delete the draft of a tab, if there is one.

        If `at` is given, the draft stays if it was saved at another time: its tab is still open and
        has painted more.
        """
        scan = self._study[number]
        path = self._draft_path(scan, tab, layer)
        if at and path.is_file() and self._read_draft(path, scan)[0].at != at:
            return
        path.unlink(missing_ok=True)

    def save(self, number: int, painted: Painted) -> list[str]:
        """Write the corrected label map next to the result, and delete the draft of the tab.

        A draft that is kept meanwhile stays: it may have further strokes. Returns a message if the
        correction was saved but not recorded in the table of corrections.

        `number` is that of the scan, and `painted` has the changes. Raises InputError if nothing
        was changed or the map cannot be corrected here, and OvertakenError if the changes are not
        based on the latest map.
        """
        scan = self._study[number]
        draft = self._draft_path(scan, painted.tab, painted.layer)
        included = _content(draft)
        result = _predicted(scan, painted.layer)
        if result is None:
            raise InputError("has no label map", where=scan.case)
        indices, places = _parse_changes(painted.content)
        if not len(indices):
            raise InputError("there is no change to save", where=scan.case)
        if scan.entry.is_scan_changed(scan.folder):
            raise InputError(_SCAN_CHANGED, where=scan.case)
        numbers = np.array([0, LESIONS.number], np.int32)
        names = {LESIONS.number: LESIONS.name}
        if not painted.layer:
            numbers = self._numbers(scan)
            names = dict(zip(numbers[1:].tolist(), self._names(), strict=True))
        shown = newest(result, scan.entry.input_sha256)
        correction = save_correction(
            result,
            self._apply_changes(number, shown, indices, places, numbers),
            Saving(by=self._study.corrector, at=_now(), minutes=painted.minutes),
            builds_on=painted.builds_on,
            names=names,
            scan_sha256=scan.entry.input_sha256,
            # Beside the label map: another viewer may show a folder around or inside this one.
            lock=result.parent / WORK / "lock.corrections",
        )
        if _content(draft) == included:
            draft.unlink(missing_ok=True)
        try:
            self._study.on_correction_saved(scan, correction)
        except TrinatError as error:
            return [_client_reason(error)]
        return []

    def _apply_changes(
        self,
        number: int,
        path: Path,
        indices: NDArray[np.uint32],
        places: NDArray[np.uint8],
        numbers: NDArray[np.int32],
    ) -> Volume:
        """Return the label map that is shown for a scan, in its own axes, with the changes applied.

        `path` is that label map, or mask of lesions. `indices` (n,) are the changed voxels, for RAS
        axes with the first axis fastest. `places` (n,) are their new structures, as positions in
        `numbers`: the label numbers of the study's structures, with 0, background, first. Raises
        GeometryError if the map is on another grid than its scan, and InputError if the changes do
        not fit the map.
        """
        scan = self._study[number]
        shown = Volume.read(path, labels=True)
        if path == scan.newest_labels:
            self._study.refuse_other_numbers(scan, shown)
        ras = reoriented(shown, "RAS")
        try:
            on_grid_of(ras, self._voxels.scan(number))
        except GeometryError:
            what = "its label map is on another grid than its scan"
            remedy = "correct it in the scan's own space"
            raise GeometryError(what, where=scan.case, remedy=remedy) from None
        if indices.max() >= ras.data.size or places.max() >= len(numbers):
            raise InputError(
                "the changes do not match this label map: reload the page",
                where=scan.case,
            )
        data = np.array(ras.data, np.int32, order="F")
        # `reshape` returns a view here, so the assignment changes `data`; first axis first.
        data.reshape(-1, order="F")[indices] = numbers[places]
        return reoriented(replace(ras, data=data), shown.axcodes)

    def _names(self) -> list[str]:
        """Return the names of the study's structures, in the order of its table."""
        return [structure.name for structure in self._study.structures]

    def _numbers(self, scan: ScanFile) -> NDArray[np.int32]:
        """Return the label numbers (S + 1,) of the S structures of the study in a scan's label map.

        The position in the array is that in the study's table, from 1; position 0 has the number 0
        (background). Raises InputError if the label table of the scan's folder lacks a structure of
        the study.
        """
        structures = structures_in(scan.folder) or self._study.structures
        number_of = {structure.name: structure.number for structure in structures}
        for name in self._names():
            if name not in number_of:
                raise InputError(f"no structure {name!r} in its label table")
        return np.array([0, *(number_of[name] for name in self._names())], np.int32)

    def _draft_folder(self, scan: ScanFile) -> Path:
        """Return the folder with the drafts of a scan; raise OutputError if it is a link."""
        folder = self._study.drafts(scan)
        for path in (folder, folder.parent):
            if path.is_symlink():
                raise OutputError("is a link", where=path, remedy="remove it")
        return folder

    def _draft_path(self, scan: ScanFile, tab: str, layer: str) -> Path:
        name = f"{self._draft_prefix(scan, layer)}-{tab}.draft"
        return self._draft_folder(scan) / name

    def _read_draft(self, path: Path, scan: ScanFile) -> tuple[_DraftHeader, bytes]:
        """Return header and changes of a draft file.

        Raises InputError if it is unreadable, or belongs to another scan or rater, or to what the
        scan was before.
        """
        head, _, changes = read_bytes(path).partition(b"\n")
        try:
            known = _DRAFT_HEADER.validate_json(head)
            _parse_changes(changes)
        except (ValidationError, InputError):
            raise InputError(
                "is an unreadable draft of a correction", where=path, remedy="remove it"
            ) from None
        if (known.scan, known.rater) != (scan.case, self._study.corrector):
            raise InputError(
                "is the draft of another scan or rater", where=path, remedy="remove it"
            )
        if not is_same_scan(known.scan_sha256, scan.entry.input_sha256):
            what = "is a draft painted before the scan was changed"
            raise InputError(what, where=path, remedy="remove it")
        return known, changes

    def _draft_prefix(self, scan: ScanFile, layer: str) -> str:
        """Return the prefix of the file names of this rater's drafts of a map of a scan.

        It is a hash, because the scan's own name may contain slashes.
        """
        whose = "\n".join(filter(None, (self._study.corrector, scan.case, layer)))
        return hashlib.sha256(whose.encode("utf-8", "surrogateescape")).hexdigest()[:24]


def _predicted(scan: ScanFile, layer: str) -> Path | None:
    """Return the path of the map that is corrected, before its correction; None without one."""
    return scan.output(LAYERS_WITH_BRUSH[layer]) if layer else scan.labels


def _parse_changes(content: bytes) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """Return the indices (n,) of changed voxels and the positions (n,) of their new structures.

    A position is that in the study's table of structures, from 1; 0 means none. Raises InputError
    if `content` does not have a valid length.
    """
    count, rest = divmod(len(content), _BYTES_A_VOXEL)
    if rest:
        raise InputError("not changes: send n uint32 and then n uint8")
    indices = np.frombuffer(content, "<u4", count)
    return indices, np.frombuffer(content, np.uint8, count, offset=4 * count)


def _content(path: Path) -> bytes:
    """Return the content of a file; nothing if it does not exist."""
    return path.read_bytes() if path.is_file() else b""


def _client_reason(error: TrinatError) -> str:
    """Return the message of an error for clients: with the file's name, but not its path."""
    return f"{Path(error.where or '').name}: {reason_of(error, where=False)}"


def _now(precision: str = "seconds") -> str:
    return datetime.now(UTC).isoformat(timespec=precision)
