"""Which scan to correct next, so that a model learns most from it.

A correction teaches the scans that are like its own, each as far as it is in doubt. So the scan
comes first that is like the most doubt, next the one that is like most of what is left. That is the
greedy choice of facilities (Nemhauser et al. 1978): it is never far from the best choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Proposal:
    """A scan by its number; `share` of all doubt is what its correction is expected to teach."""

    scan: int
    share: float


def likeness(features: Values) -> Values:
    """How alike scans are, (N, N) from 0 to 1, by their features (N, F).

    Features count alike: each is taken in its standard deviations; what is not known (NaN) is as
    usual. Two scans that are as far apart as is usual (the median) have the likeness 0.61.
    """
    known = ~np.isnan(features)
    count = np.maximum(known.sum(0), 1)
    mean = np.where(known, features, 0).sum(0) / count
    deviations = np.where(known, features - mean, 0)
    spread = np.sqrt((deviations**2).sum(0) / count)
    scaled = deviations / np.where(spread > 0, spread, 1)
    lengths = (scaled**2).sum(1)
    # Rounding may take a square below 0.
    squares = np.maximum(lengths[:, None] + lengths - 2 * scaled @ scaled.T, 0)
    of_pairs = squares[np.triu_indices(len(squares), 1)]
    usual = float(np.median(of_pairs)) if len(of_pairs) else 0.0
    if usual == 0:
        usual = 1.0
    return np.asarray(np.exp(-squares / (2 * usual)))


def propose(
    alike: Values,
    doubts: Values,
    persons: Sequence[str],
    corrected: Sequence[int],
    most: int,
) -> list[Proposal]:
    """The scans to correct next, the first first; at most so many, and of no person two.

    `alike` (N, N) is from `likeness`, `doubts` (N,) are 0 or more. Those of `corrected` scans'
    persons are not proposed, and what is like them is taught already.
    """
    total = float(doubts.sum())
    done = {persons[scan] for scan in corrected}
    taught = np.zeros(len(doubts))
    if corrected:
        taught = alike[list(corrected)].max(0)
    proposals: list[Proposal] = []
    while len(proposals) < most:
        free = [scan for scan, person in enumerate(persons) if person not in done]
        if not free:
            break
        # What each would teach of each scan, beyond what is taught already.
        more = np.maximum(alike[free] - taught, 0) @ doubts
        best = int(np.argmax(more))
        scan = free[best]
        share = float(more[best]) / total if total > 0 else 0.0
        proposals.append(Proposal(scan, share))
        done.add(persons[scan])
        taught = np.maximum(taught, alike[scan])
    return proposals
