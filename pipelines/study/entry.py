"""Row of one input in the ledger of a run: what was segmented, how, and with which outcome.

A worker process answers with the same class, so it has fields for the run, too.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from heapq import nsmallest
from operator import attrgetter
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from pydantic import ConfigDict

from trinat.pipelines.study.cases import Case
from trinat.pipelines.study.naming import LEFT_OUT, Product
from trinat.pipelines.study.record import GRADES, ScanResult, TimePoint
from trinat.segmentation.data.sources.base import natural_order
from trinat.segmentation.errors import InputError
from trinat.segmentation.io.files import absolute, is_broken_link, sha256_of
from trinat.segmentation.io.streams import SCAN_SUFFIXES
from trinat.segmentation.timing import Spent

Status = Literal["done", "failed", "skipped", "writing"]
# Number of scans, the most doubtful ones, whose slices are on the page of a run.
MOST_SHOWN = 5


class Run(Protocol):
    """Properties of a run that are recorded in each of its ledger entries."""

    @property
    def out(self) -> Path:
        """Output folder."""

    @property
    def model_sha256(self) -> str:
        """Hash of the model."""

    def digest(self, case: Case) -> str:
        """Return a hash of all that the result of a case depends on, except scan and model."""


@dataclass(frozen=True)
class Entry:
    """Outcome of one input of one run, as written to the ledger of the output folder.

    Paths are relative: `input` to the root of the inputs, all others to the output folder.

    - `case` is the id of the case, and `reason` explains a status other than "done".
    - `scan` is the input's path; `input_sha256` is the hash of the bytes that were segmented.
    - `unusable_sha256` is the hash of a scan that cannot be segmented with the participant's other
      scans, because it is damaged or shows another head.
    - `model` is the hash of the model. It is empty if the input was refused before any model was
      loaded.
    - `settings` is a hash of all settings that the result depends on.
    - `outputs` maps the path of each output file to its SHA-256.
    - `result` has the numbers for tables and pages; it is empty if there is no result.
    - `timings_s` maps the steps of the work to their duration in seconds.
    - `counts_as` is the case as which the scan counts since it was renamed; "" if it was not.
    - `worker` names the process that did the work; `finished` is the time of the entry (ISO 8601,
      UTC).
    - `attempt` numbers the attempts at this case over all ledgers of the folder. It is 0 in ledgers
      from before attempts were numbered.

    Three fields exist only during the run and are never in the file. `staged` is the folder where
    outputs wait until they are moved into place. `spent` is how the worker's process has used its
    time since its previous entry: wall and processor time in seconds, by stage. `no_room` is True
    if the case failed because the disk is full.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    case: str
    status: Status
    input: str = ""
    reason: str = ""
    input_sha256: str = ""
    unusable_sha256: str = ""
    scan: str = ""
    model: str = ""
    settings: str = ""
    outputs: Mapping[str, str] = field(default_factory=dict)
    result: ScanResult = field(default_factory=ScanResult)
    timings_s: Mapping[str, float] = field(default_factory=dict)
    counts_as: str = ""
    worker: str = ""
    attempt: int = 0
    finished: str = field(
        default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds")
    )
    staged: str = ""
    spent: Spent = field(default_factory=dict)
    no_room: bool = False

    @classmethod
    def of(cls, case: Case, run: Run, status: Status, reason: str = "") -> Entry:
        """Return the entry of a case with a status, and with the model and settings of a run."""
        # Relative to the output, so that no path of this machine gets into the ledger.
        scan = os.path.relpath(case.path, run.out.resolve())
        return cls(
            case.id,
            status,
            case.shown,
            reason,
            scan=scan,
            model=run.model_sha256,
            settings=run.digest(case),
        )

    @classmethod
    def failed(cls, case: Case, run: Run, reason: str) -> Entry:
        """Return the entry of a case that has failed, with the reason."""
        return cls.of(case, run, "failed", reason)

    @classmethod
    def unusable(cls, case: Case, run: Run, reason: str) -> Entry:
        """Return the entry of a participant's scan that has failed because of its content."""
        digest = digest_of(*case.files) or ""
        return replace(cls.failed(case, run, reason), unusable_sha256=digest)

    @property
    def grade(self) -> str:
        """Quality grade of the segmentation; without one, the status, such as "failed"."""
        return self.result.grade or self.status

    @property
    def why(self) -> str:
        """Reasons for the quality grade, or if there are none, the reason for the status."""
        return "; ".join(self.result.reasons) or self.reason

    @property
    def doubt(self) -> tuple[int, float, object]:
        """Sort key that puts the most doubtful segmentations first.

        It consists of the urgency of the grade, the mean agreement of the views (low values first)
        and the name in natural order.
        """
        urgency = GRADES.index(self.grade if self.grade in GRADES else "ungraded")
        agreement = self.result.mean_agreement
        return (
            urgency,
            1.0 if agreement is None else agreement,
            natural_order(self.case),
        )

    @property
    def time_point(self) -> TimePoint:
        """Time, participant and volumes of a scan that was segmented with others."""
        time_point = self.result.longitudinal
        assert time_point is not None
        return time_point

    @property
    def content(self) -> tuple[str, str]:
        """Key of the scan's content, equal for scans with the same bytes.

        It has the hash of the scan, and the name of the series if the scan is in a zip: all series
        in a zip have the hash of the zip.
        """
        series = ""
        if self.is_in_zip:
            series = self.case.rpartition("/")[2]
        return self.input_sha256, series

    @property
    def is_in_zip(self) -> bool:
        """True if the scan is a DICOM series in a zip, which may contain other series, too."""
        return self.scan.lower().endswith(".zip")

    @property
    def series(self) -> str:
        """Name of the DICOM series if the scan is one in a folder; "" for all other scans."""
        if self.scan.lower().endswith((*SCAN_SUFFIXES, ".zip")):
            return ""
        return self.case.rpartition("/")[2]

    @property
    def is_refusal(self) -> bool:
        """True if the input was refused before any model was loaded."""
        return not self.model

    @property
    def is_left_out(self) -> bool:
        """True if the input was skipped because it is no scan to segment, such as a localiser."""
        return self.status == "skipped" and self.reason.startswith(LEFT_OUT)

    @property
    def is_withdrawn(self) -> bool:
        """True if an earlier run could not segment the input and the current run no longer has it.

        Tables do not show such an entry.
        """
        return self.status == "skipped" and self.is_refusal and not self.is_left_out

    def is_current(self, case: Case, run: Run) -> bool:
        """Return True if the result of a case is up to date, so that this run need not segment it.

        It is if the case was segmented from the same input with the same model and settings, and if
        its outputs are still as they were written. An input whose content is missing now, as that
        of a dropped file of git-annex, counts as the same.
        """
        if self.status != "done" or not self._has_settings(case, run):
            return False
        # Check the scan last: it is not read if anything else has changed.
        if not self.is_written(run.out):
            return False
        is_dropped = any(is_broken_link(path) for path in case.files)
        return is_dropped or digest_of(*case.files) == self.input_sha256

    def is_still_unusable(self, case: Case, run: Run) -> bool:
        """Return True if the case has failed because of its content, and would fail again."""
        if not self.unusable_sha256 or not self._has_settings(case, run):
            return False
        return digest_of(*case.files) == self.unusable_sha256

    def _has_settings(self, case: Case, run: Run) -> bool:
        """Return True if the case was recorded with the model and settings of a run."""
        return self.model == run.model_sha256 and self.settings == run.digest(case)

    def output(self, folder: Path, product: Product) -> Path | None:
        """Return the path of one kind of output file in `folder`; None if the entry lists none.

        A path that leads out of the folder is ignored, because a ledger may come from elsewhere.
        """
        name = product.among(self.outputs)
        if name is None:
            return None
        path = folder / name
        return path if path.resolve().is_relative_to(folder.resolve()) else None

    def is_written(self, folder: Path) -> bool:
        """Return True if all output files are in `folder`, unchanged since they were written."""
        return all(
            digest_of(folder / path) == digest for path, digest in self.outputs.items()
        )

    def digest_of_scan(self, folder: Path) -> str | None:
        """Return the SHA-256 of the scan as it is now; None if it is missing or a DICOM folder.

        The path of the scan is relative to `folder`, the output folder.
        """
        if not self.scan:
            return None
        case = Case(self.case, folder.resolve() / self.scan, self.input)
        return digest_of(*case.files)

    def is_scan_changed(self, folder: Path) -> bool:
        """Return True if the scan is no longer what was segmented; False if that is unknown.

        The path of the scan is relative to `folder`, the output folder.
        """
        now = self.digest_of_scan(folder)
        is_known = now is not None and self.input_sha256 != ""
        return is_known and now != self.input_sha256


