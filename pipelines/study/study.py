"""Study: the scans of a folder of results, from its ledgers, label maps and corrections.

Ledgers are read once. No voxel is read, except for corrections by `Study.checked`: a folder with
100,000 scans is listed by its ledgers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from trinat.pipelines.jobs.process import cpu_count
from trinat.pipelines.study.corrections import corrected_path, possible_results
from trinat.pipelines.study.discovery import walk
from trinat.pipelines.study.entry import Entry, digest_of, find_moved
from trinat.pipelines.study.files import (
    ScanFile,
    file_below,
    find_files,
    find_images,
    name_files,
)
from trinat.pipelines.study.ledger import (
    LedgerContents,
    ledgers_in,
    read_ledgers,
    with_folds,
)
from trinat.pipelines.study.lesions import measure_corrected
from trinat.pipelines.study.naming import LEDGERS, Product
from trinat.pipelines.study.pairing import partners_of
from trinat.pipelines.study.record import ScanResult, measured_in
from trinat.segmentation.data.sources.base import natural_order
from trinat.segmentation.errors import (
    ConfigError,
    IntegrityError,
    TrinatError,
    reason_of,
)
from trinat.segmentation.io.files import absolute, sha256_of
from trinat.segmentation.labels import Csf
from trinat.segmentation.labels.scheme import LabelScheme, MapKind

# Number of folders above a file that are searched for the ledger of its result.
_FOLDERS_ABOVE = 4


@dataclass(frozen=True)
class Study:
    """Scans with their results, and the folders of further files of these scans.

    `folder` is an output folder, a folder that has output folders in it, or a folder or file inside
    an output folder. In the last case only the entries with an output there are used. Label maps of
    other programs have no entries. `images` is a folder to search for the images if they have moved
    since the run; `against` is a folder of other label maps of the same scans. None if not used.
    `kind` is that of the label maps in `against`: of structures, or masks of lesions.
    """

    folder: Path
    images: Path | None = None
    against: Path | None = None
    kind: MapKind = "structures"

    @cached_property
    def _ledgers(self) -> dict[Path, LedgerContents]:
        """Joint content of the ledgers in each output folder that belongs to `folder`.

        Ledgers that cannot be parsed are skipped, unless they are in `folder` itself.
        """
        found = {}
        for folder in _output_folders(self.folder):
            try:
                found[folder] = read_ledgers(ledgers_in(folder))
            except IntegrityError:
                # In a subfolder, it is a file of another program.
                if ledgers_in(self.folder):
                    raise
        return found

    @cached_property
    def folders(self) -> dict[Path, list[Entry]]:
        """Ledger entries of the scans of each output folder."""
        here = absolute(self.folder)
        entries_of = {}
        for folder, contents in self._ledgers.items():
            is_in_place = absolute(folder).is_relative_to(here)
            entries_of[folder] = [
                entry
                for entry in contents.entries.values()
                if is_in_place
                or any(
                    absolute(folder / name).is_relative_to(here)
                    for name in entry.outputs
                )
            ]
        return entries_of

    @cached_property
    def entries(self) -> list[Entry]:
        """Ledger entries of all scans, over all output folders."""
        return [entry for entries in self.folders.values() for entry in entries]

    @cached_property
    def _moved(self) -> dict[Path, dict[str, str]]:
        """Cases whose scans count under another name, with that name, for each output folder."""
        return {
            folder: find_moved(contents.entries.values(), folder)
            for folder, contents in self._ledgers.items()
        }

    @property
    def failed(self) -> list[Entry]:
        """Ledger entries of the scans that could not be segmented."""
        return [entry for entry in self.entries if entry.status == "failed"]

    @property
    def without_label_map(self) -> list[str]:
        """Cases whose label map was removed since a run wrote it, and that have no correction.

        Old results of scans that count under another name are not among them.
        """
        cases = []
        for folder, entries in self.folders.items():
            for entry in entries:
                labels = entry.output(folder, Product.LABELS)
                if entry.status != "done" or entry.case in self._moved[folder]:
                    continue
                # A link to a missing file is listed among the label maps, and cannot be read.
                if labels is None or os.path.lexists(labels):
                    continue
                if not corrected_path(labels).exists():
                    cases.append(entry.case)
        return cases

    @property
    def models(self) -> set[str]:
        """Hashes of the models that made the results, as far as they are known."""
        done = [entry for entry in self.entries if entry.status == "done"]
        return {entry.model for entry in done if entry.model}

    def measured(self, scheme: LabelScheme) -> set[str]:
        """Return the structures and parcels of a label scheme that have a volume in any result."""
        results = [entry.result for entry in self.entries]
        structures = {name for result in results for name in result.volumes_mm3}
        parcels = {name for result in results for name in result.parcels}
        return measured_in(scheme, structures, parcels)

    @property
    def csf(self) -> Csf | None:
        """Meaning of CSF in the results: "intracranial" (all fluid) if any model means that.

        Otherwise "region", or None if no entry says it.
        """
        meanings = {entry.result.csf for entry in self.entries} - {None}
        if "intracranial" in meanings:
            return "intracranial"
        return next(iter(meanings), None)

    def label_maps(
        self, *, kind: MapKind = "structures", corrected: bool = True
    ) -> list[ScanFile]:
        """Return the label maps as `find_files` does, each with its ledger entry if there is one.

        `kind` is as in `find_files`. Without `corrected`, label maps are returned as they were
        before correction by hand.
        """
        entries = {
            absolute(folder / name): (folder, entry)
            for folder, of_folder in self.folders.items()
            for entry in of_folder
            for name in entry.outputs
        }
        return find_files(self.folder, kind=kind, corrected=corrected, entries=entries)

    def checked(
        self, label_maps: Sequence[ScanFile], *, lesions: bool = False
    ) -> list[ScanFile]:
        """Return label maps with the reason, in `ScanFile.unfit`, if they must not be used.

        `ScanFile.is_edited` tells whether a label map has other bytes than a run has written.
        A label map is unfit if its scan has changed since or was segmented under another name, or
        if a later run has failed or was not finished. A label map that the user has changed or
        added is never unfit. A corrected label map is unfit if its correction was made on another
        scan or its result is gone, or if `Correction.why_unfit` finds it wrong. With `lesions`, the
        same is checked of corrected lesions, and they replace the predicted lesions in the ledger
        entry; the label map is unfit if they cannot be measured.
        """

        def check(file: ScanFile) -> ScanFile:
            file = self._compared(file)
            correction = file.lesion_correction if lesions else None
            if file.unfit or correction is None:
                return file
            reason = correction.why_unfit(file.entry.input_sha256)
            if reason:
                return replace(file, unfit=f"its mask of lesions {reason}")
            try:
                result = self.result(file)
            except (TrinatError, OSError) as error:
                reason = reason_of(error, where=False)
                return replace(
                    file, unfit=f"its corrected lesions cannot be measured: {reason}"
                )
            return replace(file, entry=replace(file.entry, result=result))

        with ThreadPoolExecutor(cpu_count()) as pool:
            return list(pool.map(check, label_maps))

    def result(self, scan: ScanFile) -> ScanResult:
        """Return the numbers of a scan's result; lesions that were corrected are measured again."""
        correction = scan.lesion_correction
        labels = scan.newest_labels
        if correction is None or labels is None:
            return scan.entry.result
        if not correction.is_of(scan.entry.input_sha256):
            return scan.entry.result
        files = (correction.path, correction.result, labels)
        lesions = measure_corrected(*files, *map(digest, files))
        return scan.entry.result.model_copy(update={"lesions": lesions})

    def _compared(self, file: ScanFile) -> ScanFile:
        """Return a label map with `unfit` and `is_edited`: its bytes compared with the ledgers."""
        scan = ""
        are_written = []
        for folder, contents in self._ledgers.items():
            name = os.path.relpath(file.result, folder)
            if name not in contents.writers:
                continue
            entry = contents.entries.get(contents.writers[name])
            scan = "" if entry is None else entry.input_sha256
            digest = digest_of(folder / name)
            if digest is None:
                # A link whose file is missing was not edited.
                continue
            is_written = (name, digest) in contents.written
            are_written.append(is_written)
            if not is_written:
                continue
            reason = _why_outdated(entry, name, digest, folder)
            counts_as = self._moved[folder].get(contents.writers[name])
            if counts_as and not reason:
                reason = (
                    f"is an old result: its scan counts as {counts_as} now; remove it"
                )
                if file.corrects is not None:
                    reason = (
                        f"is a correction of an old result: its scan counts as {counts_as} now; "
                        "give its desc-corrected files the folder and name of that result"
                    )
            if reason:
                return replace(file, unfit=reason)
        file = replace(file, is_edited=bool(are_written) and not any(are_written))
        correction = file.correction if file.corrects else None
        if correction is None:
            return replace(file, unfit=self._why_alone(file))
        return replace(file, unfit=correction.why_unfit(scan))

    def _why_alone(self, file: ScanFile) -> str:
        """Return a reason if a correction is left of a result that a run has removed; else ""."""
        if file.corrects is not None:
            return ""
        for folder, contents in self._ledgers.items():
            for result in possible_results(file.path):
                if os.path.relpath(result, folder) in contents.writers:
                    return (
                        "is a correction whose result is gone: run trinat predict again, or "
                        "remove it"
                    )
        return ""

    @cached_property
    def scans(self) -> list[ScanFile]:
        """Scans in the order of review: the most doubtful first."""
        if not self.folder.is_dir():
            remedy = "give the --out of trinat predict"
            raise ConfigError("no such folder", where=self.folder, remedy=remedy)
        scans = self._scans_of_ledgers()
        if not scans:
            # These are label maps of another origin.
            for file in find_files(self.folder, corrected=False):
                entry = Entry(file.name, "done")
                scan = replace(file, folder=self.folder, case=file.name, entry=entry)
                scans.append(scan)
        return sorted(
            scans, key=lambda scan: (scan.entry.doubt, natural_order(scan.case))
        )

    @cached_property
    def _changed(self) -> dict[tuple[Path, int], bool]:
        """Whether files of scans were changed since, by their path and time.

        The viewer asks at each move of the pointer, and hashing a large file takes long.
        """
        return {}

    def image(self, scan: ScanFile) -> Path | None:
        """Return the path of the scan that was segmented; None if missing, changed or DICOM.

        In a study with `images`, it is searched for in that folder, and may have other bytes.
        """
        path = scan.folder / scan.entry.scan
        if self.images is not None:
            path = self.images / scan.entry.input
        elif path.is_file():
            version = (path, path.stat().st_mtime_ns)
            if version not in self._changed:
                self._changed[version] = scan.entry.is_scan_changed(scan.folder)
            if self._changed[version]:
                return None
        if path.is_file() and not scan.entry.is_in_zip:
            return path
        return self._images.get(scan.path)

    def other(self, scan: ScanFile) -> Path | None:
        """Return the label map of the same scan in `against`; None if there is none."""
        return self._others.get(scan.path)

    @cached_property
    def _images(self) -> dict[Path, Path]:
        """Paths of the scans in the folder `images`, by the path of their label map."""
        if self.images is None:
            return {}
        label_maps = [scan.path for scan in self.scans if not scan.is_missing]
        return self._partners(find_images(self.images, label_maps))

    @cached_property
    def _others(self) -> dict[Path, Path]:
        """Paths of the label maps in the folder `against`, by the path of the scan's own."""
        if self.against is None:
            return {}
        return self._partners(Study(self.against).label_maps(kind=self.kind))

    def _partners(self, files: Sequence[ScanFile]) -> dict[Path, Path]:
        """Return the file of another folder that belongs to each scan, by path of its label map.

        It is found by the rules by which `trinat evaluate` pairs predictions with true label maps.
        """
        label_maps = [scan for scan in self.scans if not scan.is_missing]
        partners = partners_of(label_maps, files)
        return {path: partner.path for path, partner in partners.items()}

    def _scans_of_ledgers(self) -> list[ScanFile]:
        """Return the scans in the ledgers, except skipped ones."""
        found = []
        cases = []
        entries = {}
        for folder, of_folder in self.folders.items():
            for entry in of_folder:
                if entry.status == "skipped" or not folder.is_relative_to(self.folder):
                    continue
                case = folder / entry.case
                labels = entry.output(folder, Product.LABELS)
                # A failed scan has the participant in the name of its case.
                path = labels or case.with_name(f"{case.name}.nii.gz")
                found.append(file_below(self.folder, path))
                cases.append((case.relative_to(self.folder).as_posix(), labels is None))
                entries[absolute(path)] = (folder, entry)
        scans = name_files(found, self.folder, entries)
        return [
            replace(scan, case=case, is_missing=is_missing)
            for scan, (case, is_missing) in zip(scans, cases, strict=True)
        ]


