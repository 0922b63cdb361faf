"""Accuracy and test-retest figures of the corpus callosum for docs/callosum.md.

`scripts/bench callosum SUBJECTS_DIR [SCAN SCAN ...]` segments the subjects and compares their
callosum with 251 to 255 of FreeSurfer's `aseg.mgz`. Optional SCANs are pairs, each of one
participant. The environment variables MODEL and KEPT are those of `_kept.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benches._kept import Segmentations, find_image
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme

# No adult's callosum is as large as this within 5 mm (mm³): FreeSurfer's label has other tissue.
_LARGE = 6000.0


def run(folder: str, *pairs: str) -> None:
    """Print a line for each subject and pair, then the means over subjects."""
    segmentations = Segmentations()
    numbers = load_scheme("callosum").fs_ids[1:]
    rows = []
    of_parts_mm3 = []
    for truth_path in sorted(Path(folder).glob("*/mri/aseg.mgz")):
        subject = truth_path.parent.parent
        image = find_image(subject)
        if image is None:
            continue
        found = segmentations.of(image).callosum
        truth = np.asarray(Volume.read(truth_path).data)
        labels = found.labels.data
        of_parts = [_dice(labels == number, truth == number) for number in numbers]
        is_truth = np.isin(truth, numbers)
        voxel_mm3 = found.labels.grid.voxel_mm3
        of_parts_mm3.append(
            [
                [(each == number).sum() * voxel_mm3 for number in numbers]
                for each in (labels, truth)
            ]
        )
        of_whole = _dice(labels > 0, is_truth)
        true_mm3 = is_truth.sum() * voxel_mm3
        rows.append((of_whole, np.mean(of_parts), found.volume_mm3, true_mm3))
        print(
            f"{subject.name}: Dice {of_whole:.3f}, of parts {rows[-1][1]:.3f}, "
            f"{found.volume_mm3:.0f} mm3, FreeSurfer {true_mm3:.0f}, {found.grade}",
            flush=True,
        )
    whole, parts, volumes, true_volumes = np.array(rows).T
    for text, taken in (("all", volumes > 0), ("of usual size", true_volumes < _LARGE)):
        r = np.corrcoef(volumes[taken], true_volumes[taken])[0, 1]
        print(
            f"{text}, {taken.sum()} participants: Dice {whole[taken].mean():.3f}, of parts "
            f"{parts[taken].mean():.3f}, r of volumes {r:.2f}, share of FreeSurfer's volume "
            f"{(volumes[taken] / true_volumes[taken]).mean():.2f}"
        )
    usual = np.array(of_parts_mm3)[true_volumes < _LARGE]
    for place, number in enumerate(numbers):
        r = np.corrcoef(usual[:, 0, place], usual[:, 1, place])[0, 1]
        share = (usual[:, 0, place] / usual[:, 1, place]).mean()
        print(f"{number}: r of volumes {r:.2f}, share of FreeSurfer's {share:.2f}")
    for one, other in zip(pairs[::2], pairs[1::2], strict=True):
        first, second = (segmentations.of(Path(path)).callosum for path in (one, other))
        percents = {"volume": _percent(first.volume_mm3, second.volume_mm3)}
        for name, value in first.measures.items():
            again = second.measures[name]
            if value is not None and again is not None:
                percents[name] = _percent(value, again)
        shown = ", ".join(f"{name} {value:.1f} %" for name, value in percents.items())
        print(f"{Path(one).name} and {Path(other).name}: {shown}", flush=True)


def _percent(one: float, other: float) -> float:
    return 200 * abs(one - other) / (one + other)


def _dice(one: np.ndarray, other: np.ndarray) -> float:
    return float(2 * (one & other).sum() / max(one.sum() + other.sum(), 1))