def digest_of(*paths: Path) -> str | None:
    """Return the SHA-256 of the concatenated bytes of files.

    None if a file is missing or not a regular file.
    """
    try:
        return sha256_of(*paths)
    except (InputError, OSError):
        return None


def digests_of(folder: Path, names: Iterable[str]) -> dict[str, str | None]:
    """Return the SHA-256 of the named files in a folder, by name.

    It is None for a path that is not a regular file. Names that do not exist are omitted.
    """
    digests = {}
    for name in names:
        if os.path.lexists(folder / name):
            digests[name] = digest_of(folder / name)
    return digests


def find_moved(entries: Iterable[Entry], folder: Path) -> dict[str, str]:
    """Map each case whose scan counts under the name of another case to that other case.

    The two scans have the same bytes. Either they are one file, which a later run was given with
    another folder, or the file of the first was renamed or moved. Two equal files that both exist
    are two scans, and so are two that are both missing, unless `Entry.counts_as` was recorded while
    one of them existed. For DICOM series in folders, see `_find_moved_series`. `entries` are ledger
    entries. Their paths of scans are relative to `folder`, the output folder.
    """
    root = folder.resolve()
    moved = {}
    by_content: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    by_series: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.counts_as:
            moved[entry.case] = entry.counts_as
        elif entry.status == "done" and entry.scan and entry.input_sha256:
            if entry.series:
                by_series[entry.series].append(entry)
            else:
                by_content[entry.content].append(entry)
    for same in by_series.values():
        moved.update(_find_moved_series(same, root))
    for same in by_content.values():
        if len(same) == 1:
            continue
        same.sort(key=attrgetter("finished"))
        path_of = {entry.case: absolute(root / entry.scan) for entry in same}
        last_at = {path_of[entry.case]: entry for entry in same}
        existing = [entry for entry in same if path_of[entry.case].exists()]
        for entry in same:
            current = last_at[path_of[entry.case]]
            if existing and current not in existing:
                current = existing[-1]
            if current is not entry:
                moved[entry.case] = current.case
    return moved


