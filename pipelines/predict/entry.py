"""An entry: what became of one input of one run. A line of the ledger, and a worker's answer.

Here is also which results to doubt: how urgently a scan needs a look, and what is in no number of a
group.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import nsmallest
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ConfigDict

from trinat.pipelines.predict.settings import EXCLUDED_GRADES, MOST_SHOWN, RunSettings
from trinat.pipelines.study.cases import Case
from trinat.pipelines.study.naming import LEFT_OUT
from trinat.segmentation.data.sources.base import natural_order
from trinat.segmentation.errors import InputError
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.timing import Spent

if TYPE_CHECKING:
    from trinat.segmentation.labels.scheme import LabelScheme

Status = Literal["done", "failed", "skipped", "writing"]
# The most urgent first. A result without a grade is looked at before those that pass.
GRADES = ("failed", "reject", "look", "ungraded", "pass")


@dataclass(frozen=True)
class Entry:
    """What became of one input of one run.

    Paths are relative: `input` to the root of the inputs, all others to the output folder.

    - `scan` is the input's path; `input_sha256` is the hash of the bytes that were segmented.
    - `model` is a hash. It is empty where an input was refused before any model was loaded.
    - `outputs` maps each path to its SHA-256. `aside` maps what earlier attempts had written,
      and this one has not, to where it was moved.
    - `result` holds everything that tables are made of: volumes, quality, notes.
    - `attempt` numbers the attempts at this case over all ledgers of the folder. It is 0 in
      ledgers from before attempts were numbered.

    Four fields are for the run alone and never in the file. `staged` is the folder where outputs
    wait until they are moved into place. `spent` is where the time of the worker's process went
    since its entry before. `no_room` says that the case failed because the disk is full. `of_scans`
    are the entries of a person's scans, where the case is a person.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    case: str
    status: Status
    input: str = ""
    reason: str = ""
    input_sha256: str = ""
    scan: str = ""
    model: str = ""
    settings: str = ""
    outputs: Mapping[str, str] = field(default_factory=dict)
    aside: Mapping[str, str] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    timings_s: Mapping[str, float] = field(default_factory=dict)
    worker: str = ""
    attempt: int = 0
    finished: str = field(
        default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds")
    )
    staged: str = ""
    spent: Spent = field(default_factory=dict)
    no_room: bool = False
    of_scans: tuple[Any, ...] = ()

    @classmethod
    def of(
        cls,
        case: Case,
        settings: RunSettings,
        status: Status,
        **fields: Any,
    ) -> Entry:
        """What a run with these settings made of a case; `fields` are further fields.

        The path of the scan is relative to the output folder.
        """
        # As seen from the output, so that no path of this machine gets into the ledger.
        scan = os.path.relpath(case.path, settings.out.resolve())
        return cls(
            case.id,
            status,
            case.shown,
            scan=scan,
            model=settings.model_sha256,
            settings=settings.digest(case),
            **fields,
        )

    @classmethod
    def failed(cls, case: Case, settings: RunSettings, reason: str) -> Entry:
        """The entry of a case that gave no result, for this reason."""
        return cls.of(case, settings, "failed", reason=reason)

    @property
    def is_refusal(self) -> bool:
        """Whether its input was refused before any model was loaded."""
        return not self.model

    @property
    def is_kept(self) -> bool:
        """Whether it was skipped because its result was changed after a run had written it."""
        return self.status == "skipped" and not self.is_refusal

    @property
    def is_left_out(self) -> bool:
        """Whether it is a part of the input that is no scan to segment, such as a localiser."""
        return self.status == "skipped" and self.reason.startswith(LEFT_OUT)

    @property
    def is_withdrawn(self) -> bool:
        """Whether it was refused once and is no longer given: no table shows it."""
        return self.status == "skipped" and self.is_refusal and not self.is_left_out

    def is_current(self, case: Case, settings: RunSettings) -> bool:
        """Whether its result needs no new run.

        It was done from the same input, with the same model and settings, and its outputs are
        still as they were written.
        """
        if self.status != "done" or self.model != settings.model_sha256:
            return False
        if self.settings != settings.digest(case):
            return False
        # The scan comes last: where anything else has changed it is not read.
        if not self.is_written(settings.out):
            return False
        return digest_of(*case.files) == self.input_sha256

    def is_written(self, folder: Path) -> bool:
        """Whether its outputs are in `folder`, and are as they were written."""
        return all(
            digest_of(folder / path) == digest for path, digest in self.outputs.items()
        )

    def digest_of_scan(self, folder: Path) -> str | None:
        """SHA-256 of the scan as it is now; None where it is missing or consists of many files.

        `folder` is the output folder, which the path of the scan starts from.
        """
        if not self.scan:
            return None
        case = Case(self.case, folder.resolve() / self.scan, self.input)
        return digest_of(*case.files)


