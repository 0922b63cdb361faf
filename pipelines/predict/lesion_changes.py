"""Table of the lesions of each participant over time: new, grown, shrunken and gone ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.record import LesionResult
from trinat.segmentation.longitudinal.lesions import noise_mm3

# Voxels of the participant's space. Smaller voxels of a scan do not make a change more certain.
_FINEST_MM = 1.0


@dataclass(frozen=True)
class LesionChange:
    """Change of the lesions at one place from one scan to the next; the fields are columns.

    `lesion` is the number of the place among those of the participant. `region` and coordinates are
    those of the largest lesion there in `scan`, or in `previous_scan` if the lesion is gone.
    `noise_mm3` is the change that a shift of the lesion's surface by half a voxel makes.
    """

    participant: str
    group: str | None
    lesion: int
    scan: str
    previous_scan: str
    change: Literal["new", "grown", "unchanged", "shrunken", "gone"]
    previous_mm3: float
    mm3: float
    noise_mm3: float
    beyond_noise: Literal["yes", "no"]
    region: str
    x_mm: float
    y_mm: float
    z_mm: float


def lesion_changes(
    participants: Mapping[str, Sequence[Entry]], excluded: Collection[str]
) -> list[LesionChange]:
    """Return the changes of all lesions from each scan to the next.

    `participants` has the ledger entries of each participant's usable scans, in chronological
    order. Scans whose lesions have a grade in `excluded` are skipped.
    """
    changes: list[LesionChange] = []
    for scans in participants.values():
        usable = []
        for entry in scans:
            lesions = entry.result.lesions
            if lesions is not None and lesions.grade not in excluded:
                usable.append(entry)
        for before, after in pairwise(usable):
            changes += _between(before, after)
    return changes


def _between(before: Entry, after: Entry) -> Iterator[LesionChange]:
    """Yield the change at each place that has a lesion in at least one of two scans."""
    point = after.time_point
    old = _by_site(before)
    new = _by_site(after)
    side_mm = max(_FINEST_MM, _side_mm(before), _side_mm(after))
    for site in sorted({*old, *new}):
        at_first = old.get(site, [])
        at_last = new.get(site, [])
        first_mm3 = sum(lesion.mm3 for lesion in at_first)
        last_mm3 = sum(lesion.mm3 for lesion in at_last)
        noise = noise_mm3(max(first_mm3, last_mm3), side_mm)
        is_beyond = abs(last_mm3 - first_mm3) > noise
        # The largest lesion is the first of its scan.
        shown = (at_last or at_first)[0]
        yield LesionChange(
            participant=point.participant,
            group=point.group or None,
            lesion=site,
            scan=after.case,
            previous_scan=before.case,
            change=_word(first_mm3, last_mm3, is_beyond=is_beyond),
            previous_mm3=round(first_mm3, 1),
            mm3=round(last_mm3, 1),
            noise_mm3=round(noise, 1),
            beyond_noise="yes" if is_beyond else "no",
            region=shown.region,
            x_mm=shown.x_mm,
            y_mm=shown.y_mm,
            z_mm=shown.z_mm,
        )


def _by_site(entry: Entry) -> dict[int, list[LesionResult]]:
    """Return the lesions of a scan by place, the largest of each place first."""
    lesions = entry.result.lesions
    assert lesions is not None
    found = defaultdict(list)
    sites = entry.time_point.lesion_sites
    for lesion, site in zip(lesions.lesions, sites, strict=True):
        found[site].append(lesion)
    return found


def _side_mm(entry: Entry) -> float:
    """Return the side of a cube with the volume of a voxel of the scan."""
    return float(np.cbrt(entry.time_point.voxel_mm3))


def _word(
    first_mm3: float, last_mm3: float, *, is_beyond: bool
) -> Literal["new", "grown", "unchanged", "shrunken", "gone"]:
    """Return the word for a change of volume; `is_beyond` is True if it is beyond the noise."""
    if not first_mm3:
        return "new"
    if not last_mm3:
        return "gone"
    if not is_beyond:
        return "unchanged"
    return "grown" if last_mm3 > first_mm3 else "shrunken"
