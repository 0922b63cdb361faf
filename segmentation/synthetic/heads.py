"""Head models for synthesis: whole-head label maps and priors of their intensities.

They are read from a folder of label maps, from one compact file, or made from the phantom's
anatomy. `targets.py` derives the training targets.
"""

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
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.errors import DatasetError, IntegrityError
from trinat.segmentation.grid import occupied_box
from trinat.segmentation.io.files import atomic_write, open_regular
from trinat.segmentation.io.streams import refuse_bomb
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.folding import (
    GENERATION_FIRST_OUTSIDE,
    GENERATION_NECK_FLUID,
    GENERATION_SURROUNDINGS,
)
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.views import reoriented
from trinat.segmentation.synthetic.anatomy import Anatomy, load_anatomy

# Errors that NumPy and zipfile raise for a damaged file of heads.
_DAMAGE = (
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    RuntimeError,
    BadZipFile,
    zlib.error,
    TokenError,  # from an array's header
    OSError,
)
_CORTEX = (3, 42)
_FLUID = GENERATION_SURROUNDINGS
_CEREBELLUM = (7, 8, 46, 47)
Variant = Literal[
    "thin-cortex",
    "large-pallidum",
    "large-thalamus",
    "small-caudate",
    "small-accumbens",
]


class Growth(NamedTuple):
    """Change of label maps by which a structure grows by 1 mm into its neighbours.

    `structure` and `neighbours` are FreeSurfer numbers.
    """

    structure: int
    neighbours: tuple[int, ...]


# Growths of each variant: left side first, then right.
_VARIANTS: dict[Variant, tuple[Growth, ...]] = {
    "thin-cortex": (Growth(_FLUID, _CORTEX),),
    "large-pallidum": (Growth(13, (12, 2)), Growth(52, (51, 41))),
    "large-thalamus": (Growth(10, (2,)), Growth(49, (41,))),
    "small-caudate": (Growth(2, (11,)), Growth(41, (50,))),
    "small-accumbens": (Growth(2, (26,)), Growth(41, (58,))),
}
# File names of the tables in a folder of label maps, by attribute of `HeadMaps`.
_TABLES = {
    "numbers": "generation_labels.npy",
    "classes": "generation_classes_contrast_specific.npy",
    "means": "prior_means_t1.npy",
    "spreads": "prior_stds_t1.npy",
}


