"""Derive the phantom's anatomy, segmentation/anatomy.npz, from one whole-head label map.

Source: BBillot/SynthSeg (https://github.com/BBillot/SynthSeg), folder data, Apache-2.0: a label
map of a whole head, and how bright each tissue is in T1 scans.

One head rather than a consensus of many: a consensus of unlike brains has no gyri. This head has
all structures, no large lesion, and a left lateral ventricle half as large again as the right
one, so that a swap of sides shows.
"""

from __future__ import annotations

import lzma
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from segmentation.io.files import atomic_write
from segmentation.io.volume import Volume
from segmentation.space.views import reoriented
from segmentation.synthetic.anatomy import ANATOMY_FILE

__all__ = ["derive", "main"]

HEAD = "training_seg_10.nii.gz"
# Numbers of the source alone: linings of the ventricles, and lesions of the white matter.
FOLDED = {136: 4, 137: 5, 163: 43, 164: 44, 25: 2, 57: 41}
THIRD_VENTRICLE, CSF = 14, 24
# The source's 24 is all CSF of the head, where FreeSurfer's is a small midline pocket above the
# third ventricle (0.7 to 1.4 mL). Ours is the part within this ellipsoid, RAS mm from the third
# ventricle; the rest gets a number that no scheme knows, and so is background.
POCKET_CENTRE_MM, POCKET_RADII_MM = (0.0, -12.0, 8.0), (6.0, 10.0, 14.0)
OTHER_CSF = 524
SMOOTHING_MM = 0.8  # takes lone voxels off the boundaries


def derive(folder: Path) -> dict[str, NDArray[Any]]:
    """The arrays of the anatomy file, from the source's label map and priors in `folder`."""
    head = reoriented(Volume.read(folder / HEAD, labels=True), "RAS")
    numbers = np.array(head.data, np.int16)
    for source, target in FOLDED.items():
        numbers[numbers == source] = target
    centre = np.argwhere(numbers == THIRD_VENTRICLE).mean(axis=0)
    fluid = np.argwhere(numbers == CSF)
    offset = (fluid - centre - POCKET_CENTRE_MM) / POCKET_RADII_MM
    numbers[tuple(fluid[(offset**2).sum(axis=1) > 1].T)] = OTHER_CSF
    numbers = _crop(numbers)

    fs_ids, tissues = np.unique(numbers, return_inverse=True)
    names = ("generation_labels", "generation_classes_contrast_specific")
    labels, classes = (np.load(folder / f"{name}.npy").tolist() for name in names)
    class_of = dict(zip(labels, classes, strict=True))
    class_of[OTHER_CSF] = class_of[CSF]
    packed = lzma.compress(
        _smooth(tissues.reshape(numbers.shape), len(fs_ids)).tobytes(),
        filters=[{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "pb": 0}],
    )
    return {
        "tissues_xz": np.frombuffer(packed, np.uint8),
        "shape": np.array(numbers.shape),
        "fs_ids": fs_ids.astype(np.int16),
        "contrast": np.array([class_of[number] for number in fs_ids.tolist()], np.uint8),
        "means": np.load(folder / "prior_means_t1.npy").T.astype(np.float32),
        "spreads": np.load(folder / "prior_stds_t1.npy").T.astype(np.float32),
    }


def main(folder: Path) -> None:
    """Write the anatomy into the package."""
    arrays: dict[str, Any] = derive(folder)
    with atomic_write(str(resources.files("segmentation.synthetic") / ANATOMY_FILE)) as file:
        np.savez(file, **arrays)


def _crop(numbers: NDArray[np.int16]) -> NDArray[np.int16]:
    """The head with one voxel of air around it, but none below the neck, where the scan ended."""
    head = np.argwhere(numbers)
    low, high = head.min(axis=0) - (1, 1, 0), head.max(axis=0) + 2
    return numbers[tuple(slice(start, stop) for start, stop in zip(low, high, strict=True))]


def _smooth(tissues: NDArray[np.int64], count: int) -> NDArray[np.uint8]:
    """The tissue whose smoothed indicator is largest, in each voxel."""
    best = np.zeros(tissues.shape, np.float32)
    smooth = np.zeros(tissues.shape, np.uint8)
    for tissue in range(count):
        share = gaussian_filter((tissues == tissue).astype(np.float32), SMOOTHING_MM, truncate=3)
        np.copyto(smooth, np.uint8(tissue), where=share > best)
        np.maximum(best, share, out=best)
    return smooth


if __name__ == "__main__":
    main(Path(sys.argv[1]))
