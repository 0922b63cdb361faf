"""Accuracy and test-retest figures of cortical thickness for docs/thickness.md.

`scripts/bench thickness SUBJECTS_DIR [SCAN SCAN ...]` segments the subjects that have
`stats/?h.aparc.stats`, and compares `ThickAvg` of each parcel. Nothing is fitted. Optional
SCANs are pairs, each of one participant. The environment variables MODEL and KEPT are those of
`_kept.py`.
"""

from __future__ import annotations

import resource
from pathlib import Path
from time import process_time

import numpy as np
from numpy.typing import NDArray

from benches._kept import Segmentations, find_image
from trinat.segmentation.inference.prediction import Prediction

_COLUMN = 4  # ThickAvg in aparc.stats


def run(folder: str, *pairs: str) -> None:
    """Print a line for each subject and pair, then the figures over subjects."""
    segmentations = Segmentations(parcels=True)
    found = []
    truth = []
    for stats in sorted(Path(folder).glob("*/stats/lh.aparc.stats")):
        subject = stats.parent.parent
        image = find_image(subject)
        if image is None:
            continue
        by_name = _measure(segmentations.of(image), subject.name)
        of_subject = _read_stats(subject / "stats")
        names = sorted(of_subject)
        found.append([by_name[name] for name in names])
        truth.append([of_subject[name] for name in names])
        r = np.corrcoef(found[-1], truth[-1])[0, 1]
        print(
            f"{subject.name}: {np.mean(found[-1]):.3f} mm, FreeSurfer "
            f"{np.mean(truth[-1]):.3f} mm, r over parcels {r:.3f}",
            flush=True,
        )
    if len(found) > 1:
        _print_agreement(np.array(found), np.array(truth))
    for one, other in zip(pairs[::2], pairs[1::2], strict=True):
        values = []
        for path in (one, other):
            by_name = _measure(segmentations.of(Path(path)), Path(path).name)
            values.append([by_name[name] for name in sorted(by_name)])
        first, second = np.array(values)
        change = 200 * np.abs(first - second) / (first + second)
        print(
            f"{Path(one).name}, {Path(other).name}: {change.mean():.2f} % apart",
            flush=True,
        )


def _measure(prediction: Prediction, name: str) -> dict[str, float]:
    """Return the thickness of each parcel in mm by its name; print the time it took."""
    began = process_time()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    parcels = prediction.cortex_thickness.parcels
    assert prediction.thickness_map
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(
        f"{name}: {process_time() - began:.1f} s of the processor, "
        f"{more / 1024:.0f} MB above the peak before"
    )
    return {parcel.name: parcel.thickness_mm or np.nan for parcel in parcels}


def _read_stats(folder: Path) -> dict[str, float]:
    """Return ThickAvg in mm by the name of the parcel, such as ctx-lh-insula."""
    thickness = {}
    for hemisphere in ("lh", "rh"):
        text = (folder / f"{hemisphere}.aparc.stats").read_text()
        for line in text.splitlines():
            if not line.startswith("#"):
                cells = line.split()
                thickness[f"ctx-{hemisphere}-{cells[0]}"] = float(cells[_COLUMN])
    return thickness


def _print_agreement(found: NDArray[np.float64], truth: NDArray[np.float64]) -> None:
    """Print the figures over subjects; both are thickness in mm, (subjects, parcels)."""
    # Deviations from the mean of each parcel are differences between participants.
    of_found = found - found.mean(0)
    of_truth = truth - truth.mean(0)
    products = (of_found * of_truth).sum(0)
    norms = np.sqrt((of_found**2).sum(0) * (of_truth**2).sum(0))
    participants = np.corrcoef(found.mean(1), truth.mean(1))[0, 1]
    left_out = []
    for number in range(len(found)):
        others = np.arange(len(found)) != number
        offset = (found - truth)[others].mean(0)
        left_out.append(np.abs(found[number] - offset - truth[number]).mean())
    print(f"r by parcel over participants, median: {np.median(products / norms):.3f}")
    print(f"r of the participants' means: {participants:.3f}")
    print(f"slope of deviations: {products.sum() / (of_truth**2).sum():.3f}")
    print(f"level: {(found - truth).mean():+.3f} mm")
    print(f"difference: {np.abs(found - truth).mean():.3f} mm")
    print(
        f"difference after each parcel's offset: {np.abs(of_found - of_truth).mean():.3f} mm; "
        f"with offsets of the others: {np.mean(left_out):.3f} mm"
    )