@dataclass(frozen=True, eq=False)
class HeadMaps:
    """M heads on one grid of RAS axes and 1 mm, with T1 intensities of their tissues.

    Each voxel holds the number of its tissue, an entry from 0 to E - 1. The tables describe the
    entries:

    - `labels` (M, X, Y, Z): the entry of each voxel;
    - `numbers` (E,): FreeSurfer number of each entry, or a private number from 500 on; entry 0 has
      number 0;
    - `classes` (E,): the intensity class of each entry, 0 to I - 1. Entries of one class look
      alike;
    - `means` (2, I): mean intensity of each class, 0 to 255, as mean and standard deviation over
      scans;
    - `spreads` (2, I): standard deviation of the intensity within each class, in the same form.
    """

    labels: NDArray[np.uint8]
    numbers: NDArray[np.int64]
    classes: NDArray[np.int64]
    means: NDArray[np.float64]
    spreads: NDArray[np.float64]

    @cached_property
    def fingerprint(self) -> str:
        """Return the SHA-256 of all maps and tables, which is equal for equal heads."""
        digest = hashlib.sha256()
        for field in fields(self):
            array = getattr(self, field.name)
            digest.update(f"{field.name} {array.shape} {array.dtype.str}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def part(self, heads: slice) -> HeadMaps:
        """Return the heads of a range, with the same tables."""
        return replace(self, labels=self.labels[heads])

    def save(self, path: Path) -> None:
        """Write one compact file for `load_heads`.

        It loads in a tenth of the time of label maps.
        """
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        with atomic_write(path) as file:
            np.savez_compressed(file, **arrays)


def load_heads(path: Path) -> HeadMaps:
    """Load heads from a file that `HeadMaps.save` wrote, or from a folder of label maps.

    Raises a DatasetError if nothing is there, and an IntegrityError for a wrong or damaged file.
    """
    if path.is_dir():
        return read_label_maps(path)
    try:
        # Opened here because np.load leaves a damaged file open after its error.
        with open_regular(path) as file, ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
            refuse_bomb(size, path.stat().st_size, path)
            file.seek(0)
            return HeadMaps(**np.load(file, allow_pickle=False))
    except FileNotFoundError:
        raise DatasetError(
            "no label maps there",
            where=path,
            remedy="name a folder of them, or a file written by HeadMaps.save",
        ) from None
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.filename:
            raise  # an error of the disk, not of the content
        raise IntegrityError(
            "is no file of head maps, or a damaged one", where=path
        ) from error


def read_label_maps(folder: Path) -> HeadMaps:
    """Read whole-head label maps (.nii.gz, 1 mm) and the four tables of T1 intensities.

    Raises a DatasetError if a table or all label maps are missing, or if a map does not fit.
    """
    tables = {name: _read_table(folder, file) for name, file in _TABLES.items()}
    order = np.argsort(tables["numbers"], kind="stable")
    numbers = tables["numbers"][order].astype(np.int64)
    paths = sorted(folder.glob("*.nii.gz"))
    if not paths:
        raise DatasetError("no label map (.nii.gz) here", where=folder)
    maps = HeadMaps(
        labels=_crop([_read_entries(path, numbers) for path in paths]),
        numbers=numbers,
        classes=tables["classes"][order].astype(np.int64),
        means=tables["means"].astype(np.float64),
        spreads=tables["spreads"].astype(np.float64),
    )
    return _with_neck(maps)


def _read_table(folder: Path, file: str) -> NDArray[Any]:
    """Read the table `file` of a folder of label maps; raise DatasetError if it is missing."""
    try:
        with open_regular(folder / file) as table:
            return np.asarray(np.load(table, allow_pickle=False))
    except FileNotFoundError:
        raise DatasetError(
            f"{file} is missing",
            where=folder,
            remedy="label maps come with their tables (github.com/BBillot/SynthSeg, data)",
        ) from None


def phantom_heads(spacing_mm: int = 1) -> HeadMaps:
    """Return the phantom's single head at this voxel size, to test training without any data."""
    return heads_of(load_anatomy(spacing_mm))


def heads_of(anatomy: Anatomy) -> HeadMaps:
    """Return head maps that consist of the single head of an anatomy."""
    maps = HeadMaps(
        labels=anatomy.tissues[None],
        numbers=_phantom_numbers(anatomy),
        classes=anatomy.contrast.astype(np.int64),
        means=anatomy.means.T.astype(np.float64),
        spreads=anatomy.spreads.T.astype(np.float64),
    )
    return _with_neck(maps)


def _phantom_numbers(anatomy: Anatomy) -> NDArray[np.int64]:
    """Return the FreeSurfer number of each tissue of the phantom, (A,)."""
    structures = load_scheme("quicknat33").fs_ids
    # A tissue without a structure in the truth is outside of the brain, with a number of its own.
    count = int(anatomy.tissues.max()) + 1
    numbers = np.arange(GENERATION_FIRST_OUTSIDE, GENERATION_FIRST_OUTSIDE + count)
    tissues, places = np.unique(anatomy.tissues, return_index=True)
    for tissue, place in zip(tissues, places, strict=True):
        true_class = anatomy.truth.flat[place]
        structure = int(structures[true_class])
        if structure or tissue == 0:
            numbers[tissue] = structure
    # The phantom's truth has only a small region of fluid; other tissue of the same contrast that
    # is no structure is the fluid around the brain.
    contrast_of_fluid = anatomy.contrast[numbers == _FLUID]
    if len(contrast_of_fluid):
        is_outside = numbers >= GENERATION_FIRST_OUTSIDE
        looks_like_fluid = anatomy.contrast == contrast_of_fluid[0]
        numbers[is_outside & looks_like_fluid] = _FLUID
    return numbers.astype(np.int64)


def with_variants(maps: HeadMaps, copies: Sequence[Sequence[Variant]]) -> HeadMaps:
    """Return all heads unchanged, followed by changed copies of all heads.

    A variant is a change of all heads, such as "thin-cortex". `copies` has the variants of each
    copy: `[["thin-cortex"]]` gives M unchanged heads and M with a thin cortex, `[["thin-cortex",
    "large-pallidum"]]` applies both changes to one copy. The tables stay the same.
    """
    labels = [maps.labels]
    for variants in copies:
        changed = maps.labels.copy()
        for variant in variants:
            for growth in _VARIANTS[variant]:
                _grow(changed, maps, growth)
        labels.append(changed)
    return replace(maps, labels=np.concatenate(labels))


def _grow(changed: NDArray[np.uint8], maps: HeadMaps, growth: Growth) -> None:
    """Grow a structure of all heads in `changed` (M, X, Y, Z), in place.

    Where the structure and its neighbours are is read from the unchanged heads, `maps`.
    """
    if growth.structure == _FLUID:
        # Fluid grows from everything outside of the brain.
        is_air_or_fluid = np.isin(maps.numbers, (0, _FLUID))
        is_skull_or_scalp = maps.numbers >= GENERATION_FIRST_OUTSIDE
        grown = (is_air_or_fluid | is_skull_or_scalp)[maps.labels]
    else:
        grown = _voxels_of(maps, [growth.structure])
    cross = ndimage.generate_binary_structure(3, 1)[None]
    border = ndimage.binary_dilation(grown, cross)
    gained = _voxels_of(maps, growth.neighbours) & border
    for entry in np.flatnonzero(maps.numbers == growth.structure):
        changed[gained] = entry


def _voxels_of(maps: HeadMaps, numbers: Sequence[int]) -> NDArray[np.bool_]:
    """Return a mask (M, X, Y, Z) of the structures with these FreeSurfer numbers."""
    return np.asarray(np.isin(maps.numbers, numbers)[maps.labels])


def _read_entries(path: Path, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Read a label map with RAS axes; return the tissue number, or entry, of each voxel.

    `numbers` (E,) are the sorted FreeSurfer numbers, and an entry is an index of these. Raises a
    DatasetError if the map is not on a grid of 1 mm or has other numbers.
    """
    volume = reoriented(Volume.read(path, labels=True), "RAS")
    if not np.allclose(volume.spacing_mm, 1, atol=0.01):
        raise DatasetError("is not on a grid of 1 mm", where=path, remedy="resample it")
    entries = np.searchsorted(numbers, volume.data).clip(max=len(numbers) - 1)
    is_unknown = numbers[entries] != volume.data
    if is_unknown.any():
        unknown = volume.data[is_unknown]
        raise DatasetError(
            f"label {unknown.flat[0]} is not in {_TABLES['numbers']}", where=path
        )
    return entries.astype(np.uint8)


def _with_neck(maps: HeadMaps) -> HeadMaps:
    """Give the fluid in the neck, below the skull, a number of its own in the maps of heads.

    The maps have RAS axes. The skull is assumed to end at the lowest voxel of the cerebellum, near
    the foramen magnum.
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
            # A view: assignments change the head itself.
            below = head[:, :, : heights[0]]
            below[fluid[below]] = neck
    return replace(
        maps,
        labels=labels,
        numbers=np.append(maps.numbers, GENERATION_NECK_FLUID),
        classes=np.append(maps.classes, maps.classes[fluid][0]),
    )


def _crop(heads: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Stack label maps of one shape, (M, X, Y, Z), without margins that are empty in all of them.

    Raises a DatasetError for maps of different shapes.
    """
    shapes = {head.shape for head in heads}
    if len(shapes) > 1:
        raise DatasetError(f"label maps have different shapes: {sorted(shapes)}")
    is_occupied = np.any([head > 0 for head in heads], 0)
    box = occupied_box(is_occupied)
    cropped = np.stack([head[box] for head in heads])
    # Reoriented heads have another memory order, which np.stack keeps.
    return np.ascontiguousarray(cropped)
