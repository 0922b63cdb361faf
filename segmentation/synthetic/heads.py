"""Heads to synthesise scans of: whole-head label maps, priors of their intensities, targets."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from tokenize import TokenError
from typing import Any, Literal, NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from trinat.segmentation.errors import DatasetError, IntegrityError
from trinat.segmentation.io.files import atomic_write, open_regular
from trinat.segmentation.io.streams import refuse_bomb
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.folding import (
    GENERATION_BETWEEN,
    GENERATION_FIRST_OUTSIDE,
    GENERATION_FOLDED,
    GENERATION_NECK_FLUID,
    GENERATION_SURROUNDINGS,
)
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.space.resample import occupied_box
from trinat.segmentation.space.views import View, reoriented
from trinat.segmentation.synthetic.anatomy import load_anatomy

# What NumPy and zipfile raise over a damaged file of heads.
_DAMAGE = (
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    RuntimeError,
    BadZipFile,
    zlib.error,
    TokenError,  # of an array's header
    OSError,
)
_PARTNERS = {136: 163, 137: 164, 25: 57, 30: 62}
# What lines the ventricles: partial volume, which neither ventricle nor white matter is.
_LININGS = (136, 137, 163, 164)
_CORTEX = (3, 42)
_FLUID = GENERATION_SURROUNDINGS
_CEREBELLUM = (7, 8, 46, 47)
_LARGE_TISSUES = (2, 3, GENERATION_SURROUNDINGS)
Variant = Literal[
    "thin-cortex",
    "large-pallidum",
    "large-thalamus",
    "small-caudate",
    "small-accumbens",
]
# What takes the millimetre that touches it, and of what: fluid what touches the outside.
_VARIANTS: dict[Variant, tuple[tuple[int, ...], ...]] = {
    "thin-cortex": ((_FLUID, *_CORTEX),),
    "large-pallidum": ((13, 12, 2), (52, 51, 41)),
    "large-thalamus": ((10, 2), (49, 41)),
    "small-caudate": ((2, 11), (41, 50)),
    "small-accumbens": ((2, 26), (41, 58)),
}
_POINTS = 64
_WHITE_MATTER = 2
_PRIORS = {
    "numbers": "generation_labels.npy",
    "classes": "generation_classes_contrast_specific.npy",
    "means": "prior_means_t1.npy",
    "spreads": "prior_stds_t1.npy",
}


@dataclass(frozen=True, eq=False)
class HeadMaps:
    """M heads on one grid of RAS axes and 1 mm; entry e of a map stands for number numbers[e]."""

    labels: NDArray[np.uint8]  # (M, X, Y, Z) entries
    numbers: NDArray[
        np.int64
    ]  # (E,) FreeSurfer numbers, and private ones from 500 on; 0 first
    classes: NDArray[np.int64]  # (E,) class of intensity
    means: NDArray[
        np.float64
    ]  # (2, I): mean and spread, over scans, of a class's mean, 0-255
    spreads: NDArray[np.float64]  # (2, I): the same of its standard deviation

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over all maps and tables: equal for equal heads."""
        digest = hashlib.sha256()
        for field in fields(self):
            array = getattr(self, field.name)
            digest.update(f"{field.name} {array.shape} {array.dtype.str}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def part(self, heads: slice) -> HeadMaps:
        """Some of the heads, with the same tables."""
        return replace(self, labels=self.labels[heads])

    def save(self, path: Path) -> None:
        """Write one compact file, which is read in a tenth of the time of label maps."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        with atomic_write(path) as file:
            np.savez_compressed(file, **arrays)


def load_heads(path: Path) -> HeadMaps:
    """Heads from a file that `HeadMaps.save` wrote, or from a folder of label maps."""
    if path.is_dir():
        return read_label_maps(path)
    try:
        # Opened here: np.load leaves a damaged file open behind its error.
        with open_regular(path) as file, ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
            refuse_bomb(size, path.stat().st_size, path)
            file.seek(0)
            return HeadMaps(**np.load(file, allow_pickle=False))
    except FileNotFoundError:
        remedy = "name a folder of them, or a file written by HeadMaps.save"
        raise DatasetError("no label maps there", where=path, remedy=remedy) from None
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.filename:
            raise  # of the disk, not of what zipfile reads
        raise IntegrityError(
            "is no file of head maps, or a damaged one", where=path
        ) from error


def read_label_maps(folder: Path) -> HeadMaps:
    """Whole-head label maps (.nii.gz, 1 mm) and the four tables that say how tissues look in T1."""
    tables = {}
    for name, file in _PRIORS.items():
        try:
            with open_regular(folder / file) as table:
                tables[name] = np.load(table, allow_pickle=False)
        except FileNotFoundError:
            remedy = (
                "label maps come with their tables (github.com/BBillot/SynthSeg, data)"
            )
            raise DatasetError(
                f"{file} is not there", where=folder, remedy=remedy
            ) from None
    order = np.argsort(tables["numbers"], kind="stable")
    numbers = tables["numbers"][order].astype(np.int64)
    paths = sorted(folder.glob("*.nii.gz"))
    if not paths:
        raise DatasetError("no label map (.nii.gz) here", where=folder)
    maps = HeadMaps(
        _crop([_read_entries(path, numbers) for path in paths]),
        numbers,
        tables["classes"][order].astype(np.int64),
        tables["means"].astype(np.float64),
        tables["spreads"].astype(np.float64),
    )
    return _with_neck(maps)


def phantom_heads(spacing_mm: int = 1) -> HeadMaps:
    """The phantom's one head: enough to see that training works, without any data."""
    anatomy = load_anatomy(spacing_mm)
    count = int(anatomy.tissues.max()) + 1
    ids = load_scheme("quicknat33").fs_ids
    # Where a tissue is, the truth says which structure; the others lie outside the brain.
    tissues, places = np.unique(anatomy.tissues, return_index=True)
    numbers = np.arange(GENERATION_FIRST_OUTSIDE, GENERATION_FIRST_OUTSIDE + count)
    for tissue, place in zip(tissues, places, strict=True):
        structure = int(ids[anatomy.truth.flat[place]])
        if structure or tissue == 0:
            numbers[tissue] = structure
    # The phantom's truth names a pocket of fluid alone; what else looks like it and is no
    # structure is the fluid all around.
    of_fluid = anatomy.contrast[numbers == _FLUID]
    if len(of_fluid):
        outside = numbers >= GENERATION_FIRST_OUTSIDE
        numbers[outside & (anatomy.contrast == of_fluid[0])] = _FLUID
    maps = HeadMaps(
        anatomy.tissues[None],
        numbers.astype(np.int64),
        anatomy.contrast.astype(np.int64),
        anatomy.means.T.astype(np.float64),
        anatomy.spreads.T.astype(np.float64),
    )
    return _with_neck(maps)


def with_variants(maps: HeadMaps, copies: Sequence[Sequence[Variant]]) -> HeadMaps:
    """The heads, and each once more for each of the copies, which differ in what is named."""

    labels = [maps.labels]
    for variants in copies:
        changed = maps.labels.copy()
        for variant in variants:
            for number, *giving in _VARIANTS[variant]:
                gained = _voxels_of(maps, giving) & _next_to(_grown_from(maps, number))
                for entry in np.flatnonzero(maps.numbers == number):
                    changed[gained] = entry
        labels.append(changed)
    return replace(maps, labels=np.concatenate(labels))


def _voxels_of(maps: HeadMaps, numbers: Sequence[int]) -> NDArray[np.bool_]:
    """Voxels (M, X, Y, Z) of the structures with these FreeSurfer numbers."""
    return np.asarray(np.isin(maps.numbers, numbers)[maps.labels])


def _grown_from(maps: HeadMaps, number: int) -> NDArray[np.bool_]:
    """Voxels (M, X, Y, Z) that a structure grows from: its own, of fluid all outside the brain."""
    if number != _FLUID:
        return _voxels_of(maps, [number])
    is_outside = np.isin(maps.numbers, (0, _FLUID)) | (
        maps.numbers >= GENERATION_FIRST_OUTSIDE
    )
    return np.asarray(is_outside[maps.labels])


def _next_to(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Voxels of heads (M, X, Y, Z) with a neighbour across a face in the mask."""
    cross = ndimage.generate_binary_structure(3, 1)[None]
    return np.asarray(ndimage.binary_dilation(mask, cross))


@dataclass(frozen=True, eq=False)
class Heads:
    """Head maps on a device, aimed at the classes that a network learns."""

    scheme: LabelScheme
    labels: Tensor  # (M, X, Y, Z) uint8 entries
    classes: Tensor  # (E,) class of intensity
    means: Tensor  # (2, I)
    spreads: Tensor  # (2, I)
    targets: Tensor  # (E,) uint8 class to learn
    mirrored_targets: Tensor  # (E,) uint8, after left and right have changed places
    sideless: Tensor  # (E,) entry of the left partner, or itself
    is_brain: Tensor  # (E,) bool
    is_outside: Tensor  # (E,) bool: scalp, skull, face and neck
    is_lining: Tensor  # (E,) bool: partial volume around the ventricles
    is_deep: Tensor  # (E,) bool: structures, but not cerebral cortex and white matter
    is_fluid: Tensor  # (E,) bool: learnt as the fluid all around the brain
    white_matter: int  # its class of intensity
    large_tissues: Tensor  # classes of intensity of white matter, cortex and CSF
    points: Tensor  # (M, T, P, 3) voxels of each class to learn
    extent: Tensor  # (M, 2, 3) first and last voxel of the head
    centre: Tensor  # (M, 3) middle of the brain

    def seen_in(self, view: View) -> Heads:
        """The same heads, aimed at the classes that slices of a view tell apart."""
        scheme = self.scheme.seen_in(view)
        if scheme is self.scheme:
            return self
        merged = torch.from_numpy(self.scheme.merged.to_merged.astype(np.uint8))
        to_merged = merged.to(self.targets.device)
        return replace(
            self,
            scheme=scheme,
            targets=to_merged[self.targets.long()],
            mirrored_targets=to_merged[self.mirrored_targets.long()],
        )


def aim(
    maps: HeadMaps,
    scheme: LabelScheme,
    device: torch.device | str = "cpu",
    *,
    learn_fluid: bool = False,
) -> Heads:
    """Head maps for the classes of a scheme.

    With `learn_fluid`, all that lies between the brain and the skull is learnt as CSF, so that
    brain and CSF together are what the skull holds; else it is background.
    """
    folded = np.array([GENERATION_FOLDED.get(int(n), int(n)) for n in maps.numbers])
    by_number = {}
    for label in scheme.labels:
        for number in label.numbers:
            by_number[number] = label.index
    between = 0
    if learn_fluid:
        between = by_number.get(_FLUID, 0)
    for number in (_FLUID, *GENERATION_BETWEEN):
        by_number[number] = between
    targets = np.array([by_number.get(int(n), 0) for n in folded], np.uint8)
    mirrored = scheme.partner_permutation[targets].astype(np.uint8)
    if not targets.any():
        raise DatasetError(f"label maps hold nothing that {scheme.name} names")
    white_matter = maps.numbers == _WHITE_MATTER
    if not white_matter.any():
        raise DatasetError(
            f"label maps lack number {_WHITE_MATTER}, cerebral white matter"
        )
    learned = np.unique(targets[targets > 0])
    surveys = [_survey(head, targets, learned) for head in maps.labels]

    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.array(array)).to(device)

    cerebral = ("background", "cortical", "white-matter", "csf")
    is_deep = np.array([label.group not in cerebral for label in scheme.labels])
    return Heads(
        scheme=scheme,
        labels=tensor(maps.labels),
        classes=tensor(maps.classes),
        means=tensor(maps.means.astype(np.float32)),
        spreads=tensor(maps.spreads.astype(np.float32)),
        targets=tensor(targets),
        mirrored_targets=tensor(mirrored),
        sideless=tensor(_pair_sides(maps.numbers)),
        is_brain=tensor(
            (folded > 0) & (folded < GENERATION_FIRST_OUTSIDE) & (folded != _FLUID)
        ),
        is_outside=tensor(maps.numbers >= GENERATION_FIRST_OUTSIDE),
        is_lining=tensor(np.isin(maps.numbers, _LININGS)),
        is_deep=tensor(is_deep[targets]),
        is_fluid=tensor(
            np.isin(maps.numbers, (_FLUID, *GENERATION_BETWEEN)) & (targets > 0)
        ),
        white_matter=int(maps.classes[white_matter][0]),
        large_tissues=tensor(
            np.unique(maps.classes[np.isin(maps.numbers, _LARGE_TISSUES)])
        ),
        points=tensor(np.stack([survey.points for survey in surveys])),
        extent=tensor(np.stack([survey.extent for survey in surveys])),
        centre=tensor(np.stack([survey.centre for survey in surveys])),
    )


def _read_entries(path: Path, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """One label map, turned to RAS axes, as entries."""
    volume = reoriented(Volume.read(path, labels=True), "RAS")
    if not np.allclose(volume.spacing_mm, 1, atol=0.01):
        raise DatasetError("is not on a grid of 1 mm", where=path, remedy="resample it")
    entry = np.searchsorted(numbers, volume.data).clip(max=len(numbers) - 1)
    unknown = volume.data[numbers[entry] != volume.data]
    if unknown.size:
        raise DatasetError(
            f"label {unknown.flat[0]} is not in {_PRIORS['numbers']}", where=path
        )
    return entry.astype(np.uint8)


def _with_neck(maps: HeadMaps) -> HeadMaps:
    """Heads of RAS axes whose fluid below the skull has a number of its own.

    The skull ends where the cerebellum does: its lowest voxel stands for the foramen magnum.
    """
    fluid = maps.numbers == _FLUID
    if not fluid.any():
        return maps
    neck = len(maps.numbers)
    is_cerebellum = np.isin(maps.numbers, _CEREBELLUM)
    labels = maps.labels.copy()
    for head in labels:
        heights = np.flatnonzero(is_cerebellum[head].any((0, 1)))
        if len(heights):
            below = head[:, :, : heights[0]]
            below[fluid[below]] = neck
    return replace(
        maps,
        labels=labels,
        numbers=np.append(maps.numbers, GENERATION_NECK_FLUID),
        classes=np.append(maps.classes, maps.classes[fluid][0]),
    )


def _crop(heads: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Maps of one shape, (M, X, Y, Z), without the margins that are empty in all."""
    shapes = {head.shape for head in heads}
    if len(shapes) > 1:
        raise DatasetError(f"label maps have different shapes: {sorted(shapes)}")
    box = occupied_box(np.any([head > 0 for head in heads], 0))
    # Heads turned from another orientation lie in another order, which np.stack keeps.
    return np.ascontiguousarray(np.stack([head[box] for head in heads]))


def _pair_sides(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each entry, the entry of its left partner, or its own: both sides look alike."""
    scheme = load_scheme("quicknat33")
    left = {right: left for left, right in _PARTNERS.items()}
    for label in scheme.labels:
        if label.side == "right" and label.partner is not None:
            left[label.fs_id] = scheme.labels[label.partner].fs_id
    entry_of = {int(number): entry for entry, number in enumerate(numbers)}
    partners = []
    for entry, number in enumerate(numbers.tolist()):
        partner = left.get(number, number)
        partners.append(entry_of.get(partner, entry))
    return np.array(partners)


class _Survey(NamedTuple):
    """Where things lie in one head, in voxels."""

    points: NDArray[np.int16]  # (T, P, 3) some voxels of each class
    extent: NDArray[np.int16]  # (2, 3) first and last voxel of the head
    centre: NDArray[np.float32]  # (3,) middle of the brain


def _survey(
    head: NDArray[np.uint8], targets: NDArray[np.uint8], learned: NDArray[np.uint8]
) -> _Survey:
    """Some voxels of each class that is `learned` (T,), and where head and brain lie."""
    classes = targets[head].ravel()
    brain = np.flatnonzero(classes)
    if not len(brain):
        raise DatasetError("a label map holds no structure to learn")
    # Brain voxels class by class, each class in the order of memory.
    order = brain[np.argsort(classes[brain], kind="stable")]
    first = np.searchsorted(classes[order], learned, side="left")
    end = np.searchsorted(classes[order], learned, side="right")
    chosen = []
    for start, stop in zip(first, end, strict=True):
        voxels = order[start:stop]
        if not len(voxels):
            # A head without this structure gives any voxel of its brain instead.
            voxels = brain
        evenly = np.linspace(0, len(voxels) - 1, _POINTS).round().astype(int)
        chosen.append(voxels[evenly])
    points = np.stack(np.unravel_index(np.stack(chosen), head.shape), -1)
    centre = _extent(classes.reshape(head.shape) > 0).sum(0) / 2
    return _Survey(
        points.astype(np.int16), _extent(head > 0), centre.astype(np.float32)
    )


def _extent(mask: NDArray[np.bool_]) -> NDArray[np.int16]:
    """First and last voxel along each axis, (2, 3)."""
    box = occupied_box(mask)
    first = [side.start for side in box]
    last = [side.stop - 1 for side in box]
    return np.array([first, last], np.int16)
