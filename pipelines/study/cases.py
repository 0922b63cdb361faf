"""What a run is given: cases to segment, and what of its input cannot be one.

Nothing that was given is dropped: a run reports its cases and its refusals, each with a reason.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

from natsort import natsorted

from trinat.pipelines.study.participants import Facts


@dataclass(frozen=True)
class Case:
    """One scan: where it is, and what its outputs are called.

    `id` is unique and stands for the case in ledger and tables; it is also folder/stem.
    """

    id: str
    path: Path
    shown: str  # path below the input's root, for people
    entities: Mapping[str, str] = field(default_factory=dict)  # only in a BIDS dataset
    # Of a store's: where the dataset vouches for axes; what the file was when the store was made.
    axes: str | None = None
    sha256: str = ""
    also: tuple[str, ...] = ()  # settings of further outputs that this case alone gets
    # The DICOM files that it is, in the folder or zip `path`.
    series: tuple[str, ...] = ()
    facts: Facts | None = None  # of the person, where a result depends on these

    @property
    def stem(self) -> str:
        """The last part of the id: what the names of its outputs begin with."""
        return self.id.rpartition("/")[2]

    @property
    def decides_outputs(self) -> object:
        """The key of its output files: cases with equal keys would write the same files."""
        if not self.entities:
            return self.id
        folder = self.id.rpartition("/")[0]
        return folder, frozenset(self.entities.items())

    @property
    def scans(self) -> tuple[Case, ...]:
        """The scan itself, as the scans of a `Person`."""
        return (self,)

    @property
    def work(self) -> int:
        """How many scans it takes as long as, for limits of time."""
        return 1

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that the scan consists of, a header before its image; a zip as a whole.

        The paths need not exist. They are what a ledger hashes to see whether a scan changed.
        """
        # Unlike `Path.is_file` it answers False where that cannot be known.
        is_zip = os.path.isfile(self.path)  # noqa: PTH113
        if self.series and not is_zip:
            return tuple(self.path / name for name in self.series)
        suffix = self.path.suffix
        if suffix.lower() not in (".hdr", ".img"):
            return (self.path,)
        if suffix.isupper():
            return (self.path.with_suffix(".HDR"), self.path.with_suffix(".IMG"))
        return (self.path.with_suffix(".hdr"), self.path.with_suffix(".img"))


@dataclass(frozen=True)
class Person:
    """Several scans of one person, which are segmented together.

    `years` is the time of each scan, in years from any start; None if it is not known. `group` is
    the person's in a study; "" if nothing says it.
    """

    name: str
    scans: tuple[Case, ...]
    years: tuple[float | None, ...]
    group: str = ""

    @property
    def id(self) -> str:
        """A key that is no scan's: these are paths, and end with no slash."""
        return f"{self.name}/"

    @property
    def shown(self) -> str:
        """The name of the person, for people."""
        return self.name

    @property
    def path(self) -> Path:
        """The path of the first scan."""
        return self.scans[0].path

    @property
    def facts(self) -> Facts | None:
        """None: the facts are those of each scan."""
        return None

    @property
    def work(self) -> int:
        """How many scans it takes as long as, for limits of time: the template is one more."""
        return len(self.scans) + 1

    @property
    def unit(self) -> Work:
        """The work for an engine: the only scan of a person is segmented by itself."""
        return self if len(self.scans) > 1 else self.scans[0]

    def only(self, keep: Callable[[Case], bool]) -> Person | None:
        """Return the person with some of the scans alone; None without any."""
        kept = [number for number, scan in enumerate(self.scans) if keep(scan)]
        if not kept:
            return None
        scans = tuple(self.scans[number] for number in kept)
        years = tuple(self.years[number] for number in kept)
        return Person(self.name, scans, years, self.group)


# What is segmented at once.
Work = Case | Person


@dataclass(frozen=True)
class Refusal:
    """Something that was given and is not segmented; `harmless`: nothing is missing without it.

    `shown` is how the user named it; `reason` is a phrase for the ledger.
    """

    shown: str
    reason: str
    harmless: bool = False
    case: str = ""  # the id of the case that it would have been, and may have been in a run before


@dataclass(frozen=True)
class Found:
    """All that an input holds: cases, refusals, and its root where it is a BIDS dataset.

    `bids_root` is None for all other inputs. `remarks` are sentences on files beside the scans,
    which nobody takes for scans.
    """

    cases: tuple[Case, ...]
    refusals: tuple[Refusal, ...] = ()
    bids_root: Path | None = None
    remarks: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        cases: Iterable[Case],
        refusals: Iterable[Refusal],
        bids_root: Path | None = None,
        remarks: Iterable[str] = (),
    ) -> Found:
        """Cases in natural order; those that would write the same output are refused.

        All of the twins are refused, as none of them is more right than the others.
        """
        by_outputs: dict[object, list[Case]] = defaultdict(list)
        for case in cases:
            by_outputs[case.decides_outputs].append(case)
        alone: list[Case] = []
        twins: list[Refusal] = []
        for same in by_outputs.values():
            if len(same) == 1:
                alone += same
                continue
            for case in same:
                others = ", ".join(
                    other.path.name for other in same if other is not case
                )
                reason = f"{others} beside it would get the same output: keep one"
                twins.append(Refusal(case.shown, reason, case=case.id))
        ordered = tuple(natsorted(alone, key=attrgetter("id")))
        return cls(ordered, (*refusals, *twins), bids_root, tuple(remarks))