def _output_folders(place: Path) -> list[Path]:
    """Return the output folders that belong to a path: folders that contain a ledger.

    These are the folder itself with the folders of its folds; else all folders below it; else the
    nearest folder above it, up to four levels.
    """
    if ledgers_in(place):
        return with_folds(place)
    if place.is_dir():
        ledgers = walk(place, wanted=lambda path: path.match(LEDGERS))
        below = sorted({path.parent for path in ledgers})
        if below:
            return below
    for above in absolute(place).parents[:_FOLDERS_ABOVE]:
        if ledgers_in(above):
            return [above]
    return []


def _why_outdated(entry: Entry | None, name: str, digest: str, folder: Path) -> str:
    """Return why a file of a run is no longer the result of its scan; "" if it still is.

    `entry` is the case's ledger entry, None without a finished run; `name` is the path of the file
    below the output folder `folder`, and `digest` its present SHA-256.
    """
    not_of_last_run = (
        "is not of the last run that was finished: run trinat predict again"
    )
    if entry is None:
        return not_of_last_run
    if entry.status == "done" and entry.outputs.get(name) != digest:
        return not_of_last_run
    if entry.status != "done":
        return f"is an old result: its scan has failed since ({entry.reason})"
    if entry.is_scan_changed(folder):
        return (
            "is an old result: its scan was changed since, or is another scan of this name if the "
            "results were copied; run trinat predict again"
        )
    return ""


def digest(path: Path | None) -> str:
    """Return the SHA-256 of a label map as it is now; "" if it is missing.

    A file is read again only if its time, size or inode has changed.
    """
    if path is None or not path.is_file():
        return ""
    status = path.stat()
    return _digest_of(path, status.st_mtime_ns, status.st_size, status.st_ino)


@cache
def _digest_of(path: Path, *_: int) -> str:
    """Return a file's SHA-256, cached as long as path, time, size and inode stay the same."""
    return sha256_of(path)
