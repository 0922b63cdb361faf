"""Paint training scans with lesions of white matter.

The folder has `images`, `labels` (the structures, with lesions) and `lesions` (masks).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benches._painted_lesions import LESION, LesionHead, Shape, paint, shapes_of
from trinat.segmentation.grid import occupied_box
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.folding import (
    GENERATION_FIRST_OUTSIDE,
    GENERATION_SURROUNDINGS,
)
from trinat.segmentation.space.background import TISSUE
from trinat.segmentation.space.views import reoriented

# seek-la02: its labels are wrong (docs/notes/fast.md).
_LEFT_OUT = ("seek-la02",)
# Kept around the brain, in mm.
_AROUND = 16
_IMAGES = ("T1.mgz", "norm.mgz", "brain.mgz")


def run(*arguments: str) -> None:
    """Paint copies of all heads that are not there yet."""
    parser = argparse.ArgumentParser("scripts/bench paint_lesions", description=__doc__)
    parser.add_argument("--subjects", type=Path, required=True, help="SUBJECTS_DIR")
    parser.add_argument("--maps", type=Path, required=True, help="label maps")
    parser.add_argument("--masks", type=Path, required=True, help="lesions, MNI space")
    parser.add_argument("--without", nargs="*", default=(), help="masks to leave out")
    parser.add_argument("--copies", type=int, default=2, help="scans of each head")
    parser.add_argument("--first", type=int, default=0, help="number of the first copy")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    patients = [
        _shapes(path)
        for path in sorted(options.masks.glob("*.nii.gz"))
        if path.name.removesuffix(".nii.gz") not in options.without
    ]
    for kind in ("images", "labels", "lesions"):
        (options.out / kind).mkdir(parents=True, exist_ok=True)
    for name, image, labels in _heads(options.subjects, options.maps):
        head, affine = _read(image, labels)
        for copy in range(options.first, options.first + options.copies):
            target = options.out / "labels" / f"{name}-{copy:02}.nii.gz"
            if target.exists():
                continue
            seed = np.frombuffer(f"{name} {copy}".encode(), np.uint8)
            rng = np.random.default_rng(seed.tolist())
            painted = paint(head, patients, rng)
            scale = 1000 / np.percentile(painted.image[head.numbers > 0], 99)
            values = np.clip(painted.image * scale, 0, 4000).astype(np.int16)
            Volume(values, affine).write(options.out / "images" / target.name)
            lesions = painted.numbers == LESION
            mask = Volume(lesions.astype(np.uint8), affine)
            mask.write(options.out / "lesions" / target.name, labels=True)
            Volume(painted.numbers, affine).write(target, labels=True)
            voxels = int(lesions.sum())
            print(target.name, painted.contrast, f"{painted.thick_mm:.1f}", voxels)


def _heads(subjects: Path, maps: Path) -> Iterator[tuple[str, Path | None, Path]]:
    """Yield name, image and label map of each head: real ones, then label maps."""
    for folder in sorted(subjects.iterdir()):
        labels = folder / "mri" / "aseg.mgz"
        if folder.name in _LEFT_OUT or not labels.exists():
            continue
        for name in _IMAGES:
            image = folder / "mri" / name
            if image.exists():
                yield folder.name, image, labels
                break
    for path in sorted(maps.glob("*.nii.gz")):
        yield path.name.removesuffix(".nii.gz"), None, path


def _read(image: Path | None, labels: Path) -> tuple[LesionHead, NDArray[np.float64]]:
    """Read a head with RAS axes, cut to what it occupies."""
    numbers = reoriented(Volume.read(labels, labels=True), "RAS")
    scan = None
    if image is not None:
        scan = reoriented(Volume.read(image), "RAS").data.astype(np.float32)
    occupied = numbers.data > 0
    if scan is not None:
        occupied = occupied | (scan > TISSUE * np.percentile(scan[occupied], 95))
    box = occupied_box(occupied)
    # Faces and necks teach nothing about lesions.
    brain = occupied_box(
        (numbers.data > 0)
        & (numbers.data < GENERATION_FIRST_OUTSIDE)
        & (numbers.data != GENERATION_SURROUNDINGS)
    )
    x, y, z = (
        slice(max(one.start, two.start - _AROUND), min(one.stop, two.stop + _AROUND))
        for one, two in zip(box, brain, strict=True)
    )
    box = (x, y, z)
    affine = numbers.affine.copy()
    affine[:3, 3] += affine[:3, :3] @ [side.start for side in box]
    t1 = None if scan is None else np.ascontiguousarray(scan[box])
    return LesionHead(np.ascontiguousarray(numbers.data[box]), t1), affine


def _shapes(path: Path) -> list[Shape]:
    """Read the lesions of a mask in MNI space."""
    mask = reoriented(Volume.read(path, labels=True), "RAS")
    return shapes_of(mask.data > 0, mask.affine[:3, 3])
