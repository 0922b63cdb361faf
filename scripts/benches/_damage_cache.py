"""Cache of segmented good and damaged scans, with what grading needs of each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from benches._damage_kinds import KINDS, UNSEEN, Damaged, Head, Kind, as_scan
from trinat.segmentation.data.sources.freesurfer import find_image, find_labels
from trinat.segmentation.grid import grown, occupied_box
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.files import atomic_write
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.common_grid import on_grid_of
from trinat.segmentation.metrics.overlap import dice, joint_histogram
from trinat.segmentation.models.zoo import find_model
from trinat.segmentation.space.views import reoriented
from trinat.segmentation.synthetic.phantom import phantom

_CHOOSING_HEADS = ("sub-01", "sub-02")
HOLDING_HEADS = ("sub-03", "sub-04", "sub-06")
_PHANTOMS = 20
_MARGIN = 10
_WHITE_MATTER = (2, 41)
_THALAMUS = (10, 49)
# Right and left labels of malc/ that locate a head, and their FreeSurfer numbers.
_MALC_NUMBERS = {44: 41, 45: 2, 59: 49, 60: 10}
# A field around the thalamus with parts of all structures, as `trinat fit` uses.
_FIELD_MM = (96, 112, 96)
_OFFSET_MM = (0, -8, -8)


@dataclass(frozen=True)
class Case:
    """A good scan, or that scan with one kind of damage; whole, or only its middle."""

    head: str
    kind: Kind | None = None
    strength: float = 0.0
    is_part: bool = False
    is_for_choosing: bool = False

    @property
    def good(self) -> str:
        """Name of the good scan that this case is compared with."""
        return f"{self.head} part" if self.is_part else self.head

    @property
    def name(self) -> str:
        if self.kind is None:
            return self.good
        return f"{self.good} {self.kind.name} {self.strength:g}"


def all_cases(malc: Sequence[str]) -> list[Case]:
    """Return all cases: those for choosing limits first, then rounds of all kinds.

    This order lets a cache that is still filling hold some of each kind.
    """
    phantoms = [f"phantom-{seed:02d}" for seed in range(_PHANTOMS)]
    choosing = [*_CHOOSING_HEADS, *malc[::2], *phantoms[::4]]
    cases = [Case(head, is_for_choosing=True) for head in choosing]
    cases += [
        Case(head, is_part=True, is_for_choosing=True) for head in _CHOOSING_HEADS
    ]
    for place in (2, 3):
        for number, kind in enumerate(KINDS):
            # Two cases of each kind, where it begins to matter, are enough to choose limits by.
            head = _CHOOSING_HEADS[(number + place) % 2]
            cases.append(Case(head, kind, kind.strengths[place], kind.on_parts, True))
    cases += [Case(head, is_part=True) for head in HOLDING_HEADS]
    on_parts = [kind for kind in KINDS if kind.on_parts]
    on_wholes = [kind for kind in KINDS if not kind.on_parts]
    for turn in range(len(HOLDING_HEADS)):
        cases += _one_round(on_parts, turn)
    cases += [Case(head) for head in (*HOLDING_HEADS, *malc[1::2])]
    for turn in range(len(HOLDING_HEADS)):
        cases += _one_round(on_wholes, turn)
    cases += [Case(head) for head in phantoms if head not in choosing]
    return cases + [Case(head, UNSEEN, 1) for head in HOLDING_HEADS]


def _one_round(kinds: Sequence[Kind], turn: int) -> Iterator[Case]:
    """Yield each kind at each strength, with heads taken in turn."""
    for place in (2, 3, 4, 1, 0):
        for number, kind in enumerate(kinds):
            head = HOLDING_HEADS[(number + place + turn) % len(HOLDING_HEADS)]
            yield Case(head, kind, kind.strengths[place], kind.on_parts)


class Heads:
    """Good scans and their anatomy, by name."""

    def __init__(self, data: Path) -> None:
        self._data = data
        # Holds the last head only: the next case is often of the same head.
        self._heads: dict[str, Head] = {}
        self.malc = [
            path.name.split("_")[0] for path in sorted(data.glob("malc/*_SS.nii.gz"))
        ]

    def read(self, name: str) -> tuple[Volume, Volume]:
        """Return a scan and FreeSurfer numbers of at least its white matter and thalamus."""
        if name.startswith("phantom-"):
            return phantom(int(name.removeprefix("phantom-")))
        if name in self.malc:
            scan = Volume.read(self._data / "malc" / f"{name}_SS.nii.gz")
            given = Volume.read(self._data / "malc" / f"{name}_glm.nii.gz", labels=True)
            numbers = np.zeros(given.shape, np.int16)
            for theirs, ours in _MALC_NUMBERS.items():
                numbers[given.data == theirs] = ours
            return scan, Volume(numbers, given.affine)
        folder = self._data / "freesurfer" / name
        image = find_image(folder, "T1") or find_image(folder, "brainmask")
        labels = find_labels(folder, "aseg")
        assert image is not None, folder
        assert labels is not None, folder
        scan = Volume.read(image)
        return scan, on_grid_of(Volume.read(labels, labels=True), scan)[0]

    def head(self, name: str) -> Head:
        """Return a good scan in RAS axes, cut to the head, with white matter at 1."""
        if name not in self._heads:
            self._heads = {name: self._cut_out(name)}
        return self._heads[name]

    def _cut_out(self, name: str) -> Head:
        scan, labels = (reoriented(volume, "RAS") for volume in self.read(name))
        data = scan.data.astype(np.float32)
        content = ndimage.binary_opening(data > 0.05 * np.percentile(data, 99))
        box = grown(occupied_box(content), data.shape, _MARGIN)
        affine = scan.affine.copy()
        affine[:3, 3] += affine[:3, :3] @ [side.start for side in box]
        image, numbers = data[box], labels.data[box]
        white = np.median(image[np.isin(numbers, _WHITE_MATTER)])
        return Head(np.ascontiguousarray(image / np.float32(white)), affine, numbers)


@dataclass(frozen=True, eq=False)
class Stored:
    """Segmentation results that grading needs."""

    image: Volume
    indices: Volume
    scan_affine: NDArray[np.float64]
    scan_shape: tuple[int, int, int]
    agreement: NDArray[np.float64]
    voxels: dict[str, int]
    dice: NDArray[
        np.float64
    ]  # Dice with the good scan's labels, (K,); NaN where both lack the structure

    @property
    def mean_dice(self) -> float:
        return float(np.nanmean(self.dice))


def read_stored(path: Path) -> Stored:
    with np.load(path) as kept:
        affine = kept["affine"]
        x, y, z = (int(n) for n in kept["scan_shape"])
        return Stored(
            Volume(kept["image"], affine),
            Volume(kept["indices"], affine),
            kept["scan_affine"],
            (x, y, z),
            kept["agreement"],
            dict(zip(kept["names"].tolist(), kept["voxels"].tolist(), strict=True)),
            kept["dice"],
        )


def fill(cases: Sequence[Case], heads: Heads, folder: Path, model: str) -> None:
    """Segment every case that is not in the cache."""
    import torch

    torch.set_num_threads(1)
    segmenter = Predictor(find_model(model), device="cpu")
    for case in cases:
        path = folder / f"{case.name}.npz"
        if path.exists():
            continue
        start = time.perf_counter()
        score = _segment(case, heads, segmenter, folder)
        seconds = time.perf_counter() - start
        print(f"{case.name}: Dice {score:.3f}, {seconds:.0f} s", flush=True)


def _segment(case: Case, heads: Heads, segmenter: Predictor, folder: Path) -> float:
    """Segment a case and store what grading needs.

    Return its mean Dice with the good scan's labels.
    """
    if case.kind is None and not case.is_part:
        damaged = Damaged(heads.read(case.head)[0], np.eye(4))
    else:
        head = heads.head(case.head)
        damaged = Damaged(as_scan(head.image, head.affine), head.affine)
        if case.kind is not None:
            damaged = case.kind.apply(head, case.strength, case.head)
        if case.is_part:
            damaged = _middle(damaged, head)
    found = segmenter.segment(damaged.scan)
    assert found.agreement is not None
    values = np.full(len(found.scheme), np.nan)
    if case.kind is not None:
        good = read_stored(folder / f"{case.good}.npz")
        values = _compare(good.indices, damaged, found.working, found.scheme)
    path = folder / f"{case.name}.npz"
    with atomic_write(path) as file:
        np.savez(
            file,
            image=found.image.data,
            indices=found.working.data,
            affine=found.plan.working.affine,
            scan_affine=found.plan.scan.affine,
            scan_shape=found.plan.scan.shape,
            agreement=found.agreement,
            names=list(found.voxels),
            voxels=list(found.voxels.values()),
            dice=values,
        )
    return float(np.nanmean(values)) if case.kind is not None else 1.0


def _middle(damaged: Damaged, head: Head) -> Damaged:
    """Return the part of a damaged scan around the thalamus."""
    thalamus = np.argwhere(np.isin(head.numbers, _THALAMUS)).mean(axis=0) + _OFFSET_MM
    ends = [thalamus - np.divide(_FIELD_MM, 2), thalamus + np.divide(_FIELD_MM, 2)]
    to_scan = np.linalg.inv(damaged.true_affine) @ head.affine
    ends = [np.rint((to_scan @ [*end, 1])[:3]).astype(int) for end in ends]
    low = np.maximum(np.minimum(*ends), 0)
    high = np.minimum(np.maximum(*ends), damaged.scan.shape)
    box = tuple(slice(a, b) for a, b in zip(low, high, strict=True))

    def moved(affine: NDArray[np.float64]) -> NDArray[np.float64]:
        new = affine.copy()
        new[:3, 3] += affine[:3, :3] @ low
        return new

    part = Volume(damaged.scan.data[box], moved(damaged.scan.affine))
    return Damaged(part, moved(damaged.true_affine))


def _compare(
    good: Volume, damaged: Damaged, found: Volume, scheme: LabelScheme
) -> NDArray[np.float64]:
    """Return the Dice (K,) with the good scan's labels, where the damaged scan has the head."""
    # Maps a point of the head to where the header of the damaged scan places it.
    to_scan = np.linalg.inv(damaged.true_affine) @ good.affine
    labels = _taken(found, damaged.scan.affine @ to_scan, good.shape)
    left = np.ones(damaged.scan.shape, np.uint8)
    if damaged.gone is not None:
        left = np.asarray(~damaged.gone, np.uint8)
    kept = ndimage.affine_transform(left, to_scan, output_shape=good.shape, order=0) > 0
    joint = joint_histogram(good.data * kept, labels * kept, len(scheme))
    values = np.asarray(dice(joint), float)
    values[(joint.sum(axis=0) + joint.sum(axis=1)) == 0] = np.nan
    values[0] = np.nan
    return values


def _taken(
    labels: Volume, affine: NDArray[np.float64], shape: tuple[int, ...]
) -> NDArray[np.uint8]:
    """Return the nearest label at each voxel of a grid, and 0 beyond the label map."""
    chain = np.linalg.inv(labels.affine) @ affine
    taken = ndimage.affine_transform(labels.data, chain, output_shape=shape, order=0)
    return np.asarray(taken, np.uint8)