def digest_of(*paths: Path) -> str | None:
    """SHA-256 over the bytes of these files; None if one is missing or not a regular file."""
    try:
        return sha256_of(*paths)
    except (InputError, OSError):
        return None


def digests_of(folder: Path, names: Iterable[str]) -> dict[str, str | None]:
    """SHA-256 of those of these names that are in the folder; None for what is not a file."""
    digests = {}
    for name in names:
        if os.path.lexists(folder / name):
            digests[name] = digest_of(folder / name)
    return digests


def taught_by_models(entries: Iterable[Entry]) -> list[str]:
    """A sentence on each model that was trained with labels which other models had made.

    Every report shows these.
    """
    sentences = set()
    for entry in entries:
        pseudo_labels = entry.result.get("pseudo_labels")
        if pseudo_labels:
            sentences.add(f"{entry.result['model']} was trained with {pseudo_labels}.")
    return sorted(sentences)


def measured_in(
    scheme: LabelScheme, structures: Iterable[str], parcels: Iterable[str]
) -> set[str]:
    """The names of what results have volumes of, as a scheme has them.

    `structures` and `parcels` are those of the results. Of a scheme with parcels, they stand in
    place of the cortex.
    """
    if scheme.has_parcels and parcels:
        return (set(structures) & set(scheme.names)) | set(parcels)
    return set(structures)


def grade_of(entry: Entry) -> str:
    """The grade of a scan; where it has none, the status of its entry."""
    return entry.result.get("grade") or entry.status


def why_of(entry: Entry) -> str:
    """The reasons for a scan's grade; where there are none, for the status of its entry."""
    return "; ".join(entry.result.get("reasons", ())) or entry.reason


def doubt_of(entry: Entry) -> tuple[int, float, Any]:
    """A key to sort scans by, the most doubtful first, in tables, pages and `trinat view`.

    In the order of grades, then of agreement between views, then of names.
    """
    grade = grade_of(entry)
    if grade not in GRADES:
        grade = "ungraded"
    urgency = GRADES.index(grade)
    agreement = entry.result.get("mean_agreement")
    if agreement is None:
        agreement = 1.0
    return urgency, agreement, natural_order(entry.case)


def most_doubtful(entries: Iterable[Entry]) -> list[Entry]:
    """The scans of which the page has slices, the most doubtful first."""
    done = (entry for entry in entries if entry.status == "done")
    return nsmallest(MOST_SHOWN, done, key=doubt_of)


def why_left_out(result: Mapping[str, Any], excluded: Collection[str]) -> str:
    """Why a scan is in no number of its group; "" where it is in them.

    `result` is that of its entry, `excluded` the grades that are left out.
    """
    grade = result.get("grade", "")
    if grade not in excluded:
        return ""
    reasons = "; ".join(result.get("reasons", ()))
    return f"graded {grade}: {reasons}" if reasons else f"graded {grade}"


def structures_left_out(
    result: Mapping[str, Any], excluded: Collection[str]
) -> dict[str, str]:
    """Structures and parcels of a scan that are in no number of its group, by their own grades.

    `result` is that of the scan's entry, `excluded` the grades that are left out.
    """
    grades = dict(result.get("structure_grades", {}))
    for name, parcel in result.get("parcels", {}).items():
        grades[name] = parcel["grade"]
    return {name: grade for name, grade in grades.items() if grade in excluded}


def counted_volumes(
    result: Mapping[str, Any], *, parcels: bool = False
) -> dict[str, float]:
    """The volumes of a scan in mm³ that others are held against: none of what is left out.

    With `parcels` those of parcels too.
    """
    if why_left_out(result, EXCLUDED_GRADES):
        return {}
    left_out = structures_left_out(result, EXCLUDED_GRADES)
    volumes_mm3 = dict(result.get("volumes_mm3", {}))
    if parcels:
        for name, parcel in result.get("parcels", {}).items():
            volumes_mm3[name] = parcel["mm3"]
    return {name: mm3 for name, mm3 in volumes_mm3.items() if name not in left_out}
