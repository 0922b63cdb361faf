"""Inputs of a run: cases to segment, and refusals of inputs that cannot be segmented.

No input is dropped: a run reports its cases and its refusals, each with a reason.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trinat.pipelines.study.participants import Facts
from trinat.segmentation.data.identity import Named
from trinat.segmentation.data.sources.base import (
    natural_order,
    safe_component,
    without_suffix,
)
from trinat.segmentation.io.files import files_of_scan


def given_names(shown: str) -> dict[str, str]:
    """Map names as they are in paths of outputs to names as the user gave them.

    In outputs, other characters than those that are safe in file names are replaced. `shown` is the
    path of the scan below the root of the inputs. Names that need no change are omitted.
    """
    scan = Path(shown)
    parts = (*scan.parts[:-1], without_suffix(scan))
    return {safe: part for part in parts if (safe := safe_component(part)) != part}


@dataclass(frozen=True)
class Case:
    """A scan to segment, with its location and the names of its outputs.

    `id` is unique and identifies the case in the ledger and in tables. It has the form folder/stem,
    where stem is the beginning of the names of its outputs. `entities` are the BIDS entities of the
    scan, such as {"sub": "01"}.
    """

    id: str
    path: Path
    shown: str  # path below the input's root, for messages
    entities: Mapping[str, str] = field(default_factory=dict)  # only in a BIDS dataset
    # Only for scans of a store: the voxel axes, such as LAS, if the dataset defines them and the
    # header lacks them; and the hash of the file when the store was made.
    axes: str | None = None
    sha256: str = ""
    also: tuple[str, ...] = ()  # settings of additional outputs of this case
    # Names of the scan's DICOM files within `path`, which is a folder or a zip; empty for other
    # scans.
    series: tuple[str, ...] = ()
    facts: Facts | None = (
        None  # facts about the participant, if a result depends on them
    )

    @property
    def stem(self) -> str:
        """Last part of the id, with which the names of its outputs begin."""
        return self.id.rpartition("/")[2]

    @property
    def named(self) -> Named:
        """Name of the scan and of its folders as the user gave them, not as in its outputs."""
        given = given_names(self.shown)
        *folders, name = [given.get(part, part) for part in self.id.split("/")]
        return Named(name, tuple(folders))

    @property
    def scans(self) -> tuple[Case, ...]:
        """Tuple with this scan only. A `Participant` has the same attribute with all its scans."""
        return (self,)

    @property
    def work(self) -> int:
        """Expected duration as a multiple of that of one scan, for time limits."""
        return 1

    @property
    def files(self) -> tuple[Path, ...]:
        """Paths of the files of the scan, which need not exist.

        For a pair of header and image, the header is the first. For a scan in a zip, it is the zip.
        A ledger hashes the files to detect whether a scan has changed.
        """
        # Unlike `Path.is_file`, this returns False instead of raising if the path cannot be
        # checked.
        is_zip = os.path.isfile(self.path)  # noqa: PTH113
        if self.series and not is_zip:
            return tuple(self.path / name for name in self.series)
        return files_of_scan(self.path)


@dataclass(frozen=True)
class Participant:
    """Several scans of a participant, which are segmented together.

    `years` has the time of each of `scans`, in years from an arbitrary start; None if it is not
    known. `group` is the participant's group in a study; "" if it is not known.
    """

    name: str
    scans: tuple[Case, ...]
    years: tuple[float | None, ...]
    group: str = ""

    @property
    def id(self) -> str:
        """Name of the participant with a slash at the end, which the id of a scan never has."""
        return f"{self.name}/"

    @property
    def work(self) -> int:
        """Expected duration as a multiple of that of one scan.

        It is the number of scans plus one, for the common template.
        """
        return len(self.scans) + 1

    @property
    def unit(self) -> Work:
        """Unit of work for an engine: the participant, or its scan if there is only one."""
        return self if len(self.scans) > 1 else self.scans[0]

    def only(self, keep: Callable[[Case], bool]) -> Participant | None:
        """Return the participant with only the scans for which `keep` is True; None without any.

        The times of these scans are kept.
        """
        kept = [number for number, scan in enumerate(self.scans) if keep(scan)]
        if not kept:
            return None
        scans = tuple(self.scans[number] for number in kept)
        years = tuple(self.years[number] for number in kept)
        return Participant(self.name, scans, years, self.group)


# Unit of work of an engine: a single scan, or all scans of a participant at once.
Work = Case | Participant


@dataclass(frozen=True)
class Refusal:
    """An input that is not segmented, with the reason.

    `shown` is the name that the user gave; `reason` is a phrase for the ledger. `harmless` is True
    if the user loses nothing, for example because the input is a result or was given twice. `case`
    is the id that the case would have had.
    """

    shown: str
    reason: str
    harmless: bool = False
    # Id that the case would have, under which an earlier run may have recorded it.
    case: str = ""


@dataclass(frozen=True)
class Found:
    """Result of the search for scans: cases, refused inputs and messages.

    `bids_root` is the folder of the BIDS dataset; None for all other inputs. `remarks` are
    sentences about files beside the scans that are not read.
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
        """Return the result of a search: cases in natural order, refused inputs and messages.

        Two cases that would write the same output files are both refused, because nothing says
        which one is right.
        """
        # Outputs are named by the id or, in a BIDS dataset, by the folder and the entities.
        by_outputs: dict[object, list[Case]] = defaultdict(list)
        for case in cases:
            named_by: object = case.id
            if case.entities:
                folder = case.id.rpartition("/")[0]
                named_by = (folder, frozenset(case.entities.items()))
            by_outputs[named_by].append(case)
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
        ordered = tuple(sorted(alone, key=lambda case: natural_order(case.id)))
        return cls(ordered, (*refusals, *twins), bids_root, tuple(remarks))