def _find_moved_series(entries: Sequence[Entry], root: Path) -> dict[str, str]:
    """Map each case whose DICOM series was segmented again from another folder to the last case.

    `entries` are series of one name, with paths relative to `root`. The name has only a part of a
    hash of the series' identifier, so it is no proof. Two entries are of one series if their files
    have the same bytes, or if the folder of one is in that of the other: a run takes the files of a
    series from all subfolders.
    """
    place_of = {entry.case: absolute(root / entry.scan) for entry in entries}
    last_first = sorted(
        entries,
        key=lambda entry: (place_of[entry.case].exists(), entry.finished),
        reverse=True,
    )
    moved = {}
    counted: list[Entry] = []
    for entry in last_first:
        place = place_of[entry.case]
        for later in counted:
            other = place_of[later.case]
            is_within = place.is_relative_to(other) or other.is_relative_to(place)
            if is_within or entry.input_sha256 == later.input_sha256:
                moved[entry.case] = later.case
                break
        else:
            counted.append(entry)
    return moved


def counted_entries(entries: Collection[Entry], folder: Path) -> list[Entry]:
    """Return the ledger entries that tables show, in natural order of cases.

    Each scan counts once, and withdrawn inputs do not count. `folder` is the output folder.
    """
    moved = find_moved(entries, folder)
    counted = [
        entry for entry in entries if not entry.is_withdrawn and entry.case not in moved
    ]
    return sorted(counted, key=lambda entry: natural_order(entry.case))


def taught_by_models(entries: Iterable[Entry]) -> list[str]:
    """Return a sentence about each model that was trained with labels made by other models.

    `entries` are the ledger's rows of the scans that were segmented. Every report shows these
    sentences.
    """
    sentences = set()
    for entry in entries:
        pseudo_labels = entry.result.pseudo_labels
        if pseudo_labels:
            sentences.add(f"{entry.result.model} was trained with {pseudo_labels}.")
    return sorted(sentences)


def most_doubtful(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries of the five scans (`MOST_SHOWN`) with the most doubtful segmentations.

    The most doubtful is the first. The page of a run shows slices of these scans.
    """
    done = (entry for entry in entries if entry.status == "done")
    return nsmallest(MOST_SHOWN, done, key=attrgetter("doubt"))
